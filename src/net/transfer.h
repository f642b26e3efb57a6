/*-------------------------------------------------------------------------
 *
 * transfer.h
 *	  Inside of the HTTP driver; for the files of src/net alone.
 *
 * http.c drives, transfer.c turns a request into a libcurl handle and holds
 * the callbacks, answer.c turns what happened into a response.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_TRANSFER_H
#define ETL_TRANSFER_H

#include <curl/curl.h>

#include "lib/ilist.h"
#include "portability/instr_time.h"

#include "net/address.h"
#include "net/compress.h"
#include "net/http.h"

#define ETL_HTTP_RESPONSE_LIMIT (64 * 1024)
#define ETL_HTTP_HEADER_LIMIT	(256 * 1024)	/* read; more ends the transfer */
#define ETL_HTTP_HEADER_KEPT	(32 * 1024)
#define ETL_HTTP_DISCARD_LIMIT	(1024 * 1024)	/* read beyond response_limit */

struct EtlHttp
{
	MemoryContext context;		/* owns everything below */
	MemoryContextCallback callback;
	CURLM	   *multi;
	EtlHttpSettings settings;	/* own copies of the strings */
	EtlHostList *allowed;		/* NULL: malformed, nothing is allowed */
	dlist_head	transfers;
	int			active;			/* of them under way */
	bool		news;			/* one ended since the last etl_http_poll() */
	instr_time	moved;			/* last time that bytes moved or one started */
	instr_time	waited;			/* for the network, with transfers under way */
};

/* Bytes kept by a callback, which must not raise an ERROR. */
typedef struct EtlKept
{
	char	   *data;			/* palloc'ed, NUL-terminated; NULL if empty */
	Size		len;
	Size		capacity;
	uint64		seen;			/* bytes that came, kept or not */
} EtlKept;

struct EtlHttpTransfer
{
	dlist_node	node;
	EtlHttp    *http;
	MemoryContext context;		/* holds this struct; deleted to end it */
	MemoryContextCallback callback;

	/* libcurl's */
	CURL	   *easy;
	struct curl_slist *headers;
	EtlBody    *body;
	bool		in_multi;
	char		error[CURL_ERROR_SIZE];

	/* the request */
	bool		host_named;		/* the allow list names the host we connect to */
	int			connect_timeout;	/* ms */
	int			request_timeout;
	int			stall_timeout;
	Size		response_limit;
	bool		connect_only;

	/* written by callbacks */
	uint64		sent;			/* bytes of the body that libcurl took */
	uint64		received;		/* of headers and body */
	bool		refused;		/* the filter refused an address */
	bool		opened;			/* it let one pass */
	bool		header_overflow;	/* cut: endless headers */
	bool		answer_overflow;	/* cut: endless body */
	bool		no_memory;
	EtlKept		headers_kept;	/* of the last status line on */
	EtlKept		answer;

	/* stall watch */
	uint64		moved_bytes;
	instr_time	moved_at;
	bool		stalled;

	instr_time	started_at;
	bool		ended;
	EtlHttpResponse response;
};

/* transfer.c */
extern bool etl_transfer_prepare(EtlHttpTransfer *t, const EtlHttpRequest *request);
extern void etl_transfer_release(EtlHttpTransfer *t);
extern bool etl_transfer_watch(EtlHttpTransfer *t);
extern bool etl_transfer_body_sent(const EtlHttpTransfer *t);

/* answer.c */
extern void etl_answer_fill(EtlHttpTransfer *t, CURLcode code);
extern void etl_answer_fail(EtlHttpTransfer *t, EtlHttpOutcome outcome, int sqlstate,
							const char *fmt,...) pg_attribute_printf(4, 5);
extern int	etl_retry_after(const char *value, int64 now);

#endif							/* ETL_TRANSFER_H */
