/*-------------------------------------------------------------------------
 *
 * report.c
 *	  What workers tell about themselves: states and trouble, for the views.
 *
 * All of it is in shared memory under the pipeline's lock, so that looking at
 * a pipeline never waits for it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/timestamp.h"

#include "server/shmem.h"

/* Copy a text into a fixed field, cut at a character's end. */
static void
set_text(char *field, Size size, const char *text)
{
	int			len = text ? strlen(text) : 0;

	if (len >= (int) size)
		len = pg_mbcliplen(text, len, size - 1);
	if (len > 0)
		memcpy(field, text, len);
	field[len] = '\0';
}

/*
 * Record trouble.  "next_retry" is the time of the next attempt, 0 when the
 * process gives up (its pair is started again); "endpoint" says that nobody's
 * rows are to blame but the destination's address, credentials or the like.
 */
void
etl_shmem_report_error(EtlPipelineShared *pipeline, int sqlstate,
					   const char *message, TimestampTz next_retry, bool endpoint)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->last_sqlstate = sqlstate;
	set_text(pipeline->last_error, ETL_ERROR_TEXT_LEN, message);
	pipeline->last_error_time = now;
	pipeline->endpoint_trouble = endpoint;
	if (next_retry != 0)
	{
		pipeline->next_retry_time = next_retry;
		if (pipeline->state == ETL_PIPELINE_STARTING ||
			pipeline->state == ETL_PIPELINE_INITIAL_SYNC ||
			pipeline->state == ETL_PIPELINE_REPLICATING)
		{
			pipeline->resume_state = pipeline->state;
			pipeline->state = ETL_PIPELINE_RETRYING;
		}
	}
	LWLockRelease(&pipeline->lock);
}

/* The destination works (again).  The last error stays for users to read. */
void
etl_shmem_report_success(EtlPipelineShared *pipeline)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->next_retry_time = 0;
	pipeline->endpoint_trouble = false;
	if (pipeline->waiting_for == ETL_WAIT_DESTINATION)
		pipeline->waiting_for = ETL_WAIT_NOTHING;
	if (pipeline->state == ETL_PIPELINE_RETRYING)
		pipeline->state = pipeline->resume_state;
	LWLockRelease(&pipeline->lock);
}

void
etl_shmem_set_state(EtlPipelineShared *pipeline, EtlPipelineState state,
					EtlWaitingFor waiting_for)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	/* a drop ends with the entry, whatever the processes still say */
	if (pipeline->state != ETL_PIPELINE_DROPPING)
		pipeline->state = state;
	pipeline->waiting_for = waiting_for;
	LWLockRelease(&pipeline->lock);
}

/*
 * The pipeline cannot go on until a user acts.  The process that finds out
 * exits with ETL_EXIT_DONE; the launcher starts the pair again after the next
 * request in this database.
 */
void
etl_shmem_set_failed(EtlPipelineShared *pipeline, int sqlstate,
					 const char *message, const char *hint)
{
	TimestampTz now = GetCurrentTimestamp();

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (pipeline->state != ETL_PIPELINE_DROPPING)
		pipeline->state = ETL_PIPELINE_FAILED;
	pipeline->waiting_for = ETL_WAIT_NOTHING;
	pipeline->next_retry_time = 0;
	pipeline->failed_sqlstate = sqlstate;
	set_text(pipeline->failed_message, ETL_ERROR_TEXT_LEN, message);
	set_text(pipeline->failed_hint, ETL_HINT_TEXT_LEN, hint);
	pipeline->last_sqlstate = sqlstate;
	set_text(pipeline->last_error, ETL_ERROR_TEXT_LEN, message);
	pipeline->last_error_time = now;
	LWLockRelease(&pipeline->lock);
}

/* ----------
 * Names, as views show them
 * ----------
 */

const char *
etl_pipeline_state_name(EtlPipelineState state)
{
	switch (state)
	{
		case ETL_PIPELINE_STOPPED:
			return "stopped";
		case ETL_PIPELINE_STARTING:
			return "starting";
		case ETL_PIPELINE_WAITING:
			return "waiting";
		case ETL_PIPELINE_INITIAL_SYNC:
			return "initial_sync";
		case ETL_PIPELINE_REPLICATING:
			return "replicating";
		case ETL_PIPELINE_RETRYING:
			return "retrying";
		case ETL_PIPELINE_FAILED:
			return "failed";
		case ETL_PIPELINE_DROPPING:
			return "dropping";
	}
	return "unknown";
}

const char *
etl_waiting_for_name(EtlWaitingFor waiting_for)
{
	switch (waiting_for)
	{
		case ETL_WAIT_NOTHING:
			return NULL;
		case ETL_WAIT_MAX_WORKERS:
			return "etl.max_workers";
		case ETL_WAIT_WORKER_PROCESSES:
			return "max_worker_processes";
		case ETL_WAIT_REPLICATION_SLOTS:
			return "max_replication_slots";
		case ETL_WAIT_MAX_PIPELINES:
			return "etl.max_pipelines";
		case ETL_WAIT_MAX_TABLES:
			return "etl.max_tables";
		case ETL_WAIT_MAX_SYNC_WORKERS:
			return "etl.max_sync_workers";
		case ETL_WAIT_TRANSACTIONS:
			return "running transactions";
		case ETL_WAIT_DESTINATION:
			return "destination";
		case ETL_WAIT_LOCK:
			return "lock";
	}
	return NULL;
}

/* Indexed by EtlTableState; these texts are stored in etl.table_state. */
static const char *const table_states[] = {
	"init", "data_sync", "finished_copy", "sync_wait", "catchup",
	"sync_done", "ready", "errored", "excluded", "dropped"
};

const char *
etl_table_state_name(EtlTableState state)
{
	Assert((int) state >= 0 && (int) state < lengthof(table_states));
	return table_states[state];
}

EtlTableState
etl_table_state_from_name(const char *name)
{
	for (int i = 0; i < lengthof(table_states); i++)
		if (strcmp(name, table_states[i]) == 0)
			return (EtlTableState) i;
	elog(ERROR, "unknown state of a table: \"%s\"", name);
}

const char *
etl_recovery_name(EtlRecovery recovery)
{
	switch (recovery)
	{
		case ETL_RECOVERY_NONE:
			return NULL;
		case ETL_RECOVERY_RETRY:
			return "retry";
		case ETL_RECOVERY_RESUME:
			return "resume";
		case ETL_RECOVERY_RESYNC:
			return "resync";
	}
	return NULL;
}

const char *
etl_copy_reason_name(EtlCopyReason reason)
{
	switch (reason)
	{
		case ETL_COPY_INITIAL:
			return "initial";
		case ETL_COPY_RESYNC:
			return "resync";
		case ETL_COPY_REWRITE:
			return "rewrite";
		case ETL_COPY_FILTER_CHANGE:
			return "filter_change";
		case ETL_COPY_SLOT_LOSS:
			return "slot_loss";
	}
	return "initial";
}
