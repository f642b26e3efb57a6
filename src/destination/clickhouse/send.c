/*-------------------------------------------------------------------------
 *
 * send.c
 *	  Sending batches to ClickHouse.
 *
 * A batch is one INSERT into one table: a head with names and types, which
 * the server compares with what it has, and the rows as they were encoded.
 * Several tables are under way at a time, each with one batch.
 *
 * An INSERT is one block, so it is stored as a whole or not at all, and its
 * token makes a repetition harmless.  The server compares tokens only, and
 * other rows under a known token would be lost.  So the token names the batch,
 * its bounds and its length; a copied row never changes under its number, but
 * rows of the stream may be encoded anew with other options, and their
 * checksum is in the token too.
 *
 * Into an event log nothing may come twice, also after a crash, when batches
 * have other bounds.  So what is there already is asked once, and left out.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"
#include "format/rowbinary.h"

/* Beyond this the server would make more than one block of it. */
#define MOST_BYTES		(64 * 1024 * 1024)

/* ms that other tables may have to wait for the INSERTs of one. */
#define MOST_WAIT		10000

static bool
is_in_log(const ChPlace *place, uint16 epoch, const EtlItem *item)
{
	if (place == NULL || !place->skip)
		return false;
	if (epoch != place->epoch)
		return epoch < place->epoch;
	if (item->commit_lsn != place->lsn)
		return item->commit_lsn < place->lsn;
	return item->ordinal <= place->ordinal;
}

/*
 * Names and types of the columns, as RowBinaryWithNamesAndTypes begins; true
 * if there are JSON ones.
 */
static bool
put_head(StringInfo out, const EtlTable *table)
{
	bool		json = false;
	ChLayout   *layout = ch_layout(table->shape, table->options);
	int			n = layout->nparts;

	while (n >= 0x80)
	{
		etl_rowbinary_uint8(out, (n & 0x7F) | 0x80);
		n >>= 7;
	}
	etl_rowbinary_uint8(out, n);
	for (int i = 0; i < layout->nparts; i++)
		etl_rowbinary_string(out, layout->parts[i].name, strlen(layout->parts[i].name));
	for (int i = 0; i < layout->nparts; i++)
	{
		etl_rowbinary_string(out, layout->parts[i].type, strlen(layout->parts[i].type));
		json = json || strstr(layout->parts[i].type, "JSON") != NULL;
	}
	return json;
}

/* The rows that are to be sent as spans; 0 when there are none. */
static int
make_spans(const EtlBatch *batch, const ChPlace *place, EtlSpan *spans,
		   const EtlItem **first, const EtlItem **last)
{
	int			n = 0;

	*first = *last = NULL;
	for (int i = 0; i < batch->nitems; i++)
	{
		const EtlItem *item = &batch->items[i];

		if ((item->flags & ETL_ITEM_EVENT) || is_in_log(place, batch->epoch, item))
			continue;
		if (*first == NULL)
			*first = item;
		*last = item;
		if (n > 0 && spans[n - 1].data + spans[n - 1].len == item->data)
			spans[n - 1].len += item->len;
		else
		{
			spans[n].data = item->data;
			spans[n].len = item->len;
			n++;
		}
	}
	return n;
}

static char *
make_token(EtlConnection *connection, const EtlBatch *batch, const EtlItem *first,
		   const EtlItem *last, int nspans, const EtlSpan *spans)
{
	uint64		bytes = 0;
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	for (int i = 0; i < nspans; i++)
	{
		if (batch->phase == ETL_PHASE_STREAM)
			COMP_CRC32C(crc, spans[i].data, spans[i].len);
		bytes += spans[i].len;
	}
	FIN_CRC32C(crc);
	return psprintf("%s/%u/%u " UINT64_FORMAT " %u/" UINT64_FORMAT "/" UINT64_FORMAT
					"-" UINT64_FORMAT "/" UINT64_FORMAT "/%u %d " UINT64_FORMAT "/%08x",
					connection->identity, batch->table->relid, batch->table->generation,
					batch->incarnation, batch->epoch,
					(uint64) first->commit_lsn, first->ordinal,
					(uint64) last->commit_lsn, last->ordinal, last->sub,
					(int) batch->phase, bytes, crc);
}

