/*-------------------------------------------------------------------------
 *
 * status.c
 *	  What shared memory says, as rows for the views of schema etl.
 *
 * The views join these rows with the tables: while a pipeline is in shared
 * memory, its state, positions and counters come from here, else from what
 * was stored last.  The functions may be called by anybody (a view checks
 * functions as its reader), so they show only the pipelines whose owner's
 * rights the caller has, or all to pg_monitor.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#include "server/shmem.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_shared_pipelines);
PG_FUNCTION_INFO_V1(etl_shared_tables);
PG_FUNCTION_INFO_V1(etl_shared_server);

#define PIPELINE_COLUMNS	30
#define TABLE_COLUMNS		17

/* A row under construction. */
typedef struct EtlRowBuilder
{
	int			n;
	Datum		values[32];
	bool		nulls[32];
} EtlRowBuilder;

static void
add(EtlRowBuilder *row, Datum value, bool isnull)
{
	row->values[row->n] = value;
	row->nulls[row->n++] = isnull;
}

static void
add_text(EtlRowBuilder *row, const char *value)
{
	bool		isnull = value == NULL || value[0] == '\0';

	add(row, isnull ? (Datum) 0 : CStringGetTextDatum(value), isnull);
}

static void
add_int64(EtlRowBuilder *row, pg_atomic_uint64 *value)
{
	add(row, Int64GetDatum((int64) pg_atomic_read_u64(value)), false);
}

static void
add_lsn(EtlRowBuilder *row, XLogRecPtr value)
{
	add(row, LSNGetDatum(value), value == InvalidXLogRecPtr);
}

static void
add_time(EtlRowBuilder *row, TimestampTz value)
{
	add(row, TimestampTzGetDatum(value), value == 0);
}

static void
add_sqlstate(EtlRowBuilder *row, int sqlstate)
{
	add_text(row, sqlstate == 0 ? NULL : unpack_sql_state(sqlstate));
}

/* IDs of the pipelines of this database that the caller may see. */
static List *
visible_pipelines(void)
{
	MemoryContext old = CurrentMemoryContext;
	EtlSqlFrame frame;
	List	   *ids = NIL;
	uint64		nrows;

	etl_sql_enter(&frame);
	nrows = etl_sql_run("SELECT id, owner::oid FROM etl.pipeline", 0, NULL, NULL, NULL);
	for (uint64 i = 0; i < nrows; i++)
	{
		bool		isnull;
		int64		id = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		Oid			owner = DatumGetObjectId(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2, &isnull));

		if (has_privs_of_role(frame.caller, owner) ||
			has_privs_of_role(frame.caller, ROLE_PG_MONITOR))
		{
			MemoryContext spi = MemoryContextSwitchTo(old);
			int64	   *copy = palloc(sizeof(int64));

			*copy = id;
			ids = lappend(ids, copy);
			MemoryContextSwitchTo(spi);
		}
	}
	etl_sql_leave(&frame);
	return ids;
}

static bool
is_visible(List *ids, int64 id)
{
	ListCell   *lc;

	foreach(lc, ids)
	{
		if (*(int64 *) lfirst(lc) == id)
			return true;
	}
	return false;
}

/*
 * Columns of one pipeline.  Works on a copy of the entry, taken under its
 * locks; the atomics are read from the original.
 */
static void
build_pipeline(EtlRowBuilder *row, EtlPipelineShared *shared, const EtlPipelineShared *copy)
{
	row->n = 0;
	add(row, Int64GetDatum(copy->id), false);
	add_text(row, etl_pipeline_state_name(copy->state));
	add_text(row, etl_waiting_for_name(copy->waiting_for));
	add(row, BoolGetDatum(copy->wanted), false);
	add(row, Int32GetDatum(copy->apply_pid), copy->apply_pid == 0);
	add(row, Int32GetDatum(copy->writer_pid), copy->writer_pid == 0);
	add_lsn(row, pg_atomic_read_u64(&shared->decoded_lsn));
	add_lsn(row, pg_atomic_read_u64(&shared->durable_lsn));
	add_lsn(row, pg_atomic_read_u64(&shared->confirmed_lsn));
	add_time(row, copy->oldest_undelivered);
	add_time(row, copy->last_progress);
	add_time(row, copy->waiting_since);
	add_int64(row, &shared->transactions);
	add_int64(row, &shared->changes);
	add_int64(row, &shared->rows_copied);
	add_int64(row, &shared->bytes_sent);
	add_int64(row, &shared->batches);
	add_int64(row, &shared->retries);
	add_time(row, (TimestampTz) pg_atomic_read_u64(&shared->last_commit_time));
	add_time(row, (TimestampTz) pg_atomic_read_u64(&shared->last_delivery_time));
	add_sqlstate(row, copy->last_sqlstate);
	add_text(row, copy->last_error);
	add_time(row, copy->last_error_time);
	add_time(row, copy->next_retry_time);
	add(row, BoolGetDatum(copy->endpoint_trouble), false);
	add(row, BoolGetDatum(copy->slot_lost), false);
	add_sqlstate(row, copy->failed_sqlstate);
	add_text(row, copy->failed_message);
	add_text(row, copy->failed_hint);
	add(row, Int64GetDatum((int64) copy->incarnation), false);
	Assert(row->n == PIPELINE_COLUMNS);
}

