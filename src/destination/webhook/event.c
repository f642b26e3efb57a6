/*-------------------------------------------------------------------------
 *
 * event.c
 *	  Events of the webhook destination, rows excepted (see row.c).
 *
 * Every event has the same head, in this order: event, id, source, pipeline,
 * epoch, phase, commit_lsn, tx_ordinal, sequence_key, timestamp, xid.  What
 * follows depends on its kind.  An event's id is a function of what happened,
 * never of when or by whom it was sent.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "destination/webhook/webhook.h"
#include "schema/shape.h"

/* --- pieces --- */

char *
webhook_hex(char *buf, uint64 value)
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 15; i >= 0; i--)
	{
		buf[i] = hex[value & 0xf];
		value >>= 4;
	}
	return buf + 16;
}

void
webhook_sequence(char *buf, XLogRecPtr lsn, uint64 ordinal)
{
	buf = webhook_hex(buf, lsn);
	*buf++ = '/';
	buf = webhook_hex(buf, ordinal);
	*buf = '\0';
}

static void
put_time(StringInfo out, TimestampTz time)
{
	static const int utc = 0;
	char		buf[MAXDATELEN + 1];

	JsonEncodeDateTime(buf, TimestampTzGetDatum(time), TIMESTAMPTZOID, &utc);
	appendStringInfoString(out, buf);
}

static const char *
phase_name(EtlPhase phase)
{
	return phase == ETL_PHASE_COPY ? "initial_sync" : "ongoing_replication";
}

/* ,"source":...,"pipeline":...,"epoch":...,"phase":... */
static void
put_origin(StringInfo out, const EtlOrigin *origin)
{
	appendStringInfoString(out, ",\"source\":");
	etl_json_string(out, origin->source);
	appendStringInfoString(out, ",\"pipeline\":");
	etl_json_string(out, origin->pipeline);
	appendStringInfo(out, ",\"epoch\":%u,\"phase\":\"%s\"", (unsigned) origin->epoch,
					 phase_name(origin->phase));
}

static void
build_origin(WebhookOrigin *text, const EtlOrigin *origin)
{
	resetStringInfo(&text->source);
	etl_json_string(&text->source, origin->source);

	resetStringInfo(&text->time);
	put_time(&text->time, origin->timestamp);

	resetStringInfo(&text->before);
	put_origin(&text->before, origin);
	appendStringInfo(&text->before, ",\"commit_lsn\":\"%X/%X\",\"tx_ordinal\":",
					 LSN_FORMAT_ARGS(origin->commit_lsn));

	resetStringInfo(&text->after);
	appendStringInfo(&text->after, ",\"timestamp\":\"%s\",\"xid\":", text->time.data);
	if (TransactionIdIsValid(origin->xid))
		appendStringInfo(&text->after, "%u", origin->xid);
	else
		appendStringInfoString(&text->after, "null");
}

const WebhookOrigin *
webhook_origin(const EtlOrigin *origin)
{
	static WebhookOrigin text;
	static EtlOrigin known;
	static MemoryContext context = NULL;
	static bool valid = false;
	MemoryContext old;

	if (valid &&
		known.commit_lsn == origin->commit_lsn &&
		known.timestamp == origin->timestamp &&
		known.xid == origin->xid &&
		known.phase == origin->phase &&
		known.epoch == origin->epoch &&
		strcmp(known.source, origin->source) == 0 &&
		strcmp(known.pipeline, origin->pipeline) == 0)
		return &text;

	valid = false;
	if (context == NULL)
	{
		context = AllocSetContextCreate(TopMemoryContext, "etl webhook origin", ALLOCSET_SMALL_SIZES);
		old = MemoryContextSwitchTo(context);
		initStringInfo(&text.source);
		initStringInfo(&text.time);
		initStringInfo(&text.before);
		initStringInfo(&text.after);
		memset(&known, 0, sizeof(known));
	}
	else
		old = MemoryContextSwitchTo(context);

	build_origin(&text, origin);
	if (known.source)
		pfree(unconstify(char *, known.source));
	if (known.pipeline)
		pfree(unconstify(char *, known.pipeline));
	known = *origin;
	known.source = known.pipeline = NULL;
	known.source = pstrdup(origin->source);
	known.pipeline = pstrdup(origin->pipeline);
	MemoryContextSwitchTo(old);
	valid = true;
	return &text;
}

