/*-------------------------------------------------------------------------
 *
 * progress.c
 *	  How far is everything durable, and what may be overwritten?
 *
 * Invariant: a mark counts when
 *
 *	 - every item taken before it is durable or was let go of,
 *	 - everything before it that had to be stored is stored, and every table
 *	   that was set aside for what the destination refused,
 *	 - (apply) no table was handed over at a position before it without that
 *	   being stored.
 *
 * The ring is released as soon as bytes are not needed, also in the middle of
 * a transaction: a transaction may be larger than the ring.  A sync worker
 * takes an empty queue for "everything is durable and stored", so its ring
 * also waits for what must be stored.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/latch.h"
#include "utils/timestamp.h"

#include "pipeline/ownership.h"
#include "pipeline/table_state.h"
#include "server/worker.h"
#include "writer/toast.h"
#include "writer/writer.h"

/* Add a mark at the end of what has been taken. */
void
etl_progress_mark(EtlIntake *intake, XLogRecPtr lsn, TimestampTz time)
{
	EtlMark    *mark;

	/* nothing in between: the last mark moves on */
	if (intake->nmarks > 0)
	{
		mark = &intake->marks[intake->first_mark + intake->nmarks - 1];
		if (mark->taken == intake->taken)
		{
			mark->position = etl_queue_read_position(intake->queue);
			mark->lsn = Max(mark->lsn, lsn);
			if (mark->time == 0)
				mark->time = time;
			return;
		}
	}

	if (intake->first_mark + intake->nmarks == intake->allocated_marks)
	{
		if (intake->first_mark > intake->nmarks)
			memcpy(intake->marks, intake->marks + intake->first_mark,
				   sizeof(EtlMark) * intake->nmarks);
		else
		{
			int			n = Max(intake->allocated_marks * 2, 64);
			EtlMark    *marks = MemoryContextAllocHuge(EtlWorkerContext,
													   sizeof(EtlMark) * (Size) n);

			memcpy(marks, intake->marks + intake->first_mark,
				   sizeof(EtlMark) * intake->nmarks);
			if (intake->marks)
				pfree(intake->marks);
			intake->marks = marks;
			intake->allocated_marks = n;
		}
		intake->first_mark = 0;
	}
	mark = &intake->marks[intake->first_mark + intake->nmarks++];
	mark->position = etl_queue_read_position(intake->queue);
	mark->lsn = lsn;
	mark->time = time;
	mark->taken = intake->taken;
}

void
etl_progress_reset(EtlIntake *intake)
{
	intake->first_mark = 0;
	intake->nmarks = 0;
	intake->durable = InvalidXLogRecPtr;
}

/* Lowest position from which apply delivers to something not stored yet. */
static XLogRecPtr
unstored_handover(EtlWriter *writer)
{
	XLogRecPtr	lowest = PG_UINT64_MAX;

	if (!writer->any_unstored_handover)
		return lowest;
	writer->any_unstored_handover = false;
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTracked *tracked = writer->tracked[i];

		/* one that was taken back has nothing delivered by apply */
		if (tracked == NULL || !tracked->unstored_handover ||
			etl_shared->tables[i].owned[0].generation == 0)
			continue;
		writer->any_unstored_handover = true;
		lowest = Min(lowest, etl_shared->tables[i].owned[0].owned_from);
	}
	return lowest;
}

/* ----------
 * What others learn
 * ----------
 */

static void
tell_sync(EtlWriter *writer, EtlIntake *intake)
{
	EtlSyncShared *sync = intake->sync;

	/* the worker may have begun a new queue, of which we know nothing */
	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	if (sync->queue == intake->handle)
		pg_atomic_write_u64(&sync->durable_lsn, intake->durable);
	LWLockRelease(&writer->pipeline->lock);
	if (sync->proc != NULL)
		SetLatch(&sync->proc->procLatch);
	LWLockRelease(&etl_shared->lock);
}

