/*-------------------------------------------------------------------------
 *
 * validate.c
 *	  etl.validate_pipeline() and etl.test_destination(): would it run?
 *
 * Only what is worth a word is a row: a pipeline without findings gives none.
 * This file looks at the server and asks for the connection test, which a
 * worker makes (server/connection_test.c); validate_tables.c looks at what is
 * published.
 *
 * Nothing here changes anything, and nothing waits for the pipeline.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "replication/slot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/varlena.h"

#include "guc.h"
#include "server/connection_test.h"
#include "server/shmem.h"
#include "sql/common.h"
#include "sql/validate.h"

PG_FUNCTION_INFO_V1(etl_validate_pipeline);
PG_FUNCTION_INFO_V1(etl_test_destination);

#define LOW_SLOT_RETENTION	1024	/* MB */
#define LOW_IDLE_TIMEOUT	86400	/* s */

#define RETENTION_HINT \
	"Choose max_slot_wal_keep_size so that it holds the changes of the longest outage of the destination, and the disk holds it."

void
etl_validate_report(EtlValidation *validation, const char *severity,
					const char *check_name, const char *target, const char *hint,
					const char *fmt,...)
{
	ReturnSetInfo *rsinfo = validation->rsinfo;
	Datum		values[5];
	bool		nulls[5] = {false};
	StringInfoData message;

	initStringInfo(&message);
	for (;;)
	{
		va_list		args;
		int			needed;

		va_start(args, fmt);
		needed = appendStringInfoVA(&message, fmt, args);
		va_end(args);
		if (needed == 0)
			break;
		enlargeStringInfo(&message, needed);
	}

	values[0] = CStringGetTextDatum(severity);
	values[1] = CStringGetTextDatum(check_name);
	values[2] = CStringGetTextDatum(target);
	values[3] = CStringGetTextDatum(message.data);
	nulls[4] = hint == NULL || hint[0] == '\0';
	if (!nulls[4])
		values[4] = CStringGetTextDatum(hint);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* ----------
 * The server
 * ----------
 */

/* Value of an integer setting in its base unit; "missing" if there is none. */
static int
int_setting(const char *name, int missing)
{
	const char *value = GetConfigOption(name, true, false);

	return value ? atoi(value) : missing;
}

/* The only row of a query without arguments, as integers. */
static void
query_counts(const char *query, int n, int64 *counts)
{
	if (etl_sql_run(query, 0, NULL, NULL, NULL) != 1)
		elog(ERROR, "query of etl gave no row");
	for (int i = 0; i < n; i++)
	{
		bool		isnull;

		counts[i] = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
												i + 1, &isnull));
	}
}

static void
check_library(EtlValidation *v)
{
	pid_t		launcher;

	if (etl_shared == NULL)
	{
		etl_validate_report(v, ETL_ERROR, "preloaded", "shared_preload_libraries",
							"Add \"etl\" to shared_preload_libraries and restart the server.",
							"etl is not in shared_preload_libraries");
		return;
	}
	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	launcher = etl_shared->launcher_pid;
	LWLockRelease(&etl_shared->lock);
	if (launcher == 0)
		etl_validate_report(v, ETL_ERROR, "launcher_running", "etl launcher",
							RecoveryInProgress() ? "Pipelines run on the primary server." :
							"It starts again within seconds; the server's log says why it ended.",
							"the process \"etl launcher\" is not running");
}

static void
check_decoding(EtlValidation *v)
{
	const char *libraries = GetConfigOption("output_plugin_libraries", true, false);

	if (wal_level < WAL_LEVEL_LOGICAL)
		etl_validate_report(v, ETL_ERROR, "wal_level", "wal_level",
							"Set wal_level to \"logical\" and restart the server.",
							"wal_level is \"%s\", which is not enough for logical decoding",
							GetConfigOption("wal_level", false, false));
	if (GetDatabaseEncoding() == PG_SQL_ASCII)
		etl_validate_report(v, ETL_ERROR, "server_encoding", get_database_name(MyDatabaseId),
							"Use a database with the encoding that its texts have.",
							"the database has encoding SQL_ASCII: nobody knows what its texts mean");
	if (libraries != NULL)
	{
		List	   *names;
		bool		found = false;
		ListCell   *lc;

		if (!SplitIdentifierString(pstrdup(libraries), ',', &names))
			names = NIL;
		foreach(lc, names)
			found = found || strcmp(lfirst(lc), "etl") == 0 || strcmp(lfirst(lc), "*") == 0;
		if (!found)
			etl_validate_report(v, ETL_NOTICE, "output_plugin_libraries", "output_plugin_libraries",
								"Add \"etl\" before pg_upgrade, which looks at the slots' plugins.",
								"the setting does not name \"etl\"; workers allow it for themselves");
	}
}

