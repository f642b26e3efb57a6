/*-------------------------------------------------------------------------
 *
 * rowbinary_test.c
 *	  The RowBinary encoder as SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "portability/instr_time.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "format/rowbinary.h"
#include "schema/shape.h"

PG_FUNCTION_INFO_V1(etl_test_rowbinary_types);
PG_FUNCTION_INFO_V1(etl_test_rowbinary);
PG_FUNCTION_INFO_V1(etl_test_rowbinary_seconds);
PG_FUNCTION_INFO_V1(etl_test_rowbinary_version);

/* What the encoder wants to know of a column. */
static EtlColumn *
describe(Form_pg_attribute att)
{
	EtlColumn  *column = palloc0(sizeof(EtlColumn));

	column->attnum = att->attnum;
	column->name = pstrdup(NameStr(att->attname));
	column->type = att->atttypid;
	column->typmod = att->atttypmod;
	etl_shape_type(column, att->attndims);
	column->nullable = !att->attnotnull;
	return column;
}

/*
 * etl_test.rowbinary_types(relation regclass) returns text[]: types that the
 * encoder chooses for the columns of a table.
 */
Datum
etl_test_rowbinary_types(PG_FUNCTION_ARGS)
{
	Relation	relation = RelationIdGetRelation(PG_GETARG_OID(0));
	TupleDesc	desc;
	Datum	   *types;
	EtlTypeWish wish = {0};
	EtlTypeMapping mapping;
	int			n = 0;

	if (!RelationIsValid(relation))
		elog(ERROR, "no such relation");
	desc = RelationGetDescr(relation);
	types = palloc_array(Datum, desc->natts + 1);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped)
			continue;
		wish.nulls = !att->attnotnull;
		etl_rowbinary_map(describe(att), &wish, &mapping);
		types[n++] = CStringGetTextDatum(mapping.type);
	}
	RelationClose(relation);
	PG_RETURN_ARRAYTYPE_P(construct_array(types, n, TEXTOID, -1, false, TYPALIGN_INT));
}

/* Codecs for a descriptor and an array of types. */
static EtlRowBinaryCodec **
make_codecs(TupleDesc desc, ArrayType *array, EtlValuePolicy policy, int *n)
{
	Datum	   *types;
	EtlRowBinaryCodec **codecs;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &types, NULL, n);
	if (*n != desc->natts)
		elog(ERROR, "%d types for %d columns", *n, desc->natts);
	codecs = palloc_array(EtlRowBinaryCodec *, *n + 1);
	for (int i = 0; i < *n; i++)
	{
		EtlColumn  *column = describe(TupleDescAttr(desc, i));
		char	   *type = TextDatumGetCString(types[i]);
		bool		is_array = strncmp(type, "Array", 5) == 0;
		bool		blank = type[strlen(type) - 1] == ' ';
		EtlTypeMapping mapping = {.type = type, .policy = policy,
		.companion = is_array && blank, .zero = !is_array && blank};

		codecs[i] = etl_rowbinary_codec(column, &mapping);
		if (is_array || strncmp(type, "LowCardinality", 14) == 0)
			continue;			/* within which Nullable() is */
		if (etl_rowbinary_supported(column, type) !=
			etl_rowbinary_supported(column, psprintf("Nullable(%s)", type)) &&
			strncmp(type, "Nullable", 8) != 0)
			elog(ERROR, "support of %s depends on Nullable", type);
	}
	return codecs;
}

/* Walking the row must end where it ends, and every shorter row must fail. */
static void
check_walk(EtlRowBinaryCodec **codecs, int n, const char *row, uint32 len)
{
	const char *p = row;
	const char *end = row + len;

	for (int i = 0; i < n; i++)
	{
		uint32		step = etl_rowbinary_skip(codecs[i], p, end - p);

		if (step == 0 || step > end - p)
			elog(ERROR, "value %d of a row cannot be skipped", i + 1);
		if (etl_rowbinary_skip(codecs[i], p, step - 1) != 0)
			elog(ERROR, "value %d of a row fits into too few bytes", i + 1);
		p += step;
	}
	if (p != end)
		elog(ERROR, "a row is %u bytes longer than its values", (uint32) (end - p));
}

