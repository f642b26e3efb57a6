/*-------------------------------------------------------------------------
 *
 * batch.c
 *	  Lanes of batches: collect and seal.
 *
 * Items point to bytes that somebody else keeps (the ring, a chunk); a lane
 * adds one EtlItem for each and nothing else.  Sending is in send.c, taking
 * refused batches apart in bisect.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "delivery/batch_private.h"

#define FIRST_ITEMS		64

static void
activate(EtlLane *lane)
{
	if (lane->active)
		return;
	dlist_push_tail(&lane->sender->active, &lane->node);
	lane->active = true;
}

static void
deactivate_if_empty(EtlLane *lane)
{
	if (!lane->active || lane->open || !dlist_is_empty(&lane->units))
		return;
	dlist_delete(&lane->node);
	lane->active = false;
}

EtlLane *
etl_lane_create(EtlSender *sender, EtlTable *table, EtlPhase phase)
{
	EtlLane    *lane = MemoryContextAllocZero(sender->context, sizeof(EtlLane));

	lane->sender = sender;
	lane->table = table;
	lane->phase = phase;
	dlist_init(&lane->units);
	return lane;
}

/* Drop everything of the lane, transfers under way included. */
void
etl_lane_destroy(EtlLane *lane)
{
	while (!dlist_is_empty(&lane->units))
		etl_lane_pop(lane);
	if (lane->open)
	{
		etl_unit_free(lane->open);
		lane->open = NULL;
	}
	if (lane->held.data)
		pfree(unconstify(char *, lane->held.data));
	deactivate_if_empty(lane);
	pfree(lane);
}

static EtlUnit *
new_unit(EtlLane *lane, uint64 position)
{
	EtlUnit    *unit = MemoryContextAllocZero(lane->sender->context, sizeof(EtlUnit));

	unit->lane = lane;
	unit->position = position;
	unit->table = ETL_NO_TABLE;
	return unit;
}

static EtlUnit *
new_batch(EtlLane *lane)
{
	EtlUnit    *unit = new_unit(lane, PG_UINT64_MAX);

	unit->target = lane->table;
	unit->allocated = FIRST_ITEMS;
	unit->items = MemoryContextAlloc(lane->sender->context,
									 sizeof(EtlItem) * FIRST_ITEMS);
	unit->opened_at = GetCurrentTimestamp();
	return unit;
}

void
etl_unit_free(EtlUnit *unit)
{
	EtlSender  *sender = unit->lane->sender;

	if (unit->in_flight)
	{
		sender->routine->send_finish(sender->connection, &unit->batch);
		sender->in_flight--;
	}
	sender->bytes -= unit->bytes;
	sender->nitems -= unit->nitems;
	for (int i = 0; i < unit->nitems && unit->owns; i++)
	{
		if (unit->items[i].flags & ITEM_OWNED)
			pfree(unconstify(char *, unit->items[i].data));
	}
	list_free_deep(unit->chunks);
	if (unit->items)
		pfree(unit->items);
	if (unit->windows)
		pfree(unit->windows);
	pfree(unit);
}

/* Remove the first unit: it is done, or not wanted any more. */
void
etl_lane_pop(EtlLane *lane)
{
	EtlUnit    *unit = dlist_container(EtlUnit, node,
									   dlist_pop_head_node(&lane->units));

	etl_unit_free(unit);
	deactivate_if_empty(lane);
}

static bool
is_begin(const EtlItem *item)
{
	return (item->flags & ETL_ITEM_BEGIN) != 0;
}

static void
add_item(EtlUnit *unit, const EtlItem *item, uint64 position)
{
	if (unit->nitems == unit->allocated)
	{
		unit->allocated *= 2;
		unit->items = repalloc_huge(unit->items,
									sizeof(EtlItem) * (Size) unit->allocated);
	}
	unit->items[unit->nitems++] = *item;
	unit->owns |= (item->flags & ITEM_OWNED) != 0;
	if (!is_begin(item))
		unit->position = Min(unit->position, position);
	unit->bytes += item->len;
	unit->lane->sender->bytes += item->len;
	unit->lane->sender->nitems++;
}

/*
 * Close the open batch.
 *
 * A "begin" never ends a batch: it goes to the next one, whose rows it
 * announces, so that no begin is delivered for rows that are refused later.
 */
