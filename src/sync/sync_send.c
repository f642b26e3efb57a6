/*-------------------------------------------------------------------------
 *
 * sync_send.c
 *	  Copied rows on their way to the destination.
 *
 * One lane takes all tables of the group, one after the other.  Encoded rows
 * are packed into blocks; a block is freed when the lane has made everything
 * in it durable.  What is on its way is bounded: past the limit the copy
 * waits here, in the middle of its query, and that is its back-pressure.
 *
 * While a snapshot is held ("bounded"), waiting has an end: a destination
 * that takes nothing for five minutes, or a user who waits for a lock that
 * ours is in the way of, ends the attempt.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "delivery/batch.h"
#include "delivery/retry.h"
#include "server/worker.h"
#include "source/copy.h"
#include "sync/sync.h"

#define BLOCK_SIZE		(256 * 1024)
#define LARGE_ROW		(32 * 1024)	/* travels in its own chunk */
#define TURN_BYTES		(128 * 1024)	/* let the sender work this often */
#define TURN_ROWS		512
#ifndef STALL_MS
#define STALL_MS		(5 * 60 * 1000)
#endif
#define WAIT_MS			100

typedef struct Block
{
	struct Block *next;
	uint64		end;			/* position after its last byte */
	Size		used;
	char		data[BLOCK_SIZE];
} Block;

struct EtlSyncSend
{
	EtlSyncGroup *group;
	EtlSender  *sender;
	EtlLane    *lane;
	EtlSyncTable *current;
	StringInfoData buffer;
	Block	   *first;
	Block	   *last;
	uint64		position;		/* bytes put so far */

	Size		limit;			/* of bytes on their way */
	Size		turn_bytes;		/* put since the last turn */
	int			turn_rows;
	uint64		counted_rows;	/* of the current table, in shared memory */
	uint64		counted_bytes;

	bool		sending;		/* inside the sender */
	bool		bounded;
	TimestampTz progress;		/* the destination took something last */
	TimestampTz looked;			/* for users' lock waits */
	EtlSyncOutcome outcome;		/* ETL_ATTEMPT_COPIED: go on */
};

static void publish_counts(EtlSyncSend *send);

/* ----------
 * What the sender tells us
 * ----------
 */

static EtlSyncTable *
table_of_slot(EtlSyncSend *send, uint32 slot)
{
	for (int i = 0; i < send->group->ntables; i++)
		if (send->group->tables[i].slot == slot)
			return &send->group->tables[i];
	return send->current;
}

static void
on_park(void *arg, uint32 table, int sqlstate, const char *message,
		const char *hint, XLogRecPtr lsn, uint64 ordinal)
{
	etl_sync_park(table_of_slot(arg, table), sqlstate, message, hint);
}

static void
on_fail(void *arg, int sqlstate, const char *message, const char *hint)
{
	EtlSyncSend *send = arg;
	EtlSyncGroup *group = send->group;

	group->failed_sqlstate = sqlstate;
	strlcpy(group->failed_message, message, sizeof(group->failed_message));
	strlcpy(group->failed_hint, hint ? hint : "", sizeof(group->failed_hint));
	send->outcome = ETL_ATTEMPT_FAILED;
}

static bool
on_skipped(void *arg, uint32 table)
{
	EtlSyncSend *send = arg;

	for (int i = 0; i < send->group->ntables; i++)
		if (send->group->tables[i].slot == table)
			return send->group->tables[i].left;
	return false;
}

static void
on_delivered(void *arg, const EtlBatch *batch)
{
	EtlSyncSend *send = arg;
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	send->progress = GetCurrentTimestamp();
	pg_atomic_fetch_add_u64(&pipeline->bytes_sent, batch->bytes);
	pg_atomic_fetch_add_u64(&pipeline->batches, 1);
}

static const EtlSenderCallbacks callbacks = {
	.park = on_park,
	.fail = on_fail,
	.skipped = on_skipped,
	.delivered = on_delivered,
};

/* Sender and lane of one attempt, in the group's network context. */
EtlSyncSend *
etl_sync_send_create(EtlSyncGroup *group)
{
	MemoryContext context = MemoryContextSwitchTo(group->network);
	EtlSyncSend *send = palloc0(sizeof(EtlSyncSend));

	send->group = group;
	send->sender = etl_sender_create(group->config, group->connection, &callbacks, send);
	send->lane = etl_lane_create(send->sender, NULL, ETL_PHASE_COPY);
	initStringInfo(&send->buffer);
	send->limit = 2 * group->config->max_batch_size + BLOCK_SIZE;
	send->bounded = true;
	send->progress = GetCurrentTimestamp();
	send->outcome = ETL_ATTEMPT_COPIED;
	MemoryContextSwitchTo(context);
	return send;
}

