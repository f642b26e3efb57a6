/*-------------------------------------------------------------------------
 *
 * writer_start.c
 *	  Start of a writer: who are we, what is known, and is the destination
 *	  there?
 *
 * A pipeline is bound to the server, its files and the database in which it
 * first ran: what a restored, cloned or copied database finds in its tables is
 * somebody else's, and delivers nothing until a user says that this database
 * takes over (etl.resync_pipeline()).  The same server on another timeline, after a
 * point-in-time recovery or a failover, goes on with a higher epoch, since
 * positions may have fallen back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "catalog/store_private.h"
#include "guc.h"
#include "pipeline/table_state.h"
#include "server/worker.h"
#include "source/slot.h"
#include "writer/writer.h"

/* What the bracket has found. */
typedef struct Start
{
	EtlWriter  *writer;
	bool		gone;			/* extension or pipeline, or not enabled */
	bool		foreign;
	bool		restarted;		/* a new slot: nothing of the old stream holds */
	bool		owner_is_superuser;
	List	   *tables;			/* of EtlTableRow * */
	List	   *intents;		/* of EtlTableIntent * */
	List	   *columns;		/* of EtlColumnRow * */
} Start;

static bool owner_is_superuser;

/* ----------
 * Identity
 * ----------
 */

static void
draw_slot_name(EtlConfig *config)
{
	NameData	name;

	etl_slot_draw_name(MyDatabaseId, &name);
	config->slot_name = MemoryContextStrdup(config->context, NameStr(name));
	config->slot_created = false;
}

/* Here begins a new stream: under a new slot, a new epoch, without history. */
static void
begin_again(Start *start, bool keep_tables)
{
	EtlConfig  *config = start->writer->config;
	ListCell   *lc;

	config->epoch++;
	config->slot_created = false;
	etl_store_forget_history(config->id);
	foreach(lc, etl_store_read_tables(config->id))
	{
		EtlTableRow *row = lfirst(lc);

		if (!keep_tables || row->state == ETL_TABLE_DROPPED)
			etl_store_delete_table(config->id, row->relid);
		else if (row->state != ETL_TABLE_EXCLUDED)
			etl_store_init(config->id, row->relid, ETL_COPY_SLOT_LOSS, false);
	}
	start->restarted = true;
}

/* A slot that was made and cannot be used any more. */
static bool
slot_is_lost(const EtlConfig *config)
{
	EtlSlotCondition condition;

	if (!config->slot_created)
		return false;
	condition = etl_slot_look(config->slot_name);
	return condition == ETL_SLOT_MISSING || condition == ETL_SLOT_LOST ||
		condition == ETL_SLOT_FOREIGN;
}

/*
 * Has the pipeline's row come here with a copy of its database?  A promoted
 * standby and a restored backup have another timeline.  If they have the slot
 * they go on; if not, a user must say so (see answer_lost_slot()).
 */
static bool
is_foreign(const EtlConfig *config, uint32 timeline, uint64 data_directory)
{
	return config->system_identifier != GetSystemIdentifier() ||
		config->database != MyDatabaseId ||
		(config->timeline == timeline && config->data_directory != data_directory);
}

/* Compare with, or make, the row of etl.pipeline_state. */
static void
check_identity(Start *start)
{
	EtlConfig  *config = start->writer->config;
	uint32		timeline = GetWALInsertionTimeLine();
	uint64		data_directory = etl_config_data_directory();
	bool		take_over = config->resync_requests > start->writer->resync_done;
	bool		store = false;

	if (!config->has_state)
	{
		config->epoch = 0;
		draw_slot_name(config);
		store = true;
	}
	else if (is_foreign(config, timeline, data_directory))
	{
		if (!take_over)
		{
			start->foreign = true;
			return;
		}
		begin_again(start, false);
		/* a slot that came along with the files is dropped under its name */
		if (config->database != MyDatabaseId)
			draw_slot_name(config);
		store = true;
	}
	else if (take_over && slot_is_lost(config))
	{
		begin_again(start, true);
		store = true;
	}
	else if (config->timeline != timeline)
	{
		config->epoch++;
		store = true;
	}

	/* somebody made another slot of that name: it is not ours to drop */
	if (!config->slot_created &&
		etl_slot_look(config->slot_name) == ETL_SLOT_FOREIGN)
	{
		draw_slot_name(config);
		store = true;
	}

	start->writer->moved = config->has_state && config->data_directory != data_directory;
	config->system_identifier = GetSystemIdentifier();
	config->database = MyDatabaseId;
	config->timeline = timeline;
	config->data_directory = data_directory;
	config->has_state = true;
	if (store)
		etl_store_identity(config);
	etl_store_publication(config->id);
	if (take_over && start->restarted)
	{
		etl_store_resync_done(config->id, config->resync_requests);
		start->writer->resync_done = config->resync_requests;
	}
	etl_store_start_done(config->id, config->start_requests);
}

