/*-------------------------------------------------------------------------
 *
 * local.c
 *	  Destinations inside this database: data and progress in one commit.
 *
 * Kinds with ETL_LOCAL_TRANSACTION need no lanes: what is to be applied is a
 * list of items in order, cut at the ends of source transactions.  A group of
 * whole source transactions, as many as make a batch, is applied in one
 * transaction of ours together with the position up to which it goes.  So
 * after a crash either both are there or neither.
 *
 * Errors are the database's, by SQLSTATE: what will pass is tried again; what
 * is wrong with a row is narrowed down to a single source transaction and in
 * it to the run of one table's rows that does not go in, and parks that table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "server/worker.h"
#include "writer/writer.h"

/* The end of a source transaction in the list of items. */
typedef struct LocalCommit
{
	int			end;			/* number of items up to and with it */
	XLogRecPtr	end_lsn;
	uint64		position;
} LocalCommit;

typedef struct EtlLocal
{
	MemoryContext context;		/* of the arrays */
	EtlItem    *items;
	uint64	   *positions;		/* of items */
	void	  **chunks;			/* to be freed with the item, or NULL */
	int			nitems;
	int			allocated;
	int			unloaded;		/* so many of them are in chunks, all of them */
	uint64		bytes;
	LocalCommit *commits;
	int			ncommits;
	int			allocated_commits;
	TimestampTz opened_at;
	EtlBackoff	backoff;
	bool		one_by_one;		/* something does not go in: find it */
	uint64		next_id;

	/* the attempt under way */
	int			ntransactions;	/* of the list, from its beginning */
	uint32		applying;		/* generation, for blame */
	const EtlItem *applying_item;
} EtlLocal;

EtlLocal *
etl_local_create(EtlWriter *writer)
{
	EtlLocal   *local = palloc0(sizeof(EtlLocal));

	local->context = CurrentMemoryContext;
	local->allocated = 1024;
	local->items = palloc(sizeof(EtlItem) * local->allocated);
	local->positions = palloc(sizeof(uint64) * local->allocated);
	local->chunks = palloc(sizeof(void *) * local->allocated);
	local->allocated_commits = 64;
	local->commits = palloc(sizeof(LocalCommit) * local->allocated_commits);
	return local;
}

void
etl_local_append(EtlWriter *writer, const EtlItem *item, uint64 position, void *chunk)
{
	EtlLocal   *local = writer->local;

	if (local->nitems == local->allocated)
	{
		local->allocated *= 2;
		local->items = repalloc_huge(local->items, sizeof(EtlItem) * (Size) local->allocated);
		local->positions = repalloc_huge(local->positions,
										 sizeof(uint64) * (Size) local->allocated);
		local->chunks = repalloc_huge(local->chunks,
									  sizeof(void *) * (Size) local->allocated);
	}
	if (local->nitems == 0)
		local->opened_at = GetCurrentTimestamp();
	local->items[local->nitems] = *item;
	local->positions[local->nitems] = position;
	local->chunks[local->nitems] = chunk;
	local->nitems++;
	local->bytes += item->len;
}

void
etl_local_commit(EtlWriter *writer, XLogRecPtr end_lsn, uint64 position)
{
	EtlLocal   *local = writer->local;
	LocalCommit *commit;

	if (local->nitems == 0)
		return;
	if (local->ncommits == local->allocated_commits)
	{
		local->allocated_commits *= 2;
		local->commits = repalloc_huge(local->commits,
									   sizeof(LocalCommit) * (Size) local->allocated_commits);
	}
	commit = &local->commits[local->ncommits++];
	commit->end = local->nitems;
	commit->end_lsn = end_lsn;
	commit->position = position;
}

uint64
etl_local_oldest(EtlWriter *writer)
{
	return writer->local->nitems > 0 ? writer->local->positions[0] : PG_UINT64_MAX;
}