void
etl_sync_send_table(EtlSyncSend *send, EtlSyncTable *table)
{
	publish_counts(send);		/* the former table's last rows */
	send->current = table;
	send->counted_rows = 0;
	send->counted_bytes = 0;
	if (!(send->group->config->routine->abilities & ETL_BATCH_PIPELINE))
		etl_lane_set_table(send->lane, &table->table);
}

EtlSyncOutcome
etl_sync_send_outcome(EtlSyncSend *send)
{
	return send->outcome;
}

bool
etl_sync_send_is_sending(EtlSyncSend *send)
{
	return send->sending;
}

void
etl_sync_send_unbounded(EtlSyncSend *send)
{
	send->bounded = false;
}

/* ----------
 * Bytes
 * ----------
 */

/* Free the blocks whose bytes are all durable. */
static void
trim_blocks(EtlSyncSend *send)
{
	uint64		oldest = etl_lane_oldest(send->lane);

	while (send->first != NULL && send->first != send->last &&
		   send->first->end <= oldest)
	{
		Block	   *block = send->first;

		send->first = block->next;
		pfree(block);
	}
}

static char *
block_room(EtlSyncSend *send, Size len)
{
	Block	   *block = send->last;

	if (block == NULL || block->used + len > BLOCK_SIZE)
	{
		trim_blocks(send);
		block = MemoryContextAlloc(send->group->network, sizeof(Block));
		block->next = NULL;
		block->used = 0;
		if (send->last)
			send->last->next = block;
		else
			send->first = block;
		send->last = block;
	}
	block->used += len;
	block->end = send->position + Max(len, 1);
	return block->data + block->used - len;
}

StringInfo
etl_sync_send_buffer(EtlSyncSend *send)
{
	resetStringInfo(&send->buffer);
	return &send->buffer;
}

void
etl_sync_send_put(EtlSyncSend *send, EtlSyncTable *table, StringInfo data, uint64 number)
{
	EtlItem		item = {
		.len = data->len,
		.op = number > 0 ? ETL_INSERT : 0,
		.flags = number > 0 ? 0 : ETL_ITEM_EVENT,
		.table = table->slot,
		.commit_lsn = send->group->snapshot_lsn,
		.ordinal = number,
	};
	bool		large = data->len > LARGE_ROW;
	uint64		position = send->position;

	if (large)
	{
		MemoryContext context;

		/* the lane takes the buffer over */
		Assert(data == &send->buffer);
		item.data = data->data;
		context = MemoryContextSwitchTo(send->group->network);
		initStringInfo(data);
		MemoryContextSwitchTo(context);
	}
	else
	{
		char	   *room = block_room(send, item.len);

		memcpy(room, data->data, item.len);
		item.data = room;
	}
	send->position += Max(item.len, 1);
	etl_lane_append(send->lane, &item, position, large);
	send->turn_bytes += item.len;
	send->turn_rows++;
}

/* ----------
 * Waiting
 * ----------
 */

/* Figures of the current table into shared memory. */
static void
publish_counts(EtlSyncSend *send)
{
	EtlSyncTable *table = send->current;
	EtlTableSlot *slot;

	if (table == NULL)
		return;
	slot = &etl_shared->tables[table->slot];
	pg_atomic_write_u64(&slot->rows_copied, table->rows);
	pg_atomic_write_u64(&slot->bytes_copied, table->bytes);
	pg_atomic_fetch_add_u64(&etl_worker_pipeline->rows_copied,
							table->rows - send->counted_rows);
	send->counted_rows = table->rows;
	send->counted_bytes = table->bytes;
}

/* Does a user wait for one of our tables, longer than is polite? */
static bool
in_the_way(EtlSyncSend *send)
{
	EtlSyncGroup *group = send->group;
	TimestampTz now = GetCurrentTimestamp();
	int			polite = (int) etl_option_int(group->config->options, "copy_yield_timeout");

	if (!TimestampDifferenceExceeds(send->looked, now, Max(polite / 4, WAIT_MS)))
		return false;
	send->looked = now;
	return etl_copy_in_the_way(group->locked, polite);
}

/*
 * Must the attempt end?  Looks at everything that may end a wait.
 */
