/*-------------------------------------------------------------------------
 *
 * sign.c
 *	  SHA-256, HMAC and base64 over spans; Standard Webhooks signatures.
 *
 * Digest contexts of libcrypto are malloc'ed, so nothing may raise an ERROR
 * between making and freeing one: failures are noted and raised afterwards.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "net/sign.h"

#define SHA256_BLOCK	64
#define SECRET_PREFIX	"whsec_"
#define WEBHOOK_KEY_MIN 24

/* Digest of "prefix" (may be NULL) followed by the spans. */
static void
digest_spans(const uint8 *prefix, Size prefix_len,
			 int nspans, const EtlSpan *spans, uint8 *digest)
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	bool		ok;

	ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL);
	if (ok && prefix)
		ok = EVP_DigestUpdate(ctx, prefix, prefix_len);
	for (int i = 0; ok && i < nspans; i++)
		ok = EVP_DigestUpdate(ctx, spans[i].data, spans[i].len);
	if (ok)
		ok = EVP_DigestFinal_ex(ctx, digest, NULL);
	EVP_MD_CTX_free(ctx);
	if (!ok)
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("could not compute a SHA-256 digest")));
}

void
etl_sha256(int nspans, const EtlSpan *spans, uint8 *digest)
{
	digest_spans(NULL, 0, nspans, spans, digest);
}

/*
 * HMAC by its definition: the digest of the outer pad and the digest of the
 * inner pad and the message.
 */
void
etl_hmac_sha256(const uint8 *key, Size key_len,
				int nspans, const EtlSpan *spans, uint8 *digest)
{
	uint8		block[SHA256_BLOCK] = {0};
	uint8		pad[SHA256_BLOCK];
	uint8		inner[ETL_SHA256_LEN];
	EtlSpan		span;

	if (key_len > SHA256_BLOCK)
	{
		span.data = (const char *) key;
		span.len = key_len;
		etl_sha256(1, &span, block);
	}
	else
		memcpy(block, key, key_len);

	for (int i = 0; i < SHA256_BLOCK; i++)
		pad[i] = block[i] ^ 0x36;
	digest_spans(pad, SHA256_BLOCK, nspans, spans, inner);

	for (int i = 0; i < SHA256_BLOCK; i++)
		pad[i] = block[i] ^ 0x5c;
	span.data = (const char *) inner;
	span.len = ETL_SHA256_LEN;
	digest_spans(pad, SHA256_BLOCK, 1, &span, digest);

	OPENSSL_cleanse(block, sizeof(block));
	OPENSSL_cleanse(pad, sizeof(pad));
}

void
etl_base64_append(StringInfo out, const uint8 *data, Size len)
{
	Size		encoded = (len + 2) / 3 * 4;

	enlargeStringInfo(out, encoded);
	EVP_EncodeBlock((unsigned char *) out->data + out->len, data, len);
	out->len += encoded;
}

int
etl_base64_decode(const char *text, uint8 *out, int max_len)
{
	uint8		quad[3];
	Size		len;
	int			n = 0;

	while (isspace((unsigned char) *text))
		text++;
	len = strlen(text);
	while (len > 0 && isspace((unsigned char) text[len - 1]))
		len--;
	if (len % 4 != 0)
		return -1;
	for (Size i = 0; i < len; i += 4)
	{
		int			pad = 0;
		int			got = 3;

		/* padding only at the very end; libcrypto would take it anywhere */
		for (int j = 0; j < 4; j++)
		{
			if (text[i + j] == '=' && j >= 2 && i + 4 == len)
				pad++;
			else if (isspace((unsigned char) text[i + j]) ||
					 text[i + j] == '=' || pad > 0)
				return -1;
		}
		if (EVP_DecodeBlock(quad, (const unsigned char *) text + i, 4) != 3)
			return -1;
		got -= pad;
		if (n + got > max_len)
			return -1;
		memcpy(out + n, quad, got);
		n += got;
	}
	return n;
}

/* The key's bytes, or -1. */
static int
webhook_key(const char *secret, uint8 *key)
{
	int			len;

	while (isspace((unsigned char) *secret))
		secret++;
	if (strncmp(secret, SECRET_PREFIX, strlen(SECRET_PREFIX)) == 0)
		secret += strlen(SECRET_PREFIX);
	len = etl_base64_decode(secret, key, ETL_WEBHOOK_KEY_MAX);
	return len >= WEBHOOK_KEY_MIN ? len : -1;
}

bool
etl_webhook_secret_valid(const char *secret)
{
	uint8		key[ETL_WEBHOOK_KEY_MAX];
	int			len = webhook_key(secret, key);

	OPENSSL_cleanse(key, sizeof(key));
	return len > 0;
}

bool
etl_webhook_sign(StringInfo out, const char *secret, const char *id,
				 int64 timestamp, int nspans, const EtlSpan *spans)
{
	uint8		key[ETL_WEBHOOK_KEY_MAX];
	uint8		digest[ETL_SHA256_LEN];
	int			key_len = webhook_key(secret, key);
	EtlSpan    *signed_spans;
	char	   *head;

	if (key_len < 0)
		return false;
	head = psprintf("%s." INT64_FORMAT ".", id, timestamp);
	signed_spans = (EtlSpan *)
		MemoryContextAllocHuge(CurrentMemoryContext,
							   (nspans + 1) * sizeof(EtlSpan));
	signed_spans[0].data = head;
	signed_spans[0].len = strlen(head);
	if (nspans > 0)
		memcpy(signed_spans + 1, spans, nspans * sizeof(EtlSpan));
	etl_hmac_sha256(key, key_len, nspans + 1, signed_spans, digest);
	OPENSSL_cleanse(key, sizeof(key));

	appendStringInfoString(out, "v1,");
	etl_base64_append(out, digest, sizeof(digest));
	pfree(signed_spans);
	pfree(head);
	return true;
}
