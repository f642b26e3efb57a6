/*-------------------------------------------------------------------------
 *
 * json_test.c
 *	  The JSON encoder as SQL functions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "portability/instr_time.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"
#include "format/json.h"

PG_FUNCTION_INFO_V1(etl_test_json);
PG_FUNCTION_INFO_V1(etl_test_json_kind);
PG_FUNCTION_INFO_V1(etl_test_json_skip);
PG_FUNCTION_INFO_V1(etl_test_json_member);
PG_FUNCTION_INFO_V1(etl_test_json_seconds);

/* "flags" names what is not at its default, in any order. */
static EtlJsonOptions
read_flags(const char *flags)
{
	EtlJsonOptions options;

	memset(&options, 0, sizeof(options));
	options.int8_as_string = strstr(flags, "int8") != NULL;
	options.numeric_as_number = strstr(flags, "numeric") != NULL;
	options.bytea_as_base64 = strstr(flags, "base64") != NULL;
	options.one_line = strstr(flags, "one_line") != NULL;
	return options;
}

/*
 * etl_test.json(value anyelement, flags text) returns text.  What was written
 * must be one value for the walker too.
 */
Datum
etl_test_json(PG_FUNCTION_ARGS)
{
	EtlJsonOptions options = read_flags(text_to_cstring(PG_GETARG_TEXT_PP(1)));
	EtlJsonCodec *codec = etl_json_codec(get_fn_expr_argtype(fcinfo->flinfo, 0), -1, &options);
	StringInfoData out;
	bool		deviated = false;

	initStringInfo(&out);
	etl_json_value(codec, PG_GETARG_DATUM(0), &out, &deviated);
	if (etl_json_skip(out.data, out.len) != out.len)
		elog(ERROR, "the value cannot be skipped");
	if (strlen(out.data) != out.len)
		elog(ERROR, "the length is wrong");
	if (deviated && strstr(out.data, "]=") == NULL)
		elog(ERROR, "the value does not deviate");
	PG_RETURN_TEXT_P(cstring_to_text_with_len(out.data, out.len));
}

/* etl_test.json_kind(type regtype, flags text) returns text */
Datum
etl_test_json_kind(PG_FUNCTION_ARGS)
{
	EtlJsonOptions options = read_flags(text_to_cstring(PG_GETARG_TEXT_PP(1)));

	PG_RETURN_TEXT_P(cstring_to_text(etl_json_kind(etl_json_codec(PG_GETARG_OID(0), -1, &options))));
}

/* etl_test.json_skip(json bytea) returns integer */
Datum
etl_test_json_skip(PG_FUNCTION_ARGS)
{
	bytea	   *json = PG_GETARG_BYTEA_PP(0);

	PG_RETURN_INT32(etl_json_skip(VARDATA_ANY(json), VARSIZE_ANY_EXHDR(json)));
}

/* etl_test.json_member(json bytea, name text) returns bytea */
Datum
etl_test_json_member(PG_FUNCTION_ARGS)
{
	bytea	   *json = PG_GETARG_BYTEA_PP(0);
	text	   *name = PG_GETARG_TEXT_PP(1);
	const char *value;
	uint32		len;

	if (!etl_json_member(VARDATA_ANY(json), VARSIZE_ANY_EXHDR(json),
						 VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), &value, &len))
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P((bytea *) cstring_to_text_with_len(value, len));
}

/*
 * etl_test.json_seconds(query text, rounds integer) returns double precision:
 * time for encoding the columns of the query's rows.
 */
Datum
etl_test_json_seconds(PG_FUNCTION_ARGS)
{
	int			rounds = PG_GETARG_INT32(1);
	EtlJsonOptions options = read_flags("");
	SPITupleTable *table;
	EtlJsonCodec **codecs;
	Datum	   *values;
	bool	   *nulls;
	StringInfoData out;
	instr_time	start;
	instr_time	end;

	SPI_connect();
	if (SPI_execute(text_to_cstring(PG_GETARG_TEXT_PP(0)), true, 0) != SPI_OK_SELECT)
		elog(ERROR, "not a query");
	table = SPI_tuptable;
	codecs = palloc_array(EtlJsonCodec *, table->tupdesc->natts + 1);
	values = palloc_array(Datum, table->tupdesc->natts + 1);
	nulls = palloc_array(bool, table->tupdesc->natts + 1);
	for (int i = 0; i < table->tupdesc->natts; i++)
		codecs[i] = etl_json_codec(TupleDescAttr(table->tupdesc, i)->atttypid, -1, &options);
	initStringInfo(&out);

	INSTR_TIME_SET_CURRENT(start);
	for (int round = 0; round < rounds; round++)
	{
		for (uint64 row = 0; row < table->numvals; row++)
		{
			resetStringInfo(&out);
			heap_deform_tuple(table->vals[row], table->tupdesc, values, nulls);
			for (int i = 0; i < table->tupdesc->natts; i++)
			{
				if (!nulls[i])
					etl_json_value(codecs[i], values[i], &out, NULL);
			}
		}
	}
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	SPI_finish();
	PG_RETURN_FLOAT8(INSTR_TIME_GET_DOUBLE(end));
}
