/*-------------------------------------------------------------------------
 *
 * readback.c
 *	  What ClickHouse has under the keys of rows with holes.
 *
 * One SELECT asks for the newest row of each key, also if it is a tombstone:
 *
 *	 older, a row		what the source's row was before: its values fill holes
 *	 older, deleted		another row had the key; it tells nothing
 *	 newer				our row is a replay, and whatever fills it is never seen
 *
 * A log has no tombstone where a row left its key by a change of it, so the
 * new row of such a change, whose predecessor is under another key, is not
 * asked about.
 *
 * Keys travel as numbers and in hexadecimal; the answer is RowBinary, and
 * holds values in the very bytes that encoded rows have.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"
#include "format/rowbinary.h"
#include "format/rowbinary_type.h"

typedef struct ReadBack
{
	const ChLayout *layout;
	EtlRowBinaryCodec **walkers;	/* by column of the layout */
	int			nkeys;
	int		   *keys;			/* columns of the layout */
	int			ncolumns;
	int		   *columns;		/* those asked for; -1: it has no such column */
	EtlRowBinaryCodec *string;	/* to walk over our own columns */
	StringInfoData key;			/* of one row, in RowBinary */
} ReadBack;

/* The newest row of one key, as the answer has it. */
typedef struct Newest
{
	const char *key;
	uint32		key_len;
	EtlPosition version;
	bool		deleted;
	const char **values;
	uint32	   *lens;
} Newest;

/* ----------
 * The question
 * ----------
 */

static void
make_plan(ReadBack *call, const EtlTable *table, int ncolumns, const AttrNumber *attnums)
{
	ChLayout   *layout = ch_layout(table->shape, table->options);

	call->layout = layout;
	call->walkers = palloc0_array(EtlRowBinaryCodec *, Max(layout->ncolumns, 1));
	call->keys = palloc0_array(int, Max(layout->ncolumns, 1));
	call->columns = palloc0_array(int, Max(ncolumns, 1));
	call->ncolumns = ncolumns;
	for (int i = 0; i < layout->ncolumns; i++)
	{
		call->walkers[i] = ch_walker(layout->columns[i].mapping.type,
									 layout->columns[i].mapping.companion);
		if (layout->columns[i].source->key_position > 0)
			call->keys[call->nkeys++] = i;
	}
	for (int i = 0; i < ncolumns; i++)
	{
		call->columns[i] = -1;
		for (int j = 0; j < layout->ncolumns; j++)
			if (layout->columns[j].attnum == attnums[i])
				call->columns[i] = j;
	}
	call->string = ch_walker("String", false);
	initStringInfo(&call->key);
}

/*
 * Put the value at "data" as an expression.  False: there is none for values
 * of this type, or it is NULL.
 */
static bool
put_expression(StringInfo out, const char *type_text, const char *data, uint32 len)
{
	EtlRowBinaryType type;
	int64		days;

	etl_rowbinary_parse(type_text, &type);
	if (type.dimensions > 0)
		return false;
	if (type.nullable)
	{
		if (len < 1 || data[0] != 0)
			return false;
		data++;
		len--;
	}
	switch (type.base)
	{
		case ETL_RB_BOOL:
		case ETL_RB_INT:
		case ETL_RB_UINT:
		case ETL_RB_FLOAT:
		case ETL_RB_DECIMAL:
		case ETL_RB_DATE:
		case ETL_RB_DATETIME:
		case ETL_RB_DATETIME64:
		case ETL_RB_UUID:
			appendStringInfoString(out, "reinterpret(unhex('");
			break;
		case ETL_RB_DATE32:
			days = (int32) ((uint8) data[0] | (uint8) data[1] << 8 | (uint8) data[2] << 16 |
							(uint32) (uint8) data[3] << 24);
			appendStringInfo(out, "addDays(toDate32('1970-01-01'), " INT64_FORMAT ")", days);
			return true;
		case ETL_RB_STRING:
			/* behind its length */
			while (len > 0 && (*data & 0x80))
				data++, len--;
			data++, len--;
			appendStringInfoString(out, "unhex('");
			break;
		case ETL_RB_FIXED_STRING:
			appendStringInfoString(out, "toFixedString(unhex('");
			break;
		default:
			return false;
	}
	for (uint32 i = 0; i < len; i++)
		appendStringInfo(out, "%02x", (uint8) data[i]);
	if (type.base == ETL_RB_STRING)
		appendStringInfoString(out, "')");
	else if (type.base == ETL_RB_FIXED_STRING)
		appendStringInfo(out, "'), %d)", type.width);
	else
	{
		const char *core = type_text;

		if (strncmp(core, "Nullable(", 9) == 0)
			core = pnstrdup(core + 9, strlen(core) - 10);
		appendStringInfoString(out, "'), ");
		ch_put_literal(out, core);
		appendStringInfoChar(out, ')');
	}
	return true;
}

