/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  Life of a worker process: start, pinned settings, waiting, exit.
 *
 * A worker attaches to its entry in shared memory before it connects to its
 * database: what was registered for an incarnation that is not wanted any
 * more ends without touching anything.  It detaches in a before_shmem_exit
 * callback, which runs after the transaction was aborted and still has locks
 * and latches: whoever sees the process gone from shared memory can rely on
 * its replication slot being released.
 *
 * Signals are the server's own: SIGTERM is die(), so that every
 * CHECK_FOR_INTERRUPTS() in the server's code is a point where a worker can
 * be stopped, and SIGHUP marks the settings for reload.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "catalog/bracket.h"
#include "compat.h"
#include "guc.h"
#include "server/failpoint.h"
#include "server/worker.h"

EtlWorkerRole etl_worker_role;
EtlWorkerArgs etl_worker_args;
EtlPipelineShared *etl_worker_pipeline = NULL;
EtlSyncShared *etl_worker_sync = NULL;
MemoryContext EtlWorkerContext = NULL;

/* This process is in shared memory; detach() takes it out. */
static bool attached = false;

/*
 * etl_worker_should_stop() has said so.  An orderly exit without it means
 * that this worker itself wants its pipeline to stay down.
 */
static bool told_to_stop = false;
static bool gave_up = false;	/* "wanted" is for others to set again */

/* Sync worker: the pipeline's definition that it began with. */
static uint32 definition = 0;

/* ----------
 * Attach and detach
 * ----------
 */

/* Must processes of this pipeline be there at all? */
static bool
pipeline_may_run(const EtlPipelineShared *pipeline)
{
	return pipeline->in_use && pipeline->wanted && !pipeline->released &&
		!pipeline->doomed && etl_enabled;
}

/*
 * Put this process into its entry, EtlShared->lock being held.  False when it
 * is of an incarnation that is over, or not wanted.
 */
static bool
attach_locked(void)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	EtlSyncShared *sync = etl_worker_sync;
	uint64		incarnation = etl_worker_args.incarnation;

	switch (etl_worker_role)
	{
		case ETL_ROLE_LAUNCHER:
			etl_shared->launcher = MyProc;
			etl_shared->launcher_pid = MyProcPid;
			return true;

		case ETL_ROLE_APPLY:
			if (!pipeline_may_run(pipeline) || pipeline->incarnation != incarnation)
				return false;
			pipeline->apply_proc = MyProc;
			pipeline->apply_pid = MyProcPid;
			pipeline->apply_attached = incarnation;
			return true;

		case ETL_ROLE_WRITER:
			if (!pipeline_may_run(pipeline) || pipeline->incarnation != incarnation)
				return false;
			pipeline->writer_proc = MyProc;
			pipeline->writer_pid = MyProcPid;
			pipeline->writer_attached = incarnation;
			return true;

		case ETL_ROLE_SYNC:
			if (!pipeline_may_run(pipeline) || sync->state != ETL_SYNC_STARTED ||
				sync->incarnation != incarnation)
				return false;
			sync->state = ETL_SYNC_RUNNING;
			definition = pipeline->definition;
			sync->proc = MyProc;
			sync->pid = MyProcPid;
			return true;

		case ETL_ROLE_CHECK:
			if (etl_shmem_released(etl_worker_args.database))
				return false;
			if (pipeline != NULL)
			{
				/* the check worker that drops this pipeline */
				if (!pipeline->in_use || pipeline->cleanup_pid != 0 ||
					pipeline->incarnation != incarnation)
					return false;
				pipeline->cleanup_pid = MyProcPid;
				return true;
			}
			if (etl_worker_args.test != 0)
				return true;	/* whoever waits for it is connected, too */
			if (etl_shared->checking_incarnation != incarnation)
				return false;
			etl_shared->checking_pid = MyProcPid;
			return true;
	}
	return false;
}

static void
detach_locked(void)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	EtlSyncShared *sync = etl_worker_sync;

	switch (etl_worker_role)
	{
		case ETL_ROLE_LAUNCHER:
			etl_shared->launcher = NULL;
			etl_shared->launcher_pid = 0;
			break;

		case ETL_ROLE_APPLY:
			pipeline->apply_proc = NULL;
			pipeline->apply_pid = 0;
			break;

		case ETL_ROLE_WRITER:
			pipeline->writer_proc = NULL;
			pipeline->writer_pid = 0;
			break;

		case ETL_ROLE_SYNC:
			sync->state = ETL_SYNC_EXITED;
			sync->proc = NULL;
			sync->pid = 0;
			break;

		case ETL_ROLE_CHECK:
			/* the entry may have been freed by this very worker */
			if (pipeline != NULL && pipeline->cleanup_pid == MyProcPid)
				pipeline->cleanup_pid = 0;
			if (etl_shared->checking_pid == MyProcPid)
			{
				etl_shared->checking_pid = 0;
				etl_shared->checking_database = InvalidOid;
			}
			break;
	}

	/* the partner must follow, or the writer clear up */
	if (pipeline != NULL)
		etl_shmem_wake_pipeline_locked(pipeline);
	etl_shmem_wake_launcher_locked();
}

