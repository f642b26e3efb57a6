/*-------------------------------------------------------------------------
 *
 * column_status.c
 *	  etl.column_rows(): what became of each column, for etl.column_status.
 *
 * A table is described in the shape and with the options that its generation
 * was made with, by the function by which it was made.  A table whose first
 * copy is under way has no stored shape yet: it is looked at as it is, unless
 * somebody holds a lock that we would have to wait for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog/config.h"
#include "catalog/options.h"
#include "destination/registry.h"
#include "schema/shape.h"
#include "server/adjusted.h"
#include "server/shmem.h"
#include "source/rules.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_column_rows);

#define COLUMN_COLUMNS	10
#define NO_SLOT			0xFFFFFFFF

/* One pipeline, and the table of it that is being told about. */
typedef struct Told
{
	ReturnSetInfo *rsinfo;
	int64		id;
	const char *publication;
	const char *server;
	Jsonb	   *pipeline_options;
	const EtlDestinationRoutine *routine;

	const EtlShape *shape;
	const EtlOptions *options;
	uint32		slot;			/* in shared memory, or NO_SLOT */
} Told;

static void
put_text(Datum *values, bool *nulls, int column, const char *text)
{
	nulls[column] = text == NULL;
	if (text != NULL)
		values[column] = CStringGetTextDatum(text);
}

/* What the kind says of it.  A stored shape may name a type that is gone. */
static void
describe(const Told *told, const EtlColumn *column, EtlColumnPlan *described)
{
	if (!SearchSysCacheExists1(TYPEOID, ObjectIdGetDatum(column->type)))
		described->note = "the type does not exist any more";
	else if (told->routine->describe_column != NULL)
		told->routine->describe_column(told->shape, column, told->options, described);
}

static void
put_column(const Told *told, const EtlColumn *column)
{
	Datum		values[COLUMN_COLUMNS] = {0};
	bool		nulls[COLUMN_COLUMNS] = {0};
	EtlColumnPlan described = {0};
	NameData	name;

	describe(told, column, &described);
	namestrcpy(&name, column->name);
	values[0] = Int64GetDatum(told->id);
	values[1] = ObjectIdGetDatum(told->shape->relid);
	values[2] = Int16GetDatum(column->attnum);
	values[3] = NameGetDatum(&name);
	put_text(values, nulls, 4, column->type_name);
	put_text(values, nulls, 5, described.name);
	put_text(values, nulls, 6, described.type);
	put_text(values, nulls, 7, described.policy);
	nulls[8] = told->slot == NO_SLOT;
	if (told->slot != NO_SLOT)
		values[8] = Int64GetDatum((int64) etl_adjusted_get(told->slot, column->attnum));
	put_text(values, nulls, 9, described.note);
	tuplestore_putvalues(told->rsinfo->setResult, told->rsinfo->setDesc, values, nulls);
}

/* ----------
 * Tables
 * ----------
 */

/* The table as it is now; NULL if it is gone, or locked. */
static EtlShape *
present_shape(const Told *told, Oid relid, const EtlOptions *options)
{
	Relation	relation;
	EtlRule    *rule;
	EtlShape   *shape = NULL;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return NULL;
	relation = try_relation_open(relid, NoLock);
	if (relation == NULL)
	{
		UnlockRelationOid(relid, AccessShareLock);
		return NULL;
	}
	rule = etl_rules_read_relation(told->publication, relid, InvalidXLogRecPtr);
	if (rule != NULL && rule->published)
		shape = etl_shape_build(relation, rule->columns,
								etl_config_generated(options, rule->generated || rule->columns));
	relation_close(relation, AccessShareLock);
	return shape;
}

/* Place of the table in shared memory. */
static uint32
find_slot(int64 id, Oid relid)
{
	EtlPipelineShared *pipeline;
	EtlTableSlot *slot;

	if (etl_shared == NULL)
		return NO_SLOT;
	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	pipeline = etl_shmem_find_pipeline(MyDatabaseId, id);
	LWLockRelease(&etl_shared->lock);
	slot = pipeline ? etl_shmem_find_table(pipeline, relid) : NULL;
	return slot ? etl_shmem_table_index(slot) : NO_SLOT;
}

static Jsonb *
jsonb_field(HeapTuple row, TupleDesc desc, int number)
{
	bool		isnull;
	Datum		value = SPI_getbinval(row, desc, number, &isnull);

	return isnull ? NULL : DatumGetJsonbP(value);
}

