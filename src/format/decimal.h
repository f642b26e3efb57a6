/*-------------------------------------------------------------------------
 *
 * decimal.h
 *	  Exact conversion of numeric and integers to scaled binary integers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_DECIMAL_H
#define ETL_DECIMAL_H

typedef enum EtlDecimalStatus
{
	ETL_DECIMAL_OK = 0,
	ETL_DECIMAL_RANGE,			/* more digits than the precision */
	ETL_DECIMAL_INEXACT,		/* more fractional digits than the scale */
	ETL_DECIMAL_SPECIAL			/* NaN or an infinity */
} EtlDecimalStatus;

/* Most digits and bytes that the functions below can write. */
#define ETL_DECIMAL_MAX_PRECISION	76
#define ETL_DECIMAL_MAX_WIDTH		32

/* Most digits of an integer of that width. */
#define ETL_INTEGER_MAX_DIGITS		78

/*
 * Write value * 10^scale as a little-endian two's complement integer of
 * "width" bytes (4, 8, 16 or 32, wide enough for "precision" digits).  Never
 * rounds: what does not fit exactly is not written and reported.
 *
 * "data" is what follows the varlena header of a numeric, "len" its length;
 * no alignment is assumed.
 */
extern EtlDecimalStatus etl_decimal_from_numeric(const char *data, int len,
												 int precision, int scale,
												 int width, char *dest);

/* The same for the number amount / 10^amount_scale, or its opposite. */
extern EtlDecimalStatus etl_decimal_from_uint64(uint64 amount, bool negative, int amount_scale,
												int precision, int scale,
												int width, char *dest);

/*
 * Write a numeric as an integer of "width" bytes (1 to 32, a power of two): as
 * many digits as these hold.
 */
extern EtlDecimalStatus etl_integer_from_numeric(const char *data, int len, bool is_unsigned,
												 int width, char *dest);

#endif							/* ETL_DECIMAL_H */
