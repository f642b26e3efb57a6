/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The process that keeps the others running.
 *
 * One per server, connected to no database, started when recovery has
 * finished (so also by a promotion).  It owns nothing that could not be found
 * again: what it knows of other processes is in shared memory, and a
 * restarted launcher takes over from there.
 *
 * It sleeps on its latch.  What wakes it: a request's commit, a worker that
 * attaches, detaches or ends, a reload, and the earliest of the times that
 * its two halves have returned.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/timestamp.h"

#include "server/launcher.h"
#include "server/worker.h"

/* Seconds after which the postmaster starts a launcher that ended again. */
#define LAUNCHER_RESTART_TIME	5

#define FIRST_BACKOFF	250		/* ms */
#define LONGEST_BACKOFF 60000	/* ms */

/* Function and name (backend_type) of each role. */
static const struct
{
	const char *function;
	const char *type;
}			roles[] =
{
	[ETL_ROLE_LAUNCHER] = {"etl_launcher_main", "etl launcher"},
	[ETL_ROLE_APPLY] = {"etl_apply_main", "etl apply"},
	[ETL_ROLE_WRITER] = {"etl_writer_main", "etl writer"},
	[ETL_ROLE_SYNC] = {"etl_sync_main", "etl sync"},
	[ETL_ROLE_CHECK] = {"etl_check_main", "etl check"},
};

static void
describe_worker(BackgroundWorker *worker, EtlWorkerRole role)
{
	memset(worker, 0, sizeof(BackgroundWorker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "etl", sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, roles[role].function, sizeof(worker->bgw_function_name));
	strlcpy(worker->bgw_type, roles[role].type, sizeof(worker->bgw_type));
	strlcpy(worker->bgw_name, roles[role].type, sizeof(worker->bgw_name));
}

void
etl_launcher_register(void)
{
	BackgroundWorker worker;

	describe_worker(&worker, ETL_ROLE_LAUNCHER);
	worker.bgw_restart_time = LAUNCHER_RESTART_TIME;
	RegisterBackgroundWorker(&worker);
}

BackgroundWorkerHandle *
etl_launch(EtlWorkerRole role, const EtlWorkerArgs *args)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	describe_worker(&worker, role);
	if (args->pipeline >= 0)
		snprintf(worker.bgw_name, sizeof(worker.bgw_name),
				 "%s for pipeline " INT64_FORMAT " of database %u", roles[role].type,
				 etl_shared->pipelines[args->pipeline].id, args->database);
	else
		snprintf(worker.bgw_name, sizeof(worker.bgw_name), "%s for database %u",
				 roles[role].type, args->database);
	memcpy(worker.bgw_extra, args, sizeof(EtlWorkerArgs));
	worker.bgw_notify_pid = MyProcPid;

	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		return NULL;
	return handle;
}

bool
etl_launch_ended(BackgroundWorkerHandle **handle)
{
	pid_t		pid;

	if (*handle == NULL)
		return true;
	if (GetBackgroundWorkerPid(*handle, &pid) != BGWH_STOPPED)
		return false;
	pfree(*handle);
	*handle = NULL;
	return true;
}

int
etl_launch_backoff(int failures)
{
	int			delay = FIRST_BACKOFF;

	if (failures <= 0)
		return 0;
	while (--failures > 0 && delay < LONGEST_BACKOFF)
		delay *= 2;
	delay = Min(delay, LONGEST_BACKOFF);
	return delay - (int) (delay / 4 * pg_prng_double(&pg_global_prng_state));
}

/* Milliseconds from now until "due", -1 for never. */
static long
wait_time(TimestampTz due)
{
	TimestampTz now = GetCurrentTimestamp();

	if (due == ETL_NEVER)
		return -1;
	if (due <= now)
		return 0;
	return (long) Min((due - now) / 1000 + 1, INT_MAX);
}

static void
launcher_loop(void)
{
	etl_supervise_adopt();
	etl_look_adopt();

	for (;;)
	{
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz due = etl_look_run(now);

		due = etl_earlier(due, etl_supervise_run(now));
		etl_worker_wait(wait_time(due));
	}
}

void
etl_launcher_main(Datum main_arg)
{
	etl_worker_start(ETL_ROLE_LAUNCHER, main_arg);
	ereport(DEBUG1, (errmsg_internal("etl launcher started")));
	etl_worker_run(launcher_loop);
}
