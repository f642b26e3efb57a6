/*-------------------------------------------------------------------------
 *
 * sync.c
 *	  Life of a sync worker: a group of tables from nothing to "handed over".
 *
 * Three phases, and the process changes its nature between them:
 *
 *	 1. connect to the destination and claim the tables (ordinary brackets)
 *	 2. copy under a temporary slot's snapshot; the worker sends by itself and
 *		does not decode
 *	 3. catch up from that slot; the worker decodes and neither writes tables
 *		nor talks to the network any more
 *
 * An attempt that did not come to its end leaves nothing but an unfinished
 * generation at the destination.  The next attempt claims the tables again
 * and so has a generation of its own; a late write of the older one lands
 * nowhere.
 *
 * When the worker ends before the hand-over, the writer makes its tables
 * "init" again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "catalog/options.h"
#include "catalog/store.h"
#include "delivery/retry.h"
#include "pipeline/table_state.h"
#include "schema/shape.h"
#include "server/adjusted.h"
#include "server/worker.h"
#include "source/decode.h"
#include "source/slot.h"
#include "sync/sync.h"

#define FIRST_PAUSE_MS	200		/* between attempts, doubled */
#define LAST_PAUSE_MS	10000

/* ----------
 * Small things that the other files use
 * ----------
 */

void
etl_sync_waiting(EtlWaitingFor waiting_for)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	if (etl_worker_sync->waiting_for == waiting_for)
		return;					/* nobody else writes it */
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (pipeline->waiting_for == ETL_WAIT_NOTHING ||
		pipeline->waiting_for == etl_worker_sync->waiting_for)
		pipeline->waiting_for = waiting_for;
	etl_worker_sync->waiting_for = waiting_for;
	LWLockRelease(&pipeline->lock);
}

void
etl_sync_check_stop(void)
{
	if (etl_worker_should_stop())
		etl_worker_exit(ETL_EXIT_DONE);
}

void
etl_sync_pause(long ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	for (;;)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);

		etl_sync_check_stop();
		if (left <= 0)
			break;
		(void) etl_worker_wait(left);
	}
}

void
etl_sync_park(EtlSyncTable *table, int sqlstate, const char *message, const char *hint)
{
	if (table->left)
		return;					/* the first trouble is the one that counts */
	table->left = true;
	table->parked = true;
	table->sqlstate = sqlstate;
	strlcpy(table->message, message, sizeof(table->message));
	strlcpy(table->hint, hint ? hint : "", sizeof(table->hint));
}

int
etl_sync_remaining(const EtlSyncGroup *group)
{
	int			n = 0;

	for (int i = 0; i < group->ntables; i++)
		if (!group->tables[i].left)
			n++;
	return n;
}

/* Shared memory says something new about tables: tell the others. */
static void
tables_changed(void)
{
	pg_atomic_fetch_add_u64(&etl_worker_pipeline->tables_version, 1);
	etl_shmem_wake_pipeline(etl_worker_pipeline);
}

void
etl_sync_set_state(EtlSyncGroup *group, EtlTableState state)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	for (int i = 0; i < group->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[group->tables[i].slot];

		if (!group->tables[i].left && slot->relid == group->tables[i].relid &&
			slot->generation == group->tables[i].generation)
			(void) etl_table_state_move(slot, state);
	}
	LWLockRelease(&pipeline->lock);
	tables_changed();
}

/* Run a bracket until no user's lock is in its way. */
static void
bracket_until_done(EtlBracketKind kind, const char *name, void (*body) (void *arg), void *arg)
{
	bool		waited = false;

	while (!etl_bracket_try(kind, name, body, arg))
	{
		etl_sync_waiting(ETL_WAIT_LOCK);
		waited = true;
		etl_sync_pause(FIRST_PAUSE_MS);
	}
	if (waited)
		etl_sync_waiting(ETL_WAIT_NOTHING);
}

/* ----------
 * Before the copy
 * ----------
 */

static void
load_body(void *arg)
{
	EtlSyncGroup *group = arg;

	if (!etl_extension_present())
		return;
	etl_rules_load_local_schemas();
	group->config = etl_config_load(etl_worker_pipeline->id, true, group->context);
	if (group->config)
		group->owner_is_superuser = superuser_arg(group->config->owner);
}

/* A new group, with the definition as it is now. */
static EtlSyncGroup *
load_group(void)
{
	MemoryContext context = AllocSetContextCreate(EtlWorkerContext, "etl sync group",
												  ALLOCSET_DEFAULT_SIZES);
	EtlSyncGroup *group = MemoryContextAllocZero(context, sizeof(EtlSyncGroup));

	group->context = context;
	bracket_until_done(ETL_BRACKET_READ, "etl: read definition", load_body, group);
	if (group->config == NULL || !group->config->enabled || group->config->dropping)
		etl_worker_exit(ETL_EXIT_DONE);
	return group;
}