/* Was the row under another key before (cdc_old_key is not NULL)? */
static bool
has_moved(const ReadBack *call, const EtlItem *item, uint32 at)
{
	uint32		n;

	if (!call->layout->log)
		return false;
	n = etl_rowbinary_skip(call->string, item->data + at, item->len - at);
	at += n + 26;				/* epoch, position, time */
	return n == 0 || at >= item->len || item->data[at] == 0;
}

/*
 * The key of an encoded row: its bytes to call->key, and, with "sql", an
 * expression.  False when nothing can be asked about the row.
 */
static bool
take_key(ReadBack *call, const EtlItem *item, StringInfo sql)
{
	const ChLayout *layout = call->layout;
	uint32		at = 0;
	int			nkeys = 0;
	int			begin = sql ? sql->len : 0;

	resetStringInfo(&call->key);
	if (sql)
		appendStringInfoChar(sql, '(');
	for (int i = 0; i < layout->ncolumns; i++)
	{
		uint32		n = etl_rowbinary_skip(call->walkers[i], item->data + at, item->len - at);
		bool		is_key = nkeys < call->nkeys && call->keys[nkeys] == i;

		if (n == 0)
			break;
		if (is_key)
		{
			appendBinaryStringInfo(&call->key, item->data + at, n);
			if (sql && nkeys > 0)
				appendStringInfoString(sql, ", ");
			if (sql && !put_expression(sql, layout->columns[i].mapping.type, item->data + at, n))
				break;
			nkeys++;
		}
		at += n;
	}
	if (nkeys == call->nkeys && !has_moved(call, item, at))
	{
		if (sql)
			appendStringInfoChar(sql, ')');
		return true;
	}
	if (sql)
	{
		sql->len = begin;
		sql->data[begin] = '\0';
	}
	return false;
}

/* A column stands for its companion too: a value has both. */
static void
put_names(StringInfo out, const ReadBack *call, int n, const int *columns, bool first)
{
	for (int i = 0; i < n; i++)
	{
		if (columns[i] < 0)
			continue;
		for (int j = 0; j < call->layout->nparts; j++)
		{
			if (call->layout->parts[j].column != &call->layout->columns[columns[i]])
				continue;
			if (!first)
				appendStringInfoString(out, ", ");
			ch_put_identifier(out, call->layout->parts[j].name);
			first = false;
		}
	}
}