/*
 * etl.shared_pipelines()
 */
Datum
etl_shared_pipelines(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *ids;
	EtlPipelineShared *copy;

	etl_sql_rows(fcinfo, PIPELINE_COLUMNS);
	if (etl_shared == NULL)
		return (Datum) 0;
	ids = visible_pipelines();
	copy = palloc(sizeof(EtlPipelineShared));

	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *shared = &etl_shared->pipelines[i];
		EtlRowBuilder row;

		LWLockAcquire(&etl_shared->lock, LW_SHARED);
		LWLockAcquire(&shared->lock, LW_SHARED);
		memcpy(copy, shared, sizeof(EtlPipelineShared));
		LWLockRelease(&shared->lock);
		LWLockRelease(&etl_shared->lock);

		if (!copy->in_use || copy->database != MyDatabaseId || !is_visible(ids, copy->id))
			continue;
		build_pipeline(&row, shared, copy);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
	return (Datum) 0;
}

static void
build_table(EtlRowBuilder *row, int64 pipeline_id, EtlTableSlot *shared, const EtlTableSlot *copy)
{
	row->n = 0;
	add(row, Int64GetDatum(pipeline_id), false);
	add(row, ObjectIdGetDatum(copy->relid), false);
	add_text(row, etl_table_state_name(copy->state));
	add_text(row, etl_recovery_name(copy->recovery));
	add(row, Int64GetDatum((int64) copy->generation), false);
	add_lsn(row, copy->owned[0].generation != 0 ? copy->owned[0].owned_from : InvalidXLogRecPtr);
	add_int64(row, &shared->rows_copied);
	add_int64(row, &shared->rows_estimated);
	add_int64(row, &shared->bytes_copied);
	add_int64(row, &shared->inserts);
	add_int64(row, &shared->updates);
	add_int64(row, &shared->deletes);
	add_int64(row, &shared->truncates);
	add_time(row, (TimestampTz) pg_atomic_read_u64(&shared->last_change_time));
	add_lsn(row, pg_atomic_read_u64(&shared->last_delivered_lsn));
	add_sqlstate(row, copy->sqlstate);
	add_lsn(row, copy->error_lsn);
	Assert(row->n == TABLE_COLUMNS);
}

/* One pipeline's tables, copied under its lock so that no output runs there. */
static void
put_tables(ReturnSetInfo *rsinfo, int64 id, int index, EtlTableSlot *copies, int *indexes)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[index];
	int			n = 0;

	LWLockAcquire(&pipeline->lock, LW_SHARED);
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		if (etl_shared->tables[i].pipeline != index)
			continue;
		memcpy(&copies[n], &etl_shared->tables[i], sizeof(EtlTableSlot));
		indexes[n++] = i;
	}
	LWLockRelease(&pipeline->lock);

	for (int i = 0; i < n; i++)
	{
		EtlRowBuilder row;

		build_table(&row, id, &etl_shared->tables[indexes[i]], &copies[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row.values, row.nulls);
	}
}

/*
 * etl.shared_tables()
 */
Datum
etl_shared_tables(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *ids;
	EtlTableSlot *copies;
	int		   *indexes;

	etl_sql_rows(fcinfo, TABLE_COLUMNS);
	if (etl_shared == NULL)
		return (Datum) 0;
	ids = visible_pipelines();
	copies = palloc_extended(sizeof(EtlTableSlot) * etl_shared->ntables, MCXT_ALLOC_HUGE);
	indexes = palloc(sizeof(int) * etl_shared->ntables);

	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];
		bool		show;
		int64		id;

		LWLockAcquire(&etl_shared->lock, LW_SHARED);
		show = pipeline->in_use && pipeline->database == MyDatabaseId;
		id = pipeline->id;
		LWLockRelease(&etl_shared->lock);
		if (show && is_visible(ids, id))
			put_tables(rsinfo, id, i, copies, indexes);
	}
	pfree(copies);
	pfree(indexes);
	return (Datum) 0;
}

/*
 * etl.shared_server(): is somebody there who acts on requests, and is there
 * room for another pipeline?
 */
Datum
etl_shared_server(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, true, false};
	bool		full = false;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	etl_sql_check_row_type(desc, lengthof(values));
	values[0] = BoolGetDatum(etl_shared != NULL);
	if (etl_shared != NULL)
	{
		full = true;
		LWLockAcquire(&etl_shared->lock, LW_SHARED);
		values[1] = Int32GetDatum(etl_shared->launcher_pid);
		nulls[1] = etl_shared->launcher == NULL;
		for (int i = 0; i < etl_shared->npipelines; i++)
			full = full && etl_shared->pipelines[i].in_use;
		LWLockRelease(&etl_shared->lock);
	}
	values[2] = BoolGetDatum(full);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
