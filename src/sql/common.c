/*-------------------------------------------------------------------------
 *
 * common.c
 *	  The frame of SQL-callable functions: arguments, rights, role switch.
 *
 * The switch to the extension's owner is what lets a role with EXECUTE write
 * tables that nobody has rights on.  search_path is pinned with it: whatever
 * runs as the owner must not find a caller's operator.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "catalog/config.h"
#include "catalog/options.h"
#include "compat.h"
#include "destination/registry.h"
#include "server/request.h"
#include "server/shmem.h"
#include "sql/common.h"

static Oid
extension_owner(void)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			owner = InvalidOid;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("etl"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		owner = ((Form_pg_extension) GETSTRUCT(tuple))->extowner;
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	if (!OidIsValid(owner))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" does not exist", "etl"),
				 errhint("Run CREATE EXTENSION etl in this database.")));
	return owner;
}

void
etl_sql_enter(EtlSqlFrame *frame)
{
	frame->owner = extension_owner();
	GetUserIdAndSecContext(&frame->caller, &frame->security_context);
	frame->guc_level = NewGUCNestLevel();
	etl_sql_resume(frame);
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
}

void
etl_sql_leave(EtlSqlFrame *frame)
{
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
	AtEOXact_GUC(false, frame->guc_level);
	SetUserIdAndSecContext(frame->caller, frame->security_context);
}

void
etl_sql_suspend(const EtlSqlFrame *frame)
{
	SetUserIdAndSecContext(frame->caller, frame->security_context);
}

void
etl_sql_resume(const EtlSqlFrame *frame)
{
	SetUserIdAndSecContext(frame->owner, frame->security_context | SECURITY_LOCAL_USERID_CHANGE);
}

void
etl_sql_require_role(void)
{
	if (!superuser() && !has_rolreplication(GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be superuser or replication role to manage pipelines"),
				 errhint("ALTER ROLE ... REPLICATION gives a role the right.")));
}

void
etl_sql_require_arg(FunctionCallInfo fcinfo, int number, const char *name)
{
	if (PG_ARGISNULL(number))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"%s\" must not be null", name)));
}

char *
etl_sql_text_arg(FunctionCallInfo fcinfo, int number, const char *name)
{
	etl_sql_require_arg(fcinfo, number, name);
	return text_to_cstring(PG_GETARG_TEXT_PP(number));
}

bool
etl_sql_bool_arg(FunctionCallInfo fcinfo, int number, const char *name)
{
	etl_sql_require_arg(fcinfo, number, name);
	return PG_GETARG_BOOL(number);
}

Oid
etl_sql_oid_arg(FunctionCallInfo fcinfo, int number, const char *name)
{
	etl_sql_require_arg(fcinfo, number, name);
	return PG_GETARG_OID(number);
}

Jsonb *
etl_sql_jsonb_arg(FunctionCallInfo fcinfo, int number, const char *name)
{
	etl_sql_require_arg(fcinfo, number, name);
	return PG_GETARG_JSONB_P(number);
}

void
etl_sql_check_name(const char *name, const char *what)
{
	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("%s name must not be empty", what)));
	if (strlen(name) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("%s name \"%s\" is too long", what, name),
				 errdetail("Names have at most %d bytes.", NAMEDATALEN - 1)));
}

/*
 * The newest committed rows, also in a transaction with an old snapshot: who
 * waits for a pipeline asks for the world outside.
 */
static uint64
run_latest(const char *query, int nargs, Oid *types, Datum *values)
{
	int			result;

	PushActiveSnapshot(GetLatestSnapshot());
	result = SPI_execute_with_args(query, nargs, types, values, NULL, true, 0);
	PopActiveSnapshot();
	if (result < 0)
		elog(ERROR, "query of etl failed: %s", SPI_result_code_string(result));
	return SPI_processed;
}

uint64
etl_sql_run(const char *query, int nargs, Oid *types, Datum *values, const char *nulls)
{
	int			result = SPI_execute_with_args(query, nargs, types, values, nulls, false, 0);

	if (result < 0)
		elog(ERROR, "query of etl failed: %s", SPI_result_code_string(result));
	return SPI_processed;
}

Datum
etl_sql_value(bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, isnull);
}

/* A publication that was renamed while nobody ran has its name from its OID. */
#define PIPELINE_QUERY \
	"SELECT p.id, p.owner::oid, p.server, p.options, i.enabled, i.dropping," \
	"  coalesce(u.pubname, p.publication)" \
	" FROM etl.pipeline p LEFT JOIN etl.pipeline_intent i ON i.pipeline_id = p.id" \
	" LEFT JOIN etl.pipeline_state s ON s.pipeline_id = p.id" \
	" LEFT JOIN pg_catalog.pg_publication u ON u.oid = s.publication_oid" \
	" WHERE p.name = $1"

