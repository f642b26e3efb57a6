/*-------------------------------------------------------------------------
 *
 * store_pipeline.c
 *	  The pipeline's row of etl.pipeline_state, the error log, statistics.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/store.h"
#include "catalog/store_private.h"
#include "guc.h"
#include "server/adjusted.h"

/* ----------
 * Identity and requests
 * ----------
 */

void
etl_store_identity(const EtlConfig *config)
{
	Params		params = {0};

	param_int8(&params, config->id);
	param_int8(&params, (int64) config->system_identifier);
	param_oid(&params, config->database);
	param_int8(&params, config->timeline);
	param_int4(&params, config->epoch);
	param_name(&params, config->slot_name);
	param_bool(&params, config->slot_created);
	param_int8(&params, (int64) config->data_directory);
	run("INSERT INTO etl.pipeline_state AS s (pipeline_id, system_identifier, database_oid,"
		"  timeline, epoch, slot_name, slot_created, data_directory)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
		" ON CONFLICT (pipeline_id) DO UPDATE SET"
		"  system_identifier = EXCLUDED.system_identifier,"
		"  database_oid = EXCLUDED.database_oid, timeline = EXCLUDED.timeline,"
		"  epoch = EXCLUDED.epoch, slot_name = EXCLUDED.slot_name,"
		"  slot_created = EXCLUDED.slot_created,"
		"  data_directory = EXCLUDED.data_directory,"
		"  publication_oid = CASE WHEN s.system_identifier = EXCLUDED.system_identifier"
		"    AND s.database_oid = EXCLUDED.database_oid THEN s.publication_oid END", &params);
}

/*
 * A publication that was renamed keeps its OID: the definition takes the new
 * name, which is the only thing that a worker writes there.  One that is gone
 * is looked for by its name.
 */
void
etl_store_publication(int64 pipeline_id)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	run("UPDATE etl.pipeline_state s SET publication_oid = u.oid"
		" FROM etl.pipeline p JOIN pg_catalog.pg_publication u ON u.pubname = p.publication"
		" WHERE s.pipeline_id = $1 AND p.id = $1 AND s.publication_oid IS DISTINCT FROM u.oid"
		"  AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication o WHERE o.oid = s.publication_oid)",
		&params);
	run("UPDATE etl.pipeline p SET publication = u.pubname"
		" FROM etl.pipeline_state s JOIN pg_catalog.pg_publication u ON u.oid = s.publication_oid"
		" WHERE p.id = $1 AND s.pipeline_id = $1 AND p.publication <> u.pubname", &params);
}

void
etl_store_slot_created(int64 pipeline_id, bool created)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_bool(&params, created);
	run("UPDATE etl.pipeline_state SET slot_created = $2 WHERE pipeline_id = $1", &params);
}

void
etl_store_start_done(int64 pipeline_id, int64 start_done)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_int8(&params, start_done);
	run("UPDATE etl.pipeline_state SET start_done = $2, failed_sqlstate = NULL,"
		"  failed_message = NULL, failed_hint = NULL"
		" WHERE pipeline_id = $1 AND (start_done <> $2 OR failed_sqlstate IS NOT NULL)",
		&params);
}

void
etl_store_resync_done(int64 pipeline_id, int64 resync_done)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_int8(&params, resync_done);
	run("UPDATE etl.pipeline_state SET resync_done = $2 WHERE pipeline_id = $1", &params);
}

int64
etl_store_read_resync_done(int64 pipeline_id)
{
	Params		params = {0};
	bool		isnull;

	param_int8(&params, pipeline_id);
	if (run("SELECT resync_done FROM etl.pipeline_state WHERE pipeline_id = $1", &params) == 0)
		return 0;
	return DatumGetInt64(field(0, 1, &isnull));
}

void
etl_store_forget_history(int64 pipeline_id)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	run("DELETE FROM etl.rule_history WHERE pipeline_id = $1", &params);
	run("DELETE FROM etl.schema_history WHERE pipeline_id = $1", &params);
}

void
etl_store_durable(int64 pipeline_id, XLogRecPtr lsn)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_lsn(&params, lsn);
	run("UPDATE etl.pipeline_state SET durable_lsn = $2 WHERE pipeline_id = $1", &params);
}

XLogRecPtr
etl_store_read_durable(int64 pipeline_id)
{
	Params		params = {0};
	bool		isnull;
	Datum		value;

	param_int8(&params, pipeline_id);
	if (run("SELECT durable_lsn FROM etl.pipeline_state WHERE pipeline_id = $1", &params) == 0)
		return InvalidXLogRecPtr;
	value = field(0, 1, &isnull);
	return isnull ? InvalidXLogRecPtr : DatumGetLSN(value);
}

void
etl_store_stopped(int64 pipeline_id, XLogRecPtr lsn)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_lsn(&params, lsn);
	run("UPDATE etl.pipeline_state SET stopped_lsn = $2 WHERE pipeline_id = $1", &params);
}

