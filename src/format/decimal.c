/*-------------------------------------------------------------------------
 *
 * decimal.c
 *	  Exact conversion of numeric and integers to scaled binary integers.
 *
 * A numeric is stored as a sign, a weight and digits in base 10000:
 *
 *		value = sum of digit[i] * 10000^(weight - i)
 *
 * so digit[i] counts 10^(4 * (weight - i) + scale) units of the result.  The
 * position of the first digit tells beforehand how many decimal digits the
 * result has: if they are not more than the precision no step can overflow,
 * and the number of digits picks the arithmetic: 64 bits up to 18 digits, 128
 * bits up to 38, limbs of 32 bits beyond.  The sums never round: a last digit
 * that reaches below the scale must end in zeros.
 *
 * utils/numeric.h keeps the stored format to itself; it cannot change without
 * breaking every data directory, so it is read here directly.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bitutils.h"
#include "port/pg_bswap.h"

#include "format/decimal.h"

/* The header word of a stored numeric. */
#define SIGN_MASK			0xC000
#define SIGN_NEGATIVE		0x4000
#define FORM_SHORT			0x8000
#define FORM_SPECIAL		0xC000
#define SHORT_NEGATIVE		0x2000
#define SHORT_WEIGHT_SIGN	0x0040
#define SHORT_WEIGHT_MASK	0x003F

#define LIMBS	(ETL_DECIMAL_MAX_WIDTH / 4)

/* Digits of a number in base 10000, most significant first. */
typedef struct Digits
{
	const char *data;			/* int16 each, perhaps not aligned */
	int			count;			/* no zero at either end */
	int			top;			/* decimal digits of the scaled number */
	int			low;			/* power of ten of the last digit */
} Digits;

static const uint64 power10[] = {
	UINT64CONST(1), UINT64CONST(10), UINT64CONST(100), UINT64CONST(1000),
	UINT64CONST(10000), UINT64CONST(100000), UINT64CONST(1000000),
	UINT64CONST(10000000), UINT64CONST(100000000), UINT64CONST(1000000000),
	UINT64CONST(10000000000), UINT64CONST(100000000000),
	UINT64CONST(1000000000000), UINT64CONST(10000000000000),
	UINT64CONST(100000000000000), UINT64CONST(1000000000000000),
	UINT64CONST(10000000000000000), UINT64CONST(100000000000000000),
	UINT64CONST(1000000000000000000)
};

static inline unsigned int
digit(const Digits *digits, int i)
{
	int16		d;

	memcpy(&d, digits->data + i * sizeof(int16), sizeof(int16));
	return (unsigned int) d;
}

static inline int
decimal_length(uint64 value)
{
	int			n = 1;

	while (n < (int) lengthof(power10) && value >= power10[n])
		n++;
	if (n == (int) lengthof(power10) && value >= power10[n - 1] * 10)
		n++;
	return n;
}

static inline void
store64(char *dest, int width, uint64 value, bool negative)
{
	uint64		words[ETL_DECIMAL_MAX_WIDTH / 8];

	if (negative)
		value = -value;

	if (width == 4)
	{
		uint32		half = (uint32) value;

#ifdef WORDS_BIGENDIAN
		half = pg_bswap32(half);
#endif
		memcpy(dest, &half, sizeof(half));
		return;
	}

#ifdef WORDS_BIGENDIAN
	value = pg_bswap64(value);
#endif
	words[0] = value;
	for (int i = 1; i < width / 8; i++)
		words[i] = negative ? PG_UINT64_MAX : 0;
	memcpy(dest, words, width);
}

/*
 * Sum up digits of at most 18 decimal digits.
 */
static inline uint64
sum64(const Digits *digits)
{
	uint64		sum = 0;
	int			last = digits->count - 1;

	for (int i = 0; i < last; i++)
		sum = sum * 10000 + digit(digits, i);
	if (digits->low >= 0)
		return (sum * 10000 + digit(digits, last)) * power10[digits->low];
	return sum * power10[4 + digits->low] +
		digit(digits, last) / (uint32) power10[-digits->low];
}

