/*-------------------------------------------------------------------------
 *
 * readback.c
 *	  Unchanged out-of-line values, asked back from the destination.
 *
 * The last resort of toast.h, for kinds with ETL_CAN_READ_BACK: everything
 * before the rows in question is durable, so what the destination has under
 * their keys is what they had before, unless it is newer than they are.  Then
 * they are a replay: the destination keeps the newer row, whatever fills the
 * older one.
 *
 * A row that is not found, or whose value the destination does not know, parks
 * its table: never NULL, never a guess.  So does a destination that cannot be
 * asked about the table at all.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "server/worker.h"
#include "writer/toast.h"

/* One call of read_back(): the incomplete rows of one generation. */
typedef struct ReadBack
{
	EtlWriter  *writer;
	EtlGeneration *generation;
	EtlCodec   *codec;
	int			ncolumns;
	AttrNumber *attnums;		/* columns that may be missing */
	EtlItem   **items;			/* by index of the call */
} ReadBack;

/* Does the row still lack a column? */
static bool
has_holes(const ReadBack *call, const EtlItem *item)
{
	for (int i = 0; i < call->ncolumns; i++)
	{
		const char *value;
		uint32		len;

		if (!call->writer->config->routine->extract(call->codec, item->data, item->len,
													call->attnums[i], &value, &len))
			return true;
	}
	return false;
}

/* The destination has the row: fill the holes of ours. */
static void
found_row(void *arg, int row, EtlPosition version, const char *const *values, const uint32 *lens)
{
	ReadBack   *call = arg;
	MemoryContext context = MemoryContextSwitchTo(EtlWorkerContext);
	const EtlDestinationRoutine *routine = call->writer->config->routine;
	EtlItem    *item = call->items[row];
	AttrNumber *attnums = palloc(sizeof(AttrNumber) * call->ncolumns);
	const char **fill = palloc(sizeof(char *) * call->ncolumns);
	uint32	   *fill_lens = palloc(sizeof(uint32) * call->ncolumns);
	int			n = 0;
	StringInfoData out;

	for (int i = 0; i < call->ncolumns; i++)
	{
		const char *known;
		uint32		len;

		if (values[i] == NULL ||
			routine->extract(call->codec, item->data, item->len, call->attnums[i], &known, &len))
			continue;
		attnums[n] = call->attnums[i];
		fill[n] = values[i];
		fill_lens[n++] = lens[i];
	}
	if (n > 0)
	{
		initStringInfo(&out);
		if (routine->splice(call->codec, item->data, item->len, n, attnums, fill, fill_lens, &out))
		{
			if (item->flags & ETL_ITEM_FILLED)
				pfree(unconstify(char *, item->data));
			item->data = out.data;
			item->len = out.len;
			item->flags |= ETL_ITEM_FILLED;
		}
		else
			pfree(out.data);
	}
	pfree(attnums);
	pfree(fill);
	pfree(fill_lens);
	if (!has_holes(call, item))
		item->flags &= ~ETL_ITEM_INCOMPLETE;
	MemoryContextSwitchTo(context);
}

/* Columns of the shape that can arrive as unchanged TOAST. */
static void
list_columns(ReadBack *call)
{
	const EtlShape *shape = call->generation->shape;

	call->attnums = palloc(sizeof(AttrNumber) * Max(shape->ncolumns, 1));
	call->ncolumns = 0;
	for (int i = 0; i < shape->ncolumns; i++)
		if (shape->columns[i].toastable)
			call->attnums[call->ncolumns++] = shape->columns[i].attnum;
}

/*
 * The row as the destination is asked about it: of a row that comes under a new
 * key, the deletion before it, which has the old one.
 */
static const EtlItem *
former_item(const EtlItem *items, int i)
{
	if (items[i].sub > 0 && i > 0 && items[i - 1].op == ETL_DELETE &&
		items[i - 1].commit_lsn == items[i].commit_lsn && items[i - 1].ordinal == items[i].ordinal)
		return &items[i - 1];
	return &items[i];
}

/*
 * Ask about the generation's incomplete rows, of former keys or of their own.
 * Returns how many there were.
 */
static int
ask(ReadBack *call, EtlItem *items, int nitems, bool former, EtlResult *result)
{
	EtlWriter  *writer = call->writer;
	EtlItem    *rows = palloc(sizeof(EtlItem) * nitems);
	int			n = 0;

	for (int i = 0; i < nitems; i++)
	{
		const EtlItem *row;

		if (!(items[i].flags & ETL_ITEM_INCOMPLETE) || items[i].table != call->generation->index)
			continue;
		row = former_item(items, i);
		if (former && row == &items[i])
			continue;
		rows[n] = former ? *row : items[i];
		call->items[n++] = &items[i];
	}
	if (n > 0)
		writer->config->routine->read_back(writer->connection, call->generation->table, n, rows,
										   call->ncolumns, call->attnums, found_row, call, result);
	pfree(rows);
	return n;
}

/* The table cannot go on from its first row that is incomplete. */
static void
give_up(EtlWriter *writer, EtlGeneration *generation, const EtlItem *items, int nitems,
		int sqlstate, const char *message, const char *hint)
{
	for (int i = 0; i < nitems; i++)
	{
		if (!(items[i].flags & ETL_ITEM_INCOMPLETE) || items[i].table != generation->index)
			continue;
		etl_writer_callbacks.park(writer, generation->index, sqlstate, message, hint,
								  items[i].commit_lsn, items[i].ordinal);
		return;
	}
}

/* All incomplete rows of one generation among the items. */
static void
read_back_generation(EtlWriter *writer, EtlGeneration *generation, EtlItem *items, int nitems,
					 EtlResult *result)
{
	ReadBack	call = {.writer = writer,.generation = generation};
	int			n = 0;

	result->status = ETL_DONE;
	call.codec = etl_toast_codec(writer, generation);
	call.items = palloc(sizeof(EtlItem *) * nitems);
	if (call.codec)
	{
		list_columns(&call);
		n = ask(&call, items, nitems, true, result);
		if (result->status == ETL_DONE)
			n = ask(&call, items, nitems, false, result);
		pfree(call.attnums);
	}
	pfree(call.items);
	if (result->status == ETL_TOO_LARGE && n == 1)
		result->status = ETL_DONE;	/* and it stays as it is */
	if (result->status == ETL_DONE)
		give_up(writer, generation, items, nitems, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
				ETL_INCOMPLETE_MESSAGE, ETL_INCOMPLETE_HINT);
	else if (result->status == ETL_PARK || result->status == ETL_REJECTED)
	{
		give_up(writer, generation, items, nitems, result->sqlstate, result->message, result->hint);
		result->status = ETL_DONE;
	}
}

void
etl_read_back(void *arg, EtlItem *items, int nitems, EtlResult *result)
{
	EtlWriter  *writer = arg;
	MemoryContext context = MemoryContextSwitchTo(EtlWorkerContext);

	result->status = ETL_DONE;
	for (int i = 0; i < nitems && result->status == ETL_DONE; i++)
	{
		EtlGeneration *generation;
		uint32		abilities;

		if (!(items[i].flags & ETL_ITEM_INCOMPLETE) || items[i].table == ETL_NO_TABLE)
			continue;
		generation = writer->generations[items[i].table];
		abilities = etl_table_abilities(writer->config->routine, generation->table->options);
		if (generation->out || (abilities & ETL_TAKES_PARTIAL) || !(abilities & ETL_CAN_READ_BACK))
			continue;
		read_back_generation(writer, generation, items, nitems, result);
	}
	MemoryContextSwitchTo(context);
}
