/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Rows of etl.table_state: the life of tables, as it survives a restart.
 *
 * See store_history.c for rules and shapes, store_pipeline.c for the
 * pipeline's own row, errors and statistics.  Everything is called in an open
 * bracket of a process that does not decode, but for the functions that read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/store.h"
#include "catalog/store_private.h"
#include "server/worker.h"

/* ----------
 * Reading
 * ----------
 */

static EtlCopyReason
reason_from_name(const char *name)
{
	for (int i = ETL_COPY_INITIAL; i <= ETL_COPY_SLOT_LOSS; i++)
		if (strcmp(etl_copy_reason_name((EtlCopyReason) i), name) == 0)
			return (EtlCopyReason) i;
	return ETL_COPY_INITIAL;
}

static EtlRecovery
recovery_from_name(const char *name)
{
	for (int i = ETL_RECOVERY_RETRY; i <= ETL_RECOVERY_RESYNC; i++)
		if (strcmp(etl_recovery_name((EtlRecovery) i), name) == 0)
			return (EtlRecovery) i;
	return ETL_RECOVERY_NONE;
}

/*
 * All tables of a pipeline, oldest entries first.  The rows are allocated in
 * the caller's context, which must outlive the bracket's own.
 */
List *
etl_store_read_tables(int64 pipeline_id)
{
	Params		params = {0};
	List	   *rows = NIL;
	uint64		n;

	param_int8(&params, pipeline_id);
	n = run("SELECT relid, schema_name::text, table_name::text, state, reason,"
			"  generation, owned_generation, owned_from, shape_hash,"
			"  resync_done, retry_done, recovery, rows_copied, bytes_copied,"
			"  rows_estimated, inserts, updates, deletes, truncates,"
			"  last_change_time, last_delivered_lsn"
			" FROM etl.table_state WHERE pipeline_id = $1 ORDER BY relid",
			&params);
	for (uint64 i = 0; i < n; i++)
	{
		EtlTableRow *row = palloc0(sizeof(EtlTableRow));
		bool		isnull;
		Datum		value;

		row->relid = DatumGetObjectId(field(i, 1, &isnull));
		row->schema_name = TextDatumGetCString(field(i, 2, &isnull));
		row->table_name = TextDatumGetCString(field(i, 3, &isnull));
		row->state = etl_table_state_from_name(TextDatumGetCString(field(i, 4, &isnull)));
		value = field(i, 5, &isnull);
		if (!isnull)
			row->reason = reason_from_name(TextDatumGetCString(value));
		row->generation = (uint32) DatumGetInt32(field(i, 6, &isnull));
		row->owned_generation = (uint32) DatumGetInt32(field(i, 7, &isnull));
		value = field(i, 8, &isnull);
		if (!isnull)
			row->owned_from = DatumGetLSN(value);
		row->shape_hash = (uint64) DatumGetInt64(field(i, 9, &isnull));
		row->resync_done = DatumGetInt64(field(i, 10, &isnull));
		row->retry_done = DatumGetInt64(field(i, 11, &isnull));
		value = field(i, 12, &isnull);
		if (!isnull)
			row->recovery = recovery_from_name(TextDatumGetCString(value));
		row->rows_copied = (uint64) DatumGetInt64(field(i, 13, &isnull));
		row->bytes_copied = (uint64) DatumGetInt64(field(i, 14, &isnull));
		row->rows_estimated = (uint64) DatumGetInt64(field(i, 15, &isnull));
		row->inserts = (uint64) DatumGetInt64(field(i, 16, &isnull));
		row->updates = (uint64) DatumGetInt64(field(i, 17, &isnull));
		row->deletes = (uint64) DatumGetInt64(field(i, 18, &isnull));
		row->truncates = (uint64) DatumGetInt64(field(i, 19, &isnull));
		value = field(i, 20, &isnull);
		if (!isnull)
			row->last_change_time = DatumGetTimestampTz(value);
		value = field(i, 21, &isnull);
		if (!isnull)
			row->last_delivered_lsn = DatumGetLSN(value);
		rows = lappend(rows, row);
	}
	return rows;
}

List *
etl_store_read_intents(int64 pipeline_id)
{
	Params		params = {0};
	List	   *intents = NIL;
	uint64		n;

	param_int8(&params, pipeline_id);
	n = run("SELECT relid, resync_requests, retry_requests"
			" FROM etl.table_intent WHERE pipeline_id = $1", &params);
	for (uint64 i = 0; i < n; i++)
	{
		EtlTableIntent *intent = palloc0(sizeof(EtlTableIntent));
		bool		isnull;

		intent->relid = DatumGetObjectId(field(i, 1, &isnull));
		intent->resync_requests = DatumGetInt64(field(i, 2, &isnull));
		intent->retry_requests = DatumGetInt64(field(i, 3, &isnull));
		intents = lappend(intents, intent);
	}
	return intents;
}

/* ----------
 * Coming and going
 * ----------
 */

