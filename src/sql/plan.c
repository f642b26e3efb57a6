/*-------------------------------------------------------------------------
 *
 * plan.c
 *	  etl.plan(): what a start, or a new copy, would make of each table.
 *
 * Asks the functions that make the tables, with the catalogs and options of
 * now: no network, nothing is changed.  A table that would be set aside has no
 * rows, since nothing would be made; a NOTICE says why.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "catalog/config.h"
#include "schema/shape.h"
#include "source/rules.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_plan);

#define PLAN_COLUMNS	8

/* A table that is being planned. */
typedef struct TablePlan
{
	ReturnSetInfo *rsinfo;
	const EtlDestinationRoutine *routine;
	const EtlShape *shape;
	const EtlOptions *options;
	const char *destination_table;	/* NULL: the kind has no tables */
} TablePlan;

static void
put_text(Datum *values, bool *nulls, int column, const char *text)
{
	nulls[column] = text == NULL;
	if (text != NULL)
		values[column] = CStringGetTextDatum(text);
}

/*
 * One row: a column of the source, one that is the kind's own ("column"
 * NULL), or the table itself ("described" NULL, too).
 */
static void
put(const TablePlan *plan, const EtlColumn *column, const EtlColumnPlan *described, const char *ddl)
{
	Datum		values[PLAN_COLUMNS] = {0};
	bool		nulls[PLAN_COLUMNS] = {0};
	NameData	name;

	values[0] = ObjectIdGetDatum(plan->shape->relid);
	put_text(values, nulls, 1, plan->destination_table);
	nulls[2] = column == NULL;
	if (column != NULL)
	{
		namestrcpy(&name, column->name);
		values[2] = NameGetDatum(&name);
	}
	put_text(values, nulls, 3, column ? column->type_name : NULL);
	put_text(values, nulls, 4, described ? described->name : NULL);
	put_text(values, nulls, 5, described ? described->type : NULL);
	put_text(values, nulls, 6, described ? described->policy : NULL);
	put_text(values, nulls, 7, ddl);
	tuplestore_putvalues(plan->rsinfo->setResult, plan->rsinfo->setDesc, values, nulls);
}

static void
put_columns(const TablePlan *plan)
{
	for (int i = 0; i < plan->shape->ncolumns; i++)
	{
		const EtlColumn *column = &plan->shape->columns[i];
		EtlColumnPlan described = {0};

		if (plan->routine->describe_column != NULL)
			plan->routine->describe_column(plan->shape, column, plan->options, &described);
		put(plan, column, &described, NULL);
		if (described.companion)
			put(plan, NULL, described.companion, NULL);
	}
}

/* Would the table be set aside?  Then nothing is made. */
static bool
is_refused(const TablePlan *plan, EtlResult *result)
{
	if ((etl_table_abilities(plan->routine, plan->options) & ETL_NEEDS_KEY) == 0 ||
		plan->shape->nkeys > 0)
		return etl_sql_table_refused(plan->routine, plan->shape, plan->options, result);
	etl_result_set(result, ETL_PARK, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
				   "the destination needs a key, and the table has none");
	return true;
}

static void
plan_table(TablePlan *plan)
{
	EtlResult	result = {.status = ETL_DONE};
	List	   *names = NIL;
	List	   *own = NIL;
	StringInfoData ddl;
	ListCell   *lc;

	if (!is_refused(plan, &result) && plan->routine->table_names != NULL)
		names = plan->routine->table_names(plan->shape, plan->options, &result);
	if (result.status != ETL_DONE)
	{
		ereport(NOTICE,
				(errcode(result.sqlstate),
				 errmsg("table %s would be parked: %s",
						etl_sql_table_name(plan->shape->relid), result.message),
				 result.hint[0] ? errhint("%s", result.hint) : 0));
		return;
	}
	plan->destination_table = names != NIL ? linitial(names) : NULL;

	if (plan->routine->plan_table != NULL)
	{
		initStringInfo(&ddl);
		own = plan->routine->plan_table(plan->shape, plan->options, &ddl);
		put(plan, NULL, NULL, ddl.data);
	}
	put_columns(plan);
	foreach(lc, own)
		put(plan, NULL, lfirst(lc), NULL);
}

/* One table of the publication, if it is still there and to be replicated. */
static void
plan_rule(ReturnSetInfo *rsinfo, const EtlConfig *config, const EtlRule *rule)
{
	Relation	relation;
	TablePlan		plan = {.rsinfo = rsinfo, .routine = config->routine};

	if (!etl_rule_is_table(rule) || rule->excluded != ETL_NOT_EXCLUDED)
		return;
	relation = try_relation_open(rule->relid, AccessShareLock);
	if (relation == NULL)
		return;
	plan.options = etl_config_table_options(config, rule->schema_name, rule->table_name);
	plan.shape = etl_shape_build(relation, rule->columns,
								 etl_config_generated(plan.options, rule->generated || rule->columns));
	plan_table(&plan);
	relation_close(relation, AccessShareLock);
}

/*
 * etl.plan(pipeline)
 */
Datum
etl_plan(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	MemoryContext scratch;
	MemoryContext old;
	EtlSqlFrame frame;
	EtlPipelineRow *pipeline;
	EtlConfig  *config;
	List	   *rules;
	ListCell   *lc;
	bool		found;

	etl_sql_require_role();
	etl_sql_rows(fcinfo, PLAN_COLUMNS);
	etl_sql_enter(&frame);
	pipeline = etl_sql_find_pipeline(&frame, name, false, false);
	etl_sql_refuse_dropping(pipeline);
	config = etl_config_load(pipeline->id, false, CurrentMemoryContext);
	etl_rules_load_local_schemas();
	rules = etl_rules_read(pipeline->publication, InvalidXLogRecPtr, &found);
	if (!found)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("publication \"%s\" does not exist", pipeline->publication),
				 errhint("Make one with CREATE PUBLICATION.")));

	scratch = AllocSetContextCreate(CurrentMemoryContext, "etl plan of a table", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(scratch);
	foreach(lc, rules)
	{
		CHECK_FOR_INTERRUPTS();
		plan_rule(rsinfo, config, lfirst(lc));
		MemoryContextReset(scratch);
	}
	MemoryContextSwitchTo(old);
	etl_sql_leave(&frame);
	return (Datum) 0;
}
