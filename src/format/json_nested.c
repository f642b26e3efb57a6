/*-------------------------------------------------------------------------
 *
 * json_nested.c
 *	  JSON of arrays and composite values.
 *
 * Arrays become nested arrays.  An array with a lower bound other than 1
 * cannot, so it goes out as its text, and the caller learns about it.
 * Composite values become objects in the order of their attributes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/cash.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "compat.h"
#include "format/json_codec.h"

/* --- arrays --- */

/* Where the walk over an array's elements is. */
typedef struct ArrayWalk
{
	EtlJsonCodec *codec;
	StringInfo	out;
	bool	   *deviated;
	int			ndim;
	const int  *dims;
	const char *data;			/* next non-null element */
	const bits8 *nulls;			/* or NULL */
	int			item;			/* 0.. index of the next element */
} ArrayWalk;

static void
walk_dimension(ArrayWalk *walk, int dim)
{
	EtlJsonCodec *codec = walk->codec;

	appendStringInfoChar(walk->out, '[');
	for (int i = 0; i < walk->dims[dim]; i++)
	{
		if (i > 0)
			appendStringInfoChar(walk->out, ',');

		if (dim + 1 < walk->ndim)
		{
			walk_dimension(walk, dim + 1);
			continue;
		}
		if (walk->nulls && (walk->nulls[walk->item / 8] & (1 << (walk->item % 8))) == 0)
			appendBinaryStringInfo(walk->out, "null", 4);
		else
		{
			etl_json_put(codec->element, fetch_att(walk->data, codec->typbyval, codec->typlen),
						 walk->out, walk->deviated);
			walk->data = att_addlength_pointer(walk->data, codec->typlen, walk->data);
			walk->data = (const char *) att_align_nominal(walk->data, codec->typalign);
		}
		walk->item++;
	}
	appendStringInfoChar(walk->out, ']');
}

static bool
has_usual_bounds(ArrayType *array)
{
	for (int i = 0; i < ARR_NDIM(array); i++)
		if (ARR_LBOUND(array)[i] != 1)
			return false;
	return true;
}

/*
 * The text of an array of money with unusual bounds: its own output would
 * show the locale's text, so the elements are replaced by their decimals,
 * which never need quotes.
 */
static char *
money_array_text(EtlJsonCodec *codec, ArrayType *array)
{
	Datum	   *elements;
	bool	   *nulls;
	int			count;

	deconstruct_array(array, ARR_ELEMTYPE(array), codec->typlen, codec->typbyval,
					  codec->typalign, &elements, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		char		buf[ETL_JSON_MONEY_LEN];

		if (nulls[i])
			continue;
		etl_json_money(DatumGetCash(elements[i]), codec->element->digits, buf);
		elements[i] = CStringGetTextDatum(buf);
	}
	array = construct_md_array(elements, nulls, ARR_NDIM(array), ARR_DIMS(array),
							   ARR_LBOUND(array), TEXTOID, -1, false, TYPALIGN_INT);
	return OutputFunctionCall(&codec->output, PointerGetDatum(array));
}

void
etl_json_array(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated)
{
	ArrayType  *array = DatumGetArrayTypeP(value);
	ArrayWalk	walk;

	check_stack_depth();

	if (codec->keep_bounds && !has_usual_bounds(array))
	{
		if (deviated)
			*deviated = true;
		if (codec->element->form == ETL_JSON_MONEY)
			etl_json_string(out, money_array_text(codec, array));
		else
			etl_json_string(out, OutputFunctionCall(&codec->output, PointerGetDatum(array)));
		return;
	}

	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) == 0)
	{
		appendBinaryStringInfo(out, "[]", 2);
		return;
	}

	walk.codec = codec;
	walk.out = out;
	walk.deviated = deviated;
	walk.ndim = ARR_NDIM(array);
	walk.dims = ARR_DIMS(array);
	walk.data = ARR_DATA_PTR(array);
	walk.nulls = ARR_NULLBITMAP(array);
	walk.item = 0;
	walk_dimension(&walk, 0);
}

/* --- composite values --- */

/*
 * Counts invalidations of any relation: a composite type is one.  Rebuilding
 * is cheap, and being told too often is harmless.
 */
static uint64 invalidations = 1;

static void
relation_invalidated(Datum arg, Oid relid)
{
	invalidations++;
}

/*
 * Read the row type as the catalogs in force show it.  No lock is taken, as
 * the reorder buffer takes none: a decoding process must not wait for a
 * user's ALTER TYPE, and nothing can invalidate the entry before it is copied.
 */
static void
build_record(EtlJsonRecord *record, const EtlJsonOptions *options)
{
	MemoryContext old;
	Relation	rel;

	MemoryContextReset(record->context);
	old = MemoryContextSwitchTo(record->context);
	record->built = 0;

	rel = RelationIdGetRelation(record->relid);
	if (!RelationIsValid(rel))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("row type with OID %u does not exist", record->relid)));
	record->desc = CreateTupleDescCopyConstr(RelationGetDescr(rel));
	RelationClose(rel);

	/* before the look-ups below, so that what they meet is not missed */
	record->built = invalidations;
	record->names = palloc0_array(const char *, record->desc->natts);
	record->codecs = palloc0_array(EtlJsonCodec *, record->desc->natts);
	for (int i = 0; i < record->desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(record->desc, i);
		StringInfoData name;

		if (att->attisdropped)
			continue;
		initStringInfo(&name);
		etl_json_string(&name, NameStr(att->attname));
		appendStringInfoChar(&name, ':');
		record->names[i] = name.data;
		record->codecs[i] = etl_json_codec(att->atttypid, att->atttypmod, options);
	}
	MemoryContextSwitchTo(old);
}

/* A record codec's private part, in CurrentMemoryContext. */
EtlJsonRecord *
etl_json_record_create(Oid relid)
{
	static bool registered = false;
	EtlJsonRecord *record = palloc0_object(EtlJsonRecord);

	if (!registered)
	{
		CacheRegisterRelcacheCallback(relation_invalidated, (Datum) 0);
		registered = true;
	}
	record->relid = relid;
	record->context = AllocSetContextCreate(CurrentMemoryContext, "etl JSON row type",
											ALLOCSET_SMALL_SIZES);
	return record;
}

void
etl_json_record(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated)
{
	EtlJsonRecord *record = codec->record;
	HeapTupleHeader header = DatumGetHeapTupleHeader(value);
	HeapTupleData tuple;
	Datum	   *values;
	bool	   *nulls;
	bool		first = true;

	check_stack_depth();

	if (record->built != invalidations)
		build_record(record, &codec->options);

	tuple.t_len = HeapTupleHeaderGetDatumLength(header);
	ItemPointerSetInvalid(&tuple.t_self);
	tuple.t_tableOid = InvalidOid;
	tuple.t_data = header;

	values = palloc_array(Datum, record->desc->natts);
	nulls = palloc_array(bool, record->desc->natts);
	heap_deform_tuple(&tuple, record->desc, values, nulls);

	appendStringInfoChar(out, '{');
	for (int i = 0; i < record->desc->natts; i++)
	{
		if (record->codecs[i] == NULL)
			continue;
		if (!first)
			appendStringInfoChar(out, ',');
		first = false;
		appendStringInfoString(out, record->names[i]);
		if (nulls[i])
			appendBinaryStringInfo(out, "null", 4);
		else
			etl_json_put(record->codecs[i], values[i], out, deviated);
	}
	appendStringInfoChar(out, '}');
}
