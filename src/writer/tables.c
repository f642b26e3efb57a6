/*-------------------------------------------------------------------------
 *
 * tables.c
 *	  What becomes of tables: trouble, new copies, hand-overs, requests.
 *
 * A change of a table's state goes into shared memory at once, so that apply
 * and sync workers act on it, and into the list of things to store.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "pipeline/ownership.h"
#include "pipeline/table_state.h"
#include "schema/shape.h"
#include "server/worker.h"
#include "writer/writer.h"

/* ----------
 * Trouble
 * ----------
 */

static void
store_park(EtlWriter *writer, EtlPending *pending)
{
	etl_store_park(writer->config->id, pending->relid, pending->recovery, pending->sqlstate,
				   pending->message, pending->hint, pending->lsn, pending->number);
}

static void
park(EtlWriter *writer, EtlGeneration *generation, EtlRecovery recovery,
	 EtlIntake *intake, uint64 position, int sqlstate, const char *message,
	 const char *hint, XLogRecPtr lsn, uint64 ordinal)
{
	EtlTableSlot *slot = &etl_shared->tables[generation->slot];
	EtlPending *pending;

	if (slot->relid == generation->relid)
		(void) etl_table_state_park(writer->pipeline, slot, recovery, sqlstate, lsn, ordinal);
	if (writer->tracked[generation->slot])
		writer->tracked[generation->slot]->stored = ETL_TABLE_ERRORED;

	pending = etl_pending_new(writer, store_park, intake, position);

	/* what the destination refused has left its batch, from no known place */
	pending->holds = intake == NULL;
	pending->relid = generation->relid;
	pending->recovery = recovery;
	pending->sqlstate = sqlstate;
	pending->message = etl_pending_text(writer, message && message[0] ? message : "unknown error");
	pending->hint = etl_pending_text(writer, hint);
	pending->lsn = lsn;
	pending->number = ordinal;
	etl_writer_tables_changed(writer);
}

/* Does a sync worker still work on this generation? */
static bool
is_being_copied(EtlGeneration *generation)
{
	EtlTableSlot *slot = &etl_shared->tables[generation->slot];

	return slot->generation == generation->generation &&
		slot->owned[0].generation != generation->generation;
}

/*
 * Set a table aside; the others go on.  One parked while it is copied needs
 * another attempt, one parked in the stream a resync: the slot moves on.
 */
void
etl_writer_park(EtlWriter *writer, EtlGeneration *generation, EtlIntake *intake,
				uint64 position, int sqlstate, const char *message,
				const char *hint, XLogRecPtr lsn, uint64 ordinal)
{
	EtlTracked *tracked = writer->tracked[generation->slot];

	ereport(LOG,
			(errcode(sqlstate),
			 errmsg("pipeline \"%s\" parks table \"%s.%s\": %s", writer->config->name,
					tracked ? tracked->schema_name : "?",
					tracked ? tracked->table_name : "?", message),
			 errdetail("The change is at %X/%X, number " UINT64_FORMAT " of its transaction.",
					   LSN_FORMAT_ARGS(lsn), ordinal)));
	park(writer, generation,
		 is_being_copied(generation) ? ETL_RECOVERY_RETRY : ETL_RECOVERY_RESYNC,
		 intake, position, sqlstate, message, hint, lsn, ordinal);
	etl_writer_give_up(writer, generation->slot);

	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	if (writer->pipeline->poison.relid == generation->relid)
		writer->pipeline->poison.relid = InvalidOid;
	LWLockRelease(&writer->pipeline->lock);
}

/*
 * on_error = stop: the pipeline fails at this place.  Nothing from here on is
 * confirmed, so it can go on in place once the cause is gone.
 */
void
etl_writer_stop_at(EtlWriter *writer, EtlGeneration *generation, int sqlstate,
				   const char *message, const char *hint, XLogRecPtr lsn, uint64 ordinal)
{
	EtlTracked *tracked = writer->tracked[generation->slot];

	if (writer->failing)
		return;
	writer->failing = true;
	writer->fail_sqlstate = sqlstate;
	snprintf(writer->fail_message, sizeof(writer->fail_message), "table \"%s.%s\": %s",
			 tracked ? tracked->schema_name : "?", tracked ? tracked->table_name : "?",
			 message);
	strlcpy(writer->fail_hint, hint ? hint : "", sizeof(writer->fail_hint));
	park(writer, generation, ETL_RECOVERY_RESUME, NULL, 0, sqlstate, message, hint, lsn, ordinal);
}

