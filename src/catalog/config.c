/*-------------------------------------------------------------------------
 *
 * config.c
 *	  Reads the definition of a pipeline from the tables, for a worker.
 *
 * Everything is read in one bracket and kept in one context, so that the
 * worker can use it outside any transaction: the definition, what users want,
 * the identity, the options of the server, the owner's user mapping (only
 * when asked for), the pipeline and all its tables.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_type.h"
#include "catalog/pg_user_mapping.h"
#include "executor/spi.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "access/reloptions.h"

#include "catalog/config.h"
#include "catalog/options.h"
#include "compat.h"
#include "schema/shape.h"

#define MIN_QUEUE_SIZE	((Size) 16 * 1024 * 1024)

/* Options of one table, as etl.table_option has them. */
struct EtlTableConfig
{
	char	   *schema_name;
	char	   *table_name;
	EtlOptions *options;
};

/* A generation that was made with other options than those of now. */
typedef struct EtlLayoutConfig
{
	Oid			relid;
	uint32		generation;
	EtlOptions *options;
} EtlLayoutConfig;

/* Column of the only row of the last SPI query. */
static Datum
column(int number, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, number, isnull);
}

static char *
name_column(MemoryContext context, int number)
{
	bool		isnull;
	Datum		value = column(number, &isnull);

	return isnull ? NULL : MemoryContextStrdup(context, NameStr(*DatumGetName(value)));
}

/* Definition, intent and identity; false when there is no such pipeline. */
static bool
read_definition(EtlConfig *config, Jsonb **options)
{
	Oid			types[] = {INT8OID, INT8OID, OIDOID};
	Datum		values[] = {
		Int64GetDatum(config->id), Int64GetDatum((int64) GetSystemIdentifier()),
		ObjectIdGetDatum(MyDatabaseId)
	};
	bool		isnull;
	Datum		value;

	if (SPI_execute_with_args("SELECT p.name, p.owner::oid, COALESCE(u.pubname, p.publication), p.server, p.options,"
							  "  i.enabled, i.dropping, i.drop_tables, i.force, i.resync_requests,"
							  "  s.system_identifier, s.database_oid, s.slot_name, s.slot_created,"
							  "  s.epoch, s.timeline, i.start_requests, s.start_done,"
							  "  s.data_directory, u.oid"
							  " FROM etl.pipeline p"
							  " LEFT JOIN etl.pipeline_intent i ON i.pipeline_id = p.id"
							  " LEFT JOIN etl.pipeline_state s ON s.pipeline_id = p.id"
							  " LEFT JOIN pg_catalog.pg_publication u ON u.oid = s.publication_oid"
							  "   AND s.system_identifier = $2 AND s.database_oid = $3"
							  " WHERE p.id = $1",
							  lengthof(types), types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read pipeline " INT64_FORMAT, config->id);
	if (SPI_processed == 0)
		return false;

	config->name = MemoryContextStrdup(config->context, TextDatumGetCString(column(1, &isnull)));
	config->owner = DatumGetObjectId(column(2, &isnull));
	config->publication = name_column(config->context, 3);
	config->server = name_column(config->context, 4);
	*options = DatumGetJsonbPCopy(column(5, &isnull));

	value = column(6, &isnull);
	if (!isnull)
	{
		config->enabled = DatumGetBool(value);
		config->dropping = DatumGetBool(column(7, &isnull));
		config->drop_tables = DatumGetBool(column(8, &isnull));
		config->force = DatumGetBool(column(9, &isnull));
		config->resync_requests = DatumGetInt64(column(10, &isnull));
		config->start_requests = DatumGetInt64(column(17, &isnull));
	}
	value = column(11, &isnull);
	if (!isnull)
	{
		config->has_state = true;
		config->system_identifier = (uint64) DatumGetInt64(value);
		config->database = DatumGetObjectId(column(12, &isnull));
		config->slot_name = name_column(config->context, 13);
		config->slot_created = DatumGetBool(column(14, &isnull));
		config->epoch = DatumGetInt32(column(15, &isnull));
		config->timeline = (uint32) DatumGetInt64(column(16, &isnull));
		config->start_done = DatumGetInt64(column(18, &isnull));
		config->data_directory = (uint64) DatumGetInt64(column(19, &isnull));
		value = column(20, &isnull);
		config->publication_oid = isnull ? InvalidOid : DatumGetObjectId(value);
	}
	return true;
}

/* Options of the owner's user mapping or PUBLIC's; NIL when there is none. */
static List *
mapping_options(Oid owner, Oid server)
{
	HeapTuple	tuple;
	Datum		value;
	bool		isnull;
	List	   *options = NIL;

	tuple = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(owner), ObjectIdGetDatum(server));
	if (!HeapTupleIsValid(tuple))
		tuple = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(InvalidOid), ObjectIdGetDatum(server));
	if (!HeapTupleIsValid(tuple))
		return NIL;
	value = SysCacheGetAttr(USERMAPPINGUSERSERVER, tuple, Anum_pg_user_mapping_umoptions, &isnull);
	if (!isnull)
		options = untransformRelOptions(value);
	ReleaseSysCache(tuple);
	return options;
}

