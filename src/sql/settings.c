/*-------------------------------------------------------------------------
 *
 * settings.c
 *	  Rows of etl.settings: definitions of options and values in force.
 *
 * The settings etl.<name> themselves come from pg_settings in the view.  Here
 * are the options: for every kind of destination what it knows, and for every
 * pipeline that the caller may see what is in force and where it comes from.
 * Values of user mappings are never shown.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "catalog/config.h"
#include "catalog/options.h"
#include "destination/registry.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_option_rows);
PG_FUNCTION_INFO_V1(etl_option_number);

#define OPTION_COLUMNS	10

static bool
has_range(const EtlOptionDef *def)
{
	return def->type == ETL_OPTION_INT || def->type == ETL_OPTION_SIZE || def->type == ETL_OPTION_TIME;
}

static void
set_text(Datum *values, bool *nulls, int column, const char *value)
{
	nulls[column] = value == NULL;
	if (value != NULL)
		values[column] = CStringGetTextDatum(value);
}

static Datum
enum_array(const EtlOptionDef *def)
{
	ArrayBuildState *state = NULL;

	for (const char *const *value = def->enumvals; *value != NULL; value++)
		state = accumArrayResult(state, CStringGetTextDatum(*value), false, TEXTOID, CurrentMemoryContext);
	return makeArrayResult(state, CurrentMemoryContext);
}

/* One option in one scope; "defaults" has nothing set. */
static void
put_option(ReturnSetInfo *rsinfo, const char *scope, const EtlOptionDef *def,
		   const EtlOptions *options, const EtlOptions *defaults)
{
	Datum		values[OPTION_COLUMNS] = {0};
	bool		nulls[OPTION_COLUMNS] = {0};

	set_text(values, nulls, 0, scope);
	set_text(values, nulls, 1, def->name);
	set_text(values, nulls, 2, (def->flags & ETL_OPTION_SECRET) == 0 ? etl_option_text(options, def->name) : NULL);
	set_text(values, nulls, 3, etl_option_unit(def));
	set_text(values, nulls, 4, etl_option_source_name(etl_option_source(options, def->name)));
	set_text(values, nulls, 5, etl_option_text(defaults, def->name));
	set_text(values, nulls, 6, has_range(def) ? psprintf("%lld", (long long) def->min) : NULL);
	set_text(values, nulls, 7, has_range(def) ? psprintf("%lld", (long long) def->max) : NULL);
	nulls[8] = def->enumvals == NULL;
	if (def->enumvals != NULL)
		values[8] = enum_array(def);
	set_text(values, nulls, 9, def->comment);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_kind(ReturnSetInfo *rsinfo, const EtlDestinationRoutine *routine)
{
	EtlOptions *defaults = etl_options_create(routine);
	char	   *scope = psprintf("kind %s", routine->kind);
	ListCell   *lc;

	foreach(lc, etl_option_defs(routine, ~ETL_SCOPE_SETTING & 0xFF))
		put_option(rsinfo, scope, lfirst(lc), defaults, defaults);
}

/*
 * What is in force for one pipeline.  One whose server is gone has nothing in
 * force.
 */
static void
put_pipeline(ReturnSetInfo *rsinfo, const char *name, const char *server_name, Jsonb *values)
{
	ForeignServer *server = GetForeignServerByName(server_name, true);
	const EtlDestinationRoutine *routine;
	EtlOptions *defaults;
	EtlOptions *options;
	char	   *scope = psprintf("pipeline %s", name);
	ListCell   *lc;

	if (server == NULL || (routine = etl_routine_for_wrapper(server->fdwid, true)) == NULL)
		return;
	defaults = etl_options_create(routine);
	options = etl_options_create(routine);
	etl_options_set_list(options, server->options, ETL_SOURCE_SERVER);
	etl_options_set_json(options, values, ETL_SOURCE_PIPELINE);
	foreach(lc, etl_option_defs(routine, ETL_SCOPE_SERVER | ETL_SCOPE_PIPELINE))
		put_option(rsinfo, scope, lfirst(lc), options, defaults);
}

/* What a table or a column sets itself. */
static void
put_own(ReturnSetInfo *rsinfo, const char *scope, const EtlDestinationRoutine *routine,
		Jsonb *values, EtlOptionSource source)
{
	EtlOptions *defaults = etl_options_create(routine);
	EtlOptions *options = etl_options_create(routine);
	ListCell   *lc;

	etl_options_set_json(options, values, source);
	foreach(lc, etl_option_defs(routine, source == ETL_SOURCE_TABLE ? ETL_SCOPE_TABLE : ETL_SCOPE_COLUMN))
	{
		EtlOptionDef *def = lfirst(lc);

		if (etl_option_source(options, def->name) == source)
			put_option(rsinfo, scope, def, options, defaults);
	}
}

static void
put_table(ReturnSetInfo *rsinfo, const char *name, const char *table, const char *server_name,
		  Jsonb *values, Jsonb *columns)
{
	ForeignServer *server = GetForeignServerByName(server_name, true);
	const EtlDestinationRoutine *routine;
	char	   *scope = psprintf("pipeline %s, table %s", name, table);
	JsonbIterator *it = JsonbIteratorInit(&columns->root);
	JsonbIteratorToken token;
	JsonbValue	item;
	char	   *column = NULL;

	if (server == NULL || (routine = etl_routine_for_wrapper(server->fdwid, true)) == NULL)
		return;
	put_own(rsinfo, scope, routine, values, ETL_SOURCE_TABLE);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			column = pnstrdup(item.val.string.val, item.val.string.len);
		else if (token == WJB_VALUE && item.type == jbvBinary)
			put_own(rsinfo, psprintf("%s, column %s", scope, quote_identifier(column)),
					routine, JsonbValueToJsonb(&item), ETL_SOURCE_COLUMN);
	}
}

