/*-------------------------------------------------------------------------
 *
 * webhook.c
 *	  The webhook destination: every change as one JSON event over HTTP.
 *
 * Receivers get all events of all tables in the order of the source's
 * commits: one request at a time, each a batch of whole events.  This file
 * has the options and the routine.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/memutils.h"

#include "destination/http_options.h"
#include "destination/webhook/webhook.h"
#include "net/sign.h"

const char *const webhook_event_names[] = {
	"begin", "insert", "update", "delete", "truncate", "commit", "relation",
	"copy_begin", "copy_end"
};

static const char *const format_values[] = {"plain", "ndjson", "cloudevents", NULL};
static const char *const int8_values[] = {"number", "string", NULL};
static const char *const numeric_values[] = {"string", "number", NULL};
static const char *const bytea_values[] = {"hex", "base64", NULL};

#define VALUE_SCOPES (ETL_SCOPE_SERVER | ETL_SCOPE_PIPELINE | ETL_SCOPE_COLUMN | ETL_OPTION_RESTART)

static const EtlOptionDef webhook_options[] = {
	ETL_HTTP_OPTIONS("none", "60000"),
	{
		"format", ETL_OPTION_ENUM, ETL_SCOPE_SERVER | ETL_SCOPE_PIPELINE | ETL_OPTION_RESTART,
		"plain", 0, 0, format_values,
		"Wrapping of the events in a request."
	},
	{
		"events", ETL_OPTION_LIST, ETL_SCOPE_PIPELINE | ETL_OPTION_RESTART, NULL, 0, 0, NULL,
		"Kinds of events that are sent; unset means all."
	},
	{
		"headers", ETL_OPTION_JSON, ETL_SCOPE_SERVER | ETL_SCOPE_MAPPING | ETL_OPTION_SECRET, NULL, 0, 0, NULL,
		"Headers of every request; secret ones belong in the user mapping."
	},
	{
		"secret", ETL_OPTION_TEXT, ETL_SCOPE_MAPPING | ETL_OPTION_SECRET, NULL, 0, 0, NULL,
		"Key that requests are signed with, whsec_ and base64."
	},
	{
		"previous_secret", ETL_OPTION_TEXT, ETL_SCOPE_MAPPING | ETL_OPTION_SECRET, NULL, 0, 0, NULL,
		"Further key to sign with while receivers change to a new one."
	},
	{
		"secret_file", ETL_OPTION_TEXT, ETL_SCOPE_MAPPING | ETL_OPTION_FILE, NULL, 0, 0, NULL,
		"File with the key, and on a second line the previous one; read at each connect."
	},
	{
		"int8_as", ETL_OPTION_ENUM, VALUE_SCOPES, "number", 0, 0, int8_values,
		"JSON type of bigint values."
	},
	{
		"numeric_as", ETL_OPTION_ENUM, VALUE_SCOPES, "string", 0, 0, numeric_values,
		"JSON type of numeric values."
	},
	{
		"bytea_as", ETL_OPTION_ENUM, VALUE_SCOPES, "hex", 0, 0, bytea_values,
		"Text form of bytea values."
	},
	{NULL}
};

static bool
text_is(const char *text, const char *value)
{
	return text != NULL && strcmp(text, value) == 0;
}

WebhookFormat
webhook_format(const EtlOptions *options)
{
	const char *format = etl_option_text(options, "format");

	if (text_is(format, "ndjson"))
		return WEBHOOK_NDJSON;
	if (text_is(format, "cloudevents"))
		return WEBHOOK_CLOUDEVENTS;
	return WEBHOOK_PLAIN;
}

/* Bit of a kind of event, 0 if there is none of that name. */
static uint32
event_bit(const char *name)
{
	for (int i = 0; i < WEBHOOK_NEVENTS; i++)
	{
		if (strcmp(webhook_event_names[i], name) == 0)
			return 1U << i;
	}
	return 0;
}

/*
 * Is this kind of event sent?  The list is remembered by its text: begin and
 * commit ask for each transaction.
 */