/* ----------
 * New copies and hand-overs
 * ----------
 */

static void
store_init(EtlWriter *writer, EtlPending *pending)
{
	etl_store_init(writer->config->id, pending->relid, pending->reason, pending->beside);
}

void
etl_writer_renew(EtlWriter *writer, EtlTracked *tracked, EtlIntake *intake, uint64 position,
				 EtlCopyReason reason, bool beside)
{
	EtlTableSlot *slot = &etl_shared->tables[tracked->slot];
	EtlPending *pending;

	if (!etl_table_state_renew(writer->pipeline, slot, reason, beside))
		return;
	tracked->stored = ETL_TABLE_INIT;
	tracked->settled = false;
	if (!beside)
		tracked->unstored_handover = false;
	pending = etl_pending_new(writer, store_init, intake, position);
	pending->relid = tracked->relid;
	pending->reason = reason;
	pending->beside = beside;
	etl_writer_tables_changed(writer);
}

static void
store_disown(EtlWriter *writer, EtlPending *pending)
{
	etl_store_disown(writer->config->id, pending->relid);
}

/*
 * The stream says that generation "number" of a table is out of date.  When a
 * newer one is on its way already, nothing is to be made again: should that
 * be out of date too, its own catch-up says so.
 */
void
etl_writer_resync(EtlWriter *writer, EtlIntake *intake, uint64 position, uint32 index,
				  uint32 number, EtlCopyReason reason, bool beside)
{
	EtlTracked *tracked = index < etl_shared->ntables ? writer->tracked[index] : NULL;
	EtlTableSlot copy;

	if (tracked == NULL)
		return;
	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	copy = etl_shared->tables[index];
	LWLockRelease(&writer->pipeline->lock);

	if (copy.owned[0].generation == number &&
		(copy.state == ETL_TABLE_READY || copy.state == ETL_TABLE_SYNC_DONE))
		etl_writer_renew(writer, tracked, intake, position, reason, beside);
	else if (copy.owned[0].generation == number && !beside)
	{
		EtlPending *pending = etl_pending_new(writer, store_disown, intake, position);

		pending->relid = tracked->relid;
		etl_table_state_disown(writer->pipeline, &etl_shared->tables[index], number);
	}
	else if (copy.generation == number && copy.state != ETL_TABLE_ERRORED)
		etl_writer_renew(writer, tracked, intake, position, reason, true);
}

/*
 * Kinds with tables get to know a generation's shape before its first row:
 * from what the copy has stored.  In a bracket.
 */
static void
read_shape(EtlWriter *writer, EtlGeneration *generation)
{
	List	   *shapes;
	MemoryContext context;

	if (generation->shape != NULL)
		return;
	shapes = etl_store_read_shapes(writer->config->id, generation->relid,
								   generation->generation);
	if (shapes == NIL)
		return;
	context = MemoryContextSwitchTo(EtlWorkerContext);
	etl_writer_set_shape(writer, generation, etl_shape_copy(llast(shapes)));
	MemoryContextSwitchTo(context);
}

/* A destination in this database takes the generation over in our commit. */
static void
publish_local(EtlWriter *writer, EtlPending *pending)
{
	EtlGeneration *generation = etl_writer_generation(writer, pending->slot, pending->generation);
	EtlResult	result;

	if (generation == NULL || writer->config->routine->publish_generation == NULL)
		return;
	memset(&result, 0, sizeof(result));
	read_shape(writer, generation);
	writer->config->routine->publish_generation(writer->connection, generation->table, &result);
}

/* Has nobody asked for a generation after this one?  pipeline->lock is held. */
static bool
is_newest(const EtlTableSlot *slot, uint32 generation)
{
	return slot->generation == generation &&
		(slot->state == ETL_TABLE_SYNC_DONE || slot->state == ETL_TABLE_READY);
}

static void
store_handover(EtlWriter *writer, EtlPending *pending)
{
	EtlTableSlot *slot = &etl_shared->tables[pending->slot];
	EtlOwnership owned;
	int64		resync;
	int64		retry;
	bool		newest;

	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	owned = slot->owned[0];
	newest = is_newest(slot, pending->generation);
	resync = slot->resync_claimed;
	retry = slot->retry_claimed;
	LWLockRelease(&writer->pipeline->lock);
	if (owned.generation != pending->generation)
		return;
	if (writer->local)
		publish_local(writer, pending);
	etl_store_owned(writer->config->id, pending->relid, owned.generation,
					owned.owned_from, owned.shape_hash);
	if (newest)
		etl_store_sync_done(writer->config->id, pending->relid, resync, retry);
}

