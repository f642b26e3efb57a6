/*-------------------------------------------------------------------------
 *
 * rowbinary_codec.c
 *	  Makes RowBinary codecs: decides what is done with a column's values.
 *
 * Every pair of a source type and a type of the destination either has a way
 * that keeps the value exactly, within a range, or none: then the codec
 * refuses values, and the table is parked with a message that names the pair.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/pg_locale.h"
#include "utils/timestamp.h"

#include "format/rowbinary_codec.h"
#include "format/rowbinary_type.h"

/* Documented range of Date32 and DateTime64, in days since 1970. */
#define FIRST_DAY	(-25567)	/* 1900-01-01 */
#define LAST_DAY	120529		/* 2299-12-31 */

/* Bytes of an integer type (negative: unsigned), 0 for other types. */
static int
integer_width(Oid type)
{
	switch (type)
	{
		case BOOLOID:
			return -1;
		case INT2OID:
			return 2;
		case INT4OID:
			return 4;
		case INT8OID:
		case MONEYOID:
			return 8;
		case OIDOID:
		case XIDOID:
		case CIDOID:
			return -4;
		case XID8OID:
			return ETL_RB_XID8;
		default:
			return 0;
	}
}

/*
 * Fraction digits of money, by the same rule as cash_out().
 */
static int
money_digits(void)
{
	int			digits = PGLC_localeconv()->frac_digits;

	return digits < 0 || digits > 10 ? 2 : digits;
}

static EtlRowBinaryAction
plan_integer(EtlRowBinaryCodec *codec, Oid source, const EtlRowBinaryType *type)
{
	bool		is_unsigned = type->base == ETL_RB_UINT;

	if (source == NUMERICOID)
	{
		codec->is_unsigned = is_unsigned;
		return RB_NUMERIC_INTEGER;
	}
	codec->source_width = integer_width(source);
	if (codec->source_width == 0 || source == MONEYOID)
		return RB_REFUSE;
	if (source == BOOLOID ? type->width == 1 :
		codec->source_width == (is_unsigned ? -type->width : type->width))
	{
		switch (type->width)
		{
			case 1:
				return RB_COPY_1;
			case 2:
				return RB_COPY_2;
			case 4:
				return RB_COPY_4;
			default:
				return RB_COPY_8;
		}
	}

	codec->low = PG_INT64_MIN;
	codec->high = PG_INT64_MAX;
	if (is_unsigned)
	{
		codec->low = 0;
		if (type->width < 8)
			codec->high = (INT64CONST(1) << (8 * type->width)) - 1;
	}
	else if (type->width < 8)
	{
		codec->high = (INT64CONST(1) << (8 * type->width - 1)) - 1;
		codec->low = -codec->high - 1;
	}
	return RB_INTEGER;
}

static EtlRowBinaryAction
plan_decimal(EtlRowBinaryCodec *codec, Oid source)
{
	if (source == NUMERICOID)
		return RB_NUMERIC_DECIMAL;
	codec->source_width = integer_width(source);
	if (codec->source_width == 0 || source == BOOLOID)
		return RB_REFUSE;
	codec->source_scale = source == MONEYOID ? money_digits() : 0;
	return RB_INTEGER_DECIMAL;
}

static EtlRowBinaryAction
plan_days(EtlRowBinaryCodec *codec, int64 first, int64 last)
{
	codec->low = first - UNIX_DAYS;
	codec->high = last - UNIX_DAYS;
	return RB_DATE_DAYS;
}

/*
 * Microseconds to ticks of 10^-scale seconds.  "first" and "last" are the
 * range in microseconds from the destination's zero, "zero" that point in
 * the source's count.  Infinite timestamps are the ends of int64: outside.
 */
static EtlRowBinaryAction
plan_ticks(EtlRowBinaryCodec *codec, int scale, int64 zero,
		   int64 first, int64 last)
{
	codec->multiply = codec->divide = 1;
	for (int i = 6; i < scale; i++)
		codec->multiply *= 10;
	for (int i = scale; i < 6; i++)
		codec->divide *= 10;
	first = Max(first, PG_INT64_MIN / codec->multiply);
	last = Min(last, PG_INT64_MAX / codec->multiply);
	codec->offset = -zero;
	codec->low = first + zero;
	codec->high = last + zero;
	return RB_TICKS;
}

