/*-------------------------------------------------------------------------
 *
 * rowbinary_type.h
 *	  Type texts of ClickHouse, taken apart.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_ROWBINARY_TYPE_H
#define ETL_ROWBINARY_TYPE_H

typedef enum EtlRowBinaryBase
{
	ETL_RB_OTHER = 0,			/* not written by us */
	ETL_RB_BOOL,
	ETL_RB_INT,					/* width */
	ETL_RB_UINT,				/* width */
	ETL_RB_FLOAT,				/* width */
	ETL_RB_DECIMAL,				/* width, precision, scale */
	ETL_RB_STRING,
	ETL_RB_FIXED_STRING,		/* width */
	ETL_RB_DATE,
	ETL_RB_DATE32,
	ETL_RB_DATETIME,
	ETL_RB_DATETIME64,			/* scale */
	ETL_RB_TIME,
	ETL_RB_TIME64,				/* scale */
	ETL_RB_UUID,
	ETL_RB_JSON					/* of objects, sent as text */
} EtlRowBinaryBase;

typedef struct EtlRowBinaryType
{
	int			dimensions;		/* Array() around the rest; 0: none */
	EtlRowBinaryBase base;
	bool		nullable;
	int			width;			/* bytes of a value; 0: length comes first */
	int			precision;
	int			scale;
} EtlRowBinaryType;

/*
 * Take a type text apart: blanks do not matter, LowCardinality() is looked
 * through.  Anything unknown gives ETL_RB_OTHER.
 */
extern void etl_rowbinary_parse(const char *text, EtlRowBinaryType *type);

/* The same text without the blanks that ClickHouse would not write. */
extern char *etl_rowbinary_spelling(const char *text);

#endif							/* ETL_ROWBINARY_TYPE_H */
