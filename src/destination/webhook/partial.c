/*-------------------------------------------------------------------------
 *
 * partial.c
 *	  Completing encoded rows whose unchanged out-of-line values were missing.
 *
 * The bytes of an event are all there is: extract() finds a column's text in
 * an earlier event of the same row, splice() writes a later one again with
 * columns filled in at their places.  Everything else is copied as it is.
 * Where inserts or deletes are not sent, an earlier event of the same key may
 * be of another row, so nothing is found.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "destination/webhook/webhook.h"

/* A stretch of an encoded event. */
typedef struct Piece
{
	const char *data;
	uint32		len;
} Piece;

static bool
find(const char *json, uint32 len, const char *name, Piece *piece)
{
	return etl_json_member(json, len, name, strlen(name), &piece->data, &piece->len);
}

/* The event object inside its envelope, if there is one. */
static bool
find_event(EtlCodec *codec, const char *row, uint32 len, Piece *event)
{
	if (codec->format == WEBHOOK_CLOUDEVENTS)
		return find(row, len, "\"data\"", event);
	event->data = row;
	event->len = len;
	return true;
}

static bool
find_row(EtlCodec *codec, const char *row, uint32 len, Piece *event, Piece *found)
{
	return find_event(codec, row, len, event) &&
		(find(event->data, event->len, "\"table_row\"", found) ||
		 find(event->data, event->len, "\"updated_table_row\"", found));
}

/* Value of a column in a row object. */
static bool
find_column(const WebhookColumn *column, const Piece *row, Piece *value)
{
	/* the member is ,"name": */
	return etl_json_member(row->data, row->len, column->member + 1, column->member_len - 2,
						   &value->data, &value->len);
}

bool
webhook_extract(EtlCodec *codec, const char *row, uint32 len, AttrNumber attnum,
				const char **value, uint32 *value_len)
{
	Piece		event;
	Piece		object;
	Piece		found;

	if (!codec->wanted[WEBHOOK_INSERT] || !codec->wanted[WEBHOOK_DELETE] ||
		!find_row(codec, row, len, &event, &object))
		return false;
	for (int i = 0; i < codec->ncolumns; i++)
	{
		if (codec->columns[i].attnum != attnum)
			continue;
		if (!find_column(&codec->columns[i], &object, &found))
			return false;
		*value = found.data;
		*value_len = found.len;
		return true;
	}
	return false;
}

/* Append the row object with the given columns; the still missing ones go to codec->missing. */
static void
put_row(EtlCodec *codec, const Piece *row, int ncolumns, const AttrNumber *attnums,
		const char *const *values, const uint32 *value_lens, StringInfo out)
{
	bool		first = true;

	resetStringInfo(&codec->missing);
	appendStringInfoChar(out, '{');
	for (int i = 0; i < codec->ncolumns; i++)
	{
		const WebhookColumn *column = &codec->columns[i];
		Piece		value = {NULL, 0};

		for (int j = 0; j < ncolumns; j++)
		{
			if (attnums[j] == column->attnum)
			{
				value.data = values[j];
				value.len = value_lens[j];
			}
		}
		if (value.data == NULL && !find_column(column, row, &value))
		{
			appendBinaryStringInfo(&codec->missing, column->member + (codec->missing.len == 0),
								   column->member_len - 1 - (codec->missing.len == 0));
			continue;
		}
		appendBinaryStringInfo(out, column->member + first, column->member_len - first);
		first = false;
		appendBinaryStringInfo(out, value.data, value.len);
	}
	appendStringInfoChar(out, '}');
}

bool
webhook_splice(EtlCodec *codec, const char *row, uint32 len, int ncolumns,
			   const AttrNumber *attnums, const char *const *values,
			   const uint32 *value_lens, StringInfo out)
{
	const char *end = row + len;
	const char *at = row;
	Piece		event;
	Piece		object;
	Piece		kind;
	Piece		missing;

	if (!find_row(codec, row, len, &event, &object) ||
		!find(event.data, event.len, "\"missing_columns\"", &missing))
		return false;

	appendBinaryStringInfo(out, at, object.data - at);
	put_row(codec, &object, ncolumns, attnums, values, value_lens, out);
	at = object.data + object.len;

	if (find(event.data, event.len, "\"updated_table_row_kind\"", &kind))
	{
		appendBinaryStringInfo(out, at, kind.data - at);
		appendStringInfoString(out, codec->missing.len > 0 ? "\"partial\"" : "\"full\"");
		at = kind.data + kind.len;
	}

	appendBinaryStringInfo(out, at, missing.data - at);
	appendStringInfoChar(out, '[');
	appendBinaryStringInfo(out, codec->missing.data, codec->missing.len);
	appendStringInfoChar(out, ']');
	at = missing.data + missing.len;

	appendBinaryStringInfo(out, at, end - at);
	return true;
}
