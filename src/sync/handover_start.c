/*-------------------------------------------------------------------------
 *
 * handover_start.c
 *	  Catch-up of a sync worker: queue, stream and decoder, made and made anew.
 *
 * They belong to one incarnation of the pair.  When the pair is started again,
 * the worker throws them away and decodes again from what its slot has
 * confirmed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "catalog/store.h"
#include "server/worker.h"
#include "source/slot.h"
#include "sync/handover.h"

#define QUEUE_SIZE		((Size) 4 * 1024 * 1024)
#define SAVE_MS			1000	/* between two writes of the slot */

bool
etl_handover_pair_changed(const EtlHandover *h)
{
	const volatile EtlPipelineShared *pipeline = etl_worker_pipeline;

	return pipeline->incarnation != h->incarnation;
}

void
etl_handover_confirm(EtlHandover *h, XLogRecPtr lsn)
{
	TimestampTz now;
	bool		save;

	if (lsn <= h->confirmed)
		return;
	now = GetCurrentTimestamp();
	save = TimestampDifferenceExceeds(h->saved, now, SAVE_MS);
	etl_decoder_confirm(h->decoder, lsn, save);
	h->confirmed = lsn;
	if (save)
		h->saved = now;
}

/* The ring is full. */
static void
ring_full(void *arg)
{
	EtlHandover *h = arg;

	etl_sync_check_stop();

	/* the transaction is read to its end, into the void; then all is made anew */
	if (etl_handover_pair_changed(h))
		etl_queue_abandon(h->queue);
	else
		etl_handover_confirm(h, pg_atomic_read_u64(&etl_worker_sync->durable_lsn));
}

/* What is known of tables and rules by now; read when the pair was restarted. */
static void
reload_body(void *arg)
{
	EtlHandover *h = arg;
	EtlConfig  *config = etl_config_load(h->config->id, false, h->context);
	MemoryContext context;
	ListCell   *lc;

	etl_rules_load_local_schemas();
	if (config == NULL)
		return;
	context = MemoryContextSwitchTo(h->context);
	h->config = config;

	/* rules of the copy itself stay: the stored ones may begin later by now */
	h->rules = list_copy(h->group->rules);
	foreach(lc, etl_store_read_rules(config->id))
		if (((EtlRule *) lfirst(lc))->from_lsn >= h->group->snapshot_lsn)
			h->rules = lappend(h->rules, lfirst(lc));
	for (int i = 0; i < h->ntables; i++)
	{
		List	   *shapes = etl_store_read_shapes(config->id, h->tables[i].relid,
												   h->tables[i].generation);

		if (shapes != NIL)
			h->tables[i].shape = llast(shapes);
		h->tables[i].versions = shapes;
	}
	MemoryContextSwitchTo(context);
}

static void
make_tables(EtlHandover *h)
{
	EtlSyncGroup *group = h->group;

	h->tables = palloc0(sizeof(EtlStreamTable) * group->ntables);
	h->ntables = 0;
	for (int i = 0; i < group->ntables; i++)
	{
		EtlSyncTable *table = &group->tables[i];

		if (table->left)
			continue;
		h->tables[h->ntables].slot = table->slot;
		h->tables[h->ntables].relid = table->relid;
		h->tables[h->ntables].generation = table->generation;
		h->tables[h->ntables].shape = table->shape;
		h->ntables++;
	}
}

static void
publish_queue(EtlHandover *h)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	pg_atomic_write_u64(&etl_worker_sync->durable_lsn, InvalidXLogRecPtr);
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	etl_worker_sync->queue = etl_queue_handle(h->queue);
	etl_worker_sync->queue_for = h->incarnation;
	LWLockRelease(&pipeline->lock);
	etl_shmem_wake_pipeline(pipeline);
}

/* Everything that lives as long as the pair; "again": the pair is a new one. */
void
etl_handover_build(EtlHandover *h, bool again)
{
	MemoryContext context;

	h->incarnation = etl_worker_pipeline->incarnation;
	if (h->queue)
		etl_queue_detach(h->queue);
	h->queue = NULL;
	MemoryContextReset(h->context);
	context = MemoryContextSwitchTo(h->context);
	h->progressed = InvalidXLogRecPtr;
	h->shapes_put = 0;
	h->tables_version = 0;
	h->config = h->group->config;
	h->rules = h->group->rules;

	make_tables(h);
	while (again && !etl_bracket_try(ETL_BRACKET_DECODER, "etl: read state", reload_body, h))
		etl_sync_pause(100);
	for (int i = 0; i < h->ntables; i++)
		h->tables[i].options = etl_config_table_options(h->config,
														h->tables[i].shape->schema_name,
														h->tables[i].shape->table_name);

	h->queue = etl_queue_create(QUEUE_SIZE);
	h->stream = etl_stream_create_sync(h->config, h->queue, h->ntables, h->tables,
									   h->rules);
	etl_stream_set_idle(h->stream, ring_full, h);
	publish_queue(h);
	if (!h->taken)
	{
		h->decoder = etl_decoder_start(InvalidXLogRecPtr, &etl_stream_callbacks, h->stream);
		h->confirmed = MyReplicationSlot->data.confirmed_flush;
	}
	MemoryContextSwitchTo(context);
}

/* The decoding context is of no use any more: get rid of all it may hold. */
void
etl_handover_clean_up(EtlHandover *h)
{
	if (h->decoder)
		etl_decoder_stop(h->decoder);
	h->decoder = NULL;
	etl_slot_release();
	InvalidateSystemCaches();
}
