/*-------------------------------------------------------------------------
 *
 * rowbinary.c
 *	  ClickHouse's RowBinary format: the encoder, knowing no destination.
 *
 * A row is its values one after the other, without separators: numbers least
 * significant byte first, strings with a LEB128 length, a byte 0 or 1 before
 * every value of a Nullable type.
 *
 * This is the innermost loop of both phases.  What a codec does with a value
 * is decided once, when it is made for a pair of source and destination type;
 * after that a value costs one switch and one copy.  Nothing is allocated but
 * where an output function runs or a value is compressed, and then in one
 * scratch context per process, emptied before its next use.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "mb/pg_wchar.h"
#include "utils/date.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "format/rowbinary_codec.h"
#include "format/rowbinary_put.h"

/* A buffer of this size is not kept. */
#define LARGE_JSON	(1024 * 1024)

/* Where output functions and decompression allocate; see take_scratch(). */
static MemoryContext scratch = NULL;
static bool scratch_used = false;

/* A value of the row was changed by policy. */
static bool changed = false;

/*
 * The scratch context, empty.  What it gave out stays valid until the next
 * value that needs it.
 */
static MemoryContext
take_scratch(void)
{
	if (scratch == NULL)
		scratch = AllocSetContextCreate(TopMemoryContext, "etl rowbinary",
										ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(scratch);
	scratch_used = true;
	return scratch;
}

/* A large value is not kept until the next one comes. */
static inline void
empty_scratch(void)
{
	if (scratch_used)
		MemoryContextReset(scratch);
	scratch_used = false;
}

static struct varlena *
detoast(struct varlena *value)
{
	MemoryContext old = MemoryContextSwitchTo(take_scratch());

	value = pg_detoast_datum_packed(value);
	MemoryContextSwitchTo(old);
	return value;
}

/*
 * A varlena whose bytes can be read in place: what the reorder buffer put
 * together from TOAST is followed, a compressed one is decompressed.
 */
static inline struct varlena *
readable(Datum datum)
{
	struct varlena *value = (struct varlena *) DatumGetPointer(datum);

	if (VARATT_IS_EXTERNAL_INDIRECT(value))
	{
		struct varatt_indirect redirect;

		VARATT_EXTERNAL_GET_POINTER(redirect, value);
		value = redirect.pointer;
	}
	if (unlikely(VARATT_IS_COMPRESSED(value) || VARATT_IS_EXTERNAL(value)))
		value = detoast(value);
	return value;
}

/*
 * Text in the database's encoding in UTF-8, in the scratch context, or as it
 * is where that is the same.
 */
static pg_noinline const char *
to_utf8(const char *data, uint32 *len)
{
	MemoryContext old;
	const char *text;

	if (scratch == NULL)
		(void) take_scratch();
	scratch_used = true;
	old = MemoryContextSwitchTo(scratch);	/* may hold "data": no reset */
	text = (const char *) pg_do_encoding_conversion((unsigned char *) unconstify(char *, data),
													*len, GetDatabaseEncoding(), PG_UTF8);
	MemoryContextSwitchTo(old);
	if (text != data)
		*len = strlen(text);
	return text;
}

static inline void
put_text(const EtlRowBinaryCodec *codec, StringInfo out,
		 const char *data, uint32 len)
{
	const char *text;

	if (likely(!codec->convert))
	{
		put_string(out, data, len);
		return;
	}
	text = to_utf8(data, &len);
	put_string(out, text, len);
	if (text != data)
		pfree(unconstify(char *, text));
}

static void
put_output(EtlRowBinaryCodec *codec, Datum value, StringInfo out)
{
	MemoryContext old = MemoryContextSwitchTo(take_scratch());
	char	   *text = OutputFunctionCall(&codec->output, value);

	MemoryContextSwitchTo(old);
	put_text(codec, out, text, strlen(text));
}

/* Money without currency and grouping: "-1234.50". */
static void
put_money(StringInfo out, int64 value, int digits)
{
	char		buffer[32];
	char	   *p = buffer + sizeof(buffer);
	uint64		rest = value < 0 ? -(uint64) value : (uint64) value;

	for (int i = 0; i <= digits || rest > 0; i++)
	{
		if (i == digits && digits > 0)
			*--p = '.';
		*--p = '0' + rest % 10;
		rest /= 10;
	}
	if (value < 0)
		*--p = '-';
	put_string(out, p, buffer + sizeof(buffer) - p);
}

/* The bits of an xid8 above int64 give a negative number: its users know. */
int64
etl_rowbinary_integer(const EtlRowBinaryCodec *codec, Datum value)
{
	switch (codec->source_width)
	{
		case -1:
			return DatumGetBool(value);
		case 2:
			return DatumGetInt16(value);
		case 4:
			return DatumGetInt32(value);
		case -4:
			return DatumGetUInt32(value);
		default:
			return DatumGetInt64(value);
	}
}

pg_noinline bool
etl_rowbinary_refuse(const EtlRowBinaryCodec *codec, int sqlstate, const char *what,
	   EtlValueError *error)
{
	error->attnum = codec->attnum;
	error->sqlstate = sqlstate;
	snprintf(error->message, sizeof(error->message),
			 "value of column \"%s\" %s %s", codec->column, what, codec->type);
	return false;
}

static bool
refuse_range(const EtlRowBinaryCodec *codec, EtlValueError *error)
{
	bool		is_time = codec->action == RB_DATE_DAYS || codec->action == RB_TICKS;

	return etl_rowbinary_refuse(codec, is_time ? ERRCODE_DATETIME_FIELD_OVERFLOW :
								ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
								"is outside the range of", error);
}

static bool
refuse_inexact(const EtlRowBinaryCodec *codec, EtlValueError *error)
{
	return etl_rowbinary_refuse(codec, ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
								"has more fractional digits than", error);
}

static bool
check_decimal(const EtlRowBinaryCodec *codec, EtlDecimalStatus status,
			  StringInfo out, EtlValueError *error)
{
	if (likely(status == ETL_DECIMAL_OK))
	{
		out->len += codec->width;
		return true;
	}
	if (status == ETL_DECIMAL_INEXACT)
		return refuse_inexact(codec, error);
	return refuse_range(codec, error);
}

/* Integers and money to Decimal. */
static bool
put_integer_decimal(const EtlRowBinaryCodec *codec, Datum value, StringInfo out,
					EtlValueError *error)
{
	int64		number = etl_rowbinary_integer(codec, value);
	bool		negative = number < 0 && codec->source_width != ETL_RB_XID8;
	uint64		amount = negative ? -(uint64) number : (uint64) number;

	return check_decimal(codec,
						 etl_decimal_from_uint64(amount, negative, codec->source_scale,
												 codec->precision, codec->scale,
												 codec->width, out->data + out->len),
						 out, error);
}

/*
 * Zero bytes fill a shorter text up.  They are not in any text, but may be in
 * bytes: two values of different lengths would become one.
 */
static bool
put_fixed_string(const EtlRowBinaryCodec *codec, struct varlena *value,
				 StringInfo out, EtlValueError *error)
{
	const char *data = VARDATA_ANY(value);
	uint32		len = VARSIZE_ANY_EXHDR(value);

	if (codec->convert)
		data = to_utf8(data, &len);
	if (len > codec->width)
		return etl_rowbinary_refuse(codec, ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
									"is too long for", error);
	if (len < codec->width && codec->action == RB_BYTES_FIXED)
		return etl_rowbinary_refuse(codec, ERRCODE_STRING_DATA_LENGTH_MISMATCH,
									"is shorter than", error);
	(void) reserve(out, codec->width);
	memcpy(out->data + out->len, data, len);
	memset(out->data + out->len + len, 0, codec->width - len);
	out->len += codec->width;
	return true;
}

static inline bool
put_ticks(const EtlRowBinaryCodec *codec, int64 value, StringInfo out,
		  EtlValueError *error)
{
	if (unlikely(value < codec->low || value > codec->high))
		return refuse_range(codec, error);
	value += codec->offset;
	if (unlikely(codec->divide != 1))
	{
		if (value % codec->divide != 0)
			return refuse_inexact(codec, error);
		value /= codec->divide;
	}
	else
		value *= codec->multiply;
	if (likely(codec->width == 8))
		put_uint64(out, (uint64) value);
	else
		put_uint32(out, (uint32) value);
	return true;
}

static void
put_null(const EtlRowBinaryCodec *codec, StringInfo out)
{
	int			width = codec->nullable || codec->width == 0 ? 1 : codec->width;
	char	   *p = reserve(out, width + 2);

	if (unlikely((codec->action == RB_JSON || codec->action == RB_JSONB) && !codec->nullable))
	{
		put_string(out, "{}", 2);
		return;
	}

	/* NULL; or the zero: so many bytes, or nothing of which there may be many */
	if (codec->nullable)
		*p = 1;
	else
		memset(p, 0, width);
	if (codec->companion)
		p[width++] = 1;
	out->len += width;
}

/* An integer that is not what the type holds as it is. */
static bool
put_integer(const EtlRowBinaryCodec *codec, Datum value, StringInfo out, EtlValueError *error)
{
	int64		number = etl_rowbinary_integer(codec, value);

	if (codec->source_width == ETL_RB_XID8 && number < 0)
	{
		/* a large xid8 */
		if (codec->width <= 8)
			return refuse_range(codec, error);
		put_uint64(out, (uint64) number);
		memset(out->data + out->len, 0, codec->width - 8);
		out->len += codec->width - 8;
		return true;
	}
	if (number < codec->low || number > codec->high)
		return refuse_range(codec, error);
	put_wide(out, number, codec->width);
	return true;
}

/* The value as webhooks get it. */
static void
put_json(EtlRowBinaryCodec *codec, Datum value, StringInfo out)
{
	static StringInfoData json;

	if (json.data == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&json);
		MemoryContextSwitchTo(old);
	}
	resetStringInfo(&json);
	etl_json_value(codec->json, value, &json, NULL);
	put_string(out, json.data, json.len);
	if (json.maxlen > LARGE_JSON)
	{
		pfree(json.data);
		json.data = NULL;
	}
}