/* Does a pair of this pipeline run? */
static bool
is_running(const EtlValidation *v)
{
	EtlPipelineShared *pipeline;
	bool		running;

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	pipeline = etl_shmem_find_pipeline(MyDatabaseId, v->id);
	running = pipeline != NULL && pipeline->writer_pid != 0;
	LWLockRelease(&etl_shared->lock);
	return running;
}

static int
sync_workers(const EtlValidation *v)
{
	return v->config ? v->config->max_sync_workers : etl_max_sync_workers;
}

static void
check_slots(EtlValidation *v)
{
	int64		counts[2];
	bool		has_slot = v->slot_name != NULL &&
	SearchNamedReplicationSlot(v->slot_name, true) != NULL;
	int			needed = sync_workers(v) + (has_slot ? 0 : 1);
	int			left;

	/* slots of syncs under way are those that syncs need */
	query_counts("SELECT count(*), count(*) FILTER (WHERE temporary AND plugin = 'etl' AND database = current_database())"
				 " FROM pg_replication_slots", 2, counts);
	left = Max(max_replication_slots - (int) counts[0], 0);
	if (left + counts[1] < needed)
		etl_validate_report(v, ETL_ERROR, "free_replication_slots", "max_replication_slots",
							"Raise max_replication_slots and restart the server, or lower max_sync_workers of the pipeline.",
							"%d of %d replication slots are free, and the pipeline needs %d",
							left, max_replication_slots, needed);
}

static void
check_workers(EtlValidation *v)
{
	int64		counts[1];
	int			needed;
	int			left;

	if (etl_shared == NULL)
		return;
	needed = sync_workers(v) + (is_running(v) ? 0 : 2);

	left = Max(etl_guc_workers() - (int) pg_atomic_read_u32(&etl_shared->workers), 0);
	if (left < needed)
		etl_validate_report(v, ETL_WARNING, "free_workers", "etl.max_workers",
							"Raise etl.max_workers; until then workers wait for each other.",
							"%d of %d workers of etl are free, and the pipeline uses up to %d",
							left, etl_guc_workers(), needed);

	query_counts("SELECT count(*) FROM pg_stat_activity WHERE backend_type <> ALL ("
				 "'{client backend,walsender,walreceiver,autovacuum launcher,autovacuum worker,"
				 "startup,background writer,checkpointer,walwriter,walsummarizer,archiver,logger,"
				 "slotsync worker,io worker,standalone backend}')", 1, counts);
	left = Max(max_worker_processes - (int) counts[0], 0);
	if (left < needed)
		etl_validate_report(v, ETL_WARNING, "free_workers", "max_worker_processes",
							"Raise max_worker_processes and restart the server; until then workers wait for each other.",
							"%d of %d worker processes are free, and the pipeline uses up to %d",
							left, max_worker_processes, needed);
}

static void
check_retention(EtlValidation *v)
{
	int			idle = int_setting("idle_replication_slot_timeout", 0);

	if (max_slot_wal_keep_size_mb < 0)
		etl_validate_report(v, ETL_WARNING, "slot_retention_unlimited", "max_slot_wal_keep_size",
							RETENTION_HINT,
							"while the pipeline is stopped, or its destination away, WAL is kept until the disk is full");
	else if (max_slot_wal_keep_size_mb == 0)
		etl_validate_report(v, ETL_ERROR, "slot_retention_zero", "max_slot_wal_keep_size",
							RETENTION_HINT,
							"max_slot_wal_keep_size is 0: the first checkpoint may take the slot's WAL away");
	else if (max_slot_wal_keep_size_mb < LOW_SLOT_RETENTION)
		etl_validate_report(v, ETL_WARNING, "slot_retention_low", "max_slot_wal_keep_size",
							RETENTION_HINT,
							"max_slot_wal_keep_size is %d MB: a short outage of the destination loses the slot",
							max_slot_wal_keep_size_mb);
	if (idle > 0 && idle < LOW_IDLE_TIMEOUT)
		etl_validate_report(v, ETL_WARNING, "idle_slot_timeout_low", "idle_replication_slot_timeout",
							"Choose a timeout longer than the longest time that the pipeline may be stopped.",
							"idle_replication_slot_timeout is %d s: a pipeline stopped for longer loses its slot",
							idle);
}

/* ----------
 * The pipeline
 * ----------
 */

/*
 * The definition as a worker would load it.  What is wrong with it is a
 * finding: it is read in a subtransaction of its own.
 */
