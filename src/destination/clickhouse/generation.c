/*-------------------------------------------------------------------------
 *
 * generation.c
 *	  The life of a generation at ClickHouse.
 *
 *	 begun		under a name of its own: _etl_sync_<8 digits>_<oid>_<generation>
 *	 published	renamed to the table's name, or exchanged with what is there
 *	 emptied	an empty table of the same generation takes its place: in the
 *				same table a late INSERT would come to life again
 *	 dropped	with everything that carries the table's mark
 *
 * Each step looks first what is there, by marks, and does what is left to do;
 * so it can be repeated after a crash at any point, also one between a
 * statement and its answer.  It looks when nothing of an earlier step runs any
 * more, of this process or of a former writer (step.c).
 *
 * Where a generation has two tables, after a crash in the middle of emptying
 * it, the one under the table's own name is the one that counts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"

/* Emptied tables of a generation that could not be dropped. */
#define MOST_OLD		10

/* ----------
 * Beginning
 * ----------
 */

static void
begin(EtlConnection *connection, const EtlTable *table, ChStep *step, EtlResult *result)
{
	char	   *name = ch_staging_name(connection, table->relid, table->generation);
	ChNames		names;
	List	   *found;
	ListCell   *lc;

	if (!ch_layout_check(table->shape, table->options, result) ||
		!ch_look(connection, table, &names, &found, result))
		return;

	/* what earlier attempts have left, also of this one */
	foreach(lc, found)
	{
		ChFound    *other = lfirst(lc);

		if (ch_is_left(connection, table, other) && strcmp(other->name, name) != 0 &&
			!ch_drop_left(connection, step, other, other->name, result))
			return;
	}
	if (ch_clear_name(connection, table, found, name, result))
		(void) ch_create_table(connection, table, name, result);
}

void
ch_begin_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = ch_enter(connection, table->relid, result);
	ChStep	   *step = ch_step_begin(connection, CH_STEP_BEGIN, table);

	begin(connection, table, step, result);
	ch_step_end(connection, step, result);
	MemoryContextSwitchTo(old);
}

void
ch_abandon_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = ch_enter(connection, table->relid, result);
	List	   *found;
	ListCell   *lc;

	if (ch_is_sure(connection, result) &&
		ch_find(connection, table->relid, NULL, 0, &found, result))
	{
		foreach(lc, found)
		{
			ChFound    *other = lfirst(lc);

			if (result->status == ETL_DONE && ch_is_generation(other, table) &&
				ch_is_internal(other))
				(void) ch_drop(connection, other->name, false, result);
		}
	}
	MemoryContextSwitchTo(old);
}

/* ----------
 * Publishing
 * ----------
 */

/* Put the table "from" under the name "base"; what was there is called "from" then. */
static bool
take_name(EtlConnection *connection, const EtlTable *table, List *found, const char *from,
		  const char *base, EtlResult *result)
{
	ChFound    *taken = ch_find_name(found, base);

	if (taken == NULL)
		return ch_rename(connection, from, base, result);
	if (taken->ours && taken->mark.relid != table->relid)
	{
		/* the last rows of a table that was dropped do not belong here */
		if (!ch_send_wait(connection, taken->mark.relid, result))
			return false;
		ch_forget_places(connection, taken->mark.relid);
	}
	return ch_exchange(connection, from, base, result);
}

/* Drop what else carries the table's mark, and what is left under its staging names. */
static bool
drop_rest(EtlConnection *connection, const EtlTable *table, List *found, const char *from,
		  const ChNames *names, ChStep *step, EtlResult *result)
{
	ChFound    *replaced = from ? ch_find_name(found, names->base) : NULL;
	ListCell   *lc;

	/* the older one, after the exchange */
	if (replaced && !ch_drop_left(connection, step, replaced, from, result))
		return false;
	foreach(lc, found)
	{
		ChFound    *other = lfirst(lc);
		bool		marked = other->ours && other->mark.relid == table->relid &&
			other->mark.generation <= table->generation;

		if ((!marked && !ch_is_left(connection, table, other)) ||
			strcmp(other->name, names->base) == 0 ||
			(from && strcmp(other->name, from) == 0) ||
			(names->view && strcmp(other->name, names->view) == 0))
			continue;
		if (!ch_drop_left(connection, step, other, other->name, result))
			return false;
	}
	return true;
}

static void
publish(EtlConnection *connection, const EtlTable *table, ChStep *step, EtlResult *result)
{
	ChNames		names;
	List	   *found;
	ChFound    *current;
	ChFound    *view;
	const char *from = NULL;

	if (!ch_look(connection, table, &names, &found, result))
		return;
	current = ch_find_generation(found, table, names.base);
	if (current == NULL)
	{
		ch_vanished(table, result);
		return;
	}
	if (strcmp(current->name, names.base) != 0)
	{
		from = current->name;
		if (!take_name(connection, table, found, from, names.base, result))
			return;
	}
	view = ch_find_name(found, names.view);
	if (view && !ch_is_view(view) && !ch_drop(connection, names.view, false, result))
		return;
	if (names.view && !ch_create_view(connection, table, &names, result))
		return;
	(void) drop_rest(connection, table, found, from, &names, step, result);
}

