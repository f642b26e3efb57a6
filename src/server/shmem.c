/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  The shared memory of etl: layout, pipelines, table slots.
 *
 * One segment of fixed size holds EtlShared and, behind it, the arrays.  Its
 * size follows from etl.max_pipelines and etl.max_tables, so nothing here can
 * run out of memory later; what is full says so and others wait.
 *
 * Table slots are found through a chained hash over (pipeline, relid), whose
 * chains and free list run through the slots themselves.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "guc.h"
#include "server/adjusted.h"
#include "server/failpoint.h"
#include "server/shmem.h"

/*
 * Databases that may be asked for at the same time.  When they do not
 * suffice, a function's caller gets an error, and the launcher's own requests
 * turn into a look at every database.
 */
#define ETL_MAX_REQUESTS 256

EtlShared  *etl_shared = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/* ----------
 * Layout
 * ----------
 */

static int
bucket_count(void)
{
	int			n = 64;

	while (n < etl_max_tables)
		n *= 2;
	return n;
}

static int
sync_count(void)
{
	return etl_max_pipelines * ETL_SYNCS_PER_PIPELINE;
}

static Size
shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(EtlShared));

	size = add_size(size, MAXALIGN(mul_size(ETL_MAX_REQUESTS, sizeof(EtlDatabaseRequest))));
	size = add_size(size, MAXALIGN(mul_size(etl_max_pipelines, sizeof(EtlPipelineShared))));
	size = add_size(size, MAXALIGN(mul_size(sync_count(), sizeof(EtlSyncShared))));
	size = add_size(size, MAXALIGN(mul_size(etl_max_tables, sizeof(EtlTableSlot))));
	size = add_size(size, MAXALIGN(mul_size(bucket_count(), sizeof(int32))));
	return size;
}

static void
shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	RequestAddinShmemSpace(shmem_size());
	RequestAddinShmemSpace(etl_adjusted_shmem_size());
#ifdef ETL_TEST
	RequestAddinShmemSpace(etl_failpoint_shmem_size());
#endif
}

/* The arrays, one behind the other; sizes as in shmem_size(). */
static void
place_arrays(EtlShared *shared)
{
	char	   *place = (char *) shared + MAXALIGN(sizeof(EtlShared));

	shared->nrequests = ETL_MAX_REQUESTS;
	shared->requests = (EtlDatabaseRequest *) place;
	place += MAXALIGN(ETL_MAX_REQUESTS * sizeof(EtlDatabaseRequest));

	shared->npipelines = etl_max_pipelines;
	shared->pipelines = (EtlPipelineShared *) place;
	place += MAXALIGN(etl_max_pipelines * sizeof(EtlPipelineShared));

	shared->nsyncs = sync_count();
	shared->syncs = (EtlSyncShared *) place;
	place += MAXALIGN(sync_count() * sizeof(EtlSyncShared));

	shared->ntables = etl_max_tables;
	shared->tables = (EtlTableSlot *) place;
	place += MAXALIGN(etl_max_tables * sizeof(EtlTableSlot));

	shared->nbuckets = bucket_count();
	shared->buckets = (int32 *) place;
}

static void
init_table_slot(EtlTableSlot *slot)
{
	pg_atomic_init_u64(&slot->rows_copied, 0);
	pg_atomic_init_u64(&slot->bytes_copied, 0);
	pg_atomic_init_u64(&slot->inserts, 0);
	pg_atomic_init_u64(&slot->updates, 0);
	pg_atomic_init_u64(&slot->deletes, 0);
	pg_atomic_init_u64(&slot->truncates, 0);
	pg_atomic_init_u64(&slot->last_change_time, 0);
	pg_atomic_init_u64(&slot->last_delivered_lsn, 0);
	pg_atomic_init_u64(&slot->rows_estimated, 0);
}

