/*-------------------------------------------------------------------------
 *
 * schedule.c
 *	  Tables that wait for a copy -> groups for sync workers, and their ends.
 *
 * Making a replication slot waits for every transaction that runs in the
 * server, so small tables share a worker and its slot: as many as make 256 MB
 * together, 64 at most; a larger table has a worker for itself.
 *
 * The writer fills an entry, the launcher registers the process.  When that
 * has gone, what is left in its queue is read, tables that were not handed
 * over begin again under a new generation, and the entry is freed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "delivery/retry.h"
#include "pipeline/table_state.h"
#include "server/worker.h"
#include "source/partition.h"
#include "writer/writer.h"

#define GROUP_PAGES		((int64) 256 * 1024 * 1024 / BLCKSZ)
#define LOCK_RETRY		200		/* ms */
#define LIMIT_RETRY		1000

/* Entries of a pipeline stand together. */
static EtlSyncShared *
sync_entry(EtlWriter *writer, int i)
{
	int			index = etl_shmem_pipeline_index(writer->pipeline);

	return &etl_shared->syncs[index * ETL_SYNCS_PER_PIPELINE + i];
}

/* Is there a worker, or will there be one?  EtlShared->lock is held. */
bool
etl_sync_entry_alive(const EtlSyncShared *sync)
{
	return sync->state == ETL_SYNC_REQUESTED || sync->state == ETL_SYNC_STARTED ||
		sync->state == ETL_SYNC_RUNNING;
}

/* ----------
 * Groups
 * ----------
 */

typedef struct Candidate
{
	EtlTracked *tracked;
	int64		pages;			/* -1: not in the catalogs any more */
} Candidate;

typedef struct Candidates
{
	int			n;
	Candidate  *list;
} Candidates;

static void
collect(EtlWriter *writer, Candidates *candidates)
{
	TimestampTz now = GetCurrentTimestamp();

	candidates->n = 0;
	candidates->list = palloc(sizeof(Candidate) * etl_shared->ntables);
	writer->schedule_next = 0;
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTracked *tracked = writer->tracked[i];
		const EtlTableSlot *slot = &etl_shared->tables[i];

		if (tracked == NULL || slot->relid != tracked->relid ||
			slot->state != ETL_TABLE_INIT || slot->sync >= 0)
			continue;
		if (tracked->not_before > now)
		{
			if (writer->schedule_next == 0 || tracked->not_before < writer->schedule_next)
				writer->schedule_next = tracked->not_before;
			continue;
		}
		candidates->list[candidates->n++].tracked = tracked;
	}
}

/*
 * Blocks of a table's file and of its TOAST table's: statistics say nothing
 * about a table that was just filled.  A table that somebody has locked
 * exclusively counts as a large one, so that it keeps nobody waiting; -1 when
 * it is gone.
 */
static int64
table_pages(Oid relid)
{
	Relation	relation;
	Oid			toast;
	int64		pages;

	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return GROUP_PAGES;
	relation = try_relation_open(relid, NoLock);
	if (relation == NULL)
	{
		UnlockRelationOid(relid, AccessShareLock);
		return -1;
	}
	pages = RELKIND_HAS_STORAGE(relation->rd_rel->relkind) ?
		RelationGetNumberOfBlocks(relation) : 0;
	toast = relation->rd_rel->reltoastrelid;
	relation_close(relation, AccessShareLock);
	if (OidIsValid(toast))
		pages += Max(table_pages(toast), 0);
	return pages;
}

/* Of a table that is published as a whole, the blocks of all its partitions. */
static int64
whole_pages(Oid relid)
{
	List	   *tree = etl_partition_tree(relid);
	int64		pages = table_pages(relid);

	for (int i = 1; i < list_length(tree) && pages >= 0; i++)
		pages += Max(table_pages(list_nth_oid(tree, i)), 0);
	list_free(tree);
	return pages;
}

static void
sizes_body(void *arg)
{
	Candidates *candidates = arg;

	for (int i = 0; i < candidates->n; i++)
		candidates->list[i].pages = whole_pages(candidates->list[i].tracked->relid);
}

