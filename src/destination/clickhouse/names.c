/*-------------------------------------------------------------------------
 *
 * names.c
 *	  Names of tables at ClickHouse, and the marks by which we know ours.
 *
 * A table's name is its schema's and its own, joined by "_", each "_" in them
 * doubled: no two tables have the same name, and no name has a single "_" at
 * its beginning or before "current", so derived names meet nobody's.
 *
 * ClickHouse makes file names of them, with three bytes for each that is no
 * letter, digit or "_", and refuses what is too long for a file.  A name that
 * would be is cut and gets a hash.
 *
 * Only what carries our mark in its comment is ever altered or dropped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "mb/pg_wchar.h"

#include "destination/clickhouse/clickhouse.h"
#include "net/sign.h"

/* Bytes of a file name that database and table have together. */
#define MOST_NAME_COST	213

#define HASH_DIGITS		16

static void
put_escaped(StringInfo out, const char *text, char quote)
{
	appendStringInfoChar(out, quote);
	for (const char *p = text; *p; p++)
	{
		if (*p == '\\' || *p == quote)
			appendStringInfoChar(out, '\\');
		appendStringInfoChar(out, *p);
	}
	appendStringInfoChar(out, quote);
}

void
ch_put_identifier(StringInfo out, const char *name)
{
	put_escaped(out, name, '`');
}

void
ch_put_literal(StringInfo out, const char *text)
{
	put_escaped(out, text, '\'');
}

void
ch_put_name(StringInfo out, const char *database, const char *name)
{
	ch_put_identifier(out, database);
	appendStringInfoChar(out, '.');
	ch_put_identifier(out, name);
}

void
ch_put_table(StringInfo out, const EtlConnection *connection, const char *name)
{
	ch_put_name(out, connection->database, name);
}

/*
 * Names go out as they are: outside a transaction nothing can be converted.
 */
bool
ch_name_is_utf8(const char *name)
{
	if (GetDatabaseEncoding() == PG_UTF8)
		return true;
	for (; *name; name++)
		if (IS_HIGHBIT_SET(*name))
			return false;
	return true;
}

/* ----------
 * Names
 * ----------
 */

static int
byte_cost(char c)
{
	return isalnum((unsigned char) c) || c == '_' ? 1 : 3;
}

static int
cost(const char *name)
{
	int			sum = 0;

	for (; *name; name++)
		sum += byte_cost(*name);
	return sum;
}

static void
put_part(StringInfo out, const char *part)
{
	for (; *part; part++)
	{
		if (*part == '_')
			appendStringInfoChar(out, '_');
		appendStringInfoChar(out, *part);
	}
}

/* Append the first digits of sha256("schema.table"). */
static void
put_hash(StringInfo out, const EtlShape *shape)
{
	char	   *text = psprintf("%s.%s", shape->schema_name, shape->table_name);
	EtlSpan		span = {text, strlen(text)};
	uint8		digest[ETL_SHA256_LEN];

	etl_sha256(1, &span, digest);
	for (int i = 0; i < HASH_DIGITS / 2; i++)
		appendStringInfo(out, "%02x", digest[i]);
}

/* Cut the name so that it and what follows it cost no more than "most". */
static bool
cut(StringInfo name, const EtlShape *shape, int most)
{
	int			room = most - 2 - HASH_DIGITS;
	int			end = 0;

	if (room < 1)
		return false;
	for (int i = 0; i < name->len;)
	{
		int			len = pg_mblen(name->data + i);

		for (int j = 0; j < len; j++)
			room -= byte_cost(name->data[i + j]);
		if (room < 0)
			break;
		i += len;
		end = i;
	}
	name->len = end;
	name->data[end] = '\0';
	appendStringInfoString(name, "_h");
	put_hash(name, shape);
	return true;
}

static bool
too_long(EtlResult *result, const char *name)
{
	etl_result_set(result, ETL_PARK, ERRCODE_NAME_TOO_LONG,
				   "table name \"%s\" is too long for the destination", name);
	strlcpy(result->hint, "Choose a shorter name with option destination_table.",
			sizeof(result->hint));
	return false;
}

bool
ch_names(const char *database, const EtlShape *shape, const EtlOptions *options,
		 ChNames *names, EtlResult *result)
{
	const char *wanted = etl_option_text(options, "destination_table");
	const char *suffix = ch_is_log(options) ? "" : etl_option_text(options, "view_suffix");
	int			most;
	StringInfoData name;

	if (suffix == NULL)
		suffix = "";
	most = MOST_NAME_COST - cost(database) - cost(suffix);
	if (wanted ? !ch_name_is_utf8(wanted) :
		!ch_name_is_utf8(shape->schema_name) || !ch_name_is_utf8(shape->table_name))
	{
		etl_result_set(result, ETL_PARK, ERRCODE_FEATURE_NOT_SUPPORTED,
					   wanted ? "the name in option destination_table cannot be converted to UTF-8" :
					   "the table's name cannot be converted to UTF-8");
		strlcpy(result->hint, "Choose another name with option destination_table.",
				sizeof(result->hint));
		return false;
	}

	initStringInfo(&name);
	if (wanted)
		appendStringInfoString(&name, wanted);
	else
	{
		put_part(&name, shape->schema_name);
		appendStringInfoChar(&name, '_');
		put_part(&name, shape->table_name);
	}
	if (cost(name.data) > most && (wanted || !cut(&name, shape, most)))
		return too_long(result, name.data);

	names->base = name.data;
	names->view = suffix[0] ? psprintf("%s%s", name.data, suffix) : NULL;
	return true;
}

char *
ch_staging_prefix(const EtlConnection *connection, Oid relid)
{
	return psprintf("_etl_sync_%s_%u_", connection->hex, relid);
}

char *
ch_staging_name(const EtlConnection *connection, Oid relid, uint32 generation)
{
	return psprintf("%s%u", ch_staging_prefix(connection, relid), generation);
}

char *
ch_old_name(const EtlConnection *connection, Oid relid, uint32 generation)
{
	return psprintf("_etl_old_%s_%u_%u", connection->hex, relid, generation);
}

/* ----------
 * Marks
 * ----------
 */

char *
ch_mark(const EtlConnection *connection, Oid relid, uint32 generation, XLogRecPtr shape_lsn)
{
	return psprintf("etl 1 %s/%u/%u %u/" UINT64_FORMAT "/0", connection->identity, relid,
					generation, connection->epoch, (uint64) shape_lsn);
}

char *
ch_mark_prefix(const EtlConnection *connection, Oid relid)
{
	if (!OidIsValid(relid))
		return psprintf("etl 1 %s/", connection->identity);
	return psprintf("etl 1 %s/%u/", connection->identity, relid);
}

bool
ch_mark_parse(const EtlConnection *connection, const char *comment, ChMark *mark)
{
	char	   *prefix = ch_mark_prefix(connection, InvalidOid);
	size_t		len = strlen(prefix);

	return strncmp(comment, prefix, len) == 0 &&
		sscanf(comment + len, "%u/%u ", &mark->relid, &mark->generation) == 2;
}

bool
ch_is_mark(const char *comment)
{
	return strncmp(comment, "etl 1 ", 6) == 0;
}
