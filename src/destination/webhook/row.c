/*-------------------------------------------------------------------------
 *
 * row.c
 *	  Row changes of the webhook destination: insert, update, delete.
 *
 * Whatever does not change between rows of a table (names, escaped and with
 * their colons) or between rows of a transaction (webhook_origin()) is made
 * once; a row costs its values and a few copies.
 *
 * "key" has the values by which a receiver finds the row that it has: old
 * ones for update and delete, new ones for insert.
 *
 * A column that is not known is absent and listed in missing_columns.  That
 * can only be an unchanged value stored out of line; if the old row has it,
 * it is known after all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"
#include "destination/webhook/webhook.h"

static int
compare_keys(const void *a, const void *b)
{
	const WebhookColumn *left = *(WebhookColumn *const *) a;
	const WebhookColumn *right = *(WebhookColumn *const *) b;

	return left->key_position - right->key_position;
}

static void
create_column(WebhookColumn *column, const EtlColumn *source, const EtlOptions *options)
{
	EtlJsonOptions json = webhook_json_options(options, source->name);
	StringInfoData member;

	column->attnum = source->attnum;
	column->key_position = source->key_position;
	column->toastable = source->toastable;
	column->codec = etl_json_codec(source->type, source->typmod, &json);

	initStringInfo(&member);
	appendStringInfoChar(&member, ',');
	etl_json_string(&member, source->name);
	appendStringInfoChar(&member, ':');
	column->member = member.data;
	column->member_len = member.len;
}

/* "target" does not matter: receivers have no schema of ours. */
EtlCodec *
webhook_codec_create(const EtlShape *shape, const EtlTarget *target, const EtlOptions *options)
{
	EtlCodec   *codec = palloc0_object(EtlCodec);

	codec->context = CurrentMemoryContext;
	codec->format = webhook_format(options);
	for (int i = 0; i < WEBHOOK_NEVENTS; i++)
		codec->wanted[i] = webhook_wants(options, i);
	codec->shape = shape;

	initStringInfo(&codec->table);
	webhook_table(&codec->table, shape);
	initStringInfo(&codec->subject);
	webhook_subject(&codec->subject, shape);

	codec->ncolumns = shape->ncolumns;
	codec->columns = palloc0_array(WebhookColumn, shape->ncolumns + 1);
	codec->keys = palloc0_array(WebhookColumn *, shape->ncolumns + 1);
	for (int i = 0; i < shape->ncolumns; i++)
	{
		create_column(&codec->columns[i], &shape->columns[i], options);
		if (shape->columns[i].key_position > 0)
			codec->keys[codec->nkeys++] = &codec->columns[i];
	}
	qsort(codec->keys, codec->nkeys, sizeof(WebhookColumn *), compare_keys);

	initStringInfo(&codec->copy_id);
	initStringInfo(&codec->copy_end);
	initStringInfo(&codec->key);
	initStringInfo(&codec->other_key);
	initStringInfo(&codec->missing);
	return codec;
}

/* Every value has a JSON form, so no policy is ever asked. */
void
webhook_describe_column(const EtlShape *shape, const EtlColumn *column,
						const EtlOptions *options, EtlColumnPlan *plan)
{
	EtlJsonOptions json = webhook_json_options(options, column->name);

	memset(plan, 0, sizeof(*plan));
	plan->name = column->name;
	plan->type = etl_json_kind(etl_json_codec(column->type, column->typmod, &json));
}

/*
 * Append the column's value in the slot.  "*deviated" (or NULL) is set when it
 * is an array whose bounds made it a text.
 */
static inline void
put_value(const WebhookColumn *column, TupleTableSlot *slot, StringInfo out, bool *deviated)
{
	int			i = column->attnum - 1;

	if (i >= slot->tts_nvalid || slot->tts_isnull[i])
		appendBinaryStringInfo(out, "null", 4);
	else
		etl_json_value(column->codec, slot->tts_values[i], out, deviated);
}

/* Is the column's value in the new row a mere pointer to what it was before? */
static inline bool
is_unknown(const WebhookColumn *column, const EtlChange *change)
{
	TupleTableSlot *slot = change->new_row;
	int			i = column->attnum - 1;

	if (!column->toastable)
		return false;
	if (change->missing && bms_is_member(column->attnum, change->missing))
		return true;

	/* a copy may read what is stored out of line, the stream never */
	return change->origin->phase == ETL_PHASE_STREAM &&
		i < slot->tts_nvalid && !slot->tts_isnull[i] &&
		VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(slot->tts_values[i]));
}