/*
 * Tables that were set aside with the whole pipeline go on where they were:
 * in place, unless options have been changed that only a new copy brings
 * about, and that may be what the trouble asked for.
 */
static void
resume_tables(Start *start)
{
	int64		id = start->writer->config->id;
	ListCell   *lc;

	foreach(lc, start->tables)
	{
		EtlTableRow *row = lfirst(lc);

		if (row->state != ETL_TABLE_ERRORED || row->recovery != ETL_RECOVERY_RESUME)
			continue;
		row->recovery = ETL_RECOVERY_NONE;
		if (etl_config_outdated(start->writer->config, row->relid, row->owned_generation))
		{
			row->state = ETL_TABLE_INIT;
			row->reason = ETL_COPY_RESYNC;
			row->owned_generation = 0;
			etl_store_init(id, row->relid, ETL_COPY_RESYNC, false);
			continue;
		}
		row->state = row->owned_generation > 0 ? ETL_TABLE_SYNC_DONE : ETL_TABLE_INIT;
		etl_store_resume(id, row->relid, row->state, row->retry_done);
	}
}

/* For apply, who sees the slot: has anybody moved it since we stopped? */
static void
take_stopped(EtlWriter *writer)
{
	XLogRecPtr	stopped = etl_store_take_stopped(writer->config->id);

	if (!writer->config->slot_created)
		stopped = InvalidXLogRecPtr;
	else if (XLogRecPtrIsInvalid(stopped))
		return;					/* nothing known, or not compared yet */
	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	writer->pipeline->stopped_lsn = stopped;
	LWLockRelease(&writer->pipeline->lock);
}

static void
start_body(void *arg)
{
	Start	   *start = arg;
	EtlWriter  *writer = start->writer;
	MemoryContext context;

	start->gone = true;
	if (!etl_extension_present())
		return;
	writer->config = etl_config_load(writer->pipeline->id, true, EtlWorkerContext);
	if (writer->config == NULL || !writer->config->enabled || writer->config->dropping)
		return;
	start->gone = false;
	start->restarted = false;
	owner_is_superuser = superuser_arg(writer->config->owner);
	writer->resync_done = etl_store_read_resync_done(writer->config->id);

	check_identity(start);
	if (start->foreign)
		return;
	context = MemoryContextSwitchTo(EtlWorkerContext);
	start->tables = etl_store_read_tables(writer->config->id);
	start->intents = etl_store_read_intents(writer->config->id);
	start->columns = etl_store_read_columns(writer->config->id);
	MemoryContextSwitchTo(context);
	resume_tables(start);
	take_stopped(writer);
	if (pg_atomic_read_u64(&writer->pipeline->batches) == 0)
		etl_store_read_statistics(writer->pipeline);
}

/* ----------
 * Tables into shared memory
 * ----------
 */

static void
fill_slot(EtlTableSlot *slot, const EtlTableRow *row)
{
	slot->state = row->state;
	if (row->state != ETL_TABLE_READY && row->state != ETL_TABLE_SYNC_DONE &&
		row->state != ETL_TABLE_ERRORED)
		slot->state = ETL_TABLE_INIT;
	slot->recovery = row->recovery;
	slot->reason = row->reason;
	slot->generation = row->generation;
	slot->sync = -1;
	memset(slot->owned, 0, sizeof(slot->owned));
	if (row->owned_generation > 0)
	{
		slot->owned[0].generation = row->owned_generation;
		slot->owned[0].owned_from = row->owned_from;
		slot->owned[0].shape_hash = row->shape_hash;
	}
	slot->resync_done = slot->resync_claimed = row->resync_done;
	slot->retry_done = slot->retry_claimed = row->retry_done;
	if (pg_atomic_read_u64(&slot->last_delivered_lsn) == 0)
	{
		pg_atomic_write_u64(&slot->rows_copied, row->rows_copied);
		pg_atomic_write_u64(&slot->bytes_copied, row->bytes_copied);
		pg_atomic_write_u64(&slot->rows_estimated, row->rows_estimated);
		pg_atomic_write_u64(&slot->inserts, row->inserts);
		pg_atomic_write_u64(&slot->updates, row->updates);
		pg_atomic_write_u64(&slot->deletes, row->deletes);
		pg_atomic_write_u64(&slot->truncates, row->truncates);
		pg_atomic_write_u64(&slot->last_change_time, (uint64) row->last_change_time);
		pg_atomic_write_u64(&slot->last_delivered_lsn, row->last_delivered_lsn);
	}
}

