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
 * event of their transaction.  Therefore no window ends with a begin unless
 * the batch does; a begin with the one row that follows it is not split, but
 * the row is tried alone: if that is refused, the row is to blame and the
 * begin moves on to what comes next; if it is taken, the begin is what the
 * destination refuses, and that is the endpoint's trouble, not a table's.
 *
 * While taking apart, items are only ever moved towards the end of a window
 * that was emptied there; the array never grows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "pipeline/batch_private.h"

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

/* A row or a truncate: a table can be blamed for it. */
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
 * A begin that has lost all its rows in the top window: hand it over to the
 * next window, or, at the end of the batch, keep it.
 */
static void
pass_on_begin(EtlUnit *unit, EtlWindow *window, int kept, const EtlItem *begin)
{
	EtlWindow  *next = unit->nwindows > 1 ? window - 1 : NULL;
	int			end = window->start + window->count;

	if (next && next->start == end && !next->trial)
	{
		unit->items[end - 1] = *begin;
		next->start--;
		next->count++;
		next->prepared = false;
		window->count = kept;
		return;
	}
	unit->items[window->start + kept] = *begin;
	window->count = kept + 1;
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
		else if (pending)
		{
			items[kept++] = begin;
			begun = begin.commit_lsn;
			pending = false;
		}
		items[kept++] = item;
	}

	if (pending)
		pass_on_begin(unit, window, kept, &begin);
	else
		window->count = kept;
}

/*
 * Make the top window ready to be sent for the first time.  False when there
 * is nothing to send in it: it is gone then, and the caller looks again.
 *
 * A window that is sent again is not touched: a retry has the same bytes.
 */
bool
etl_window_prepare(EtlUnit *unit)
{
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

/* Remember the last begin that went out, for the commit in a later window. */
static void
note_begin(EtlUnit *unit, const EtlWindow *window)
{
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
	EtlWindow  *pair;

	if (!is_blamable(item))
		return endpoint_refuses(result, item);

	blame(unit, result, window.start);
	if (unit->lane->sender->halted)
		return true;
	pop(unit);
	drop_item(unit, item);
	if (!window.trial)
		return true;

	/* The pair below: the begin takes the row's place and looks for others. */
	pair = top(unit);
	Assert(pair->count == 2 && pair->start + 1 == window.start);
	*item = unit->items[pair->start];
	unit->items[pair->start].flags &= ~ITEM_OWNED;
	pair->start++;
	pair->count = 1;
	pair->prepared = false;
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
	if (!is_blamable(&items[1]))
		return endpoint_refuses(result, &items[1]);
	top(unit)->too_large = result->status == ETL_TOO_LARGE;
	push(unit, window.start + 1, 1, true);
	return true;
}