/* Fill a free entry with the next candidates; number of tables taken. */
static int
request_sync(EtlWriter *writer, EtlSyncShared *sync, Candidates *candidates, int first)
{
	int			index = sync - etl_shared->syncs;
	int64		pages = 0;
	int			i;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	sync->pipeline = etl_shmem_pipeline_index(writer->pipeline);
	sync->ntables = 0;
	sync->queue = 0;
	sync->snapshot_lsn = InvalidXLogRecPtr;
	sync->waiting_for = ETL_WAIT_NOTHING;
	pg_atomic_write_u64(&sync->durable_lsn, InvalidXLogRecPtr);
	for (i = first; i < candidates->n && sync->ntables < ETL_SYNC_GROUP_TABLES; i++)
	{
		Candidate  *candidate = &candidates->list[i];

		if (candidate->pages < 0)
			continue;			/* dropped: its rule says so in a moment */
		if (sync->ntables > 0 && pages + candidate->pages > GROUP_PAGES)
			break;
		pages += candidate->pages;
		sync->tables[sync->ntables++] = candidate->tracked->slot;
		etl_shared->tables[candidate->tracked->slot].sync = index;
	}
	if (sync->ntables > 0)
		sync->state = ETL_SYNC_REQUESTED;
	LWLockRelease(&writer->pipeline->lock);
	LWLockRelease(&etl_shared->lock);

	return i - first;
}

static int
most_syncs(EtlWriter *writer)
{
	return Min(Max(writer->config->max_sync_workers, 1), ETL_SYNCS_PER_PIPELINE);
}

/*
 * Ask for sync workers for tables that wait.  Only once the slot is there and
 * nothing waits to be stored: the worker reads the tables.
 */
void
etl_writer_schedule(EtlWriter *writer)
{
	Candidates	candidates;
	int			running = 0;
	int			next = 0;

	if (!writer->schedule_wanted || !writer->pipeline->slot_created ||
		writer->pending != NIL || writer->failing ||
		writer->schedule_next > GetCurrentTimestamp())
		return;
	writer->schedule_wanted = false;

	for (int i = 0; i < ETL_SYNCS_PER_PIPELINE; i++)
		if (sync_entry(writer, i)->state != ETL_SYNC_FREE)
			running++;
	if (running >= most_syncs(writer))
		return;					/* the end of one of them brings us back */

	collect(writer, &candidates);
	if (candidates.n > 0 &&
		!etl_bracket_try(ETL_BRACKET_READ, "etl: reading sizes", sizes_body, &candidates))
	{
		writer->schedule_next = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOCK_RETRY);
		writer->schedule_wanted = true;
		pfree(candidates.list);
		return;
	}
	for (int i = 0; i < ETL_SYNCS_PER_PIPELINE && next < candidates.n &&
		 running < most_syncs(writer); i++)
	{
		EtlSyncShared *sync = sync_entry(writer, i);

		if (sync->state != ETL_SYNC_FREE)
			continue;
		next += request_sync(writer, sync, &candidates, next);
		running++;
	}
	if (candidates.n > 0)
		etl_shmem_wake_launcher();
	if (writer->schedule_next != 0)
		writer->schedule_wanted = true; /* some tables wait for their time */
	pfree(candidates.list);
}

/* ----------
 * Ends
 * ----------
 */

