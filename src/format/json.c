/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Values of PostgreSQL as JSON: which form a type has, and the way in.
 *
 * The form is that of to_json() with these deviations:
 *
 *	 numeric, money		decimal strings (numeric_as_number undoes the first)
 *	 arrays				with a lower bound other than 1 as their text
 *	 hstore				an object, as its own cast to json gives it
 *	 other types		with a cast to json: their text.  Such a cast may be any
 *						function and read any table, which a decoder must not
 *
 * What is known about a type is looked up when its codec is made: in a
 * decoding callback under the historic catalogs, elsewhere under the current
 * ones.  Only syscache and relcache are asked, no table is scanned.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/pg_locale.h"
#include "utils/syscache.h"

#include "compat.h"
#include "format/json_codec.h"

/* Made by the first value; holds what encoding one value needs, no longer. */
static MemoryContext scratch = NULL;

/*
 * Is this the output function of the hstore extension?  The name of the type
 * alone says nothing: anyone can make a type of that name.
 */
static bool
is_hstore_output(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc proc;
	Datum		source;
	bool		isnull;
	bool		result = false;

	if (!HeapTupleIsValid(tuple))
		return false;
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_prosrc, &isnull);
	if (proc->prolang == ClanguageId && !isnull)
	{
		char	   *symbol = TextDatumGetCString(source);

		if (strcmp(symbol, "hstore_out") == 0)
		{
			source = SysCacheGetAttr(PROCOID, tuple, Anum_pg_proc_probin, &isnull);
			if (!isnull)
			{
				char	   *library = TextDatumGetCString(source);
				const char *base = strrchr(library, '/');

				base = base ? base + 1 : library;
				result = strncmp(base, "hstore", 6) == 0;
				pfree(library);
			}
		}
		pfree(symbol);
	}
	ReleaseSysCache(tuple);
	return result;
}

/* Form of a base type that is neither an array nor a composite. */
static EtlJsonForm
scalar_form(Oid type, Oid output)
{
	switch (type)
	{
		case BOOLOID:
			return ETL_JSON_BOOL;
		case INT2OID:
			return ETL_JSON_INT2;
		case INT4OID:
			return ETL_JSON_INT4;
		case INT8OID:
			return ETL_JSON_INT8;
		case FLOAT4OID:
			return ETL_JSON_FLOAT4;
		case FLOAT8OID:
			return ETL_JSON_FLOAT8;
		case NUMERICOID:
			return ETL_JSON_NUMERIC;
		case MONEYOID:
			return ETL_JSON_MONEY;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			return ETL_JSON_TEXT;
		case BYTEAOID:
			return ETL_JSON_BYTEA;
		case UUIDOID:
			return ETL_JSON_UUID;
		case DATEOID:
		case TIMEOID:
		case TIMETZOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return ETL_JSON_DATETIME;
		case INTERVALOID:
			return ETL_JSON_INTERVAL;
		case JSONOID:
			return ETL_JSON_JSON;
		case JSONBOID:
			return ETL_JSON_JSONB;
		default:
			return is_hstore_output(output) ? ETL_JSON_HSTORE : ETL_JSON_OUTPUT;
	}
}

/* Digits after the point that the database's lc_monetary gives money. */
static int
money_digits(void)
{
	int			digits = PGLC_localeconv()->frac_digits;

	/* as the type's own functions: nonsense means 2 */
	return (digits < 0 || digits > 10) ? 2 : digits;
}

EtlJsonCodec *
etl_json_codec(Oid type, int32 typmod, const EtlJsonOptions *options)
{
	EtlJsonCodec *codec = palloc0_object(EtlJsonCodec);
	Oid			base = getBaseType(type);
	Oid			output;
	Oid			element;
	bool		varlena;

	check_stack_depth();

	codec->type = base;
	codec->options = *options;
	getTypeOutputInfo(base, &output, &varlena);
	fmgr_info_cxt(output, &codec->output, CurrentMemoryContext);

	element = get_element_type(base);
	if (OidIsValid(element))
	{
		codec->form = ETL_JSON_ARRAY;
		codec->element = etl_json_codec(element, typmod, options);
		get_typlenbyvalalign(element, &codec->typlen, &codec->typbyval, &codec->typalign);
		codec->keep_bounds = base != INT2VECTOROID && base != OIDVECTOROID;
	}
	else if (base != RECORDOID && OidIsValid(get_typ_typrelid(base)))
	{
		codec->form = ETL_JSON_RECORD;
		codec->record = etl_json_record_create(get_typ_typrelid(base));
	}
	else
		codec->form = scalar_form(base, output);

	if (codec->form == ETL_JSON_MONEY)
		codec->digits = money_digits();
	return codec;
}

const char *
etl_json_kind(const EtlJsonCodec *codec)
{
	switch (codec->form)
	{
		case ETL_JSON_BOOL:
			return "boolean";
		case ETL_JSON_INT2:
		case ETL_JSON_INT4:
		case ETL_JSON_FLOAT4:
		case ETL_JSON_FLOAT8:
			return "number";
		case ETL_JSON_INT8:
			return codec->options.int8_as_string ? "string" : "number";
		case ETL_JSON_NUMERIC:
			return codec->options.numeric_as_number ? "number" : "string";
		case ETL_JSON_JSON:
		case ETL_JSON_JSONB:
			return "json";
		case ETL_JSON_ARRAY:
			return "array";
		case ETL_JSON_HSTORE:
		case ETL_JSON_RECORD:
			return "object";
		case ETL_JSON_MONEY:
		case ETL_JSON_TEXT:
		case ETL_JSON_BYTEA:
		case ETL_JSON_UUID:
		case ETL_JSON_DATETIME:
		case ETL_JSON_INTERVAL:
		case ETL_JSON_OUTPUT:
			break;
	}
	return "string";
}

/* Append a non-null value of any form, in the scratch context. */
void
etl_json_put(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated)
{
	switch (codec->form)
	{
		case ETL_JSON_ARRAY:
			etl_json_array(codec, value, out, deviated);
			break;
		case ETL_JSON_RECORD:
			etl_json_record(codec, value, out, deviated);
			break;
		default:
			etl_json_scalar(codec, value, out);
			break;
	}
}

void
etl_json_value(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated)
{
	MemoryContext old;

	switch (codec->form)
	{
		case ETL_JSON_BOOL:
		case ETL_JSON_INT2:
		case ETL_JSON_INT4:
		case ETL_JSON_INT8:
		case ETL_JSON_FLOAT4:
		case ETL_JSON_FLOAT8:
		case ETL_JSON_UUID:
		case ETL_JSON_DATETIME:
			/* these allocate nothing */
			etl_json_scalar(codec, value, out);
			return;
		default:
			break;
	}

	if (scratch == NULL)
		scratch = AllocSetContextCreate(TopMemoryContext, "etl JSON value",
										ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(scratch);
	etl_json_put(codec, value, out, deviated);
	MemoryContextSwitchTo(old);
	MemoryContextReset(scratch);
}
