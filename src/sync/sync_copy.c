/*-------------------------------------------------------------------------
 *
 * sync_copy.c
 *	  One attempt at copying a group of tables.
 *
 *	 slot and snapshot	   waits for every running transaction of the server
 *	 lock and compare	   all tables, at once or not at all
 *	 copy				   one table after the other, each in a subtransaction
 *	 end of the transaction	   snapshot and locks are gone
 *	 all rows durable		   may take as long as it takes
 *
 * A lock is never waited for: while it holds locks on other tables, this
 * process would be one half of a deadlock whose other half is a user.  What
 * cannot be locked at once means "again later".
 *
 * An ERROR while one table is copied (a broken value, a lost privilege) parks
 * that table; the group goes on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "schema/shape.h"
#include "server/adjusted.h"
#include "server/worker.h"
#include "source/copy.h"
#include "source/snapshot.h"
#include "sync/sync.h"

/* What the copy of one table needs, and what a row's callback gets. */
typedef struct Copy
{
	EtlSyncGroup *group;
	EtlSyncSend *send;
	EtlOrigin	origin;
	EtlSyncTable *table;
	EtlCodec   *codec;
	EtlChange	change;			/* of the next row, but for the row itself */
} Copy;

/* ----------
 * What is to be copied
 * ----------
 */

static const EtlRule *
find_rule(const EtlSyncGroup *group, Oid relid)
{
	ListCell   *lc;

	foreach(lc, group->rules)
	{
		const EtlRule *rule = lfirst(lc);

		if (rule->relid == relid)
			return rule;
	}
	return NULL;
}

/* Columns that the destination cannot hold park the table before any row. */
static bool
columns_fit(EtlSyncGroup *group, EtlSyncTable *table)
{
	const EtlDestinationRoutine *routine = group->config->routine;

	if (routine->map_column == NULL)
		return true;
	for (int i = 0; i < table->shape->ncolumns; i++)
	{
		EtlValueError error = {0};

		if (routine->map_column(table->shape, &table->shape->columns[i],
								table->table.options, &error) == NULL)
		{
			etl_sync_park(table, error.sqlstate ? error.sqlstate : ERRCODE_FEATURE_NOT_SUPPORTED,
						  error.message, NULL);
			return false;
		}
	}
	return true;
}

/*
 * Rows of a partition that no WAL is written for, or that are elsewhere, would
 * be copied once and then grow old.
 */
static void
check_partitions(EtlSyncGroup *group, EtlSyncTable *table)
{
	ListCell   *lc;

	foreach(lc, group->rules)
	{
		const EtlRule *rule = lfirst(lc);

		if (rule->root == table->relid && rule->published && rule->excluded)
			etl_sync_park(table, ERRCODE_FEATURE_NOT_SUPPORTED,
						  psprintf("partition \"%s.%s\" is %s: its rows cannot be replicated",
								   rule->schema_name, rule->table_name,
								   etl_excluded_name(rule->excluded)),
						  "Detach the partition, or set publish_via_partition_root = false in the publication, and call etl.retry_table().");
	}
}

/*
 * Shape and options of the table; false when it leaves the group.  Results
 * live as long as the group.
 */
static bool
plan_table(EtlSyncGroup *group, EtlSyncTable *table, Relation relation)
{
	MemoryContext context = MemoryContextSwitchTo(group->context);
	const EtlRule *rule = find_rule(group, table->relid);
	bool		keeps;

	table->rule = rule;
	if (rule == NULL || !etl_rule_is_table(rule) || rule->excluded != ETL_NOT_EXCLUDED)
	{
		table->left = true;		/* left the publication; WAL will say so */
		MemoryContextSwitchTo(context);
		return false;
	}
	if (rule->partitioned)
		check_partitions(group, table);

	table->table.options = etl_config_table_options(group->config, table->schema_name,
													table->table_name);
	table->shape = etl_shape_build(relation, rule->columns,
								   etl_config_generated(table->table.options,
														rule->generated || rule->columns));
	table->shape->generation = table->generation;
	table->shape->version = 1;
	table->shape->lsn = group->snapshot_lsn;
	table->shape->hash = etl_shape_hash(table->shape);
	table->table.relid = table->relid;
	table->table.shape = table->shape;
	table->table.generation = table->generation;
	table->table.staging = true;

	if ((etl_table_abilities(group->config->routine, table->table.options) & ETL_NEEDS_KEY) &&
		table->shape->nkeys == 0)
		etl_sync_park(table, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
					  "the destination needs a key, and the table has none",
					  "Add a primary key or use ALTER TABLE ... REPLICA IDENTITY.");
	keeps = !table->left && columns_fit(group, table);
	MemoryContextSwitchTo(context);
	return keeps;
}