/* {"oid":...,"schema":...,"name":...,"generation":...,"version":...} */
static void
put_table(StringInfo out, const EtlShape *shape)
{
	appendStringInfo(out, "{\"oid\":%u,\"schema\":", shape->relid);
	etl_json_string(out, shape->schema_name);
	appendStringInfoString(out, ",\"name\":");
	etl_json_string(out, shape->table_name);
	appendStringInfo(out, ",\"generation\":%u,\"version\":%u}", shape->generation, shape->version);
}

void
webhook_table(StringInfo out, const EtlShape *shape)
{
	appendStringInfoString(out, ",\"table\":");
	put_table(out, shape);
}

void
webhook_subject(StringInfo out, const EtlShape *shape)
{
	char	   *name = psprintf("%s.%s", shape->schema_name, shape->table_name);

	appendStringInfoString(out, ",\"subject\":");
	etl_json_string(out, name);
	pfree(name);
}

void
webhook_envelope(StringInfo out, const EtlOrigin *origin, const char *event, const char *id,
				 const EtlShape *shape, const char *subject, const char *sequence,
				 const StringInfoData *partition)
{
	const WebhookOrigin *text = webhook_origin(origin);

	appendStringInfo(out, "{\"specversion\":\"1.0\",\"id\":\"%s\",\"source\":%s,\"type\":\"etl.%s\"",
					 id, text->source.data, event);
	if (subject)
		appendStringInfoString(out, subject);
	appendStringInfo(out, ",\"time\":\"%s\",\"datacontenttype\":\"application/json\"", text->time.data);
	if (shape)
		appendStringInfo(out, ",\"dataschema\":\"urn:etl:schema:%u:%u:%u:%u\"",
						 origin->database, shape->relid, shape->generation, shape->version);
	if (sequence)
		appendStringInfo(out, ",\"sequence\":\"%s\"", sequence);
	if (partition)
	{
		appendStringInfoString(out, ",\"partitionkey\":");
		etl_json_quote(out, partition->data, partition->len);
	}
	appendStringInfoString(out, ",\"data\":");
}

/* --- heads and ends --- */

/* Envelope of an event without a key; "shape" and "sequence" may be NULL. */
static void
open_event(const EtlOptions *options, const EtlOrigin *origin, const char *event, const char *id,
		   const EtlShape *shape, const EtlShape *subject_shape, const char *sequence, StringInfo out)
{
	if (webhook_format(options) == WEBHOOK_CLOUDEVENTS)
	{
		StringInfoData subject;

		initStringInfo(&subject);
		if (subject_shape)
			webhook_subject(&subject, subject_shape);
		webhook_envelope(out, origin, event, id, shape, subject.data, sequence, NULL);
		pfree(subject.data);
	}
	appendStringInfo(out, "{\"event\":\"%s\",\"id\":\"%s\"", event, id);
}

static void
close_event(const EtlOptions *options, StringInfo out)
{
	appendStringInfoChar(out, '}');
	if (webhook_format(options) == WEBHOOK_CLOUDEVENTS)
		appendStringInfoChar(out, '}');
}

/*
 * Head of an event with a place in a transaction.  A change of several tables
 * (TRUNCATE) has one number; what a sync worker sends of it, for "subject"
 * alone, has the table in its id, so that it is not taken for apply's event.
 */
static void
put_head(const EtlOptions *options, const EtlOrigin *origin, const char *event, uint64 ordinal,
		 const EtlShape *subject, StringInfo out)
{
	const WebhookOrigin *text = webhook_origin(origin);
	char		sequence[40];
	char		id[WEBHOOK_ID_LEN];

	webhook_sequence(sequence, origin->commit_lsn, ordinal);
	if (origin->catch_up && subject)
		snprintf(id, sizeof(id), "%u/%s/%u", (unsigned) origin->epoch, sequence, subject->relid);
	else
		snprintf(id, sizeof(id), "%u/%s", (unsigned) origin->epoch, sequence);
	open_event(options, origin, event, id, NULL, subject, sequence, out);
	appendStringInfo(out, "%s" UINT64_FORMAT ",\"sequence_key\":\"%s\"%s",
					 text->before.data, ordinal, sequence, text->after.data);
}

