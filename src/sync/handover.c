/*-------------------------------------------------------------------------
 *
 * handover.c
 *	  Catch-up of a sync worker, and the hand-over to apply.
 *
 * From here on this process decodes: it writes no table and opens no network
 * connection.  It reads WAL from its temporary slot, puts the group's changes
 * into a queue of its own, and looks for a moment "s" at which
 *
 *	 - everything before s that it delivers is durable,
 *	 - apply has decided nothing past s (etl_ownership_take()),
 *	 - apply knows every shape of the new generations.
 *
 * For quiet tables that is the first look.  Under constant load apply is
 * always a little ahead of what is durable, so after a while apply is held
 * for about one round trip of the destination, in which this process reads to
 * the end and waits for the writer.
 *
 * The pair may be started again meanwhile.  Its writer knows nothing of what
 * the old one had taken from the queue, so the queue and the decoding context
 * are made anew from the slot's confirmed position; the copy is not lost.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "pipeline/ownership.h"
#include "server/worker.h"
#include "source/slot.h"
#include "sync/handover.h"

#define TURN_MS			100		/* of reading, between two looks around */
#define FIRST_WAIT_MS	10		/* for more WAL, doubled while there is none */
#define LAST_WAIT_MS	200
#define DURABLE_WAIT_MS 250		/* for the writer, near the end */
#define HOLD_AFTER_MS	300		/* of vain tries; doubled after each hold */
#define HOLD_AFTER_MOST_MS 20000
#define HOLD_LEAST_MS	500
#define HOLD_MOST_MS	15000
#define DRAIN_MOST_MS	30000	/* before a hold */

/* ----------
 * Positions
 * ----------
 */

/*
 * Up to where is everything durable?  An empty queue says: up to where we
 * have read.  Else the writer is told by a PROGRESS record.
 */
static XLogRecPtr
durable_position(EtlHandover *h, XLogRecPtr position)
{
	if (etl_queue_used(h->queue) == 0)
		return position;
	if (position > h->progressed)
	{
		etl_stream_progress(h->stream, position);
		h->progressed = position;
	}
	return pg_atomic_read_u64(&etl_worker_sync->durable_lsn);
}

/* Ask for batches to be closed up to "position". */
static void
want_flushed(XLogRecPtr position)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	uint64		target = pg_atomic_read_u64(&pipeline->flush_target);

	while (target < position)
	{
		if (pg_atomic_compare_exchange_u64(&pipeline->flush_target, &target, position))
		{
			etl_shmem_wake_pipeline(pipeline);
			break;
		}
	}
}

/* Wait for the writer, at most "ms"; true when all before "position" is durable. */
static bool
wait_durable(EtlHandover *h, XLogRecPtr position, long ms)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);

	if (durable_position(h, position) >= position)
		return true;
	want_flushed(position);
	for (;;)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);

		if (durable_position(h, position) >= position)
			return true;
		if (left <= 0 || etl_handover_pair_changed(h))
			return false;
		/* the writer wakes us, but not to tell that its pair has gone */
		(void) etl_worker_wait(Min(left, DURABLE_WAIT_MS));
		etl_sync_check_stop();
	}
}

/* Read WAL for a while; true at its end. */
static bool
read_some(EtlHandover *h)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), TURN_MS);
	bool		more = true;

	while (more && GetCurrentTimestamp() < end)
	{
		for (int i = 0; i < 64 && more; i++)
			more = etl_decoder_step(h->decoder);
		CHECK_FOR_INTERRUPTS();
	}
	etl_stream_flush(h->stream);
	return !more;
}

/* ----------
 * The group
 * ----------
 */

/* Tables that the writer or a user took out leave the group. */
static void
look_at_tables(EtlHandover *h)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	uint64		version = pg_atomic_read_u64(&pipeline->tables_version);
	int			remaining = 0;

	if (version == h->tables_version)
		return;
	h->tables_version = version;

	LWLockAcquire(&pipeline->lock, LW_SHARED);
	for (int i = 0; i < h->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[h->tables[i].slot];

		if (slot->relid != h->tables[i].relid ||
			slot->pipeline != etl_shmem_pipeline_index(pipeline) ||
			slot->generation != h->tables[i].generation ||
			(slot->state != ETL_TABLE_FINISHED_COPY &&
			 slot->state != ETL_TABLE_SYNC_WAIT &&
			 slot->state != ETL_TABLE_CATCHUP))
			h->tables[i].parked = true;
		if (!h->tables[i].parked)
			remaining++;
	}
	LWLockRelease(&pipeline->lock);

	if (remaining == 0)
		etl_worker_exit(ETL_EXIT_DONE);
}