/* Open the destination; returns when it has answered. */
static void
connect_destination(EtlSyncGroup *group)
{
	const EtlDestinationRoutine *routine = group->config->routine;
	EtlConnectArgs args = {
		.options = group->config->options,
		.source = group->config->source,
		.pipeline = group->config->name,
		.pipeline_id = group->config->id,
		.slot_name = group->config->slot_name,
		.epoch = group->config->epoch,
		.incarnation = etl_worker_args.incarnation,
		.is_superuser = group->owner_is_superuser,
		.is_tracked = etl_worker_is_tracked,
		.exists = etl_relation_exists,
	};
	MemoryContext context;
	EtlBackoff	backoff = {0};
	EtlResult	result;

	group->network = AllocSetContextCreate(group->context, "etl sync network",
										   ALLOCSET_DEFAULT_SIZES);
	context = MemoryContextSwitchTo(group->network);
	group->connection = routine->open(&args);

	for (;;)
	{
		memset(&result, 0, sizeof(result));
		result.rejected = -1;
		result.retry_after = -1;
		routine->connect(group->connection, &result);
		if (result.status == ETL_DONE)
			break;

		etl_sync_waiting(ETL_WAIT_DESTINATION);
		etl_backoff_failed(&backoff, group->config, &result);
		etl_sync_pause(etl_backoff_left(&backoff, GetCurrentTimestamp()));
	}
	MemoryContextSwitchTo(context);
	etl_sync_waiting(ETL_WAIT_NOTHING);
	etl_backoff_reset(&backoff);
}

static void
disconnect(EtlSyncGroup *group)
{
	if (group->connection)
		group->config->routine->close(group->connection);
	group->connection = NULL;
	MemoryContextDelete(group->network);
	group->network = NULL;
}

/* The tables of our entry, as the writer chose them. */
static void
read_entry(EtlSyncGroup *group)
{
	EtlSyncShared *entry = etl_worker_sync;
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	group->tables = MemoryContextAllocZero(group->context,
										   sizeof(EtlSyncTable) * ETL_SYNC_GROUP_TABLES);
	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	LWLockAcquire(&pipeline->lock, LW_SHARED);
	for (int i = 0; i < entry->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[entry->tables[i]];
		EtlSyncTable *table = &group->tables[group->ntables];

		if (slot->pipeline != etl_shmem_pipeline_index(pipeline))
			continue;
		table->slot = entry->tables[i];
		table->relid = slot->relid;
		table->reason = slot->reason;
		group->ntables++;
	}
	LWLockRelease(&pipeline->lock);
	LWLockRelease(&etl_shared->lock);
}

static void
claim_body(void *arg)
{
	EtlSyncGroup *group = arg;

	for (int i = 0; i < group->ntables; i++)
	{
		EtlSyncTable *table = &group->tables[i];
		char	   *schema = get_namespace_name(get_rel_namespace(table->relid));
		char	   *name = get_rel_name(table->relid);

		table->generation = etl_store_claim(group->config->id, table->relid,
											&table->resync, &table->retry);
		table->left = table->generation == 0;
		table->schema_name = schema ? MemoryContextStrdup(group->context, schema) : "";
		table->table_name = name ? MemoryContextStrdup(group->context, name) : "";
	}
}

/* Take the tables for this attempt; false when none is to be copied any more. */
static bool
claim(EtlSyncGroup *group)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	read_entry(group);
	bracket_until_done(ETL_BRACKET_WRITE, "etl: claim tables", claim_body, group);

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	for (int i = 0; i < group->ntables; i++)
	{
		EtlSyncTable *table = &group->tables[i];
		EtlTableSlot *slot = &etl_shared->tables[table->slot];

		if (table->left)
			continue;
		if (slot->relid != table->relid ||
			!etl_table_state_move(slot, ETL_TABLE_DATA_SYNC))
		{
			table->left = true;
			continue;
		}
		slot->generation = table->generation;
		slot->resync_claimed = table->resync;
		slot->retry_claimed = table->retry;
		pg_atomic_write_u64(&slot->rows_copied, 0);
		pg_atomic_write_u64(&slot->bytes_copied, 0);
		if (slot->owned[0].generation == 0)
			etl_adjusted_forget(table->slot);
	}
	LWLockRelease(&pipeline->lock);
	tables_changed();

	return etl_sync_remaining(group) > 0;
}

/* ----------
 * After the copy
 * ----------
 */

static void
store_body(void *arg)
{
	EtlSyncGroup *group = arg;

	for (int i = 0; i < group->ntables; i++)
	{
		EtlSyncTable *table = &group->tables[i];

		if (table->parked)
			etl_store_park(group->config->id, table->relid, ETL_RECOVERY_RETRY,
						   table->sqlstate, table->message,
						   table->hint[0] ? table->hint : NULL,
						   group->snapshot_lsn, 0);
		else if (!table->left && group->failed_sqlstate == 0)
			etl_store_finished_copy(group->config->id, table->relid, table->generation,
									table->shape, etl_options_layout(table->table.options),
									table->table.target ? table->table.target->name : NULL,
									table->rows, table->bytes);
	}
	if (group->failed_sqlstate != 0)
		etl_store_failed(group->config->id, group->failed_sqlstate,
						 group->failed_message, group->failed_hint);
}

