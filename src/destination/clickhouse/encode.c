/*-------------------------------------------------------------------------
 *
 * encode.c
 *	  Rows of ClickHouse tables in RowBinary.
 *
 * A row is the columns by attnum and then ours.  Behind an incomplete row
 * stands what is missing: the attnums, two bytes each, and their number.
 * Such a row never goes out; it is completed, or its table is parked.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "datatype/timestamp.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"
#include "format/json.h"
#include "format/rowbinary.h"

#define UNIX_MICROS \
	((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

/* A column of the key, for cdc_old_key. */
typedef struct KeyColumn
{
	AttrNumber	attnum;
	bool		toastable;
	const char *name;			/* as JSON */
	EtlJsonCodec *codec;
} KeyColumn;

struct EtlCodec
{
	ChLayout   *layout;
	EtlRowBinaryCodec **columns;
	EtlRowBinaryCodec *string;	/* to walk over our own columns */
	EtlRowBinaryCodec *nullable_string;
	Bitmapset  *not_key;		/* attnums that a tombstone leaves empty */
	bool		truncates;		/* event log: a truncate is a row */
	int			nkeys;
	KeyColumn  *keys;

	/* used by one call at a time */
	uint32	   *ends;			/* of columns */
	StringInfoData one;
	StringInfoData other;
};

/* ----------
 * Making one
 * ----------
 */

EtlRowBinaryCodec *
ch_walker(const char *type, bool companion)
{
	EtlTypeMapping mapping = {.type = type, .companion = companion};
	EtlColumn	column;

	memset(&column, 0, sizeof(column));
	column.name = "";
	column.type = column.base_type = TEXTOID;
	column.typmod = column.base_typmod = -1;
	return etl_rowbinary_codec(&column, &mapping);
}

static void
make_key(KeyColumn *key, const EtlColumn *column)
{
	EtlJsonOptions options = {0};
	StringInfoData name;

	initStringInfo(&name);
	etl_json_string(&name, column->name);
	key->attnum = column->attnum;
	key->toastable = column->toastable;
	key->name = name.data;
	key->codec = etl_json_codec(column->type, column->typmod, &options);
}

/*
 * What tells rows apart: the key, or where there is none but whole old rows
 * are logged, all of it.
 */
static void
make_keys(EtlCodec *codec, const EtlShape *shape)
{
	codec->keys = palloc0_array(KeyColumn, Max(shape->ncolumns, 1));
	if (shape->nkeys == 0 && shape->replica_identity == REPLICA_IDENTITY_FULL)
	{
		for (int i = 0; i < shape->ncolumns; i++)
			make_key(&codec->keys[codec->nkeys++], &shape->columns[i]);
		return;
	}
	for (int place = 1; place <= shape->nkeys; place++)
		for (int i = 0; i < shape->ncolumns; i++)
			if (shape->columns[i].key_position == place)
				make_key(&codec->keys[codec->nkeys++], &shape->columns[i]);
}

EtlCodec *
ch_codec_create(const EtlShape *shape, const EtlTarget *target, const EtlOptions *options)
{
	EtlCodec   *codec = palloc0_object(EtlCodec);
	ChLayout   *layout = ch_layout(shape, options);
	const char *on_truncate = etl_option_text(options, "on_truncate");

	codec->layout = layout;
	codec->columns = palloc0_array(EtlRowBinaryCodec *, Max(layout->ncolumns, 1));
	codec->ends = palloc0_array(uint32, layout->ncolumns + 1);
	for (int i = 0; i < layout->ncolumns; i++)
	{
		const ChColumn *column = &layout->columns[i];
		bool		keeps = layout->log ? column->source->key_position > 0 : column->sorted;

		codec->columns[i] = etl_rowbinary_codec(column->source, &column->mapping);
		if (!keeps)
			codec->not_key = bms_add_member(codec->not_key, column->attnum);
	}
	codec->string = ch_walker("String", false);
	codec->nullable_string = ch_walker("Nullable(String)", false);
	codec->truncates = on_truncate == NULL || strcmp(on_truncate, "log") == 0;
	if (layout->log)
		make_keys(codec, shape);
	initStringInfo(&codec->one);
	initStringInfo(&codec->other);
	return codec;
}

/* ----------
 * Our own columns
 * ----------
 */

static void
put_uint16(StringInfo out, uint16 value)
{
	etl_rowbinary_uint8(out, value & 0xFF);
	etl_rowbinary_uint8(out, value >> 8);
}

static void
put_time(StringInfo out, TimestampTz time)
{
	etl_rowbinary_uint64(out, (uint64) (time + UNIX_MICROS));
}

static void
put_row_meta(const EtlCodec *codec, const EtlChange *change, uint8 sub, bool deleted, StringInfo out)
{
	EtlPosition position = change->position;

	position.sub = sub;
	etl_rowbinary_version(out, &position);
	etl_rowbinary_uint8(out, deleted);
	if (codec->layout->committed_at)
		put_time(out, change->origin->timestamp);
}