bool
webhook_wants(const EtlOptions *options, WebhookEvent event)
{
	static char *known = NULL;
	static uint32 mask;
	const char *text = etl_option_text(options, "events");

	if (text == NULL)
		return true;
	if (known == NULL || strcmp(known, text) != 0)
	{
		ListCell   *lc;
		char	   *copy = MemoryContextStrdup(TopMemoryContext, text);

		if (known)
			pfree(known);
		known = copy;
		mask = 0;
		foreach(lc, etl_option_list(options, "events"))
			mask |= event_bit(lfirst(lc));
	}
	return (mask & (1U << event)) != 0;
}

EtlJsonOptions
webhook_json_options(const EtlOptions *options, const char *column)
{
	EtlJsonOptions json;

	memset(&json, 0, sizeof(json));
	json.int8_as_string = text_is(etl_option_column(options, column, "int8_as"), "string");
	json.numeric_as_number = text_is(etl_option_column(options, column, "numeric_as"), "number");
	json.bytea_as_base64 = text_is(etl_option_column(options, column, "bytea_as"), "base64");
	json.one_line = webhook_format(options) == WEBHOOK_NDJSON;
	return json;
}

static void
validate_events(const EtlOptions *options)
{
	ListCell   *lc;

	foreach(lc, etl_option_list(options, "events"))
	{
		if (event_bit(lfirst(lc)) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unrecognized kind of event \"%s\" in option \"events\"",
							(char *) lfirst(lc)),
					 errhint("Valid kinds are: begin, commit, copy_begin, copy_end, delete, insert, relation, truncate, update.")));
	}
}

static void
validate_secret(const EtlOptions *options, const char *name)
{
	const char *secret = etl_option_text(options, name);

	if (secret && !etl_webhook_secret_valid(secret))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for option \"%s\"", name),
				 errhint("A secret is \"whsec_\" followed by the base64 form of 24 to 64 bytes.")));
}

static void
webhook_validate_options(const EtlOptions *options, uint32 scope)
{
	const char *url = etl_option_text(options, "url");
	const char *wrong = url ? etl_http_url_error(url) : NULL;

	if (wrong)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("URL of the destination %s", wrong)));
	validate_events(options);
	(void) webhook_static_headers(options);
	validate_secret(options, "secret");
	validate_secret(options, "previous_secret");
	if (etl_option_text(options, "secret_file") &&
		(etl_option_text(options, "secret") || etl_option_text(options, "previous_secret")))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options \"secret\" and \"secret_file\" exclude each other")));
	if (etl_option_text(options, "previous_secret") && !etl_option_text(options, "secret"))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"previous_secret\" needs option \"secret\"")));
	if (etl_option_text(options, "password") && etl_option_text(options, "password_file"))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options \"password\" and \"password_file\" exclude each other")));
}

const EtlDestinationRoutine etl_webhook_routine = {
	.magic = ETL_DESTINATION_MAGIC,
	.version = ETL_DESTINATION_VERSION,
	.size = sizeof(EtlDestinationRoutine),
	.kind = "webhook",
	.abilities = ETL_BATCH_PIPELINE | ETL_TAKES_PARTIAL | ETL_KEEPS_OLD_ROWS | ETL_FOLLOWS_SHAPES,
	.max_batch_size = 1024,
	.max_batch_events = 500,
	.max_batch_delay = 0,
	.options = webhook_options,
	.validate_options = webhook_validate_options,
	.codec_create = webhook_codec_create,
	.encode_row = webhook_encode_row,
	.encode_begin = webhook_encode_begin,
	.encode_commit = webhook_encode_commit,
	.encode_relation = webhook_encode_relation,
	.encode_truncate = webhook_encode_truncate,
	.encode_copy_begin = webhook_encode_copy_begin,
	.encode_copy_end = webhook_encode_copy_end,
	.extract = webhook_extract,
	.splice = webhook_splice,
	.open = webhook_open,
	.connect = webhook_connect,
	.close = webhook_close,
	.send_start = webhook_send_start,
	.send_poll = webhook_send_poll,
	.send_result = webhook_send_result,
	.send_finish = webhook_send_finish,
	.describe_column = webhook_describe_column,
};

PG_FUNCTION_INFO_V1(etl_webhook_handler);

/* What the wrapper etl_webhook names as its handler. */
Datum
etl_webhook_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&etl_webhook_routine);
}