/* A document for the type JSON. */
static bool
put_document(const EtlRowBinaryCodec *codec, const char *json, uint32 len,
			 StringInfo out, EtlValueError *error)
{
	if (codec->convert)
		json = to_utf8(json, &len);
	if (!etl_rowbinary_json_holds(json, len))
		return etl_rowbinary_refuse(codec, ERRCODE_INVALID_JSON_TEXT,
									"would not be the same in", error);
	put_string(out, json, len);
	return true;
}

static bool
put_jsonb(const EtlRowBinaryCodec *codec, struct varlena *value, StringInfo out, EtlValueError *error)
{
	MemoryContext old;
	Jsonb	   *document;
	char	   *text;

	/* may be in the scratch context already: no reset */
	if (scratch == NULL)
		(void) take_scratch();
	scratch_used = true;
	old = MemoryContextSwitchTo(scratch);
	document = DatumGetJsonbP(PointerGetDatum(value));
	text = JsonbToCString(NULL, &document->root, VARSIZE(document));
	MemoryContextSwitchTo(old);
	return put_document(codec, text, strlen(text), out, error);
}

/* There is room for FIXED_ROOM bytes; the NULL byte is written. */
static inline bool
put_value(EtlRowBinaryCodec *codec, Datum value, StringInfo out,
		  EtlValueError *error)
{
	struct varlena *bytes;
	int64		number;

	switch ((EtlRowBinaryAction) codec->action)
	{
		case RB_COPY_1:
			out->data[out->len++] = (char) DatumGetUInt8(value);
			return true;
		case RB_COPY_2:
			put_uint16(out, DatumGetUInt16(value));
			return true;
		case RB_COPY_4:
			put_uint32(out, DatumGetUInt32(value));
			return true;
		case RB_COPY_8:
			put_uint64(out, (uint64) DatumGetInt64(value));
			return true;
		case RB_STRING:
			bytes = readable(value);
			put_text(codec, out, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
			return true;
		case RB_NUMERIC_DECIMAL:
			bytes = readable(value);
			return check_decimal(codec,
								 etl_decimal_from_numeric(VARDATA_ANY(bytes),
														  VARSIZE_ANY_EXHDR(bytes),
														  codec->precision, codec->scale,
														  codec->width,
														  out->data + out->len),
								 out, error);
		case RB_TICKS:
			return put_ticks(codec, DatumGetInt64(value), out, error);
		case RB_DATE_DAYS:
			number = DatumGetDateADT(value);
			if (unlikely(number < codec->low || number > codec->high))
				return refuse_range(codec, error);
			put_wide(out, number + UNIX_DAYS, codec->width);
			return true;
		case RB_UUID_HALVES:
			{
				uint64		halves[2];

				memcpy(halves, DatumGetUUIDP(value)->data, sizeof(halves));
				halves[0] = pg_bswap64(halves[0]);
				halves[1] = pg_bswap64(halves[1]);
				memcpy(out->data + out->len, halves, sizeof(halves));
				out->len += sizeof(halves);
				return true;
			}
		case RB_STRING_OUTPUT:
			put_output(codec, value, out);
			return true;
		case RB_INTEGER:
			return put_integer(codec, value, out, error);
		case RB_INTEGER_DECIMAL:
			return put_integer_decimal(codec, value, out, error);
		case RB_WIDEN_FLOAT:
			{
				float8		wide = DatumGetFloat4(value);
				uint64		bits;

				memcpy(&bits, &wide, sizeof(bits));
				put_uint64(out, bits);
				return true;
			}
		case RB_NUMERIC_INTEGER:
			bytes = readable(value);
			return check_decimal(codec,
								 etl_integer_from_numeric(VARDATA_ANY(bytes),
														  VARSIZE_ANY_EXHDR(bytes),
														  codec->is_unsigned, codec->width,
														  out->data + out->len),
								 out, error);
		case RB_STRING_FIXED:
		case RB_BYTES_FIXED:
			return put_fixed_string(codec, readable(value), out, error);
		case RB_STRING_NAME:
			put_text(codec, out, NameStr(*DatumGetName(value)),
					 strlen(NameStr(*DatumGetName(value))));
			return true;
		case RB_STRING_MONEY:
			put_money(out, DatumGetInt64(value), codec->source_scale);
			return true;
		case RB_STRING_JSON:
			put_json(codec, value, out);
			return true;
		case RB_JSON:
			bytes = readable(value);
			return put_document(codec, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes), out, error);
		case RB_JSONB:
			return put_jsonb(codec, readable(value), out, error);
		case RB_ARRAY:
			return etl_rowbinary_array(codec, value, false, out, error);
		case RB_REFUSE:
			break;
	}
	return etl_rowbinary_refuse(codec, ERRCODE_CANNOT_COERCE, "cannot be written as", error);
}