static bool
needs_conversion(void)
{
	return GetDatabaseEncoding() != PG_UTF8 && GetDatabaseEncoding() != PG_SQL_ASCII;
}

/* Is its text one that PostgreSQL alone could take apart? */
static bool
has_structure(Oid source)
{
	EtlJsonOptions options = {0};
	const char *kind;

	if (source < FirstNormalObjectId && !OidIsValid(get_element_type(source)))
		return false;
	kind = etl_json_kind(etl_json_codec(source, -1, &options));
	return strcmp(kind, "array") == 0 || strcmp(kind, "object") == 0;
}

static EtlRowBinaryAction
plan_string(EtlRowBinaryCodec *codec, Oid source)
{
	Oid			output;
	bool		is_varlena;

	codec->convert = needs_conversion();

	switch (source)
	{
		case BYTEAOID:
			codec->convert = false;
			return RB_STRING;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case JSONOID:
			return RB_STRING;
		case NAMEOID:
			return RB_STRING_NAME;
		case MONEYOID:
			codec->source_scale = money_digits();
			return RB_STRING_MONEY;
		default:
			break;
	}

	if (has_structure(source))
	{
		EtlJsonOptions options = {0};

		codec->json = etl_json_codec(source, -1, &options);
		return RB_STRING_JSON;
	}
	getTypeOutputInfo(source, &output, &is_varlena);
	fmgr_info(output, &codec->output);

	/* text under another name, as citext and the types of users are */
	if (is_varlena &&
		(codec->output.fn_addr == textout ||
		 codec->output.fn_addr == varcharout ||
		 codec->output.fn_addr == bpcharout))
		return RB_STRING;
	return RB_STRING_OUTPUT;
}

/*
 * Choose what to do for a pair of types, filling in what that needs.
 */
static EtlRowBinaryAction
plan_scalar(EtlRowBinaryCodec *codec, Oid source, const EtlRowBinaryType *type)
{
	switch (type->base)
	{
		case ETL_RB_BOOL:
			return source == BOOLOID ? RB_COPY_1 : RB_REFUSE;
		case ETL_RB_INT:
		case ETL_RB_UINT:
			return plan_integer(codec, source, type);
		case ETL_RB_FLOAT:
			if (source == FLOAT4OID)
				return type->width == 4 ? RB_COPY_4 : RB_WIDEN_FLOAT;
			return source == FLOAT8OID && type->width == 8 ? RB_COPY_8 : RB_REFUSE;
		case ETL_RB_DECIMAL:
			return plan_decimal(codec, source);
		case ETL_RB_DATE:
			return source == DATEOID ? plan_days(codec, 0, PG_UINT16_MAX) :
				RB_REFUSE;
		case ETL_RB_DATE32:
			return source == DATEOID ?
				plan_days(codec, FIRST_DAY, LAST_DAY) : RB_REFUSE;
		case ETL_RB_DATETIME:
			if (source != TIMESTAMPOID && source != TIMESTAMPTZOID)
				return RB_REFUSE;
			return plan_ticks(codec, 0, -UNIX_MICROS, 0,
							  PG_UINT32_MAX * USECS_PER_SEC);
		case ETL_RB_DATETIME64:
			if (source != TIMESTAMPOID && source != TIMESTAMPTZOID)
				return RB_REFUSE;
			return plan_ticks(codec, type->scale, -UNIX_MICROS,
							  FIRST_DAY * USECS_PER_DAY,
							  (LAST_DAY + 1) * USECS_PER_DAY - 1);
		case ETL_RB_TIME:
		case ETL_RB_TIME64:
			return source == TIMEOID ?
				plan_ticks(codec, type->scale, 0, 0, USECS_PER_DAY) : RB_REFUSE;
		case ETL_RB_UUID:
			return source == UUIDOID ? RB_UUID_HALVES : RB_REFUSE;
		case ETL_RB_JSON:
			codec->convert = needs_conversion();
			return source == JSONOID ? RB_JSON : source == JSONBOID ? RB_JSONB : RB_REFUSE;
		case ETL_RB_STRING:
			return plan_string(codec, source);
		case ETL_RB_FIXED_STRING:
			if (source == BYTEAOID)
				return RB_BYTES_FIXED;
			codec->convert = needs_conversion();
			return source == TEXTOID || source == VARCHAROID || source == BPCHAROID ?
				RB_STRING_FIXED : RB_REFUSE;
		case ETL_RB_OTHER:
			break;
	}
	return RB_REFUSE;
}