static void
init_shared(EtlShared *shared)
{
	int			tranche = LWLockNewTrancheId();

	memset(shared, 0, shmem_size());
	place_arrays(shared);
	LWLockInitialize(&shared->lock, tranche);
	ConditionVariableInit(&shared->departed);
	pg_atomic_init_u32(&shared->workers, 0);

	/*
	 * Incarnations name workers in what they send, so they must not come
	 * again after a restart of the server.
	 */
	shared->next_incarnation = (uint64) GetCurrentTimestamp();

	for (int i = 0; i < shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &shared->pipelines[i];
		pg_atomic_uint64 *end = (pg_atomic_uint64 *) (pipeline + 1);

		LWLockInitialize(&pipeline->lock, tranche);
		/* the atomics are the struct's tail */
		for (pg_atomic_uint64 *value = &pipeline->config_wanted; value < end; value++)
			pg_atomic_init_u64(value, 0);
	}
	for (int i = 0; i < shared->nsyncs; i++)
		pg_atomic_init_u64(&shared->syncs[i].durable_lsn, 0);
	for (int i = 0; i < shared->nbuckets; i++)
		shared->buckets[i] = -1;
	for (int i = 0; i < shared->ntables; i++)
	{
		shared->tables[i].pipeline = -1;
		shared->tables[i].next = i + 1 < shared->ntables ? i + 1 : -1;
		init_table_slot(&shared->tables[i]);
	}
	shared->free_table = shared->ntables > 0 ? 0 : -1;
}

static void
shmem_startup(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	etl_shared = ShmemInitStruct("etl", shmem_size(), &found);
	if (!found)
		init_shared(etl_shared);
	etl_adjusted_shmem_init();
#ifdef ETL_TEST
	etl_failpoint_shmem_init();
#endif
	LWLockRelease(AddinShmemInitLock);

	LWLockRegisterTranche(etl_shared->lock.tranche, "etl");
}

void
etl_shmem_install_hooks(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

void
etl_shmem_require(void)
{
	if (etl_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("etl must be loaded via shared_preload_libraries"),
				 errhint("Add \"etl\" to shared_preload_libraries and restart the server.")));
}

/* ----------
 * Pipelines
 * ----------
 */

EtlPipelineShared *
etl_shmem_find_pipeline(Oid database, int64 id)
{
	Assert(LWLockHeldByMe(&etl_shared->lock));

	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (pipeline->in_use && pipeline->database == database && pipeline->id == id)
			return pipeline;
	}
	return NULL;
}

/* Has the entry a process, or one that was registered and may still attach? */
static bool
pipeline_is_alive(const EtlPipelineShared *pipeline)
{
	if (pipeline->started_at != 0 || pipeline->cleanup_pid != 0 ||
		pipeline->apply_proc != NULL || pipeline->writer_proc != NULL)
		return true;

	for (int i = 0; i < etl_shared->nsyncs; i++)
	{
		const EtlSyncShared *sync = &etl_shared->syncs[i];

		if ((sync->state == ETL_SYNC_STARTED || sync->state == ETL_SYNC_RUNNING) &&
			sync->pipeline == etl_shmem_pipeline_index(pipeline))
			return true;
	}
	return false;
}

/* Everything but the lock back to zero. */
static void
clear_pipeline(EtlPipelineShared *pipeline)
{
	pg_atomic_uint64 *end = (pg_atomic_uint64 *) (pipeline + 1);

	StaticAssertStmt((sizeof(EtlPipelineShared) - offsetof(EtlPipelineShared, config_wanted)) %
					 sizeof(pg_atomic_uint64) == 0,
					 "atomics are the tail of EtlPipelineShared");

	memset(pipeline, 0, offsetof(EtlPipelineShared, lock));
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	memset(&pipeline->state, 0,
		   offsetof(EtlPipelineShared, config_wanted) - offsetof(EtlPipelineShared, state));
	for (pg_atomic_uint64 *value = &pipeline->config_wanted; value < end; value++)
		pg_atomic_write_u64(value, 0);
	LWLockRelease(&pipeline->lock);
}