/* Under on_error = stop, the trouble of one table is the pipeline's. */
static void
look_for_stop(EtlSyncGroup *group)
{
	for (int i = 0; i < group->ntables && group->failed_sqlstate == 0; i++)
	{
		EtlSyncTable *table = &group->tables[i];
		EtlOptions *options;

		if (!table->parked)
			continue;
		options = etl_config_table_options(group->config, table->schema_name,
										   table->table_name);
		if (etl_config_on_error(options) != ETL_ON_ERROR_STOP)
			continue;
		group->failed_sqlstate = table->sqlstate;
		snprintf(group->failed_message, sizeof(group->failed_message),
				 "copy of table \"%s.%s\": %s", table->schema_name,
				 table->table_name, table->message);
		strlcpy(group->failed_hint, table->hint, sizeof(group->failed_hint));
	}
}

/* Parked tables into shared memory. */
static void
publish_parked(EtlSyncGroup *group)
{
	for (int i = 0; i < group->ntables; i++)
	{
		EtlSyncTable *table = &group->tables[i];
		EtlTableSlot *slot = &etl_shared->tables[table->slot];

		if (table->parked && slot->relid == table->relid &&
			slot->generation == table->generation)
			(void) etl_table_state_park(etl_worker_pipeline, slot, ETL_RECOVERY_RETRY,
										table->sqlstate, group->snapshot_lsn, 0);
	}
}

static bool
anything_to_store(const EtlSyncGroup *group)
{
	if (group->failed_sqlstate != 0)
		return true;
	for (int i = 0; i < group->ntables; i++)
		if (group->tables[i].parked || !group->tables[i].left)
			return true;
	return false;
}

/* Record what became of the attempt, in the tables first. */
static void
store_outcome(EtlSyncGroup *group, EtlSyncOutcome outcome)
{
	if (outcome != ETL_ATTEMPT_COPIED && outcome != ETL_ATTEMPT_FAILED)
	{
		/* not finished: only what is parked counts */
		for (int i = 0; i < group->ntables; i++)
			if (!group->tables[i].parked)
				group->tables[i].left = true;
	}
	look_for_stop(group);
	if (!anything_to_store(group))
		return;
	bracket_until_done(ETL_BRACKET_WRITE, "etl: store copy", store_body, group);
	publish_parked(group);
	etl_sync_set_state(group, ETL_TABLE_FINISHED_COPY);
	if (group->failed_sqlstate != 0)
	{
		etl_shmem_set_failed(etl_worker_pipeline, group->failed_sqlstate,
							 group->failed_message, group->failed_hint);
		etl_worker_exit(ETL_EXIT_DONE);
	}
}

/* ----------
 * The worker
 * ----------
 */

/* Pause before attempt number "n" + 1. */
static void
pause_between(int n)
{
	long		ms = FIRST_PAUSE_MS;

	for (int i = 1; i < n && ms < LAST_PAUSE_MS; i++)
		ms *= 2;
	etl_sync_pause(Min(ms, LAST_PAUSE_MS));
}

static void
sync_body(void)
{
	EtlSyncGroup *group;

	etl_decode_allow_plugin();

	for (int n = 1;; n++)
	{
		EtlSyncOutcome outcome;

		group = load_group();
		connect_destination(group);
		if (!claim(group))
			etl_worker_exit(ETL_EXIT_DONE);
		etl_slot_draw_name(MyDatabaseId, &group->slot_name);

		outcome = etl_sync_attempt(group);
		disconnect(group);
		store_outcome(group, outcome);
		if (outcome == ETL_ATTEMPT_COPIED)
			break;

		if (outcome == ETL_ATTEMPT_DESTINATION)
		{
			etl_sync_waiting(ETL_WAIT_DESTINATION);
			etl_sync_pause(group->config->max_retry_delay);
		}
		else
			pause_between(n);
		MemoryContextDelete(group->context);
		etl_sync_waiting(ETL_WAIT_NOTHING);
	}

	if (etl_sync_remaining(group) == 0)
	{
		/* gone from the source: the news come through WAL */
		etl_slot_release();
		etl_sync_pause(1000);
		etl_worker_exit(ETL_EXIT_DONE);
	}
	etl_sync_catch_up(group);
}

void
etl_sync_main(Datum main_arg)
{
	etl_worker_start(ETL_ROLE_SYNC, main_arg);
	etl_worker_run(sync_body);
	etl_worker_exit(ETL_EXIT_DONE);
}