/*
 * A request that was made for a table before it was known counts as done:
 * what it asks for is what happens now.  Numbers of generations are never
 * used again, also not by a table that had left and comes back.
 */
void
etl_store_insert_table(int64 pipeline_id, const EtlRule *rule, EtlTableState state)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, rule->relid);
	param_name(&params, rule->schema_name);
	param_name(&params, rule->table_name);
	param_text(&params, etl_table_state_name(state));
	param_text(&params, etl_copy_reason_name(ETL_COPY_INITIAL));
	param_text(&params, etl_excluded_name((EtlExcluded) rule->excluded));
	run("INSERT INTO etl.table_state AS t (pipeline_id, relid, schema_name, table_name,"
		"  state, reason, excluded_reason, generation, resync_done, retry_done)"
		" SELECT $1, $2, $3, $4, $5, $6, $7,"
		"  COALESCE((SELECT p.released_generation FROM etl.pipeline_state p"
		"    WHERE p.pipeline_id = $1), 0),"
		"  COALESCE(max(i.resync_requests), 0), COALESCE(max(i.retry_requests), 0)"
		" FROM etl.table_intent i WHERE i.pipeline_id = $1 AND i.relid = $2"
		" ON CONFLICT (pipeline_id, relid) DO UPDATE SET"
		"  schema_name = EXCLUDED.schema_name, table_name = EXCLUDED.table_name,"
		"  excluded_reason = EXCLUDED.excluded_reason,"
		"  state = CASE WHEN t.state IN ('excluded', 'dropped')"
		"    OR EXCLUDED.state OPERATOR(pg_catalog.=) 'excluded'"
		"    THEN EXCLUDED.state ELSE t.state END",
		&params);
}

/*
 * Its shapes go too; what it left at the destination stays.  Should the table
 * come back, it must not use a generation again, which names its copies: a
 * receiver ignores ids that it has seen.
 */
void
etl_store_delete_table(int64 pipeline_id, Oid relid)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	run("DELETE FROM etl.destination_column WHERE pipeline_id = $1 AND relid = $2", &params);
	run("DELETE FROM etl.column_state WHERE pipeline_id = $1 AND relid = $2", &params);
	run("UPDATE etl.pipeline_state AS p SET released_generation = t.generation"
		" FROM etl.table_state t"
		" WHERE p.pipeline_id = $1 AND t.pipeline_id = $1 AND t.relid = $2"
		"  AND t.generation > p.released_generation", &params);
	run("DELETE FROM etl.table_state WHERE pipeline_id = $1 AND relid = $2", &params);
}

void
etl_store_rename_table(int64 pipeline_id, Oid relid, const char *schema_name,
					   const char *table_name)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_name(&params, schema_name);
	param_name(&params, table_name);
	run("UPDATE etl.table_state SET schema_name = $3, table_name = $4"
		" WHERE pipeline_id = $1 AND relid = $2"
		"  AND (schema_name <> $3 OR table_name <> $4)", &params);
}

/* ----------
 * Copy
 * ----------
 */

uint32
etl_store_claim(int64 pipeline_id, Oid relid, int64 *resync, int64 *retry)
{
	Params		params = {0};
	bool		isnull;
	uint32		generation;

	*resync = *retry = 0;
	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	if (run("UPDATE etl.table_state SET state = 'data_sync', generation = generation + 1,"
			"  attempts = attempts + 1, recovery = NULL, sqlstate = NULL, error = NULL,"
			"  hint = NULL, error_lsn = NULL, error_ordinal = NULL, error_time = NULL,"
			"  rows_copied = 0, bytes_copied = 0"
			" WHERE pipeline_id = $1 AND relid = $2"
			"  AND state IN ('init', 'data_sync', 'finished_copy', 'sync_wait', 'catchup')"
			" RETURNING generation", &params) == 0)
		return 0;
	generation = (uint32) DatumGetInt32(field(0, 1, &isnull));

	/* nothing of former attempts is there: nor are values of them */
	run("DELETE FROM etl.column_state c USING etl.table_state t"
		" WHERE c.pipeline_id = $1 AND c.relid = $2 AND t.pipeline_id = $1 AND t.relid = $2"
		"  AND t.owned_generation = 0", &params);

	if (run("SELECT resync_requests, retry_requests FROM etl.table_intent"
			" WHERE pipeline_id = $1 AND relid = $2", &params) > 0)
	{
		*resync = DatumGetInt64(field(0, 1, &isnull));
		*retry = DatumGetInt64(field(0, 2, &isnull));
	}
	return generation;
}

void
etl_store_finished_copy(int64 pipeline_id, Oid relid, uint32 generation,
						const EtlShape *shape, const char *layout,
						const char *destination_table, uint64 rows, uint64 bytes)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_int4(&params, (int32) generation);
	param_int8(&params, (int64) rows);
	param_int8(&params, (int64) bytes);
	param_text(&params, destination_table);
	run("UPDATE etl.table_state SET state = 'finished_copy', rows_copied = $4, bytes_copied = $5,"
		"  destination_table = $6"
		" WHERE pipeline_id = $1 AND relid = $2 AND generation = $3 AND state = 'data_sync'",
		&params);
	etl_store_shape(pipeline_id, shape, layout);
}