/* Head of copy_begin and copy_end, with the table and the copy's number. */
static void
put_copy_head(const EtlOptions *options, const EtlOrigin *origin, const char *event,
			  const char *end, const EtlShape *shape, StringInfo out)
{
	const WebhookOrigin *text = webhook_origin(origin);
	char		sequence[40];
	char		id[WEBHOOK_ID_LEN];

	webhook_sequence(sequence, origin->commit_lsn, 0);
	snprintf(id, sizeof(id), "%u/copy/%u/%u/%s", (unsigned) origin->epoch, shape->relid,
			 shape->generation, end);
	open_event(options, origin, event, id, shape, shape, sequence, out);
	appendStringInfo(out, "%snull,\"sequence_key\":\"%s\"%s",
					 text->before.data, sequence, text->after.data);
	webhook_table(out, shape);
	appendStringInfo(out, ",\"copy\":%u", shape->generation);
}

/* --- the events --- */

void
webhook_encode_begin(const EtlOptions *options, const EtlOrigin *origin, StringInfo out)
{
	if (!webhook_wants(options, WEBHOOK_BEGIN))
		return;
	put_head(options, origin, "begin", 0, NULL, out);
	close_event(options, out);
}

void
webhook_encode_commit(const EtlOptions *options, const EtlOrigin *origin, uint64 ordinal, StringInfo out)
{
	if (!webhook_wants(options, WEBHOOK_COMMIT))
		return;
	put_head(options, origin, "commit", ordinal, NULL, out);
	appendStringInfo(out, ",\"flags\":0,\"end_lsn\":\"%X/%X\"", LSN_FORMAT_ARGS(origin->end_lsn));
	close_event(options, out);
}

void
webhook_encode_truncate(const EtlOptions *options, const EtlOrigin *origin, uint64 ordinal,
						int nshapes, const EtlShape *const *shapes,
						bool cascade, bool restart_identity, StringInfo out)
{
	if (!webhook_wants(options, WEBHOOK_TRUNCATE))
		return;
	put_head(options, origin, "truncate", ordinal, nshapes == 1 ? shapes[0] : NULL, out);
	appendStringInfo(out, ",\"options\":{\"cascade\":%s,\"restart_identity\":%s},\"truncated_tables\":[",
					 cascade ? "true" : "false", restart_identity ? "true" : "false");
	for (int i = 0; i < nshapes; i++)
	{
		if (i > 0)
			appendStringInfoChar(out, ',');
		put_table(out, shapes[i]);
	}
	appendStringInfoChar(out, ']');
	close_event(options, out);
}

void
webhook_encode_copy_begin(const EtlOptions *options, const EtlOrigin *origin,
						  const EtlShape *shape, const char *reason, StringInfo out)
{
	if (!webhook_wants(options, WEBHOOK_COPY_BEGIN))
		return;
	put_copy_head(options, origin, "copy_begin", "begin", shape, out);
	appendStringInfo(out, ",\"reason\":\"%s\"", reason);
	close_event(options, out);
}

/* Its timestamp is the end of the copy, not its start. */
void
webhook_encode_copy_end(const EtlOptions *options, const EtlOrigin *origin,
						const EtlShape *shape, uint64 rows, StringInfo out)
{
	EtlOrigin	ended = *origin;

	if (!webhook_wants(options, WEBHOOK_COPY_END))
		return;
	ended.timestamp = GetCurrentTimestamp();
	put_copy_head(options, &ended, "copy_end", "end", shape, out);
	appendStringInfo(out, ",\"rows\":" UINT64_FORMAT, rows);
	close_event(options, out);
}

/* --- relation --- */

/* ["a","b"]: columns whose position in a key is set, in the key's order. */
static void
put_key_columns(StringInfo out, const EtlShape *shape, bool primary)
{
	bool		first = true;
	int			last = 0;

	appendStringInfoChar(out, '[');
	for (;;)
	{
		const EtlColumn *next = NULL;
		int			next_position = 0;

		for (int i = 0; i < shape->ncolumns; i++)
		{
			const EtlColumn *column = &shape->columns[i];
			int			position = primary ? column->primary_position : column->key_position;

			if (position > last && (next == NULL || position < next_position))
			{
				next = column;
				next_position = position;
			}
		}
		if (next == NULL)
			break;
		last = next_position;
		if (!first)
			appendStringInfoChar(out, ',');
		first = false;
		etl_json_string(out, next->name);
	}
	appendStringInfoChar(out, ']');
}

