/*-------------------------------------------------------------------------
 *
 * send.c
 *	  The sender: starts what can be started, and deals with the outcomes.
 *
 * Each lane has one transfer under way at most, so order within a lane is
 * given; lanes are independent of each other.  A batch is closed by its age
 * only while its lane has nothing else to do: as long as the lane is busy,
 * the batch may as well grow.  With max_batch_delay 0 this makes batches of
 * exactly what came in while the one before was under way.
 *
 * Outcomes (the classes of destination.h): the same again later, the parts
 * one by one, a parked table, a failed pipeline.  No outcome is an ERROR.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "delivery/batch_private.h"
#include "server/worker.h"

EtlSender *
etl_sender_create(const EtlConfig *config, EtlConnection *connection,
				  const EtlSenderCallbacks *callbacks, void *arg)
{
	EtlSender  *sender = palloc0(sizeof(EtlSender));

	sender->context = CurrentMemoryContext;
	sender->config = config;
	sender->routine = config->routine;
	sender->connection = connection;
	sender->callbacks = callbacks;
	sender->arg = arg;
	dlist_init(&sender->active);
	return sender;
}

static EtlUnit *
first_unit(EtlLane *lane)
{
	if (dlist_is_empty(&lane->units))
		return NULL;
	return dlist_head_element(EtlUnit, node, &lane->units);
}

/* ms until the open batch is old enough to be closed. */
static long
age_left(EtlLane *lane, TimestampTz now)
{
	int			delay = lane->sender->config->max_batch_delay;
	TimestampTz due;

	if (delay <= 0 || (lane->sender->hurry & (1U << lane->group)))
		return 0;
	due = TimestampTzPlusMilliseconds(lane->open->opened_at, delay);
	return due <= now ? 0 : (long) ((due - now + 999) / 1000);
}

/* A lone "begin" waits for its first row, whatever its age. */
static bool
worth_sealing(EtlLane *lane)
{
	return lane->open != NULL && lane->phase == ETL_PHASE_STREAM &&
		!(lane->open->nitems == 1 &&
		  (lane->open->items[0].flags & ETL_ITEM_BEGIN));
}

/* ----------
 * Outcomes
 * ----------
 */

void
etl_lane_failed(EtlLane *lane, const EtlResult *result)
{
	EtlSender  *sender = lane->sender;

	if (lane->backoff.attempts == 0 && sender->callbacks->trouble)
		sender->callbacks->trouble(sender->arg, result);
	etl_backoff_failed(&lane->backoff, sender->config, result);
	sender->troubled = true;
}

/* One lane's success is no news while another is in trouble. */
static void
lane_succeeded(EtlLane *lane)
{
	if (lane->sender->troubled)
		etl_backoff_clear(&lane->backoff);
	else
		etl_backoff_reset(&lane->backoff);
}

/* The last lane in trouble has succeeded, or has nothing to do any more. */
static void
look_for_end_of_trouble(EtlSender *sender)
{
	if (!sender->troubled || etl_sender_retrying(sender))
		return;
	sender->troubled = false;
	if (etl_worker_pipeline != NULL)
		etl_shmem_report_success(etl_worker_pipeline);
}

static void
finish_transfer(EtlUnit *unit)
{
	EtlSender  *sender = unit->lane->sender;

	sender->routine->send_finish(sender->connection, &unit->batch);
	unit->batch.private_data = NULL;
	unit->in_flight = false;
	sender->in_flight--;
}

/* Park the table that "result" is about; false if it names none. */
static bool
park_batch_table(EtlUnit *unit, EtlResult *result)
{
	EtlSender  *sender = unit->lane->sender;
	const EtlItem *first = &unit->batch.items[0];

	if (unit->lane->table == NULL)
		return false;
	sender->callbacks->park(sender->arg, first->table, result->sqlstate,
							result->message, result->hint,
							first->commit_lsn, first->ordinal);
	return true;
}

static void
pipeline_fails(EtlSender *sender, EtlResult *result)
{
	sender->halted = true;
	sender->callbacks->fail(sender->arg, result->sqlstate, result->message,
							result->hint);
}

