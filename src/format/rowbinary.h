/*-------------------------------------------------------------------------
 *
 * rowbinary.h
 *	  ClickHouse's RowBinary format: the encoder, knowing no destination.
 *
 * Types with a fixed binary form are written straight from the Datum, all
 * others through the type's output function as String.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_ROWBINARY_H
#define ETL_ROWBINARY_H

#include "etl/destination.h"

typedef struct EtlRowBinaryCodec EtlRowBinaryCodec; /* one column */

/* RowBinary type text for a source column: "Int64", "Nullable(String)", "DateTime64(6, 'UTC')". */
extern const char *etl_rowbinary_type(const EtlColumn *column, bool nullable);

/* Codec writing "column" as RowBinary type "type" (as made above or given by a user). */
extern EtlRowBinaryCodec *etl_rowbinary_codec(const EtlColumn *column, const char *type);

/*
 * Append one value (isnull: NULL for nullable codecs, the type's zero for
 * others).  Returns false with error filled (message names no value) when out
 * of the type's range.
 */
extern bool etl_rowbinary_value(EtlRowBinaryCodec *codec, Datum value, bool isnull,
								StringInfo out, EtlValueError *error);

/* Append a LEB128 length and the bytes: a String. */
extern void etl_rowbinary_string(StringInfo out, const char *data, uint32 len);

/* Length of the value at "data", or 0 if it does not fit in "len" (for walking rows). */
extern uint32 etl_rowbinary_skip(const EtlRowBinaryCodec *codec, const char *data, uint32 len);

#endif							/* ETL_ROWBINARY_H */
