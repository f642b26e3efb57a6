/*-------------------------------------------------------------------------
 *
 * lanes.c
 *	  Records of the queues -> lanes, marks, things to store.
 *
 * Records are taken in the order of the queue; the bytes of rows stay where
 * they are, in the ring.  A kind with ETL_BATCH_PIPELINE has one lane a queue
 * for everything; any other has one lane for each table and queue, and no
 * events.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "schema/shape.h"
#include "server/worker.h"
#include "writer/toast.h"
#include "writer/writer.h"

/* What is taken in one turn, before the sender has its turn again. */
#define TURN_RECORDS	8192
#define TURN_BYTES		((uint64) 1024 * 1024)

/* Items in memory beyond which the queues are left alone. */
#define MOST_ITEMS_TAKEN	(400 * 1000)

/* Bytes in batches, as a multiple of what the rings hold, beyond which they are. */
#define MOST_BYTES_TAKEN	2

/* ----------
 * Queues come and go
 * ----------
 */

void
etl_writer_attach(EtlWriter *writer, EtlIntake *intake, dsm_handle handle)
{
	MemoryContext context = MemoryContextSwitchTo(EtlWorkerContext);

	intake->handle = handle;
	intake->queue = etl_queue_attach(handle);
	if (intake->queue)
		etl_queue_set_consumer(intake->queue);
	MemoryContextSwitchTo(context);
}

/* Let go of a queue with all that came from it. */
void
etl_writer_detach(EtlWriter *writer, EtlIntake *intake)
{
	if (intake->lane)
		etl_lane_destroy(intake->lane);
	intake->lane = NULL;
	for (int i = 0; i < writer->ngenerations; i++)
	{
		EtlGeneration *generation = writer->generations[i];

		if (generation->lanes[intake->group])
			etl_lane_destroy(generation->lanes[intake->group]);
		generation->lanes[intake->group] = NULL;
	}
	if (intake->queue)
		etl_queue_detach(intake->queue);
	if (intake->toast)
		etl_toast_destroy(intake->toast);
	intake->toast = NULL;
	intake->queue = NULL;
	intake->handle = 0;
	etl_progress_reset(intake);
}

/* ----------
 * Lanes
 * ----------
 */

static EtlLane *
lane_for(EtlWriter *writer, EtlIntake *intake, EtlGeneration *generation)
{
	EtlLane   **lane;

	if (writer->pipeline_lanes)
		lane = &intake->lane;
	else
		lane = &generation->lanes[intake->group];

	if (*lane == NULL)
	{
		*lane = etl_lane_create(writer->sender,
								writer->pipeline_lanes ? NULL : generation->table,
								ETL_PHASE_STREAM);
		etl_lane_set_group(*lane, intake->group);
	}
	return *lane;
}

/* "chunk" goes with the item, if there is one. */
static void
append_item(EtlWriter *writer, EtlIntake *intake, EtlGeneration *generation,
			const EtlItem *item, uint64 position, void *chunk)
{
	intake->taken++;
	if (writer->local)
		etl_local_append(writer, item, position, chunk);
	else if (chunk)
		etl_lane_append_chunk(lane_for(writer, intake, generation), item, position, chunk);
	else
		etl_lane_append(lane_for(writer, intake, generation), item, position, false);
}

static void
make_item(EtlItem *item, EtlGeneration *generation, EtlRecord *record, uint16 flags)
{
	item->data = ETL_RECORD_BODY(record);
	item->len = record->body_len - (flags & ETL_ITEM_INCOMPLETE ? record->n * sizeof(EtlToastPointer) : 0);
	item->op = record->op;
	item->sub = record->sub;
	item->flags = flags;
	item->table = generation ? generation->index : ETL_NO_TABLE;
	item->commit_lsn = record->lsn;
	item->ordinal = record->ordinal;
}

/*
 * Put the body of a record into its lane.  "joined" records are chunks of
 * their own and go with the item; returns true when it was taken over.
 */
static bool
append(EtlWriter *writer, EtlIntake *intake, EtlGeneration *generation,
	   EtlRecord *record, uint64 position, bool joined, uint16 flags)
{
	EtlItem		item;

	if (record->body_len == 0 ||
		(generation == NULL && !writer->pipeline_lanes && !writer->local))
		return false;
	make_item(&item, generation, record, flags);
	append_item(writer, intake, generation, &item, position, joined ? record : NULL);
	return joined;
}

/* ----------
 * Rows and truncates
 * ----------
 */