/*
 * What is to be stored waits in a list, so it may be about a table whose drop
 * is stored before it: dropped stays dropped, here and below.  A rule alone
 * brings the table back.
 */
void
etl_store_state(int64 pipeline_id, Oid relid, EtlTableState state)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_text(&params, etl_table_state_name(state));
	run("UPDATE etl.table_state SET state = $3"
		" WHERE pipeline_id = $1 AND relid = $2 AND state NOT IN ($3, 'dropped')", &params);
}

void
etl_store_init(int64 pipeline_id, Oid relid, EtlCopyReason reason, bool beside)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_text(&params, etl_copy_reason_name(reason));
	param_bool(&params, beside);
	run("UPDATE etl.table_state SET state = 'init', reason = $3, recovery = NULL,"
		"  owned_generation = CASE WHEN $4 THEN owned_generation ELSE 0 END,"
		"  owned_from = CASE WHEN $4 THEN owned_from END"
		" WHERE pipeline_id = $1 AND relid = $2 AND state <> 'dropped'", &params);
}

void
etl_store_disown(int64 pipeline_id, Oid relid)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	run("UPDATE etl.table_state SET owned_generation = 0, owned_from = NULL"
		" WHERE pipeline_id = $1 AND relid = $2", &params);
}

void
etl_store_owned(int64 pipeline_id, Oid relid, uint32 generation, XLogRecPtr owned_from,
				uint64 shape_hash)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_int4(&params, (int32) generation);
	param_lsn(&params, owned_from);
	param_int8(&params, (int64) shape_hash);
	run("UPDATE etl.table_state SET owned_generation = $3, owned_from = $4, shape_hash = $5"
		" WHERE pipeline_id = $1 AND relid = $2", &params);

	/* shapes of generations that nobody delivers to any more */
	params.n = 3;
	run("DELETE FROM etl.schema_history"
		" WHERE pipeline_id = $1 AND relid = $2 AND generation < $3 - 1", &params);
}

void
etl_store_sync_done(int64 pipeline_id, Oid relid, int64 resync, int64 retry)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_int8(&params, resync);
	param_int8(&params, retry);
	run("UPDATE etl.table_state SET state = 'sync_done', resync_done = $3, retry_done = $4,"
		"  attempts = 0, recovery = NULL, sqlstate = NULL, error = NULL, hint = NULL,"
		"  error_lsn = NULL, error_ordinal = NULL, error_time = NULL"
		" WHERE pipeline_id = $1 AND relid = $2", &params);
}

/* ----------
 * Trouble
 * ----------
 */

/*
 * A table that can go on in place keeps what was handed over; any other needs
 * a new generation, and a restart must not deliver to the old one.  Requests
 * that the failed copy was started for are done: only a new one by a user
 * starts another copy.
 */
void
etl_store_park(int64 pipeline_id, Oid relid, EtlRecovery recovery, int sqlstate,
			   const char *message, const char *hint, XLogRecPtr lsn, uint64 ordinal)
{
	Params		params = {0};
	EtlTableSlot *slot = etl_shmem_find_table(etl_worker_pipeline, relid);

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_text(&params, etl_recovery_name(recovery));
	param_text(&params, unpack_sql_state(sqlstate));
	param_text(&params, message);
	param_text(&params, hint);
	param_lsn(&params, lsn);
	param_int8(&params, (int64) ordinal);
	param_bool(&params, recovery == ETL_RECOVERY_RESUME);
	param_int8(&params, slot ? slot->resync_claimed : 0);
	param_int8(&params, slot ? slot->retry_claimed : 0);
	run("UPDATE etl.table_state SET state = 'errored', recovery = $3, sqlstate = $4,"
		"  error = $5, hint = $6, error_lsn = $7, error_ordinal = $8,"
		"  error_time = pg_catalog.clock_timestamp(),"
		"  owned_generation = CASE WHEN $9 THEN owned_generation ELSE 0 END,"
		"  owned_from = CASE WHEN $9 THEN owned_from END,"
		"  resync_done = GREATEST(resync_done, $10), retry_done = GREATEST(retry_done, $11)"
		" WHERE pipeline_id = $1 AND relid = $2", &params);
	etl_store_error(pipeline_id, relid, sqlstate, message, hint, lsn, ordinal);
}

void
etl_store_resume(int64 pipeline_id, Oid relid, EtlTableState state, int64 retry_done)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_text(&params, etl_table_state_name(state));
	param_int8(&params, retry_done);
	run("UPDATE etl.table_state SET state = $3, retry_done = $4, recovery = NULL,"
		"  sqlstate = NULL, error = NULL, hint = NULL, error_lsn = NULL,"
		"  error_ordinal = NULL, error_time = NULL"
		" WHERE pipeline_id = $1 AND relid = $2", &params);
}
