/*-------------------------------------------------------------------------
 *
 * client.c
 *	  One statement over HTTP, and what the answers of ClickHouse mean.
 *
 * An exception has a number.  That decides, not the HTTP status, which
 * versions set differently:
 *
 *	 the moment			 busy, too many parts, a part of a cluster is away,
 *						 a query that somebody killed: the same again later
 *	 the endpoint		 credentials, rights, the database: nobody's row
 *	 the rows			 an INSERT that cannot be read: bisected
 *	 the table			 it is gone, or not what it was: parked
 *
 * An answer without a number was not given by ClickHouse, or not for a
 * statement: then the general classes of HTTP hold, but no row is blamed.
 *
 * Messages of the server may quote values, where it could not read data; of
 * those only number and name are passed on.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"
#include "server/worker.h"

/* More than the tables of a database need. */
#define MOST_ANSWER		(256 * 1024 * 1024)

/* Waiting for merges is a matter of seconds. */
#define TOO_MANY_PARTS_WAIT 2000

#define TOO_MANY_PARTS	252

typedef struct Class
{
	int			code;
	EtlStatus	status;			/* of DDL and reads */
	EtlStatus	insert;			/* of an INSERT */
	int			sqlstate;
	bool		quotes;			/* its text may have values */
	const char *hint;
} Class;

#define LATER(code) \
	{code, ETL_RETRY, ETL_RETRY, ERRCODE_FDW_UNABLE_TO_CREATE_EXECUTION, false, NULL}
#define ROWS(code) \
	{code, ETL_PARK, ETL_REJECTED, ERRCODE_DATA_EXCEPTION, true, \
		"Perhaps the table at the destination was altered; etl.retry_table() makes it again."}
#define TABLE(code, sqlstate) \
	{code, ETL_PARK, ETL_PARK, sqlstate, false, \
		"If somebody else has changed or dropped the table at the destination, etl.retry_table() makes it again."}
#define LOGIN(code) \
	{code, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_INVALID_PASSWORD, false, \
		"Check user and password in the user mapping of the pipeline's owner."}
#define RIGHTS(code) \
	{code, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_INSUFFICIENT_PRIVILEGE, false, \
		"The user needs SELECT, INSERT, ALTER, CREATE and DROP of tables and views in the database."}

