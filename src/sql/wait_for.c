/*-------------------------------------------------------------------------
 *
 * wait_for.c
 *	  etl.wait_for(): is everything up to here durable at the destination?
 *
 * Reads shared memory alone while it waits, so the session that waits never
 * blocks the pipeline it waits for.  True needs all of:
 *
 *	 - the writer has acted on every request committed before the call
 *	   (config_seen_writer);
 *	 - durable_lsn has reached the target, so also every membership change
 *	   before it has been seen;
 *	 - every table is ready, or excluded, or dropped.
 *
 * Without "lsn" the target is the end of a message that is written to the WAL
 * for the purpose: the insert position can lie past the last record at a page
 * boundary, where an idle server never gets to.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/message.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "guc.h"
#include "server/shmem.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_wait_for);

#define MARK_PREFIX			"etl_mark"
#define MIN_POLL			10	/* ms */
#define MAX_POLL			20
#define FAILED_GRACE		2000	/* ms for a start_pipeline() to take effect */

/* One call's view of the pipeline. */
typedef struct EtlWait
{
	int64		id;
	const char *name;
	XLogRecPtr	target;
	bool		allow_parked;
	bool		seen;			/* was in shared memory */
	bool		wanted;			/* was wanted when last seen */
	uint64		config;			/* requests that must be acted on */
	EtlWaitingFor waiting_for;	/* when last seen */
	char		trouble[ETL_ERROR_TEXT_LEN];	/* while retrying: the last error */
	TimestampTz failed_since;	/* 0: not failed */
	char		failure[ETL_ERROR_TEXT_LEN];
	List	   *parked;			/* OIDs */
} EtlWait;

typedef enum EtlWaitAnswer
{
	ETL_WAIT_ON,
	ETL_WAIT_REACHED,
	ETL_WAIT_PARKED,
	ETL_WAIT_STOPPED,
	ETL_WAIT_FAILED
} EtlWaitAnswer;

/* flush_target goes up only. */
static void
raise_flush_target(EtlPipelineShared *pipeline, XLogRecPtr target)
{
	uint64		old = pg_atomic_read_u64(&pipeline->flush_target);

	while (old < target &&
		   !pg_atomic_compare_exchange_u64(&pipeline->flush_target, &old, target))
		;
}

/*
 * Are all tables settled?  Notes the parked ones; the array has room for as
 * many as there are, and only the first few are named.  pipeline->lock is
 * held.
 */
static bool
tables_settled(EtlPipelineShared *pipeline, Oid *parked, int *nparked, int max)
{
	int			index = etl_shmem_pipeline_index(pipeline);
	bool		settled = true;

	*nparked = 0;
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[i];

		if (slot->pipeline != index)
			continue;
		if (slot->state == ETL_TABLE_ERRORED)
		{
			if (*nparked < max)
				parked[*nparked] = slot->relid;
			(*nparked)++;
		}
		else if (slot->state != ETL_TABLE_READY && slot->state != ETL_TABLE_EXCLUDED &&
				 slot->state != ETL_TABLE_DROPPED)
			settled = false;
	}
	return settled;
}

/*
 * Has the pipeline been failed for longer than a start_pipeline() just before
 * would need?  Then only a user can help, and waiting is no use.
 */
static bool
stays_failed(EtlWait *wait, EtlPipelineShared *pipeline)
{
	TimestampTz now = GetCurrentTimestamp();

	if (pipeline->state != ETL_PIPELINE_FAILED)
	{
		wait->failed_since = 0;
		return false;
	}
	if (wait->failed_since == 0)
		wait->failed_since = now;
	strlcpy(wait->failure, pipeline->failed_message, sizeof(wait->failure));
	return TimestampDifferenceExceeds(wait->failed_since, now, FAILED_GRACE);
}

static bool
is_delivering(EtlPipelineState state)
{
	return state == ETL_PIPELINE_INITIAL_SYNC || state == ETL_PIPELINE_REPLICATING ||
		state == ETL_PIPELINE_RETRYING;
}

