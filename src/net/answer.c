/*-------------------------------------------------------------------------
 *
 * answer.c
 *	  What became of a transfer, in our words.
 *
 * Messages name host and port of the destination, never its path or query
 * (which may hold a token), and never what it answered (which may repeat
 * rows).  libcurl's own text is used where it says more than we know.
 *
 * One rule protects the data: a 2xx counts only after libcurl has taken the
 * whole body.  A destination that says yes too early has not got all of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "mb/pg_wchar.h"

#include "net/transfer.h"

#define RETRY_AFTER_MAX 3600000 /* ms */

static const char *header_value(const EtlHttpResponse *response, const char *name);

/*
 * End a transfer without an answer.  CurrentMemoryContext is the transfer's.
 */
void
etl_answer_fail(EtlHttpTransfer *t, EtlHttpOutcome outcome, int sqlstate,
				const char *fmt,...)
{
	StringInfoData buf;
	int			save_errno = errno;

	initStringInfo(&buf);
	for (;;)
	{
		va_list		args;
		int			needed;

		errno = save_errno;
		va_start(args, fmt);
		needed = appendStringInfoVA(&buf, fmt, args);
		va_end(args);
		if (needed == 0)
			break;
		enlargeStringInfo(&buf, needed);
	}
	t->response.outcome = outcome;
	t->response.sqlstate = sqlstate;
	t->response.error = buf.data;
	t->response.header = header_value;
	t->response.retry_after = -1;
	if (t->response.body == NULL)
	{
		t->response.body = t->response.raw_body = "";
		t->response.header_block = "";
	}
	t->ended = true;
}

/*
 * Bytes as text that the server's encoding allows; "raw" itself when it is.
 * Answers are taken for UTF-8.  In a database of another encoding what is not
 * ASCII is lost: a conversion would need catalogs, and there may be no
 * transaction.
 */
static const char *
valid_text(const char *raw, Size len)
{
	int			encoding = GetDatabaseEncoding();
	char	   *copy = NULL;
	Size		i = 0;

	while (i < len)
	{
		int			n = 1;
		bool		ok = raw[i] != '\0';

		if (IS_HIGHBIT_SET(raw[i]))
		{
			n = encoding == PG_UTF8 ?
				pg_encoding_verifymbchar(PG_UTF8, raw + i, (int) Min(len - i, 4)) : -1;
			ok = n > 0;
		}
		if (ok)
		{
			i += n;
			continue;
		}
		if (copy == NULL)
		{
			copy = MemoryContextAllocHuge(CurrentMemoryContext, len + 1);
			memcpy(copy, raw, len);
			copy[len] = '\0';
		}
		copy[i++] = '?';
	}
	return copy ? copy : raw;
}

/*
 * Find a header by name: a palloc'd copy of its value, or NULL.  Of several
 * the first counts.
 */
static const char *
header_value(const EtlHttpResponse *response, const char *name)
{
	EtlHttpTransfer *t = (EtlHttpTransfer *)
		((char *) response - offsetof(EtlHttpTransfer, response));
	const char *line = response->header_block;
	Size		name_len = strlen(name);

	while (line && *line)
	{
		const char *end = strpbrk(line, "\r\n");
		const char *value = line + name_len + 1;
		char	   *copy;

		if (end == NULL)
			end = line + strlen(line);
		if (value <= end && line[name_len] == ':' &&
			pg_strncasecmp(line, name, name_len) == 0)
		{
			while (value < end && (*value == ' ' || *value == '\t'))
				value++;
			while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
				end--;
			copy = MemoryContextAlloc(t->context, end - value + 1);
			memcpy(copy, value, end - value);
			copy[end - value] = '\0';
			for (char *p = copy; *p; p++)
			{
				if ((unsigned char) *p < ' ' || (unsigned char) *p >= 0x7f)
					*p = '?';
			}
			return copy;
		}
		line = end + strspn(end, "\r\n");
	}
	return NULL;
}

/*
 * Value of Retry-After, seconds or a date, in ms; -1 when it is neither.
 */
int
etl_retry_after(const char *value, int64 now)
{
	int64		seconds = 0;
	const char *p = value;

	if (value == NULL || *value == '\0')
		return -1;
	for (; *p >= '0' && *p <= '9'; p++)
	{
		seconds = seconds * 10 + (*p - '0');
		seconds = Min(seconds, RETRY_AFTER_MAX);
	}
	if (*p != '\0')
	{
		time_t		date = curl_getdate(value, NULL);

		if (date == (time_t) -1)
			return -1;
		seconds = (int64) date - now;
	}
	if (seconds <= 0)
		return 0;
	return (int) Min(seconds * 1000, RETRY_AFTER_MAX);
}