/* What becomes of a table whose sync worker has gone. */
static void
settle_table(EtlWriter *writer, uint32 index, int sync)
{
	EtlTracked *tracked = writer->tracked[index];
	EtlTableSlot *slot = &etl_shared->tables[index];
	EtlTableState state;

	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	if (slot->sync != sync || slot->pipeline != etl_shmem_pipeline_index(writer->pipeline))
	{
		LWLockRelease(&writer->pipeline->lock);
		return;
	}
	slot->sync = -1;
	state = (EtlTableState) slot->state;
	LWLockRelease(&writer->pipeline->lock);

	if (tracked == NULL || state == ETL_TABLE_DROPPED)
	{
		if (tracked != NULL)
			writer->tracked[index] = NULL;
		writer->last = NULL;
		etl_shmem_free_table(slot);
		return;
	}
	switch (state)
	{
		case ETL_TABLE_DATA_SYNC:
		case ETL_TABLE_FINISHED_COPY:
		case ETL_TABLE_SYNC_WAIT:
		case ETL_TABLE_CATCHUP:
		case ETL_TABLE_INIT:
			tracked->failures++;
			tracked->not_before =
				TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											etl_backoff_delay(tracked->failures,
															  writer->config->retry_delay,
															  writer->config->max_retry_delay));
			etl_writer_renew(writer, tracked, NULL, 0, (EtlCopyReason) slot->reason, true);
			break;
		case ETL_TABLE_SYNC_DONE:

			/*
			 * Taken over, so everything before owned_from is durable.  The
			 * worker's queue is gone: apply's carries what is left to do.
			 */
			etl_writer_handover(writer, &writer->intakes[0],
								etl_queue_read_position(writer->intakes[0].queue),
								index, slot->owned[0].generation);
			break;
		default:
			break;
	}
}

/* What is still in lanes of a copy that is given up. */
static void
skip_rest(EtlWriter *writer, EtlSyncShared *sync)
{
	for (int i = 0; i < sync->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[sync->tables[i]];

		if (slot->state == ETL_TABLE_SYNC_DONE || slot->state == ETL_TABLE_READY ||
			writer->tracked[sync->tables[i]] == NULL)
			continue;
		for (int g = 0; g < writer->ngenerations; g++)
		{
			EtlGeneration *generation = writer->generations[g];

			if (generation->slot == sync->tables[i] &&
				generation->generation == slot->generation &&
				slot->owned[0].generation != slot->generation)
				generation->out = true;
		}
	}
}

static void
clear_up(EtlWriter *writer, EtlIntake *intake, EtlSyncShared *sync)
{
	int			index = sync - etl_shared->syncs;

	if (intake->queue)
	{
		skip_rest(writer, sync);

		/* records that are left, then what is on its way and to be stored */
		if (etl_queue_used(intake->queue) > 0 &&
			etl_queue_may_sleep(intake->queue) == false)
			return;
		etl_queue_awake(intake->queue);
		if (etl_sender_oldest(writer->sender, intake->group) != PG_UINT64_MAX ||
			etl_pending_oldest(writer, intake) != PG_UINT64_MAX)
			return;
	}
	etl_writer_detach(writer, intake);
	for (int i = 0; i < sync->ntables; i++)
		settle_table(writer, sync->tables[i], index);

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	sync->state = ETL_SYNC_FREE;
	sync->ntables = 0;
	sync->queue = 0;
	LWLockRelease(&etl_shared->lock);
	etl_shmem_wake_launcher();
	writer->scan = true;
	writer->schedule_wanted = true;
}

/*
 * The queue of a sync worker, 0 for none.  One made for a former incarnation
 * is half read, and its worker will make another: who went on with it would
 * deliver rows of unknown shape, and before what the old writer has lost.
 */
static dsm_handle
queue_of(EtlWriter *writer, EtlSyncShared *sync)
{
	dsm_handle	queue;

	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	queue = sync->queue_for == etl_worker_args.incarnation ? sync->queue : 0;
	LWLockRelease(&writer->pipeline->lock);
	return queue;
}

/* Queues of sync workers come, workers go. */
void
etl_writer_watch_syncs(EtlWriter *writer)
{
	for (int i = 0; i < ETL_SYNCS_PER_PIPELINE; i++)
	{
		EtlSyncShared *sync = sync_entry(writer, i);
		EtlIntake  *intake = &writer->intakes[1 + i];
		volatile EtlSyncShared *now = sync;

		if (now->state == ETL_SYNC_FREE)
			continue;
		intake->sync = sync;
		if (now->queue != intake->handle && now->state != ETL_SYNC_EXITED)
		{
			dsm_handle	handle = queue_of(writer, sync);

			if (intake->handle != 0)
				etl_writer_detach(writer, intake);
			if (handle != 0)
				etl_writer_attach(writer, intake, handle);
		}
		if (now->state == ETL_SYNC_EXITED)
			clear_up(writer, intake, sync);
	}
}
