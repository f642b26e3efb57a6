/*-------------------------------------------------------------------------
 *
 * http.h
 *	  The one HTTP driver: curl_multi, bounded, interruptible.
 *
 * Nothing here throws for network trouble.  libcurl callbacks never longjmp.
 * No transaction may be open, and the process must not decode.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_HTTP_H
#define ETL_HTTP_H

#include "etl/destination.h"

typedef struct EtlHttp EtlHttp; /* connection pool and settings of one process */
typedef struct EtlHttpTransfer EtlHttpTransfer;

typedef struct EtlHttpSettings
{
	int			connect_timeout;	/* ms */
	int			request_timeout;	/* ms, whole request */
	const char *ca_file;		/* NULL: the system's store */
	const char *client_cert_file;
	const char *client_key_file;
	const char *proxy;			/* NULL: none; the environment is ignored */
	const char *allowed_hosts;	/* etl.allowed_hosts syntax; '' = any but
								 * link-local and metadata addresses */
	int			stall_timeout;	/* ms without a byte while sending the body or
								 * receiving the answer; 0 = 30 s */
} EtlHttpSettings;

typedef enum EtlCompression
{
	ETL_COMPRESS_NONE, ETL_COMPRESS_GZIP, ETL_COMPRESS_ZSTD, ETL_COMPRESS_LZ4
} EtlCompression;

/* A piece of a request body; the bytes must outlive the transfer. */
typedef struct EtlSpan
{
	const char *data;
	uint64		len;
} EtlSpan;

typedef struct EtlHttpRequest
{
	const char *method;			/* "POST", "GET" */
	const char *url;
	List	   *headers;		/* of char *: "Name: value" */
	const char *user;			/* basic authentication, or NULL */
	const char *password;
	int			nspans;			/* the body is the spans in order, */
	const EtlSpan *spans;		/* streamed without joining them */
	EtlCompression compression; /* sets Content-Encoding */
	bool		fast;			/* zstd: for speed at the cost of size */
	Size		response_limit; /* bytes kept; 0 = 64 kB */
	int			timeout;		/* ms for this one, if less than the pool's; 0 */
	bool		once;			/* never send it twice, on a connection of its own */
	bool		connect_only;	/* connect, TLS included, and send nothing; ends
								 * ANSWERED with status 0 */
} EtlHttpRequest;

/* What became of a transfer. */
typedef enum EtlHttpOutcome
{
	ETL_HTTP_ANSWERED,			/* a complete response: see status */
	ETL_HTTP_FAILED,			/* transport: connect, TLS, reset, time-out, half a
								 * response, garbage; worth a retry */
	ETL_HTTP_REFUSED			/* by our own rules: address filter, bad URL or
								 * file; the endpoint's trouble */
} EtlHttpOutcome;

typedef struct EtlHttpResponse
{
	EtlHttpOutcome outcome;
	int			status;			/* HTTP status, ANSWERED only */
	int			retry_after;	/* ms, capped at 1 h; -1 = not given */
	const char *body;			/* NUL-terminated, at most response_limit, made
								 * valid in the server's encoding */
	Size		body_len;
	const char *raw_body;		/* the same as it came */
	Size		raw_body_len;
	bool		truncated;		/* the answer was longer than response_limit */
	const char *peer;			/* "host:port", for messages */
	const char *(*header) (const struct EtlHttpResponse *response, const char *name);
	const char *error;			/* FAILED, REFUSED: message, no secret in it */
	int			sqlstate;
	double		seconds;
	const char *header_block;	/* raw response headers (bounded) */
} EtlHttpResponse;

/*
 * Pool in CurrentMemoryContext, whose reset frees the libcurl handles.  Zero
 * timeouts mean 10 s to connect and 60 s in all.  What is wrong with the
 * settings shows in each transfer (REFUSED).
 */
extern EtlHttp *etl_http_create(const EtlHttpSettings *settings);

/* Start a transfer; returns at once.  Request structs are copied, spans' bytes are not. */
extern EtlHttpTransfer *etl_http_start(EtlHttp *http, const EtlHttpRequest *request);

/*
 * Drive all transfers for at most "timeout" ms, returning early when one ends
 * or our latch is set (the caller resets it); with nothing under way, wait for
 * the latch alone.  Serves interrupts in the caller's stack (an ERROR or FATAL
 * of CHECK_FOR_INTERRUPTS may pass through): at once when a signal comes, and
 * at least every 100 ms (250 ms once nothing has moved for a second).  Exits
 * the process when the postmaster died.
 */
extern void etl_http_poll(EtlHttp *http, int timeout);

/* Microseconds that this process has waited with transfers under way. */
extern uint64 etl_http_waited(const EtlHttp *http);

/* The response once it ended, else NULL. */
extern const EtlHttpResponse *etl_http_response(EtlHttpTransfer *transfer);

/* Forget a transfer, cancelling it if under way. */
extern void etl_http_finish(EtlHttpTransfer *transfer);

/*
 * One request to its end (start, poll until done).  "stop" may be NULL; it is
 * asked at least every 250 ms and ends the wait with FAILED.  The latch is
 * reset in between and left set if it was set.  The response
 * lives until etl_http_finish(*transfer).
 */
extern const EtlHttpResponse *etl_http_perform(EtlHttp *http, const EtlHttpRequest *request,
											   bool (*stop) (void), EtlHttpTransfer **transfer);

/*
 * Turn a response into a result by the general classes: 2xx DONE; 408, 425,
 * 429, 5xx, FAILED: RETRY; 413: TOO_LARGE; 400, 422: REJECTED (unknown row);
 * 410: FATAL; everything else and REFUSED: ENDPOINT.
 */
extern void etl_http_classify(const EtlHttpResponse *response, EtlResult *result);

/*
 * What is wrong with a URL (a static text that completes "URL ..."), or NULL:
 * http or https, a host, no user information, nothing that does not belong in
 * a URL.  Pure; for validators.
 */
extern const char *etl_http_url_error(const char *url);

/* For etl.build_info(). */
extern const char *etl_http_curl_version(void);
extern const char *etl_http_tls_version(void);

#endif							/* ETL_HTTP_H */
