/*-------------------------------------------------------------------------
 *
 * table_functions.c
 *	  Requests about tables: retry what is parked, copy again.
 *
 * A request is a counter that goes up in etl.table_intent (or
 * etl.pipeline_intent); workers compare it with the counter that they last
 * acted on.  So a request is never lost, nor overwritten by a running worker.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "server/request.h"
#include "server/shmem.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_retry_table);
PG_FUNCTION_INFO_V1(etl_resync_table);
PG_FUNCTION_INFO_V1(etl_resync_pipeline);

/*
 * Newest state of a table: shared memory while the pipeline is there, else
 * what is stored.
 */
static EtlTableState
current_state(int64 pipeline_id, Oid relid, const char *stored)
{
	EtlTableState state = etl_table_state_from_name(stored);
	EtlPipelineShared *pipeline;

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	pipeline = etl_shmem_find_pipeline(MyDatabaseId, pipeline_id);
	if (pipeline != NULL)
	{
		int			index = etl_shmem_pipeline_index(pipeline);

		LWLockAcquire(&pipeline->lock, LW_SHARED);
		for (int i = 0; i < etl_shared->ntables; i++)
		{
			EtlTableSlot *slot = &etl_shared->tables[i];

			if (slot->pipeline == index && slot->relid == relid)
			{
				state = (EtlTableState) slot->state;
				break;
			}
		}
		LWLockRelease(&pipeline->lock);
	}
	LWLockRelease(&etl_shared->lock);
	return state;
}

/* State of a table that the pipeline must know: ERROR 42704 if it does not. */
static EtlTableState
tracked_state(const EtlPipelineRow *pipeline, Oid relid)
{
	Oid			types[] = {INT8OID, OIDOID};
	Datum		values[] = {Int64GetDatum(pipeline->id), ObjectIdGetDatum(relid)};
	bool		isnull;

	if (etl_sql_run("SELECT state FROM etl.table_state WHERE pipeline_id = $1 AND relid = $2",
					2, types, values, NULL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table %s is not known to pipeline \"%s\"", etl_sql_table_name(relid), pipeline->name),
				 errhint("The view etl.table_status shows the tables of a pipeline once it has been started.")));
	return current_state(pipeline->id, relid, TextDatumGetCString(etl_sql_value(&isnull)));
}

static void
request_retry(int64 pipeline_id, Oid relid)
{
	Oid			types[] = {INT8OID, OIDOID};
	Datum		values[] = {Int64GetDatum(pipeline_id), ObjectIdGetDatum(relid)};

	etl_sql_run("INSERT INTO etl.table_intent AS i (pipeline_id, relid, retry_requests) VALUES ($1, $2, 1)"
				" ON CONFLICT (pipeline_id, relid) DO UPDATE SET retry_requests = i.retry_requests + 1",
				2, types, values, NULL);
}

/* Request a retry of every parked table; returns how many there are. */
static int
retry_all(const EtlPipelineRow *pipeline)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(pipeline->id)};
	SPITupleTable *rows;
	uint64		nrows;
	int			count = 0;

	nrows = etl_sql_run("SELECT relid, state FROM etl.table_state WHERE pipeline_id = $1 ORDER BY relid",
						1, types, values, NULL);
	rows = SPI_tuptable;
	for (uint64 i = 0; i < nrows; i++)
	{
		bool		isnull;
		Oid			relid = DatumGetObjectId(SPI_getbinval(rows->vals[i], rows->tupdesc, 1, &isnull));
		char	   *stored = TextDatumGetCString(SPI_getbinval(rows->vals[i], rows->tupdesc, 2, &isnull));

		if (current_state(pipeline->id, relid, stored) == ETL_TABLE_ERRORED)
		{
			request_retry(pipeline->id, relid);
			count++;
		}
	}
	return count;
}

/*
 * etl.retry_table(pipeline, target)
 */
Datum
etl_retry_table(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	EtlPipelineRow *pipeline;
	EtlSqlFrame frame;
	int			count = 0;

	etl_sql_require_role();
	etl_shmem_require();
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, true, false);
	etl_sql_refuse_dropping(pipeline);
	if (PG_ARGISNULL(1))
		count = retry_all(pipeline);
	else if (tracked_state(pipeline, PG_GETARG_OID(1)) == ETL_TABLE_ERRORED)
	{
		request_retry(pipeline->id, PG_GETARG_OID(1));
		count = 1;
	}
	etl_sql_leave(&frame);
	if (count > 0)
		etl_request_look();
	PG_RETURN_INT32(count);
}

/*
 * etl.resync_table(pipeline, target)
 */
Datum
etl_resync_table(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	Oid			relid = etl_sql_oid_arg(fcinfo, 1, "target");
	EtlPipelineRow *pipeline;
	EtlSqlFrame frame;
	EtlTableState state;
	Oid			types[] = {INT8OID, OIDOID};
	Datum		values[2];

	etl_sql_require_role();
	etl_shmem_require();
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, true, false);
	etl_sql_refuse_dropping(pipeline);
	state = tracked_state(pipeline, relid);
	if (state == ETL_TABLE_EXCLUDED || state == ETL_TABLE_DROPPED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s is not replicated by pipeline \"%s\"", etl_sql_table_name(relid), name),
				 errdetail("Its state is \"%s\".", etl_table_state_name(state)),
				 errhint("The view etl.table_status says why.")));

	values[0] = Int64GetDatum(pipeline->id);
	values[1] = ObjectIdGetDatum(relid);
	etl_sql_run("INSERT INTO etl.table_intent AS i (pipeline_id, relid, resync_requests) VALUES ($1, $2, 1)"
				" ON CONFLICT (pipeline_id, relid) DO UPDATE SET resync_requests = i.resync_requests + 1",
				2, types, values, NULL);
	etl_sql_leave(&frame);
	etl_request_look();
	PG_RETURN_VOID();
}

/*
 * etl.resync_pipeline(pipeline)
 *
 * Also the way out for a pipeline that failed because of its slot or identity:
 * so it counts as a request to start again, which a stopped one ignores.
 */
Datum
etl_resync_pipeline(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	EtlPipelineRow *pipeline;
	EtlSqlFrame frame;
	Oid			types[] = {INT8OID};
	Datum		values[1];

	etl_sql_require_role();
	etl_shmem_require();
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, true, false);
	etl_sql_refuse_dropping(pipeline);
	values[0] = Int64GetDatum(pipeline->id);
	etl_sql_run("INSERT INTO etl.pipeline_intent AS i (pipeline_id, resync_requests, start_requests) VALUES ($1, 1, 1)"
				" ON CONFLICT (pipeline_id) DO UPDATE SET resync_requests = i.resync_requests + 1,"
				"  start_requests = i.start_requests + 1",
				1, types, values, NULL);
	etl_sql_leave(&frame);
	etl_request_look();
	PG_RETURN_VOID();
}