/* ----------
 * At the destination
 * ----------
 */

static void
call_begin(EtlSyncGroup *group, EtlSyncTable *table, EtlResult *result)
{
	table->begun = true;
	group->config->routine->begin_generation(group->connection, &table->table, result);
}

static void
call_read_columns(EtlSyncGroup *group, EtlSyncTable *table, EtlResult *result)
{
	MemoryContext context = MemoryContextSwitchTo(group->context);

	table->table.target = group->config->routine->read_columns(group->connection,
															   &table->table, result);
	MemoryContextSwitchTo(context);
}

static void
call_end(EtlSyncGroup *group, EtlSyncTable *table, EtlResult *result)
{
	group->config->routine->end_copy(group->connection, &table->table, result);
}

/* Make the table's new generation and its encoder. */
static bool
begin_generation(Copy *copy)
{
	EtlSyncGroup *group = copy->group;
	EtlSyncTable *table = copy->table;
	const EtlDestinationRoutine *routine = group->config->routine;
	MemoryContext context;

	if (routine->begin_generation &&
		!etl_sync_send_call(copy->send, table, call_begin))
		return false;
	if (routine->read_columns &&
		!etl_sync_send_call(copy->send, table, call_read_columns))
		return false;

	context = MemoryContextSwitchTo(group->network);
	copy->codec = routine->codec_create(table->shape, table->table.target,
										table->table.options);
	MemoryContextSwitchTo(context);
	return true;
}

/* Remove the generation of a table that did not get to its end; one try. */
static void
abandon_generations(EtlSyncGroup *group, bool all)
{
	const EtlDestinationRoutine *routine = group->config->routine;

	if (routine->abandon_generation == NULL)
		return;
	for (int i = 0; i < group->ntables; i++)
	{
		EtlSyncTable *table = &group->tables[i];
		EtlResult	result;

		if (!table->begun || !(all || table->left))
			continue;
		memset(&result, 0, sizeof(result));
		routine->abandon_generation(group->connection, &table->table, &result);
		table->begun = false;
	}
}

/* ----------
 * Rows and events
 * ----------
 */

static bool
copy_row(void *arg, TupleTableSlot *row)
{
	Copy	   *copy = arg;
	EtlSyncTable *table = copy->table;
	StringInfo	out = etl_sync_send_buffer(copy->send);
	static EtlAdjusted adjusted;
	EtlValueError error;

	ETL_FAILPOINT("sync_copy_row");

	copy->change.new_row = row;
	copy->change.row = table->rows + 1;
	adjusted.n = 0;
	copy->change.adjusted = &adjusted;
	if (!copy->group->config->routine->encode_row(copy->codec, &copy->change, out, &error))
	{
		const EtlColumn *column = etl_shape_column(table->shape, error.attnum);

		etl_sync_park(table, error.sqlstate,
					  psprintf("column \"%s\" of table \"%s.%s\": %s",
							   column ? column->name : "?", table->schema_name,
							   table->table_name, error.message), NULL);
		return false;
	}
	if (unlikely(adjusted.n > 0))
		etl_adjusted_count(table->slot, &adjusted);
	table->rows++;
	table->bytes += out->len;
	etl_sync_send_put(copy->send, table, out, table->rows);
	return etl_sync_send_turn(copy->send) && !table->left;
}

/* What the changes of all rows of the table have in common. */
static void
init_change(Copy *copy)
{
	memset(&copy->change, 0, sizeof(EtlChange));
	copy->change.op = ETL_INSERT;
	copy->change.position.epoch = copy->origin.epoch;
	copy->change.position.commit_lsn = copy->origin.commit_lsn;
	copy->change.origin = &copy->origin;
	copy->change.old_kind = ETL_OLD_NONE;
	copy->change.copy = copy->table->generation;
}

/* The table's description, before its first row. */
static void
put_relation(Copy *copy)
{
	const EtlDestinationRoutine *routine = copy->group->config->routine;
	StringInfo	out = etl_sync_send_buffer(copy->send);

	if (routine->encode_relation == NULL)
		return;
	routine->encode_relation(copy->table->table.options, &copy->origin,
							 copy->table->shape, NULL, out);
	if (out->len > 0)
		etl_sync_send_put(copy->send, copy->table, out, 0);
}

