/*-------------------------------------------------------------------------
 *
 * rowbinary_map.c
 *	  What types of PostgreSQL become at ClickHouse: the map.
 *
 * Pure: a table is made by a process without a transaction.
 *
 * Types without a rule of their own are kept as the text that PostgreSQL
 * prints; what has an inner structure that only PostgreSQL could parse
 * (composites, hstore, arrays that are to be text) as JSON, as webhooks get it.
 * Which of the two a type is is known when its codec is made.
 *
 * The range of dates and times is the one that ClickHouse documents since it
 * has these types.  Newer servers hold more, older ones print nonsense then;
 * tables and values must not depend on which one there is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"

#include "format/decimal.h"
#include "format/rowbinary.h"
#include "format/rowbinary_type.h"

#define DAYS	"1900-01-01 to 2299-12-31"
#define TIMES	"1900-01-01 00:00:00 to 2299-12-31 23:59:59.999999"

/*
 * Decimal where it holds every finite value of the numeric.  NaN and
 * infinities have none.
 */
static const char *
decimal_type(int32 typmod)
{
	int32		packed = typmod - VARHDRSZ;
	int			precision = (packed >> 16) & 0xFFFF;
	int			scale = ((packed & 0x7FF) ^ 1024) - 1024;

	if (typmod < (int32) VARHDRSZ ||
		scale < 0 || scale > precision || precision > ETL_DECIMAL_MAX_PRECISION)
		return NULL;
	return psprintf("Decimal(%d, %d)", precision, scale);
}

static const EtlTypeRule rules[] = {
	{BOOLOID, .type = "Bool"},
	{INT2OID, .type = "Int16"},
	{INT4OID, .type = "Int32"},
	{INT8OID, .type = "Int64"},
	{OIDOID, .type = "UInt32"},
	{XIDOID, .type = "UInt32"},
	{CIDOID, .type = "UInt32"},
	{XID8OID, .type = "UInt64"},
	{FLOAT4OID, .type = "Float32"},
	{FLOAT8OID, .type = "Float64"},
	{NUMERICOID, .make = decimal_type, .exactness = ETL_EXACT_WITHIN, .range = "finite numbers"},
	{UUIDOID, .type = "UUID"},
	{DATEOID, .type = "Date32", .exactness = ETL_EXACT_WITHIN, .range = DAYS},
	{TIMESTAMPOID, .type = "DateTime64(6, 'UTC')", .exactness = ETL_EXACT_WITHIN, .range = TIMES},
	{TIMESTAMPTZOID, .type = "DateTime64(6, 'UTC')", .exactness = ETL_EXACT_WITHIN, .range = TIMES},
	{TEXTOID, .type = "String"},
	{VARCHAROID, .type = "String"},
	{BPCHAROID, .type = "String"},
	{BYTEAOID, .type = "String"},
	{InvalidOid, TYPTYPE_ENUM, .type = "LowCardinality(String)"},
	{InvalidOid, .type = "String", .exactness = ETL_EXACT_TEXT}
};

static const char *
make_nullable(const char *type)
{
	static const char low[] = "LowCardinality(";
	size_t		len = strlen(low);

	if (strncmp(type, low, len) == 0)
		return psprintf("LowCardinality(Nullable(%s)", type + len);
	return psprintf("Nullable(%s)", type);
}

/*
 * Array(...) of nullable elements, as deep as declared.  Arrays inside of
 * arrays through a domain may differ in their dimensions: text.
 */
static void
map_array(const EtlColumn *column, EtlTypeMapping *mapping)
{
	const EtlTypeRule *rule = etl_type_rule(rules, column->element_type, column->element_typmod,
											column->element_kind, &mapping->type);
	const char *bounds = psprintf("%d dimension%s, lower bound 1", column->dimensions,
								  column->dimensions == 1 ? "" : "s");

	mapping->type = make_nullable(mapping->type);
	for (int i = 0; i < column->dimensions; i++)
		mapping->type = psprintf("Array(%s)", mapping->type);
	mapping->exactness = ETL_EXACT_WITHIN;
	mapping->range = rule->range ? psprintf("%s; elements: %s", bounds, rule->range) : bounds;
}

/* The type that a user chose.  ClickHouse sorts by no nullable one. */
static const char *
chosen_type(const EtlTypeWish *wish)
{
	static const char nullable[] = "Nullable(";
	char	   *type = etl_rowbinary_spelling(wish->type);
	char	   *wrapper = strstr(type, nullable);
	EtlRowBinaryType parsed;

	etl_rowbinary_parse(type, &parsed);
	if (!wish->sorted || !parsed.nullable || parsed.dimensions > 0 || parsed.base == ETL_RB_OTHER)
		return type;

	/* around the rest, or within LowCardinality() */
	memmove(wrapper, wrapper + strlen(nullable), strlen(wrapper + strlen(nullable)) + 1);
	type[strlen(type) - 1] = '\0';
	return type;
}

static bool
is_array(const char *type)
{
	return strncmp(type, "Array(", 6) == 0;
}

void
etl_rowbinary_map(const EtlColumn *column, const EtlTypeWish *wish, EtlTypeMapping *mapping)
{
	bool		nulls = wish->nulls;

	memset(mapping, 0, sizeof(*mapping));
	if (wish->type)
	{
		mapping->type = chosen_type(wish);
		mapping->exactness = ETL_EXACT_WITHIN;
	}
	else if (OidIsValid(column->element_type))
		map_array(column, mapping);
	else
	{
		const EtlTypeRule *rule = etl_type_rule(rules, column->base_type, column->base_typmod,
												column->base_kind, &mapping->type);

		mapping->exactness = rule->exactness;
		mapping->range = rule->range;
	}

	if (mapping->exactness == ETL_EXACT_WITHIN)
	{
		/* ClickHouse sorts by no nullable type, not even inside of an array */
		bool		flat = (wish->key || wish->flat) && OidIsValid(column->element_type);

		if ((wish->policy == ETL_POLICY_TEXT || flat) && wish->type == NULL)
		{
			mapping->type = "String";
			mapping->exactness = ETL_EXACT_TEXT;
			mapping->range = NULL;
		}
		else if (!wish->key && wish->policy != ETL_POLICY_TEXT)
			mapping->policy = wish->policy;
	}

	mapping->zero = wish->never_null && !wish->key;
	if (mapping->policy == ETL_POLICY_NULL)
		nulls = true;
	if (!nulls || wish->never_null)
		return;
	if (is_array(mapping->type))
		mapping->companion = true;
	else if (strstr(mapping->type, "Nullable(") == NULL)
		mapping->type = make_nullable(mapping->type);
}
