/*-------------------------------------------------------------------------
 *
 * rowbinary_array.c
 *	  Arrays in RowBinary, and walking over values.
 *
 * An array is the number of its elements and the elements; one of several
 * dimensions is an array of arrays.  PostgreSQL holds no array to what its
 * column declares, ClickHouse does; and it counts from 1.  What is otherwise
 * is outside of the type: it is never flattened.
 *
 * ClickHouse has no null of arrays.  A byte behind the array, a column of its
 * own there, tells it from an empty one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tupmacs.h"
#include "miscadmin.h"
#include "utils/array.h"

#include "compat.h"
#include "format/rowbinary_codec.h"
#include "format/rowbinary_put.h"

/* Holds an array while its elements are written; arrays have none inside. */
static MemoryContext context = NULL;

typedef struct ArrayWalk
{
	EtlRowBinaryCodec *codec;
	StringInfo	out;
	EtlValueError *error;
	const int  *dims;
	const char *data;			/* next element that is not null */
	const bits8 *nulls;			/* or NULL */
	int			item;			/* 0.. index of the next element */
} ArrayWalk;

static bool
walk_element(ArrayWalk *walk)
{
	EtlRowBinaryCodec *codec = walk->codec;
	bool		isnull = walk->nulls &&
		(walk->nulls[walk->item / 8] & (1 << (walk->item % 8))) == 0;
	Datum		value = (Datum) 0;

	walk->item++;
	if (isnull)
	{
		if (!codec->element->nullable)
			return etl_rowbinary_refuse(codec, ERRCODE_NULL_VALUE_NOT_ALLOWED,
										"has a null element, unlike", walk->error);
	}
	else
	{
		value = fetch_att(walk->data, codec->typbyval, codec->typlen);
		walk->data = att_addlength_pointer(walk->data, codec->typlen, walk->data);
		walk->data = (const char *) att_align_nominal(walk->data, codec->typalign);
	}
	return etl_rowbinary_put(codec->element, value, isnull, walk->out, walk->error);
}

static bool
walk_dimension(ArrayWalk *walk, int dim)
{
	put_count(walk->out, walk->dims[dim]);
	for (int i = 0; i < walk->dims[dim]; i++)
		if (!(dim + 1 < walk->codec->dimensions ? walk_dimension(walk, dim + 1) : walk_element(walk)))
			return false;
	CHECK_FOR_INTERRUPTS();
	return true;
}

static bool
has_usual_bounds(ArrayType *array)
{
	for (int i = 0; i < ARR_NDIM(array); i++)
		if (ARR_LBOUND(array)[i] != 1)
			return false;
	return true;
}

static bool
put_elements(EtlRowBinaryCodec *codec, ArrayType *array, bool drop_bounds,
			 StringInfo out, EtlValueError *error)
{
	ArrayWalk	walk = {codec, out, error, ARR_DIMS(array), ARR_DATA_PTR(array), ARR_NULLBITMAP(array), 0};

	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) == 0)
	{
		put_count(out, 0);
		return true;
	}
	if (ARR_NDIM(array) != codec->dimensions)
		return etl_rowbinary_refuse(codec, ERRCODE_ARRAY_SUBSCRIPT_ERROR,
									"has another number of dimensions than", error);
	if (!codec->any_bounds && !drop_bounds && !has_usual_bounds(array))
		return etl_rowbinary_refuse(codec, ERRCODE_ARRAY_SUBSCRIPT_ERROR,
									"has a lower bound other than 1, unlike", error);
	return walk_dimension(&walk, 0);
}

bool
etl_rowbinary_array(EtlRowBinaryCodec *codec, Datum value, bool drop_bounds,
					StringInfo out, EtlValueError *error)
{
	MemoryContext old;
	ArrayType  *array;
	bool		ok;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "etl rowbinary array",
										ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	array = DatumGetArrayTypeP(value);
	MemoryContextSwitchTo(old);
	ok = put_elements(codec, array, drop_bounds, out, error);
	MemoryContextReset(context);
	if (ok && codec->companion)
	{
		(void) reserve(out, 1);
		out->data[out->len++] = 0;
	}
	return ok;
}

/* ----------
 * Walking
 * ----------
 */

/* Read a LEB128 number; the result is the bytes read, 0 if it does not end. */
static uint32
get_count(const char *data, uint32 len, uint32 *count)
{
	*count = 0;
	for (uint32 at = 0; at < len && at < LENGTH_ROOM; at++)
	{
		*count |= (uint32) (data[at] & 0x7F) << (7 * at);
		if ((data[at] & 0x80) == 0)
			return at + 1;
	}
	return 0;
}

static uint32
skip_elements(const EtlRowBinaryCodec *codec, int dim, const char *data, uint32 len)
{
	uint32		count;
	uint32		at = get_count(data, len, &count);

	if (at == 0)
		return 0;
	for (uint32 i = 0; i < count; i++)
	{
		uint32		step = dim + 1 < codec->dimensions ?
			skip_elements(codec, dim + 1, data + at, len - at) :
			etl_rowbinary_skip(codec->element, data + at, len - at);

		if (step == 0)
			return 0;
		at += step;
	}
	return at;
}

uint32
etl_rowbinary_skip(const EtlRowBinaryCodec *codec, const char *data, uint32 len)
{
	uint32		at = 0;
	uint32		value_len = codec->width;

	if (codec->dimensions > 0)
	{
		at = skip_elements(codec, 0, data, len);
		if (at == 0 || !codec->companion)
			return at;
		return at < len ? at + 1 : 0;
	}
	if (codec->nullable)
	{
		if (len == 0)
			return 0;
		if (data[at++] != 0)
			return at;
	}
	if (codec->width == 0)
	{
		uint32		step = get_count(data + at, len - at, &value_len);

		if (step == 0)
			return 0;
		at += step;
	}
	return value_len <= len - at ? at + value_len : 0;
}