/* Run a query whose second column is the owner, and call back for visible rows. */
static void
put_visible(ReturnSetInfo *rsinfo, const EtlSqlFrame *frame, const char *query, bool tables)
{
	uint64		nrows = etl_sql_run(query, 0, NULL, NULL, NULL);
	SPITupleTable *rows = SPI_tuptable;

	for (uint64 i = 0; i < nrows; i++)
	{
		HeapTuple	tuple = rows->vals[i];
		TupleDesc	desc = rows->tupdesc;
		bool		isnull;
		Oid			owner = DatumGetObjectId(SPI_getbinval(tuple, desc, 2, &isnull));
		char	   *name = TextDatumGetCString(SPI_getbinval(tuple, desc, 1, &isnull));
		char	   *server = NameStr(*DatumGetName(SPI_getbinval(tuple, desc, 3, &isnull)));
		Jsonb	   *values = DatumGetJsonbP(SPI_getbinval(tuple, desc, 4, &isnull));

		if (!has_privs_of_role(frame->caller, owner) &&
			!has_privs_of_role(frame->caller, ROLE_PG_MONITOR))
			continue;
		if (tables)
			put_table(rsinfo, name, TextDatumGetCString(SPI_getbinval(tuple, desc, 5, &isnull)),
					  server, values, DatumGetJsonbP(SPI_getbinval(tuple, desc, 6, &isnull)));
		else
			put_pipeline(rsinfo, name, server, values);
	}
}

/*
 * etl.option_rows()
 */
Datum
etl_option_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	EtlSqlFrame frame;
	ListCell   *lc;

	etl_sql_rows(fcinfo, OPTION_COLUMNS);
	etl_sql_enter(&frame);
	foreach(lc, etl_routine_list())
		put_kind(rsinfo, lfirst(lc));
	put_visible(rsinfo, &frame,
				"SELECT name, owner::oid, server, options FROM etl.pipeline ORDER BY name", false);
	put_visible(rsinfo, &frame,
				"SELECT p.name, p.owner::oid, p.server, t.options,"
				" format('%I.%I', t.schema_name, t.table_name), t.columns"
				" FROM etl.table_option t JOIN etl.pipeline p ON p.id = t.pipeline_id"
				" ORDER BY p.name, t.schema_name, t.table_name", true);
	etl_sql_leave(&frame);
	return (Datum) 0;
}

/*
 * etl.option_number(options, name): number of a general option (base unit)
 * that a pipeline's own options set, else the setting's, else the default.
 */
Datum
etl_option_number(PG_FUNCTION_ARGS)
{
	Jsonb	   *values = PG_GETARG_JSONB_P(0);
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(1));
	const EtlOptionDef *def = etl_option_find(NULL, name, ETL_SCOPE_PIPELINE);
	JsonbValue *value;
	int64		number;

	if (def == NULL)
		PG_RETURN_NULL();
	value = getKeyJsonValueFromContainer(&values->root, name, strlen(name), NULL);
	if (value != NULL && value->type != jbvNull)
		(void) etl_option_parse_json(def, value, &number);
	else
		number = etl_option_int(etl_options_create(NULL), name);
	PG_RETURN_INT64(number);
}