EtlPipelineRow *
etl_sql_find_pipeline(const EtlSqlFrame *frame, const char *name, bool lock, bool missing_ok)
{
	Oid			types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(name)};
	EtlPipelineRow *row;
	HeapTuple	tuple;
	TupleDesc	desc;
	bool		isnull;
	uint64		found;

	if (lock)
		found = etl_sql_run(PIPELINE_QUERY " FOR NO KEY UPDATE OF p", 1, types, values, NULL);
	else
		found = run_latest(PIPELINE_QUERY, 1, types, values);
	if (found == 0)
	{
		if (missing_ok)
			return NULL;
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("pipeline \"%s\" does not exist", name),
				 errhint("The view etl.status shows your pipelines.")));
	}

	tuple = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	row = palloc0(sizeof(EtlPipelineRow));
	row->name = pstrdup(name);
	row->id = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
	row->owner = DatumGetObjectId(SPI_getbinval(tuple, desc, 2, &isnull));
	row->server = pstrdup(NameStr(*DatumGetName(SPI_getbinval(tuple, desc, 3, &isnull))));
	row->options = DatumGetJsonbPCopy(SPI_getbinval(tuple, desc, 4, &isnull));
	row->enabled = DatumGetBool(SPI_getbinval(tuple, desc, 5, &isnull)) && !isnull;
	row->dropping = DatumGetBool(SPI_getbinval(tuple, desc, 6, &isnull)) && !isnull;
	row->publication = pstrdup(NameStr(*DatumGetName(SPI_getbinval(tuple, desc, 7, &isnull))));

	if (!has_privs_of_role(frame->caller, row->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of pipeline \"%s\"", name)));
	return row;
}

void
etl_sql_refuse_dropping(const EtlPipelineRow *pipeline)
{
	if (pipeline->dropping)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pipeline \"%s\" is being dropped", pipeline->name),
				 errhint("Its name is free again once it has left etl.status.")));
}

void
etl_sql_check_row_type(TupleDesc desc, int ncolumns)
{
	if (desc->natts != ncolumns)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("SQL objects of extension \"etl\" do not fit its library"),
				 errhint("Run ALTER EXTENSION etl UPDATE.")));
}

void
etl_sql_rows(FunctionCallInfo fcinfo, int ncolumns)
{
	InitMaterializedSRF(fcinfo, 0);
	etl_sql_check_row_type(((ReturnSetInfo *) fcinfo->resultinfo)->setDesc, ncolumns);
}

void
etl_sql_look(void)
{
	if (etl_shared != NULL)
		etl_request_look();
}

char *
etl_sql_table_name(Oid relid)
{
	char	   *name = get_rel_name(relid);

	if (name == NULL)
		return psprintf("%u", relid);
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), name);
}

const EtlDestinationRoutine *
etl_sql_routine(const char *server_name, Oid caller)
{
	ForeignServer *server = GetForeignServerByName(server_name, true);
	const EtlDestinationRoutine *routine;
	AclResult	result;

	if (server == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("server \"%s\" does not exist", server_name),
				 errhint("Make a destination with CREATE SERVER ... FOREIGN DATA WRAPPER etl_webhook.")));
	routine = etl_routine_for_wrapper(server->fdwid, true);
	if (routine == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("server \"%s\" is not a destination of etl", server_name),
				 errhint("Use a server of one of the foreign-data wrappers of etl, for example etl_webhook.")));
	result = etl_server_aclcheck(server->serverid, caller);
	if (result != ACLCHECK_OK)
		aclcheck_error(result, OBJECT_FOREIGN_SERVER, server_name);
	return routine;
}

Jsonb *
etl_sql_empty_object(void)
{
	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}")));
}

static EtlOptionSource
source_of_scope(uint32 scope)
{
	switch (scope)
	{
		case ETL_SCOPE_TABLE:
			return ETL_SOURCE_TABLE;
		case ETL_SCOPE_COLUMN:
			return ETL_SOURCE_COLUMN;
		default:
			return ETL_SOURCE_PIPELINE;
	}
}

Jsonb *
etl_sql_check_options(const EtlDestinationRoutine *routine, Jsonb *old_options,
					  Jsonb *new_options, uint32 scope)
{
	Jsonb	   *merged;

	etl_options_check_json(routine, new_options, scope);
	merged = etl_options_merge(old_options, new_options);
	if (routine->validate_options != NULL)
	{
		EtlOptions *options = etl_options_create(routine);

		etl_options_set_json(options, merged, source_of_scope(scope));
		routine->validate_options(options, scope);
	}
	return merged;
}

EtlOptions *
etl_sql_options_in_force(const EtlDestinationRoutine *routine, const char *server_name,
						 Jsonb *pipeline, Jsonb *table, Jsonb *columns)
{
	ForeignServer *server = GetForeignServerByName(server_name, false);
	EtlOptions *options = etl_options_create(routine);

	etl_options_set_list(options, server->options, ETL_SOURCE_SERVER);
	etl_options_set_json(options, pipeline, ETL_SOURCE_PIPELINE);
	if (table != NULL)
		etl_options_set_json(options, table, ETL_SOURCE_TABLE);
	if (columns != NULL)
		etl_options_set_columns(options, columns);
	return options;
}

bool
etl_sql_table_refused(const EtlDestinationRoutine *routine, const EtlShape *shape,
					  const EtlOptions *options, EtlResult *result)
{
	for (int i = 0; i < shape->ncolumns && routine->map_column != NULL; i++)
	{
		EtlValueError error = {0};

		if (routine->map_column(shape, &shape->columns[i], options, &error) != NULL)
			continue;
		etl_result_set(result, ETL_PARK, error.sqlstate, "%s", error.message);
		return true;
	}
	if (routine->check_table != NULL)
		routine->check_table(shape, options, result);
	return result->status != ETL_DONE;
}
