/*-------------------------------------------------------------------------
 *
 * cleanup.c
 *	  The end of a pipeline: etl.drop_pipeline().
 *
 * A check worker of its own, sent when nothing of the pipeline runs any more,
 * so that a destination that does not answer keeps nobody waiting:
 *
 *	 1	the destination's tables, if that was asked for and the kind has any
 *	 2	the replication slot
 *	 3	all rows of the pipeline, in one transaction
 *	 4	the entry in shared memory
 *
 * Each step can be repeated.  Trouble is shown and the launcher tries again
 * later; a request with "force" skips the destination.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "catalog/config.h"
#include "server/check.h"
#include "server/worker.h"
#include "source/slot.h"

#define SLOT_RETRY		500		/* ms, while somebody holds the slot */
#define LOCK_RETRY		500		/* ms, while somebody holds a lock */

/* A table at the destination. */
typedef struct CleanupTable
{
	EtlShape	shape;			/* names and OID alone */
	EtlTarget	target;
	EtlTable	table;
} CleanupTable;

typedef struct Cleanup
{
	bool		present;		/* extension and pipeline are there */
	char	   *name;
	char	   *slot_name;		/* NULL: none */
	EtlConfig  *config;			/* only if tables are to be dropped */
	bool		any;			/* something was ever copied */
	bool		owner_is_superuser;
	List	   *tables;			/* of CleanupTable * */
} Cleanup;

/* ----------
 * Reading
 * ----------
 */
static CleanupTable *
build_table(EtlConfig *config, HeapTuple tuple, TupleDesc desc)
{
	CleanupTable *result = palloc0(sizeof(CleanupTable));
	bool		isnull;

	result->shape.relid = DatumGetObjectId(SPI_getbinval(tuple, desc, 1, &isnull));
	result->shape.schema_name = SPI_getvalue(tuple, desc, 2);
	result->shape.table_name = SPI_getvalue(tuple, desc, 3);
	result->shape.generation = DatumGetInt32(SPI_getbinval(tuple, desc, 4, &isnull));
	result->target.name = SPI_getvalue(tuple, desc, 5);

	result->table.relid = result->shape.relid;
	result->table.shape = &result->shape;
	result->table.target = result->target.name ? &result->target : NULL;
	result->table.options = etl_config_table_options(config, result->shape.schema_name,
													 result->shape.table_name);
	result->table.generation = result->shape.generation;
	return result;
}

/* The definition and the tables that were ever copied. */
static void
read_tables(Cleanup *cleanup, int64 id)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	bool		isnull;

	cleanup->config = etl_config_load(id, true, EtlWorkerContext);
	if (cleanup->config == NULL)
		return;
	cleanup->owner_is_superuser = superuser_arg(cleanup->config->owner);

	if (SPI_execute_with_args("SELECT relid, schema_name, table_name, generation, destination_table"
							  "  FROM etl.table_state"
							  " WHERE pipeline_id = $1 AND generation > 0"
							  " ORDER BY relid",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the tables of pipeline " INT64_FORMAT, id);

	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(EtlWorkerContext);

		cleanup->tables = lappend(cleanup->tables,
								  build_table(cleanup->config, SPI_tuptable->vals[i],
											  SPI_tuptable->tupdesc));
		MemoryContextSwitchTo(oldcontext);
	}

	/* those that have left the publication are known no more */
	cleanup->any = cleanup->tables != NIL;
	if (SPI_execute_with_args("SELECT released_generation > 0 FROM etl.pipeline_state"
							  " WHERE pipeline_id = $1",
							  1, types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read the state of pipeline " INT64_FORMAT, id);
	if (SPI_processed > 0 &&
		DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull)))
		cleanup->any = true;
}

/*
 * In a bracket.  What does not need the definition does not read it: a
 * pipeline with a broken one can be dropped.
 */