void
etl_config_check_owner(const EtlConfig *config)
{
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(config->owner)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the owner of pipeline \"%s\" does not exist any more", config->name),
				 errhint("Drop the pipeline and create it again as another role.")));
	if (!superuser_arg(config->owner) && !has_rolreplication(config->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" must be superuser or have REPLICATION to own a pipeline",
						GetUserNameFromId(config->owner, false))));
}

static void
load_options(EtlConfig *config, Jsonb *values, bool secrets)
{
	ForeignServer *server = GetForeignServerByName(config->server, true);

	if (server == NULL && config->dropping)
		return;
	if (server == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("server \"%s\" does not exist", config->server),
				 errhint("Create the server again, or drop the pipeline with force => true.")));
	config->server_oid = server->serverid;
	if (!config->dropping && etl_server_aclcheck(server->serverid, config->owner) != ACLCHECK_OK)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for foreign server %s", config->server),
				 errhint("Grant USAGE on the server to role \"%s\".",
						 GetUserNameFromId(config->owner, false))));
	config->routine = etl_routine_for_server(server->serverid);
	config->options = etl_options_create(config->routine);
	etl_options_set_list(config->options, server->options, ETL_SOURCE_SERVER);
	if (secrets)
		etl_options_set_list(config->options, mapping_options(config->owner, server->serverid),
							 ETL_SOURCE_MAPPING);
	etl_options_set_json(config->options, values, ETL_SOURCE_PIPELINE);
	if (!config->dropping)
		etl_options_check_files(config->options, config->owner);
	if (config->routine->validate_options != NULL)
		config->routine->validate_options(config->options, ETL_SCOPE_PIPELINE);
}

