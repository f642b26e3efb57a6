/*-------------------------------------------------------------------------
 *
 * sign.h
 *	  SHA-256, HMAC and base64 over spans; Standard Webhooks signatures.
 *
 * libcrypto is used directly: the server's own wrappers want a resource
 * owner, which a process outside transactions does not have.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SIGN_H
#define ETL_SIGN_H

#include "lib/stringinfo.h"

#include "net/http.h"

#define ETL_SHA256_LEN		32

/* Raises an ERROR only when memory is out or libcrypto refuses the digest. */
extern void etl_sha256(int nspans, const EtlSpan *spans, uint8 *digest);
extern void etl_hmac_sha256(const uint8 *key, Size key_len,
							int nspans, const EtlSpan *spans, uint8 *digest);

/* Append the base64 form, padded, on one line. */
extern void etl_base64_append(StringInfo out, const uint8 *data, Size len);

/*
 * Bytes of a base64 text, or -1 when it is not base64 or longer than
 * "max_len" bytes.  Surrounding white space is ignored.
 */
extern int	etl_base64_decode(const char *text, uint8 *out, int max_len);

/*
 * Standard Webhooks, symmetric: a secret is "whsec_" and the base64 form of
 * 24 to 64 bytes (the prefix may be left out).
 */
#define ETL_WEBHOOK_KEY_MAX 64

extern bool etl_webhook_secret_valid(const char *secret);

/*
 * Append "v1,<base64>" for the message made of the spans.  Returns false and
 * appends nothing when the secret is not valid.
 */
extern bool etl_webhook_sign(StringInfo out, const char *secret,
							 const char *id, int64 timestamp,
							 int nspans, const EtlSpan *spans);

#endif							/* ETL_SIGN_H */
