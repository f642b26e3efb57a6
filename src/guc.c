/*-------------------------------------------------------------------------
 *
 * guc.c
 *	  Settings etl.<name>.
 *
 * Workers take their settings from the configuration files, so none can be
 * set in a session.  Where an option also exists at a narrower scope, the
 * setting is only the default (see catalog/config.h).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/guc.h"

#include "guc.h"
#include "net/address.h"
#include "server/shmem.h"

bool		etl_enabled = true;
int			etl_max_pipelines = 16;
int			etl_max_tables = 16384;
int			etl_queue_size = 0;
int			etl_max_workers = -1;
char	   *etl_allowed_hosts = NULL;
int			etl_error_log_size = 1000;
int			etl_shutdown_timeout = 2000;
int			etl_stall_timeout = 5 * 60 * 1000;
int			etl_max_sync_workers = 2;
int			etl_copy_yield_timeout = 2000;
int			etl_max_batch_size = -1;
int			etl_max_batch_delay = -1;
int			etl_retry_delay = 1000;
int			etl_max_retry_delay = 60 * 1000;
int			etl_auth_retry_delay = 60 * 1000;
int			etl_connect_timeout = 10 * 1000;
int			etl_request_timeout = -1;
#ifdef ETL_TEST
char	   *etl_failpoint = NULL;
#endif

#define DAY_MS	(24 * 60 * 60 * 1000)

static bool
check_allowed_hosts(char **newval, void **extra, GucSource source)
{
	char	   *bad;
	EtlHostList *list = etl_host_list_parse(*newval, &bad);

	if (list == NULL)
	{
		GUC_check_errdetail("\"%s\" is no host name, suffix, address or network.", bad);
		pfree(bad);
		return false;
	}
	pfree(list);
	return true;
}

/* An integer setting of workers: taken from the files, at reload. */
static void
define_int(const char *name, const char *description, int *variable,
		   int boot, int min, int max, GucContext context, int flags)
{
	DefineCustomIntVariable(name,
							description,
							NULL,
							variable,
							boot,
							min,
							max,
							context,
							flags,
							NULL,
							NULL,
							NULL);
}

/*
 * What sizes shared memory can only be set at server start.  Without preload
 * there is nothing to size and such a variable could not even be defined; it
 * is then known, so that its line in the configuration file is no mistake.
 */
static void
define_limits(bool preloading)
{
	GucContext	context = preloading ? PGC_POSTMASTER : PGC_SIGHUP;

	define_int("etl.max_pipelines",
			   "Maximum number of running pipelines in the whole server.",
			   &etl_max_pipelines, 16, 1, 1024, context, 0);
	define_int("etl.max_tables",
			   "Maximum number of tracked tables in the whole server.",
			   &etl_max_tables, 16384, 16, 4 * 1024 * 1024, context, 0);
	define_int("etl.max_workers",
			   "Maximum number of apply, writer and sync workers; -1 is half of max_worker_processes.",
			   &etl_max_workers, -1, -1, 262143, PGC_SIGHUP, 0);
	define_int("etl.max_sync_workers",
			   "Maximum number of sync workers of one pipeline.",
			   &etl_max_sync_workers, 2, 1, ETL_SYNCS_PER_PIPELINE, PGC_SIGHUP, 0);
	define_int("etl.error_log_size",
			   "Number of errors kept in etl.error_log for each pipeline.",
			   &etl_error_log_size, 1000, 0, 1000000, PGC_SIGHUP, 0);
}

static void
define_sizes(void)
{
	define_int("etl.queue_size",
			   "Size of the queue from apply to writer; 0 is the larger of 16MB and twice the batch size.",
			   &etl_queue_size, 0, 0, 4 * 1024 * 1024 - 1, PGC_SIGHUP, GUC_UNIT_KB);
	define_int("etl.max_batch_size",
			   "Uncompressed bytes that close a batch; -1 is the default of the destination's kind.",
			   &etl_max_batch_size, -1, -1, 1024 * 1024, PGC_SIGHUP, GUC_UNIT_KB);
}

static void
define_times(void)
{
	define_int("etl.max_batch_delay",
			   "Age that closes a batch; 0 is as soon as there is nothing more to read, -1 the default of the destination's kind.",
			   &etl_max_batch_delay, -1, -1, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.shutdown_timeout",
			   "Time given to the batch in flight when a pipeline stops.",
			   &etl_shutdown_timeout, 2000, 0, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.stall_timeout",
			   "Time without progress after which a pipeline with undelivered changes is not healthy.",
			   &etl_stall_timeout, 5 * 60 * 1000, 1000, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.copy_yield_timeout",
			   "Time after which a copy gives way to a waiting stronger lock.",
			   &etl_copy_yield_timeout, 2000, 0, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.retry_delay",
			   "First wait after a transient error of the destination; it doubles with each attempt.",
			   &etl_retry_delay, 1000, 1, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.max_retry_delay",
			   "Longest wait between attempts after transient errors.",
			   &etl_max_retry_delay, 60 * 1000, 1, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.auth_retry_delay",
			   "Wait after the destination has refused credentials, address or database.",
			   &etl_auth_retry_delay, 60 * 1000, 1, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.connect_timeout",
			   "Time to connect to a destination.",
			   &etl_connect_timeout, 10 * 1000, 1, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
	define_int("etl.request_timeout",
			   "Time for a whole request; -1 is the default of the destination's kind.",
			   &etl_request_timeout, -1, -1, DAY_MS, PGC_SIGHUP, GUC_UNIT_MS);
}

void
etl_guc_define(bool preloading)
{
	DefineCustomBoolVariable("etl.enabled",
							 "Runs pipelines; off stops every pipeline of the server.",
							 NULL,
							 &etl_enabled,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL,
							 NULL,
							 NULL);
	DefineCustomStringVariable("etl.allowed_hosts",
							   "Hosts that destinations may be at: names, suffixes and networks.",
							   "An empty list allows all but link-local and metadata addresses.",
							   &etl_allowed_hosts,
							   "",
							   PGC_SIGHUP,
							   0,
							   check_allowed_hosts,
							   NULL,
							   NULL);
	define_limits(preloading);
	define_sizes();
	define_times();
#ifdef ETL_TEST
	DefineCustomStringVariable("etl.failpoint",
							   "Faults to be raised, as \"name=action[:count]\", separated by commas.",
							   NULL,
							   &etl_failpoint,
							   "",
							   PGC_SIGHUP,
							   GUC_NOT_IN_SAMPLE,
							   NULL,
							   NULL,
							   NULL);
#endif

	MarkGUCPrefixReserved("etl");
}

/* At least one pair can run. */
int
etl_guc_workers(void)
{
	if (etl_max_workers >= 0)
		return etl_max_workers;
	return Max(max_worker_processes / 2, 2);
}