#ifdef HAVE_INT128
static inline uint128
sum128(const Digits *digits)
{
	uint128		sum = 0;
	int			last = digits->count - 1;
	int			i = 0;
	int			low = digits->low;

	/* four digits of base 10000 at a time: one wide multiplication */
	for (; i + 4 <= last; i += 4)
	{
		uint64		part = digit(digits, i);

		part = part * 10000 + digit(digits, i + 1);
		part = part * 10000 + digit(digits, i + 2);
		part = part * 10000 + digit(digits, i + 3);
		sum = sum * power10[16] + part;
	}
	for (; i < last; i++)
		sum = sum * 10000 + digit(digits, i);

	if (low < 0)
		return sum * power10[4 + low] + digit(digits, last) / (uint32) power10[-low];
	sum = sum * 10000 + digit(digits, last);
	for (; low > 18; low -= 18)
		sum *= power10[18];
	return sum * power10[low];
}

static inline void
store128(char *dest, int width, uint128 value, bool negative)
{
	uint64		words[ETL_DECIMAL_MAX_WIDTH / 8];

	if (negative)
		value = -value;
	words[0] = (uint64) value;
	words[1] = (uint64) (value >> 64);
	words[2] = words[3] = negative ? PG_UINT64_MAX : 0;
#ifdef WORDS_BIGENDIAN
	words[0] = pg_bswap64(words[0]);
	words[1] = pg_bswap64(words[1]);
#endif
	memcpy(dest, words, width);
}
#endif							/* HAVE_INT128 */

/* limbs = limbs * factor + addend; factor at most 10^9.  False: too large. */
static inline bool
limbs_step(uint32 *limbs, uint32 factor, uint32 addend)
{
	uint64		carry = addend;

	for (int i = 0; i < LIMBS; i++)
	{
		carry += (uint64) limbs[i] * factor;
		limbs[i] = (uint32) carry;
		carry >>= 32;
	}
	return carry == 0;
}

static bool
limbs_scale(uint32 *limbs, int power)
{
	for (; power > 9; power -= 9)
		if (!limbs_step(limbs, (uint32) power10[9], 0))
			return false;
	return limbs_step(limbs, (uint32) power10[power], 0);
}

static bool
sum_limbs(const Digits *digits, uint32 *limbs)
{
	int			last = digits->count - 1;
	int			low = digits->low;

	memset(limbs, 0, LIMBS * sizeof(uint32));
	for (int i = 0; i < last; i++)
		if (!limbs_step(limbs, 10000, digit(digits, i)))
			return false;
	if (low < 0)
		return limbs_step(limbs, (uint32) power10[4 + low],
						  (uint32) (digit(digits, last) / (uint32) power10[-low]));
	return limbs_step(limbs, 10000, digit(digits, last)) && limbs_scale(limbs, low);
}

static void
store_limbs(char *dest, int width, uint32 *limbs, bool negative)
{
	uint64		carry = 1;

	for (int i = 0; i < LIMBS; i++)
	{
		if (negative)
		{
			carry += (uint32) ~limbs[i];
			limbs[i] = (uint32) carry;
			carry >>= 32;
		}
#ifdef WORDS_BIGENDIAN
		limbs[i] = pg_bswap32(limbs[i]);
#endif
	}
	memcpy(dest, limbs, width);
}

/*
 * Take a stored numeric apart.  False for NaN and infinities.  Zero has no
 * digits.
 */
static inline bool
take_apart(const char *data, int len, int scale, Digits *digits,
		   bool *negative)
{
	uint16		header;
	int			weight;

	Assert(len >= (int) sizeof(uint16));
	memcpy(&header, data, sizeof(header));
	if ((header & SIGN_MASK) == FORM_SPECIAL)
		return false;
	if (header & FORM_SHORT)
	{
		*negative = (header & SHORT_NEGATIVE) != 0;
		weight = header & SHORT_WEIGHT_MASK;
		if (header & SHORT_WEIGHT_SIGN)
			weight -= SHORT_WEIGHT_MASK + 1;
		data += sizeof(uint16);
		len -= sizeof(uint16);
	}
	else
	{
		int16		stored;

		*negative = (header & SIGN_MASK) == SIGN_NEGATIVE;
		memcpy(&stored, data + sizeof(uint16), sizeof(stored));
		weight = stored;
		data += 2 * sizeof(uint16);
		len -= 2 * sizeof(uint16);
	}

	digits->top = digits->low = 0;
	digits->data = data;
	digits->count = len / (int) sizeof(int16);

	/* numeric.c stores none of these zeros; do not depend on it */
	while (digits->count > 0 && digit(digits, digits->count - 1) == 0)
		digits->count--;
	while (digits->count > 0 && digit(digits, 0) == 0)
	{
		digits->data += sizeof(int16);
		digits->count--;
		weight--;
	}
	if (digits->count > 0)
	{
		digits->top = 4 * weight + scale + decimal_length(digit(digits, 0));
		digits->low = 4 * (weight - digits->count + 1) + scale;
	}
	return true;
}

