/*-------------------------------------------------------------------------
 *
 * watch.c
 *	  What the writer looks at between records: its pipeline's definition,
 *	  users' requests, the slot.
 *
 * All of it is told by shared memory, so a look costs a few reads; the tables
 * are read only when that says that something is new.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "catalog/options.h"
#include "guc.h"
#include "pipeline/table_state.h"
#include "server/worker.h"
#include "writer/writer.h"

#define LOCK_RETRY	200			/* ms */

/* ----------
 * The slot
 * ----------
 */

static void
store_slot_created(EtlWriter *writer, EtlPending *pending)
{
	etl_store_slot_created(writer->config->id, true);
}

static void
slot_created_stored(EtlWriter *writer, EtlPending *pending)
{
	ETL_FAILPOINT("writer_slot_created");
	writer->config->slot_created = true;
	writer->slot_pending = false;
	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	writer->pipeline->slot_created = true;
	LWLockRelease(&writer->pipeline->lock);
	etl_shmem_wake_pipeline(writer->pipeline);
	writer->scan = true;
}

/* A new stream under a new slot: what apply had before it is lost. */
static void
begin_again_body(void *arg)
{
	EtlWriter  *writer = arg;
	EtlConfig  *config = writer->config;
	EtlConfig	changed = *config;
	ListCell   *lc;

	changed.epoch++;
	changed.slot_created = false;
	etl_store_forget_history(config->id);
	foreach(lc, etl_store_read_tables(config->id))
	{
		EtlTableRow *row = lfirst(lc);

		if (row->state == ETL_TABLE_DROPPED)
			etl_store_delete_table(config->id, row->relid);
		else if (row->state != ETL_TABLE_EXCLUDED)
			etl_store_init(config->id, row->relid, ETL_COPY_SLOT_LOSS, false);
	}
	etl_store_identity(&changed);
	etl_store_resync_done(config->id, config->resync_requests);
}

/*
 * The slot that we had is gone or of no use.  Going on from now would lose
 * changes silently, so the pipeline fails, or all tables are copied again.
 *
 * A copy of the server has no slot either (base backups have none), whatever
 * its timeline, and only its user knows whether the other one still runs: it
 * does not go by on_slot_loss.
 */
static void
answer_lost_slot(EtlWriter *writer)
{
	/* apply looks at the slot once, at its start: before or after we saw the request */
	bool		told = writer->resync_told ||
		writer->config->resync_requests > writer->resync_done;

	if (writer->moved && !told)
		etl_writer_fail(writer, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						"the server was restored or promoted, and the pipeline's replication slot is not there",
						"If this server is to deliver in the other's place, call etl.resync_pipeline() and etl.start_pipeline().");
	if (!writer->config->resync_on_slot_loss && !told)
		etl_writer_fail(writer, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						psprintf("replication slot \"%s\" is missing, has lost its WAL or was advanced by somebody else",
								 writer->config->slot_name),
						"Changes may be missing at the destination.  Call etl.resync_pipeline() and etl.start_pipeline() to copy all tables again.");

	ereport(LOG,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("pipeline \"%s\" has lost its replication slot and copies all tables again",
					writer->config->name)));
	etl_writer_bracket(ETL_BRACKET_WRITE, "etl: beginning again", begin_again_body, writer);
	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	writer->pipeline->restart_requested = true;
	LWLockRelease(&writer->pipeline->lock);
	etl_shmem_wake_pipeline(writer->pipeline);
	etl_shmem_wake_launcher();
}

static void
watch_slot(EtlWriter *writer)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	bool		ready;
	bool		lost;

	LWLockAcquire(&pipeline->lock, LW_SHARED);
	ready = pipeline->slot_ready && !pipeline->slot_created;
	lost = pipeline->slot_lost;
	LWLockRelease(&pipeline->lock);

	if (ready && !writer->slot_pending)
	{
		EtlPending *pending = etl_pending_new(writer, store_slot_created, NULL, 0);

		pending->stored = slot_created_stored;
		writer->slot_pending = true;
	}
	if (lost)
		answer_lost_slot(writer);
}

/* ----------
 * Definition and requests
 * ----------
 */

/* Take counters of requests; the next scan of the tables acts on them. */
void
etl_writer_read_intents(EtlWriter *writer, List *intents)
{
	ListCell   *lc;

	foreach(lc, intents)
	{
		EtlTableIntent *intent = lfirst(lc);
		EtlTableSlot *slot = etl_shmem_find_table(writer->pipeline, intent->relid);
		EtlTracked *tracked;

		if (slot == NULL)
			continue;
		tracked = writer->tracked[etl_shmem_table_index(slot)];
		if (tracked == NULL)
			continue;
		tracked->resync_wanted = intent->resync_requests;
		tracked->retry_wanted = intent->retry_requests;
	}
	writer->scan = true;
}

typedef struct Look
{
	EtlWriter  *writer;
	MemoryContext context;
	EtlConfig  *config;
	List	   *intents;
	bool		gone;
} Look;

static void
look_body(void *arg)
{
	Look	   *look = arg;
	MemoryContext context;

	/*
	 * We are woken by a commit callback, before that commit has sent its
	 * invalidations: what is cached of servers and user mappings may be old.
	 */
	InvalidateSystemCaches();

	look->gone = !etl_extension_present();
	if (look->gone)
		return;
	look->config = etl_config_load(look->writer->config->id, true, look->context);
	context = MemoryContextSwitchTo(look->context);
	look->intents = etl_store_read_intents(look->writer->config->id);
	MemoryContextSwitchTo(context);
}

