/*-------------------------------------------------------------------------
 *
 * table_options.c
 *	  Options of single tables and columns.
 *
 * They are stored by name (etl.table_option), so that they are dumped and can
 * be given before the pipeline's first start.  What can be known now is
 * refused now: a table that exists is looked at with the options as they
 * would be, by the functions that will make it at the destination.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "catalog/options.h"
#include "compat.h"
#include "schema/shape.h"
#include "source/rules.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_alter_table);
PG_FUNCTION_INFO_V1(etl_alter_column);

/* A table whose options are to be changed. */
typedef struct Target
{
	const EtlPipelineRow *pipeline;
	const EtlDestinationRoutine *routine;
	Relation	relation;
	NameData	schema;
	NameData	table;
	Jsonb	   *options;		/* as stored */
	Jsonb	   *columns;
} Target;

/* Open an ordinary table; ERROR for anything else. */
static Relation
open_table(Oid relid)
{
	Relation	relation = try_relation_open(relid, AccessShareLock);

	if (relation == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (relation->rd_rel->relkind != RELKIND_RELATION &&
		relation->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", RelationGetRelationName(relation))));
	return relation;
}

/*
 * The table, its pipeline, and what is stored.  The lock on the pipeline's
 * row keeps others from changing it meanwhile.
 */
static void
open_target(Target *target, const EtlSqlFrame *frame, const char *pipeline, Oid relid)
{
	Oid			types[] = {INT8OID, NAMEOID, NAMEOID};
	Datum		values[3];
	bool		isnull;

	target->pipeline = etl_sql_find_pipeline(frame, pipeline, true, false);
	etl_sql_refuse_dropping(target->pipeline);
	target->relation = open_table(relid);
	namestrcpy(&target->table, RelationGetRelationName(target->relation));
	namestrcpy(&target->schema, get_namespace_name(RelationGetNamespace(target->relation)));

	target->options = etl_sql_empty_object();
	target->columns = etl_sql_empty_object();
	values[0] = Int64GetDatum(target->pipeline->id);
	values[1] = NameGetDatum(&target->schema);
	values[2] = NameGetDatum(&target->table);
	if (etl_sql_run("SELECT options, columns FROM etl.table_option"
					" WHERE pipeline_id = $1 AND schema_name = $2 AND table_name = $3",
					3, types, values, NULL) > 0)
	{
		HeapTuple	row = SPI_tuptable->vals[0];

		target->options = DatumGetJsonbPCopy(SPI_getbinval(row, SPI_tuptable->tupdesc, 1, &isnull));
		target->columns = DatumGetJsonbPCopy(SPI_getbinval(row, SPI_tuptable->tupdesc, 2, &isnull));
	}
	target->routine = etl_sql_routine(target->pipeline->server, frame->caller);
}

static void
store_target(Target *target)
{
	Oid			types[] = {INT8OID, NAMEOID, NAMEOID, JSONBOID, JSONBOID};
	Datum		values[] = {
		Int64GetDatum(target->pipeline->id), NameGetDatum(&target->schema),
		NameGetDatum(&target->table), JsonbPGetDatum(target->options),
		JsonbPGetDatum(target->columns)
	};

	etl_sql_run("INSERT INTO etl.table_option (pipeline_id, schema_name, table_name, options, columns)"
				" VALUES ($1, $2, $3, $4, $5)"
				" ON CONFLICT (pipeline_id, schema_name, table_name)"
				" DO UPDATE SET options = excluded.options, columns = excluded.columns",
				5, types, values, NULL);
	etl_sql_run("DELETE FROM etl.table_option"
				" WHERE pipeline_id = $1 AND schema_name = $2 AND table_name = $3"
				" AND options = '{}' AND columns = '{}'",
				3, types, values, NULL);
	relation_close(target->relation, AccessShareLock);
}

/* ----------
 * What the destination says to it
 * ----------
 */

static EtlOptions *
in_force(const Target *target, Jsonb *options, Jsonb *columns)
{
	return etl_sql_options_in_force(target->routine, target->pipeline->server,
									target->pipeline->options, options, columns);
}

/* The table as it is published, or would be. */
static EtlShape *
published_shape(const Target *target)
{
	EtlRule    *rule = etl_rules_read_relation(target->pipeline->publication,
											   RelationGetRelid(target->relation),
											   InvalidXLogRecPtr);

	return etl_shape_build(target->relation, rule && rule->published ? rule->columns : NULL, true);
}

/*
 * May a table look like that?  What was wrong before is not this change's
 * fault, and does not keep anybody from mending it step by step.
 */
static void
check_shape(const Target *target, const EtlShape *shape, Jsonb *options, Jsonb *columns)
{
	EtlResult	before = {.status = ETL_DONE};
	EtlResult	after = {.status = ETL_DONE};

	if (target->routine->check_table == NULL)
		return;
	target->routine->check_table(shape, in_force(target, options, columns), &after);
	if (after.status == ETL_DONE)
		return;
	target->routine->check_table(shape, in_force(target, target->options, target->columns), &before);
	if (before.status == ETL_DONE || strcmp(before.message, after.message) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s", after.message),
				 after.hint[0] ? errhint("%s", after.hint) : 0));
}

/* Its name there, or NULL where columns have none. */
static const char *
name_there(const Target *target, const EtlShape *shape, const EtlColumn *column,
		   const EtlOptions *options)
{
	EtlColumnPlan plan = {0};

	if (target->routine->describe_column == NULL ||
		(target->routine->abilities & ETL_HAS_SCHEMAS) == 0)
		return NULL;
	target->routine->describe_column(shape, column, options, &plan);
	return plan.name;
}

/* Two published columns must not get one name. */
static void
check_name(const Target *target, const EtlColumn *column, const EtlOptions *options)
{
	EtlShape   *shape = published_shape(target);
	const char *name = name_there(target, shape, column, options);

	if (name == NULL || etl_shape_column(shape, column->attnum) == NULL)
		return;
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *other = &shape->columns[i];

		if (other->attnum != column->attnum &&
			strcmp(name_there(target, shape, other, options), name) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("columns \"%s\" and \"%s\" would both be named \"%s\" at the destination",
							column->name, other->name, name)));
	}
}