/* What became of the window under way; it is finished either way. */
static void
handle_result(EtlUnit *unit, EtlResult *result)
{
	EtlLane    *lane = unit->lane;
	EtlSender  *sender = lane->sender;
	bool		handled = true;

	switch (result->status)
	{
		case ETL_DONE:
			ETL_FAILPOINT("batch_durable");
			lane_succeeded(lane);
			if (!unit->windows[unit->nwindows - 1].trial)
				sender->callbacks->delivered(sender->arg, &unit->batch);
			finish_transfer(unit);
			etl_window_delivered(unit);
			break;
		case ETL_REJECTED:
		case ETL_TOO_LARGE:
			finish_transfer(unit);
			handled = etl_window_refused(unit, result, result->status == ETL_REJECTED ?
										 result->rejected : -1);
			break;
		case ETL_PARK:
			finish_transfer(unit);
			if (!park_batch_table(unit, result))
				handled = etl_window_refused(unit, result, result->rejected);
			else if (!sender->halted)
				unit->windows[unit->nwindows - 1].prepared = false;
			break;
		case ETL_FATAL:
			finish_transfer(unit);
			pipeline_fails(sender, result);
			break;
		default:
			finish_transfer(unit);
			handled = false;
			break;
	}

	if (!handled)
		etl_lane_failed(lane, result);
	if (unit->nwindows == 0)
		etl_lane_pop(lane);
}

/* Ask about the window under way; true when it has ended. */
static bool
check_transfer(EtlUnit *unit)
{
	EtlSender  *sender = unit->lane->sender;
	EtlResult	result;

	memset(&result, 0, sizeof(result));
	result.rejected = -1;
	result.retry_after = -1;
	sender->routine->send_result(sender->connection, &unit->batch, &result);
	if (result.status == ETL_PENDING)
		return false;
	handle_result(unit, &result);
	return true;
}

/* ----------
 * Starting
 * ----------
 */

static void
start_transfer(EtlUnit *unit)
{
	EtlLane    *lane = unit->lane;
	EtlSender  *sender = lane->sender;
	EtlWindow  *window = &unit->windows[unit->nwindows - 1];
	EtlBatch   *batch = &unit->batch;

	if (unit->fresh)
	{
		memset(batch, 0, sizeof(EtlBatch));
		batch->id = ++sender->next_id;
		batch->phase = lane->phase;
		batch->epoch = sender->config->epoch;
		batch->table = unit->target;
		batch->sealed_at = unit->sealed_at;
		batch->incarnation = etl_worker_args.incarnation;
		unit->fresh = false;
	}
	batch->items = unit->items + window->start;
	batch->nitems = window->count;
	batch->bytes = 0;
	batch->first_row = 0;
	for (int i = window->count - 1; i >= 0; i--)
	{
		const EtlItem *item = &batch->items[i];

		batch->bytes += item->len;
		if (lane->phase == ETL_PHASE_COPY && !(item->flags & ETL_ITEM_EVENT))
			batch->first_row = item->ordinal;
	}
	batch->attempt++;

	ETL_FAILPOINT("batch_send");
	unit->in_flight = true;
	sender->in_flight++;
	sender->routine->send_start(sender->connection, batch);
}

/* Is it the new row of a key change, behind the deletion of the old one? */
static bool
is_second_half(const EtlItem *items, int i)
{
	return items[i].sub > 0 && i > 0 && items[i - 1].op == ETL_DELETE &&
		items[i - 1].commit_lsn == items[i].commit_lsn &&
		items[i - 1].ordinal == items[i].ordinal;
}

/*
 * Where the window is to end so that its rows with holes can be completed:
 * after so many of them, and before one that earlier rows of the window have
 * to be durable for.  Its count: there.  Nothing to do: *holes is 0.
 */
static int
end_of_completion(const EtlItem *items, int count, int *holes)
{
	int			at;

	*holes = 0;
	for (int i = 0; i < count; i++)
	{
		if (!(items[i].flags & ETL_ITEM_INCOMPLETE))
			continue;
		at = is_second_half(items, i) ? i - 1 : i;
		if (at > 0 && (*holes == MOST_COMPLETED || (items[i].flags & ETL_ITEM_APART)))
			return at;
		(*holes)++;
	}
	return count;
}