static const Class classes[] = {
	LATER(159),					/* TIMEOUT_EXCEEDED */
	LATER(160),					/* TOO_SLOW */
	LATER(201),					/* QUOTA_EXCEEDED */
	LATER(202),					/* TOO_MANY_SIMULTANEOUS_QUERIES */
	LATER(203),					/* NO_FREE_CONNECTION */
	LATER(209),					/* SOCKET_TIMEOUT */
	LATER(210),					/* NETWORK_ERROR */
	LATER(216),					/* QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING */
	LATER(218),					/* TABLE_IS_DROPPED */
	LATER(225),					/* NO_ZOOKEEPER */
	LATER(236),					/* ABORTED */
	LATER(241),					/* MEMORY_LIMIT_EXCEEDED */
	LATER(242),					/* TABLE_IS_READ_ONLY */
	LATER(243),					/* NOT_ENOUGH_SPACE */
	LATER(TOO_MANY_PARTS),
	LATER(279),					/* ALL_CONNECTION_TRIES_FAILED */
	LATER(285),					/* TOO_FEW_LIVE_REPLICAS */
	LATER(286),					/* UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE */
	LATER(305),					/* REPLICA_IS_NOT_IN_QUORUM */
	LATER(319),					/* UNKNOWN_STATUS_OF_INSERT */
	LATER(394),					/* QUERY_WAS_CANCELLED */
	LATER(425),					/* SYSTEM_ERROR */
	LATER(439),					/* CANNOT_SCHEDULE_TASK */
	LATER(473),					/* DEADLOCK_AVOIDED */
	LATER(499),					/* S3_ERROR */
	LATER(517),					/* CANNOT_ASSIGN_ALTER */
	LATER(571),					/* DATABASE_REPLICATION_FAILED */
	LATER(722),					/* ASYNC_LOAD_WAIT_FAILED */
	LATER(735),					/* QUERY_WAS_CANCELLED_BY_CLIENT */
	LATER(745),					/* SERVER_OVERLOADED */
	LATER(999),					/* KEEPER_EXCEPTION */
	LATER(1000),				/* POCO_EXCEPTION */
	LATER(1001),				/* STD_EXCEPTION */
	LATER(1002),				/* UNKNOWN_EXCEPTION */
	ROWS(6),					/* CANNOT_PARSE_TEXT */
	ROWS(26),					/* CANNOT_PARSE_QUOTED_STRING */
	ROWS(27),					/* CANNOT_PARSE_INPUT_ASSERTION_FAILED */
	ROWS(32),					/* ATTEMPT_TO_READ_AFTER_EOF */
	ROWS(33),					/* CANNOT_READ_ALL_DATA */
	ROWS(38),					/* CANNOT_PARSE_DATE */
	ROWS(41),					/* CANNOT_PARSE_DATETIME */
	ROWS(53),					/* TYPE_MISMATCH */
	ROWS(69),					/* ARGUMENT_OUT_OF_BOUND */
	ROWS(72),					/* CANNOT_PARSE_NUMBER */
	ROWS(117),					/* INCORRECT_DATA */
	ROWS(131),					/* TOO_LARGE_STRING_SIZE */
	ROWS(321),					/* VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE */
	ROWS(469),					/* VIOLATED_CONSTRAINT */
	TABLE(10, ERRCODE_UNDEFINED_COLUMN),	/* NOT_FOUND_COLUMN_IN_BLOCK */
	TABLE(16, ERRCODE_UNDEFINED_COLUMN),	/* NO_SUCH_COLUMN_IN_TABLE */
	TABLE(44, ERRCODE_FDW_ERROR),	/* ILLEGAL_COLUMN */
	TABLE(47, ERRCODE_UNDEFINED_COLUMN),	/* UNKNOWN_IDENTIFIER */
	TABLE(CH_UNKNOWN_TABLE, ERRCODE_UNDEFINED_TABLE),
	TABLE(349, ERRCODE_NOT_NULL_VIOLATION), /* CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN */
	LOGIN(192),					/* UNKNOWN_USER */
	LOGIN(193),					/* WRONG_PASSWORD */
	LOGIN(194),					/* REQUIRED_PASSWORD */
	LOGIN(516),					/* AUTHENTICATION_FAILED */
	RIGHTS(164),				/* READONLY */
	RIGHTS(291),				/* DATABASE_ACCESS_DENIED */
	RIGHTS(497),				/* ACCESS_DENIED */
	{81, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_UNDEFINED_DATABASE, false, /* UNKNOWN_DATABASE */
	"Create the database at ClickHouse, or change option database of the server."},
	{115, ETL_ENDPOINT, ETL_ENDPOINT, ERRCODE_FEATURE_NOT_SUPPORTED, false, /* UNKNOWN_SETTING */
	"ClickHouse 23.5 or newer is needed."},
};

/* ----------
 * Answers
 * ----------
 */

/* Number of the exception, 0 for none. */
static int
exception_code(const EtlHttpResponse *response, ChKind kind)
{
	const char *header = response->header(response, "X-ClickHouse-Exception-Code");
	const char *found;
	int			code;

	if (header && (code = atoi(header)) > 0)
		return code;
	if (response->body == NULL)
		return 0;
	if (response->status != 200 || kind != CH_READ)
	{
		found = strstr(response->body, "Code: ");
		if (found && (found == response->body || strstr(response->body, "__exception__")) &&
			(code = atoi(found + 6)) > 0)
			return code;
	}
	return 0;
}

/* The part of "Code: 60. DB::Exception: text. (NAME) (version 1)" between the numbers. */
static void
copy_text(const EtlHttpResponse *response, bool name_only, char *out, Size size)
{
	const char *begin = response->body ? strstr(response->body, "Exception: ") : NULL;
	const char *end;
	Size		len;

	out[0] = '\0';
	if (begin == NULL)
		return;
	begin += strlen("Exception: ");
	end = strstr(begin, " (version ");
	if (end == NULL)
		end = begin + strcspn(begin, "\n");
	if (name_only)
	{
		const char *name = end;

		while (name > begin && *name != '(')
			name--;
		if (*name != '(')
			return;
		begin = name;
	}
	len = Min((Size) (end - begin), size - 1);
	memcpy(out, begin, len);
	out[len] = '\0';
	for (char *p = out; *p; p++)
		if (*p == '\n' || *p == '\t' || *p == '\r')
			*p = ' ';
}