/* A row of the query below. */
static void
put_table(Told *told, HeapTuple row, TupleDesc desc)
{
	bool		isnull;
	Oid			relid = DatumGetObjectId(SPI_getbinval(row, desc, 1, &isnull));
	EtlOptions *options = etl_sql_options_in_force(told->routine, told->server, told->pipeline_options,
												   jsonb_field(row, desc, 4), jsonb_field(row, desc, 5));
	Datum		flat = SPI_getbinval(row, desc, 2, &isnull);
	const char *layout = SPI_getvalue(row, desc, 3);

	if (isnull)
		told->shape = present_shape(told, relid, options);
	else
		told->shape = etl_shape_deserialize(VARDATA_ANY(DatumGetByteaPP(flat)),
											VARSIZE_ANY_EXHDR(DatumGetByteaPP(flat)));
	if (told->shape == NULL)
		return;
	told->options = options;
	if (layout != NULL)
	{
		EtlOptions *made = etl_options_with_layout(options, layout, told->shape);

		told->options = made ? made : options;
	}
	told->slot = find_slot(told->id, relid);
	for (int i = 0; i < told->shape->ncolumns; i++)
		put_column(told, &told->shape->columns[i]);
}

#define TABLES_QUERY \
	"SELECT t.relid, h.shape, b.layout, o.options, o.columns" \
	" FROM etl.table_state t" \
	" CROSS JOIN LATERAL (SELECT CASE WHEN t.owned_generation > 0" \
	"   THEN t.owned_generation ELSE t.generation END AS generation) g" \
	" LEFT JOIN LATERAL (SELECT s.shape FROM etl.schema_history s" \
	"   WHERE s.pipeline_id = t.pipeline_id AND s.relid = t.relid AND s.generation = g.generation" \
	"   ORDER BY s.version DESC LIMIT 1) h ON true" \
	" LEFT JOIN etl.schema_history b ON b.pipeline_id = t.pipeline_id AND b.relid = t.relid" \
	"  AND b.generation = g.generation AND b.version = 1" \
	" LEFT JOIN etl.table_option o ON o.pipeline_id = t.pipeline_id" \
	"  AND o.schema_name = t.schema_name AND o.table_name = t.table_name" \
	" WHERE t.pipeline_id = $1 AND t.state NOT IN ('excluded', 'dropped')"

/* One pipeline; one whose server is gone has nothing to tell. */
static void
put_tables(Told *told, MemoryContext scratch)
{
	ForeignServer *server = GetForeignServerByName(told->server, true);
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(told->id)};
	MemoryContext old = CurrentMemoryContext;
	SPITupleTable *rows;
	uint64		nrows;

	if (server == NULL || (told->routine = etl_routine_for_wrapper(server->fdwid, true)) == NULL)
		return;
	nrows = etl_sql_run(TABLES_QUERY, 1, types, values, NULL);
	rows = SPI_tuptable;
	for (uint64 i = 0; i < nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(scratch);
		put_table(told, rows->vals[i], rows->tupdesc);
		MemoryContextSwitchTo(old);
		MemoryContextReset(scratch);
	}
}

/*
 * etl.column_rows()
 */
Datum
etl_column_rows(PG_FUNCTION_ARGS)
{
	EtlSqlFrame frame;
	MemoryContext scratch;
	SPITupleTable *rows;
	uint64		nrows;

	etl_sql_rows(fcinfo, COLUMN_COLUMNS);
	etl_sql_enter(&frame);
	etl_rules_load_local_schemas();
	scratch = AllocSetContextCreate(CurrentMemoryContext, "etl columns of a table", ALLOCSET_DEFAULT_SIZES);
	nrows = etl_sql_run("SELECT id, owner::oid, publication::text, server::text, options FROM etl.pipeline",
						0, NULL, NULL, NULL);
	rows = SPI_tuptable;
	for (uint64 i = 0; i < nrows; i++)
	{
		HeapTuple	row = rows->vals[i];
		bool		isnull;
		Oid			owner = DatumGetObjectId(SPI_getbinval(row, rows->tupdesc, 2, &isnull));
		Told		told = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};

		if (!has_privs_of_role(frame.caller, owner) &&
			!has_privs_of_role(frame.caller, ROLE_PG_MONITOR))
			continue;
		told.id = DatumGetInt64(SPI_getbinval(row, rows->tupdesc, 1, &isnull));
		told.publication = SPI_getvalue(row, rows->tupdesc, 3);
		told.server = SPI_getvalue(row, rows->tupdesc, 4);
		told.pipeline_options = jsonb_field(row, rows->tupdesc, 5);
		put_tables(&told, scratch);
	}
	etl_sql_leave(&frame);
	return (Datum) 0;
}