static void
handover_stored(EtlWriter *writer, EtlPending *pending)
{
	EtlTableSlot *slot = &etl_shared->tables[pending->slot];
	EtlTracked *tracked = writer->tracked[pending->slot];

	LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
	if (is_newest(slot, pending->generation))
	{
		slot->resync_done = slot->resync_claimed;
		slot->retry_done = slot->retry_claimed;
	}
	LWLockRelease(&writer->pipeline->lock);
	if (tracked)
	{
		tracked->unstored_handover = false;
		tracked->failures = 0;
	}
	writer->any_unsettled = true;
	etl_writer_tables_changed(writer);
}

static void
handover_published(EtlWriter *writer, EtlGeneration *generation, EtlIntake *intake,
				   uint64 position)
{
	EtlPending *pending = etl_pending_new(writer, store_handover, intake, position);
	EtlTracked *tracked = writer->tracked[generation->slot];

	pending->stored = handover_stored;
	pending->relid = generation->relid;
	pending->slot = generation->slot;
	pending->generation = generation->generation;
	if (tracked)
		tracked->stored = ETL_TABLE_SYNC_DONE;
}

typedef struct PublishStep
{
	EtlWriter  *writer;
	EtlGeneration *generation;
	EtlIntake  *intake;
	uint64		position;
} PublishStep;

static void
read_shape_body(void *arg)
{
	PublishStep *step = arg;

	read_shape(step->writer, step->generation);
}

static void
publish_step(void *arg, EtlResult *result)
{
	PublishStep *step = arg;
	EtlWriter  *writer = step->writer;
	EtlGeneration *generation = step->generation;

	if (generation->shape == NULL &&
		!etl_bracket_try(ETL_BRACKET_READ, "etl: reading a shape", read_shape_body, step))
	{
		etl_result_set(result, ETL_RETRY, ERRCODE_LOCK_NOT_AVAILABLE,
					   "could not read the shape of a table");
		return;
	}
	writer->config->routine->publish_generation(writer->connection, generation->table, result);
	if (result->status != ETL_DONE)
		return;
	generation->table->staging = false;

	/* what took the older generation's place has taken its rows in */
	for (int i = 0; i < writer->ngenerations; i++)
	{
		EtlGeneration *other = writer->generations[i];

		if (other->slot == generation->slot && other->generation < generation->generation)
			other->out = true;
	}
	handover_published(writer, generation, step->intake, step->position);
	pfree(step);
}

/*
 * A sync worker has handed this generation over: put it into the place of the
 * older one at the destination, then store that.  Called for its HANDOVER
 * record, and without one when the worker has died.
 */
void
etl_writer_handover(EtlWriter *writer, EtlIntake *intake, uint64 position,
					uint32 index, uint32 number)
{
	EtlTracked *tracked = index < etl_shared->ntables ? writer->tracked[index] : NULL;
	EtlTableSlot *slot = &etl_shared->tables[index];
	EtlGeneration *generation;
	PublishStep *step;
	EtlLane   **lane;

	if (tracked == NULL || slot->state != ETL_TABLE_SYNC_DONE ||
		slot->owned[0].generation != number || tracked->handing_over == number)
		return;
	tracked->handing_over = number;
	tracked->unstored_handover = true;
	tracked->settled = false;
	writer->any_unstored_handover = true;
	generation = etl_writer_generation(writer, index, number);
	if (writer->config->routine->publish_generation == NULL || writer->local)
	{
		handover_published(writer, generation, intake, position);
		return;
	}

	step = MemoryContextAlloc(EtlWorkerContext, sizeof(PublishStep));
	step->writer = writer;
	step->generation = generation;
	step->intake = intake;
	step->position = position;
	lane = writer->pipeline_lanes ? &intake->lane : &generation->lanes[intake->group];
	if (*lane == NULL)
	{
		*lane = etl_lane_create(writer->sender,
								writer->pipeline_lanes ? NULL : generation->table,
								ETL_PHASE_STREAM);
		etl_lane_set_group(*lane, intake->group);
	}
	etl_lane_step(*lane, publish_step, step, generation->index, position);
}

