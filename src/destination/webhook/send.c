/*-------------------------------------------------------------------------
 *
 * send.c
 *	  Sending batches to a webhook, and what the answers mean.
 *
 * Everything a batch needs lives in a memory context of its own, from
 * send_start() to send_finish().  Secrets are read at each connect; a batch
 * is signed with those of the moment it is sent.
 *
 * Answers: see etl_http_classify().  Here they are narrowed down: a batch of
 * one event tells which one was refused, and an event of no table cannot be
 * parked, so its refusal is the endpoint's trouble.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "utils/memutils.h"

#include "compat.h"
#include "destination/webhook/webhook.h"
#include "guc.h"

struct EtlConnection
{
	MemoryContext context;
	const EtlOptions *options;
	char	   *pipeline;
	int64		pipeline_id;
	WebhookFormat format;
	EtlCompression compression;
	List	   *headers;		/* the user's */
	MemoryContext secrets_context;	/* emptied at each connect */
	WebhookSecrets secrets;
	MemoryContext http_context; /* holds the pool */
	EtlHttp    *http;
	int			in_flight;
};

/* A batch under way (EtlBatch.private_data). */
typedef struct WebhookSend
{
	MemoryContext context;		/* holds this struct */
	WebhookBody body;
	EtlHttpTransfer *transfer;
} WebhookSend;

static EtlCompression
compression_of(const char *name)
{
	if (name == NULL || strcmp(name, "none") == 0)
		return ETL_COMPRESS_NONE;
	if (strcmp(name, "gzip") == 0)
		return ETL_COMPRESS_GZIP;
	if (strcmp(name, "lz4") == 0)
		return ETL_COMPRESS_LZ4;
	return ETL_COMPRESS_ZSTD;
}

/*
 * A fresh pool: settings and certificates as they are now.  Not while a
 * transfer of the old one is under way.
 */
static void
make_pool(EtlConnection *connection)
{
	const EtlOptions *options = connection->options;
	MemoryContext old;
	EtlHttpSettings settings;

	if (connection->in_flight > 0)
		return;
	connection->http = NULL;
	MemoryContextReset(connection->http_context);
	old = MemoryContextSwitchTo(connection->http_context);
	memset(&settings, 0, sizeof(settings));
	settings.connect_timeout = etl_option_int(options, "connect_timeout");
	settings.request_timeout = etl_option_int(options, "request_timeout");
	settings.ca_file = etl_option_text(options, "ca_file");
	settings.client_cert_file = etl_option_text(options, "client_cert_file");
	settings.client_key_file = etl_option_text(options, "client_key_file");
	settings.proxy = etl_option_text(options, "proxy");
	settings.allowed_hosts = etl_allowed_hosts;
	connection->http = etl_http_create(&settings);
	MemoryContextSwitchTo(old);
}

EtlConnection *
webhook_open(const EtlConnectArgs *args)
{
	EtlConnection *connection = palloc0_object(EtlConnection);

	connection->context = CurrentMemoryContext;
	connection->options = args->options;
	connection->pipeline = pstrdup(args->pipeline);
	connection->pipeline_id = args->pipeline_id;
	connection->format = webhook_format(args->options);
	connection->compression = compression_of(etl_option_text(args->options, "compression"));
	connection->headers = webhook_static_headers(args->options);
	connection->secrets_context = AllocSetContextCreate(CurrentMemoryContext,
														"etl webhook secrets", ALLOCSET_SMALL_SIZES);
	connection->http_context = AllocSetContextCreate(CurrentMemoryContext,
													 "etl webhook pool", ALLOCSET_SMALL_SIZES);
	make_pool(connection);
	return connection;
}

/* Start a request with what all of them share. */
static EtlHttpTransfer *
start_request(EtlConnection *connection, EtlHttpRequest *request)
{
	request->url = etl_option_text(connection->options, "url");
	request->user = etl_option_text(connection->options, "user");
	request->password = connection->secrets.password;
	return etl_http_start(connection->http, request);
}

/*
 * Read the secrets and see whether the receiver's address takes connections,
 * TLS included.  No request is made: a receiver could take it for an event.
 */
