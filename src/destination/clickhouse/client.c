/*-------------------------------------------------------------------------
 *
 * client.c
 *	  One statement over HTTP.
 *
 * Statements that change something run to their end while nothing else is
 * started, so they have a deadline of their own.  Past it, or after a
 * connection that broke, or when only something in between has answered,
 * nobody knows whether the server still works on one: it is asked before
 * anybody looks what has become of the same table, and changes it again.  Two
 * EXCHANGE TABLES would undo each other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"
#include "server/worker.h"

/* More than the tables of a database need. */
#define MOST_ANSWER		(256 * 1024 * 1024)

/* ms for a statement that changes something; see above. */
#define CHANGE_TIMEOUT	10000

/* Longer statements the server takes only if told so (max_query_size, 256 kB). */
#define MOST_QUERY		(200 * 1024)

/* ----------
 * Rows
 * ----------
 */

bool
ch_rows_more(ChRows *rows)
{
	return !rows->broken && rows->at < rows->len;
}

bool
ch_rows_done(const ChRows *rows)
{
	return !rows->broken && rows->at == rows->len;
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
bool
ch_must_stop(void)
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
 * The address with the parameters of every request; returns the query's id.
 * "findable": named so that a later writer ends it; see ch_settle().
 */
static const char *
put_url(StringInfo out, EtlConnection *connection, bool findable)
{
	const char *url = etl_option_text(connection->options, "url");
	const char *scheme_end = strstr(url, "://");
	const char *path = scheme_end ? strchr(scheme_end + 3, '/') : NULL;
	const char *query_id = psprintf("etl-%s%s-" UINT64_FORMAT "-" UINT64_FORMAT,
									findable ? "" : "copy-", connection->hex,
									connection->incarnation, ++connection->sequence);

	appendStringInfoString(out, url);
	if (strchr(url, '?') == NULL)
		appendStringInfoString(out, path ? "?" : "/?");
	else
		appendStringInfoChar(out, '&');
	appendStringInfo(out, "wait_end_of_query=1&query_id=%s", query_id);
	return query_id;
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

/* A statement whose end we have not seen. */
typedef struct ChUnsure
{
	Oid			relid;			/* of the table that it is about */
	char	   *query_id;
} ChUnsure;

static void
note_unsure(EtlConnection *connection, const char *query_id)
{
	MemoryContext old = MemoryContextSwitchTo(connection->context);
	ChUnsure   *unsure = palloc_object(ChUnsure);

	unsure->relid = connection->changing;
	unsure->query_id = pstrdup(query_id);
	connection->unsure = lappend(connection->unsure, unsure);
	MemoryContextSwitchTo(old);
}

static bool run(EtlConnection *connection, ChKind kind, const char *settings, const char *sql,
				ChRows *rows, EtlResult *result);

/*
 * Does the server work on none of those about this table any more?  Asked
 * before it is looked what is there: what runs on may change that.
 */
bool
ch_is_sure(EtlConnection *connection, EtlResult *result)
{
	ListCell   *lc;

	foreach(lc, connection->unsure)
	{
		ChUnsure   *unsure = lfirst(lc);
		ChRows		rows;

		if (unsure->relid != connection->changing)
			continue;
		if (!run(connection, CH_READ, NULL,
				 psprintf("KILL QUERY WHERE query_id = '%s' TEST FORMAT RowBinary", unsure->query_id),
				 &rows, result))
			return false;
		if (rows.len > 0)
		{
			etl_result_set(result, ETL_RETRY, ERRCODE_OBJECT_IN_USE,
						   "ClickHouse still works on an earlier statement about the table");
			return false;
		}
		connection->unsure = foreach_delete_current(connection->unsure, lc);
		pfree(unsure->query_id);
		pfree(unsure);
	}
	return true;
}

bool
ch_run_with(EtlConnection *connection, ChKind kind, const char *settings, const char *sql,
			ChRows *rows, EtlResult *result)
{
	connection->code = 0;
	if (kind == CH_CHANGE && !ch_is_sure(connection, result))
		return false;
	return run(connection, kind, settings, sql, rows, result);
}

bool
ch_run(EtlConnection *connection, ChKind kind, const char *sql, ChRows *rows, EtlResult *result)
{
	return ch_run_with(connection, kind, NULL, sql, rows, result);
}

static bool
run(EtlConnection *connection, ChKind kind, const char *settings, const char *sql,
	ChRows *rows, EtlResult *result)
{
	EtlHttpRequest request;
	EtlHttpTransfer *transfer;
	const EtlHttpResponse *response;
	StringInfoData url;
	EtlSpan		span = {sql, strlen(sql)};
	const char *query_id;

	ch_need_pool(connection);
	if (!ch_need_password(connection, result))
		return false;
	memset(&request, 0, sizeof(request));
	initStringInfo(&url);

	/* changes of a writer are found by the next one; a sync worker's are not its business */
	query_id = put_url(&url, connection,
					   kind == CH_CHANGE && etl_worker_role == ETL_ROLE_WRITER);
	if (settings)
		appendStringInfo(&url, "&%s", settings);
	if (span.len > MOST_QUERY)	/* many keys, or long ones */
		appendStringInfo(&url, "&max_query_size=" UINT64_FORMAT, span.len + 1024);
	request.method = "POST";
	request.url = url.data;
	request.headers = list_make1("Content-Type: text/plain; charset=UTF-8");
	request.user = etl_option_text(connection->options, "user");
	request.password = connection->password;
	request.nspans = 1;
	request.spans = &span;
	request.response_limit = rows ? MOST_ANSWER : 4096;
	request.timeout = kind == CH_CHANGE ? CHANGE_TIMEOUT : 0;
	request.once = kind == CH_CHANGE;
	response = etl_http_perform(connection->http, &request, ch_must_stop, &transfer);
	connection->code = ch_classify(response, kind, result);
	ch_note_refusal(connection, result);

	/* no word of ClickHouse's: it never came there, or is still worked on */
	if (kind == CH_CHANGE && result->status == ETL_RETRY && connection->code == 0)
		note_unsure(connection, query_id);
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
ch_start_insert(EtlConnection *connection, const char *sql, EtlPhase phase, bool json,
				const char *token, int nspans, const EtlSpan *spans)
{
	EtlHttpRequest request;
	StringInfoData url;

	/*
	 * Whatever the user's profile says: answer when the rows are stored, all
	 * of them in one block, with names and types compared.
	 */
	initStringInfo(&url);
	(void) put_url(&url, connection, phase == ETL_PHASE_STREAM);
	if (connection->has_deduplicate_insert)
		appendStringInfoString(&url, "&deduplicate_insert=enable");
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
	if (json)					/* older servers do not know all of them */
		appendStringInfoString(&url, "&input_format_binary_read_json_as_string=1"
							   "&input_format_try_infer_dates=0"
							   "&input_format_try_infer_datetimes=0"
							   "&input_format_json_try_infer_numbers_from_strings=0"
							   "&type_json_skip_duplicated_paths=0");
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