/* Does the old row tell what the column is? */
static inline bool
old_row_has(const WebhookColumn *column, const EtlChange *change)
{
	return change->old_kind == ETL_OLD_FULL ||
		(change->old_kind == ETL_OLD_KEY && column->key_position > 0);
}

/*
 * Append the key's values as object or array, from the old row or from the
 * new one.
 */
static void
put_key(EtlCodec *codec, const EtlChange *change, bool old, bool object, StringInfo out)
{
	appendStringInfoChar(out, object ? '{' : '[');
	for (int i = 0; i < codec->nkeys; i++)
	{
		const WebhookColumn *column = codec->keys[i];
		TupleTableSlot *slot = old ? change->old_row : change->new_row;

		if (object)
			appendBinaryStringInfo(out, column->member + (i == 0), column->member_len - (i == 0));
		else if (i > 0)
			appendStringInfoChar(out, ',');

		if (!old && is_unknown(column, change))
		{
			if (!old_row_has(column, change))
			{
				appendBinaryStringInfo(out, "null", 4);
				continue;
			}
			slot = change->old_row;
		}
		put_value(column, slot, out, NULL);
	}
	appendStringInfoChar(out, object ? '}' : ']');
}

/*
 * The server also logs the old key when an unchanged key is stored out of
 * line.  Then there is nothing to tell: the old row goes out only if the key
 * differs.
 */
static bool
key_differs(EtlCodec *codec, const EtlChange *change)
{
	resetStringInfo(&codec->key);
	resetStringInfo(&codec->other_key);
	put_key(codec, change, true, true, &codec->key);
	put_key(codec, change, false, true, &codec->other_key);
	return codec->key.len != codec->other_key.len ||
		memcmp(codec->key.data, codec->other_key.data, codec->key.len) != 0;
}

/* ,"<member>":{...} of the new row; fills codec->missing. */
static void
put_new_row(EtlCodec *codec, const EtlChange *change, StringInfo out)
{
	bool		first = true;

	resetStringInfo(&codec->missing);
	appendStringInfoChar(out, '{');
	for (int i = 0; i < codec->ncolumns; i++)
	{
		const WebhookColumn *column = &codec->columns[i];
		TupleTableSlot *slot = change->new_row;
		bool		deviated = false;

		if (is_unknown(column, change))
		{
			if (!old_row_has(column, change))
			{
				/* the member without its colon */
				appendBinaryStringInfo(&codec->missing, column->member + (codec->missing.len == 0),
									   column->member_len - 1 - (codec->missing.len == 0));
				continue;
			}
			slot = change->old_row;
		}
		appendBinaryStringInfo(out, column->member + first, column->member_len - first);
		first = false;
		put_value(column, slot, out, &deviated);
		if (unlikely(deviated))
			etl_adjusted_note(change->adjusted, column->attnum);
	}
	appendStringInfoChar(out, '}');
}

/* ,"old_table_row":...,"old_table_row_kind":... */
static void
put_old_row(EtlCodec *codec, const EtlChange *change, EtlOldKind kind, StringInfo out)
{
	bool		first = true;

	if (kind == ETL_OLD_NONE)
	{
		appendStringInfoString(out, ",\"old_table_row\":null,\"old_table_row_kind\":null");
		return;
	}

	appendStringInfoString(out, ",\"old_table_row\":{");
	for (int i = 0; i < codec->ncolumns; i++)
	{
		const WebhookColumn *column = &codec->columns[i];

		if (kind == ETL_OLD_KEY && column->key_position == 0)
			continue;
		appendBinaryStringInfo(out, column->member + first, column->member_len - first);
		first = false;
		put_value(column, change->old_row, out, NULL);
	}
	appendStringInfo(out, "},\"old_table_row_kind\":\"%s\"", kind == ETL_OLD_FULL ? "full" : "key");
}

static void
put_missing(EtlCodec *codec, StringInfo out)
{
	appendStringInfoString(out, ",\"missing_columns\":[");
	appendBinaryStringInfo(out, codec->missing.data, codec->missing.len);
	appendStringInfoChar(out, ']');
}

/* What the ids and the ends of all rows of a copy share. */
static void
start_copy(EtlCodec *codec, const EtlChange *change)
{
	codec->copy = change->copy;
	resetStringInfo(&codec->copy_id);
	appendStringInfo(&codec->copy_id, "%u/copy/%u/%u/", (unsigned) change->origin->epoch,
					 codec->shape->relid, change->copy);
	resetStringInfo(&codec->copy_end);
	appendStringInfo(&codec->copy_end, ",\"copy\":%u", change->copy);
}