/*
 * A free entry; else one of a pipeline that was running earlier, is not
 * wanted and has nothing left to do: the tables know all about it.
 */
static EtlPipelineShared *
find_free_pipeline(void)
{
	for (int i = 0; i < etl_shared->npipelines; i++)
		if (!etl_shared->pipelines[i].in_use)
			return &etl_shared->pipelines[i];

	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (!pipeline->wanted && !pipeline->doomed &&
			pipeline->state == ETL_PIPELINE_STOPPED && !pipeline_is_alive(pipeline))
		{
			etl_shmem_free_pipeline(pipeline);
			return pipeline;
		}
	}
	return NULL;
}

EtlPipelineShared *
etl_shmem_get_pipeline(Oid database, int64 id, const char *name)
{
	EtlPipelineShared *pipeline = etl_shmem_find_pipeline(database, id);

	Assert(LWLockHeldByMeInMode(&etl_shared->lock, LW_EXCLUSIVE));

	if (pipeline == NULL)
	{
		pipeline = find_free_pipeline();
		if (pipeline == NULL)
			return NULL;
		clear_pipeline(pipeline);
		pipeline->database = database;
		pipeline->id = id;
		pipeline->released = etl_shmem_released(database);
		pipeline->in_use = true;
	}
	namestrcpy(&pipeline->name, name);
	return pipeline;
}

static int32 *
bucket_of(int32 pipeline, Oid relid)
{
	uint32		hash = hash_combine(murmurhash32(relid), murmurhash32(pipeline));

	return &etl_shared->buckets[hash & (etl_shared->nbuckets - 1)];
}

/* Take a slot out of its hash chain and put it into the free list. */
static void
unlink_table(EtlTableSlot *slot)
{
	int32		index = etl_shmem_table_index(slot);
	int32	   *link = bucket_of(slot->pipeline, slot->relid);

	while (*link != index)
	{
		Assert(*link >= 0);
		link = &etl_shared->tables[*link].next;
	}
	*link = slot->next;
	slot->next = etl_shared->free_table;
	etl_shared->free_table = index;
	slot->relid = InvalidOid;
	slot->pipeline = -1;
	etl_adjusted_forget(index);
}

void
etl_shmem_free_pipeline(EtlPipelineShared *pipeline)
{
	int32		index = etl_shmem_pipeline_index(pipeline);

	Assert(LWLockHeldByMeInMode(&etl_shared->lock, LW_EXCLUSIVE));

	for (int i = 0; i < etl_shared->nsyncs; i++)
	{
		EtlSyncShared *sync = &etl_shared->syncs[i];

		if (sync->state != ETL_SYNC_FREE && sync->pipeline == index)
		{
			Assert(sync->proc == NULL);
			sync->state = ETL_SYNC_FREE;
		}
	}

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	for (int i = 0; i < etl_shared->ntables; i++)
		if (etl_shared->tables[i].pipeline == index)
			unlink_table(&etl_shared->tables[i]);
	LWLockRelease(&pipeline->lock);

	clear_pipeline(pipeline);
}

bool
etl_shmem_released(Oid database)
{
	Assert(LWLockHeldByMe(&etl_shared->lock));

	for (int i = 0; i < ETL_MAX_RELEASES; i++)
		if (etl_shared->releases[i].database == database)
			return true;
	return false;
}

int
etl_shmem_pipeline_index(const EtlPipelineShared *pipeline)
{
	return (int) (pipeline - etl_shared->pipelines);
}

/* ----------
 * Table slots
 * ----------
 */

static EtlTableSlot *
find_table_locked(int32 pipeline, Oid relid)
{
	for (int32 i = *bucket_of(pipeline, relid); i >= 0; i = etl_shared->tables[i].next)
	{
		EtlTableSlot *slot = &etl_shared->tables[i];

		if (slot->relid == relid && slot->pipeline == pipeline)
			return slot;
	}
	return NULL;
}

