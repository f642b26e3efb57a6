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
 * statement and its answer.
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

static MemoryContext
enter(EtlConnection *connection, Oid relid, EtlResult *result)
{
	connection->changing = relid;
	memset(result, 0, sizeof(*result));
	result->rejected = -1;
	result->retry_after = -1;
	MemoryContextReset(connection->scratch);
	return MemoryContextSwitchTo(connection->scratch);
}

static bool
is_view(const ChFound *found)
{
	return strcmp(found->engine, "View") == 0;
}

static bool
is_generation(const ChFound *found, const EtlTable *table)
{
	return found->ours && !is_view(found) && found->mark.relid == table->relid &&
		found->mark.generation == table->generation;
}

static bool
replaces(const EtlOptions *options)
{
	const char *text = etl_option_text(options, "if_exists");

	return text != NULL && strcmp(text, "replace") == 0;
}

/* ----------
 * Names that are taken
 * ----------
 */

/* May what is under the table's name, or its view's, be taken away? */
static bool
may_replace(EtlConnection *connection, const EtlTable *table, const ChFound *found,
			EtlResult *result)
{
	bool		marked = ch_is_mark(found->comment);

	if (found->ours && found->mark.relid == table->relid)
		return true;

	/* of a table that was dropped and made again */
	if (found->ours && connection->is_tracked && !connection->is_tracked(found->mark.relid))
		return true;
	if (!marked && replaces(table->options))
		return true;

	if (marked)
	{
		etl_result_set(result, ETL_PARK, ERRCODE_DUPLICATE_TABLE,
					   "table \"%s\" at the destination belongs to another table or pipeline",
					   found->name);
		strlcpy(result->hint, "Choose another name with option destination_table.",
				sizeof(result->hint));
		return false;
	}
	etl_result_set(result, ETL_PARK, ERRCODE_DUPLICATE_TABLE,
				   "table \"%s\" exists at the destination, and was not made by etl", found->name);
	strlcpy(result->hint,
			"Rename or drop it there, choose another name with option destination_table, or set if_exists to replace.",
			sizeof(result->hint));
	return false;
}

/* What is there under the names, and may it give way? */
static bool
look(EtlConnection *connection, const EtlTable *table, ChNames *names, List **found,
	 EtlResult *result)
{
	const char *wanted[2];
	ChFound    *other;

	if (!ch_names(connection->database, table->shape, table->options, names, result))
		return false;
	wanted[0] = names->base;
	wanted[1] = names->view;
	if (!ch_find(connection, table->relid, wanted, 2, found, result))
		return false;
	for (int i = 0; i < 2; i++)
	{
		other = ch_find_name(*found, wanted[i]);
		if (other && !may_replace(connection, table, other, result))
			return false;
	}
	return true;
}

/* ----------
 * Beginning
 * ----------
 */

void
ch_begin_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = enter(connection, table->relid, result);
	char	   *name = ch_staging_name(connection, table->relid, table->generation);
	ChNames		names;
	List	   *found;
	ListCell   *lc;

	if (ch_layout_check(table->shape, table->options, result) &&
		look(connection, table, &names, &found, result))
	{
		/* what earlier attempts have left, also of this one */
		foreach(lc, found)
		{
			ChFound    *other = lfirst(lc);

			if (result->status == ETL_DONE && other->ours && other->mark.relid == table->relid &&
				other->mark.generation <= table->generation &&
				strncmp(other->name, "_etl_", 5) == 0)
				(void) ch_drop(connection, other->name, is_view(other), result);
		}
		if (result->status == ETL_DONE)
			(void) ch_create_table(connection, table, name, result);
	}
	MemoryContextSwitchTo(old);
}

void
ch_abandon_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = enter(connection, table->relid, result);
	List	   *found;
	ListCell   *lc;

	if (ch_find(connection, table->relid, NULL, 0, &found, result))
	{
		foreach(lc, found)
		{
			ChFound    *other = lfirst(lc);

			if (result->status == ETL_DONE && is_generation(other, table) &&
				strncmp(other->name, "_etl_", 5) == 0)
				(void) ch_drop(connection, other->name, false, result);
		}
	}
	MemoryContextSwitchTo(old);
}

/* ----------
 * Publishing
 * ----------
 */

