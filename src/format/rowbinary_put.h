/*-------------------------------------------------------------------------
 *
 * rowbinary_put.h
 *	  Appending numbers and strings: for the encoder's files alone.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_ROWBINARY_PUT_H
#define ETL_ROWBINARY_PUT_H

#include "lib/stringinfo.h"
#include "port/pg_bswap.h"
#include "utils/memutils.h"

#include "format/decimal.h"

/* Room that a NULL byte and the longest fixed value need. */
#define FIXED_ROOM	(1 + ETL_DECIMAL_MAX_WIDTH)
/* Longest LEB128 form of a uint32. */
#define LENGTH_ROOM 5

/* Make room for "n" bytes and return where they go. */
static inline char *
reserve(StringInfo out, int n)
{
	if (unlikely(out->maxlen - out->len <= n))
		enlargeStringInfo(out, n);
	return out->data + out->len;
}

static inline void
put_uint16(StringInfo out, uint16 value)
{
#ifdef WORDS_BIGENDIAN
	value = pg_bswap16(value);
#endif
	memcpy(out->data + out->len, &value, sizeof(value));
	out->len += sizeof(value);
}

static inline void
put_uint32(StringInfo out, uint32 value)
{
#ifdef WORDS_BIGENDIAN
	value = pg_bswap32(value);
#endif
	memcpy(out->data + out->len, &value, sizeof(value));
	out->len += sizeof(value);
}

static inline void
put_uint64(StringInfo out, uint64 value)
{
#ifdef WORDS_BIGENDIAN
	value = pg_bswap64(value);
#endif
	memcpy(out->data + out->len, &value, sizeof(value));
	out->len += sizeof(value);
}

static inline void
put_string(StringInfo out, const char *data, uint32 len)
{
	char	   *p;
	uint32		rest = len;

	if (unlikely(len > MaxAllocSize - LENGTH_ROOM))
		enlargeStringInfo(out, MaxAllocSize);	/* throws */
	p = reserve(out, (int) len + LENGTH_ROOM);
	while (rest >= 0x80)
	{
		*p++ = (char) (rest | 0x80);
		rest >>= 7;
	}
	*p++ = (char) rest;
	memcpy(p, data, len);
	out->len = (p - out->data) + len;
}

/* The least significant "width" bytes of a sign-extended number. */
static inline void
put_wide(StringInfo out, int64 value, int width)
{
	switch (width)
	{
		case 1:
			out->data[out->len++] = (char) value;
			break;
		case 2:
			put_uint16(out, (uint16) value);
			break;
		case 4:
			put_uint32(out, (uint32) value);
			break;
		default:
			put_uint64(out, (uint64) value);
			for (int i = 8; i < width; i += 8)
				put_uint64(out, value < 0 ? PG_UINT64_MAX : 0);
			break;
	}
}

/* A number of things: LEB128. */
static inline void
put_count(StringInfo out, uint32 count)
{
	(void) reserve(out, LENGTH_ROOM);
	while (count >= 0x80)
	{
		out->data[out->len++] = (char) (count | 0x80);
		count >>= 7;
	}
	out->data[out->len++] = (char) count;
}

#endif							/* ETL_ROWBINARY_PUT_H */
