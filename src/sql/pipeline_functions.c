/*-------------------------------------------------------------------------
 *
 * pipeline_functions.c
 *	  Definitions of pipelines: create, alter, rename.
 *
 * These write definitions alone and need no shared memory; when the library
 * is preloaded, the workers are asked to look at commit.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/syscache.h"

#include "compat.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_create_pipeline);
PG_FUNCTION_INFO_V1(etl_alter_pipeline);
PG_FUNCTION_INFO_V1(etl_rename_pipeline);

static void
check_publication(const char *name)
{
	if (!SearchSysCacheExists1(PUBLICATIONNAME, CStringGetDatum(name)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("publication \"%s\" does not exist", name),
				 errhint("Make one with CREATE PUBLICATION.")));
}

/*
 * What is written into every new definition.  A server of 18 and newer goes by
 * what the publication says of generated columns; a pipeline that was made
 * before keeps its shapes when it gets there.
 */
static Jsonb *
first_options(void)
{
	const char *text = ETL_PUBLICATION_SAYS_GENERATED ? "{}" : "{\"generated_columns\": true}";

	return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
}

/* ID of the pipeline of that name, or 0. */
static int64
existing_pipeline(const char *name)
{
	Oid			types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(name)};
	bool		isnull;

	if (etl_sql_run("SELECT id FROM etl.pipeline WHERE name = $1", 1, types, values, NULL) == 0)
		return 0;
	return DatumGetInt64(etl_sql_value(&isnull));
}

static bool
is_being_dropped(const char *name)
{
	Oid			types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(name)};

	return etl_sql_run("SELECT 1 FROM etl.pipeline p JOIN etl.pipeline_intent i ON i.pipeline_id = p.id"
					   " WHERE p.name = $1 AND i.dropping", 1, types, values, NULL) > 0;
}

/*
 * Insert the definition; 0 when the name is taken (also by a transaction that
 * we had to wait for).
 */
static int64
insert_pipeline(const char *name, Oid owner, Name publication, Name server, Jsonb *options)
{
	Oid			types[] = {TEXTOID, OIDOID, NAMEOID, NAMEOID, JSONBOID};
	Datum		values[] = {
		CStringGetTextDatum(name), ObjectIdGetDatum(owner), NameGetDatum(publication),
		NameGetDatum(server), JsonbPGetDatum(options)
	};
	Oid			id_type[] = {INT8OID};
	Datum		id[1];
	bool		isnull;

	if (etl_sql_run("INSERT INTO etl.pipeline (name, owner, publication, server, options)"
					" VALUES ($1, $2::regrole, $3, $4, $5)"
					" ON CONFLICT (name) DO NOTHING RETURNING id",
					5, types, values, NULL) == 0)
		return 0;
	id[0] = etl_sql_value(&isnull);
	etl_sql_run("INSERT INTO etl.pipeline_intent (pipeline_id) VALUES ($1)", 1, id_type, id, NULL);
	return DatumGetInt64(id[0]);
}

/*
 * etl.create_pipeline(pipeline, publication, destination, options, if_not_exists)
 */
Datum
etl_create_pipeline(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	bool		if_not_exists;
	const EtlDestinationRoutine *routine;
	Jsonb	   *options;
	EtlSqlFrame frame;
	int64		id;
	bool		dropping;

	etl_sql_require_arg(fcinfo, 1, "publication");
	etl_sql_require_arg(fcinfo, 2, "destination");
	options = etl_sql_jsonb_arg(fcinfo, 3, "options");
	if_not_exists = etl_sql_bool_arg(fcinfo, 4, "if_not_exists");
	etl_sql_require_role();
	etl_sql_check_name(name, "pipeline");

	etl_sql_enter(&frame);
	id = existing_pipeline(name);
	etl_sql_leave(&frame);
	if (id == 0)
	{
		check_publication(NameStr(*PG_GETARG_NAME(1)));
		routine = etl_sql_routine(NameStr(*PG_GETARG_NAME(2)), GetUserId());
		options = etl_sql_check_options(routine, first_options(), options, ETL_SCOPE_PIPELINE);

		etl_sql_enter(&frame);
		id = insert_pipeline(name, frame.caller, PG_GETARG_NAME(1), PG_GETARG_NAME(2), options);
		etl_sql_leave(&frame);
		if (id != 0)
		{
			etl_sql_look();
			PG_RETURN_INT64(id);
		}
		if (if_not_exists)
		{
			etl_sql_enter(&frame);
			id = existing_pipeline(name);
			etl_sql_leave(&frame);
		}
	}

	etl_sql_enter(&frame);
	dropping = is_being_dropped(name);
	etl_sql_leave(&frame);
	if (!if_not_exists || dropping)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("pipeline \"%s\" already exists", name),
				 dropping ? errdetail("It is being dropped.") : 0,
				 dropping ? errhint("Its name is free again once it has left etl.status.") : 0));
	ereport(NOTICE,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("pipeline \"%s\" already exists, skipping", name)));
	PG_RETURN_INT64(id);
}

/*
 * etl.alter_pipeline(pipeline, options)
 */
Datum
etl_alter_pipeline(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	Jsonb	   *options = etl_sql_jsonb_arg(fcinfo, 1, "options");
	EtlPipelineRow *pipeline;
	EtlSqlFrame frame;
	Oid			types[] = {INT8OID, JSONBOID};
	Datum		values[2];

	etl_sql_require_role();
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, true, false);
	etl_sql_refuse_dropping(pipeline);

	/* what the caller may set is the caller's question, not the owner's */
	etl_sql_suspend(&frame);
	options = etl_sql_check_options(etl_sql_routine(pipeline->server, frame.caller),
							pipeline->options, options, ETL_SCOPE_PIPELINE);
	etl_sql_resume(&frame);

	values[0] = Int64GetDatum(pipeline->id);
	values[1] = JsonbPGetDatum(options);
	etl_sql_run("UPDATE etl.pipeline SET options = $2 WHERE id = $1", 2, types, values, NULL);
	etl_sql_leave(&frame);
	etl_sql_look();
	PG_RETURN_VOID();
}

/*
 * etl.rename_pipeline(pipeline, new_name)
 */
Datum
etl_rename_pipeline(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	char	   *new_name = etl_sql_text_arg(fcinfo, 1, "new_name");
	EtlPipelineRow *pipeline;
	EtlSqlFrame frame;
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[2];

	etl_sql_require_role();
	etl_sql_check_name(new_name, "pipeline");
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, true, false);
	etl_sql_refuse_dropping(pipeline);
	if (existing_pipeline(new_name) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("pipeline \"%s\" already exists", new_name)));
	values[0] = Int64GetDatum(pipeline->id);
	values[1] = CStringGetTextDatum(new_name);
	etl_sql_run("UPDATE etl.pipeline SET name = $2 WHERE id = $1", 2, types, values, NULL);
	etl_sql_leave(&frame);
	etl_sql_look();
	PG_RETURN_VOID();
}