/* What was filled in belongs to the items, and counts for the batch. */
static void
take_filled(EtlUnit *unit, EtlItem *items, int count, uint64 before)
{
	uint64		bytes = 0;

	for (int i = 0; i < count; i++)
	{
		bytes += items[i].len;
		if (items[i].flags & ETL_ITEM_FILLED)
			items[i].flags = (items[i].flags & ~ETL_ITEM_FILLED) | ITEM_OWNED;
	}
	unit->bytes += bytes - before;
	unit->lane->sender->bytes += bytes - before;
}

/*
 * Rows with holes in the window: have them filled in, now that everything
 * before them in the lane is durable.  False: not now.  True with a window that
 * is not prepared: look again.
 */
static bool
complete_rows(EtlUnit *unit)
{
	EtlSender  *sender = unit->lane->sender;
	EtlWindow  *window = &unit->windows[unit->nwindows - 1];
	EtlItem    *items = unit->items + window->start;
	uint64		before = 0;
	int			holes;
	int			end;
	EtlResult	result;

	if (window->completed || sender->callbacks->complete == NULL ||
		sender->routine->read_back == NULL)
		return true;
	end = end_of_completion(items, window->count, &holes);
	if (end < window->count)
	{
		etl_window_split(unit, end);
		window = &unit->windows[unit->nwindows - 1];
		if (!window->prepared)
			return true;
	}
	if (holes > 0)
	{
		memset(&result, 0, sizeof(result));
		result.rejected = -1;
		result.retry_after = -1;
		for (int i = 0; i < window->count; i++)
			before += items[i].len;
		sender->callbacks->complete(sender->arg, items, window->count, &result);
		take_filled(unit, items, window->count, before);
		if (result.status == ETL_TOO_LARGE && window->count > 1)
		{
			etl_window_split(unit, window->count / 2);
			return true;
		}
		if (result.status == ETL_FATAL)
		{
			pipeline_fails(sender, &result);
			return false;
		}
		if (result.status != ETL_DONE)
		{
			etl_lane_failed(unit->lane, &result);
			return false;
		}
		window->prepared = false;	/* tables may have been parked */
	}
	window->completed = true;
	return true;
}

static void
run_step(EtlUnit *unit)
{
	EtlLane    *lane = unit->lane;
	EtlSender  *sender = lane->sender;
	EtlResult	result;

	if (unit->table != ETL_NO_TABLE &&
		sender->callbacks->skipped(sender->arg, unit->table))
	{
		etl_lane_pop(lane);
		return;
	}

	memset(&result, 0, sizeof(result));
	result.rejected = -1;
	result.retry_after = -1;
	unit->run(unit->arg, &result);
	switch (result.status)
	{
		case ETL_DONE:
		case ETL_PENDING:
			lane_succeeded(lane);
			etl_lane_pop(lane);
			break;
		case ETL_RETRY:
		case ETL_ENDPOINT:
			etl_lane_failed(lane, &result);
			break;
		case ETL_FATAL:
			pipeline_fails(sender, &result);
			break;
		default:
			sender->callbacks->park(sender->arg, unit->table, result.sqlstate,
									result.message, result.hint,
									InvalidXLogRecPtr, 0);
			if (!sender->halted)
				etl_lane_pop(lane);
			break;
	}
}

/*
 * Work on a lane until it waits for something.  The lane itself stays valid,
 * but may leave the active list.
 */
static void
work_lane(EtlLane *lane, TimestampTz now)
{
	EtlSender  *sender = lane->sender;

	while (!sender->halted)
	{
		EtlUnit    *unit = first_unit(lane);

		if (unit == NULL)
		{
			if (!worth_sealing(lane) || age_left(lane, now) > 0)
				break;
			etl_lane_seal(lane);
			continue;
		}
		if (unit->in_flight || etl_backoff_left(&lane->backoff, now) > 0)
			break;
		if (unit->run)
		{
			run_step(unit);
			continue;
		}
		if (!etl_window_prepare(unit))
		{
			if (unit->nwindows == 0)
				etl_lane_pop(lane);
			continue;
		}
		if (!complete_rows(unit))
			break;
		if (!unit->windows[unit->nwindows - 1].prepared)
			continue;
		if (sender->in_flight >= MOST_IN_FLIGHT)
			break;
		start_transfer(unit);
		if (!check_transfer(unit))
			break;
	}
}

