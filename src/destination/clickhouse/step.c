/*-------------------------------------------------------------------------
 *
 * step.c
 *	  Steps in the life of a generation that are tried again, and what they
 *	  leave behind.
 *
 * A step looks what is there when nothing that could change it runs any more:
 * statements of a former writer are ended, and our own whose end we have not
 * seen are asked about.
 *
 * It is done when the table is in its place.  What it leaves behind is
 * dropped, but holds nobody up who cannot be: the next copy and the end of the
 * pipeline drop what carries the mark.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"

/* How often a step is tried again because of what is to be dropped. */
#define MOST_DROPS		5

MemoryContext
ch_enter(EtlConnection *connection, Oid relid, EtlResult *result)
{
	connection->changing = relid;
	ch_reset_result(result);
	MemoryContextReset(connection->scratch);
	return MemoryContextSwitchTo(connection->scratch);
}

static ChStep *
find_step(EtlConnection *connection, ChStepKind kind, const EtlTable *table)
{
	ListCell   *lc;

	foreach(lc, connection->steps)
	{
		ChStep	   *step = lfirst(lc);

		if (step->kind == kind && step->key.relid == table->relid &&
			step->key.generation == table->generation)
			return step;
	}
	return NULL;
}

ChStep *
ch_step_begin(EtlConnection *connection, ChStepKind kind, const EtlTable *table)
{
	ChStep	   *step = find_step(connection, kind, table);
	MemoryContext old;

	if (step)
		return step;
	old = MemoryContextSwitchTo(connection->context);
	step = palloc0_object(ChStep);
	step->kind = kind;
	step->key.relid = table->relid;
	step->key.generation = table->generation;
	connection->steps = lappend(connection->steps, step);
	MemoryContextSwitchTo(old);
	return step;
}

void
ch_step_end(EtlConnection *connection, ChStep *step, const EtlResult *result)
{
	if (result->status == ETL_RETRY || result->status == ETL_ENDPOINT)
		return;					/* it comes again */
	connection->steps = list_delete_ptr(connection->steps, step);
	pfree(step);
}

/* End what a former writer of this pipeline has left running, rows and statements. */
bool
ch_settle(EtlConnection *connection, EtlResult *result)
{
	StringInfoData sql;

	if (!connection->settled)
	{
		initStringInfo(&sql);
		appendStringInfo(&sql, "KILL QUERY WHERE query_id LIKE 'etl-%s-%%' SYNC", connection->hex);
		connection->settled = ch_run(connection, CH_CHANGE, sql.data, NULL, result);
	}
	return connection->settled && ch_is_sure(connection, result);
}

bool
ch_drop_left(EtlConnection *connection, ChStep *step, const ChFound *table, const char *name,
			 EtlResult *result)
{
	if (ch_drop(connection, name, ch_is_view(table), result))
		return true;
	if (result->status != ETL_PARK && (ch_must_stop() || ++step->failed_drops < MOST_DROPS))
		return false;
	ereport(LOG,
			(errcode(result->sqlstate),
			 errmsg("could not drop table \"%s\" at the destination, which nothing needs any more: %s",
					name, result->message),
			 errdetail("It stays there until the table is copied again, or the pipeline dropped.")));
	ch_reset_result(result);
	return true;
}