/* Do the two definitions lead to other bytes or another behaviour? */
static bool
differs(EtlWriter *writer, const EtlConfig *new)
{
	const EtlConfig *old = writer->config;

	if (strcmp(old->name, new->name) != 0 ||
		(strcmp(old->publication, new->publication) != 0 &&
		 (!OidIsValid(old->publication_oid) || old->publication_oid != new->publication_oid)) ||
		strcmp(old->server, new->server) != 0 ||
		old->owner != new->owner || old->server_oid != new->server_oid ||
		old->routine != new->routine ||
		!etl_options_equal(old->options, new->options))
		return true;

	/* these follow settings */
	if (strcmp(writer->allowed_hosts, etl_allowed_hosts) != 0)
		return true;			/* connections of now are no measure */
	if (old->max_batch_size != new->max_batch_size ||
		old->max_batch_events != new->max_batch_events ||
		old->max_batch_delay != new->max_batch_delay ||
		old->queue_size != new->queue_size ||
		old->max_sync_workers != new->max_sync_workers ||
		old->retry_delay != new->retry_delay ||
		old->max_retry_delay != new->max_retry_delay ||
		old->auth_retry_delay != new->auth_retry_delay)
		return true;

	return etl_config_tables_differ(old, new);
}

static void
restart_pair(EtlWriter *writer, const EtlConfig *new)
{
	ereport(LOG,
			(errmsg("pipeline \"%s\" starts again with its new definition", new->name)));
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	namestrcpy(&writer->pipeline->name, new->name);
	writer->pipeline->definition++;
	LWLockRelease(&etl_shared->lock);
	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	writer->pipeline->restart_requested = true;
	LWLockRelease(&writer->pipeline->lock);
	etl_shmem_wake_pipeline(writer->pipeline);
	etl_shmem_wake_launcher();
}

static void
store_resync_done(EtlWriter *writer, EtlPending *pending)
{
	etl_store_resync_done(writer->config->id, (int64) pending->number);
}

/* etl.resync_pipeline(): all tables again, beside what is there. */
static void
resync_all(EtlWriter *writer, int64 requests)
{
	EtlPending *pending;

	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTracked *tracked = writer->tracked[i];
		EtlTableState state = (EtlTableState) etl_shared->tables[i].state;

		if (tracked == NULL)
			continue;
		if (state == ETL_TABLE_READY || state == ETL_TABLE_SYNC_DONE)
			etl_writer_renew(writer, tracked, NULL, 0, ETL_COPY_RESYNC, true);
		else if (state == ETL_TABLE_ERRORED)
			etl_writer_renew(writer, tracked, NULL, 0, ETL_COPY_RESYNC, false);
		else if (state != ETL_TABLE_INIT && state != ETL_TABLE_EXCLUDED)
			etl_writer_renew(writer, tracked, NULL, 0, ETL_COPY_RESYNC, true);
	}
	writer->resync_done = requests;
	writer->resync_told = true;
	pending = etl_pending_new(writer, store_resync_done, NULL, 0);
	pending->number = (uint64) requests;
}

/* Act on what the tables say now. */
static void
act(EtlWriter *writer, Look *look)
{
	EtlConfig  *config = look->config;

	if (look->gone)
		etl_worker_exit(ETL_EXIT_DONE);
	if (config == NULL || !config->enabled || config->dropping)
	{
		LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
		writer->pipeline->wanted = false;
		LWLockRelease(&etl_shared->lock);
		etl_shmem_wake_pipeline(writer->pipeline);
		etl_shmem_wake_launcher();
		return;
	}
	if (differs(writer, config))
	{
		restart_pair(writer, config);
		return;
	}
	etl_writer_read_intents(writer, look->intents);
	writer->config->resync_requests = config->resync_requests;
	if (config->resync_requests > writer->resync_done)
		resync_all(writer, config->resync_requests);
	etl_writer_scan(writer);
}

/*
 * Read definition and requests.  False when a user's lock is in the way.  A
 * definition that is of no use any more makes the pipeline fail.
 */
static bool
look_again(EtlWriter *writer)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;
	volatile bool done = false;
	Look		look;

	memset(&look, 0, sizeof(look));
	look.writer = writer;
	look.context = AllocSetContextCreate(EtlWorkerContext, "etl look at definition",
										 ALLOCSET_SMALL_SIZES);
	PG_TRY();
	{
		done = etl_bracket_try(ETL_BRACKET_READ, "etl: reading definition", look_body, &look);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION ||
			ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INSUFFICIENT_RESOURCES ||
			ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INTERNAL_ERROR)
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();

	if (error)
		etl_writer_fail(writer, error->sqlerrcode, error->message, error->hint);
	if (done)
		act(writer, &look);
	MemoryContextDelete(look.context);
	return done;
}

static void
watch_definition(EtlWriter *writer)
{
	uint64		wanted = pg_atomic_read_u64(&writer->pipeline->config_wanted);
	TimestampTz reloaded = PgReloadTime;

	if (wanted == writer->config_seen && reloaded == writer->reloaded)
		return;
	if (writer->config_next > GetCurrentTimestamp())
		return;
	if (!look_again(writer))
	{
		writer->config_next = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOCK_RETRY);
		return;
	}
	writer->config_next = 0;
	writer->config_seen = wanted;
	writer->reloaded = reloaded;
	if (!writer->pipeline->restart_requested)
		pg_atomic_write_u64(&writer->pipeline->config_seen_writer, wanted);
}

void
etl_writer_watch(EtlWriter *writer)
{
	/* a sync worker has found that the pipeline cannot go on */
	if (writer->pipeline->state == ETL_PIPELINE_FAILED)
		etl_worker_exit(ETL_EXIT_DONE);
	watch_slot(writer);
	watch_definition(writer);
}
