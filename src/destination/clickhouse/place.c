/*-------------------------------------------------------------------------
 *
 * place.c
 *	  Where the rows of a generation go, and how it looks there.
 *
 * Asked once, and forgotten whenever a table may have got another name.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"

ChFound *
ch_find_generation(List *found, const EtlTable *table, const char *base)
{
	ChFound    *best = NULL;
	ListCell   *lc;

	foreach(lc, found)
	{
		ChFound    *other = lfirst(lc);

		if (!ch_is_generation(other, table) || strncmp(other->name, "_etl_old_", 9) == 0)
			continue;
		if (base && strcmp(other->name, base) == 0)
			return other;
		if (best == NULL || strncmp(other->name, "_etl_", 5) != 0)
			best = other;
	}
	return best;
}

void
ch_vanished(const EtlTable *table, EtlResult *result)
{
	etl_result_set(result, ETL_PARK, ERRCODE_UNDEFINED_TABLE,
				   "the table's generation %u does not exist at the destination", table->generation);
	strlcpy(result->hint, "Somebody has dropped it there; etl.resync_table() or etl.retry_table() copies the table again.",
			sizeof(result->hint));
}

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

void
ch_forget_places(EtlConnection *connection, Oid relid)
{
	HASH_SEQ_STATUS status;
	ChPlace    *place;

	hash_seq_init(&status, connection->places);
	while ((place = hash_seq_search(&status)) != NULL)
		if (place->key.relid == relid)
			ch_forget_place(connection, relid, place->key.generation);
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
	if (!ch_run(connection, CH_READ, sql.data, &rows, result))
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

/* Ask for name, type and comment of the columns of a table, in order. */
static bool
ask_columns(EtlConnection *connection, const char *table, ChRows *rows, EtlResult *result)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT name, type, comment FROM system.columns WHERE database = ");
	ch_put_literal(&sql, connection->database);
	appendStringInfoString(&sql, " AND table = ");
	ch_put_literal(&sql, table);
	appendStringInfoString(&sql, " ORDER BY position FORMAT RowBinary");
	return ch_run(connection, CH_READ, sql.data, rows, result);
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
	ChRows		rows;
	int			found = 0;

	if (!ask_columns(connection, name, &rows, result))
		return false;
	while (ch_rows_more(&rows))
	{
		char	   *column = ch_rows_string(&rows);
		char	   *type = ch_rows_string(&rows);

		(void) ch_rows_string(&rows);
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

	if (!ch_settle(connection, result) ||
		!ch_find(connection, table->relid, NULL, 0, &found, result))
		return false;
	current = ch_find_generation(found, table, NULL);
	if (current == NULL)
	{
		ch_vanished(table, result);
		return false;
	}
	place->name = current->name;
	place->skip = false;
	if (!check_columns(connection, table, place->name, result))
		return false;
	return !ch_is_log(table->options) || read_end(connection, place, result);
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
	old = ch_enter(connection, table->relid, result);
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

static void
read_columns(EtlConnection *connection, const EtlTable *table, MemoryContext into,
			 EtlTarget *target, EtlResult *result)
{
	ChRows		rows;
	List	   *found;
	ChFound    *current;
	ChNames		names;

	if (!ch_names(connection->database, table->shape, table->options, &names, result) ||
		!ch_find(connection, table->relid, NULL, 0, &found, result))
		return;
	target->name = MemoryContextStrdup(into, names.base);
	current = ch_find_generation(found, table, names.base);
	if (current == NULL)
		return;
	if (!ask_columns(connection, current->name, &rows, result))
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
	MemoryContext old = ch_enter(connection, table->relid, result);

	read_columns(connection, table, into, target, result);
	MemoryContextSwitchTo(old);
	return target;
}