/* Options of all tables that have some. */
static void
load_tables(EtlConfig *config)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(config->id)};
	SPITupleTable *rows;
	uint64		nrows;

	if (SPI_execute_with_args("SELECT schema_name, table_name, options, columns"
							  " FROM etl.table_option WHERE pipeline_id = $1",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read table options of pipeline " INT64_FORMAT, config->id);
	MemoryContextSwitchTo(config->context); /* SPI leaves us in its own */
	rows = SPI_tuptable;
	nrows = SPI_processed;

	for (uint64 i = 0; i < nrows; i++)
	{
		EtlTableConfig *table = palloc0(sizeof(EtlTableConfig));
		bool		isnull;
		Datum		value;

		value = SPI_getbinval(rows->vals[i], rows->tupdesc, 1, &isnull);
		table->schema_name = pstrdup(NameStr(*DatumGetName(value)));
		value = SPI_getbinval(rows->vals[i], rows->tupdesc, 2, &isnull);
		table->table_name = pstrdup(NameStr(*DatumGetName(value)));
		table->options = etl_options_copy(config->options);
		value = SPI_getbinval(rows->vals[i], rows->tupdesc, 3, &isnull);
		etl_options_set_json(table->options, DatumGetJsonbP(value), ETL_SOURCE_TABLE);
		value = SPI_getbinval(rows->vals[i], rows->tupdesc, 4, &isnull);
		etl_options_set_columns(table->options, DatumGetJsonbP(value));
		config->tables = lappend(config->tables, table);
	}
}

/* Newest shape of a generation. */
static EtlShape *
read_shape(const EtlConfig *config, Oid relid, uint32 generation)
{
	Oid			types[] = {INT8OID, OIDOID, INT4OID};
	Datum		values[] = {
		Int64GetDatum(config->id), ObjectIdGetDatum(relid), Int32GetDatum((int32) generation)
	};
	bool		isnull;
	bytea	   *flat;

	if (SPI_execute_with_args("SELECT shape FROM etl.schema_history"
							  " WHERE pipeline_id = $1 AND relid = $2 AND generation = $3"
							  " ORDER BY version DESC LIMIT 1",
							  3, types, values, NULL, true, 1) != SPI_OK_SELECT || SPI_processed == 0)
		elog(ERROR, "could not read the shape of table %u", relid);
	flat = DatumGetByteaPP(column(1, &isnull));
	return etl_shape_deserialize(VARDATA_ANY(flat), VARSIZE_ANY_EXHDR(flat));
}

/* A generation that was made with other options: does it look otherwise? */
static void
load_layout(EtlConfig *config, Oid relid, uint32 generation, const EtlOptions *now, const char *layout)
{
	EtlShape   *shape = read_shape(config, relid, generation);
	MemoryContext old = MemoryContextSwitchTo(config->context);
	EtlOptions *options = etl_options_with_layout(now, layout, shape);

	if (options != NULL)
	{
		EtlLayoutConfig *made = palloc0(sizeof(EtlLayoutConfig));

		made->relid = relid;
		made->generation = generation;
		made->options = options;
		config->layouts = lappend(config->layouts, made);
	}
	MemoryContextSwitchTo(old);
}

/* Generations that look otherwise than their tables' options say now. */
static void
load_layouts(EtlConfig *config)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(config->id)};
	const EtlOptions *last = NULL;
	const char *text = NULL;
	SPITupleTable *rows;
	uint64		nrows;

	if (SPI_execute_with_args("SELECT h.relid, h.generation, h.layout, t.schema_name::text, t.table_name::text"
							  " FROM etl.schema_history h"
							  " JOIN etl.table_state t ON t.pipeline_id = h.pipeline_id AND t.relid = h.relid"
							  " WHERE h.pipeline_id = $1 AND h.layout IS NOT NULL",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read layouts of pipeline " INT64_FORMAT, config->id);
	rows = SPI_tuptable;
	nrows = SPI_processed;

	/* what is only read here may go with SPI */
	for (uint64 i = 0; i < nrows; i++)
	{
		bool		isnull;
		const char *layout = SPI_getvalue(rows->vals[i], rows->tupdesc, 3);
		EtlOptions *now = etl_config_table_options(config, SPI_getvalue(rows->vals[i], rows->tupdesc, 4),
												   SPI_getvalue(rows->vals[i], rows->tupdesc, 5));

		if (now != last)
			text = etl_options_layout(now);
		last = now;
		if (text != NULL && strcmp(text, layout) != 0)
			load_layout(config, DatumGetObjectId(SPI_getbinval(rows->vals[i], rows->tupdesc, 1, &isnull)),
						(uint32) DatumGetInt32(SPI_getbinval(rows->vals[i], rows->tupdesc, 2, &isnull)),
						now, layout);
	}
	MemoryContextSwitchTo(config->context);
}

/* The members of EtlConfig that mirror general options. */
static void
take_general(EtlConfig *config)
{
	const EtlOptions *o = config->options;
	Size		queue;

	config->max_batch_size = (Size) etl_option_int(o, "max_batch_size") * 1024;
	config->max_batch_events = (int) etl_option_int(o, "max_batch_events");
	config->max_batch_delay = (int) etl_option_int(o, "max_batch_delay");
	queue = (Size) etl_option_int(o, "queue_size") * 1024;
	config->queue_size = queue != 0 ? queue : Max(MIN_QUEUE_SIZE, 2 * config->max_batch_size);
	config->max_sync_workers = (int) etl_option_int(o, "max_sync_workers");
	config->on_error = etl_config_on_error(o);
	config->copy_data = etl_option_bool(o, "copy_data");
	config->sync_new_tables = strcmp(etl_option_text(o, "on_new_table"), "sync") == 0;
	config->retry_delay = (int) etl_option_int(o, "retry_delay");
	config->max_retry_delay = (int) etl_option_int(o, "max_retry_delay");
	config->auth_retry_delay = (int) etl_option_int(o, "auth_retry_delay");
	config->stall_timeout = (int) etl_option_int(o, "stall_timeout");
	config->resync_on_slot_loss = strcmp(etl_option_text(o, "on_slot_loss"), "resync") == 0;
}

EtlConfig *
etl_config_load(int64 pipeline_id, bool secrets, MemoryContext parent)
{
	/*
	 * Under the caller's context until all is well: an ERROR in the middle
	 * must not leave a half-loaded context behind for the worker's life.
	 */
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "etl pipeline definition",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	EtlConfig  *config = palloc0(sizeof(EtlConfig));
	Jsonb	   *options;

	config->context = context;
	config->id = pipeline_id;
	if (!read_definition(config, &options))
	{
		MemoryContextSwitchTo(old);
		MemoryContextDelete(context);
		return NULL;
	}
	MemoryContextSwitchTo(context);
	config->source = psprintf("/etl/" UINT64_FORMAT "/%u/" INT64_FORMAT,
							  GetSystemIdentifier(), MyDatabaseId, pipeline_id);
	if (!config->dropping)
		etl_config_check_owner(config);
	load_options(config, options, secrets);
	if (config->options != NULL)
	{
		load_tables(config);
		load_layouts(config);
		take_general(config);
	}
	MemoryContextSwitchTo(old);
	MemoryContextSetParent(context, parent);
	return config;
}

uint64
etl_config_data_directory(void)
{
	struct stat st;

	if (stat(DataDir, &st) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not stat directory \"%s\": %m", DataDir)));
	return (uint64) st.st_ino;
}