static const Class *
class_of(int code)
{
	for (int i = 0; i < lengthof(classes); i++)
		if (classes[i].code == code)
			return &classes[i];
	return NULL;
}

int
ch_classify(const EtlHttpResponse *response, ChKind kind, EtlResult *result)
{
	const Class *class;
	EtlStatus	status;
	char		text[300];
	int			code;

	memset(result, 0, sizeof(*result));
	result->rejected = -1;
	result->retry_after = -1;
	if (response->outcome != ETL_HTTP_ANSWERED)
	{
		etl_http_classify(response, result);
		return 0;
	}
	code = exception_code(response, kind);
	if (code == 0)
	{
		etl_http_classify(response, result);
		if (result->status == ETL_REJECTED || result->status == ETL_FATAL)
			result->status = ETL_ENDPOINT;
		if (result->status == ETL_ENDPOINT && !result->hint[0])
			strlcpy(result->hint, "Check whether the URL is that of ClickHouse's HTTP interface.",
					sizeof(result->hint));
		return 0;
	}

	class = class_of(code);
	if (class)
		status = kind == CH_INSERT ? class->insert : class->status;
	else if (response->status >= 500)
		status = ETL_RETRY;
	else
		status = kind == CH_INSERT ? ETL_REJECTED : ETL_PARK;
	copy_text(response, class ? class->quotes : kind == CH_INSERT, text, sizeof(text));
	etl_result_set(result, status, class ? class->sqlstate : ERRCODE_FDW_ERROR,
				   "ClickHouse reports error %d%s%s", code, text[0] ? ": " : "", text);
	result->rejected = -1;
	result->retry_after = response->retry_after;
	if (code == TOO_MANY_PARTS && result->retry_after < TOO_MANY_PARTS_WAIT)
		result->retry_after = TOO_MANY_PARTS_WAIT;
	if (class && class->hint)
		strlcpy(result->hint, class->hint, sizeof(result->hint));
	return code;
}

/* ----------
 * Rows
 * ----------
 */

bool
ch_rows_more(ChRows *rows)
{
	return !rows->broken && rows->at < rows->len;
}

char *
ch_rows_string(ChRows *rows)
{
	uint64		len = 0;
	char	   *text;

	for (int shift = 0; shift <= 28; shift += 7)
	{
		uint8		byte;

		if (rows->at >= rows->len)
			break;
		byte = (uint8) rows->data[rows->at++];
		len |= (uint64) (byte & 0x7F) << shift;
		if ((byte & 0x80) == 0)
		{
			if (len > rows->len - rows->at)
				break;
			text = pnstrdup(rows->data + rows->at, len);
			rows->at += len;
			return text;
		}
	}
	rows->broken = true;
	rows->at = rows->len;
	return pstrdup("");
}

uint64
ch_rows_number(ChRows *rows, int width)
{
	uint64		value = 0;

	if (rows->len - rows->at < width)
	{
		rows->broken = true;
		rows->at = rows->len;
		return 0;
	}
	for (int i = 0; i < width; i++)
		value |= (uint64) (uint8) rows->data[rows->at++] << (8 * i);
	return value;
}

/* ----------
 * Requests
 * ----------
 */

/* A pipeline that is being dropped has stopped long ago. */
static bool
must_stop(void)
{
	return etl_worker_role != ETL_ROLE_CHECK && etl_worker_should_stop();
}

static void
put_encoded(StringInfo out, const char *text)
{
	for (const char *p = text; *p; p++)
	{
		unsigned char c = *p;

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			c == '-' || c == '_' || c == '.' || c == '~')
			appendStringInfoChar(out, c);
		else
			appendStringInfo(out, "%%%02X", c);
	}
}

/*
 * The address with the parameters of every request.  A query of the stream
 * is named so that a later writer finds it; see ch_place().
 */