/*
 * A row that is still incomplete goes only where partial rows are taken, or
 * where the destination can be asked once everything before it is durable; a
 * NULL or an older value in its place would be a lie.  "known": every row of
 * its key has come this way, so that what the destination has is this row.
 */
static bool
may_be_sent(EtlWriter *writer, EtlIntake *intake, EtlGeneration *generation,
			const EtlItem *item, bool known, uint64 position)
{
	if (!(item->flags & ETL_ITEM_INCOMPLETE) ||
		(etl_table_abilities(writer->config->routine, generation->table->options) &
		 (known ? ETL_TAKES_PARTIAL | ETL_CAN_READ_BACK : ETL_TAKES_PARTIAL)))
		return true;
	intake->taken++;
	if (generation->on_error == ETL_ON_ERROR_STOP)
		etl_writer_stop_at(writer, generation, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						   ETL_INCOMPLETE_MESSAGE, ETL_INCOMPLETE_HINT,
						   item->commit_lsn, item->ordinal);
	else
		etl_writer_park(writer, generation, intake, position,
						ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						ETL_INCOMPLETE_MESSAGE, ETL_INCOMPLETE_HINT,
						item->commit_lsn, item->ordinal);
	return false;
}

static bool
take_row(EtlWriter *writer, EtlIntake *intake, EtlRecord *record,
		 uint64 position, bool joined)
{
	const EtlDestinationRoutine *routine = writer->config->routine;
	EtlGeneration *generation = etl_writer_generation(writer, record->table, record->generation);
	EtlItem		item;

	if (generation == NULL || generation->out)
		return false;
	if (record->body_len == 0)
	{
		if (intake->toast)
			etl_toast_leave(intake->toast, generation, record);
		return false;
	}
	generation->last_change = record->time;
	make_item(&item, generation, record,
			  (record->flags & ETL_RECORD_INCOMPLETE) ? ETL_ITEM_INCOMPLETE : 0);

	if (record->key_len > 0 && routine->extract && routine->splice && !writer->local)
	{
		if (intake->toast == NULL)
			intake->toast = etl_toast_create(EtlWorkerContext);
		etl_toast_take(intake->toast, writer, generation, record, position,
					   joined ? record : NULL, &item);
		if (!may_be_sent(writer, intake, generation, &item, true, position))
			return joined;
		append_item(writer, intake, generation, &item, position, NULL);
		return joined;
	}
	if (!may_be_sent(writer, intake, generation, &item, false, position))
		return false;
	append_item(writer, intake, generation, &item, position, joined ? record : NULL);
	return joined;
}

typedef struct TruncateStep
{
	EtlWriter  *writer;
	EtlGeneration *generation;
} TruncateStep;

static void
truncate_step(void *arg, EtlResult *result)
{
	TruncateStep *step = arg;
	const EtlDestinationRoutine *routine = step->writer->config->routine;

	routine->truncate(step->writer->connection, step->generation->table, result);
	if (result->status == ETL_DONE)
	{
		EtlTableSlot *slot = &etl_shared->tables[step->generation->slot];

		if (slot->relid == step->generation->relid)
			pg_atomic_fetch_add_u64(&slot->truncates, 1);
		pfree(step);
	}
}

static bool
take_truncate(EtlWriter *writer, EtlIntake *intake, EtlRecord *record,
			  uint64 position, bool joined)
{
	const EtlTruncatedTable *tables = (EtlTruncatedTable *) ETL_RECORD_KEY(record);
	int			n = record->key_len / sizeof(EtlTruncatedTable);
	EtlTruncate *truncate;
	MemoryContext context;
	bool		taken;

	context = MemoryContextSwitchTo(EtlWorkerContext);
	truncate = palloc0(offsetof(EtlTruncate, generations) + sizeof(uint32) * Max(n, 1));
	truncate->lsn = record->lsn;
	truncate->ordinal = record->ordinal;
	for (int i = 0; i < n; i++)
	{
		EtlGeneration *generation = etl_writer_generation(writer, tables[i].table,
														 tables[i].generation);

		if (generation == NULL || generation->out)
			continue;
		generation->last_change = record->time;
		truncate->generations[truncate->n++] = generation->index;
		if (!writer->pipeline_lanes && !writer->local && writer->config->routine->truncate)
		{
			TruncateStep *step = palloc(sizeof(TruncateStep));

			step->writer = writer;
			step->generation = generation;
			intake->taken++;
			etl_lane_step(lane_for(writer, intake, generation), truncate_step, step,
						  generation->index, position);
		}
		else if (!writer->pipeline_lanes && !writer->local)
		{
			/* nothing to do there, but delivered all the same */
			EtlTableSlot *slot = &etl_shared->tables[generation->slot];

			if (slot->relid == generation->relid)
				pg_atomic_fetch_add_u64(&slot->truncates, 1);
		}
	}
	MemoryContextSwitchTo(context);

	if (truncate->n == 0 || (!writer->pipeline_lanes && !writer->local))
	{
		pfree(truncate);
		return false;
	}
	taken = append(writer, intake, truncate->n == 1 ?
				   writer->generations[truncate->generations[0]] : NULL,
				   record, position, joined, ETL_ITEM_EVENT);
	context = MemoryContextSwitchTo(EtlWorkerContext);
	writer->truncates = lappend(writer->truncates, truncate);
	MemoryContextSwitchTo(context);
	return taken;
}

