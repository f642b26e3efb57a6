/*-------------------------------------------------------------------------
 *
 * rowbinary_codec.h
 *	  What a RowBinary codec consists of: shared by its maker and its user.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_ROWBINARY_CODEC_H
#define ETL_ROWBINARY_CODEC_H

#include "fmgr.h"

#include "format/json.h"
#include "format/rowbinary.h"

/* What to do with a value. */
typedef enum EtlRowBinaryAction
{
	RB_REFUSE,					/* no way from this source to this type */
	RB_COPY_1,					/* Datum's low bytes as they are */
	RB_COPY_2,
	RB_COPY_4,
	RB_COPY_8,
	RB_INTEGER,					/* integer, range-checked, any width */
	RB_INTEGER_DECIMAL,			/* integer or money to Decimal */
	RB_WIDEN_FLOAT,				/* float4 to Float64 */
	RB_DATE_DAYS,
	RB_TICKS,					/* timestamp or time to another unit */
	RB_UUID_HALVES,
	RB_NUMERIC_DECIMAL,
	RB_NUMERIC_INTEGER,
	RB_STRING,					/* varlena to String */
	RB_STRING_FIXED,			/* text to FixedString, filled up */
	RB_BYTES_FIXED,				/* bytea to FixedString, of its length */
	RB_STRING_NAME,				/* name to String */
	RB_STRING_MONEY,
	RB_STRING_OUTPUT,			/* output function to String */
	RB_STRING_JSON,				/* as webhooks get it, to String */
	RB_JSON,					/* json to JSON, as text */
	RB_JSONB,					/* the same of jsonb */
	RB_ARRAY
} EtlRowBinaryAction;

/* source_width of xid8, whose values may be above int64 */
#define ETL_RB_XID8		(-8)

struct EtlRowBinaryCodec
{
	uint8		action;			/* EtlRowBinaryAction */
	bool		nullable;
	bool		convert;		/* text needs conversion to UTF-8 */
	bool		is_unsigned;	/* RB_NUMERIC_INTEGER: no negative result */
	AttrNumber	attnum;
	int			width;			/* of the result; 0: length comes first */
	int			source_width;	/* integers: bytes; negative: unsigned */
	int			source_scale;	/* integers: fraction digits (money) */
	int			precision;
	int			scale;
	int64		low;			/* range of the source value */
	int64		high;
	int64		offset;			/* RB_TICKS: added to the source value, */
	int64		multiply;		/* then multiplied */
	int64		divide;			/* or divided exactly */
	uint8		policy;			/* EtlValuePolicy */
	bool		companion;		/* arrays: a byte behind it says "null" */
	bool		zero;			/* a null is written as the type's zero */
	bool		any_bounds;		/* int2vector and oidvector begin at 0 */
	bool		typbyval;		/* of elements, as the next two */
	char		typalign;
	int16		typlen;
	int			dimensions;
	EtlRowBinaryCodec *element; /* RB_ARRAY */
	EtlJsonCodec *json;			/* RB_STRING_JSON */
	FmgrInfo	output;			/* RB_STRING_OUTPUT */
	const char *column;			/* for messages */
	const char *type;
};

/* --- rowbinary.c --- */

extern bool etl_rowbinary_put(EtlRowBinaryCodec *codec, Datum value, bool isnull,
							  StringInfo out, EtlValueError *error);
extern bool etl_rowbinary_refuse(const EtlRowBinaryCodec *codec, int sqlstate, const char *what,
								 EtlValueError *error);
extern int64 etl_rowbinary_integer(const EtlRowBinaryCodec *codec, Datum value);

/* --- rowbinary_array.c --- */

/* Append an array; "drop_bounds": as if its lower bounds were 1. */
extern bool etl_rowbinary_array(EtlRowBinaryCodec *codec, Datum value, bool drop_bounds,
								StringInfo out, EtlValueError *error);

/* --- rowbinary_json.c --- */

/* Would the type JSON hold this text, which is valid JSON, as it is? */
extern bool etl_rowbinary_json_holds(const char *json, uint32 len);

/* --- rowbinary_clamp.c --- */

/*
 * Append the value that the type can hold and that is nearest; false if there
 * is none.  The NULL byte is written.
 */
extern bool etl_rowbinary_clamp(EtlRowBinaryCodec *codec, Datum value, StringInfo out);

#define UNIX_DAYS	(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE)
#define UNIX_MICROS (UNIX_DAYS * USECS_PER_DAY)

#endif							/* ETL_ROWBINARY_CODEC_H */