static void
put_copy_begin(Copy *copy)
{
	const EtlDestinationRoutine *routine = copy->group->config->routine;
	StringInfo	out = etl_sync_send_buffer(copy->send);

	if (routine->encode_copy_begin == NULL)
		return;
	routine->encode_copy_begin(copy->table->table.options, &copy->origin,
							   copy->table->shape,
							   etl_copy_reason_name(copy->table->reason), out);
	if (out->len > 0)
		etl_sync_send_put(copy->send, copy->table, out, 0);
}

static void
put_copy_end(Copy *copy)
{
	const EtlDestinationRoutine *routine = copy->group->config->routine;
	StringInfo	out = etl_sync_send_buffer(copy->send);

	if (routine->encode_copy_end == NULL)
		return;
	routine->encode_copy_end(copy->table->table.options, &copy->origin,
							 copy->table->shape, copy->table->rows, out);
	if (out->len > 0)
		etl_sync_send_put(copy->send, copy->table, out, 0);
}

/* ----------
 * Tables
 * ----------
 */

static void
copy_table(Copy *copy)
{
	EtlSyncGroup *group = copy->group;
	EtlSyncTable *table = copy->table;
	Relation	relation = table_open(table->relid, NoLock);

	if (plan_table(group, table, relation))
	{
		etl_sync_send_table(copy->send, table);
		if (begin_generation(copy))
		{
			init_change(copy);
			put_relation(copy);

			/* without rows there is nothing that would replace older ones */
			if (etl_option_bool(table->table.options, "copy_data"))
			{
				put_copy_begin(copy);
				if (etl_copy_table(relation, table->shape, table->rule->filter,
								   group->config->owner, copy_row, copy))
					put_copy_end(copy);
			}
		}
	}
	table_close(relation, NoLock);
}

/* Is this ERROR about the moment, not about the table? */
static bool
is_transient(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_TO_CATEGORY(ERRCODE_TRANSACTION_ROLLBACK):
		case ERRCODE_TO_CATEGORY(ERRCODE_OPERATOR_INTERVENTION):
			return true;
		case ERRCODE_TO_CATEGORY(ERRCODE_INSUFFICIENT_RESOURCES):
			/* a row that does not fit into memory will not fit later */
			return sqlstate != ERRCODE_OUT_OF_MEMORY;
		default:
			return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
	}
}

/*
 * Copy one table in a subtransaction; its ERROR parks it.  An ERROR out of the
 * sender, which works inside the copy, is nothing about the table.
 */
static void
copy_table_guarded(Copy *copy)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		copy_table(copy);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(copy->group->context);
		edata = CopyErrorData();
		if (is_transient(edata->sqlerrcode) || etl_sync_send_is_sending(copy->send))
			PG_RE_THROW();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		etl_sync_park(copy->table, edata->sqlerrcode, edata->message,
					  edata->hint ? edata->hint :
					  edata->sqlerrcode == ERRCODE_INSUFFICIENT_PRIVILEGE ?
					  "Grant SELECT on the published columns to the pipeline's owner." : NULL);
		FreeErrorData(edata);
	}
	PG_END_TRY();

	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

static void
copy_tables(Copy *copy)
{
	EtlSyncGroup *group = copy->group;

	for (int i = 0; i < group->ntables; i++)
	{
		if (etl_sync_send_outcome(copy->send) != ETL_ATTEMPT_COPIED)
			break;
		copy->table = &group->tables[i];
		if (!copy->table->left)
			copy_table_guarded(copy);
	}
}

/* ----------
 * The attempt
 * ----------
 */

static void
init_origin(Copy *copy)
{
	EtlConfig  *config = copy->group->config;

	copy->origin.source = config->source;
	copy->origin.pipeline = config->name;
	copy->origin.database = MyDatabaseId;
	copy->origin.epoch = config->epoch;
	copy->origin.phase = ETL_PHASE_COPY;
	copy->origin.commit_lsn = copy->group->snapshot_lsn;
	copy->origin.end_lsn = copy->group->snapshot_lsn;
	copy->origin.timestamp = GetCurrentTimestamp();
	copy->origin.xid = InvalidTransactionId;
}

static void
publish_snapshot(EtlSyncGroup *group)
{
	LWLockAcquire(&etl_worker_pipeline->lock, LW_EXCLUSIVE);
	etl_worker_sync->snapshot_lsn = group->snapshot_lsn;
	LWLockRelease(&etl_worker_pipeline->lock);
}

