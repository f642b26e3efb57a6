/*-------------------------------------------------------------------------
 *
 * bisect.c
 *	  Take a refused batch apart, down to the single row, in order.
 *
 * The windows of a batch are a stack of ranges of its items, the top being
 * the first in order.  A refused window is replaced by its parts: the good
 * one, when the destination says which item it refuses, else its halves.  So
 * everything before a refused row is durable before the row is given up, and
 * a batch with k refused rows among n costs about k log n sends.
 *
 * "begin" and "commit" are delivered only around at least one delivered
 * event of their transaction, of which a "relation" is none.  So a begin is
 * never sent alone: it stands directly before the row that it is sent with, a
 * begin that has lost all rows of its window is held until the lane's next
 * window, and the commit finds it there if nothing else does.  A begin with
 * the one row that follows it is not split, but the row is tried alone: if
 * that is refused, the row is to blame and the begin is held for what comes
 * next; if it is taken, the begin is what the destination refuses, and that
 * is the endpoint's trouble, not a table's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "delivery/batch_private.h"

static EtlWindow *
top(EtlUnit *unit)
{
	return &unit->windows[unit->nwindows - 1];
}

static void
pop(EtlUnit *unit)
{
	unit->nwindows--;
	unit->fresh = true;
}

static void
push(EtlUnit *unit, int start, int count, bool trial)
{
	EtlWindow  *window;

	if (count <= 0)
		return;
	unit->windows = repalloc(unit->windows,
							 sizeof(EtlWindow) * (unit->nwindows + 1));
	window = &unit->windows[unit->nwindows++];
	window->start = start;
	window->count = count;
	window->prepared = trial;
	window->completed = false;
	window->trial = trial;
	window->too_large = false;
	unit->fresh = true;
}

static bool
is_begin(const EtlItem *item)
{
	return (item->flags & ETL_ITEM_BEGIN) != 0;
}

static bool
is_commit(const EtlItem *item)
{
	return (item->flags & ETL_ITEM_COMMIT) != 0;
}

/* A row or a truncate, for which a table can be blamed; no begin, commit or relation. */
static bool
is_blamable(const EtlItem *item)
{
	return item->op != 0;
}

/* Free what a dropped item owns; its slot in the array may be reused. */
static void
drop_item(EtlUnit *unit, EtlItem *item)
{
	if (item->flags & ITEM_OWNED)
	{
		pfree(unconstify(char *, item->data));
		item->flags &= ~ITEM_OWNED;
	}
}

/*
 * Put the begin that is held before the top window.  What was there has been
 * dealt with: windows are worked on in the order of the items.
 */
static void
take_back_begin(EtlUnit *unit)
{
	EtlLane    *lane = unit->lane;
	EtlWindow  *window = top(unit);

	if (window->start == 0)
	{
		if (unit->nitems == unit->allocated)
		{
			unit->allocated *= 2;
			unit->items = repalloc_huge(unit->items,
										sizeof(EtlItem) * (Size) unit->allocated);
		}
		memmove(unit->items + 1, unit->items, sizeof(EtlItem) * (Size) unit->nitems);
		memset(unit->items, 0, sizeof(EtlItem));
		unit->nitems++;
		lane->sender->nitems++;
		for (int i = 0; i < unit->nwindows; i++)
			unit->windows[i].start++;
	}
	window->start--;
	window->count++;
	drop_item(unit, &unit->items[window->start]);
	unit->items[window->start] = lane->held;
	unit->owns = true;
	memset(&lane->held, 0, sizeof(EtlItem));
}

/*
 * Take the rows of parked tables out of the top window, and begin and commit
 * of transactions of which nothing is left.  The freed places are at the end
 * of the window, and lost: they hold copies of items that were moved, so
 * their ownership of bytes is cleared.
 */
static void
filter(EtlUnit *unit)
{
	EtlLane    *lane = unit->lane;
	EtlSender  *sender = lane->sender;
	EtlWindow  *window = top(unit);
	EtlItem    *items = unit->items + window->start;
	int			kept = 0;
	EtlItem		begin;
	bool		pending = false;
	XLogRecPtr	begun = lane->begun;

	/* rows of one table, and no events: all of them or none */
	if (unit->target && !sender->callbacks->skipped(sender->arg, items[0].table))
		return;
	if (lane->held.data)
	{
		take_back_begin(unit);
		items = unit->items + window->start;
	}

	for (int i = 0; i < window->count; i++)
	{
		EtlItem		item = items[i];

		items[i].flags &= ~ITEM_OWNED;
		if (is_begin(&item))
		{
			begin = item;
			pending = true;
			continue;
		}
		if (is_commit(&item))
		{
			if (pending || item.commit_lsn != begun)
			{
				if (pending)
					drop_item(unit, &begin);
				pending = false;
				drop_item(unit, &item);
				continue;
			}
		}
		else if (item.table != ETL_NO_TABLE &&
				 sender->callbacks->skipped(sender->arg, item.table))
		{
			drop_item(unit, &item);
			continue;
		}
		else if (pending && is_blamable(&item))
		{
			items[kept++] = begin;
			begun = begin.commit_lsn;
			pending = false;
		}
		items[kept++] = item;
	}

	if (pending)
		lane->held = begin;
	window->count = kept;
}

/*
 * Make the top window ready to be sent for the first time.  False when there
 * is nothing to send in it: it is gone then, and the caller looks again.
 *
 * A window that is sent again is not touched: a retry has the same bytes.  But
 * the rows of a table that has left the stream meanwhile are not sent again at
 * all: a newer copy may have taken its place.
 */