XLogRecPtr
etl_store_take_stopped(int64 pipeline_id)
{
	Params		params = {0};
	bool		isnull;
	XLogRecPtr	lsn;

	param_int8(&params, pipeline_id);
	if (run("SELECT stopped_lsn FROM etl.pipeline_state"
			" WHERE pipeline_id = $1 AND stopped_lsn IS NOT NULL", &params) == 0)
		return InvalidXLogRecPtr;
	lsn = DatumGetLSN(field(0, 1, &isnull));
	etl_store_stopped(pipeline_id, InvalidXLogRecPtr);
	return lsn;
}

/* ----------
 * Trouble
 * ----------
 */

void
etl_store_error(int64 pipeline_id, Oid relid, int sqlstate, const char *message,
				const char *hint, XLogRecPtr lsn, uint64 ordinal)
{
	Params		params = {0};
	Params		prune = {0};

	param_int8(&params, pipeline_id);
	param(&params, OIDOID, ObjectIdGetDatum(relid), !OidIsValid(relid));
	param_text(&params, unpack_sql_state(sqlstate));
	param_text(&params, message && message[0] ? message : "unknown error");
	param_text(&params, hint);
	param_lsn(&params, lsn);
	param(&params, INT8OID, Int64GetDatum((int64) ordinal), XLogRecPtrIsInvalid(lsn));
	run("INSERT INTO etl.error_entry (pipeline_id, relid, schema_name, table_name,"
		"  sqlstate, message, hint, lsn, ordinal)"
		" SELECT $1, $2, max(t.schema_name::text), max(t.table_name::text), $3, $4, $5, $6, $7"
		" FROM etl.table_state t WHERE t.pipeline_id = $1 AND t.relid = $2", &params);

	param_int8(&prune, pipeline_id);
	param_int8(&prune, Max(etl_error_log_size, 0));
	run("DELETE FROM etl.error_entry WHERE pipeline_id = $1 AND id <= ("
		"  SELECT id FROM etl.error_entry WHERE pipeline_id = $1"
		"   ORDER BY id DESC OFFSET $2 LIMIT 1)", &prune);
}

void
etl_store_failed(int64 pipeline_id, int sqlstate, const char *message, const char *hint)
{
	Params		params = {0};
	Params		id = {0};

	param_int8(&params, pipeline_id);
	param_text(&params, sqlstate ? unpack_sql_state(sqlstate) : NULL);
	param_text(&params, message);
	param_text(&params, hint);
	run("UPDATE etl.pipeline_state SET failed_sqlstate = $2, failed_message = $3,"
		"  failed_hint = $4 WHERE pipeline_id = $1", &params);
	if (sqlstate == 0)
		return;

	/* this attempt was the answer to all requests so far */
	param_int8(&id, pipeline_id);
	run("UPDATE etl.pipeline_state s SET start_done = i.start_requests"
		" FROM etl.pipeline_intent i WHERE s.pipeline_id = $1 AND i.pipeline_id = $1", &id);
	etl_store_error(pipeline_id, InvalidOid, sqlstate, message, hint, InvalidXLogRecPtr, 0);
}

/* ----------
 * Statistics
 * ----------
 */

static void
store_table_statistics(int64 pipeline_id, EtlTableSlot *slot, Oid relid)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_int8(&params, (int64) pg_atomic_read_u64(&slot->rows_copied));
	param_int8(&params, (int64) pg_atomic_read_u64(&slot->bytes_copied));
	param_int8(&params, (int64) pg_atomic_read_u64(&slot->rows_estimated));
	param_int8(&params, (int64) pg_atomic_read_u64(&slot->inserts));
	param_int8(&params, (int64) pg_atomic_read_u64(&slot->updates));
	param_int8(&params, (int64) pg_atomic_read_u64(&slot->deletes));
	param_int8(&params, (int64) pg_atomic_read_u64(&slot->truncates));
	param_time(&params, (TimestampTz) pg_atomic_read_u64(&slot->last_change_time));
	param_lsn(&params, (XLogRecPtr) pg_atomic_read_u64(&slot->last_delivered_lsn));
	run("UPDATE etl.table_state SET rows_copied = $3, bytes_copied = $4, rows_estimated = $5,"
		"  inserts = $6, updates = $7, deletes = $8, truncates = $9, last_change_time = $10,"
		"  last_delivered_lsn = $11"
		" WHERE pipeline_id = $1 AND relid = $2"
		"  AND (rows_copied, bytes_copied, rows_estimated, inserts, updates, deletes, truncates,"
		"       last_delivered_lsn)"
		"    IS DISTINCT FROM ($3, $4, $5, $6, $7, $8, $9, $11)", &params);
}