/* Time ran out, libcurl's or ours: say in which phase. */
static void
fail_timeout(EtlHttpTransfer *t)
{
	const char *peer = t->response.peer;
	curl_off_t	connected = 0;
	curl_off_t	secured = 0;
	char	   *scheme = NULL;

	curl_easy_getinfo(t->easy, CURLINFO_CONNECT_TIME_T, &connected);
	curl_easy_getinfo(t->easy, CURLINFO_APPCONNECT_TIME_T, &secured);
	curl_easy_getinfo(t->easy, CURLINFO_SCHEME, &scheme);

	if (t->stalled)
		etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_CONNECTION_FAILURE,
						"connection to \"%s\" stalled for %d ms", peer, t->stall_timeout);
	else if (t->received > 0)
		etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_CONNECTION_FAILURE,
						"no complete answer from \"%s\" within %d ms", peer, t->request_timeout);
	else if (!t->opened && t->sent == 0 && connected == 0)
		etl_answer_fail(t, ETL_HTTP_FAILED,
						ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						"could not resolve the host of \"%s\" within %d ms", peer,
						Min(t->connect_timeout, t->request_timeout));
	else if (connected == 0 && t->sent == 0)
		etl_answer_fail(t, ETL_HTTP_FAILED,
						ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						"could not connect to \"%s\" within %d ms", peer,
						Min(t->connect_timeout, t->request_timeout));
	else if (secured == 0 && t->sent == 0 && scheme && pg_strcasecmp(scheme, "https") == 0)
		etl_answer_fail(t, ETL_HTTP_FAILED,
						ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						"could not establish TLS with \"%s\" within %d ms", peer,
						Min(t->connect_timeout, t->request_timeout));
	else
		etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_CONNECTION_FAILURE,
						"no answer from \"%s\" within %d ms", peer, t->request_timeout);
}

static void
fail_connect(EtlHttpTransfer *t, const char *detail)
{
	long		os_errno = 0;

	if (t->refused && !t->opened)
	{
		etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						"connecting to the address of \"%s\" is not allowed",
						t->response.peer);
		return;
	}
	curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &os_errno);
	etl_answer_fail(t, ETL_HTTP_FAILED,
					ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
					"could not connect to \"%s\": %s", t->response.peer,
					os_errno ? strerror((int) os_errno) : detail);
}

/* The transfer ended with an error of libcurl. */
static void
fail_code(EtlHttpTransfer *t, CURLcode code)
{
	const char *peer = t->response.peer;
	const char *detail = t->error[0] ? valid_text(t->error, strlen(t->error)) :
		curl_easy_strerror(code);
	long		os_errno = 0;

	if (t->no_memory)
		code = CURLE_OUT_OF_MEMORY;
	switch (code)
	{
		case CURLE_OPERATION_TIMEDOUT:
			fail_timeout(t);
			break;
		case CURLE_COULDNT_RESOLVE_HOST:
		case CURLE_COULDNT_RESOLVE_PROXY:
			etl_answer_fail(t, ETL_HTTP_FAILED,
							ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
							"could not resolve the host of \"%s\"", peer);
			break;
		case CURLE_COULDNT_CONNECT:
			fail_connect(t, detail);
			break;
		case CURLE_PEER_FAILED_VERIFICATION:
		case CURLE_SSL_ISSUER_ERROR:
			etl_answer_fail(t, ETL_HTTP_FAILED,
							ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
							"could not verify the certificate of \"%s\": %s", peer, detail);
			break;
		case CURLE_SSL_CONNECT_ERROR:
			etl_answer_fail(t, ETL_HTTP_FAILED,
							ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
							"could not establish TLS with \"%s\": %s", peer, detail);
			break;
		case CURLE_SSL_CERTPROBLEM:
		case CURLE_SSL_CACERT_BADFILE:
		case CURLE_SSL_CRL_BADFILE:
			etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_CONFIG_FILE_ERROR,
							"could not use a certificate file for \"%s\": %s", peer, detail);
			break;
		case CURLE_SEND_ERROR:
		case CURLE_RECV_ERROR:
			curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &os_errno);
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_CONNECTION_FAILURE,
							"lost the connection to \"%s\": %s", peer,
							os_errno ? strerror((int) os_errno) : detail);
			break;
		case CURLE_GOT_NOTHING:
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_CONNECTION_FAILURE,
							"\"%s\" closed the connection without an answer", peer);
			break;
		case CURLE_PARTIAL_FILE:
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_CONNECTION_FAILURE,
							"\"%s\" closed the connection in the middle of its answer", peer);
			break;
		case CURLE_UNSUPPORTED_PROTOCOL:
		case CURLE_WEIRD_SERVER_REPLY:
		case CURLE_BAD_CONTENT_ENCODING:
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_PROTOCOL_VIOLATION,
							"\"%s\" did not answer in HTTP", peer);
			break;
		case CURLE_OUT_OF_MEMORY:
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_OUT_OF_MEMORY,
							"out of memory in a request to \"%s\"", peer);
			break;
		case CURLE_ABORTED_BY_CALLBACK:
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_QUERY_CANCELED,
							"request to \"%s\" was given up", peer);
			break;
		default:
			if (t->header_overflow)
				detail = "the headers of the answer are too long";
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_CONNECTION_FAILURE,
							"could not complete a request to \"%s\": %s", peer, detail);
			break;
	}
}

