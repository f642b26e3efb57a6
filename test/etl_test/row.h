/*-------------------------------------------------------------------------
 *
 * row.h
 *	  How the kinds of this extension encode rows.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_TEST_ROW_H
#define ETL_TEST_ROW_H

#include "etl/destination.h"

/* What precedes the values of a row. */
typedef struct RowHead
{
	EtlPosition position;
	uint8		op;
	uint8		phase;
	int16		ncolumns;
} RowHead;

extern EtlCodec *row_codec_create(const EtlShape *shape, const EtlTarget *target,
								  const EtlOptions *options);
extern bool row_encode(EtlCodec *codec, const EtlChange *change, StringInfo out,
					   EtlValueError *error);
extern bool row_extract(EtlCodec *codec, const char *row, uint32 len, AttrNumber attnum,
						const char **value, uint32 *value_len);
extern bool row_splice(EtlCodec *codec, const char *row, uint32 len, int ncolumns,
					   const AttrNumber *attnums, const char *const *values,
					   const uint32 *value_lens, StringInfo out);

/* The row's head; and its values as a JSON object, those of the key alone. */
extern void row_head(const char *row, RowHead *head);
extern void row_json(const EtlShape *shape, const char *row, uint32 len, bool key_only,
					 StringInfo out);

#endif							/* ETL_TEST_ROW_H */
