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

/*
 * Codec writing "column" as RowBinary type "type" (as made above or given by a
 * user), in CurrentMemoryContext.  Looks the output function up where one is
 * needed.  A pair that cannot be written gives a codec that refuses every
 * value but NULL; etl_rowbinary_supported() tells beforehand, without
 * catalogs.
 */
extern EtlRowBinaryCodec *etl_rowbinary_codec(const EtlColumn *column, const char *type);
extern bool etl_rowbinary_supported(const EtlColumn *column, const char *type);

/*
 * Append one value (isnull: NULL for nullable codecs, the type's zero for
 * others).  Returns false with error filled (message names no value) when out
 * of the type's range.  A value that is unchanged TOAST in the stream must not
 * come here: pass isnull.
 */
extern bool etl_rowbinary_value(EtlRowBinaryCodec *codec, Datum value, bool isnull,
								StringInfo out, EtlValueError *error);

/*
 * Append one value by each of "n" codecs in turn, from arrays indexed by
 * attnum - 1 as a slot has them.  Columns in "missing" (attnums, or NULL) are
 * written as NULL.
 */
extern bool etl_rowbinary_row(EtlRowBinaryCodec *const *codecs, int n,
							  const Datum *values, const bool *isnull,
							  const Bitmapset *missing,
							  StringInfo out, EtlValueError *error);

/* Append a LEB128 length and the bytes: a String. */
extern void etl_rowbinary_string(StringInfo out, const char *data, uint32 len);

/* Append a fixed-width number, least significant byte first. */
extern void etl_rowbinary_uint8(StringInfo out, uint8 value);
extern void etl_rowbinary_uint64(StringInfo out, uint64 value);

/*
 * Append a position as UInt128: epoch (16 bits), commit_lsn (64), ordinal
 * (40), sub (8) from the high end, so that numbers compare as positions do.
 */
extern void etl_rowbinary_version(StringInfo out, const EtlPosition *position);

/* Length of the value at "data", or 0 if it does not fit in "len" (for walking rows). */
extern uint32 etl_rowbinary_skip(const EtlRowBinaryCodec *codec, const char *data, uint32 len);

#endif							/* ETL_ROWBINARY_H */