/* For the message at the deadline; pipeline->lock is held. */
static void
note_state(EtlWait *wait, EtlPipelineShared *pipeline)
{
	wait->waiting_for = pipeline->waiting_for;
	strlcpy(wait->trouble, pipeline->state == ETL_PIPELINE_RETRYING ? pipeline->last_error : "",
			sizeof(wait->trouble));
}

#define MAX_NAMED	10

/* Look once.  *wake is set when the pipeline should be told of the target. */
static EtlWaitAnswer
look(EtlWait *wait)
{
	EtlPipelineShared *pipeline;
	EtlWaitAnswer answer = ETL_WAIT_ON;

	/* a position that no WAL has yet would keep the pipeline in a hurry */
	XLogRecPtr	target = Min(wait->target, GetFlushRecPtr(NULL));
	bool		wake = false;
	Oid			parked[MAX_NAMED];
	int			nparked = 0;

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	pipeline = etl_shmem_find_pipeline(MyDatabaseId, wait->id);
	if (pipeline == NULL || !(pipeline->wanted || pipeline->released))
	{
		bool		failed = false;

		if (pipeline != NULL)
		{
			LWLockAcquire(&pipeline->lock, LW_SHARED);
			failed = stays_failed(wait, pipeline);
			LWLockRelease(&pipeline->lock);
		}
		/* not there yet, or taken away while we waited */
		if (failed || (wait->wanted && wait->failed_since != 0))
			answer = ETL_WAIT_FAILED;
		else if (wait->wanted)
			answer = ETL_WAIT_STOPPED;
	}
	else
	{
		uint64		config = pg_atomic_read_u64(&pipeline->config_wanted);

		/* a pipeline that has left shared memory and is back counts from 0 */
		if (!wait->seen || wait->config > config)
		{
			wait->seen = true;
			wait->config = config;
		}
		wait->wanted = true;
		if (pg_atomic_read_u64(&pipeline->flush_target) < target)
		{
			raise_flush_target(pipeline, target);
			wake = true;
		}

		LWLockAcquire(&pipeline->lock, LW_SHARED);
		note_state(wait, pipeline);
		if (pipeline->state == ETL_PIPELINE_DROPPING)
			answer = ETL_WAIT_STOPPED;
		else if (stays_failed(wait, pipeline))
			answer = ETL_WAIT_FAILED;
		else if (is_delivering(pipeline->state) &&
				 pg_atomic_read_u64(&pipeline->config_seen_writer) >= wait->config)
		{
			bool		settled = tables_settled(pipeline, parked, &nparked, MAX_NAMED);

			if (nparked > 0 && !wait->allow_parked)
				answer = ETL_WAIT_PARKED;
			else if (settled && pg_atomic_read_u64(&pipeline->durable_lsn) >= wait->target)
				answer = ETL_WAIT_REACHED;
		}
		LWLockRelease(&pipeline->lock);
	}
	LWLockRelease(&etl_shared->lock);

	if (wake)
		etl_shmem_wake_pipeline(pipeline);
	if (answer == ETL_WAIT_PARKED)
	{
		for (int i = 0; i < Min(nparked, MAX_NAMED); i++)
			wait->parked = lappend_oid(wait->parked, parked[i]);
	}
	return answer;
}

static void
warn_parked(const EtlWait *wait)
{
	StringInfoData names;
	ListCell   *lc;

	initStringInfo(&names);
	foreach(lc, wait->parked)
		appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "", etl_sql_table_name(lfirst_oid(lc)));
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pipeline \"%s\" has parked tables: %s", wait->name, names.data),
			 errhint("The view etl.table_status says why; etl.retry_table() makes a new attempt.")));
}