/*
 * before_shmem_exit callback.  The slot's own callback was registered earlier
 * and so would run later: release it here, since others act on what they see
 * in shared memory.
 */
static void
detach(int code, Datum arg)
{
	if (!attached)
		return;
	attached = false;

	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();
	if (etl_worker_role == ETL_ROLE_SYNC)
		etl_slot_cleanup();

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	detach_locked();
	LWLockRelease(&etl_shared->lock);

	ConditionVariableBroadcast(&etl_shared->departed);
}

static void
attach(void)
{
	if (etl_worker_args.pipeline >= 0)
		etl_worker_pipeline = &etl_shared->pipelines[etl_worker_args.pipeline];
	if (etl_worker_args.sync >= 0)
		etl_worker_sync = &etl_shared->syncs[etl_worker_args.sync];

	before_shmem_exit(detach, 0);

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	attached = attach_locked();
	if (attached && etl_worker_pipeline != NULL)
		etl_shmem_wake_pipeline_locked(etl_worker_pipeline);
	LWLockRelease(&etl_shared->lock);

	if (!attached)
		proc_exit(ETL_EXIT_DONE);
}

/* ----------
 * Settings
 * ----------
 */

/*
 * Settings that change what is read, written or encoded.  A role, a database
 * or the configuration files may say otherwise; with this source nothing of
 * that counts, also after a reload.
 */