/* Tables whose hand-over lies behind what is durable now. */
static void
make_ready(EtlWriter *writer, XLogRecPtr durable)
{
	EtlPipelineShared *pipeline = writer->pipeline;

	if (!writer->any_unsettled)
		return;
	writer->any_unsettled = false;
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTracked *tracked = writer->tracked[i];
		EtlTableSlot *slot = &etl_shared->tables[i];

		if (tracked == NULL || tracked->settled)
			continue;
		if (slot->state != ETL_TABLE_SYNC_DONE)
			continue;

		/* handed over by its worker, but not by us yet: published nowhere */
		if (tracked->handing_over != slot->owned[0].generation &&
			tracked->stored != ETL_TABLE_SYNC_DONE)
		{
			writer->any_unsettled = true;
			continue;
		}
		if (tracked->unstored_handover || slot->owned[0].owned_from > durable)
		{
			writer->any_unsettled = true;
			continue;
		}
		tracked->settled = true;
		etl_ownership_settle(pipeline, i, slot->owned[0].generation);
		if (etl_table_state_set(pipeline, slot, ETL_TABLE_READY))
			etl_pending_state(writer, tracked, ETL_TABLE_READY);
	}
}

static void
tell_pipeline(EtlWriter *writer, EtlIntake *intake)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	TimestampTz oldest = 0;
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < intake->nmarks && oldest == 0; i++)
		oldest = intake->marks[intake->first_mark + i].time;

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->oldest_undelivered = oldest;
	pipeline->last_progress = now;
	LWLockRelease(&pipeline->lock);
	pg_atomic_write_u64(&pipeline->durable_lsn, intake->durable);
	writer->durable_told = intake->durable;
}

/* New commits wait, though nothing has become durable: how old are they? */
static void
tell_oldest(EtlWriter *writer, EtlIntake *intake)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	TimestampTz oldest = 0;

	if (pipeline->oldest_undelivered != 0 || intake->nmarks == 0)
		return;
	for (int i = 0; i < intake->nmarks && oldest == 0; i++)
		oldest = intake->marks[intake->first_mark + i].time;
	if (oldest == 0)
		return;
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->oldest_undelivered = oldest;
	LWLockRelease(&pipeline->lock);
}

/*
 * Since when does something wait?  From the first record in an empty queue on,
 * or from the last time that durable moved.  At the start nobody knows what
 * waits until apply has said how far it is.
 */
static void
tell_waiting(EtlWriter *writer, EtlIntake *intake, bool moved)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	bool		busy = etl_queue_used(intake->queue) > 0;
	bool		told = pipeline->waiting_since != 0;

	if (busy == told && !(busy && moved))
		return;
	if (!busy && intake->durable == InvalidXLogRecPtr)
		return;
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->waiting_since = busy ? GetCurrentTimestamp() : 0;
	LWLockRelease(&pipeline->lock);
}

/* ----------
 * Moving on
 * ----------
 */

static void
update_intake(EtlWriter *writer, EtlIntake *intake)
{
	uint64		oldest = writer->local ? etl_local_oldest(writer) :
		etl_sender_oldest(writer->sender, intake->group);
	uint64		unstored = etl_pending_oldest(writer, intake);
	XLogRecPtr	limit = intake->sync ? PG_UINT64_MAX : unstored_handover(writer);
	XLogRecPtr	durable = intake->durable;
	bool		moved;
	uint64		release = Min(writer->local ? etl_local_held(writer) : oldest,
							  etl_queue_read_position(intake->queue));

	while (intake->nmarks > 0)
	{
		EtlMark    *mark = &intake->marks[intake->first_mark];

		if (mark->position > Min(oldest, unstored) || mark->lsn > limit)
			break;
		durable = Max(durable, mark->lsn);
		intake->first_mark++;
		intake->nmarks--;
	}

	moved = durable != intake->durable;
	if (moved)
	{
		intake->durable = durable;
		if (intake->sync)
			tell_sync(writer, intake);
		else
			tell_pipeline(writer, intake);
	}
	else if (intake->sync == NULL)
		tell_oldest(writer, intake);

	if (intake->sync)
		release = Min(release, unstored);
	etl_queue_release(intake->queue, release);
	if (intake->toast)
		etl_toast_release(intake->toast, oldest == PG_UINT64_MAX ? release : oldest);
	if (intake->sync == NULL)
		tell_waiting(writer, intake, moved);
}

void
etl_progress_update(EtlWriter *writer)
{
	for (int i = 0; i < ETL_INTAKES; i++)
	{
		if (writer->intakes[i].queue)
			update_intake(writer, &writer->intakes[i]);
	}
	make_ready(writer, Max(writer->durable_told,
						   pg_atomic_read_u64(&writer->pipeline->durable_lsn)));
}