/* Nothing reaches below the scale? */
static inline bool
is_exact(const Digits *digits)
{
	return digits->low >= 0 ||
		(digits->low >= -3 &&
		 digit(digits, digits->count - 1) % (uint32) power10[-digits->low] == 0);
}

EtlDecimalStatus
etl_decimal_from_numeric(const char *data, int len, int precision, int scale,
						 int width, char *dest)
{
	Digits		digits;
	bool		negative;

	Assert(precision <= ETL_DECIMAL_MAX_PRECISION);
	if (!take_apart(data, len, scale, &digits, &negative))
		return ETL_DECIMAL_SPECIAL;
	if (digits.count == 0)
	{
		memset(dest, 0, width);
		return ETL_DECIMAL_OK;
	}
	if (digits.top > precision)
		return ETL_DECIMAL_RANGE;
	if (!is_exact(&digits))
		return ETL_DECIMAL_INEXACT;

	if (digits.top <= 18)
		store64(dest, width, sum64(&digits), negative);
#ifdef HAVE_INT128
	else if (digits.top <= 38)
		store128(dest, width, sum128(&digits), negative);
#endif
	else
	{
		uint32		limbs[LIMBS];

		(void) sum_limbs(&digits, limbs);	/* the precision is held */
		store_limbs(dest, width, limbs, negative);
	}
	return ETL_DECIMAL_OK;
}

EtlDecimalStatus
etl_decimal_from_uint64(uint64 amount, bool negative, int amount_scale,
						int precision, int scale, int width, char *dest)
{
	int			shift = scale - amount_scale;
	uint32		limbs[LIMBS];

	Assert(precision <= ETL_DECIMAL_MAX_PRECISION);
	for (; shift < 0 && amount != 0; shift++)
	{
		if (amount % 10 != 0)
			return ETL_DECIMAL_INEXACT;
		amount /= 10;
	}
	if (amount == 0)
	{
		memset(dest, 0, width);
		return ETL_DECIMAL_OK;
	}
	if (decimal_length(amount) + shift > precision)
		return ETL_DECIMAL_RANGE;

	memset(limbs, 0, sizeof(limbs));
	limbs[0] = (uint32) amount;
	limbs[1] = (uint32) (amount >> 32);
	(void) limbs_scale(limbs, shift);
	store_limbs(dest, width, limbs, negative);
	return ETL_DECIMAL_OK;
}

/* The number of bits of the sum, counted from its lowest. */
static int
limbs_bits(const uint32 *limbs)
{
	for (int i = LIMBS - 1; i >= 0; i--)
		if (limbs[i] != 0)
			return 32 * i + pg_leftmost_one_pos32(limbs[i]) + 1;
	return 0;
}

/* Is the sum 2^bit? */
static bool
limbs_are_power(const uint32 *limbs, int bit)
{
	for (int i = 0; i < LIMBS; i++)
		if (limbs[i] != (i == bit / 32 ? (uint32) 1 << (bit % 32) : 0))
			return false;
	return true;
}

EtlDecimalStatus
etl_integer_from_numeric(const char *data, int len, bool is_unsigned, int width, char *dest)
{
	Digits		digits;
	bool		negative;
	uint32		limbs[LIMBS];
	int			bits = 8 * width;
	int			used;

	if (!take_apart(data, len, 0, &digits, &negative))
		return ETL_DECIMAL_SPECIAL;
	if (digits.count == 0)
	{
		memset(dest, 0, width);
		return ETL_DECIMAL_OK;
	}
	if (digits.top > ETL_INTEGER_MAX_DIGITS)
		return ETL_DECIMAL_RANGE;
	if (!is_exact(&digits))
		return ETL_DECIMAL_INEXACT;
	if (!sum_limbs(&digits, limbs))
		return ETL_DECIMAL_RANGE;

	used = limbs_bits(limbs);
	if (is_unsigned ? negative || used > bits :
		used >= bits && !(negative && limbs_are_power(limbs, bits - 1)))
		return ETL_DECIMAL_RANGE;
	store_limbs(dest, width, limbs, negative);
	return ETL_DECIMAL_OK;
}