/*
 * A value was refused: do what the policy says with what has been written of
 * it from "start".  False: nothing can be done.
 */
static pg_noinline bool
adjust(EtlRowBinaryCodec *codec, Datum value, int start, StringInfo out)
{
	if (codec->policy == ETL_POLICY_ERROR || codec->action == RB_REFUSE)
		return false;
	out->len = start;
	if (codec->policy == ETL_POLICY_NULL)
		put_null(codec, out);
	else
	{
		(void) reserve(out, FIXED_ROOM);
		if (codec->nullable)
			out->data[out->len++] = 0;
		if (!etl_rowbinary_clamp(codec, value, out))
			return false;
	}
	changed = true;
	return true;
}

static inline bool
put_any(EtlRowBinaryCodec *codec, Datum value, bool isnull, StringInfo out,
		EtlValueError *error)
{
	int			start = out->len;

	if (isnull)
	{
		if (unlikely(!codec->nullable && !codec->companion && !codec->zero))
			return etl_rowbinary_refuse(codec, ERRCODE_NULL_VALUE_NOT_ALLOWED,
										"is null, unlike", error);
		put_null(codec, out);
		return true;
	}
	(void) reserve(out, FIXED_ROOM);
	if (codec->nullable)
		out->data[out->len++] = 0;
	if (likely(put_value(codec, value, out, error)))
		return true;
	return adjust(codec, value, start, out);
}