/* The elements as a column of their own. */
static void
describe_element(const EtlColumn *column, EtlColumn *element)
{
	*element = *column;
	element->element_type = InvalidOid;
	if (!OidIsValid(column->element_type))
		return;					/* to be walked over alone */
	element->base_type = column->element_type;
	element->base_typmod = column->element_typmod;
	element->base_kind = column->element_kind;
}

static void make_codec(EtlRowBinaryCodec *codec, const EtlColumn *column,
					   const EtlRowBinaryType *type, const EtlTypeMapping *mapping);

static EtlRowBinaryAction
plan_array(EtlRowBinaryCodec *codec, const EtlColumn *column, const EtlRowBinaryType *type,
		   const EtlTypeMapping *mapping)
{
	EtlRowBinaryType element_type = *type;
	EtlColumn	element;

	codec->element = palloc0(sizeof(EtlRowBinaryCodec));
	codec->companion = mapping->companion;
	describe_element(column, &element);
	element_type.dimensions = 0;
	make_codec(codec->element, &element, &element_type, mapping);
	if (!OidIsValid(column->element_type) || codec->element->action == RB_REFUSE)
		return RB_REFUSE;
	if (codec->element->policy == ETL_POLICY_NULL && !codec->element->nullable)
		codec->element->policy = ETL_POLICY_ERROR;	/* then the whole is null */
	codec->any_bounds = column->base_type == INT2VECTOROID || column->base_type == OIDVECTOROID;
	get_typlenbyvalalign(get_element_type(column->base_type),
						 &codec->typlen, &codec->typbyval, &codec->typalign);
	return RB_ARRAY;
}

static void
make_codec(EtlRowBinaryCodec *codec, const EtlColumn *column,
		   const EtlRowBinaryType *type, const EtlTypeMapping *mapping)
{
	codec->attnum = column->attnum;
	codec->column = pstrdup(column->name);
	codec->type = pstrdup(mapping->type);
	codec->policy = mapping->policy;
	codec->zero = mapping->zero;
	codec->dimensions = type->dimensions;
	if (type->dimensions > 0)
	{
		codec->action = plan_array(codec, column, type, mapping);
		return;
	}
	codec->nullable = type->nullable;
	codec->width = type->width;
	codec->precision = type->precision;
	codec->scale = type->scale;
	codec->action = plan_scalar(codec, column->base_type, type);
}

EtlRowBinaryCodec *
etl_rowbinary_codec(const EtlColumn *column, const EtlTypeMapping *mapping)
{
	EtlRowBinaryCodec *codec = palloc0(sizeof(EtlRowBinaryCodec));
	EtlRowBinaryType type;

	etl_rowbinary_parse(mapping->type, &type);
	make_codec(codec, column, &type, mapping);
	return codec;
}

bool
etl_rowbinary_supported(const EtlColumn *column, const char *text)
{
	EtlRowBinaryCodec codec;
	EtlRowBinaryType type;
	EtlColumn	element;

	etl_rowbinary_parse(text, &type);
	if (type.dimensions > 0)
	{
		if (!OidIsValid(column->element_type))
			return false;
		describe_element(column, &element);
		column = &element;
	}
	if (type.base == ETL_RB_STRING)
		return true;			/* and do not look into the catalogs */
	memset(&codec, 0, sizeof(codec));
	return plan_scalar(&codec, column->base_type, &type) != RB_REFUSE;
}