static void
work_all(EtlSender *sender)
{
	TimestampTz now = GetCurrentTimestamp();
	dlist_mutable_iter iter;

	/* With more lanes than transfers, each lane is first once in a while. */
	if (!dlist_is_empty(&sender->active))
		dlist_push_tail(&sender->active, dlist_pop_head_node(&sender->active));

	dlist_foreach_modify(iter, &sender->active)
		work_lane(dlist_container(EtlLane, node, iter.cur), now);
}

/* Deal with transfers that have ended. */
static bool
check_all(EtlSender *sender)
{
	bool		ended = false;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &sender->active)
	{
		EtlUnit    *unit = first_unit(dlist_container(EtlLane, node, iter.cur));

		if (unit && unit->in_flight && check_transfer(unit))
			ended = true;
	}
	return ended;
}

/* ms until something is due by itself, -1 for nothing. */
static long
next_due(EtlSender *sender)
{
	TimestampTz now = GetCurrentTimestamp();
	long		due = -1;
	dlist_iter	iter;

	if (sender->halted)
		return -1;
	dlist_foreach(iter, &sender->active)
	{
		EtlLane    *lane = dlist_container(EtlLane, node, iter.cur);
		EtlUnit    *unit = first_unit(lane);
		long		left;

		if (unit && unit->run == NULL && sender->in_flight >= MOST_IN_FLIGHT)
			continue;
		if (unit && !unit->in_flight)
			left = etl_backoff_left(&lane->backoff, now);
		else if (unit == NULL && worth_sealing(lane))
			left = age_left(lane, now);
		else
			continue;
		if (due < 0 || left < due)
			due = left;
	}
	return due;
}

long
etl_sender_run(EtlSender *sender, int timeout, bool *busy)
{
	work_all(sender);
	if (sender->in_flight > 0)
	{
		sender->routine->send_poll(sender->connection, timeout);
		if (check_all(sender))
			work_all(sender);
	}

	look_for_end_of_trouble(sender);
	*busy = sender->in_flight > 0;
	return next_due(sender);
}

void
etl_sender_flush(EtlSender *sender)
{
	dlist_iter	iter;

	dlist_foreach(iter, &sender->active)
		etl_lane_seal(dlist_container(EtlLane, node, iter.cur));
}

void
etl_sender_hurry(EtlSender *sender, int group, bool hurry)
{
	Assert(group < 32);
	if (hurry)
		sender->hurry |= 1U << group;
	else
		sender->hurry &= ~(1U << group);
}

bool
etl_sender_idle(EtlSender *sender)
{
	return dlist_is_empty(&sender->active);
}

bool
etl_sender_quiet(EtlSender *sender)
{
	dlist_iter	iter;

	if (sender->in_flight > 0)
		return false;
	if (sender->halted)
		return true;
	dlist_foreach(iter, &sender->active)
	{
		EtlLane    *lane = dlist_container(EtlLane, node, iter.cur);

		if (first_unit(lane) || worth_sealing(lane))
			return false;
	}
	return true;
}

void
etl_sender_halt(EtlSender *sender)
{
	sender->halted = true;
}

int
etl_sender_in_flight(EtlSender *sender)
{
	return sender->in_flight;
}

bool
etl_sender_retrying(EtlSender *sender)
{
	dlist_iter	iter;

	dlist_foreach(iter, &sender->active)
	{
		if (dlist_container(EtlLane, node, iter.cur)->backoff.attempts > 0)
			return true;
	}
	return false;
}

uint64
etl_sender_bytes(EtlSender *sender)
{
	return sender->bytes;
}

uint64
etl_sender_items(EtlSender *sender)
{
	return sender->nitems;
}