static void
read_pipeline(void *arg)
{
	Cleanup    *cleanup = arg;
	int64		id = etl_worker_pipeline->id;
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(id)};
	MemoryContext oldcontext;
	bool		isnull;

	if (!etl_extension_present())
		return;
	if (SPI_execute_with_args("SELECT p.name, s.slot_name::text, i.drop_tables AND NOT i.force"
							  "  FROM etl.pipeline p"
							  "  JOIN etl.pipeline_intent i ON i.pipeline_id = p.id"
							  "  LEFT JOIN etl.pipeline_state s ON s.pipeline_id = p.id"
							  " WHERE p.id = $1 AND i.dropping",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read pipeline " INT64_FORMAT, id);
	if (SPI_processed == 0)
		return;

	oldcontext = MemoryContextSwitchTo(EtlWorkerContext);
	cleanup->present = true;
	cleanup->name = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	cleanup->slot_name = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2);
	MemoryContextSwitchTo(oldcontext);
	if (DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3, &isnull)))
		read_tables(cleanup, id);
}

/* ----------
 * Trouble
 * ----------
 */

/* The launcher sends the next worker at that time. */
static void
try_again_at(TimestampTz when)
{
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	etl_worker_pipeline->next_start = when;
	LWLockRelease(&etl_shared->lock);
}

static void
try_again_in(int delay)
{
	try_again_at(TimestampTzPlusMilliseconds(GetCurrentTimestamp(), delay));
}

/*
 * The destination would not: show it, try again later.  Its own wish counts,
 * else the delay that the launcher has already chosen, which grows.
 */
static void
destination_trouble(const EtlConfig *config, const EtlResult *result)
{
	TimestampTz next;

	if (result->status == ETL_ENDPOINT)
		try_again_in(config->auth_retry_delay);
	else if (result->retry_after >= 0)
		try_again_in(result->retry_after);

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	next = etl_worker_pipeline->next_start;
	LWLockRelease(&etl_shared->lock);
	etl_shmem_report_error(etl_worker_pipeline, result->sqlstate, result->message, next,
						   result->status == ETL_ENDPOINT);
	ereport(LOG,
			(errcode(result->sqlstate),
			 errmsg("could not drop the tables of pipeline \"%s\" at the destination: %s",
					config->name, result->message),
			 errhint("etl.drop_pipeline() with force => true goes on without the destination.")));
}

/* ----------
 * Steps
 * ----------
 */

static void
drop_tables(Cleanup *cleanup, EtlConnection *connection, EtlResult *result)
{
	ListCell   *lc;

	foreach(lc, cleanup->tables)
	{
		CleanupTable *table = lfirst(lc);

		if (result->status != ETL_DONE)
			break;
		CHECK_FOR_INTERRUPTS();
		cleanup->config->routine->drop_table(connection, &table->table, result);
	}
}

static bool
drop_at_destination(Cleanup *cleanup)
{
	const EtlConfig *config = cleanup->config;
	EtlResult	result = {.status = ETL_DONE,.retry_after = -1};
	EtlConnectArgs args = {
		.options = config->options,
		.source = config->source,
		.pipeline = config->name,
		.pipeline_id = config->id,
		.slot_name = config->slot_name,
		.epoch = config->epoch,
		.incarnation = etl_worker_args.incarnation,
		.is_superuser = cleanup->owner_is_superuser,
	};
	EtlConnection *connection;

	connection = config->routine->open(&args);
	config->routine->connect(connection, &result);
	if (result.status == ETL_DONE && config->routine->drop_all != NULL)
		config->routine->drop_all(connection, &result);
	else
		drop_tables(cleanup, connection, &result);
	config->routine->close(connection);

	if (result.status == ETL_DONE)
		return true;
	destination_trouble(config, &result);
	return false;
}

