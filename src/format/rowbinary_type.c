/*-------------------------------------------------------------------------
 *
 * rowbinary_type.c
 *	  Type texts of ClickHouse, taken apart.
 *
 * A column's codec is chosen by the pair of source type and the type that the
 * destination really has, which may be what we asked for at creation, what a
 * user asked for, or what somebody made of it by hand.  So the text that the
 * server reports is parsed, not remembered.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "format/decimal.h"
#include "format/rowbinary_type.h"

/* Types with a name and nothing more. */
static const struct
{
	const char *name;
	EtlRowBinaryBase base;
	int			width;
}			plain_types[] = {
	{"Bool", ETL_RB_BOOL, 1},
	{"Int8", ETL_RB_INT, 1},
	{"Int16", ETL_RB_INT, 2},
	{"Int32", ETL_RB_INT, 4},
	{"Int64", ETL_RB_INT, 8},
	{"Int128", ETL_RB_INT, 16},
	{"Int256", ETL_RB_INT, 32},
	{"UInt8", ETL_RB_UINT, 1},
	{"UInt16", ETL_RB_UINT, 2},
	{"UInt32", ETL_RB_UINT, 4},
	{"UInt64", ETL_RB_UINT, 8},
	{"UInt128", ETL_RB_UINT, 16},
	{"UInt256", ETL_RB_UINT, 32},
	{"Float32", ETL_RB_FLOAT, 4},
	{"Float64", ETL_RB_FLOAT, 8},
	{"String", ETL_RB_STRING, 0},
	{"Date", ETL_RB_DATE, 2},
	{"Date32", ETL_RB_DATE32, 4},
	{"DateTime", ETL_RB_DATETIME, 4},
	{"Time", ETL_RB_TIME, 4},
	{"UUID", ETL_RB_UUID, 16},
	{"JSON", ETL_RB_JSON, 0},
};

static const char *
skip_blanks(const char *p)
{
	while (*p == ' ')
		p++;
	return p;
}

/* If "*p" begins with the word "name", move behind it. */
static bool
take_word(const char **p, const char *name)
{
	size_t		len = strlen(name);

	if (strncmp(*p, name, len) != 0 || isalnum((unsigned char) (*p)[len]))
		return false;
	*p = skip_blanks(*p + len);
	return true;
}

static bool
take_char(const char **p, char c)
{
	if (**p != c)
		return false;
	*p = skip_blanks(*p + 1);
	return true;
}

static bool
take_number(const char **p, int *number)
{
	char	   *end;
	long		value;

	if (!isdigit((unsigned char) **p))
		return false;
	value = strtol(*p, &end, 10);
	if (value > 1000000)
		return false;
	*number = (int) value;
	*p = skip_blanks(end);
	return true;
}

/* A time zone argument: kept by the server for display, nothing to us. */
static bool
take_zone(const char **p)
{
	const char *end;

	if (**p != '\'' || (end = strchr(*p + 1, '\'')) == NULL)
		return false;
	*p = skip_blanks(end + 1);
	return true;
}

static bool
parse_decimal(const char **p, EtlRowBinaryType *type)
{
	if (!take_char(p, '(') ||
		!take_number(p, &type->precision))
		return false;
	if (take_char(p, ',') && !take_number(p, &type->scale))
		return false;
	if (type->precision < 1 || type->scale > type->precision ||
		type->precision > ETL_DECIMAL_MAX_PRECISION)
		return false;
	type->base = ETL_RB_DECIMAL;
	type->width = type->precision <= 9 ? 4 : type->precision <= 18 ? 8 :
		type->precision <= 38 ? 16 : 32;
	return take_char(p, ')');
}

/* DateTime64(6, 'UTC'), Time64(6) */
static bool
parse_ticks(const char **p, EtlRowBinaryBase base, EtlRowBinaryType *type)
{
	if (!take_char(p, '(') ||
		!take_number(p, &type->scale) || type->scale > 9)
		return false;
	if (take_char(p, ',') && !take_zone(p))
		return false;
	type->base = base;
	type->width = 8;
	return take_char(p, ')');
}

static bool
parse_scalar(const char **p, EtlRowBinaryType *type)
{
	if (take_word(p, "Decimal"))
		return parse_decimal(p, type);
	if (take_word(p, "DateTime64"))
		return parse_ticks(p, ETL_RB_DATETIME64, type);
	if (take_word(p, "Time64"))
		return parse_ticks(p, ETL_RB_TIME64, type);
	if (take_word(p, "FixedString"))
	{
		type->base = ETL_RB_FIXED_STRING;
		return take_char(p, '(') && take_number(p, &type->width) &&
			type->width > 0 && take_char(p, ')');
	}

	for (int i = 0; i < lengthof(plain_types); i++)
	{
		if (!take_word(p, plain_types[i].name))
			continue;
		type->base = plain_types[i].base;
		type->width = plain_types[i].width;
		if (type->base == ETL_RB_DATETIME && take_char(p, '('))
			return take_zone(p) && take_char(p, ')');
		return true;
	}
	return false;
}

/* A type or Nullable() of it. */
static bool
parse_nullable(const char **p, EtlRowBinaryType *type)
{
	if (!take_word(p, "Nullable"))
		return parse_scalar(p, type);
	type->nullable = true;
	return take_char(p, '(') && parse_scalar(p, type) && take_char(p, ')');
}

/* What may be in what is as ClickHouse has it: Nullable() inside of the others. */
static bool
parse_type(const char **p, EtlRowBinaryType *type)
{
	if (take_word(p, "Array"))
	{
		type->dimensions++;
		return take_char(p, '(') && parse_type(p, type) && take_char(p, ')');
	}
	/* ClickHouse advises against numbers there, and refuses them as it comes */
	if (take_word(p, "LowCardinality"))
		return take_char(p, '(') && parse_nullable(p, type) && take_char(p, ')') &&
			(type->base == ETL_RB_STRING || type->base == ETL_RB_FIXED_STRING ||
			 type->base == ETL_RB_UUID);
	return parse_nullable(p, type);
}

void
etl_rowbinary_parse(const char *text, EtlRowBinaryType *type)
{
	const char *p = skip_blanks(text);

	memset(type, 0, sizeof(*type));
	if (!parse_type(&p, type) || *p != '\0')
		type->base = ETL_RB_OTHER;
}

char *
etl_rowbinary_spelling(const char *text)
{
	char	   *result = palloc(strlen(text) + 1);
	char	   *out = result;
	bool		quoted = false;

	for (const char *p = text; *p; p++)
	{
		quoted ^= *p == '\'';
		if (*p == ' ' && !quoted)
		{
			const char *next = skip_blanks(p);

			if (out == result || out[-1] == '(' || *next == '\0' || strchr("(),", *next))
				continue;
		}
		*out++ = *p;
	}
	*out = '\0';
	return result;
}
