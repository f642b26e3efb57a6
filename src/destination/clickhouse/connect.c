/*-------------------------------------------------------------------------
 *
 * connect.c
 *	  A connection to ClickHouse: secrets, version, database, rights.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"
#include "guc.h"
#include "net/secret.h"

/* ReplacingMergeTree with is_deleted. */
#define LEAST_MAJOR		23
#define LEAST_MINOR		5

/* CHECK GRANT. */
#define GRANT_MAJOR		24
#define GRANT_MINOR		10

static EtlCompression
compression_of(const char *name)
{
	if (name == NULL || strcmp(name, "none") == 0)
		return ETL_COMPRESS_NONE;
	if (strcmp(name, "gzip") == 0)
		return ETL_COMPRESS_GZIP;
	if (strcmp(name, "lz4") == 0)
		return ETL_COMPRESS_LZ4;
	return ETL_COMPRESS_ZSTD;
}

void
ch_need_pool(EtlConnection *connection)
{
	const EtlOptions *options = connection->options;
	MemoryContext old;
	EtlHttpSettings settings;

	if (connection->http != NULL)
		return;
	MemoryContextReset(connection->http_context);
	connection->insert_waited = 0;
	old = MemoryContextSwitchTo(connection->http_context);
	memset(&settings, 0, sizeof(settings));
	settings.connect_timeout = etl_option_int(options, "connect_timeout");
	settings.request_timeout = etl_option_int(options, "request_timeout");
	settings.stall_timeout = settings.request_timeout;	/* queries are silent */
	settings.ca_file = etl_option_text(options, "ca_file");
	settings.client_cert_file = etl_option_text(options, "client_cert_file");
	settings.client_key_file = etl_option_text(options, "client_key_file");
	settings.proxy = etl_option_text(options, "proxy");
	settings.allowed_hosts = etl_allowed_hosts;
	connection->http = etl_http_create(&settings);
	MemoryContextSwitchTo(old);
}

EtlConnection *
ch_open(const EtlConnectArgs *args)
{
	EtlConnection *connection = palloc0_object(EtlConnection);
	HASHCTL		control;
	const char *hex = args->slot_name ? args->slot_name : "";

	if (strlen(hex) > CH_HEX_LEN)
		hex += strlen(hex) - CH_HEX_LEN;
	strlcpy(connection->hex, hex, sizeof(connection->hex));
	connection->context = CurrentMemoryContext;
	connection->options = args->options;
	connection->identity = pstrdup(args->source + strlen("/etl/"));
	connection->epoch = args->epoch;
	connection->incarnation = args->incarnation;
	connection->is_tracked = args->is_tracked;
	connection->exists = args->exists;
	connection->database = etl_option_text(args->options, "database");
	connection->compression = compression_of(etl_option_text(args->options, "compression"));
	connection->secrets_context = AllocSetContextCreate(CurrentMemoryContext,
														"etl clickhouse secrets", ALLOCSET_SMALL_SIZES);
	connection->http_context = AllocSetContextCreate(CurrentMemoryContext,
													 "etl clickhouse pool", ALLOCSET_SMALL_SIZES);
	connection->scratch = AllocSetContextCreate(CurrentMemoryContext,
												"etl clickhouse call", ALLOCSET_SMALL_SIZES);
	memset(&control, 0, sizeof(control));
	control.keysize = sizeof(ChPlaceKey);
	control.entrysize = sizeof(ChPlace);
	control.hcxt = CurrentMemoryContext;
	connection->places = hash_create("etl clickhouse tables", 64, &control,
									 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	dlist_init(&connection->sends);
	return connection;
}

/* The password as it is now; false with "result" set if it cannot be read. */
static bool
read_password(EtlConnection *connection, EtlResult *result)
{
	const char *file = etl_option_text(connection->options, "password_file");
	const char *password = etl_option_text(connection->options, "password");
	MemoryContext old;

	connection->password = NULL;
	MemoryContextReset(connection->secrets_context);
	old = MemoryContextSwitchTo(connection->secrets_context);
	if (file)
	{
		List	   *lines = etl_secret_file(file, result);

		if (lines != NIL)
			connection->password = linitial(lines);
	}
	else if (password)
		connection->password = pstrdup(password);
	MemoryContextSwitchTo(old);
	return file == NULL || connection->password != NULL;
}

/* Who was refused may have been given another password: see ch_need_password(). */
void
ch_note_refusal(EtlConnection *connection, const EtlResult *result)
{
	if (result->status == ETL_ENDPOINT &&
		(result->sqlstate == ERRCODE_INVALID_PASSWORD ||
		 result->sqlstate == ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION))
		connection->refused = true;
}

/*
 * Before a request: after a refusal the file is read again.  A secret that was
 * replaced there would else be missed until the next connect, which may be
 * never.
 */
bool
ch_need_password(EtlConnection *connection, EtlResult *result)
{
	if (!connection->refused)
		return true;
	if (!read_password(connection, result))
		return false;
	connection->refused = false;
	return true;
}

static bool
check_rights(EtlConnection *connection, EtlResult *result)
{
	StringInfoData sql;
	ChRows		rows;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "CHECK GRANT SELECT, INSERT, ALTER TABLE, CREATE TABLE, DROP TABLE,"
						   " CREATE VIEW, DROP VIEW ON ");
	ch_put_identifier(&sql, connection->database);
	appendStringInfoString(&sql, ".* FORMAT RowBinary");
	if (!ch_run(connection, CH_READ, sql.data, &rows, result))
	{
		if (connection->code == 0)
			return false;
		memset(result, 0, sizeof(*result)); /* statements will tell */
		return true;
	}
	if (rows.len == 1 && ch_rows_number(&rows, 1) == 0)
	{
		etl_result_set(result, ETL_ENDPOINT, ERRCODE_INSUFFICIENT_PRIVILEGE,
					   "the user lacks rights on database \"%s\" of ClickHouse", connection->database);
		strlcpy(result->hint,
				"The user needs SELECT, INSERT, ALTER TABLE, CREATE TABLE, DROP TABLE, CREATE VIEW and DROP VIEW there.",
				sizeof(result->hint));
		return false;
	}
	return true;
}