/* Apply must have taken in what was stored before "version". */
static void
need_seen(EtlHandover *h, uint64 version)
{
	h->needed = version;
	etl_ownership_want_seen(etl_worker_pipeline, version);
	etl_shmem_wake_pipeline(etl_worker_pipeline);
}

/*
 * Shapes that catch-up found must reach apply by way of the tables: when the
 * writer has stored them, apply's next bracket has to be waited for.
 */
static void
watch_shapes(EtlHandover *h)
{
	uint64		put = etl_stream_shapes_put(h->stream);

	if (put == h->shapes_put)
		return;
	h->shapes_put = put;
	need_seen(h, pg_atomic_fetch_add_u64(&etl_worker_pipeline->tables_version, 1) + 1);
}

static bool
apply_knows(const EtlHandover *h)
{
	return pg_atomic_read_u64(&etl_worker_pipeline->tables_seen) >= h->needed;
}

static XLogRecPtr
decided_position(void)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	XLogRecPtr	decided;

	LWLockAcquire(&pipeline->lock, LW_SHARED);
	decided = pipeline->decided;
	LWLockRelease(&pipeline->lock);
	return decided;
}

/* ----------
 * The hand-over itself
 * ----------
 */

/* Everything before "s" is durable: hand over if apply has not passed it. */
static bool
try_take(EtlHandover *h, XLogRecPtr s)
{
	EtlOwnershipClaim *claims;
	int			nclaims = 0;

	watch_shapes(h);
	if (!apply_knows(h))
		return false;

	ETL_FAILPOINT("sync_before_handover");
	claims = MemoryContextAlloc(h->context, sizeof(EtlOwnershipClaim) * h->ntables);
	for (int i = 0; i < h->ntables; i++)
	{
		if (h->tables[i].parked)
			continue;
		claims[nclaims].slot = h->tables[i].slot;
		claims[nclaims].relid = h->tables[i].relid;
		claims[nclaims].generation = h->tables[i].generation;
		claims[nclaims].shape_hash = h->tables[i].shape->hash;
		nclaims++;
	}
	if (!etl_ownership_take(etl_worker_pipeline, nclaims, claims, s))
	{
		pfree(claims);
		return false;
	}

	h->taken = true;
	h->s = s;
	want_flushed(s);			/* the tables are ready when apply is durable here */
	for (int i = 0; i < nclaims; i++)
		for (int j = 0; j < h->ntables && !claims[i].taken; j++)
			if (h->tables[j].slot == claims[i].slot)
				h->tables[j].parked = true;
	for (int i = 0; i < h->group->ntables; i++)
	{
		EtlSyncTable *table = &h->group->tables[i];

		for (int j = 0; j < h->ntables; j++)
			if (h->tables[j].slot == table->slot && h->tables[j].parked)
				table->left = true;
	}
	pfree(claims);
	ETL_FAILPOINT("sync_after_take");
	return true;
}

/*
 * How long must apply be held?  First, with nothing held, what is on its way
 * gets durable while nothing new is read; how long that takes is what the
 * destination needs for one more batch.  0: it takes too long.
 */
static int
hold_time(EtlHandover *h)
{
	TimestampTz start = GetCurrentTimestamp();
	long		took;

	if (!wait_durable(h, etl_decoder_position(h->decoder), DRAIN_MOST_MS))
		return 0;
	took = TimestampDifferenceMilliseconds(start, GetCurrentTimestamp());
	return Min(Max(2 * took, HOLD_LEAST_MS), HOLD_MOST_MS);
}

