/*-------------------------------------------------------------------------
 *
 * expected.c
 *	  Is there what should be, and what should not?
 *
 * One look at the marks in the database.  A view counts as a trace of its
 * generation: who has dropped a table by hand has left it there, and it tells
 * that the database is the right one.  So does a newer generation, which took
 * the place of this one when we did not come to store that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "destination/clickhouse/clickhouse.h"

/* One object of ours: "mark" says what it was made for. */
static void
note(const ChMark *mark, bool whole, int n, EtlExpected *expected)
{
	for (int i = 0; i < n; i++)
	{
		if (expected[i].relid != mark->relid || expected[i].generation > mark->generation)
			continue;
		expected[i].traces = true;
		if (expected[i].generation == mark->generation)
			expected[i].found = expected[i].found || whole;
	}
}

static void
find_generations(EtlConnection *connection, int n, EtlExpected *expected, EtlResult *result)
{
	List	   *found;
	ListCell   *lc;

	if (!ch_find(connection, InvalidOid, NULL, 0, &found, result))
		return;
	foreach(lc, found)
	{
		const ChFound *table = lfirst(lc);

		/* "old" ones are on their way out, whatever they say */
		if (table->ours)
			note(&table->mark, strcmp(table->engine, "View") != 0 &&
				 strncmp(table->name, "_etl_old_", 9) != 0, n, expected);
	}
}

void
ch_find_generations(EtlConnection *connection, int n, EtlExpected *expected, EtlResult *result)
{
	MemoryContext old;

	memset(result, 0, sizeof(*result));
	MemoryContextReset(connection->scratch);
	old = MemoryContextSwitchTo(connection->scratch);
	find_generations(connection, n, expected, result);
	MemoryContextSwitchTo(old);
}

/* ----------
 * Strangers' names
 * ----------
 */

static void
find_names(EtlConnection *connection, int n, const char *const *names, bool *taken,
		   EtlResult *result)
{
	StringInfoData sql;
	ChRows		rows;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT name FROM system.tables WHERE database = ");
	ch_put_literal(&sql, connection->database);
	appendStringInfoString(&sql, " AND NOT startsWith(comment, ");
	ch_put_literal(&sql, ch_mark_prefix(connection, InvalidOid));
	appendStringInfoString(&sql, ") AND name IN (");
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			appendStringInfoString(&sql, ", ");
		ch_put_literal(&sql, names[i]);
	}
	appendStringInfoString(&sql, ") FORMAT RowBinary");
	if (!ch_run(connection, CH_READ, sql.data, &rows, result))
		return;
	while (ch_rows_more(&rows))
	{
		char	   *name = ch_rows_string(&rows);

		for (int i = 0; i < n; i++)
			if (strcmp(names[i], name) == 0)
				taken[i] = true;
	}
}

void
ch_find_names(EtlConnection *connection, int n, const char *const *names, bool *taken,
			  EtlResult *result)
{
	MemoryContext old;

	memset(result, 0, sizeof(*result));
	MemoryContextReset(connection->scratch);
	old = MemoryContextSwitchTo(connection->scratch);
	find_names(connection, n, names, taken, result);
	MemoryContextSwitchTo(old);
}
