/*-------------------------------------------------------------------------
 *
 * row.c
 *	  How the kinds of this extension encode rows.
 *
 * A head, then for each column of the destination its attnum, a length and
 * the text of the value.  Lengths below zero say NULL or missing, so rows can
 * be taken apart and completed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "row.h"

#define IS_NULL		(-1)
#define IS_MISSING	(-2)

typedef struct RowColumn
{
	AttrNumber	attnum;
	bool		known;			/* the shape has it */
	bool		is_key;
	FmgrInfo	output;
} RowColumn;

struct EtlCodec
{
	int			ncolumns;
	RowColumn  *columns;
	MemoryContext scratch;
};

static const EtlColumn *
find_column(const EtlShape *shape, AttrNumber attnum)
{
	for (int i = 0; i < shape->ncolumns; i++)
		if (shape->columns[i].attnum == attnum)
			return &shape->columns[i];
	return NULL;
}

EtlCodec *
row_codec_create(const EtlShape *shape, const EtlTarget *target, const EtlOptions *options)
{
	EtlCodec   *codec = palloc0(sizeof(EtlCodec));

	codec->ncolumns = target ? target->ncolumns : shape->ncolumns;
	codec->columns = palloc0(sizeof(RowColumn) * Max(codec->ncolumns, 1));
	codec->scratch = AllocSetContextCreate(CurrentMemoryContext, "etl_test row",
										   ALLOCSET_SMALL_SIZES);
	for (int i = 0; i < codec->ncolumns; i++)
	{
		RowColumn  *column = &codec->columns[i];
		const EtlColumn *source;

		column->attnum = target ? target->columns[i].attnum : shape->columns[i].attnum;
		source = find_column(shape, column->attnum);
		if (source != NULL)
		{
			Oid			output;
			bool		is_varlena;

			column->known = true;
			column->is_key = source->key_position > 0;
			getTypeOutputInfo(source->type, &output, &is_varlena);
			fmgr_info(output, &column->output);
		}
	}
	return codec;
}

static void
put_value(StringInfo out, AttrNumber attnum, int32 len, const char *value)
{
	appendBinaryStringInfo(out, (const char *) &attnum, sizeof(attnum));
	appendBinaryStringInfo(out, (const char *) &len, sizeof(len));
	if (len > 0)
		appendBinaryStringInfo(out, value, len);
}

bool
row_encode(EtlCodec *codec, const EtlChange *change, StringInfo out, EtlValueError *error)
{
	bool		is_delete = change->op == ETL_DELETE;
	TupleTableSlot *slot = is_delete ? change->old_row : change->new_row;
	RowHead		head;

	memset(&head, 0, sizeof(head));
	head.position = change->position;
	head.op = change->op;
	head.phase = change->origin->phase;
	head.ncolumns = codec->ncolumns;
	appendBinaryStringInfo(out, (const char *) &head, sizeof(head));

	for (int i = 0; i < codec->ncolumns; i++)
	{
		RowColumn  *column = &codec->columns[i];
		MemoryContext old;
		char	   *text;

		if (!is_delete && bms_is_member(column->attnum, change->missing))
		{
			put_value(out, column->attnum, IS_MISSING, NULL);
			continue;
		}
		if (slot == NULL || !column->known || slot->tts_isnull[column->attnum - 1] ||
			(is_delete && !column->is_key))
		{
			put_value(out, column->attnum, IS_NULL, NULL);
			continue;
		}
		old = MemoryContextSwitchTo(codec->scratch);
		text = OutputFunctionCall(&column->output, slot->tts_values[column->attnum - 1]);
		MemoryContextSwitchTo(old);
		put_value(out, column->attnum, strlen(text), text);
		MemoryContextReset(codec->scratch);
	}
	return true;
}

void
row_head(const char *row, RowHead *head)
{
	memcpy(head, row, sizeof(RowHead));
}

/* Step over one value: its attnum and length; returns what follows it. */
static const char *
next_value(const char *p, AttrNumber *attnum, int32 *len)
{
	memcpy(attnum, p, sizeof(*attnum));
	p += sizeof(*attnum);
	memcpy(len, p, sizeof(*len));
	p += sizeof(*len);
	return *len > 0 ? p + *len : p;
}

/* The value with its length before it, so that NULL is a value too. */
bool
row_extract(EtlCodec *codec, const char *row, uint32 len, AttrNumber wanted,
			const char **value, uint32 *value_len)
{
	const char *p = row + sizeof(RowHead);

	while (p < row + len)
	{
		const char *start = p;
		AttrNumber	attnum;
		int32		size;

		p = next_value(p, &attnum, &size);
		if (attnum != wanted)
			continue;
		*value = start + sizeof(attnum);
		*value_len = p - *value;
		return size != IS_MISSING;
	}
	return false;
}

bool
row_splice(EtlCodec *codec, const char *row, uint32 len, int ncolumns,
		   const AttrNumber *attnums, const char *const *values,
		   const uint32 *value_lens, StringInfo out)
{
	const char *p = row + sizeof(RowHead);
	int			filled = 0;

	appendBinaryStringInfo(out, row, sizeof(RowHead));
	while (p < row + len)
	{
		const char *start = p;
		AttrNumber	attnum;
		int32		size;
		int			i = 0;

		p = next_value(p, &attnum, &size);
		while (i < ncolumns && attnums[i] != attnum)
			i++;
		if (i < ncolumns && size == IS_MISSING)
		{
			appendBinaryStringInfo(out, start, sizeof(attnum));
			appendBinaryStringInfo(out, values[i], value_lens[i]);
			filled++;
		}
		else
			appendBinaryStringInfo(out, start, p - start);
	}
	return filled == ncolumns;
}

void
row_json(const EtlShape *shape, const char *row, uint32 len, bool key_only, StringInfo out)
{
	const char *p = row + sizeof(RowHead);
	const char *separator = "";

	appendStringInfoChar(out, '{');
	while (p < row + len)
	{
		const EtlColumn *column;
		AttrNumber	attnum;
		int32		size;
		char	   *text;

		p = next_value(p, &attnum, &size);
		column = find_column(shape, attnum);
		if (size == IS_MISSING || column == NULL ||
			(key_only && column->key_position == 0))
			continue;
		appendStringInfoString(out, separator);
		separator = ", ";
		escape_json(out, column->name);
		appendStringInfoString(out, ": ");
		if (size == IS_NULL)
		{
			appendStringInfoString(out, "null");
			continue;
		}
		text = pnstrdup(p - size, size);
		escape_json(out, text);
		pfree(text);
	}
	appendStringInfoChar(out, '}');
}