static bool
must_end(EtlSyncSend *send)
{
	etl_sync_check_stop();
	if (send->outcome != ETL_ATTEMPT_COPIED)
		return true;
	if (!send->bounded)
		return false;
	if (in_the_way(send))
	{
		ereport(LOG,
				(errmsg("initial sync gives way to a session that waits for a lock"),
				 errdetail("It starts again later.")));
		send->outcome = ETL_ATTEMPT_LATER;
	}
	else if (TimestampDifferenceExceeds(send->progress, GetCurrentTimestamp(), STALL_MS))
		send->outcome = ETL_ATTEMPT_DESTINATION;
	return send->outcome != ETL_ATTEMPT_COPIED;
}

/*
 * Let the sender work.  It is called from inside the copy's query: what it
 * and the destination's kind allocate must outlive the row, and what they log
 * is not about the query.
 */
static long
run_sender(EtlSyncSend *send, int timeout, bool *busy)
{
	MemoryContext context = MemoryContextSwitchTo(send->group->network);
	ErrorContextCallback *callers = error_context_stack;
	long		due;

	error_context_stack = NULL;
	send->sending = true;
	due = etl_sender_run(send->sender, timeout, busy);
	send->sending = false;
	error_context_stack = callers;
	MemoryContextSwitchTo(context);
	return due;
}

/* Drive the sender once, at most about WAIT_MS. */
static void
drive(EtlSyncSend *send)
{
	bool		busy;
	long		due = run_sender(send, WAIT_MS, &busy);

	if (!busy && due != 0 && !etl_sender_idle(send->sender))
		(void) etl_worker_wait(due < 0 ? WAIT_MS : Min(due, WAIT_MS));
	etl_sync_waiting(etl_sender_retrying(send->sender) ?
					 ETL_WAIT_DESTINATION : ETL_WAIT_NOTHING);
}

bool
etl_sync_send_turn(EtlSyncSend *send)
{
	bool		busy;

	if (send->turn_bytes < TURN_BYTES && send->turn_rows < TURN_ROWS)
		return send->outcome == ETL_ATTEMPT_COPIED;
	send->turn_bytes = 0;
	send->turn_rows = 0;

	publish_counts(send);
	(void) run_sender(send, 0, &busy);
	if (etl_sender_bytes(send->sender) <= send->limit)
	{
		/* the time since is ours, not the destination's */
		send->progress = GetCurrentTimestamp();
		return !must_end(send);
	}
	while (etl_sender_bytes(send->sender) > send->limit)
	{
		if (must_end(send))
			return false;
		drive(send);
	}
	return true;
}

bool
etl_sync_send_finish(EtlSyncSend *send)
{
	publish_counts(send);
	etl_lane_seal(send->lane);
	while (!etl_sender_idle(send->sender))
	{
		if (must_end(send))
			return false;
		drive(send);
	}
	etl_sync_waiting(ETL_WAIT_NOTHING);
	return send->outcome == ETL_ATTEMPT_COPIED;
}

bool
etl_sync_send_call(EtlSyncSend *send, EtlSyncTable *table, EtlSyncCall call)
{
	EtlSyncGroup *group = send->group;
	EtlBackoff	backoff = {0};
	EtlResult	result;
	MemoryContext context;

	send->progress = GetCurrentTimestamp();
	for (;;)
	{
		if (must_end(send))
			return false;

		memset(&result, 0, sizeof(result));
		result.rejected = -1;
		result.retry_after = -1;
		context = MemoryContextSwitchTo(group->network);
		call(group, table, &result);
		MemoryContextSwitchTo(context);
		switch (result.status)
		{
			case ETL_DONE:
				etl_backoff_reset(&backoff);
				send->progress = GetCurrentTimestamp();
				etl_sync_waiting(ETL_WAIT_NOTHING);
				return true;
			case ETL_RETRY:
			case ETL_ENDPOINT:
				etl_backoff_failed(&backoff, group->config, &result);
				etl_sync_waiting(ETL_WAIT_DESTINATION);
				break;
			case ETL_FATAL:
				on_fail(send, result.sqlstate, result.message, result.hint);
				return false;
			default:
				etl_sync_park(table, result.sqlstate, result.message, result.hint);
				return false;
		}

		/* until the next try, looking around meanwhile */
		for (;;)
		{
			long		left = etl_backoff_left(&backoff, GetCurrentTimestamp());

			if (left <= 0)
				break;
			if (must_end(send))
				return false;
			(void) etl_worker_wait(Min(left, WAIT_MS));
		}
	}
}