/* The time is over: say what was waited for, if something is known. */
static void
note_timeout(const EtlWait *wait)
{
	const char *what = etl_waiting_for_name(wait->waiting_for);

	if (wait->trouble[0] != '\0')
		ereport(NOTICE,
				(errmsg("pipeline \"%s\" is retrying: %s", wait->name, wait->trouble)));
	else if (what != NULL)
		ereport(NOTICE,
				(errmsg("pipeline \"%s\" waits for: %s", wait->name, what)));
	else if (!etl_enabled)
		ereport(NOTICE,
				(errmsg("pipeline \"%s\" does not run: \"etl.enabled\" is off", wait->name)));
}

static void
not_running(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pipeline \"%s\" is stopped", name),
			 errhint("Start it with etl.start_pipeline().")));
}

/*
 * Who stops a pipeline and starts it again may see the stop carried out after
 * the start was committed: the tables are the truth.
 */
static bool
is_enabled(const EtlWait *wait)
{
	EtlSqlFrame frame;
	EtlPipelineRow *row;
	bool		enabled;

	etl_sql_enter(&frame);
	row = etl_sql_find_pipeline(&frame, wait->name, false, true);
	enabled = etl_enabled && row != NULL && row->id == wait->id && row->enabled && !row->dropping;
	etl_sql_leave(&frame);
	return enabled;
}

/* Wait until the deadline; true when everything is there. */
static bool
wait_until(EtlWait *wait, TimestampTz deadline)
{
	long		poll = MIN_POLL;
	uint32		event = etl_wait_event_new("EtlWaitFor");

	for (;;)
	{
		TimestampTz now;
		long		left;

		switch (look(wait))
		{
			case ETL_WAIT_REACHED:
				return true;
			case ETL_WAIT_PARKED:
				warn_parked(wait);
				return false;
			case ETL_WAIT_STOPPED:
				if (!is_enabled(wait))
					not_running(wait->name);
				break;
			case ETL_WAIT_FAILED:
				ereport(WARNING,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("pipeline \"%s\" has failed: %s", wait->name, wait->failure),
						 errhint("Remove the cause, then call etl.start_pipeline().")));
				return false;
			case ETL_WAIT_ON:
				break;
		}

		now = GetCurrentTimestamp();
		if (now >= deadline)
		{
			note_timeout(wait);
			return false;
		}
		left = TimestampDifferenceMilliseconds(now, deadline);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Max(Min(poll, left), 1), event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		poll = Min(poll + 1, MAX_POLL);
	}
}

static TimestampTz
get_deadline(FunctionCallInfo fcinfo)
{
	TimestampTz now = GetCurrentTimestamp();
	Interval   *timeout;
	TimestampTz deadline;

	etl_sql_require_arg(fcinfo, 2, "timeout");
	timeout = PG_GETARG_INTERVAL_P(2);
	deadline = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
													   TimestampTzGetDatum(now),
													   IntervalPGetDatum(timeout)));
	if (deadline < now)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be negative", "timeout")));
	return deadline;
}

/*
 * etl.wait_for(pipeline, lsn, timeout, allow_parked)
 */
Datum
etl_wait_for(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	TimestampTz deadline = get_deadline(fcinfo);
	EtlWait		wait = {0};
	EtlPipelineRow *pipeline;
	EtlSqlFrame frame;

	wait.allow_parked = etl_sql_bool_arg(fcinfo, 3, "allow_parked");
	etl_sql_require_role();
	etl_shmem_require();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("Pipelines run on the primary server.")));
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot wait for a pipeline in a transaction that has written"),
				 errdetail("The pipeline may have to wait for this very transaction to end."),
				 errhint("Commit first.")));

	wait.name = name;
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, false, false);
	etl_sql_refuse_dropping(pipeline);
	if (!pipeline->enabled)
		not_running(name);
	wait.id = pipeline->id;
	etl_sql_leave(&frame);

	if (PG_ARGISNULL(1))
	{
		wait.target = etl_log_message(MARK_PREFIX, "", 0);
		XLogFlush(wait.target);
	}
	else
		wait.target = PG_GETARG_LSN(1);

	PG_RETURN_BOOL(wait_until(&wait, deadline));
}