void
etl_lane_seal(EtlLane *lane)
{
	EtlUnit    *unit = lane->open;
	EtlUnit    *rest = NULL;
	EtlItem    *last;

	if (unit == NULL)
		return;
	last = &unit->items[unit->nitems - 1];
	if (is_begin(last))
	{
		if (unit->nitems == 1)
			return;

		rest = new_batch(lane);
		add_item(rest, last, PG_UINT64_MAX);
		unit->nitems--;
		unit->bytes -= last->len;
		lane->sender->bytes -= last->len;
		lane->sender->nitems--;
	}

	unit->sealed_at = GetCurrentTimestamp();
	unit->windows = MemoryContextAllocZero(lane->sender->context, sizeof(EtlWindow));
	unit->windows[0].count = unit->nitems;
	unit->nwindows = 1;
	unit->fresh = true;
	dlist_push_tail(&lane->units, &unit->node);
	lane->open = rest;
}

static bool
is_full(const EtlUnit *unit, uint32 more)
{
	const EtlConfig *config = unit->lane->sender->config;

	return unit->bytes + more > config->max_batch_size ||
		(config->max_batch_events > 0 && unit->nitems >= config->max_batch_events) ||
		unit->nitems >= MOST_ITEMS;
}

/*
 * A "begin" waits for its first row, however long that takes: the row may be
 * larger than the ring that it comes through.  So it does not stay there, and
 * holds no position; the "commit" after it does.
 */
static void
take_out_begin(EtlLane *lane, EtlItem *begin)
{
	if (begin->flags & ITEM_OWNED)
		return;
	begin->data = memcpy(MemoryContextAlloc(lane->sender->context, begin->len),
						 begin->data, begin->len);
	begin->flags |= ITEM_OWNED;
}

static void
append(EtlLane *lane, EtlItem *item, uint64 position, void *chunk)
{
	if (is_begin(item))
		take_out_begin(lane, item);
	if (lane->open && lane->open->nitems > 0 && is_full(lane->open, item->len))
		etl_lane_seal(lane);
	if (lane->open == NULL)
	{
		lane->open = new_batch(lane);
		activate(lane);
	}
	add_item(lane->open, item, position);
	if (chunk)
	{
		MemoryContext old = MemoryContextSwitchTo(lane->sender->context);

		lane->open->chunks = lappend(lane->open->chunks, chunk);
		MemoryContextSwitchTo(old);
	}
	if (is_full(lane->open, 0))
		etl_lane_seal(lane);
}

void
etl_lane_append(EtlLane *lane, const EtlItem *item, uint64 position, bool owned)
{
	EtlItem		copy = *item;

	if (owned)
		copy.flags |= ITEM_OWNED;
	append(lane, &copy, position, NULL);
}

void
etl_lane_append_chunk(EtlLane *lane, const EtlItem *item, uint64 position, void *chunk)
{
	EtlItem		copy = *item;

	append(lane, &copy, position, chunk);
}

void
etl_lane_step(EtlLane *lane, EtlStep run, void *arg, uint32 table, uint64 position)
{
	EtlUnit    *unit;

	etl_lane_seal(lane);
	unit = new_unit(lane, position);
	unit->run = run;
	unit->arg = arg;
	unit->table = table;
	dlist_push_tail(&lane->units, &unit->node);
	activate(lane);
}

void
etl_lane_set_table(EtlLane *lane, EtlTable *table)
{
	if (lane->table == table)
		return;
	etl_lane_seal(lane);
	lane->table = table;
}

void
etl_lane_set_group(EtlLane *lane, int group)
{
	lane->group = group;
}

bool
etl_lane_idle(EtlLane *lane)
{
	return !lane->active;
}

uint64
etl_lane_oldest(EtlLane *lane)
{
	uint64		oldest = lane->open ? lane->open->position : PG_UINT64_MAX;

	/* A step may have passed an open batch that holds a "begin" alone. */
	if (!dlist_is_empty(&lane->units))
		oldest = Min(oldest, dlist_head_element(EtlUnit, node, &lane->units)->position);
	return oldest;
}

uint64
etl_sender_oldest(EtlSender *sender, int group)
{
	uint64		oldest = PG_UINT64_MAX;
	dlist_iter	iter;

	dlist_foreach(iter, &sender->active)
	{
		EtlLane    *lane = dlist_container(EtlLane, node, iter.cur);

		if (lane->group == group)
			oldest = Min(oldest, etl_lane_oldest(lane));
	}
	return oldest;
}