bool
etl_rowbinary_put(EtlRowBinaryCodec *codec, Datum value, bool isnull,
				  StringInfo out, EtlValueError *error)
{
	return put_any(codec, value, isnull, out, error);
}

void
etl_rowbinary_null(EtlRowBinaryCodec *codec, StringInfo out)
{
	put_null(codec, out);
}

bool
etl_rowbinary_row(EtlRowBinaryCodec *const *codecs, int n,
				  const Datum *values, const bool *isnull,
				  const Bitmapset *missing, EtlAdjusted *adjusted,
				  StringInfo out, EtlValueError *error)
{
	int			i;

	changed = false;
	for (i = 0; i < n; i++)
	{
		EtlRowBinaryCodec *codec = codecs[i];
		int			attribute = codec->attnum - 1;

		if (unlikely(missing != NULL) && bms_is_member(codec->attnum, missing))
		{
			put_null(codec, out);
			continue;
		}
		if (unlikely(!put_any(codec, values[attribute], isnull[attribute], out, error)))
			break;
		if (unlikely(changed))
		{
			etl_adjusted_note(adjusted, codec->attnum);
			changed = false;
		}
	}
	empty_scratch();
	return i == n;
}

void
etl_rowbinary_string(StringInfo out, const char *data, uint32 len)
{
	put_string(out, data, len);
}

void
etl_rowbinary_uint8(StringInfo out, uint8 value)
{
	*reserve(out, 1) = (char) value;
	out->len++;
}

void
etl_rowbinary_uint64(StringInfo out, uint64 value)
{
	(void) reserve(out, sizeof(value));
	put_uint64(out, value);
}

void
etl_rowbinary_version(StringInfo out, const EtlPosition *position)
{
	uint64		high = ((uint64) position->epoch << 48) | (position->commit_lsn >> 16);
	uint64		low = (position->commit_lsn << 48) | (position->ordinal << 8) | position->sub;

	Assert(position->ordinal < (UINT64CONST(1) << 40));
	(void) reserve(out, 2 * sizeof(uint64));
	put_uint64(out, low);
	put_uint64(out, high);
}