/* The part with the snapshot; ends with the transaction open or closed. */
static EtlSyncOutcome
copy_under_snapshot(Copy *copy)
{
	EtlSyncGroup *group = copy->group;
	MemoryContext context;
	List	   *touched;
	bool		found;

	etl_sync_waiting(ETL_WAIT_TRANSACTIONS);
	pgstat_report_activity(STATE_RUNNING, "etl: waiting for running transactions");
	group->snapshot_lsn = etl_snapshot_begin(NameStr(group->slot_name), &touched);
	etl_sync_waiting(ETL_WAIT_NOTHING);
	publish_snapshot(group);
	init_origin(copy);

	pgstat_report_activity(STATE_RUNNING, "etl: initial sync");
	ETL_FAILPOINT("sync_before_lock");

	/*
	 * Before the comparison: which partitions a table has must be the same in
	 * the snapshot, here and there, for catch-up to see what comes and goes.
	 */
	context = MemoryContextSwitchTo(group->context);
	group->rules = etl_rules_read(group->config->publication, InvalidXLogRecPtr, &found);
	MemoryContextSwitchTo(context);
	if (!etl_sync_lock_tables(group, touched))
		return ETL_ATTEMPT_LATER;
	ETL_FAILPOINT("sync_after_lock");

	copy_tables(copy);
	if (etl_sync_send_outcome(copy->send) != ETL_ATTEMPT_COPIED)
		return etl_sync_send_outcome(copy->send);

	ETL_FAILPOINT("sync_before_finish");
	etl_snapshot_end();
	return ETL_ATTEMPT_COPIED;
}

/* The part without: everything durable, and the generations complete. */
static EtlSyncOutcome
finish_copy(Copy *copy)
{
	EtlSyncGroup *group = copy->group;

	pgstat_report_activity(STATE_RUNNING, "etl: waiting for the destination");
	etl_sync_send_unbounded(copy->send);
	(void) etl_sync_send_finish(copy->send);

	for (int i = 0; i < group->ntables; i++)
		if (group->config->routine->end_copy && !group->tables[i].left)
			(void) etl_sync_send_call(copy->send, &group->tables[i], call_end);
	return etl_sync_send_outcome(copy->send);
}

/*
 * An ERROR outside of any table: is it only "later"?  Fills "waiting" with
 * what it is that we wait for.
 */
static bool
means_later(int sqlstate, EtlWaitingFor *waiting)
{
	*waiting = ETL_WAIT_NOTHING;
	if (sqlstate == ERRCODE_CONFIGURATION_LIMIT_EXCEEDED)
		*waiting = ETL_WAIT_REPLICATION_SLOTS;
	else if (sqlstate == ERRCODE_LOCK_NOT_AVAILABLE)
		*waiting = ETL_WAIT_LOCK;
	else
		return ERRCODE_TO_CATEGORY(sqlstate) ==
			ERRCODE_TO_CATEGORY(ERRCODE_TRANSACTION_ROLLBACK);
	return true;
}

EtlSyncOutcome
etl_sync_attempt(EtlSyncGroup *group)
{
	MemoryContext context = CurrentMemoryContext;
	volatile EtlSyncOutcome outcome = ETL_ATTEMPT_LATER;
	Copy		copy = {.group = group};

	copy.send = etl_sync_send_create(group);
	PG_TRY();
	{
		outcome = copy_under_snapshot(&copy);
		if (outcome == ETL_ATTEMPT_COPIED)
			outcome = finish_copy(&copy);
	}
	PG_CATCH();
	{
		ErrorData  *edata;
		EtlWaitingFor waiting;

		MemoryContextSwitchTo(group->context);
		edata = CopyErrorData();
		if (!means_later(edata->sqlerrcode, &waiting))
			PG_RE_THROW();
		FlushErrorState();
		etl_snapshot_abandon();
		etl_sync_waiting(waiting);
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("initial sync starts again: %s", edata->message)));
		outcome = ETL_ATTEMPT_LATER;
	}
	PG_END_TRY();

	if (outcome != ETL_ATTEMPT_COPIED)
		etl_snapshot_abandon();
	MemoryContextSwitchTo(context);
	abandon_generations(group, outcome != ETL_ATTEMPT_COPIED);
	pgstat_report_activity(STATE_IDLE, NULL);
	return outcome;
}