/* Are there tables that somebody wants dropped, and can they be reached? */
static bool
wants_destination(const Cleanup *cleanup)
{
	const EtlConfig *config = cleanup->config;

	if (config == NULL || !cleanup->any)
		return false;
	if (config->routine == NULL)
	{
		ereport(LOG,
				(errmsg("pipeline \"%s\" is dropped without its tables at the destination",
						cleanup->name),
				 errdetail("The server or the owner of the pipeline does not exist any more.")));
		return false;
	}

	/* a copy carries the marks of the original, whose tables they are */
	if (!etl_config_is_original(config))
	{
		ereport(LOG,
				(errmsg("pipeline \"%s\" is dropped without its tables at the destination",
						cleanup->name),
				 errdetail("It has not run on this copy of the server or the database."),
				 errhint("etl.resync_pipeline() and etl.start_pipeline() before etl.drop_pipeline() make the tables this one's.")));
		return false;
	}
	return config->routine->drop_table != NULL || config->routine->drop_all != NULL;
}

/* In a bracket: nothing of the pipeline remains. */
static void
delete_rows(void *arg)
{
	static const char *const statements[] = {
		"DELETE FROM etl.table_option WHERE pipeline_id = $1",
		"DELETE FROM etl.table_intent WHERE pipeline_id = $1",
		"DELETE FROM etl.table_state WHERE pipeline_id = $1",
		"DELETE FROM etl.rule_history WHERE pipeline_id = $1",
		"DELETE FROM etl.schema_history WHERE pipeline_id = $1",
		"DELETE FROM etl.destination_column WHERE pipeline_id = $1",
		"DELETE FROM etl.column_state WHERE pipeline_id = $1",
		"DELETE FROM etl.error_entry WHERE pipeline_id = $1",
		"DELETE FROM etl.pipeline_state WHERE pipeline_id = $1",
		"DELETE FROM etl.pipeline_intent WHERE pipeline_id = $1",
		"DELETE FROM etl.pipeline WHERE id = $1",
	};
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(*(int64 *) arg)};

	if (!etl_extension_present())
		return;
	for (int i = 0; i < lengthof(statements); i++)
		if (SPI_execute_with_args(statements[i], 1, types, values, NULL, false, 0) != SPI_OK_DELETE)
			elog(ERROR, "could not delete the rows of pipeline " INT64_FORMAT, *(int64 *) arg);
}

/*
 * The slot, if it is one of this database: a cloned database's rows name the
 * slot of the original.
 */
static bool
drop_slot(const char *slot_name)
{
	ListCell   *lc;

	if (slot_name == NULL)
		return true;
	foreach(lc, etl_slot_list(MyDatabaseId))
		if (strcmp(lfirst(lc), slot_name) == 0)
			return etl_slot_drop(slot_name);
	return true;
}

/* The entry is free again, and a pipeline that waited for one can have it. */
static void
free_entry(void)
{
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	etl_shmem_free_pipeline(etl_worker_pipeline);
	etl_worker_pipeline = NULL;
	LWLockRelease(&etl_shared->lock);
}

void
etl_cleanup_body(void)
{
	Cleanup		cleanup = {0};
	int64		id = etl_worker_pipeline->id;

	if (!etl_bracket_try(ETL_BRACKET_READ, "read pipeline to be dropped",
						 read_pipeline, &cleanup))
	{
		try_again_in(LOCK_RETRY);
		return;
	}
	if (cleanup.present)
	{
		if (wants_destination(&cleanup) && !drop_at_destination(&cleanup))
			return;
		if (!drop_slot(cleanup.slot_name))
		{
			try_again_in(SLOT_RETRY);
			return;
		}
		if (!etl_bracket_try(ETL_BRACKET_WRITE, "delete pipeline", delete_rows, &id))
		{
			etl_shmem_set_state(etl_worker_pipeline, ETL_PIPELINE_DROPPING, ETL_WAIT_LOCK);
			try_again_in(LOCK_RETRY);
			return;
		}
		ereport(LOG, (errmsg("dropped pipeline \"%s\"", cleanup.name)));
	}
	free_entry();
}