/* The generation's table in "found": under the table's own name, or staging. */
static ChFound *
find_generation(List *found, const EtlTable *table, const char *base)
{
	ChFound    *best = NULL;
	ListCell   *lc;

	foreach(lc, found)
	{
		ChFound    *other = lfirst(lc);

		if (!is_generation(other, table) || strncmp(other->name, "_etl_old_", 9) == 0)
			continue;
		if (base && strcmp(other->name, base) == 0)
			return other;
		if (best == NULL || strncmp(other->name, "_etl_", 5) != 0)
			best = other;
	}
	return best;
}

static void
vanished(const EtlTable *table, EtlResult *result)
{
	etl_result_set(result, ETL_PARK, ERRCODE_UNDEFINED_TABLE,
				   "the table's generation %u does not exist at the destination", table->generation);
	strlcpy(result->hint, "Somebody has dropped it there; etl.resync_table() or etl.retry_table() copies the table again.",
			sizeof(result->hint));
}

/* Put the table "from" under the name "base". */
static bool
take_name(EtlConnection *connection, List *found, const char *from, const char *base,
		  EtlResult *result)
{
	ChFound    *taken = ch_find_name(found, base);

	if (taken == NULL)
		return ch_rename(connection, from, base, result);
	if (!ch_exchange(connection, from, base, result))
		return false;
	/* the older one is now called as the newer one was */
	return ch_drop(connection, from, is_view(taken), result);
}

/* Drop what else carries the table's mark. */
static bool
drop_rest(EtlConnection *connection, const EtlTable *table, List *found, const char *from,
		  const ChNames *names, EtlResult *result)
{
	ListCell   *lc;

	foreach(lc, found)
	{
		ChFound    *other = lfirst(lc);

		if (!other->ours || other->mark.relid != table->relid ||
			other->mark.generation > table->generation ||
			strcmp(other->name, names->base) == 0 ||
			(from && strcmp(other->name, from) == 0) ||
			(names->view && strcmp(other->name, names->view) == 0))
			continue;
		if (!ch_drop(connection, other->name, is_view(other), result))
			return false;
	}
	return true;
}

static void
publish(EtlConnection *connection, const EtlTable *table, EtlResult *result)
{
	ChNames		names;
	List	   *found;
	ChFound    *current;
	ChFound    *view;
	const char *from = NULL;

	if (!look(connection, table, &names, &found, result))
		return;
	current = find_generation(found, table, names.base);
	if (current == NULL)
	{
		vanished(table, result);
		return;
	}
	if (strcmp(current->name, names.base) != 0)
	{
		from = current->name;
		if (!take_name(connection, found, from, names.base, result))
			return;
	}
	view = ch_find_name(found, names.view);
	if (view && !is_view(view) && !ch_drop(connection, names.view, false, result))
		return;
	if (names.view && !ch_create_view(connection, table, &names, result))
		return;
	(void) drop_rest(connection, table, found, from, &names, result);
}

void
ch_publish_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = enter(connection, table->relid, result);

	/* rows on their way to the old name would land in the older generation */
	ch_send_wait(connection, table->relid);
	ch_forget_place(connection, table->relid, table->generation);
	publish(connection, table, result);
	MemoryContextSwitchTo(old);
}

/* ----------
 * Places
 * ----------
 */

void
ch_forget_place(EtlConnection *connection, Oid relid, uint32 generation)
{
	ChPlaceKey	key = {relid, generation};
	ChPlace    *place = hash_search(connection->places, &key, HASH_FIND, NULL);

	if (place == NULL)
		return;
	pfree(place->name);
	hash_search(connection->places, &key, HASH_REMOVE, NULL);
}

/*
 * End what a former writer of this pipeline has left running: its rows must
 * not come after we have looked what is there.
 */
static bool
settle(EtlConnection *connection, EtlResult *result)
{
	StringInfoData sql;

	if (connection->settled)
		return true;
	initStringInfo(&sql);
	appendStringInfo(&sql, "KILL QUERY WHERE query_id LIKE 'etl-%s-%%' SYNC", connection->hex);
	connection->settled = ch_run(connection, CH_CHANGE, sql.data, NULL, NULL, result);
	return connection->settled;
}