static void
load_config(EtlValidation *v, MemoryContext context)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(caller);
	PG_TRY();
	{
		v->config = etl_config_load(v->id, false, context);
		ReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(caller);
		CurrentResourceOwner = owner;
	}
	PG_END_TRY();

	if (error == NULL)
		return;
	if (ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
		ReThrowError(error);
	v->config = NULL;
	etl_validate_report(v, ETL_ERROR, ETL_CHECK_CONNECT, v->server, error->hint,
						"could not be tested: %s", error->message);
}

static void
read_pipeline(EtlValidation *v, const EtlSqlFrame *frame, MemoryContext context)
{
	EtlPipelineRow *row = etl_sql_find_pipeline(frame, v->name, false, false);
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(row->id)};
	char	   *slot_name;

	etl_sql_refuse_dropping(row);
	v->id = row->id;
	v->owner = row->owner;
	v->server = MemoryContextStrdup(context, row->server);
	v->publication = MemoryContextStrdup(context, row->publication);
	if (etl_sql_run("SELECT s.slot_name::text"
					" FROM etl.pipeline p LEFT JOIN etl.pipeline_state s ON s.pipeline_id = p.id"
					" WHERE p.id = $1", 1, types, values, NULL) != 1)
		elog(ERROR, "pipeline " INT64_FORMAT " has vanished", v->id);
	slot_name = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	v->slot_name = slot_name ? MemoryContextStrdup(context, slot_name) : NULL;
}

/* Something that is not ours has a name that a table wants. */
static void
report_taken(EtlValidation *v, const char *name)
{
	ListCell   *lc;

	foreach(lc, v->names)
	{
		const EtlWantedName *wanted = lfirst(lc);

		if (strcmp(wanted->name, name) == 0)
			etl_validate_report(v, ETL_ERROR, ETL_CHECK_TABLE_EXISTS, wanted->target,
								"Rename or drop it there, or choose another name with option destination_table of etl.alter_table().",
								"\"%s\" exists at the destination, and is not this pipeline's", name);
	}
}

/* The destination's answers that are findings. */
static void
check_destination(EtlValidation *v)
{
	List	   *names = NIL;
	ListCell   *lc;

	if (v->config == NULL)
		return;
	foreach(lc, v->names)
		names = lappend(names, ((EtlWantedName *) lfirst(lc))->name);
	foreach(lc, etl_connection_test(v->config->server_oid, v->owner, v->id, names))
	{
		const EtlTestRow *row = lfirst(lc);

		if (strcmp(row->check_name, ETL_CHECK_TABLE_EXISTS) == 0)
			report_taken(v, row->message);
		else if (!row->ok)
			etl_validate_report(v, row->tested ? ETL_ERROR : ETL_WARNING, row->check_name,
								v->server, row->hint, "%s", row->message);
	}
}

/*
 * etl.validate_pipeline(pipeline)
 */
Datum
etl_validate_pipeline(PG_FUNCTION_ARGS)
{
	EtlValidation v = {0};
	EtlSqlFrame frame;
	MemoryContext context = CurrentMemoryContext;

	v.context = context;
	v.name = etl_sql_text_arg(fcinfo, 0, "pipeline");
	etl_sql_require_role();
	etl_sql_rows(fcinfo, 5);
	v.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	etl_sql_enter(&frame);
	read_pipeline(&v, &frame, context);
	check_library(&v);
	check_decoding(&v);
	load_config(&v, context);
	check_slots(&v);
	check_workers(&v);
	check_retention(&v);
	etl_validate_tables(&v);
	etl_sql_leave(&frame);

	check_destination(&v);
	return (Datum) 0;
}

/*
 * etl.test_destination(destination)
 */
Datum
etl_test_destination(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	const char *server;
	ListCell   *lc;

	etl_sql_require_arg(fcinfo, 0, "destination");
	server = NameStr(*PG_GETARG_NAME(0));
	etl_sql_require_role();
	(void) etl_sql_routine(server, GetUserId());
	etl_sql_rows(fcinfo, 4);

	foreach(lc, etl_connection_test(GetForeignServerByName(server, false)->serverid, GetUserId(), 0, NIL))
	{
		const EtlTestRow *row = lfirst(lc);
		Interval   *elapsed = palloc0(sizeof(Interval));
		Datum		values[4];
		bool		nulls[4] = {false};

		elapsed->time = row->elapsed;
		values[0] = CStringGetTextDatum(row->check_name);
		values[1] = BoolGetDatum(row->ok);
		values[2] = CStringGetTextDatum(row->hint ? psprintf("%s (%s)", row->message, row->hint) : row->message);
		values[3] = IntervalPGetDatum(elapsed);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