bool
etl_window_prepare(EtlUnit *unit)
{
	if (top(unit)->prepared && unit->target &&
		unit->lane->sender->callbacks->skipped(unit->lane->sender->arg,
											   unit->items[top(unit)->start].table))
		top(unit)->prepared = false;
	if (!top(unit)->prepared)
	{
		filter(unit);
		top(unit)->prepared = true;
		unit->fresh = true;
	}
	if (top(unit)->count > 0)
		return true;
	pop(unit);
	return false;
}

/* Split the top window before the absolute place "at" and, if given, "then". */
static void
split(EtlUnit *unit, int at, int then)
{
	EtlWindow	window = *top(unit);
	int			end = window.start + window.count;

	pop(unit);
	if (then < end)
		push(unit, then, end - then, false);
	push(unit, at, then - at, false);
	push(unit, window.start, at - window.start, false);
}

static void
split_before(EtlUnit *unit, int at)
{
	split(unit, at, top(unit)->start + top(unit)->count);
}

void
etl_window_split(EtlUnit *unit, int index)
{
	int			at = top(unit)->start + index;

	if (is_begin(&unit->items[at - 1]))
		at--;
	if (at > top(unit)->start)
		split_before(unit, at);
}

/* Remember the last begin that went out, for the commit in a later window. */
static void
note_begin(EtlUnit *unit, const EtlWindow *window)
{
	if (unit->target)
		return;					/* a table's lane has no events */
	for (int i = window->start + window->count - 1; i >= window->start; i--)
	{
		if (is_begin(&unit->items[i]))
		{
			unit->lane->begun = unit->items[i].commit_lsn;
			return;
		}
	}
}

/* The top window is durable. */
void
etl_window_delivered(EtlUnit *unit)
{
	EtlWindow	window = *top(unit);
	EtlResult	result;

	pop(unit);
	if (!window.trial)
	{
		note_begin(unit, &window);
		/* what was filled in may be much; the others end with the batch */
		if (unit->nwindows > 0)
			for (int i = 0; i < window.count; i++)
				drop_item(unit, &unit->items[window.start + i]);
		return;
	}

	/*
	 * The row alone was taken, so the begin before it is what was refused,
	 * and is tried again after a while; or the two together are too large.
	 */
	if (top(unit)->too_large)
	{
		split_before(unit, window.start);
		return;
	}
	memset(&result, 0, sizeof(result));
	result.retry_after = -1;
	etl_result_set(&result, ETL_ENDPOINT, ERRCODE_FDW_ERROR,
				   "destination refuses the event \"begin\"");
	etl_lane_failed(unit->lane, &result);
}

/* Give up the item at "index" (absolute) of the top window of one row. */
static void
blame(EtlUnit *unit, EtlResult *result, int index)
{
	EtlSender  *sender = unit->lane->sender;
	const EtlItem *item = &unit->items[index];

	sender->callbacks->park(sender->arg, item->table, result->sqlstate,
							result->message, result->hint,
							item->commit_lsn, item->ordinal);
}

/* The destination refuses an event that is no table's. */
static bool
endpoint_refuses(EtlResult *result, const EtlItem *item)
{
	char		message[sizeof(result->message)];

	strlcpy(message, result->message, sizeof(message));
	result->status = ETL_ENDPOINT;
	snprintf(result->message, sizeof(result->message),
			 "destination refuses the event \"%s\": %s",
			 is_begin(item) ? "begin" : is_commit(item) ? "commit" : "relation",
			 message);
	return false;
}

/*
 * One row alone was refused, be it a window or the trial of a begin with a
 * row: park, and go on behind it.
 */
static bool
single_refused(EtlUnit *unit, EtlResult *result)
{
	EtlWindow	window = *top(unit);
	EtlItem    *item = &unit->items[window.start];

	if (!is_blamable(item))
		return endpoint_refuses(result, item);

	blame(unit, result, window.start);
	if (unit->lane->sender->halted)
		return true;
	pop(unit);
	drop_item(unit, item);
	if (window.trial)
	{
		/* the begin of the pair below looks for other rows */
		EtlItem    *begin = &unit->items[top(unit)->start];

		Assert(top(unit)->count == 2 && is_begin(begin));
		unit->lane->held = *begin;
		begin->flags &= ~ITEM_OWNED;
		pop(unit);
	}
	return true;
}

bool
etl_window_refused(EtlUnit *unit, EtlResult *result, int index)
{
	EtlWindow	window = *top(unit);
	EtlItem    *items = unit->items + window.start;
	int			half;

	if (window.count == 1)
		return single_refused(unit, result);

	if (index >= 0 && index < window.count)
	{
		int			first = index;

		if (!is_blamable(&items[index]))
			return endpoint_refuses(result, &items[index]);
		if (first > 0 && is_begin(&items[first - 1]))
			first--;
		if (first > 0 || index + 1 < window.count)
		{
			split(unit, window.start + first, window.start + index + 1);
			return true;
		}
	}

	half = window.count / 2;
	if (is_begin(&items[half - 1]))
		half++;
	if (half < window.count)
	{
		split_before(unit, window.start + half);
		return true;
	}

	/* A begin and one event, refused together: is it the event alone? */
	Assert(is_begin(&items[0]) && is_blamable(&items[1]));
	top(unit)->too_large = result->status == ETL_TOO_LARGE;
	push(unit, window.start + 1, 1, true);
	return true;
}
