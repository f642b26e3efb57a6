/*-------------------------------------------------------------------------
 *
 * request.c
 *	  From a batch to a request: body, id, headers, signature.
 *
 * A body is a frame around the items' bytes as they are.  It and the batch's
 * id are functions of the batch alone, so every retry sends the same bytes;
 * the time and the signature are new each time, because receivers refuse old
 * ones.
 *
 * Ids.  Receivers may drop a request whose id they have seen, so no two
 * different batches may share one.  A batch of the stream is named by the
 * position of its first event and the number of events, one of a copy by
 * table, generation and first row (or its begin or end).  A relation has no
 * position of its own; when it comes first, its own id is added to the
 * position of what is behind it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "destination/webhook/webhook.h"
#include "net/secret.h"
#include "net/sign.h"

#define USER_AGENT	"etl/1.0"

/* Headers that are ours to set, in lower case. */
static const char *const own_headers[] = {
	"connection", "content-encoding", "content-length", "content-type", "etl-pipeline",
	"expect", "host", "idempotency-key", "te", "trailer", "transfer-encoding", "upgrade",
	"user-agent", "webhook-id", "webhook-signature", "webhook-timestamp"
};

/* --- id --- */

/*
 * The event's own id without its epoch, with '-' for '/', in CurrentMemoryContext;
 * NULL if it cannot be found.
 */
static char *
item_id(const EtlItem *item)
{
	const char *value;
	uint32		len;
	char	   *id;
	char	   *slash;

	/* an envelope has the same id as the event in it */
	if (!etl_json_member(item->data, item->len, "\"id\"", 4, &value, &len) || len < 3)
		return NULL;
	id = pnstrdup(value + 1, len - 2);
	slash = strchr(id, '/');
	if (slash == NULL)
		return NULL;
	id = slash + 1;
	for (char *p = id; *p; p++)
	{
		if (*p == '/')
			*p = '-';
		else if (!isalnum((unsigned char) *p))
			return NULL;
	}
	return id;
}

static bool
is_relation(const char *id)
{
	return id && strncmp(id, "relation-", 9) == 0;
}

/* Position of the first item that is no relation: "<lsn>-<ordinal>", or in a copy "copy_...". */
static void
put_position(StringInfo out, const EtlBatch *batch)
{
	const EtlItem *item = batch->items;
	const EtlItem *last = batch->items + batch->nitems - 1;
	char	   *id = NULL;
	char		position[40];

	for (; item < last; item++)
	{
		if ((item->flags & ETL_ITEM_EVENT) == 0 || !is_relation(item_id(item)))
			break;
	}
	if (batch->phase == ETL_PHASE_COPY)
		id = item_id(item);
	if (id && strncmp(id, "copy-", 5) == 0)
	{
		for (char *p = id; *p; p++)
			if (*p == '-')
				*p = '_';
		appendStringInfoString(out, id);
		return;
	}
	if (item->op == ETL_TRUNCATE && (id = item_id(item)) != NULL)
	{
		/* a sync worker's have the table in it */
		appendStringInfoString(out, id);
		return;
	}
	webhook_sequence(position, item->commit_lsn, item->ordinal);
	*strchr(position, '/') = '-';
	appendStringInfoString(out, position);
}

static char *
batch_id(int64 pipeline_id, const EtlBatch *batch)
{
	const EtlItem *first = &batch->items[0];
	StringInfoData out;

	initStringInfo(&out);
	appendStringInfo(&out, "msg_" INT64_FORMAT "_%u_", pipeline_id, (unsigned) batch->epoch);
	put_position(&out, batch);
	if (first->flags & ETL_ITEM_EVENT)
	{
		char	   *id = item_id(first);

		if (is_relation(id))
			appendStringInfo(&out, "_%s", id);
	}
	appendStringInfo(&out, "_%d", batch->nitems);
	return out.data;
}

/* --- body --- */

static inline void
add_span(WebhookBody *body, const char *data, uint64 len)
{
	if (len == 0)
		return;
	body->spans[body->nspans].data = data;
	body->spans[body->nspans].len = len;
	body->nspans++;
}

/* "batch" has at least one item. */
void
webhook_body(WebhookBody *body, WebhookFormat format, int64 pipeline_id, const EtlBatch *batch)
{
	static const int utc = 0;
	const char *separator = format == WEBHOOK_NDJSON ? "\n" : ",";
	const char *prefix = "";
	const char *suffix = "\n";

	Assert(batch->nitems > 0);
	body->id = batch_id(pipeline_id, batch);
	if (format == WEBHOOK_PLAIN)
	{
		char		time[MAXDATELEN + 1];

		JsonEncodeDateTime(time, TimestampTzGetDatum(batch->sealed_at), TIMESTAMPTZOID, &utc);
		prefix = psprintf("{\"type\":\"etl.batch\",\"timestamp\":\"%s\",\"data\":{\"batch\":\"%s\",\"events\":[",
						  time, body->id);
		suffix = "]}}";
	}
	else if (format == WEBHOOK_CLOUDEVENTS)
	{
		prefix = "[";
		suffix = "]";
	}

	body->nspans = 0;
	body->spans = MemoryContextAllocHuge(CurrentMemoryContext,
										 sizeof(EtlSpan) * (2 * (Size) batch->nitems + 2));
	add_span(body, prefix, strlen(prefix));
	for (int i = 0; i < batch->nitems; i++)
	{
		if (i > 0)
			add_span(body, separator, 1);
		add_span(body, batch->items[i].data, batch->items[i].len);
	}
	add_span(body, suffix, strlen(suffix));
}

/* --- headers --- */