static const struct
{
	const char *name;
	const char *value;
}			pinned_settings[] =
{
	/* names and users */
	{"search_path", ""},
	{"row_security", "off"},
	{"session_replication_role", "origin"},
	{"quote_all_identifiers", "off"},
	{"standard_conforming_strings", "on"},
	{"transform_null_equals", "off"},

	/* transactions */
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_deferrable", "off"},
	{"synchronous_commit", "local"},
	{"statement_timeout", "0"},
	{"lock_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	{"transaction_timeout", "0"},

	/* text of values */
	{"DateStyle", "ISO"},
	{"IntervalStyle", "iso_8601"},
	{"TimeZone", "UTC"},
	{"bytea_output", "hex"},
	{"extra_float_digits", "1"},
	{"xmlbinary", "base64"},
	{"xmloption", "content"},

	/* share of the machine */
	{"max_parallel_workers_per_gather", "0"},
	{"jit", "off"},
	{"temp_file_limit", "-1"},
};

/* What the database says of lc_monetary, or all roles; "value" stays if nobody does. */
static void
read_monetary(void *value)
{
	if (SPI_execute("SELECT substr(c, length('lc_monetary=') + 1)"
					" FROM pg_db_role_setting, unnest(setconfig) AS c"
					" WHERE setrole = 0 AND c LIKE 'lc\\_monetary=%' AND setdatabase IN"
					"  (0, (SELECT oid FROM pg_database WHERE datname = current_database()))"
					" ORDER BY setdatabase DESC LIMIT 1", true, 1) == SPI_OK_SELECT && SPI_processed > 0)
		*(char **) value = MemoryContextStrdup(EtlWorkerContext,
											   SPI_getvalue(SPI_tuptable->vals[0],
															SPI_tuptable->tupdesc, 1));
}

/*
 * Money is a number of its currency's smallest unit: how many digits of it are
 * behind the point, lc_monetary says.  That of the database is meant, and not
 * that of the role as which workers happen to run.  "value" is the server's.
 */
static void
pin_monetary(char *value)
{
	(void) etl_bracket_try(etl_worker_role == ETL_ROLE_APPLY ? ETL_BRACKET_DECODER : ETL_BRACKET_READ,
						   "reading settings", read_monetary, &value);
	SetConfigOption("lc_monetary", value, PGC_SUSET, PGC_S_OVERRIDE);
}

static void
pin_settings(void)
{
	/* ALTER DATABASE ... SET role, or session_authorization */
	SetSessionAuthorization(GetAuthenticatedUserId(), true);
	SetCurrentRoleId(InvalidOid, true);

	for (int i = 0; i < lengthof(pinned_settings); i++)
	{
		const char *name = pinned_settings[i].name;

		/* not every server has all of them */
		if (GetConfigOption(name, true, false) == NULL)
			continue;
		SetConfigOption(name, pinned_settings[i].value, PGC_SUSET, PGC_S_OVERRIDE);
	}
}

static void
reload_settings(void)
{
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
#ifdef ETL_TEST
	if (etl_worker_role == ETL_ROLE_LAUNCHER && MyBgworkerEntry != NULL)
		etl_failpoint_reload();
#endif
}

/* ----------
 * Start and exit
 * ----------
 */

void
etl_worker_start(EtlWorkerRole role, Datum main_arg)
{
	char	   *monetary;

	StaticAssertStmt(sizeof(EtlWorkerArgs) <= BGW_EXTRALEN, "EtlWorkerArgs too large");

	etl_worker_role = role;
	if (role == ETL_ROLE_LAUNCHER)
		etl_worker_args.pipeline = etl_worker_args.sync = -1;
	else
		memcpy(&etl_worker_args, MyBgworkerEntry->bgw_extra, sizeof(EtlWorkerArgs));

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	EtlWorkerContext = AllocSetContextCreate(TopMemoryContext, "etl worker",
											 ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(EtlWorkerContext);

	attach();

	/* before a role has its say */
	monetary = pstrdup(GetConfigOption("lc_monetary", false, false));
	if (role == ETL_ROLE_LAUNCHER)
		BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	else
		BackgroundWorkerInitializeConnectionByOid(etl_worker_args.database, InvalidOid, 0);
	pin_settings();
	if (role != ETL_ROLE_LAUNCHER)
		pin_monetary(monetary);
	pgstat_report_appname(MyBgworkerEntry->bgw_name);
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(EtlWorkerContext);
}

void
etl_worker_give_up(void)
{
	if (gave_up)
		return;
	gave_up = true;
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	if (etl_worker_pipeline->incarnation == etl_worker_args.incarnation)
		etl_worker_pipeline->wanted = false;
	LWLockRelease(&etl_shared->lock);
}

/*
 * An orderly end.  With ETL_EXIT_DONE, and without having been told to stop,
 * the pipeline stays down until the next request in its database.
 */
void
etl_worker_exit(int code)
{
	if (code == ETL_EXIT_DONE && attached && !told_to_stop &&
		(etl_worker_role == ETL_ROLE_APPLY || etl_worker_role == ETL_ROLE_WRITER))
		etl_worker_give_up();

	/* the postmaster logs every other code; an ordered end is no news */
	proc_exit(told_to_stop ? ETL_EXIT_DONE : code);
}

/*
 * Clean up after an ERROR that nobody caught, as far as exiting does not do
 * that by itself, and record it.
 */
void
etl_worker_fail(void)
{
	ErrorData  *edata;

	HOLD_INTERRUPTS();
	MemoryContextSwitchTo(EtlWorkerContext);
	edata = CopyErrorData();
	EmitErrorReport();
	FlushErrorState();

	LWLockReleaseAll();
	ConditionVariableCancelSleep();
	pgstat_report_wait_end();
	AbortOutOfAnyTransaction();
	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();

	if (etl_worker_pipeline != NULL && etl_worker_pipeline->in_use)
	{
		etl_shmem_report_error(etl_worker_pipeline, edata->sqlerrcode,
							   edata->message ? edata->message : "unknown error",
							   0, false);
		LWLockAcquire(&etl_worker_pipeline->lock, LW_EXCLUSIVE);
		etl_worker_pipeline->error_unlogged = true;
		LWLockRelease(&etl_worker_pipeline->lock);
	}
	RESUME_INTERRUPTS();
	proc_exit(ETL_EXIT_AGAIN);
}

void
etl_worker_run(void (*body) (void))
{
	PG_TRY();
	{
		body();
	}
	PG_CATCH();
	{
		etl_worker_fail();
	}
	PG_END_TRY();

	etl_worker_exit(ETL_EXIT_DONE);
}

/* ----------
 * Waiting and stopping
 * ----------
 */

bool
etl_worker_wait(long timeout)
{
	static uint32 wait_event = 0;
	int			events = WL_LATCH_SET | WL_EXIT_ON_PM_DEATH;

	if (wait_event == 0)
		wait_event = etl_wait_event_new("EtlWait");
	if (timeout >= 0)
		events |= WL_TIMEOUT;

	events = WaitLatch(MyLatch, events, timeout, wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
		reload_settings();
	return (events & WL_LATCH_SET) != 0;
}

bool
etl_worker_is_tracked(Oid relid)
{
	EtlTableSlot *slot = etl_worker_pipeline ?
		etl_shmem_find_table(etl_worker_pipeline, relid) : NULL;

	return slot != NULL && slot->state != ETL_TABLE_DROPPED;
}

/*
 * Unlocked reads: each field is a word that only ever changes once in the
 * life of an incarnation, and whoever changes it sets our latch.
 */
bool
etl_worker_should_stop(void)
{
	const volatile EtlPipelineShared *pipeline = etl_worker_pipeline;
	bool		stop = false;

	if (pipeline == NULL)
		return false;

	if (!pipeline->in_use || !pipeline->wanted || pipeline->released ||
		pipeline->doomed || !etl_enabled)
		stop = true;
	else if (etl_worker_role == ETL_ROLE_SYNC)
		stop = etl_worker_sync->incarnation != etl_worker_args.incarnation ||
			pipeline->definition != definition;
	else
		stop = pipeline->incarnation != etl_worker_args.incarnation ||
			pipeline->restart_requested ||
			(etl_worker_role == ETL_ROLE_WRITER &&
			 pipeline->apply_attached == etl_worker_args.incarnation &&
			 pipeline->apply_proc == NULL) ||
			(etl_worker_role == ETL_ROLE_APPLY &&
			 pipeline->writer_attached == etl_worker_args.incarnation &&
			 pipeline->writer_proc == NULL);

	if (stop)
		told_to_stop = true;
	return stop;
}