/* False when there is nothing to ask. */
static bool
put_query(StringInfo out, ReadBack *call, const EtlConnection *connection, const char *name,
		  int nrows, const EtlItem *rows)
{
	const char *version = call->layout->log ? "(`cdc_epoch`, `cdc_lsn`, `cdc_ordinal`)" : "`_etl_version`";
	bool		any = false;
	bool		json = false;

	appendStringInfoString(out, "SELECT ");
	put_names(out, call, call->nkeys, call->keys, true);
	appendStringInfo(out, ", max(%s), argMax(tuple(%s", version,
					 call->layout->log ? "`cdc_operation` = 'DELETE'" : "`_etl_deleted`");
	put_names(out, call, call->ncolumns, call->columns, false);
	appendStringInfo(out, "), %s) FROM ", version);
	ch_put_table(out, connection, name);
	appendStringInfoString(out, " WHERE (");
	put_names(out, call, call->nkeys, call->keys, true);
	appendStringInfoString(out, ") IN (");
	for (int i = 0; i < nrows; i++)
	{
		int			begin = out->len;

		if (any)
			appendStringInfoString(out, ", ");
		if (take_key(call, &rows[i], out))
			any = true;
		else
		{
			out->len = begin;
			out->data[begin] = '\0';
		}
	}
	appendStringInfoString(out, ") GROUP BY ");
	put_names(out, call, call->nkeys, call->keys, true);
	for (int i = 0; i < call->ncolumns; i++)
		json = json || (call->columns[i] >= 0 &&
						strstr(call->layout->columns[call->columns[i]].mapping.type, "JSON") != NULL);
	if (json)					/* as rows have it; older servers do not know it */
		appendStringInfoString(out, " SETTINGS output_format_binary_write_json_as_string = 1");
	appendStringInfoString(out, " FORMAT RowBinary");
	return any && call->nkeys > 0;
}

/* ----------
 * The answer
 * ----------
 */

static bool
take_value(const ReadBack *call, ChRows *answer, int column, const char **value, uint32 *len)
{
	*value = answer->data + answer->at;
	*len = etl_rowbinary_skip(call->walkers[column], *value,
							  (uint32) Min(answer->len - answer->at, PG_UINT32_MAX));
	answer->at += *len;
	return *len > 0;
}

static void
take_version(const ReadBack *call, ChRows *answer, EtlPosition *version)
{
	memset(version, 0, sizeof(*version));
	if (call->layout->log)
	{
		version->epoch = (uint16) ch_rows_number(answer, 2);
		version->commit_lsn = ch_rows_number(answer, 8);
		version->ordinal = ch_rows_number(answer, 8);
		return;
	}
	/* as etl_rowbinary_version() writes it, from the low end */
	version->sub = (uint8) ch_rows_number(answer, 1);
	version->ordinal = ch_rows_number(answer, 5);
	version->commit_lsn = ch_rows_number(answer, 8);
	version->epoch = (uint16) ch_rows_number(answer, 2);
}

/* The next row of the answer; false if it is not what we have asked for. */
static bool
take_newest(const ReadBack *call, ChRows *answer, Newest *newest)
{
	const char *value;
	uint32		len;

	newest->key = answer->data + answer->at;
	newest->key_len = 0;
	for (int i = 0; i < call->nkeys; i++)
	{
		if (!take_value(call, answer, call->keys[i], &value, &len))
			return false;
		newest->key_len += len;
	}
	take_version(call, answer, &newest->version);
	newest->deleted = ch_rows_number(answer, 1) != 0;
	if (answer->broken)
		return false;
	for (int i = 0; i < call->ncolumns; i++)
	{
		newest->values[i] = NULL;
		if (call->columns[i] >= 0 &&
			!take_value(call, answer, call->columns[i], &newest->values[i], &newest->lens[i]))
			return false;
	}
	return true;
}

/* Is the destination's row older than ours? */
static bool
is_older(const EtlPosition *version, uint16 epoch, const EtlItem *item)
{
	if (version->epoch != epoch)
		return version->epoch < epoch;
	if (version->commit_lsn != item->commit_lsn)
		return version->commit_lsn < item->commit_lsn;
	if (version->ordinal != item->ordinal)
		return version->ordinal < item->ordinal;
	return version->sub < item->sub;
}

/* See the head of this file; of a former key, only what was there before. */
static bool
is_usable(const Newest *newest, uint16 epoch, const EtlItem *item)
{
	bool		older = is_older(&newest->version, epoch, item);

	return item->op == ETL_DELETE ? older && !newest->deleted : !older || !newest->deleted;
}