static const char *
identity_name(char identity)
{
	switch (identity)
	{
		case REPLICA_IDENTITY_NOTHING:
			return "nothing";
		case REPLICA_IDENTITY_FULL:
			return "full";
		case REPLICA_IDENTITY_INDEX:
			return "index";
		default:
			return "default";
	}
}

static void
put_column(StringInfo out, const EtlColumn *column, const EtlOptions *options)
{
	EtlJsonOptions json = webhook_json_options(options, column->name);
	EtlJsonCodec *codec = etl_json_codec(column->type, column->typmod, &json);

	appendStringInfo(out, "{\"attnum\":%d,\"name\":", column->attnum);
	etl_json_string(out, column->name);
	appendStringInfoString(out, ",\"type\":");
	etl_json_string(out, column->type_name);
	appendStringInfo(out, ",\"type_oid\":%u,\"typmod\":%d,\"nullable\":%s,\"default\":",
					 column->type, column->typmod, column->nullable ? "true" : "false");
	if (column->default_expr)
		etl_json_string(out, column->default_expr);
	else
		appendStringInfoString(out, "null");
	appendStringInfo(out, ",\"generated\":%s,\"json\":\"%s\"}",
					 column->generated ? "\"stored\"" : "null", etl_json_kind(codec));
}

static void
put_change(StringInfo out, const EtlShapeChange *change, const EtlShape *previous)
{
	appendStringInfo(out, "{\"change\":\"%s\"", etl_shape_change_name(change->kind));
	if (change->kind == ETL_SHAPE_RENAME_TABLE && previous)
	{
		appendStringInfoString(out, ",\"old_schema\":");
		etl_json_string(out, previous->schema_name);
		appendStringInfoString(out, ",\"old_name\":");
		etl_json_string(out, previous->table_name);
	}
	else if (change->attnum > 0)
	{
		appendStringInfo(out, ",\"attnum\":%d", change->attnum);
		if (change->column)
		{
			appendStringInfoString(out, ",\"column\":");
			etl_json_string(out, change->column);
		}
		if (change->old_column)
		{
			appendStringInfoString(out, ",\"old_column\":");
			etl_json_string(out, change->old_column);
		}
	}
	appendStringInfoChar(out, '}');
}

static void
put_schema(StringInfo out, const EtlShape *shape, const EtlShape *previous, const EtlOptions *options)
{
	ListCell   *lc;
	bool		first = true;

	appendStringInfo(out, ",\"replicated_table_schema\":{\"lsn\":\"%X/%X\",\"replica_identity\":\"%s\"",
					 LSN_FORMAT_ARGS(shape->lsn), identity_name(shape->replica_identity));
	appendStringInfoString(out, ",\"identity_columns\":");
	put_key_columns(out, shape, false);
	appendStringInfoString(out, ",\"primary_key\":");
	put_key_columns(out, shape, true);
	appendStringInfoString(out, ",\"columns\":[");
	for (int i = 0; i < shape->ncolumns; i++)
	{
		if (i > 0)
			appendStringInfoChar(out, ',');
		put_column(out, &shape->columns[i], options);
	}
	appendStringInfoString(out, "]},\"changes\":[");
	foreach(lc, etl_shape_diff(previous, shape))
	{
		if (!first)
			appendStringInfoChar(out, ',');
		first = false;
		put_change(out, lfirst(lc), previous);
	}
	appendStringInfoChar(out, ']');
}

void
webhook_encode_relation(const EtlOptions *options, const EtlOrigin *origin,
						const EtlShape *shape, const EtlShape *previous, StringInfo out)
{
	MemoryContext context;
	MemoryContext old;
	char		id[WEBHOOK_ID_LEN];

	if (!webhook_wants(options, WEBHOOK_RELATION))
		return;

	/* codecs are made only to ask what they are */
	context = AllocSetContextCreate(CurrentMemoryContext, "etl relation event", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);

	snprintf(id, sizeof(id), "%u/relation/%u/%u/%u", (unsigned) origin->epoch,
			 shape->relid, shape->generation, shape->version);
	open_event(options, origin, "relation", id, shape, shape, NULL, out);
	put_origin(out, origin);
	appendStringInfo(out, ",\"commit_lsn\":null,\"tx_ordinal\":null,\"sequence_key\":null"
					 ",\"timestamp\":\"%s\",\"xid\":null", webhook_origin(origin)->time.data);
	webhook_table(out, shape);
	put_schema(out, shape, previous, options);
	close_event(options, out);

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}