bool
etl_config_is_original(const EtlConfig *config)
{
	return config->has_state && config->system_identifier == GetSystemIdentifier() &&
		config->database == MyDatabaseId &&
		config->data_directory == etl_config_data_directory();
}

EtlConfig *
etl_config_load_destination(Oid server_oid, Oid role, MemoryContext parent)
{
	ForeignServer *server = GetForeignServerExtended(server_oid, FSV_MISSING_OK);
	MemoryContext context;
	MemoryContext old;
	EtlConfig  *config;

	if (server == NULL)
		return NULL;
	context = AllocSetContextCreate(CurrentMemoryContext, "etl destination", ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	config = palloc0(sizeof(EtlConfig));
	config->context = context;
	config->name = pstrdup("");
	config->owner = role;
	config->server = pstrdup(server->servername);
	config->slot_name = pstrdup("");
	config->source = psprintf("/etl/" UINT64_FORMAT "/%u/0", GetSystemIdentifier(), MyDatabaseId);
	load_options(config, DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum("{}"))), true);
	take_general(config);
	MemoryContextSwitchTo(old);
	MemoryContextSetParent(context, parent);
	return config;
}

EtlOptions *
etl_config_table_options(const EtlConfig *config, const char *schema_name, const char *table_name)
{
	ListCell   *lc;

	foreach(lc, config->tables)
	{
		EtlTableConfig *table = lfirst(lc);

		if (strcmp(table->table_name, table_name) == 0 && strcmp(table->schema_name, schema_name) == 0)
			return table->options;
	}
	return config->options;
}

static bool
options_differ(const EtlConfig *old, const EtlConfig *new, const List *tables)
{
	ListCell   *lc;

	foreach(lc, tables)
	{
		const EtlTableConfig *table = lfirst(lc);

		if (!etl_options_equal(etl_config_table_options(old, table->schema_name,
														table->table_name),
							   etl_config_table_options(new, table->schema_name,
														table->table_name)))
			return true;
	}
	return false;
}

bool
etl_config_tables_differ(const EtlConfig *old, const EtlConfig *new)
{
	return options_differ(old, new, old->tables) || options_differ(old, new, new->tables);
}

const EtlOptions *
etl_config_generation_options(const EtlConfig *config, Oid relid, uint32 generation,
							  const EtlOptions *now)
{
	ListCell   *lc;

	foreach(lc, config->layouts)
	{
		EtlLayoutConfig *made = lfirst(lc);

		if (made->relid == relid && made->generation == generation)
			return made->options;
	}
	return now;
}

bool
etl_config_outdated(const EtlConfig *config, Oid relid, uint32 generation)
{
	return etl_config_generation_options(config, relid, generation, NULL) != NULL;
}

EtlOnError
etl_config_on_error(const EtlOptions *table_options)
{
	return strcmp(etl_option_text(table_options, "on_error"), "stop") == 0 ?
		ETL_ON_ERROR_STOP : ETL_ON_ERROR_PARK;
}

bool
etl_config_generated(const EtlOptions *table_options, bool published)
{
	if (etl_option_source(table_options, "generated_columns") == ETL_SOURCE_DEFAULT)
		return published;
	return etl_option_bool(table_options, "generated_columns");
}

uint32
etl_table_abilities(const EtlDestinationRoutine *routine, const EtlOptions *table_options)
{
	return routine->table_abilities ? routine->table_abilities(table_options) :
		routine->abilities;
}
