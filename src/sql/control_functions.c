/*-------------------------------------------------------------------------
 *
 * control_functions.c
 *	  What users want of a pipeline: start, stop, drop.
 *
 * All that is written is intent; it takes effect when the transaction
 * commits.  Each function needs the preloaded library, since somebody must
 * act on the intent.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "guc.h"
#include "server/request.h"
#include "server/shmem.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_start_pipeline);
PG_FUNCTION_INFO_V1(etl_stop_pipeline);
PG_FUNCTION_INFO_V1(etl_drop_pipeline);

/* What keeps every pipeline of this server from running: only a user helps. */
static void
warn_of_server(void)
{
	if (wal_level < WAL_LEVEL_LOGICAL)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("wal_level is not \"logical\": the pipeline waits for it"),
				 errhint("Set wal_level to \"logical\" and restart the server.")));
	if (!etl_enabled)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("\"etl.enabled\" is off: the pipeline waits for it"),
				 errhint("Set \"etl.enabled\" to on and reload the configuration.")));
}

/*
 * etl.start_pipeline(pipeline)
 *
 * Counts as a request each time: one for a failed pipeline makes it start
 * again, one for a running pipeline changes nothing.
 */
Datum
etl_start_pipeline(PG_FUNCTION_ARGS)
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
	(void) etl_sql_routine(pipeline->server, frame.caller);

	values[0] = Int64GetDatum(pipeline->id);
	etl_sql_run("INSERT INTO etl.pipeline_intent AS i (pipeline_id, enabled, start_requests)"
				" VALUES ($1, true, 1)"
				" ON CONFLICT (pipeline_id)"
				" DO UPDATE SET enabled = true, start_requests = i.start_requests + 1",
				1, types, values, NULL);
	etl_sql_leave(&frame);
	etl_request_look();
	warn_of_server();
	PG_RETURN_VOID();
}

/*
 * etl.stop_pipeline(pipeline)
 */
Datum
etl_stop_pipeline(PG_FUNCTION_ARGS)
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
	etl_sql_run("INSERT INTO etl.pipeline_intent (pipeline_id, enabled) VALUES ($1, false)"
				" ON CONFLICT (pipeline_id) DO UPDATE SET enabled = false",
				1, types, values, NULL);
	etl_sql_leave(&frame);
	etl_request_look();
	PG_RETURN_VOID();
}

/*
 * etl.drop_pipeline(pipeline, drop_tables, if_exists, force)
 *
 * Also for a pipeline that is being dropped already, which may get "force"
 * when its destination turns out to be gone.
 */
Datum
etl_drop_pipeline(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	bool		drop_tables = etl_sql_bool_arg(fcinfo, 1, "drop_tables");
	bool		if_exists = etl_sql_bool_arg(fcinfo, 2, "if_exists");
	bool		force = etl_sql_bool_arg(fcinfo, 3, "force");
	EtlPipelineRow *pipeline;
	EtlSqlFrame frame;
	Oid			types[] = {INT8OID, BOOLOID, BOOLOID};
	Datum		values[3];

	etl_sql_require_role();
	etl_shmem_require();
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, true, if_exists);
	if (pipeline == NULL)
	{
		etl_sql_leave(&frame);
		ereport(NOTICE,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pipeline \"%s\" does not exist, skipping", name)));
		PG_RETURN_VOID();
	}

	values[0] = Int64GetDatum(pipeline->id);
	values[1] = BoolGetDatum(drop_tables);
	values[2] = BoolGetDatum(force);
	etl_sql_run("INSERT INTO etl.pipeline_intent AS i (pipeline_id, enabled, dropping, drop_tables, force)"
				" VALUES ($1, false, true, $2, $3)"
				" ON CONFLICT (pipeline_id) DO UPDATE SET enabled = false, dropping = true,"
				"  drop_tables = excluded.drop_tables, force = excluded.force",
				3, types, values, NULL);
	etl_sql_leave(&frame);
	etl_request_look();
	PG_RETURN_VOID();
}