/* Start the transfer, or set send->result. */
static void
start(EtlConnection *connection, EtlBatch *batch, ChSend *send)
{
	const EtlTable *table = batch->table;
	const ChPlace *place = NULL;
	const char *name;
	EtlSpan    *spans;
	int			nspans;
	const EtlItem *first;
	const EtlItem *last;
	StringInfoData sql;
	StringInfoData head;
	bool		json;

	if (batch->bytes > MOST_BYTES && batch->nitems > 1)
	{
		etl_result_set(&send->result, ETL_TOO_LARGE, ERRCODE_PROGRAM_LIMIT_EXCEEDED,
					   "the batch is too large for one block");
		return;
	}
	ch_need_pool(connection);
	if (!ch_need_password(connection, &send->result))
		return;
	if (batch->phase == ETL_PHASE_COPY)
		name = ch_staging_name(connection, table->relid, table->generation);
	else
	{
		place = ch_place(connection, table, &send->result);
		if (place == NULL)
			return;
		name = place->name;
	}

	spans = MemoryContextAllocHuge(CurrentMemoryContext,
								   sizeof(EtlSpan) * ((Size) batch->nitems + 1));
	nspans = make_spans(batch, place, spans + 1, &first, &last);
	if (nspans == 0)
		return;					/* done already */

	initStringInfo(&head);
	json = put_head(&head, table);
	spans[0].data = head.data;
	spans[0].len = head.len;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "INSERT INTO ");
	ch_put_table(&sql, connection, name);
	appendStringInfoString(&sql, " FORMAT RowBinaryWithNamesAndTypes");
	send->transfer = ch_start_insert(connection, sql.data, batch->phase, json,
									 make_token(connection, batch, first, last, nspans, spans + 1),
									 nspans + 1, spans);
}

void
ch_send_start(EtlConnection *connection, EtlBatch *batch)
{
	MemoryContext context = AllocSetContextCreate(connection->context, "etl clickhouse batch",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	ChSend	   *send = palloc0_object(ChSend);

	send->context = context;
	send->key.relid = batch->table->relid;
	send->key.generation = batch->table->generation;
	send->result.rejected = -1;
	send->result.retry_after = -1;
	batch->private_data = send;
	dlist_push_tail(&connection->sends, &send->node);
	connection->in_flight++;
	start(connection, batch, send);
	MemoryContextSwitchTo(old);
}

void
ch_send_poll(EtlConnection *connection, int timeout)
{
	ch_need_pool(connection);
	etl_http_poll(connection->http, timeout);
}

static bool
is_under_way(EtlConnection *connection, Oid relid)
{
	dlist_iter	iter;

	dlist_foreach(iter, &connection->sends)
	{
		ChSend	   *send = dlist_container(ChSend, node, iter.cur);

		if (send->key.relid == relid && send->transfer &&
			etl_http_response(send->transfer) == NULL)
			return true;
	}
	return false;
}

/*
 * The latch is reset here, for else the waits would be no waits; it is set
 * again at the end, because what it was set for is the caller's to find out.
 */
bool
ch_send_wait(EtlConnection *connection, Oid relid, EtlResult *result)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), MOST_WAIT);
	bool		latch_was_set = false;
	bool		waits;

	while ((waits = is_under_way(connection, relid)) && !ch_must_stop() &&
		   GetCurrentTimestamp() < end)
	{
		etl_http_poll(connection->http, 100);
		if (MyLatch->is_set)
		{
			latch_was_set = true;
			ResetLatch(MyLatch);
		}
	}
	if (latch_was_set)
		SetLatch(MyLatch);
	if (waits)
		etl_result_set(result, ETL_RETRY, ERRCODE_OBJECT_IN_USE,
					   "rows of the table are still on their way to ClickHouse");
	return !waits;
}

void
ch_send_result(EtlConnection *connection, EtlBatch *batch, EtlResult *result)
{
	ChSend	   *send = batch->private_data;
	const EtlHttpResponse *response;
	int			code;

	if (send->transfer == NULL)
	{
		*result = send->result;
		return;
	}
	response = etl_http_response(send->transfer);
	if (response == NULL)
	{
		result->status = ETL_PENDING;
		return;
	}
	code = ch_classify(response, CH_INSERT, result);
	ch_note_refusal(connection, result);
	if (result->status == ETL_REJECTED && batch->nitems == 1)
		result->rejected = 0;
	if (code == CH_UNKNOWN_TABLE)
		ch_forget_place(connection, send->key.relid, send->key.generation);
}

void
ch_send_finish(EtlConnection *connection, EtlBatch *batch)
{
	ChSend	   *send = batch->private_data;

	if (send == NULL)
		return;
	batch->private_data = NULL;
	if (connection->http && send->transfer)
		etl_http_finish(send->transfer);
	dlist_delete(&send->node);
	connection->in_flight--;
	MemoryContextDelete(send->context);
}