void
webhook_connect(EtlConnection *connection, EtlResult *result)
{
	MemoryContext old;
	EtlHttpRequest request;
	EtlHttpTransfer *transfer;
	const EtlHttpResponse *response;
	bool		ok;

	memset(result, 0, sizeof(*result));
	memset(&connection->secrets, 0, sizeof(connection->secrets));
	MemoryContextReset(connection->secrets_context);
	old = MemoryContextSwitchTo(connection->secrets_context);
	ok = webhook_read_secrets(connection->options, &connection->secrets, result);
	MemoryContextSwitchTo(old);
	if (!ok)
		return;

	make_pool(connection);
	memset(&request, 0, sizeof(request));
	request.method = "GET";
	request.url = etl_option_text(connection->options, "url");
	request.connect_only = true;
	response = etl_http_perform(connection->http, &request, NULL, &transfer);
	if (response->outcome != ETL_HTTP_ANSWERED)
		etl_http_classify(response, result);
	etl_http_finish(transfer);
}

void
webhook_close(EtlConnection *connection)
{
	connection->http = NULL;
	MemoryContextReset(connection->http_context);
	MemoryContextReset(connection->secrets_context);
	memset(&connection->secrets, 0, sizeof(connection->secrets));
}

void
webhook_send_start(EtlConnection *connection, EtlBatch *batch)
{
	MemoryContext context = AllocSetContextCreate(connection->context, "etl webhook batch",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	WebhookSend *send = palloc0_object(WebhookSend);
	EtlHttpRequest request;

	if (connection->http == NULL)
		make_pool(connection);
	send->context = context;
	webhook_body(&send->body, connection->format, connection->pipeline_id, batch);

	memset(&request, 0, sizeof(request));
	request.method = "POST";
	request.headers = webhook_headers(&send->body, connection->format, connection->pipeline,
									  connection->headers, &connection->secrets, time(NULL));
	request.nspans = send->body.nspans;
	request.spans = send->body.spans;
	request.compression = connection->compression;
	request.response_limit = 1024;
	send->transfer = start_request(connection, &request);
	connection->in_flight++;
	batch->private_data = send;
	MemoryContextSwitchTo(old);
}

void
webhook_send_poll(EtlConnection *connection, int timeout)
{
	etl_http_poll(connection->http, timeout);
}

/* Narrow a general class down by what the batch holds. */
static void
refine(const EtlBatch *batch, const EtlHttpResponse *response, EtlResult *result)
{
	const EtlItem *item = &batch->items[0];
	bool		answered = response->outcome == ETL_HTTP_ANSWERED;

	/* another request with this Idempotency-Key is being handled */
	if (answered && response->status == 409)
	{
		result->status = ETL_RETRY;
		result->hint[0] = '\0';
	}
	if (result->status == ETL_FATAL)
		strlcpy(result->hint,
				"The receiver says that it is gone for good. Change the URL and start the pipeline again.",
				sizeof(result->hint));

	if (batch->nitems != 1 ||
		(result->status != ETL_REJECTED && result->status != ETL_TOO_LARGE))
		return;
	if ((item->flags & ETL_ITEM_EVENT) && item->op != ETL_TRUNCATE)
	{
		result->status = ETL_ENDPOINT;
		strlcpy(result->hint,
				"The receiver refuses an event that is no row. Leave its kind out with option \"events\".",
				sizeof(result->hint));
	}
	else if (result->status == ETL_REJECTED)
		result->rejected = 0;
}

void
webhook_send_result(EtlConnection *connection, EtlBatch *batch, EtlResult *result)
{
	WebhookSend *send = batch->private_data;
	const EtlHttpResponse *response = etl_http_response(send->transfer);

	memset(result, 0, sizeof(*result));
	if (response == NULL)
	{
		result->status = ETL_PENDING;
		return;
	}
	etl_http_classify(response, result);
	if (result->status != ETL_DONE)
		refine(batch, response, result);
}

void
webhook_send_finish(EtlConnection *connection, EtlBatch *batch)
{
	WebhookSend *send = batch->private_data;

	if (send == NULL)
		return;
	batch->private_data = NULL;
	if (connection->http)
		etl_http_finish(send->transfer);
	connection->in_flight--;
	MemoryContextDelete(send->context);
}