/*
 * Rows that a log has already are not sent again; so it does not matter what
 * fills them.
 */
static void
fill_known(const ReadBack *call, const ChPlace *place, uint16 epoch, int nrows, const EtlItem *rows,
		   Newest *newest,
		   void (*found) (void *arg, int row, EtlPosition version, const char *const *values,
						  const uint32 *lens),
		   void *arg)
{
	memset(&newest->version, 0, sizeof(newest->version));
	newest->version.epoch = place->epoch;
	newest->version.commit_lsn = place->lsn;
	newest->version.ordinal = place->ordinal;
	for (int i = 0; i < call->ncolumns; i++)
	{
		StringInfoData null;

		newest->values[i] = NULL;
		if (call->columns[i] < 0)
			continue;
		initStringInfo(&null);
		etl_rowbinary_null(call->walkers[call->columns[i]], &null);
		newest->values[i] = null.data;
		newest->lens[i] = null.len;
	}
	for (int i = 0; i < nrows; i++)
		if (!is_older(&newest->version, epoch, &rows[i]))
			found(arg, i, newest->version, newest->values, newest->lens);
}

static void
read_back(EtlConnection *connection, EtlTable *table, int nrows, const EtlItem *rows,
		  int ncolumns, const AttrNumber *attnums,
		  void (*found) (void *arg, int row, EtlPosition version, const char *const *values,
						 const uint32 *lens),
		  void *arg, EtlResult *result)
{
	ReadBack	call = {0};
	Newest		newest;
	ChRows		answer;
	ChPlace    *place = ch_place(connection, table, result);
	StringInfoData sql;

	if (place == NULL)
		return;
	make_plan(&call, table, ncolumns, attnums);
	newest.values = palloc0_array(const char *, Max(ncolumns, 1));
	newest.lens = palloc0_array(uint32, Max(ncolumns, 1));
	initStringInfo(&sql);
	if (place->skip)
		fill_known(&call, place, connection->epoch, nrows, rows, &newest, found, arg);
	if (!put_query(&sql, &call, connection, place->name, nrows, rows))
		return;
	if (!ch_run(connection, CH_READ, sql.data, &answer, result))
	{
		/* the answer, not the question */
		if (result->status == ETL_RETRY && result->sqlstate == ERRCODE_PROGRAM_LIMIT_EXCEEDED)
			result->status = ETL_TOO_LARGE;
		if (connection->code == CH_UNKNOWN_TABLE)
			ch_forget_place(connection, table->relid, table->generation);
		return;
	}
	while (ch_rows_more(&answer))
	{
		if (!take_newest(&call, &answer, &newest))
		{
			etl_result_set(result, ETL_RETRY, ERRCODE_FDW_ERROR,
						   "ClickHouse gave an answer that was not asked for");
			return;
		}
		for (int i = 0; i < nrows; i++)
		{
			if (take_key(&call, &rows[i], NULL) && call.key.len == newest.key_len &&
				memcmp(call.key.data, newest.key, newest.key_len) == 0 &&
				is_usable(&newest, connection->epoch, &rows[i]))
				found(arg, i, newest.version, newest.values, newest.lens);
		}
	}
}

void
ch_read_back(EtlConnection *connection, EtlTable *table, int nrows, const EtlItem *rows,
			 int ncolumns, const AttrNumber *attnums,
			 void (*found) (void *arg, int row, EtlPosition version, const char *const *values,
							const uint32 *lens),
			 void *arg, EtlResult *result)
{
	MemoryContext old = MemoryContextSwitchTo(connection->scratch);

	memset(result, 0, sizeof(*result));
	result->rejected = -1;
	result->retry_after = -1;
	read_back(connection, table, nrows, rows, ncolumns, attnums, found, arg, result);
	MemoryContextSwitchTo(old);
	MemoryContextReset(connection->scratch);
}