EtlTableSlot *
etl_shmem_find_table(EtlPipelineShared *pipeline, Oid relid)
{
	EtlTableSlot *slot;

	Assert(!LWLockHeldByMe(&pipeline->lock));	/* the order of locks */

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	slot = find_table_locked(etl_shmem_pipeline_index(pipeline), relid);
	LWLockRelease(&etl_shared->lock);
	return slot;
}

/* A fresh slot: in state init, owned by nobody.  Both locks are held. */
static void
reset_table(EtlTableSlot *slot, int32 pipeline, Oid relid)
{
	memset(slot, 0, offsetof(EtlTableSlot, rows_copied));
	slot->relid = relid;
	slot->pipeline = pipeline;
	slot->sync = -1;
	pg_atomic_write_u64(&slot->rows_copied, 0);
	pg_atomic_write_u64(&slot->bytes_copied, 0);
	pg_atomic_write_u64(&slot->inserts, 0);
	pg_atomic_write_u64(&slot->updates, 0);
	pg_atomic_write_u64(&slot->deletes, 0);
	pg_atomic_write_u64(&slot->truncates, 0);
	pg_atomic_write_u64(&slot->last_change_time, 0);
	pg_atomic_write_u64(&slot->last_delivered_lsn, 0);
	pg_atomic_write_u64(&slot->rows_estimated, 0);
}

EtlTableSlot *
etl_shmem_get_table(EtlPipelineShared *pipeline, Oid relid)
{
	int32		index = etl_shmem_pipeline_index(pipeline);
	EtlTableSlot *slot;

	Assert(OidIsValid(relid));
	Assert(!LWLockHeldByMe(&pipeline->lock));

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	slot = find_table_locked(index, relid);
	if (slot == NULL && etl_shared->free_table >= 0)
	{
		int32	   *bucket = bucket_of(index, relid);
		int32		number = etl_shared->free_table;

		slot = &etl_shared->tables[number];
		etl_shared->free_table = slot->next;
		LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
		reset_table(slot, index, relid);
		slot->next = *bucket;
		*bucket = number;
		LWLockRelease(&pipeline->lock);
	}
	LWLockRelease(&etl_shared->lock);
	return slot;
}

void
etl_shmem_free_table(EtlTableSlot *slot)
{
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	if (slot->pipeline >= 0)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[slot->pipeline];

		LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
		unlink_table(slot);
		LWLockRelease(&pipeline->lock);
	}
	LWLockRelease(&etl_shared->lock);
}

uint32
etl_shmem_table_index(const EtlTableSlot *slot)
{
	return (uint32) (slot - etl_shared->tables);
}

/* ----------
 * Waking
 * ----------
 */

void
etl_shmem_wake_launcher_locked(void)
{
	Assert(LWLockHeldByMe(&etl_shared->lock));
	if (etl_shared->launcher != NULL)
		SetLatch(&etl_shared->launcher->procLatch);
}

void
etl_shmem_wake_launcher(void)
{
	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	etl_shmem_wake_launcher_locked();
	LWLockRelease(&etl_shared->lock);
}

void
etl_shmem_wake_pipeline_locked(EtlPipelineShared *pipeline)
{
	Assert(LWLockHeldByMe(&etl_shared->lock));
	if (pipeline->apply_proc != NULL)
		SetLatch(&pipeline->apply_proc->procLatch);
	if (pipeline->writer_proc != NULL)
		SetLatch(&pipeline->writer_proc->procLatch);
}

void
etl_shmem_wake_pipeline(EtlPipelineShared *pipeline)
{
	Assert(!LWLockHeldByMe(&pipeline->lock));	/* the order of locks */

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	etl_shmem_wake_pipeline_locked(pipeline);
	LWLockRelease(&etl_shared->lock);
}
