/*-------------------------------------------------------------------------
 *
 * check.c
 *	  A look into one database: what is wanted there?
 *
 * The tables of schema etl say what should run; this worker carries that into
 * shared memory, where the launcher acts on it:
 *
 *	 enabled		an entry that is wanted
 *	 disabled		an entry, if there is one, that is not wanted
 *	 being dropped	an entry in state DROPPING: the launcher sends another
 *					check worker when nothing of it runs any more (cleanup.c)
 *	 not there		a doomed entry: the launcher frees it when its processes
 *					are gone
 *
 * and it drops replication slots that nothing in this database accounts for.
 *
 * What shared memory and the slots say is noted before the tables are read:
 * a pipeline's slot name is committed before it appears anywhere else, so
 * whatever the tables do not know then is of a former life.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "catalog/bracket.h"
#include "server/check.h"
#include "server/connection_test.h"
#include "server/worker.h"
#include "source/slot.h"

/* A pipeline as the tables have it. */
typedef struct CheckRow
{
	int64		id;
	char	   *name;
	bool		enabled;
	bool		dropping;
	bool		failed;			/* and not started again since */
	char	   *slot_name;		/* NULL: none drawn */
} CheckRow;

/* An entry of shared memory as it was before the tables were read. */
typedef struct CheckEntry
{
	int64		id;
	NameData	slot_name;
} CheckEntry;

typedef struct Check
{
	List	   *entries;		/* of CheckEntry * */
	List	   *slots;			/* names, before the tables were read */
	bool		present;		/* the extension is there */
	List	   *rows;			/* of CheckRow * */
	bool		again;			/* something did not fit: look again later */
} Check;

/* ----------
 * Reading
 * ----------
 */
static void
note_entries(Check *check)
{
	/* no palloc under the lock */
	CheckEntry *found = palloc0(sizeof(CheckEntry) * etl_shared->npipelines);
	int			n = 0;

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (!pipeline->in_use || pipeline->database != MyDatabaseId)
			continue;
		found[n].id = pipeline->id;
		found[n].slot_name = pipeline->slot_name;
		n++;
	}
	LWLockRelease(&etl_shared->lock);

	for (int i = 0; i < n; i++)
		check->entries = lappend(check->entries, &found[i]);
}

static bool
column_bool(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, desc, number, &isnull);

	return !isnull && DatumGetBool(value);
}

static CheckRow *
build_row(HeapTuple tuple, TupleDesc desc)
{
	CheckRow   *row = palloc0(sizeof(CheckRow));
	char	   *text;
	bool		isnull;

	row->id = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
	row->name = SPI_getvalue(tuple, desc, 2);
	row->enabled = column_bool(tuple, desc, 3);
	row->dropping = column_bool(tuple, desc, 4);
	row->failed = column_bool(tuple, desc, 5);
	text = SPI_getvalue(tuple, desc, 6);
	row->slot_name = text;
	return row;
}

/* In a bracket. */
static void
read_tables(void *arg)
{
	Check	   *check = arg;

	check->present = etl_extension_present();
	if (!check->present)
		return;

	if (SPI_execute("SELECT p.id, p.name, i.enabled, i.dropping,"
					"       s.failed_sqlstate IS NOT NULL"
					"         AND coalesce(i.start_requests, 0) <= s.start_done,"
					"       s.slot_name"
					"  FROM etl.pipeline p"
					"  LEFT JOIN etl.pipeline_intent i ON i.pipeline_id = p.id"
					"  LEFT JOIN etl.pipeline_state s ON s.pipeline_id = p.id"
					" ORDER BY p.id", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the pipelines");

	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(EtlWorkerContext);

		check->rows = lappend(check->rows,
							  build_row(SPI_tuptable->vals[i], SPI_tuptable->tupdesc));
		MemoryContextSwitchTo(oldcontext);
	}
}

/* ----------
 * Into shared memory
 * ----------
 */

static CheckRow *
find_row(Check *check, int64 id)
{
	ListCell   *lc;

	foreach(lc, check->rows)
	{
		CheckRow   *row = lfirst(lc);

		if (row->id == id)
			return row;
	}
	return NULL;
}

/*
 * Is the entry of a former life?  Then its pipeline is gone, or another one
 * has the same id (the extension was dropped and created again).
 */
static bool
is_stale(Check *check, const EtlPipelineShared *pipeline)
{
	CheckRow   *row = find_row(check, pipeline->id);
	ListCell   *lc;

	foreach(lc, check->entries)
	{
		CheckEntry *entry = lfirst(lc);

		if (entry->id != pipeline->id)
			continue;
		if (row == NULL)
			return true;
		return NameStr(entry->slot_name)[0] != '\0' &&
			(row->slot_name == NULL ||
			 strcmp(NameStr(entry->slot_name), row->slot_name) != 0);
	}
	return false;				/* made after we have looked */
}

static void
doom_stale_entries(Check *check)
{
	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (!pipeline->in_use || pipeline->database != MyDatabaseId ||
			!is_stale(check, pipeline))
			continue;
		pipeline->wanted = false;
		pipeline->doomed = true;
		etl_shmem_wake_pipeline_locked(pipeline);
	}
}

