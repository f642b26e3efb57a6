/*-------------------------------------------------------------------------
 *
 * compress.h
 *	  Request bodies: spans as one stream of bytes, compressed on the way.
 *
 * Read from libcurl's callbacks: after etl_body_create() nothing here raises
 * an ERROR, waits, or uses palloc.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_COMPRESS_H
#define ETL_COMPRESS_H

#include "net/http.h"

typedef struct EtlBody EtlBody;

/*
 * The stream over "spans", which the caller keeps.  malloc'ed, for
 * etl_body_free(); NULL when memory is out.
 *
 * A body that fits one buffer once compressed is compressed here, so that its
 * length is known before the first byte is sent.
 */
extern EtlBody *etl_body_create(EtlCompression compression, bool fast,
								int nspans, const EtlSpan *spans);
extern void etl_body_free(EtlBody *body);

/* Length on the wire, or -1 when it is known only at the end. */
extern int64 etl_body_length(const EtlBody *body);

/* The next at most "size" bytes; 0 at the end, -1 on trouble. */
extern int64 etl_body_read(EtlBody *body, char *buffer, Size size);

/* Start again from the first byte; the bytes will be the same. */
extern bool etl_body_rewind(EtlBody *body);

/* Has everything been read? */
extern bool etl_body_at_end(const EtlBody *body);

/* Value of Content-Encoding, or NULL. */
extern const char *etl_compression_name(EtlCompression compression);

/* For etl.build_info(). */
extern const char *etl_zstd_version(void);
extern const char *etl_lz4_version(void);
extern const char *etl_zlib_version(void);

#endif							/* ETL_COMPRESS_H */