/* Position of the oldest item whose bytes are in the ring. */
uint64
etl_local_held(EtlWriter *writer)
{
	EtlLocal   *local = writer->local;

	for (int i = local->unloaded; i < local->nitems; i++)
		if (local->chunks[i] == NULL)
			return local->positions[i];
	return PG_UINT64_MAX;
}

/*
 * A source transaction that is larger than the ring cannot be applied before
 * its end is seen: make room for the rest of it.
 */
static void
unload(EtlLocal *local)
{
	for (int i = local->unloaded; i < local->nitems; i++)
	{
		char	   *copy;

		if (local->chunks[i] != NULL)
			continue;
		copy = MemoryContextAllocHuge(local->context, Max(local->items[i].len, 1));
		memcpy(copy, local->items[i].data, local->items[i].len);
		local->items[i].data = copy;
		local->chunks[i] = copy;
	}
	local->unloaded = local->nitems;
}

/* ----------
 * One attempt
 * ----------
 */

/* Apply items of one table that follow each other. */
static void
apply_run(EtlWriter *writer, EtlItem *items, int n)
{
	EtlLocal   *local = writer->local;
	EtlBatch	batch;

	memset(&batch, 0, sizeof(batch));
	batch.id = ++local->next_id;
	batch.phase = ETL_PHASE_STREAM;
	batch.epoch = writer->config->epoch;
	if (!writer->pipeline_lanes && items[0].table != ETL_NO_TABLE)
		batch.table = writer->generations[items[0].table]->table;
	batch.items = items;
	batch.nitems = n;
	for (int i = 0; i < n; i++)
		batch.bytes += items[i].len;
	batch.sealed_at = GetCurrentTimestamp();
	batch.attempt = local->backoff.attempts + 1;
	batch.incarnation = etl_worker_args.incarnation;

	local->applying = items[0].table;
	local->applying_item = &items[0];
	writer->config->routine->apply_local(writer->connection, &batch);
	local->applying = ETL_NO_TABLE;
}

static void
apply_body(void *arg)
{
	EtlWriter  *writer = arg;
	EtlLocal   *local = writer->local;
	LocalCommit *last = &local->commits[local->ntransactions - 1];
	int			i = 0;

	while (i < last->end)
	{
		int			n = 1;

		if (local->items[i].table != ETL_NO_TABLE &&
			writer->generations[local->items[i].table]->out)
		{
			i++;
			continue;
		}
		while (i + n < last->end &&
			   (writer->pipeline_lanes || local->items[i + n].table == local->items[i].table) &&
			   (local->items[i + n].table == ETL_NO_TABLE ||
				!writer->generations[local->items[i + n].table]->out))
			n++;
		apply_run(writer, &local->items[i], n);
		i += n;
	}
	etl_store_durable(writer->config->id, last->end_lsn);
}

/* The first "ntransactions" transactions are in: take them off the list. */
static void
take_off(EtlWriter *writer)
{
	EtlLocal   *local = writer->local;
	int			gone = local->commits[local->ntransactions - 1].end;

	etl_writer_count(writer, local->items, gone);
	for (int i = 0; i < gone; i++)
	{
		local->bytes -= local->items[i].len;
		if (local->chunks[i])
			pfree(local->chunks[i]);
	}
	local->nitems -= gone;
	local->unloaded = Max(local->unloaded - gone, 0);
	memmove(local->items, local->items + gone, sizeof(EtlItem) * (Size) local->nitems);
	memmove(local->positions, local->positions + gone, sizeof(uint64) * (Size) local->nitems);
	memmove(local->chunks, local->chunks + gone, sizeof(void *) * (Size) local->nitems);
	local->ncommits -= local->ntransactions;
	memmove(local->commits, local->commits + local->ntransactions,
			sizeof(LocalCommit) * (Size) local->ncommits);
	for (int i = 0; i < local->ncommits; i++)
		local->commits[i].end -= gone;
	local->opened_at = GetCurrentTimestamp();
}

/* Trouble that passes by itself. */
static bool
is_transient(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
			return true;
	}
	return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE;
}

