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

#include "schema/typemap.h"

typedef struct EtlRowBinaryCodec EtlRowBinaryCodec; /* one column */

/*
 * What a column becomes, in CurrentMemoryContext: "Int64", "Nullable(String)",
 * "Array(Nullable(Date32))" with a companion that says whether it is null.
 */
extern void etl_rowbinary_map(const EtlColumn *column, const EtlTypeWish *wish,
							  EtlTypeMapping *mapping);

/* End of the name of an array's companion, a UInt8. */
#define ETL_ROWBINARY_IS_NULL "__is_null"

/*
 * Codec writing "column" as the mapping says (its companion behind it), in
 * CurrentMemoryContext.  Looks the output function up where one is needed.  A
 * pair that cannot be written gives a codec that refuses every value but NULL;
 * etl_rowbinary_supported() tells beforehand, without catalogs.
 */
extern EtlRowBinaryCodec *etl_rowbinary_codec(const EtlColumn *column, const EtlTypeMapping *mapping);
extern bool etl_rowbinary_supported(const EtlColumn *column, const char *type);

/*
 * Append one value by each of "n" codecs in turn, from arrays indexed by
 * attnum - 1 as a slot has them.  Columns in "missing" (attnums, or NULL), of
 * which there is no value, are written as NULL or the type's zero.
 *
 * A value outside the type's range is treated by the codec's policy and noted
 * in "adjusted" (or NULL); if there is none, false is returned with error
 * filled (message names no value).  So it is for a null, if the type has none
 * and the mapping does not say "zero".  A value that is unchanged TOAST in the
 * stream must not come here.
 */
extern bool etl_rowbinary_row(EtlRowBinaryCodec *const *codecs, int n,
							  const Datum *values, const bool *isnull,
							  const Bitmapset *missing, EtlAdjusted *adjusted,
							  StringInfo out, EtlValueError *error);

/* Append a null, or the type's zero. */
extern void etl_rowbinary_null(EtlRowBinaryCodec *codec, StringInfo out);

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