/* The key as a JSON object; values that are not in "row" from "other". */
static void
put_key(const EtlCodec *codec, TupleTableSlot *row, TupleTableSlot *other, StringInfo out)
{
	resetStringInfo(out);
	appendStringInfoChar(out, '{');
	for (int i = 0; i < codec->nkeys; i++)
	{
		const KeyColumn *key = &codec->keys[i];
		TupleTableSlot *from = row;
		int			att = key->attnum - 1;

		if (key->toastable && !row->tts_isnull[att] &&
			VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(row->tts_values[att])))
			from = other;		/* unchanged, and logged with the old key */
		if (i > 0)
			appendStringInfoChar(out, ',');
		appendStringInfoString(out, key->name);
		appendStringInfoChar(out, ':');
		if (from->tts_isnull[att])
			appendStringInfoString(out, "null");
		else
			etl_json_value(key->codec, from->tts_values[att], out, NULL);
	}
	appendStringInfoChar(out, '}');
}

static void
put_old_key(EtlCodec *codec, const EtlChange *change, StringInfo out)
{
	if (change->op == ETL_UPDATE && change->old_row && codec->nkeys > 0)
	{
		put_key(codec, change->old_row, change->old_row, &codec->one);
		put_key(codec, change->new_row, change->old_row, &codec->other);
		if (codec->one.len != codec->other.len ||
			memcmp(codec->one.data, codec->other.data, codec->one.len) != 0)
		{
			etl_rowbinary_uint8(out, 0);
			etl_rowbinary_string(out, codec->one.data, codec->one.len);
			return;
		}
	}
	etl_rowbinary_uint8(out, 1);
}

static void
put_log_meta(EtlCodec *codec, const EtlChange *change, StringInfo out)
{
	static const char *const operations[] = {"", "INSERT", "UPDATE", "DELETE", "TRUNCATE"};
	const char *operation = operations[change->op];

	etl_rowbinary_string(out, operation, strlen(operation));
	put_uint16(out, change->position.epoch);
	etl_rowbinary_uint64(out, change->position.commit_lsn);
	etl_rowbinary_uint64(out, change->position.ordinal);
	put_time(out, change->origin->timestamp);
	put_old_key(codec, change, out);
}

/* ----------
 * Rows
 * ----------
 */

static bool
put_columns(EtlCodec *codec, TupleTableSlot *row, const Bitmapset *missing,
			EtlAdjusted *adjusted, StringInfo out, EtlValueError *error)
{
	return etl_rowbinary_row(codec->columns, codec->layout->ncolumns,
							 row->tts_values, row->tts_isnull, missing, adjusted, out, error);
}

/* What is missing, behind the row. */
static void
put_missing(const Bitmapset *missing, StringInfo out)
{
	int			n = 0;
	int			attnum = -1;

	while ((attnum = bms_next_member(missing, attnum)) >= 0)
	{
		put_uint16(out, attnum);
		n++;
	}
	if (n > 0)
		put_uint16(out, n);
}

static bool
encode_truncate(EtlCodec *codec, const EtlChange *change, StringInfo out)
{
	if (!codec->layout->log || !codec->truncates)
		return true;
	for (int i = 0; i < codec->layout->ncolumns; i++)
		etl_rowbinary_null(codec->columns[i], out);
	put_log_meta(codec, change, out);
	return true;
}

static bool
encode_log(EtlCodec *codec, const EtlChange *change, StringInfo out, EtlValueError *error)
{
	bool		is_delete = change->op == ETL_DELETE;
	const Bitmapset *missing = change->missing;

	if (is_delete)
		missing = change->old_kind == ETL_OLD_FULL ? NULL : codec->not_key;
	if (!put_columns(codec, is_delete ? change->old_row : change->new_row, missing,
					 change->adjusted, out, error))
		return false;
	put_log_meta(codec, change, out);
	if (!is_delete)
		put_missing(missing, out);
	return true;
}

static bool
sort_differs(EtlCodec *codec, const EtlChange *change, EtlValueError *error)
{
	resetStringInfo(&codec->one);
	resetStringInfo(&codec->other);
	return put_columns(codec, change->old_row, codec->not_key, NULL, &codec->one, error) &&
		put_columns(codec, change->new_row, codec->not_key, NULL, &codec->other, error) &&
		(codec->one.len != codec->other.len ||
		 memcmp(codec->one.data, codec->other.data, codec->one.len) != 0);
}

static bool
put_tombstone(EtlCodec *codec, const EtlChange *change, StringInfo out, EtlValueError *error)
{
	if (!put_columns(codec, change->old_row, codec->not_key, change->adjusted, out, error))
		return false;
	put_row_meta(codec, change, 0, true, out);
	return true;
}

