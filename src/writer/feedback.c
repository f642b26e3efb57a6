/*-------------------------------------------------------------------------
 *
 * feedback.c
 *	  What the sender tells the writer: refused, in trouble, durable.
 *
 * Nothing here opens a bracket: what must be stored goes into the list of
 * things to store.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "server/worker.h"
#include "writer/toast.h"
#include "writer/writer.h"

static void
refuse(EtlWriter *writer, EtlGeneration *generation, int sqlstate, const char *message,
	   const char *hint, XLogRecPtr lsn, uint64 ordinal)
{
	if (generation->out)
		return;
	if (sqlstate == ERRCODE_UNDEFINED_TABLE && etl_writer_missing(writer, generation))
		return;
	if (generation->on_error == ETL_ON_ERROR_STOP)
	{
		etl_writer_stop_at(writer, generation, sqlstate, message, hint, lsn, ordinal);
		etl_sender_halt(writer->sender);
	}
	else
		etl_writer_park(writer, generation, NULL, 0, sqlstate, message, hint, lsn, ordinal);
}

static void
sender_park(void *arg, uint32 table, int sqlstate, const char *message, const char *hint,
			XLogRecPtr lsn, uint64 ordinal)
{
	EtlWriter  *writer = arg;
	ListCell   *lc;

	if (table != ETL_NO_TABLE)
	{
		refuse(writer, writer->generations[table], sqlstate, message, hint, lsn, ordinal);
		return;
	}
	foreach(lc, writer->truncates)
	{
		EtlTruncate *truncate = lfirst(lc);

		if (truncate->lsn != lsn || truncate->ordinal != ordinal)
			continue;
		for (int i = 0; i < truncate->n; i++)
			refuse(writer, writer->generations[truncate->generations[i]], sqlstate,
				   message, hint, lsn, ordinal);
		if (!writer->failing)
		{
			writer->truncates = foreach_delete_current(writer->truncates, lc);
			pfree(truncate);
		}
	}
}

static void
store_trouble(EtlWriter *writer, EtlPending *pending)
{
	etl_store_error(writer->config->id, InvalidOid, pending->sqlstate, pending->message,
					pending->hint, InvalidXLogRecPtr, 0);
}

/* Into the error log, once for each time of trouble. */
void
etl_writer_log_trouble(EtlWriter *writer, const EtlResult *result)
{
	EtlPending *pending = etl_pending_new(writer, store_trouble, NULL, 0);

	pending->sqlstate = result->sqlstate;
	pending->message = etl_pending_text(writer, result->message);
	pending->hint = etl_pending_text(writer, result->hint);
}

/*
 * Trouble of others: of a worker that died of an ERROR and could not write
 * that itself, or of a copying sync worker.
 */
void
etl_writer_log_others(EtlWriter *writer)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	EtlResult	result;
	bool		died;

	/* unlocked: whoever sets it wakes us afterwards */
	if (!pipeline->error_unlogged)
		return;
	memset(&result, 0, sizeof(result));
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	died = pipeline->error_unlogged;
	pipeline->error_unlogged = false;
	result.sqlstate = pipeline->last_sqlstate;
	strlcpy(result.message, pipeline->last_error, sizeof(result.message));
	LWLockRelease(&pipeline->lock);
	if (died)
		etl_writer_log_trouble(writer, &result);
}

static void
sender_trouble(void *arg, const EtlResult *result)
{
	etl_writer_log_trouble((EtlWriter *) arg, result);
}

static void
sender_fail(void *arg, int sqlstate, const char *message, const char *hint)
{
	EtlWriter  *writer = arg;

	if (writer->failing)
		return;
	writer->failing = true;
	writer->fail_sqlstate = sqlstate;
	strlcpy(writer->fail_message, message, sizeof(writer->fail_message));
	strlcpy(writer->fail_hint, hint ? hint : "", sizeof(writer->fail_hint));
}