/* Did the transfer end with an answer that counts?  Sets the status. */
static bool
answered(EtlHttpTransfer *t, CURLcode code)
{
	long		status = 0;

	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
	t->response.status = (int) status;
	if (t->connect_only)
		return code == CURLE_OK;
	if (status < 200)
		return false;
	if (code == CURLE_WRITE_ERROR)
		return t->answer_overflow;
	/* a refusal that came before all was sent, and then a closed door */
	if (code == CURLE_SEND_ERROR)
		return status >= 400;
	return code == CURLE_OK;
}

/*
 * Make the response.  CurrentMemoryContext is the transfer's; libcurl's handle
 * is still there.
 */
void
etl_answer_fill(EtlHttpTransfer *t, CURLcode code)
{
	EtlHttpResponse *response = &t->response;
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, t->started_at);
	response->seconds = INSTR_TIME_GET_DOUBLE(now);
	response->header = header_value;
	response->header_block = t->headers_kept.data ? t->headers_kept.data : "";
	response->raw_body = t->answer.data ? t->answer.data : "";
	response->raw_body_len = t->answer.len;
	response->body = valid_text(response->raw_body, t->answer.len);
	response->body_len = t->answer.len;
	response->truncated = t->answer.seen > t->answer.len;
	response->retry_after = -1;

	if (!answered(t, code))
		fail_code(t, code == CURLE_OK ? CURLE_WEIRD_SERVER_REPLY : code);
	else if (response->status < 300 && !etl_transfer_body_sent(t))
		etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_PROTOCOL_VIOLATION,
						"\"%s\" answered before it had the whole request",
						response->peer);
	else
	{
		response->outcome = ETL_HTTP_ANSWERED;
		response->retry_after =
			etl_retry_after(header_value(response, "Retry-After"), time(NULL));
		t->ended = true;
	}
}

/* An answer that is no success. */
static void
classify_status(const EtlHttpResponse *response, EtlResult *result)
{
	int			status = response->status;
	EtlStatus	kind = ETL_ENDPOINT;
	int			sqlstate = ERRCODE_FDW_UNABLE_TO_ESTABLISH_CONNECTION;
	const char *hint = "Check the URL of the destination.";

	if (status == 408 || status == 425 || status == 429 || status >= 500)
	{
		kind = ETL_RETRY;
		sqlstate = status == 429 ? ERRCODE_INSUFFICIENT_RESOURCES :
			ERRCODE_CONNECTION_FAILURE;
		hint = "";
	}
	else if (status == 413)
	{
		kind = ETL_TOO_LARGE;
		sqlstate = ERRCODE_PROGRAM_LIMIT_EXCEEDED;
		hint = "";
	}
	else if (status == 400 || status == 422)
	{
		kind = ETL_REJECTED;
		sqlstate = ERRCODE_DATA_EXCEPTION;
		hint = "The receiver refused what it was sent: its own log may say why.";
	}
	else if (status == 410)
	{
		kind = ETL_FATAL;
		hint = "The receiver is gone for good. Change the URL, then start the pipeline again.";
	}
	else if (status == 401 || status == 403 || status == 407)
	{
		sqlstate = ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION;
		hint = "Check the credentials of the destination.";
	}
	else if (status >= 300 && status < 400)
		hint = "Redirects are not followed. Use the final URL.";

	etl_result_set(result, kind, sqlstate,
				   "\"%s\" answered with HTTP status %d", response->peer, status);
	strlcpy(result->hint, hint, sizeof(result->hint));
	result->retry_after = response->retry_after;
}

void
etl_http_classify(const EtlHttpResponse *response, EtlResult *result)
{
	memset(result, 0, sizeof(EtlResult));
	if (response->outcome == ETL_HTTP_ANSWERED)
	{
		if (response->status >= 200 && response->status < 300)
			result->status = ETL_DONE;
		else
			classify_status(response, result);
	}
	else
		etl_result_set(result,
					   response->outcome == ETL_HTTP_REFUSED ? ETL_ENDPOINT : ETL_RETRY,
					   response->sqlstate, "%s", response->error);
	if (response->outcome == ETL_HTTP_REFUSED &&
		response->sqlstate == ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION)
		strlcpy(result->hint, "The setting \"etl.allowed_hosts\" says which hosts are allowed.",
				sizeof(result->hint));
	if (response->outcome != ETL_HTTP_ANSWERED || result->status == ETL_DONE)
		result->retry_after = -1;
	result->rejected = -1;
}