/* A sync worker outlives its pipeline's pair: its tables are its own. */
static bool
belongs_to_sync(EtlPipelineShared *pipeline, const EtlTableSlot *slot)
{
	const EtlSyncShared *sync;
	bool		alive;

	if (slot->sync < 0)
		return false;
	sync = &etl_shared->syncs[slot->sync];
	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	alive = etl_sync_entry_alive(sync) &&
		sync->pipeline == etl_shmem_pipeline_index(pipeline);
	LWLockRelease(&etl_shared->lock);
	return alive;
}

static void
load_table(EtlWriter *writer, const EtlTableRow *row)
{
	EtlTableSlot *slot;
	EtlTracked *tracked;
	bool		known;

	if (row->state == ETL_TABLE_EXCLUDED || row->state == ETL_TABLE_DROPPED)
		return;
	known = etl_shmem_find_table(writer->pipeline, row->relid) != NULL;
	slot = etl_shmem_get_table(writer->pipeline, row->relid);
	if (slot == NULL)
	{
		writer->tables_full = true;
		return;
	}
	if (!known || !belongs_to_sync(writer->pipeline, slot))
	{
		LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
		fill_slot(slot, row);
		LWLockRelease(&writer->pipeline->lock);
	}
	tracked = etl_writer_track(writer, slot, row->schema_name, row->table_name);
	tracked->stored = row->state;
}

/* Slots of a former run whose tables are not in the table any more. */
static void
free_unknown_slots(EtlWriter *writer)
{
	int			index = etl_shmem_pipeline_index(writer->pipeline);

	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[i];

		if (slot->pipeline == index && writer->tracked[i] == NULL &&
			!belongs_to_sync(writer->pipeline, slot))
			etl_shmem_free_table(slot);
	}
}

static void
load_tables(EtlWriter *writer, Start *start)
{
	ListCell   *lc;

	foreach(lc, start->tables)
		load_table(writer, lfirst(lc));
	free_unknown_slots(writer);
	etl_writer_load_columns(writer, start->columns);
	etl_writer_read_intents(writer, start->intents);
	pg_atomic_fetch_add_u64(&writer->pipeline->tables_version, 1);
	writer->scan = true;
}

static void
waiting_body(void *arg)
{
	Start	   *start = arg;
	MemoryContext context = MemoryContextSwitchTo(EtlWorkerContext);

	if (etl_extension_present())
		start->tables = etl_store_read_tables(start->writer->config->id);
	MemoryContextSwitchTo(context);
}

void
etl_writer_load_waiting(EtlWriter *writer)
{
	Start		start;
	ListCell   *lc;

	memset(&start, 0, sizeof(start));
	start.writer = writer;
	if (!etl_bracket_try(ETL_BRACKET_READ, "etl: reading tables", waiting_body, &start))
		return;
	writer->tables_full = false;
	foreach(lc, start.tables)
	{
		EtlTableRow *row = lfirst(lc);

		if (etl_shmem_find_table(writer->pipeline, row->relid) == NULL)
			load_table(writer, row);
	}
	list_free_deep(start.tables);
	if (!writer->tables_full)
	{
		LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
		if (writer->pipeline->waiting_for == ETL_WAIT_MAX_TABLES)
			writer->pipeline->waiting_for = ETL_WAIT_NOTHING;
		LWLockRelease(&writer->pipeline->lock);
	}
	pg_atomic_fetch_add_u64(&writer->pipeline->tables_version, 1);
	writer->scan = true;
}

/* ----------
 * Start
 * ----------
 */

/* Everything of shared memory that an incarnation begins with. */
static void
publish(EtlWriter *writer, bool restarted)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	EtlConfig  *config = writer->config;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	namestrcpy(&pipeline->name, config->name);
	namestrcpy(&pipeline->slot_name, config->slot_name);
	LWLockRelease(&etl_shared->lock);

	if (restarted || !config->slot_created)
	{
		pg_atomic_write_u64(&pipeline->durable_lsn, InvalidXLogRecPtr);
		pg_atomic_write_u64(&pipeline->confirmed_lsn, InvalidXLogRecPtr);
		pg_atomic_write_u64(&pipeline->decoded_lsn, InvalidXLogRecPtr);
		pg_atomic_write_u64(&pipeline->counted_lsn, InvalidXLogRecPtr);
	}

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->epoch = config->epoch;
	pipeline->slot_created = config->slot_created;
	pipeline->failed_sqlstate = 0;
	pipeline->failed_message[0] = '\0';
	pipeline->failed_hint[0] = '\0';
	pipeline->oldest_undelivered = 0;
	pipeline->last_progress = GetCurrentTimestamp();
	pipeline->waiting_since = pipeline->last_progress;	/* until apply says more */
	pipeline->queue = etl_queue_handle(writer->intakes[0].queue);
	LWLockRelease(&pipeline->lock);
}