/* Position of the last row of an event log. */
static bool
read_end(EtlConnection *connection, ChPlace *place, EtlResult *result)
{
	StringInfoData sql;
	ChRows		rows;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT tupleElement(m, 1), tupleElement(m, 2), tupleElement(m, 3), c FROM"
						   " (SELECT max((cdc_epoch, cdc_lsn, cdc_ordinal)) AS m, count() AS c FROM ");
	ch_put_table(&sql, connection, place->name);
	appendStringInfoString(&sql, ") FORMAT RowBinary");
	if (!ch_run(connection, CH_READ, sql.data, &rows, NULL, result))
		return false;
	place->epoch = ch_rows_number(&rows, 2);
	place->lsn = ch_rows_number(&rows, 8);
	place->ordinal = ch_rows_number(&rows, 8);
	place->skip = ch_rows_number(&rows, 8) > 0;
	if (ch_rows_done(&rows))
		return true;
	etl_result_set(result, ETL_RETRY, ERRCODE_FDW_ERROR, "the answer of ClickHouse is malformed");
	return false;
}

/* Is "type" the type that is wanted, blanks aside? */
static bool
same_type(const char *type, const char *wanted)
{
	for (;; type++, wanted++)
	{
		while (*type == ' ')
			type++;
		while (*wanted == ' ')
			wanted++;
		if (*type != *wanted)
			return false;
		if (*type == '\0')
			return true;
	}
}

/*
 * Has the table the columns that rows are sent with?  Options may have been
 * changed since it was made, or somebody has altered it.  Types that a user
 * has chosen may be spelled in other ways; the server compares them.
 */
static bool
check_columns(EtlConnection *connection, const EtlTable *table, const char *name,
			  EtlResult *result)
{
	ChLayout   *layout = ch_layout(table->shape, table->options);
	StringInfoData sql;
	ChRows		rows;
	int			found = 0;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT name, type FROM system.columns WHERE database = ");
	ch_put_literal(&sql, connection->database);
	appendStringInfoString(&sql, " AND table = ");
	ch_put_literal(&sql, name);
	appendStringInfoString(&sql, " FORMAT RowBinary");
	if (!ch_run(connection, CH_READ, sql.data, &rows, NULL, result))
		return false;
	while (ch_rows_more(&rows))
	{
		char	   *column = ch_rows_string(&rows);
		char	   *type = ch_rows_string(&rows);

		for (int i = 0; i < layout->nparts; i++)
		{
			const ChPart *part = &layout->parts[i];
			bool		chosen = part->column && part->column->chosen && !part->companion;

			if (strcmp(column, part->name) == 0 && (chosen || same_type(type, part->type)))
				found++;
		}
	}
	if (found == layout->nparts)
		return true;
	etl_result_set(result, ETL_PARK, ERRCODE_FDW_INCONSISTENT_DESCRIPTOR_INFORMATION,
				   "the table at the destination has other columns than its rows");
	strlcpy(result->hint,
			"Options were changed, or somebody has altered it there; etl.retry_table() makes it again.",
			sizeof(result->hint));
	return false;
}

static bool
find_place(EtlConnection *connection, const EtlTable *table, ChPlace *place, EtlResult *result)
{
	List	   *found;
	ChFound    *current;

	if (!settle(connection, result) ||
		!ch_find(connection, table->relid, NULL, 0, &found, result))
		return false;
	current = find_generation(found, table, NULL);
	if (current == NULL)
	{
		vanished(table, result);
		return false;
	}
	place->name = current->name;
	place->skip = false;
	if (!check_columns(connection, table, place->name, result))
		return false;
	return strcmp(current->engine, "MergeTree") != 0 || !ch_is_log(table->options) ||
		read_end(connection, place, result);
}

ChPlace *
ch_place(EtlConnection *connection, const EtlTable *table, EtlResult *result)
{
	ChPlaceKey	key = {table->relid, table->generation};
	ChPlace    *place = hash_search(connection->places, &key, HASH_FIND, NULL);
	ChPlace		made;
	MemoryContext old;
	bool		ok;

	if (place)
		return place;
	old = enter(connection, table->relid, result);
	ok = find_place(connection, table, &made, result);
	MemoryContextSwitchTo(old);
	if (!ok)
		return NULL;
	made.name = MemoryContextStrdup(connection->context, made.name);
	made.key = key;
	place = hash_search(connection->places, &key, HASH_ENTER, NULL);
	*place = made;
	return place;
}

/* ----------
 * Emptying
 * ----------
 */

