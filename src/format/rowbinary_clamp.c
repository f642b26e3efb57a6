/*-------------------------------------------------------------------------
 *
 * rowbinary_clamp.c
 *	  value_policy clamp: the nearest value that a type can hold.
 *
 * Comes into play when a value was refused, so it may take its time; numbers
 * beyond int64 are calculated with numeric's own functions.
 *
 * Times are cut to the type's digits, not rounded, so that none gets into the
 * next second or day.  NaN, an array of other dimensions, a text that is too
 * long have nothing near: they stay refused.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#include "compat.h"
#include "format/json_codec.h"
#include "format/rowbinary_codec.h"
#include "format/rowbinary_put.h"

static int64
limited(const EtlRowBinaryCodec *codec, int64 value)
{
	return Max(codec->low, Min(value, codec->high));
}

static void
clamp_ticks(const EtlRowBinaryCodec *codec, int64 value, StringInfo out)
{
	value = limited(codec, value) + codec->offset;
	if (codec->divide != 1)
	{
		int64		rest = value % codec->divide;

		value = value / codec->divide - (rest < 0);
	}
	else
		value *= codec->multiply;
	put_wide(out, value, codec->width);
}

/* An integer type's limit. */
static void
put_limit(const EtlRowBinaryCodec *codec, bool negative, StringInfo out)
{
	char	   *p = out->data + out->len;

	memset(p, negative ? 0 : 0xFF, codec->width);
	if (!codec->is_unsigned)
		p[codec->width - 1] = negative ? (char) 0x80 : 0x7F;
	out->len += codec->width;
}

static Numeric
make_numeric(const char *text)
{
	return DatumGetNumeric(DirectFunctionCall3(numeric_in, CStringGetDatum(text),
											   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
}

static bool
is_negative(Numeric number)
{
	return strncmp(DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(number))), "-", 1) == 0;
}

static EtlDecimalStatus
put_numeric(Numeric number, int precision, int scale, int width, char *to)
{
	return etl_decimal_from_numeric(VARDATA_ANY(number), VARSIZE_ANY_EXHDR(number),
									precision, scale, width, to);
}

/* Rounded to the type's digits; the greatest or least where that is too far. */
static bool
clamp_decimal(const EtlRowBinaryCodec *codec, Numeric number, StringInfo out)
{
	char	   *to = out->data + out->len;

	if (numeric_is_nan(number))
		return false;
	if (!numeric_is_inf(number))
		number = DatumGetNumeric(DirectFunctionCall2(numeric_round, NumericGetDatum(number),
													 Int32GetDatum(codec->scale)));
	if (put_numeric(number, codec->precision, codec->scale, codec->width, to) != ETL_DECIMAL_OK)
	{
		char		digits[ETL_DECIMAL_MAX_PRECISION + 2];
		bool		negative = is_negative(number);

		memset(digits, '9', sizeof(digits));
		digits[0] = negative ? '-' : '0';
		digits[codec->precision + 1] = '\0';
		(void) put_numeric(make_numeric(digits), codec->precision, 0, codec->width, to);
	}
	out->len += codec->width;
	return true;
}

static bool
clamp_to_integer(const EtlRowBinaryCodec *codec, Numeric number, StringInfo out)
{
	if (numeric_is_nan(number))
		return false;
	if (!numeric_is_inf(number))
		number = DatumGetNumeric(DirectFunctionCall2(numeric_round, NumericGetDatum(number),
													 Int32GetDatum(0)));
	if (etl_integer_from_numeric(VARDATA_ANY(number), VARSIZE_ANY_EXHDR(number),
								 codec->is_unsigned, codec->width,
								 out->data + out->len) == ETL_DECIMAL_OK)
		out->len += codec->width;
	else
		put_limit(codec, is_negative(number), out);
	return true;
}

static bool
clamp(EtlRowBinaryCodec *codec, Datum value, StringInfo out)
{
	EtlValueError error;
	char		text[ETL_JSON_MONEY_LEN];

	switch ((EtlRowBinaryAction) codec->action)
	{
		case RB_DATE_DAYS:
			put_wide(out, limited(codec, DatumGetDateADT(value)) + UNIX_DAYS, codec->width);
			return true;
		case RB_TICKS:
			clamp_ticks(codec, DatumGetInt64(value), out);
			return true;
		case RB_INTEGER:
			/* what is refused of xid8 is beyond every signed type */
			put_wide(out, codec->source_width == ETL_RB_XID8 ? codec->high :
					 limited(codec, etl_rowbinary_integer(codec, value)), codec->width);
			return true;
		case RB_INTEGER_DECIMAL:
			if (codec->source_width == ETL_RB_XID8)
				snprintf(text, sizeof(text), UINT64_FORMAT, (uint64) DatumGetInt64(value));
			else
				etl_json_money(etl_rowbinary_integer(codec, value), codec->source_scale, text);
			return clamp_decimal(codec, make_numeric(text), out);
		case RB_NUMERIC_DECIMAL:
			return clamp_decimal(codec, DatumGetNumeric(value), out);
		case RB_NUMERIC_INTEGER:
			return clamp_to_integer(codec, DatumGetNumeric(value), out);
		case RB_ARRAY:
			return etl_rowbinary_array(codec, value, true, out, &error);
		default:
			return false;
	}
}

bool
etl_rowbinary_clamp(EtlRowBinaryCodec *codec, Datum value, StringInfo out)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "etl rowbinary clamp",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	bool		ok = clamp(codec, value, out);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return ok;
}