static void
put_url(StringInfo out, EtlConnection *connection, EtlPhase phase)
{
	const char *url = etl_option_text(connection->options, "url");
	const char *scheme_end = strstr(url, "://");
	const char *path = scheme_end ? strchr(scheme_end + 3, '/') : NULL;

	appendStringInfoString(out, url);
	if (strchr(url, '?') == NULL)
		appendStringInfoString(out, path ? "?" : "/?");
	else
		appendStringInfoChar(out, '&');
	appendStringInfo(out, "wait_end_of_query=1&query_id=etl-%s%s-" UINT64_FORMAT "-" UINT64_FORMAT,
					 phase == ETL_PHASE_COPY ? "copy-" : "", connection->hex,
					 connection->incarnation, ++connection->sequence);
}

static EtlHttpTransfer *
start(EtlConnection *connection, EtlHttpRequest *request)
{
	request->method = "POST";
	request->headers = list_make1("Content-Type: application/octet-stream");
	request->user = etl_option_text(connection->options, "user");
	request->password = connection->password;
	return etl_http_start(connection->http, request);
}

bool
ch_run(EtlConnection *connection, ChKind kind, const char *sql, ChRows *rows,
	   int *code, EtlResult *result)
{
	EtlHttpRequest request;
	EtlHttpTransfer *transfer;
	const EtlHttpResponse *response;
	StringInfoData url;
	EtlSpan		span = {sql, strlen(sql)};
	int			found;

	ch_need_pool(connection);
	memset(&request, 0, sizeof(request));
	initStringInfo(&url);
	/* named like a copy's: nobody needs to find it */
	put_url(&url, connection, ETL_PHASE_COPY);
	request.method = "POST";
	request.url = url.data;
	request.headers = list_make1("Content-Type: text/plain; charset=UTF-8");
	request.user = etl_option_text(connection->options, "user");
	request.password = connection->password;
	request.nspans = 1;
	request.spans = &span;
	request.response_limit = rows ? MOST_ANSWER : 4096;
	response = etl_http_perform(connection->http, &request, must_stop, &transfer);
	found = ch_classify(response, kind, result);
	if (code)
		*code = found;
	if (result->status == ETL_DONE && rows)
	{
		memset(rows, 0, sizeof(*rows));
		rows->len = response->raw_body_len;
		rows->data = memcpy(palloc(rows->len + 1), response->raw_body, rows->len);
		if (response->truncated)
			etl_result_set(result, ETL_RETRY, ERRCODE_PROGRAM_LIMIT_EXCEEDED,
						   "the answer of ClickHouse is too long");
	}
	etl_http_finish(transfer);
	return result->status == ETL_DONE;
}

/*
 * Has this process been busy, rather than waiting for the network or the
 * destination, since the last INSERT began?  Then compressing well would only
 * make everything slower.
 */
static bool
is_busy(EtlConnection *connection)
{
	TimestampTz now = GetCurrentTimestamp();
	uint64		waited = etl_http_waited(connection->http);
	bool		busy = (waited - connection->insert_waited) * 4 <
		(uint64) Max(now - connection->insert_time, 1);

	connection->insert_time = now;
	connection->insert_waited = waited;
	return busy;
}

EtlHttpTransfer *
ch_start_insert(EtlConnection *connection, const char *sql, EtlPhase phase,
				const char *token, int nspans, const EtlSpan *spans)
{
	EtlHttpRequest request;
	StringInfoData url;

	/*
	 * Whatever the user's profile says: answer when the rows are stored, all
	 * of them in one block, with names and types compared.
	 */
	initStringInfo(&url);
	put_url(&url, connection, phase);
	appendStringInfoString(&url, "&async_insert=0&insert_deduplicate=1"
						   "&input_format_parallel_parsing=0"
						   "&max_insert_block_size=1048576"
						   "&min_insert_block_size_rows=1048576"
						   "&min_insert_block_size_bytes=268435456"
						   "&input_format_with_names_use_header=1"
						   "&input_format_with_types_use_header=1"
						   "&input_format_skip_unknown_fields=0"
						   "&max_partitions_per_insert_block=0"
						   "&insert_deduplication_token=");
	put_encoded(&url, token);
	appendStringInfoString(&url, "&query=");
	put_encoded(&url, sql);

	memset(&request, 0, sizeof(request));
	request.url = url.data;
	request.nspans = nspans;
	request.spans = spans;
	request.compression = connection->compression;
	request.fast = is_busy(connection);
	request.response_limit = 4096;
	return start(connection, &request);
}