static void
connect_in_scratch(EtlConnection *connection, EtlResult *result)
{
	StringInfoData sql;
	ChRows		rows;
	char	   *version;
	char	   *engine;
	int			major = 0;
	int			minor = 0;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT version(), (SELECT any(engine) FROM system.databases WHERE name = ");
	ch_put_literal(&sql, connection->database);
	appendStringInfoString(&sql, ")::String, (SELECT count() FROM system.settings"
						   " WHERE name = 'deduplicate_insert')::UInt8,"
						   " (SELECT count() FROM system.settings"
						   " WHERE name = 'max_table_size_to_drop')::UInt8 FORMAT RowBinary");
	if (!ch_run(connection, CH_READ, sql.data, &rows, result))
		return;
	version = ch_rows_string(&rows);
	engine = ch_rows_string(&rows);
	connection->has_deduplicate_insert = ch_rows_more(&rows) && ch_rows_number(&rows, 1) > 0;
	connection->has_drop_limit = ch_rows_more(&rows) && ch_rows_number(&rows, 1) > 0;
	if (!ch_rows_done(&rows) || sscanf(version, "%d.%d", &major, &minor) != 2)
	{
		etl_result_set(result, ETL_ENDPOINT, ERRCODE_FDW_ERROR,
					   "the server at the URL does not answer as ClickHouse does");
		return;
	}
	if (major < LEAST_MAJOR || (major == LEAST_MAJOR && minor < LEAST_MINOR))
	{
		etl_result_set(result, ETL_ENDPOINT, ERRCODE_FEATURE_NOT_SUPPORTED,
					   "ClickHouse %d.%d is too old", major, minor);
		snprintf(result->hint, sizeof(result->hint), "ClickHouse %d.%d or newer is needed.",
				 LEAST_MAJOR, LEAST_MINOR);
		return;
	}
	if (engine[0] == '\0')
	{
		etl_result_set(result, ETL_ENDPOINT, ERRCODE_UNDEFINED_DATABASE,
					   "database \"%s\" does not exist at ClickHouse", connection->database);
		strlcpy(result->hint, "Create the database at ClickHouse, or change option database of the server.",
				sizeof(result->hint));
		return;
	}
	if (strcmp(engine, "Ordinary") == 0)
	{
		etl_result_set(result, ETL_ENDPOINT, ERRCODE_FEATURE_NOT_SUPPORTED,
					   "database \"%s\" at ClickHouse has engine Ordinary, which cannot exchange tables",
					   connection->database);
		strlcpy(result->hint, "Use a database with engine Atomic.", sizeof(result->hint));
		return;
	}
	if (major > GRANT_MAJOR || (major == GRANT_MAJOR && minor >= GRANT_MINOR))
		(void) check_rights(connection, result);
}

void
ch_connect(EtlConnection *connection, EtlResult *result)
{
	MemoryContext old;

	memset(result, 0, sizeof(*result));
	if (connection->in_flight == 0)
		connection->http = NULL;	/* settings and certificates as they are now */
	if (!read_password(connection, result))
		return;
	connection->refused = false;
	MemoryContextReset(connection->scratch);
	old = MemoryContextSwitchTo(connection->scratch);
	connect_in_scratch(connection, result);
	MemoryContextSwitchTo(old);
}

void
ch_close(EtlConnection *connection)
{
	connection->http = NULL;
	connection->password = NULL;
	MemoryContextReset(connection->http_context);
	MemoryContextReset(connection->secrets_context);
}