static bool
sender_skipped(void *arg, uint32 table)
{
	EtlWriter  *writer = arg;

	return writer->generations[table]->out;
}

/* Changes of one table, one after the other in a batch. */
static void
count_run(EtlWriter *writer, EtlGeneration *generation, const int64 *counts, XLogRecPtr lsn)
{
	EtlTableSlot *slot = &etl_shared->tables[generation->slot];

	if (slot->relid != generation->relid)
		return;
	if (counts[ETL_INSERT])
		pg_atomic_fetch_add_u64(&slot->inserts, counts[ETL_INSERT]);
	if (counts[ETL_UPDATE])
		pg_atomic_fetch_add_u64(&slot->updates, counts[ETL_UPDATE]);
	if (counts[ETL_DELETE])
		pg_atomic_fetch_add_u64(&slot->deletes, counts[ETL_DELETE]);
	if (counts[ETL_TRUNCATE])
		pg_atomic_fetch_add_u64(&slot->truncates, counts[ETL_TRUNCATE]);
	pg_atomic_write_u64(&slot->last_change_time, (uint64) generation->last_change);
	if (lsn > pg_atomic_read_u64(&slot->last_delivered_lsn))
		pg_atomic_write_u64(&slot->last_delivered_lsn, lsn);
}

/* A truncate of several tables counts for each; it is not needed any more. */
static void
count_truncate(EtlWriter *writer, const EtlItem *item)
{
	static const int64 one[ETL_TRUNCATE + 1] = {[ETL_TRUNCATE] = 1};
	ListCell   *lc;

	foreach(lc, writer->truncates)
	{
		EtlTruncate *truncate = lfirst(lc);

		if (truncate->lsn != item->commit_lsn || truncate->ordinal != item->ordinal)
			continue;
		for (int i = 0; i < truncate->n; i++)
			count_run(writer, writer->generations[truncate->generations[i]], one,
					  item->commit_lsn);
		writer->truncates = foreach_delete_current(writer->truncates, lc);
		pfree(truncate);
	}
}

void
etl_writer_count(EtlWriter *writer, const EtlItem *items, int nitems)
{
	int64		counts[ETL_TRUNCATE + 1] = {0};
	uint32		table = ETL_NO_TABLE;
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	for (int i = 0; i < nitems; i++)
	{
		const EtlItem *item = &items[i];

		if (item->op == 0 || item->op > ETL_TRUNCATE)
			continue;
		if (item->op == ETL_TRUNCATE && (item->flags & ETL_ITEM_EVENT))
		{
			count_truncate(writer, item);
			continue;
		}
		if (item->table != table)
		{
			if (table != ETL_NO_TABLE)
				count_run(writer, writer->generations[table], counts, lsn);
			memset(counts, 0, sizeof(counts));
			table = item->table;
		}
		counts[item->op]++;
		if (item->sub > 0)
			counts[ETL_DELETE]--;	/* both parts of a key change are one update */
		lsn = item->commit_lsn;
	}
	if (table != ETL_NO_TABLE)
		count_run(writer, writer->generations[table], counts, lsn);
}

static void
sender_delivered(void *arg, const EtlBatch *batch)
{
	EtlWriter  *writer = arg;
	EtlPipelineShared *pipeline = writer->pipeline;

	etl_writer_count(writer, batch->items, batch->nitems);
	pg_atomic_fetch_add_u64(&pipeline->batches, 1);
	pg_atomic_fetch_add_u64(&pipeline->bytes_sent, batch->bytes);
	pg_atomic_write_u64(&pipeline->last_delivery_time, (uint64) GetCurrentTimestamp());
}

const EtlSenderCallbacks etl_writer_callbacks = {
	.park = sender_park,
	.fail = sender_fail,
	.skipped = sender_skipped,
	.delivered = sender_delivered,
	.complete = etl_read_back,
	.trouble = sender_trouble,
};