/* ----------
 * Shapes
 * ----------
 */

static void
store_shape(EtlWriter *writer, EtlPending *pending)
{
	etl_store_shape(writer->config->id, pending->shape, NULL);
	etl_store_rename_table(writer->config->id, pending->shape->relid,
						   pending->shape->schema_name, pending->shape->table_name);
}

/* Apply and sync workers read shapes only when told that something is new. */
static void
shape_stored(EtlWriter *writer, EtlPending *pending)
{
	pg_atomic_fetch_add_u64(&writer->pipeline->tables_version, 1);
	etl_shmem_wake_pipeline(writer->pipeline);
}

typedef struct ShapeStep
{
	EtlWriter  *writer;
	EtlGeneration *generation;
	EtlTable   *table;
} ShapeStep;

static void
shape_step(void *arg, EtlResult *result)
{
	ShapeStep  *step = arg;
	const EtlDestinationRoutine *routine = step->writer->config->routine;

	routine->ensure_shape(step->writer->connection, step->table, step->table->shape, result);
	if (result->status != ETL_DONE || routine->read_columns == NULL)
		return;
	step->table->target = routine->read_columns(step->writer->connection, step->table, result);
}

/*
 * Rows of the table have this shape from here on.  Each run of apply brings
 * the shape before a table's first row, so most of them are stored already.
 */
static bool
take_shape(EtlWriter *writer, EtlIntake *intake, EtlRecord *record,
		   uint64 position, bool joined)
{
	EtlGeneration *generation = etl_writer_generation(writer, record->table, record->generation);
	const EtlDestinationRoutine *routine = writer->config->routine;
	EtlPending *pending;
	MemoryContext context;

	if (generation == NULL || generation->out)
		return false;
	context = MemoryContextSwitchTo(EtlWorkerContext);
	etl_writer_set_shape(writer, generation,
						 etl_shape_deserialize(ETL_RECORD_KEY(record), record->key_len));
	MemoryContextSwitchTo(context);

	pending = etl_pending_new(writer, store_shape, intake, position);
	pending->stored = shape_stored;
	pending->shape = generation->shape;
	intake->taken++;

	if ((routine->abilities & ETL_HAS_SCHEMAS) && routine->ensure_shape && !writer->local)
	{
		EtlLane    *lane = lane_for(writer, intake, generation);
		ShapeStep  *step = MemoryContextAlloc(EtlWorkerContext, sizeof(ShapeStep));

		step->writer = writer;
		step->generation = generation;
		step->table = generation->table;
		if (!writer->pipeline_lanes)
			etl_lane_set_table(lane, generation->table);
		etl_lane_step(lane, shape_step, step, generation->index, position);
	}
	else if (!writer->pipeline_lanes && !writer->local)
		etl_lane_set_table(lane_for(writer, intake, generation), generation->table);

	if (writer->pipeline_lanes || writer->local)
		return append(writer, intake, generation, record, position, joined, ETL_ITEM_EVENT);
	return false;
}

/* ----------
 * All kinds
 * ----------
 */

static void
take_park(EtlWriter *writer, EtlIntake *intake, EtlRecord *record, uint64 position)
{
	EtlParkInfo *info = (EtlParkInfo *) ETL_RECORD_KEY(record);
	EtlGeneration *generation = etl_writer_generation(writer, record->table, record->generation);

	if (generation == NULL || generation->out)
		return;
	intake->taken++;
	if (info->stop)
		etl_writer_stop_at(writer, generation, info->sqlstate, info->message,
						   info->hint, record->lsn, record->ordinal);
	else
		etl_writer_park(writer, generation, intake, position, info->sqlstate,
						info->message, info->hint, record->lsn, record->ordinal);
}