/* The event's id; "sequence" is that of a change in the stream. */
static void
make_id(EtlCodec *codec, const EtlChange *change, const char *sequence, char *id)
{
	if (change->origin->phase == ETL_PHASE_COPY)
	{
		if (codec->copy_id.len == 0 || codec->copy != change->copy)
			start_copy(codec, change);
		memcpy(id, codec->copy_id.data, codec->copy_id.len);
		*webhook_hex(id + codec->copy_id.len, change->row) = '\0';
	}
	else
	{
		id += pg_ultoa_n(change->origin->epoch, id);
		*id++ = '/';
		strcpy(id, sequence);
	}
}

/* Everything up to and with the table. */
static void
put_head(EtlCodec *codec, const EtlChange *change, const char *event, bool key_from_old, StringInfo out)
{
	const EtlOrigin *origin = change->origin;
	const WebhookOrigin *text = webhook_origin(origin);
	bool		copied = origin->phase == ETL_PHASE_COPY;
	char		sequence[40];
	char		id[WEBHOOK_ID_LEN];

	webhook_sequence(sequence, origin->commit_lsn, copied ? 0 : change->position.ordinal);
	make_id(codec, change, sequence, id);

	if (codec->format == WEBHOOK_CLOUDEVENTS)
	{
		StringInfo	partition = &codec->other_key;

		resetStringInfo(partition);
		appendStringInfo(partition, "%u:", codec->shape->relid);
		put_key(codec, change, key_from_old, false, partition);
		webhook_envelope(out, origin, event, id, codec->shape, codec->subject.data,
						 sequence, partition);
	}

	appendStringInfoString(out, "{\"event\":\"");
	appendStringInfoString(out, event);
	appendStringInfoString(out, "\",\"id\":\"");
	appendStringInfoString(out, id);
	appendStringInfoChar(out, '"');
	appendBinaryStringInfo(out, text->before.data, text->before.len);
	if (copied)
		appendBinaryStringInfo(out, "null", 4);
	else
	{
		char		ordinal[24];

		appendBinaryStringInfo(out, ordinal, pg_ulltoa_n(change->position.ordinal, ordinal));
	}
	appendStringInfoString(out, ",\"sequence_key\":\"");
	appendBinaryStringInfo(out, sequence, 33);
	appendStringInfoChar(out, '"');
	appendBinaryStringInfo(out, text->after.data, text->after.len);
	appendBinaryStringInfo(out, codec->table.data, codec->table.len);
}

bool
webhook_encode_row(EtlCodec *codec, const EtlChange *change, StringInfo out, EtlValueError *error)
{
	EtlOldKind	old_kind = change->old_row ? change->old_kind : ETL_OLD_NONE;
	bool		key_from_old = change->op != ETL_INSERT && old_kind != ETL_OLD_NONE;
	WebhookEvent event = change->op == ETL_INSERT ? WEBHOOK_INSERT :
		change->op == ETL_UPDATE ? WEBHOOK_UPDATE : WEBHOOK_DELETE;

	if (!codec->wanted[event])
		return true;

	if (event == WEBHOOK_UPDATE && old_kind == ETL_OLD_KEY && !key_differs(codec, change))
		old_kind = ETL_OLD_NONE;

	put_head(codec, change, webhook_event_names[event], key_from_old, out);

	appendStringInfoString(out, ",\"key\":");
	if (codec->nkeys == 0 || (!key_from_old && change->new_row == NULL))
		appendBinaryStringInfo(out, "null", 4);
	else
		put_key(codec, change, key_from_old, true, out);

	switch (event)
	{
		case WEBHOOK_INSERT:
			appendStringInfoString(out, ",\"table_row\":");
			put_new_row(codec, change, out);
			put_missing(codec, out);
			break;
		case WEBHOOK_UPDATE:
			appendStringInfoString(out, ",\"updated_table_row\":");
			put_new_row(codec, change, out);
			appendStringInfo(out, ",\"updated_table_row_kind\":\"%s\"",
							 codec->missing.len > 0 ? "partial" : "full");
			put_missing(codec, out);
			put_old_row(codec, change, old_kind, out);
			break;
		default:
			put_old_row(codec, change, old_kind, out);
			break;
	}

	if (change->origin->phase == ETL_PHASE_COPY)
		appendBinaryStringInfo(out, codec->copy_end.data, codec->copy_end.len);
	appendStringInfoChar(out, '}');
	if (codec->format == WEBHOOK_CLOUDEVENTS)
		appendStringInfoChar(out, '}');
	return true;
}