void
ch_publish_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = ch_enter(connection, table->relid, result);
	ChStep	   *step = ch_step_begin(connection, CH_STEP_PUBLISH, table);

	/*
	 * Rows of older generations would meet the newer one under the name that
	 * they are sent to.  Those on their way must have come to an end, and
	 * whoever is sent again looks first where its place is.
	 */
	if (ch_settle(connection, result) && ch_send_wait(connection, table->relid, result))
	{
		ch_forget_places(connection, table->relid);
		publish(connection, table, step, result);
	}
	ch_step_end(connection, step, result);
	MemoryContextSwitchTo(old);
}

/* ----------
 * Emptying
 * ----------
 */

/*
 * A name for the empty table, NULL with "result" set.  What a former one has
 * left may be such that it cannot be dropped.
 */
static const char *
choose_name(EtlConnection *connection, const EtlTable *table, List *found,
			const ChFound *current, EtlResult *result)
{
	const char *name = ch_staging_name(connection, table->relid, table->generation);
	const char *old = ch_old_name(connection, table->relid, table->generation);

	if (strcmp(name, current->name) != 0 && ch_find_name(found, name) == NULL)
		return name;
	for (int i = 0; i < MOST_OLD; i++)
	{
		name = i == 0 ? old : psprintf("%s_%d", old, i);
		if (ch_find_name(found, name) == NULL)
			return name;
	}
	return ch_clear_name(connection, table, found, old, result) ? old : NULL;
}

/* Drop what was emptied, also by a step before this one: it is under names of ours. */
static bool
drop_emptied(EtlConnection *connection, const EtlTable *table, List *found, const ChFound *current,
			 ChStep *step, EtlResult *result)
{
	ListCell   *lc;

	foreach(lc, found)
	{
		ChFound    *other = lfirst(lc);

		if (ch_is_left(connection, table, other) && strcmp(other->name, current->name) != 0 &&
			!ch_drop_left(connection, step, other, other->name, result))
			return false;
	}
	return true;
}

static void
empty(EtlConnection *connection, const EtlTable *table, ChStep *step, EtlResult *result)
{
	List	   *found;
	ChFound    *current;
	const char *other;

	if (!ch_settle(connection, result) ||
		!ch_find(connection, table->relid, NULL, 0, &found, result))
		return;
	current = ch_find_generation(found, table, NULL);
	if (current == NULL)
	{
		ch_vanished(table, result);
		return;
	}
	if (step->done)
	{
		(void) drop_emptied(connection, table, found, current, step, result);
		return;
	}
	other = choose_name(connection, table, found, current, result);
	if (other == NULL || !ch_create_table(connection, table, other, result) ||
		!ch_exchange(connection, other, current->name, result))
		return;
	step->done = true;
	if (ch_drop_left(connection, step, current, other, result))
		(void) drop_emptied(connection, table, found, current, step, result);
}

void
ch_truncate(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = ch_enter(connection, table->relid, result);
	ChStep	   *step = ch_step_begin(connection, CH_STEP_TRUNCATE, table);

	connection->code = 0;
	if (ch_send_wait(connection, table->relid, result))
	{
		ch_forget_place(connection, table->relid, table->generation);
		empty(connection, table, step, result);
	}

	/* a sync worker may have cleaned up between two statements */
	if (result->status == ETL_PARK && connection->code == CH_UNKNOWN_TABLE)
		result->status = ETL_RETRY;
	ch_step_end(connection, step, result);
	MemoryContextSwitchTo(old);
}

/* ----------
 * Dropping
 * ----------
 */

void
ch_drop_table(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = ch_enter(connection, table->relid, result);
	List	   *found;
	ListCell   *lc;

	if (ch_is_sure(connection, result) &&
		ch_find(connection, table->relid, NULL, 0, &found, result))
	{
		foreach(lc, found)
		{
			ChFound    *other = lfirst(lc);

			if (result->status == ETL_DONE && other->ours && other->mark.relid == table->relid)
				(void) ch_drop(connection, other->name, ch_is_view(other), result);
		}
	}
	MemoryContextSwitchTo(old);
}

void
ch_drop_all(EtlConnection *connection, EtlResult *result)
{
	MemoryContext old = ch_enter(connection, InvalidOid, result);
	List	   *found;
	ListCell   *lc;

	if (ch_is_sure(connection, result) &&
		ch_find(connection, InvalidOid, NULL, 0, &found, result))
	{
		foreach(lc, found)
		{
			ChFound    *other = lfirst(lc);

			if (result->status == ETL_DONE && other->ours)
				(void) ch_drop(connection, other->name, ch_is_view(other), result);
		}
	}
	MemoryContextSwitchTo(old);
}