static bool
encode_current(EtlCodec *codec, const EtlChange *change, StringInfo out, EtlValueError *error)
{
	uint8		sub = change->position.sub;

	if (change->op == ETL_DELETE)
		return put_tombstone(codec, change, out, error);

	/*
	 * A row that moves in ORDER BY although its key stays: both rows in one
	 * item.
	 */
	if (codec->layout->sorted_by_more && change->op == ETL_UPDATE && sub == 0 &&
		change->old_kind == ETL_OLD_FULL && sort_differs(codec, change, error))
	{
		if (!put_tombstone(codec, change, out, error))
			return false;
		sub = 1;
	}
	if (!put_columns(codec, change->new_row, change->missing, change->adjusted, out, error))
		return false;
	put_row_meta(codec, change, sub, false, out);
	put_missing(change->missing, out);
	return true;
}

bool
ch_encode_row(EtlCodec *codec, const EtlChange *change, StringInfo out, EtlValueError *error)
{
	TupleTableSlot *row = change->op == ETL_DELETE ? change->old_row : change->new_row;

	if (change->op == ETL_TRUNCATE)
		return encode_truncate(codec, change, out);
	if (row == NULL)
		return true;
	return codec->layout->log ? encode_log(codec, change, out, error) :
		encode_current(codec, change, out, error);
}

/* ----------
 * Completion
 * ----------
 */

/* What a row consists of; ends of the columns are in codec->ends. */
typedef struct Parts
{
	uint32		end;			/* of the row itself */
	int			nmissing;
	const uint8 *missing;		/* two bytes each */
} Parts;

static bool
skip_log_meta(const EtlCodec *codec, const char *row, uint32 len, uint32 *at)
{
	uint32		n = etl_rowbinary_skip(codec->string, row + *at, len - *at);

	if (n == 0 || len - *at - n < 26)
		return false;
	*at += n + 26;				/* epoch, position, time */
	n = etl_rowbinary_skip(codec->nullable_string, row + *at, len - *at);
	*at += n;
	return n > 0;
}

static bool
take_apart(EtlCodec *codec, const char *row, uint32 len, Parts *parts)
{
	uint32		at = 0;
	const uint8 *tail;

	for (int i = 0; i < codec->layout->ncolumns; i++)
	{
		uint32		n = etl_rowbinary_skip(codec->columns[i], row + at, len - at);

		if (n == 0)
			return false;
		at += n;
		codec->ends[i] = at;
	}
	if (codec->layout->log)
	{
		if (!skip_log_meta(codec, row, len, &at))
			return false;
	}
	else
	{
		uint32		n = codec->layout->committed_at ? 25 : 17;

		if (len - at < n)
			return false;
		at += n;
	}
	parts->end = at;
	parts->nmissing = 0;
	if (at == len)
		return true;
	if (len - at < 4)
		return false;
	tail = (const uint8 *) row + len - 2;
	parts->nmissing = tail[0] | tail[1] << 8;
	parts->missing = (const uint8 *) row + at;
	return len - at == 2 * (uint32) parts->nmissing + 2;
}

static bool
is_missing(const Parts *parts, AttrNumber attnum)
{
	for (int i = 0; i < parts->nmissing; i++)
		if ((parts->missing[2 * i] | parts->missing[2 * i + 1] << 8) == attnum)
			return true;
	return false;
}

bool
ch_extract(EtlCodec *codec, const char *row, uint32 len, AttrNumber attnum,
		   const char **value, uint32 *value_len)
{
	Parts		parts;

	if (!take_apart(codec, row, len, &parts) || is_missing(&parts, attnum))
		return false;
	for (int i = 0; i < codec->layout->ncolumns; i++)
	{
		uint32		begin = i > 0 ? codec->ends[i - 1] : 0;

		if (codec->layout->columns[i].attnum != attnum)
			continue;
		*value = row + begin;
		*value_len = codec->ends[i] - begin;
		return true;
	}
	return false;
}

bool
ch_splice(EtlCodec *codec, const char *row, uint32 len, int ncolumns,
		  const AttrNumber *attnums, const char *const *values,
		  const uint32 *value_lens, StringInfo out)
{
	const ChLayout *layout = codec->layout;
	Bitmapset  *missing = NULL;
	Parts		parts;
	uint32		begin = 0;

	if (!take_apart(codec, row, len, &parts))
		return false;
	for (int i = 0; i < layout->ncolumns; i++)
	{
		AttrNumber	attnum = layout->columns[i].attnum;
		const char *data = row + begin;
		uint32		data_len = codec->ends[i] - begin;
		bool		filled = false;

		for (int j = 0; j < ncolumns; j++)
		{
			if (attnums[j] != attnum)
				continue;
			data = values[j];
			data_len = value_lens[j];
			filled = true;
		}
		if (!filled && is_missing(&parts, attnum))
			missing = bms_add_member(missing, attnum);
		appendBinaryStringInfo(out, data, data_len);
		begin = codec->ends[i];
	}
	appendBinaryStringInfo(out, row + begin, parts.end - begin);
	put_missing(missing, out);
	bms_free(missing);
	return true;
}