/* Hold apply for a moment, and use it. */
static bool
take_under_hold(EtlHandover *h)
{
	int			ms = hold_time(h);
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
	bool		done = false;

	if (ms > 0)
	{
		etl_ownership_hold(etl_worker_pipeline, ms);
		etl_shmem_wake_pipeline(etl_worker_pipeline);
	}
	while (!done && !etl_handover_pair_changed(h))
	{
		XLogRecPtr	position;
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);

		if (left <= 0)
			break;
		look_at_tables(h);
		(void) read_some(h);
		if (etl_handover_pair_changed(h))
			break;				/* what was put may have been dropped */
		position = etl_decoder_position(h->decoder);
		if (wait_durable(h, position, left))
			done = try_take(h, position);
		if (!done)
			(void) etl_worker_wait(5);
	}
	if (ms > 0)
	{
		etl_ownership_hold(etl_worker_pipeline, 0);
		etl_shmem_wake_pipeline(etl_worker_pipeline);
	}
	h->near_since = GetCurrentTimestamp();
	h->hold_after = Min(h->hold_after * 2, HOLD_AFTER_MOST_MS);
	return done;
}

/* Within one batch of apply: show it, and count the time from here. */
static void
note_near(EtlHandover *h, XLogRecPtr position)
{
	bool		near = decided_position() <= position + h->config->max_batch_size;

	if (near && !h->near)
	{
		h->near_since = GetCurrentTimestamp();
		h->hold_after = HOLD_AFTER_MS;
		etl_sync_set_state(h->group, ETL_TABLE_CATCHUP);
	}
	if (near)
		h->near = true;
}

/*
 * One turn; true when the tables were handed over.  It ends with a wait when
 * there is no more WAL: a short one if only apply is waited for.
 */
static bool
turn(EtlHandover *h)
{
	bool		end = read_some(h);
	XLogRecPtr	position = etl_decoder_position(h->decoder);
	bool		durable;

	if (etl_handover_pair_changed(h))
		return false;			/* what was put may have been dropped */
	durable = durable_position(h, position) >= position;
	etl_handover_confirm(h, Min(durable_position(h, position), position));
	note_near(h, position);
	if (h->near && end)
	{
		if (!durable)
			durable = wait_durable(h, position, DURABLE_WAIT_MS);
		if (durable && try_take(h, position))
			return true;
	}
	if (h->near && apply_knows(h) &&
		TimestampDifferenceExceeds(h->near_since, GetCurrentTimestamp(), h->hold_after))
		return take_under_hold(h);

	if (!end)
		h->wait_ms = FIRST_WAIT_MS;
	else
	{
		(void) etl_worker_wait(h->wait_ms);
		h->wait_ms = Min(h->wait_ms * 2, h->near && durable ? 2 * FIRST_WAIT_MS : LAST_WAIT_MS);
	}
	return false;
}

/* The HANDOVER records are in the queue: wait until the writer stored them. */
static bool
wait_stored(EtlHandover *h)
{
	etl_stream_handover(h->stream, h->s);
	while (etl_queue_used(h->queue) > 0)
	{
		if (etl_handover_pair_changed(h))
			return false;
		(void) etl_worker_wait(100);
		etl_sync_check_stop();
	}
	return true;
}

/* Work with one incarnation of the pair; true when all is done. */
static bool
catch_up(EtlHandover *h)
{
	while (!h->taken)
	{
		etl_sync_check_stop();
		if (etl_handover_pair_changed(h))
			return false;
		look_at_tables(h);
		if (turn(h))
			break;
	}
	return wait_stored(h);
}

void
etl_sync_catch_up(EtlSyncGroup *group)
{
	EtlHandover *h = MemoryContextAllocZero(EtlWorkerContext, sizeof(EtlHandover));

	h->group = group;
	h->context = AllocSetContextCreate(EtlWorkerContext, "etl catch-up",
									   ALLOCSET_DEFAULT_SIZES);
	h->wait_ms = FIRST_WAIT_MS;
	h->hold_after = HOLD_AFTER_MS;

	/* what the copy has stored, apply must have read before it can take over */
	need_seen(h, pg_atomic_read_u64(&etl_worker_pipeline->tables_version));

	etl_slot_release();
	for (bool again = false;; again = true)
	{
		InvalidateSystemCaches();
		if (!etl_slot_acquire(NameStr(group->slot_name)))
			elog(ERROR, "temporary replication slot \"%s\" is held elsewhere",
				 NameStr(group->slot_name));
		etl_handover_build(h, again);
		if (!again)
			etl_sync_set_state(group, ETL_TABLE_SYNC_WAIT);
		if (catch_up(h))
			break;
		etl_handover_clean_up(h);
	}
	etl_worker_exit(ETL_EXIT_DONE);
}
