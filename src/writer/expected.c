/*-------------------------------------------------------------------------
 *
 * expected.c
 *	  Is the destination still the one that we left?
 *
 * Our tables say which generations are live; the destination is asked for
 * them at each connect, and again when one is missed while the pipeline runs.
 *
 *	 none is there, nor a trace of one	URL or database lead elsewhere, or
 *					everything was removed.  Going on would split the data:
 *					the pipeline fails, until it is back or a user says that
 *					this is the place from now on (etl.resync_pipeline())
 *	 one is missing	somebody has dropped it: that table is set aside
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "server/worker.h"
#include "writer/writer.h"

#define LOST_MESSAGE "the destination has none of the tables that were copied to it"
#define VANISHED_HINT "Somebody has dropped it there; etl.resync_table() or etl.retry_table() copies the table again."

typedef struct Expectation
{
	int			n;
	EtlExpected *list;
	uint32	   *slots;			/* of their tables */
	bool		lost;			/* nothing of them is there */
} Expectation;

/* The generations that apply delivers to. */
static void
collect(EtlWriter *writer, Expectation *live)
{
	live->n = 0;
	live->list = palloc0_array(EtlExpected, etl_shared->ntables);
	live->slots = palloc0_array(uint32, etl_shared->ntables);
	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		const EtlTableSlot *slot = &etl_shared->tables[i];

		if (writer->tracked[i] == NULL || slot->relid != writer->tracked[i]->relid ||
			slot->owned[0].generation == 0)
			continue;
		live->list[live->n].relid = slot->relid;
		live->list[live->n].generation = slot->owned[0].generation;
		live->slots[live->n++] = i;
	}
	LWLockRelease(&writer->pipeline->lock);
}

static void
forget(Expectation *live)
{
	pfree(live->list);
	pfree(live->slots);
}

/* Ask for them; false when that did not succeed. */
static bool
ask(EtlWriter *writer, Expectation *live, EtlResult *result)
{
	live->lost = live->n > 0;
	if (live->n == 0)
		return true;
	writer->config->routine->find_generations(writer->connection, live->n, live->list, result);
	if (result->status != ETL_DONE)
		return false;
	for (int i = 0; i < live->n; i++)
		if (live->list[i].found || live->list[i].traces)
			live->lost = false;
	return true;
}

static const char *
lost_hint(EtlWriter *writer)
{
	return psprintf("Do URL and database of server \"%s\" lead elsewhere?  Set them back and call etl.start_pipeline(), or copy all to where they lead now: etl.resync_pipeline() and etl.start_pipeline().",
					writer->config->server);
}

/* One table's generation is not there. */
static void
miss(EtlWriter *writer, uint32 slot, const EtlExpected *expected, bool told)
{
	EtlTableState state = (EtlTableState) etl_shared->tables[slot].state;
	EtlGeneration *generation;
	char	   *message;

	if (told || (state != ETL_TABLE_READY && state != ETL_TABLE_SYNC_DONE))
	{
		/* a newer one is on its way, or will be */
		etl_writer_resync(writer, NULL, 0, slot, expected->generation, ETL_COPY_RESYNC, false);
		return;
	}
	generation = etl_writer_generation(writer, slot, expected->generation);
	if (generation == NULL || generation->out)
		return;
	message = psprintf("the table's generation %u does not exist at the destination",
					   expected->generation);
	if (generation->on_error == ETL_ON_ERROR_STOP)
		etl_writer_stop_at(writer, generation, ERRCODE_UNDEFINED_TABLE, message, VANISHED_HINT,
						   InvalidXLogRecPtr, 0);
	else
		etl_writer_park(writer, generation, NULL, 0, ERRCODE_UNDEFINED_TABLE, message,
						VANISHED_HINT, InvalidXLogRecPtr, 0);
	pfree(message);
}

/*
 * After a connect, before anything is decoded.  "result" is what the
 * destination said.  Does not return if the pipeline fails.
 */
void
etl_writer_compare(EtlWriter *writer, EtlResult *result)
{
	bool		told = writer->resync_told ||
		writer->config->resync_requests > writer->resync_done;
	Expectation live;

	if (writer->config->routine->find_generations == NULL)
		return;
	collect(writer, &live);
	if (ask(writer, &live, result))
	{
		if (live.lost && !told)
			etl_writer_fail(writer, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
							LOST_MESSAGE, lost_hint(writer));
		for (int i = 0; i < live.n; i++)
			if (!live.list[i].found)
				miss(writer, live.slots[i], &live.list[i], told);
	}
	forget(&live);
}

/* Does another generation take the place of this one anyway? */
static bool
is_being_replaced(EtlWriter *writer, const EtlGeneration *generation)
{
	EtlTableSlot *slot = &etl_shared->tables[generation->slot];
	bool		replaced;

	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	replaced = slot->relid == generation->relid &&
		slot->owned[0].generation == generation->generation &&
		slot->state != ETL_TABLE_READY && slot->state != ETL_TABLE_SYNC_DONE &&
		slot->state != ETL_TABLE_ERRORED;
	LWLockRelease(&writer->pipeline->lock);
	return replaced;
}

/*
 * Is nothing of this generation needed any more?  A newer one has taken over
 * what it had, or the table has left the pipeline.
 */
static bool
is_past(EtlWriter *writer, const EtlGeneration *generation)
{
	EtlTableSlot *slot = &etl_shared->tables[generation->slot];
	bool		past;

	LWLockAcquire(&writer->pipeline->lock, LW_SHARED);
	past = slot->relid != generation->relid ||
		slot->owned[0].generation > generation->generation;
	LWLockRelease(&writer->pipeline->lock);
	return past;
}

/*
 * The destination says that a table of ours is missing.  If it is not needed
 * any more, or being copied again, its changes have nowhere to go and need
 * not; if nothing of ours is there, the pipeline is made to fail.  Else false:
 * the table is to be set aside, also if the destination cannot be asked.
 */
bool
etl_writer_missing(EtlWriter *writer, EtlGeneration *generation)
{
	Expectation live;
	EtlResult	result;
	bool		lost;

	if (writer->config->routine->find_generations == NULL || writer->failing)
		return writer->failing;
	if (is_past(writer, generation))
	{
		generation->out = true;
		return true;
	}
	if (is_being_replaced(writer, generation))
	{
		etl_writer_resync(writer, NULL, 0, generation->slot, generation->generation,
						  ETL_COPY_RESYNC, false);
		generation->out = true;
		return true;
	}
	memset(&result, 0, sizeof(result));
	collect(writer, &live);
	lost = ask(writer, &live, &result) && live.lost;
	forget(&live);
	if (lost)
	{
		writer->failing = true;
		writer->fail_sqlstate = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
		strlcpy(writer->fail_message, LOST_MESSAGE, sizeof(writer->fail_message));
		strlcpy(writer->fail_hint, lost_hint(writer), sizeof(writer->fail_hint));
		etl_sender_halt(writer->sender);
	}
	return lost;
}