static void
encode(EtlRowBinaryCodec **codecs, int n, HeapTuple tuple, TupleDesc desc,
	   Datum *values, bool *nulls, StringInfo out)
{
	EtlValueError error;

	heap_deform_tuple(tuple, desc, values, nulls);
	if (!etl_rowbinary_row(codecs, n, values, nulls, NULL, NULL, out, &error))
		ereport(ERROR,
				(errcode(error.sqlstate),
				 errmsg("%s", error.message)));
}

/*
 * etl_test.rowbinary(query text, types text[], policy text) returns bytea: the
 * rows of a query, one after the other.  A type of an array that ends with a
 * blank has a companion; a null is the zero of another type that ends so.
 */
Datum
etl_test_rowbinary(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	StringInfoData out;
	bytea	   *result;
	SPITupleTable *table;
	EtlRowBinaryCodec **codecs;
	EtlValuePolicy policy = ETL_POLICY_ERROR;
	Datum	   *values;
	bool	   *nulls;
	int			n;

	while (strcmp(etl_value_policy_name(policy), text_to_cstring(PG_GETARG_TEXT_PP(2))) != 0)
		policy++;
	SPI_connect();
	if (SPI_execute(text_to_cstring(PG_GETARG_TEXT_PP(0)), true, 0) != SPI_OK_SELECT)
		elog(ERROR, "not a query");
	table = SPI_tuptable;
	codecs = make_codecs(table->tupdesc, PG_GETARG_ARRAYTYPE_P(1), policy, &n);
	values = palloc_array(Datum, n + 1);
	nulls = palloc_array(bool, n + 1);
	initStringInfo(&out);
	for (uint64 i = 0; i < table->numvals; i++)
	{
		int			start = out.len;

		encode(codecs, n, table->vals[i], table->tupdesc, values, nulls, &out);
		check_walk(codecs, n, out.data + start, out.len - start);
	}
	result = MemoryContextAlloc(caller, VARHDRSZ + out.len);
	SET_VARSIZE(result, VARHDRSZ + out.len);
	memcpy(VARDATA(result), out.data, out.len);
	SPI_finish();
	PG_RETURN_BYTEA_P(result);
}

/*
 * etl_test.rowbinary_seconds(query text, types text[], rounds integer): time
 * to encode the rows of a query so many times.
 */
Datum
etl_test_rowbinary_seconds(PG_FUNCTION_ARGS)
{
	StringInfoData out;
	SPITupleTable *table;
	EtlRowBinaryCodec **codecs;
	Datum	   *values;
	bool	   *nulls;
	instr_time	start;
	instr_time	end;
	int			n;

	SPI_connect();
	if (SPI_execute(text_to_cstring(PG_GETARG_TEXT_PP(0)), true, 0) != SPI_OK_SELECT)
		elog(ERROR, "not a query");
	table = SPI_tuptable;
	codecs = make_codecs(table->tupdesc, PG_GETARG_ARRAYTYPE_P(1), ETL_POLICY_ERROR, &n);
	values = palloc_array(Datum, n + 1);
	nulls = palloc_array(bool, n + 1);
	initStringInfo(&out);
	INSTR_TIME_SET_CURRENT(start);
	for (int round = 0; round < PG_GETARG_INT32(2); round++)
	{
		for (uint64 i = 0; i < table->numvals; i++)
		{
			resetStringInfo(&out);
			encode(codecs, n, table->vals[i], table->tupdesc, values, nulls, &out);
		}
	}
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	SPI_finish();
	PG_RETURN_FLOAT8(INSTR_TIME_GET_DOUBLE(end));
}

/*
 * etl_test.rowbinary_version(epoch int4, lsn pg_lsn, ordinal int8, sub int4)
 * returns bytea
 */
Datum
etl_test_rowbinary_version(PG_FUNCTION_ARGS)
{
	StringInfoData out;
	EtlPosition position = {
		.epoch = PG_GETARG_INT32(0),
		.commit_lsn = (XLogRecPtr) PG_GETARG_INT64(1),
		.ordinal = PG_GETARG_INT64(2),
		.sub = PG_GETARG_INT32(3)
	};
	bytea	   *result;

	initStringInfo(&out);
	etl_rowbinary_version(&out, &position);
	result = palloc(VARHDRSZ + out.len);
	SET_VARSIZE(result, VARHDRSZ + out.len);
	memcpy(VARDATA(result), out.data, out.len);
	PG_RETURN_BYTEA_P(result);
}