/* ----------
 * Looking at the slots
 * ----------
 */

/*
 * Act on what users have asked for this table, if its state allows it now: a
 * request, or options that a new copy alone can bring about.
 */
static void
act_on_requests(EtlWriter *writer, EtlTracked *tracked, const EtlTableSlot *slot)
{
	bool		resync = tracked->resync_wanted > Max(slot->resync_done, slot->resync_claimed);
	bool		outdated = etl_config_outdated(writer->config, tracked->relid,
											   slot->owned[0].generation);
	bool		retry = tracked->retry_wanted > Max(slot->retry_done, slot->retry_claimed);

	switch ((EtlTableState) slot->state)
	{
		case ETL_TABLE_READY:
		case ETL_TABLE_SYNC_DONE:
			if (tracked->unstored_handover)
				break;
			if (outdated)
				ereport(LOG,
						(errmsg("pipeline \"%s\" copies table \"%s.%s\" again: its options have changed",
								writer->config->name, tracked->schema_name, tracked->table_name)));
			if (resync || outdated)
				etl_writer_renew(writer, tracked, NULL, 0, ETL_COPY_RESYNC, true);
			break;
		case ETL_TABLE_ERRORED:
			if (resync || retry)
			{
				EtlCopyReason reason = slot->recovery == ETL_RECOVERY_RETRY && !resync ?
					(EtlCopyReason) slot->reason : ETL_COPY_RESYNC;

				tracked->failures = 0;
				tracked->not_before = 0;
				etl_writer_renew(writer, tracked, NULL, 0, reason, false);
			}
			break;
		default:
			break;
	}
}

static bool
look_at_slot(EtlWriter *writer, EtlTracked *tracked)
{
	EtlTableSlot copy;

	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	copy = etl_shared->tables[tracked->slot];
	LWLockRelease(&writer->pipeline->lock);
	if (copy.relid != tracked->relid)
		return true;

	act_on_requests(writer, tracked, &copy);

	switch ((EtlTableState) copy.state)
	{
		case ETL_TABLE_SYNC_WAIT:
		case ETL_TABLE_CATCHUP:
			if (tracked->stored != copy.state)
				etl_pending_state(writer, tracked, (EtlTableState) copy.state);
			return false;
		case ETL_TABLE_SYNC_DONE:
			if (tracked->handing_over != copy.owned[0].generation &&
				tracked->stored != ETL_TABLE_SYNC_DONE)
			{
				tracked->unstored_handover = true;
				writer->any_unstored_handover = true;
			}
			if (!tracked->settled)
				writer->any_unsettled = true;
			return false;
		case ETL_TABLE_INIT:
			if (copy.sync < 0)
				writer->schedule_wanted = true;
			return false;
		case ETL_TABLE_DATA_SYNC:
		case ETL_TABLE_FINISHED_COPY:
			tracked->stored = copy.state;	/* by the sync worker */
			return false;
		case ETL_TABLE_ERRORED:
			tracked->stored = copy.state;	/* by whoever parked it */
			return true;
		default:
			return true;
	}
}

/* What the views call the pipeline, as far as tables decide it. */
static void
show_state(EtlWriter *writer, bool settled)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	EtlPipelineState state = settled ? ETL_PIPELINE_REPLICATING : ETL_PIPELINE_INITIAL_SYNC;

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (pipeline->slot_created && pipeline->shapes_ready)
	{
		if (pipeline->state == ETL_PIPELINE_RETRYING)
			pipeline->resume_state = state;
		else if (pipeline->state != ETL_PIPELINE_FAILED &&
				 pipeline->state != ETL_PIPELINE_DROPPING)
			pipeline->state = state;
		if (writer->tables_full && pipeline->waiting_for == ETL_WAIT_NOTHING)
			pipeline->waiting_for = ETL_WAIT_MAX_TABLES;
	}
	LWLockRelease(&pipeline->lock);
}

/* All table slots of the pipeline: states that others have set, requests. */
void
etl_writer_scan(EtlWriter *writer)
{
	bool		settled = true;

	writer->scan = false;
	writer->tables_version = pg_atomic_read_u64(&writer->pipeline->tables_version);
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		if (writer->tracked[i] && !look_at_slot(writer, writer->tracked[i]))
			settled = false;
	}
	show_state(writer, settled);
}