static void
empty(EtlConnection *connection, const EtlTable *table, EtlResult *result)
{
	List	   *found;
	ChFound    *current;
	ChFound    *left;
	const char *other;

	if (!settle(connection, result) ||
		!ch_find(connection, table->relid, NULL, 0, &found, result))
		return;
	current = find_generation(found, table, NULL);
	if (current == NULL)
	{
		vanished(table, result);
		return;
	}
	other = strncmp(current->name, "_etl_", 5) == 0 ?
		ch_old_name(connection, table->relid, table->generation) :
		ch_staging_name(connection, table->relid, table->generation);
	left = ch_find_name(found, other);
	if (left && !ch_drop(connection, other, false, result))
		return;
	if (!ch_create_table(connection, table, other, result) ||
		!ch_exchange(connection, other, current->name, result))
		return;
	(void) ch_drop(connection, other, false, result);
}

void
ch_truncate(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = enter(connection, table->relid, result);

	ch_send_wait(connection, table->relid);
	ch_forget_place(connection, table->relid, table->generation);
	empty(connection, table, result);

	/* a sync worker may have cleaned up between two statements */
	if (result->status == ETL_PARK && result->sqlstate == ERRCODE_UNDEFINED_TABLE &&
		strstr(result->message, "error 60"))
		result->status = ETL_RETRY;
	MemoryContextSwitchTo(old);
}

/* ----------
 * Reading, dropping
 * ----------
 */

static void
read_columns(EtlConnection *connection, const EtlTable *table, MemoryContext into,
			 EtlTarget *target, EtlResult *result)
{
	StringInfoData sql;
	ChRows		rows;
	List	   *found;
	ChFound    *current;
	ChNames		names;

	if (!ch_names(connection->database, table->shape, table->options, &names, result) ||
		!ch_find(connection, table->relid, NULL, 0, &found, result))
		return;
	target->name = MemoryContextStrdup(into, names.base);
	current = find_generation(found, table, names.base);
	if (current == NULL)
		return;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT name, type, comment FROM system.columns WHERE database = ");
	ch_put_literal(&sql, connection->database);
	appendStringInfoString(&sql, " AND table = ");
	ch_put_literal(&sql, current->name);
	appendStringInfoString(&sql, " ORDER BY position FORMAT RowBinary");
	if (!ch_run(connection, CH_READ, sql.data, &rows, NULL, result))
		return;
	target->columns = MemoryContextAllocZero(into, sizeof(EtlTargetColumn) * (rows.len / 3 + 1));
	while (ch_rows_more(&rows))
	{
		EtlTargetColumn *column = &target->columns[target->ncolumns];
		char	   *name = ch_rows_string(&rows);
		char	   *type = ch_rows_string(&rows);
		char	   *comment = ch_rows_string(&rows);
		int			attnum;
		unsigned int generation;

		if (rows.broken || sscanf(comment, "etl:%d:%u", &attnum, &generation) != 2 ||
			strstr(comment, CH_COMPANION_MARK) != NULL)
			continue;
		column->attnum = attnum;
		column->generation = generation;
		column->name = MemoryContextStrdup(into, name);
		column->type = MemoryContextStrdup(into, type);
		target->ncolumns++;
	}
}

EtlTarget *
ch_read_columns(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	EtlTarget  *target = palloc0_object(EtlTarget);
	MemoryContext into = CurrentMemoryContext;
	MemoryContext old = enter(connection, table->relid, result);

	read_columns(connection, table, into, target, result);
	MemoryContextSwitchTo(old);
	return target;
}

void
ch_drop_table(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext old = enter(connection, table->relid, result);
	List	   *found;
	ListCell   *lc;

	if (ch_find(connection, table->relid, NULL, 0, &found, result))
	{
		foreach(lc, found)
		{
			ChFound    *other = lfirst(lc);

			if (result->status == ETL_DONE && other->ours && other->mark.relid == table->relid)
				(void) ch_drop(connection, other->name, is_view(other), result);
		}
	}
	MemoryContextSwitchTo(old);
}

void
ch_drop_all(EtlConnection *connection, EtlResult *result)
{
	MemoryContext old = enter(connection, InvalidOid, result);
	List	   *found;
	ListCell   *lc;

	if (ch_find(connection, InvalidOid, NULL, 0, &found, result))
	{
		foreach(lc, found)
		{
			ChFound    *other = lfirst(lc);

			if (result->status == ETL_DONE && other->ours)
				(void) ch_drop(connection, other->name, is_view(other), result);
		}
	}
	MemoryContextSwitchTo(old);
}