/* The type must be one that the column can be written as. */
static void
check_type(const Target *target, const EtlShape *shape, const EtlColumn *column,
		   const EtlOptions *options)
{
	EtlValueError error = {0};
	EtlValueError ignored = {0};
	const char *type;

	if (target->routine->map_column == NULL ||
		target->routine->map_column(shape, column, options, &error) != NULL)
		return;
	type = target->routine->map_column(shape, column,
									   in_force(target, target->options, NULL), &ignored);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s", error.message),
			 type ? errhint("Without option destination_type its type is %s.", type) : 0));
}

/* Can the column be what its options say? */
static void
check_column(const Target *target, AttrNumber attnum, Jsonb *columns)
{
	EtlShape   *shape = etl_shape_build(target->relation, NULL, true);
	EtlOptions *options = in_force(target, target->options, columns);
	EtlShape	alone = *shape;
	EtlColumn	column;

	if (etl_shape_column(shape, attnum) == NULL)
		return;					/* of a sort that is never replicated */
	column = *etl_shape_column(shape, attnum);
	check_type(target, shape, &column, options);
	check_name(target, &column, options);

	/* whatever else is wrong with the table, is this column all right? */
	alone.ncolumns = 1;
	alone.columns = &column;
	check_shape(target, &alone, target->options, columns);
}

/* ----------
 * Tables
 * ----------
 */

/*
 * etl.alter_table(pipeline, target, options)
 */
Datum
etl_alter_table(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	Oid			relid = etl_sql_oid_arg(fcinfo, 1, "target");
	Jsonb	   *options = etl_sql_jsonb_arg(fcinfo, 2, "options");
	EtlSqlFrame frame;
	Target		target;

	etl_sql_require_role();
	etl_sql_enter(&frame);
	open_target(&target, &frame, name, relid);

	/* what the caller may set is the caller's question, not the owner's */
	etl_sql_suspend(&frame);
	options = etl_sql_check_options(target.routine, target.options, options, ETL_SCOPE_TABLE);
	etl_sql_resume(&frame);
	check_shape(&target, published_shape(&target), options, target.columns);

	target.options = options;
	store_target(&target);
	etl_sql_leave(&frame);
	etl_sql_look();
	PG_RETURN_VOID();
}

/* ----------
 * Columns
 * ----------
 */

static AttrNumber
find_column(const Target *target, const char *name)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(target->relation), name);

	if (attnum == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of table %s does not exist", name,
						etl_sql_table_name(RelationGetRelid(target->relation)))));
	if (attnum < 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("system column \"%s\" is not replicated", name)));
	return attnum;
}

/* Options of one column as stored; an empty object when it has none. */
static Jsonb *
column_options(Jsonb *columns, const char *name)
{
	JsonbValue *value = getKeyJsonValueFromContainer(&columns->root, name, strlen(name), NULL);

	return value && value->type == jbvBinary ? JsonbValueToJsonb(value) : etl_sql_empty_object();
}

/* "columns" with these options of one column, or without it if it has none. */
static Jsonb *
with_column(Jsonb *columns, const char *name, Jsonb *options)
{
	JsonbParseState *state = NULL;
	JsonbValue	key;
	JsonbValue	value;

	key.type = jbvString;
	key.val.string.val = unconstify(char *, name);
	key.val.string.len = strlen(name);
	value.type = jbvNull;
	if (JB_ROOT_COUNT(options) > 0)
	{
		value.type = jbvBinary;
		value.val.binary.data = &options->root;
		value.val.binary.len = VARSIZE(options) - VARHDRSZ;
	}
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	pushJsonbValue(&state, WJB_KEY, &key);
	pushJsonbValue(&state, WJB_VALUE, &value);
	return etl_options_merge(columns, JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

/*
 * etl.alter_column(pipeline, target, column_name, options)
 */
Datum
etl_alter_column(PG_FUNCTION_ARGS)
{
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	Oid			relid = etl_sql_oid_arg(fcinfo, 1, "target");
	Jsonb	   *options = etl_sql_jsonb_arg(fcinfo, 3, "options");
	const char *column;
	AttrNumber	attnum;
	Jsonb	   *columns;
	EtlSqlFrame frame;
	Target		target;

	etl_sql_require_arg(fcinfo, 2, "column_name");
	column = NameStr(*PG_GETARG_NAME(2));
	etl_sql_require_role();
	etl_sql_enter(&frame);
	open_target(&target, &frame, name, relid);
	attnum = find_column(&target, column);

	etl_sql_suspend(&frame);
	options = etl_sql_check_options(target.routine, column_options(target.columns, column),
									options, ETL_SCOPE_COLUMN);
	etl_sql_resume(&frame);
	columns = with_column(target.columns, column, options);
	check_column(&target, attnum, columns);

	target.columns = columns;
	store_target(&target);
	etl_sql_leave(&frame);
	etl_sql_look();
	PG_RETURN_VOID();
}