static void
want(EtlPipelineShared *pipeline)
{
	/* a request ends the wait before the next start, too */
	pipeline->failures = 0;
	pipeline->next_start = 0;
	if (pipeline->wanted)
		return;

	pipeline->wanted = true;
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->state = ETL_PIPELINE_STARTING;
	pipeline->waiting_for = ETL_WAIT_NOTHING;
	LWLockRelease(&pipeline->lock);
}

static void
unwant(EtlPipelineShared *pipeline, bool failed)
{
	pipeline->wanted = false;
	if (failed)
		return;
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (pipeline->state == ETL_PIPELINE_FAILED)
		pipeline->state = ETL_PIPELINE_STOPPED;
	LWLockRelease(&pipeline->lock);
}

static void
begin_drop(EtlPipelineShared *pipeline)
{
	pipeline->wanted = false;
	pipeline->failures = 0;
	pipeline->next_start = 0;
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->state = ETL_PIPELINE_DROPPING;
	pipeline->waiting_for = ETL_WAIT_NOTHING;
	LWLockRelease(&pipeline->lock);
}

/* Lock held exclusively. */
static void
apply_row(Check *check, CheckRow *row)
{
	EtlPipelineShared *pipeline = etl_shmem_find_pipeline(MyDatabaseId, row->id);
	bool		run = row->enabled && !row->failed && !row->dropping;

	if (pipeline != NULL && pipeline->doomed)
		return;					/* comes again when that entry is freed */

	if (run || row->dropping)
	{
		pipeline = etl_shmem_get_pipeline(MyDatabaseId, row->id, row->name);
		if (pipeline == NULL)
		{
			check->again = true;
			return;
		}
	}
	if (pipeline == NULL)
		return;

	namestrcpy(&pipeline->name, row->name);
	if (row->dropping)
		begin_drop(pipeline);
	else if (run)
		want(pipeline);
	else
		unwant(pipeline, row->enabled && row->failed);
	etl_shmem_wake_pipeline_locked(pipeline);
}

static void
apply_rows(Check *check)
{
	ListCell   *lc;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	doom_stale_entries(check);
	foreach(lc, check->rows)
		apply_row(check, lfirst(lc));
	etl_shmem_wake_launcher_locked();
	LWLockRelease(&etl_shared->lock);
}

/* ----------
 * Slots
 * ----------
 */

/* "etl_<database>_<8 hex digits>": made by us in this database. */
static bool
is_our_slot(const char *name)
{
	char	   *prefix = psprintf("etl_%u_", MyDatabaseId);
	size_t		len = strlen(prefix);

	return strncmp(name, prefix, len) == 0 && strlen(name) == len + 8 &&
		strspn(name + len, "0123456789abcdef") == 8;
}

/*
 * A slot in use belongs to a worker that lives, or to a doomed entry's: the
 * next look comes when that is freed.
 */
static void
drop_unknown_slots(Check *check)
{
	ListCell   *lc;

	foreach(lc, check->slots)
	{
		const char *name = lfirst(lc);
		ListCell   *lr;
		bool		known = false;

		foreach(lr, check->rows)
		{
			CheckRow   *row = lfirst(lr);

			if (row->slot_name != NULL && strcmp(row->slot_name, name) == 0)
				known = true;
		}
		if (known || !is_our_slot(name))
			continue;
		if (etl_slot_drop(name))
			ereport(LOG,
					(errmsg("dropped replication slot \"%s\", which no pipeline of database %u has",
							name, MyDatabaseId)));
	}
}

/* ----------
 * The worker
 * ----------
 */
static void
check_body(void)
{
	Check		check = {0};

	note_entries(&check);
	check.slots = etl_slot_list(MyDatabaseId);

	if (etl_bracket_try(ETL_BRACKET_READ, "look at pipelines", read_tables, &check))
	{
		apply_rows(&check);
		drop_unknown_slots(&check);
	}
	else
		check.again = true;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	if (etl_shared->checking_pid == MyProcPid)
		etl_shared->check_outcome = check.again ? ETL_CHECK_LATER : ETL_CHECK_DONE;
	LWLockRelease(&etl_shared->lock);
}

void
etl_check_main(Datum main_arg)
{
	etl_worker_start(ETL_ROLE_CHECK, main_arg);
	if (etl_worker_args.test != 0)
		etl_worker_run(etl_connection_test_body);
	else
		etl_worker_run(etl_worker_pipeline != NULL ? etl_cleanup_body : check_body);
}
