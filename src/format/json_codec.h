/*-------------------------------------------------------------------------
 *
 * json_codec.h
 *	  What the parts of the JSON encoder share; private to src/format/json*.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_JSON_CODEC_H
#define ETL_JSON_CODEC_H

#include "access/tupdesc.h"
#include "fmgr.h"

#include "format/json.h"

/* How values of a type are written. */
typedef enum EtlJsonForm
{
	ETL_JSON_BOOL,
	ETL_JSON_INT2,
	ETL_JSON_INT4,
	ETL_JSON_INT8,
	ETL_JSON_FLOAT4,
	ETL_JSON_FLOAT8,
	ETL_JSON_NUMERIC,
	ETL_JSON_MONEY,
	ETL_JSON_TEXT,				/* varlena that is its own text */
	ETL_JSON_BYTEA,
	ETL_JSON_UUID,
	ETL_JSON_DATETIME,			/* date, time, timetz, timestamp, timestamptz */
	ETL_JSON_INTERVAL,
	ETL_JSON_JSON,
	ETL_JSON_JSONB,
	ETL_JSON_HSTORE,
	ETL_JSON_ARRAY,
	ETL_JSON_RECORD,
	ETL_JSON_OUTPUT				/* the type's output function, as a string */
} EtlJsonForm;

/*
 * A composite type as it is now.  Unlike everything else about a type it can
 * change under a living codec (ALTER TYPE ... ADD ATTRIBUTE alters no table),
 * so it is built again after an invalidation.
 */
typedef struct EtlJsonRecord
{
	Oid			relid;			/* pg_class entry of the row type */
	uint64		built;			/* value of the invalidation counter */
	MemoryContext context;		/* everything below */
	TupleDesc	desc;
	const char **names;			/* "name": as it goes out, NULL for dropped */
	EtlJsonCodec **codecs;
} EtlJsonRecord;

struct EtlJsonCodec
{
	EtlJsonForm form;
	Oid			type;			/* base type */
	EtlJsonOptions options;
	FmgrInfo	output;			/* of the base type */
	int			digits;			/* money: digits after the point */

	/* arrays */
	EtlJsonCodec *element;
	int16		typlen;			/* of the elements */
	bool		typbyval;
	char		typalign;
	bool		keep_bounds;	/* false: int2vector, oidvector start at 0 */

	EtlJsonRecord *record;
};

/* json.c */
extern void etl_json_put(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated);

/* json_scalar.c */
extern void etl_json_scalar(EtlJsonCodec *codec, Datum value, StringInfo out);
extern void etl_json_money(int64 cents, int digits, char *buf);

/* json_nested.c */
extern EtlJsonRecord *etl_json_record_create(Oid relid);
extern void etl_json_array(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated);
extern void etl_json_record(EtlJsonCodec *codec, Datum value, StringInfo out, bool *deviated);

/* Longest text of etl_json_money(), with its end. */
#define ETL_JSON_MONEY_LEN	40

#endif							/* ETL_JSON_CODEC_H */