static void
take_rules(EtlWriter *writer, EtlIntake *intake, EtlRecord *record, uint64 position)
{
	MemoryContext context = MemoryContextSwitchTo(writer->pending_context);
	List	   *rules = etl_rules_deserialize(ETL_RECORD_KEY(record), record->key_len);

	MemoryContextSwitchTo(context);
	intake->taken++;
	etl_writer_rules(writer, intake, position, rules);
}

/* Take one record; true when a joined one was taken over. */
static bool
take_record(EtlWriter *writer, EtlIntake *intake, EtlRecord *record,
			uint64 position, bool joined)
{
	switch ((EtlRecordKind) record->kind)
	{
		case ETL_RECORD_BEGIN:
			intake->commit_time = record->time;
			return append(writer, intake, NULL, record, position, joined,
						  ETL_ITEM_EVENT | ETL_ITEM_BEGIN);
		case ETL_RECORD_COMMIT:
			joined = append(writer, intake, NULL, record, position, joined,
							ETL_ITEM_EVENT | ETL_ITEM_COMMIT);
			if (writer->local)
				etl_local_commit(writer, record->lsn2, position);
			etl_progress_mark(intake, record->lsn2, record->time);
			return joined;
		case ETL_RECORD_ROW:
			return take_row(writer, intake, record, position, joined);
		case ETL_RECORD_TRUNCATE:
			return take_truncate(writer, intake, record, position, joined);
		case ETL_RECORD_SHAPE:
			return take_shape(writer, intake, record, position, joined);
		case ETL_RECORD_RULES:
			take_rules(writer, intake, record, position);
			return false;
		case ETL_RECORD_PARK:
			take_park(writer, intake, record, position);
			return false;
		case ETL_RECORD_RESYNC:
			intake->taken++;
			etl_writer_resync(writer, intake, position, record->table,
							  record->generation, (EtlCopyReason) record->n,
							  (record->flags & ETL_RECORD_BESIDE) != 0);
			return false;
		case ETL_RECORD_HANDOVER:
			intake->taken++;
			etl_writer_handover(writer, intake, position, record->table, record->generation);
			return false;
		case ETL_RECORD_PROGRESS:
			etl_progress_mark(intake, record->lsn, 0);
			return false;
		case ETL_RECORD_GONE:	/* its rule says the same */
		case ETL_RECORD_PAD:
		case ETL_RECORD_FRAGMENT:
			break;
	}
	return false;
}

/*
 * Bytes that may be in batches.  Those outside the rings are of rows larger
 * than a ring takes at once, and of rows with values filled in.
 */
static uint64
bytes_limit(EtlWriter *writer)
{
	uint64		capacity = 0;

	for (int i = 0; i < ETL_INTAKES; i++)
		if (writer->intakes[i].queue)
			capacity += etl_queue_capacity(writer->intakes[i].queue);
	return capacity * MOST_BYTES_TAKEN;
}

/* False: too much is in memory already, the queues are left alone. */
bool
etl_writer_may_take(EtlWriter *writer)
{
	return etl_sender_items(writer->sender) <= MOST_ITEMS_TAKEN &&
		etl_sender_bytes(writer->sender) <= bytes_limit(writer) && !writer->failing;
}

/* Take what one queue has, within the limits of a turn. */
static bool
take_from(EtlWriter *writer, EtlIntake *intake)
{
	uint64		begin = etl_queue_read_position(intake->queue);
	uint64		limit = bytes_limit(writer);
	int			n;

	for (n = 0; n < TURN_RECORDS && !writer->failing; n++)
	{
		uint64		position;
		bool		joined;
		EtlRecord  *record;

		if (etl_queue_read_position(intake->queue) - begin > TURN_BYTES ||
			etl_sender_bytes(writer->sender) > limit)
			break;
		record = etl_queue_next(intake->queue, &position, &joined);
		if (record == NULL)
			break;
		if (!take_record(writer, intake, record, position, joined) && joined)
			pfree(record);
	}

	/* fragments of a large record were read, if nothing else */
	return n > 0 || etl_queue_read_position(intake->queue) != begin;
}

bool
etl_writer_take(EtlWriter *writer)
{
	MemoryContext context = MemoryContextSwitchTo(EtlWorkerContext);
	bool		took = false;

	for (int i = 0; i < ETL_INTAKES; i++)
	{
		if (!etl_writer_may_take(writer))
			break;
		if (writer->intakes[i].queue && take_from(writer, &writer->intakes[i]))
			took = true;
	}
	MemoryContextSwitchTo(context);
	return took;
}