static void
trouble(EtlWriter *writer, const ErrorData *error)
{
	EtlLocal   *local = writer->local;
	EtlGeneration *generation;

	if (is_transient(error->sqlerrcode) || local->applying == ETL_NO_TABLE)
	{
		EtlResult	result;

		memset(&result, 0, sizeof(result));
		result.retry_after = -1;
		etl_result_set(&result, ETL_RETRY, error->sqlerrcode, "%s",
					   error->message ? error->message : "unknown error");
		etl_backoff_failed(&local->backoff, writer->config, &result);
		return;
	}
	if (local->ntransactions > 1)
	{
		local->one_by_one = true;
		return;
	}
	generation = writer->generations[local->applying];
	if (generation->on_error == ETL_ON_ERROR_STOP)
	{
		etl_writer_stop_at(writer, generation, error->sqlerrcode, error->message,
						   error->hint, local->applying_item->commit_lsn,
						   local->applying_item->ordinal);
		etl_sender_halt(writer->sender);
		return;
	}
	etl_writer_park(writer, generation, NULL, 0, error->sqlerrcode, error->message,
					error->hint, local->applying_item->commit_lsn,
					local->applying_item->ordinal);
}

/* Apply the first transactions of the list; true when that made progress. */
static bool
attempt(EtlWriter *writer)
{
	EtlLocal   *local = writer->local;
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;
	volatile bool done = false;

	local->applying = ETL_NO_TABLE;
	PG_TRY();
	{
		done = etl_bracket_try(ETL_BRACKET_WRITE, "etl: applying changes", apply_body, writer);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();

	if (error)
	{
		trouble(writer, error);
		FreeErrorData(error);
		return false;
	}
	if (!done)
	{
		EtlResult	result;

		memset(&result, 0, sizeof(result));
		result.retry_after = -1;
		etl_result_set(&result, ETL_RETRY, ERRCODE_LOCK_NOT_AVAILABLE,
					   "destination is locked by another transaction");
		etl_backoff_failed(&local->backoff, writer->config, &result);
		return false;
	}
	pg_atomic_fetch_add_u64(&writer->pipeline->batches, 1);
	pg_atomic_write_u64(&writer->pipeline->last_delivery_time,
						(uint64) GetCurrentTimestamp());
	etl_backoff_reset(&local->backoff);
	take_off(writer);
	if (local->ncommits == 0)
		local->one_by_one = false;
	return true;
}

/*
 * Apply what is due.  Returns ms until something is due by itself, -1 for
 * nothing.  "dry": the queues have nothing more at the moment.
 */
long
etl_local_run(EtlWriter *writer, bool dry)
{
	EtlLocal   *local = writer->local;

	/* a table that is set aside is stored as such before anything goes on */
	while (local->ncommits > 0 && !writer->failing && !etl_pending_holds(writer))
	{
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz due = TimestampTzPlusMilliseconds(local->opened_at,
													  writer->config->max_batch_delay);
		long		left = etl_backoff_left(&local->backoff, now);
		bool		full = local->bytes >= writer->config->max_batch_size ||
			etl_queue_used(writer->intakes[0].queue) >
			etl_queue_capacity(writer->intakes[0].queue) / 2;

		if (left > 0)
			return left;
		if (!full && !local->one_by_one &&
			pg_atomic_read_u64(&writer->pipeline->flush_target) <=
			pg_atomic_read_u64(&writer->pipeline->durable_lsn))
		{
			if (writer->config->max_batch_delay > 0 && due > now)
				return (long) ((due - now + 999) / 1000);
			if (!dry)
				return -1;
		}
		local->ntransactions = local->one_by_one ? 1 : local->ncommits;
		(void) attempt(writer);
	}
	if (local->ncommits == 0 && etl_queue_used(writer->intakes[0].queue) >
		etl_queue_capacity(writer->intakes[0].queue) / 2)
		unload(local);
	return -1;
}