/* Values of columns that went out as others. */
static void
store_adjusted(const EtlPipelineShared *pipeline)
{
	int32		index = etl_shmem_pipeline_index(pipeline);
	int			n;
	EtlAdjustedCount *all = etl_adjusted_all(&n);

	for (int i = 0; i < n; i++)
	{
		const EtlTableSlot *slot = &etl_shared->tables[all[i].slot];
		Params		params = {0};

		if (slot->pipeline != index || !OidIsValid(slot->relid))
			continue;
		param_int8(&params, pipeline->id);
		param_oid(&params, slot->relid);
		param_int4(&params, all[i].attnum);
		param_int8(&params, (int64) all[i].values);

		/* a count that is stored already is not even locked */
		run("INSERT INTO etl.column_state (pipeline_id, relid, attnum, adjusted)"
			" SELECT $1, $2, $3, $4 WHERE NOT EXISTS"
			"  (SELECT FROM etl.column_state"
			"   WHERE (pipeline_id, relid, attnum, adjusted) = ($1, $2, $3, $4))"
			" ON CONFLICT (pipeline_id, relid, attnum) DO UPDATE SET adjusted = EXCLUDED.adjusted",
			&params);
	}
	pfree(all);
}

List *
etl_store_read_columns(int64 pipeline_id)
{
	Params		params = {0};
	List	   *rows = NIL;
	uint64		n;

	param_int8(&params, pipeline_id);
	n = run("SELECT relid, attnum, adjusted FROM etl.column_state WHERE pipeline_id = $1", &params);
	for (uint64 i = 0; i < n; i++)
	{
		EtlColumnRow *row = palloc0(sizeof(EtlColumnRow));
		bool		isnull;

		row->relid = DatumGetObjectId(field(i, 1, &isnull));
		row->attnum = DatumGetInt16(field(i, 2, &isnull));
		row->adjusted = (uint64) DatumGetInt64(field(i, 3, &isnull));
		rows = lappend(rows, row);
	}
	return rows;
}

/*
 * Sums of shared memory, which outlive a pair but not the server: the writer
 * puts the stored ones there when it finds none.
 */
void
etl_store_statistics(const EtlPipelineShared *pipeline)
{
	EtlPipelineShared *p = unconstify(EtlPipelineShared *, pipeline);
	int32		index = etl_shmem_pipeline_index(p);
	Params		params = {0};

	param_int8(&params, p->id);
	param_int8(&params, (int64) pg_atomic_read_u64(&p->transactions));
	param_int8(&params, (int64) pg_atomic_read_u64(&p->changes));
	param_int8(&params, (int64) pg_atomic_read_u64(&p->rows_copied));
	param_int8(&params, (int64) pg_atomic_read_u64(&p->bytes_sent));
	param_int8(&params, (int64) pg_atomic_read_u64(&p->batches));
	param_int8(&params, (int64) pg_atomic_read_u64(&p->retries));
	param_time(&params, (TimestampTz) pg_atomic_read_u64(&p->last_commit_time));
	param_time(&params, (TimestampTz) pg_atomic_read_u64(&p->last_delivery_time));
	param_lsn(&params, pg_atomic_read_u64(&p->counted_lsn));
	run("UPDATE etl.pipeline_state SET transactions = $2, changes = $3, rows_copied = $4,"
		"  bytes_sent = $5, batches = $6, retries = $7, last_commit_time = $8,"
		"  last_delivery_time = $9, counted_lsn = $10"
		" WHERE pipeline_id = $1", &params);

	/* slots of ours are freed by the writer alone, which is who calls this */
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[i];

		if (slot->pipeline == index && OidIsValid(slot->relid))
			store_table_statistics(p->id, slot, slot->relid);
	}
	store_adjusted(p);
}

void
etl_store_read_statistics(EtlPipelineShared *pipeline)
{
	pg_atomic_uint64 *counters[] = {
		&pipeline->transactions, &pipeline->changes, &pipeline->rows_copied,
		&pipeline->bytes_sent, &pipeline->batches, &pipeline->retries
	};
	Params		params = {0};
	bool		isnull;
	Datum		value;

	param_int8(&params, pipeline->id);
	if (run("SELECT transactions, changes, rows_copied, bytes_sent, batches, retries,"
			"  last_commit_time, last_delivery_time, counted_lsn"
			" FROM etl.pipeline_state WHERE pipeline_id = $1", &params) == 0)
		return;
	for (int i = 0; i < lengthof(counters); i++)
		pg_atomic_write_u64(counters[i], (uint64) DatumGetInt64(field(0, i + 1, &isnull)));
	value = field(0, 7, &isnull);
	pg_atomic_write_u64(&pipeline->last_commit_time,
						isnull ? 0 : (uint64) DatumGetTimestampTz(value));
	value = field(0, 8, &isnull);
	pg_atomic_write_u64(&pipeline->last_delivery_time,
						isnull ? 0 : (uint64) DatumGetTimestampTz(value));
	value = field(0, 9, &isnull);
	pg_atomic_write_u64(&pipeline->counted_lsn, isnull ? InvalidXLogRecPtr : DatumGetLSN(value));
}