/*
 * Read the definition.  What is wrong with it is a state of the pipeline, for
 * a user to mend; starting again and again would not.
 */
static void
read_definition(Start *start)
{
	EtlWriter  *writer = start->writer;
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		etl_writer_bracket(ETL_BRACKET_WRITE, "etl: starting", start_body, start);
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
	if (start->gone)
		etl_worker_exit(ETL_EXIT_DONE);
	if (start->foreign)
		etl_writer_fail(writer, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						"pipeline belongs to another server or database",
						"This database was restored, cloned, copied or moved.  Call etl.resync_pipeline() and etl.start_pipeline() if it is to deliver in the other's place.");
}

EtlWriter *
etl_writer_start(void)
{
	EtlWriter  *writer = MemoryContextAllocZero(EtlWorkerContext, sizeof(EtlWriter));
	Start		start;

	MemoryContextSwitchTo(EtlWorkerContext);
	memset(&start, 0, sizeof(start));
	start.writer = writer;
	writer->pipeline = etl_worker_pipeline;
	writer->config_seen = pg_atomic_read_u64(&writer->pipeline->config_wanted);
	writer->reloaded = PgReloadTime;
	writer->allowed_hosts = pstrdup(etl_allowed_hosts);
	writer->pending_context = AllocSetContextCreate(EtlWorkerContext, "etl things to store",
													ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < ETL_INTAKES; i++)
		writer->intakes[i].group = i;

	read_definition(&start);
	MemoryContextSwitchTo(EtlWorkerContext);
	writer->pipeline_lanes = (writer->config->routine->abilities & ETL_BATCH_PIPELINE) != 0;

	etl_writer_init_tables(writer);
	load_tables(writer, &start);
	list_free_deep(start.tables);
	list_free_deep(start.intents);
	list_free_deep(start.columns);

	writer->intakes[0].queue = etl_queue_create(writer->config->queue_size);
	etl_queue_set_consumer(writer->intakes[0].queue);
	publish(writer, start.restarted);
	/*
	 * resync_pipeline() of a stopped pipeline, options that ask for new copies:
	 * the first look acts on them
	 */
	if (writer->config->resync_requests > writer->resync_done || writer->config->layouts != NIL)
	{
		if (writer->config_seen == 0)
			writer->config_seen = pg_atomic_add_fetch_u64(&writer->pipeline->config_wanted, 1);
		writer->config_seen--;
	}
	pg_atomic_write_u64(&writer->pipeline->config_seen_writer, writer->config_seen);
	etl_shmem_wake_pipeline(writer->pipeline);

	return writer;
}

/* ----------
 * Connection
 * ----------
 */

/*
 * Connect to the destination, however long that takes: nothing is decoded
 * before, so waiting costs nothing but the WAL that the slot keeps.
 */
void
etl_writer_connect(EtlWriter *writer)
{
	const EtlConfig *config = writer->config;
	const EtlDestinationRoutine *routine = config->routine;
	EtlConnectArgs args = {
		.options = config->options,
		.source = config->source,
		.pipeline = config->name,
		.pipeline_id = config->id,
		.slot_name = config->slot_name,
		.epoch = config->epoch,
		.incarnation = etl_worker_args.incarnation,
		.is_superuser = owner_is_superuser,
		.is_tracked = etl_worker_is_tracked,
		.exists = etl_relation_exists,
	};
	EtlBackoff	backoff = {0};

	writer->connection = routine->open(&args);
	for (;;)
	{
		EtlResult	result;

		memset(&result, 0, sizeof(result));
		result.rejected = -1;
		result.retry_after = -1;
		routine->connect(writer->connection, &result);
		if (result.status == ETL_DONE)
			etl_writer_compare(writer, &result);
		if (result.status == ETL_DONE)
			break;
		if (result.status == ETL_FATAL)
			etl_writer_fail(writer, result.sqlstate, result.message,
							result.hint[0] ? result.hint : NULL);
		if (result.status != ETL_RETRY)
			result.status = ETL_ENDPOINT;

		if (backoff.attempts == 0)
			etl_writer_log_trouble(writer, &result);
		etl_backoff_failed(&backoff, config, &result);
		LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
		writer->pipeline->waiting_for = ETL_WAIT_DESTINATION;
		LWLockRelease(&writer->pipeline->lock);
		for (;;)
		{
			long		left = etl_backoff_left(&backoff, GetCurrentTimestamp());

			if (left == 0)
				break;
			(void) etl_worker_wait(left);
			if (etl_worker_should_stop())
				return;
			etl_writer_watch(writer);
			etl_pending_run(writer);
		}
	}
	etl_backoff_reset(&backoff);

	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	writer->pipeline->shapes_ready = true;
	LWLockRelease(&writer->pipeline->lock);
	etl_shmem_wake_pipeline(writer->pipeline);
}