/* Is "name" a token of HTTP, and not ours? */
static bool
header_name_ok(const char *name)
{
	if (*name == '\0')
		return false;
	for (const char *p = name; *p; p++)
	{
		if (!isalnum((unsigned char) *p) && strchr("!#$%&'*+-.^_`|~", *p) == NULL)
			return false;
	}
	for (int i = 0; i < lengthof(own_headers); i++)
	{
		if (pg_strcasecmp(own_headers[i], name) == 0)
			return false;
	}
	return true;
}

static bool
header_value_ok(const char *value)
{
	if (*value == '\0')
		return false;
	for (const char *p = value; *p; p++)
	{
		if (((unsigned char) *p < ' ' && *p != '\t') || *p == 0x7f)
			return false;
	}
	return true;
}

List *
webhook_static_headers(const EtlOptions *options)
{
	const char *text = etl_option_text(options, "headers");
	List	   *headers = NIL;
	char	   *name = NULL;
	Jsonb	   *object;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	item;

	if (text == NULL)
		return NIL;
	object = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));
	it = JsonbIteratorInit(&object->root);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		char	   *value;

		if (token == WJB_KEY)
		{
			name = pnstrdup(item.val.string.val, item.val.string.len);
			if (!header_name_ok(name))
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("header \"%s\" cannot be set by option \"headers\"", name),
						 errhint("A name consists of letters, digits and hyphens, and is none of those that etl sets itself.")));
		}
		if (token != WJB_VALUE)
			continue;
		value = item.type == jbvString ? pnstrdup(item.val.string.val, item.val.string.len) : NULL;
		if (value == NULL || !header_value_ok(value))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid value of header \"%s\" in option \"headers\"", name),
					 errhint("Values are strings that are not empty and have no control characters.")));
		headers = lappend(headers, psprintf("%s: %s", name, value));
	}
	return headers;
}

/* Percent-encode what may not stand in a header (names may hold anything). */
static void
put_encoded(StringInfo out, const char *text)
{
	for (const char *p = text; *p; p++)
	{
		unsigned char c = *p;

		if (c > ' ' && c < 0x7f && c != '%')
			appendStringInfoChar(out, c);
		else
			appendStringInfo(out, "%%%02X", c);
	}
}

static const char *
content_type(WebhookFormat format)
{
	switch (format)
	{
		case WEBHOOK_NDJSON:
			return "Content-Type: application/x-ndjson";
		case WEBHOOK_CLOUDEVENTS:
			return "Content-Type: application/cloudevents-batch+json; charset=UTF-8";
		case WEBHOOK_PLAIN:
			break;
	}
	return "Content-Type: application/json";
}

/*
 * Headers of one attempt.  "fixed" are the user's; "now" in seconds of the
 * Unix epoch.
 */
List *
webhook_headers(const WebhookBody *body, WebhookFormat format, const char *pipeline,
				List *fixed, const WebhookSecrets *secrets, int64 now)
{
	List	   *headers = list_make1(unconstify(char *, content_type(format)));
	StringInfoData name;

	initStringInfo(&name);
	appendStringInfoString(&name, "etl-pipeline: ");
	put_encoded(&name, pipeline);

	headers = lappend(headers, psprintf("webhook-id: %s", body->id));
	headers = lappend(headers, psprintf("webhook-timestamp: " INT64_FORMAT, now));
	if (secrets->secret)
	{
		StringInfoData signature;

		initStringInfo(&signature);
		appendStringInfoString(&signature, "webhook-signature: ");
		(void) etl_webhook_sign(&signature, secrets->secret, body->id, now, body->nspans, body->spans);
		if (secrets->previous)
		{
			appendStringInfoChar(&signature, ' ');
			(void) etl_webhook_sign(&signature, secrets->previous, body->id, now,
									body->nspans, body->spans);
		}
		headers = lappend(headers, signature.data);
	}
	headers = lappend(headers, psprintf("Idempotency-Key: \"%s\"", body->id));
	headers = lappend(headers, "User-Agent: " USER_AGENT);
	headers = lappend(headers, name.data);
	return list_concat(headers, fixed);
}

/* --- secrets --- */

static bool
check_secret(const char *secret, EtlResult *result)
{
	if (secret == NULL || etl_webhook_secret_valid(secret))
		return true;
	etl_result_set(result, ETL_ENDPOINT, ERRCODE_INVALID_PARAMETER_VALUE,
				   "the secret for signing is not valid");
	strlcpy(result->hint, "A secret is \"whsec_\" followed by the base64 form of 24 to 64 bytes.",
			sizeof(result->hint));
	return false;
}

static char *
copy_option(const EtlOptions *options, const char *name)
{
	const char *text = etl_option_text(options, name);

	return text ? pstrdup(text) : NULL;
}

bool
webhook_read_secrets(const EtlOptions *options, WebhookSecrets *secrets, EtlResult *result)
{
	const char *secret_file = etl_option_text(options, "secret_file");
	const char *password_file = etl_option_text(options, "password_file");

	secrets->secret = copy_option(options, "secret");
	secrets->previous = copy_option(options, "previous_secret");
	secrets->password = copy_option(options, "password");
	if (secret_file)
	{
		List	   *lines = etl_secret_file(secret_file, result);

		if (lines == NIL)
			return false;
		secrets->secret = linitial(lines);
		secrets->previous = list_length(lines) > 1 ? lsecond(lines) : NULL;
	}
	if (password_file)
	{
		List	   *lines = etl_secret_file(password_file, result);

		if (lines == NIL)
			return false;
		secrets->password = linitial(lines);
	}
	return check_secret(secrets->secret, result) && check_secret(secrets->previous, result);
}
