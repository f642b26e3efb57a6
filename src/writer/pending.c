/*-------------------------------------------------------------------------
 *
 * pending.c
 *	  What the writer has to store, and when.
 *
 * Everything waits in one list, in order, and is stored in one bracket
 * between two turns.  A user's lock on our tables makes the bracket fail: it
 * is tried again later, in the meantime the stream goes on, and positions
 * behind what is not stored yet are not reported durable.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "server/worker.h"
#include "writer/writer.h"

#define LOCK_RETRY		200		/* ms */

/* A user's lock is shown only when it is more than a moment's. */
#define SHOW_AFTER		3		/* failed brackets */

EtlPending *
etl_pending_new(EtlWriter *writer, EtlPendingCall store, EtlIntake *intake, uint64 position)
{
	MemoryContext context = MemoryContextSwitchTo(writer->pending_context);
	EtlPending *pending = palloc0(sizeof(EtlPending));

	pending->store = store;
	pending->intake = intake;
	pending->position = position;
	pending->slot = ETL_NO_TABLE;
	writer->pending = lappend(writer->pending, pending);
	MemoryContextSwitchTo(context);
	return pending;
}

char *
etl_pending_text(EtlWriter *writer, const char *text)
{
	if (text == NULL || text[0] == '\0')
		return NULL;
	return MemoryContextStrdup(writer->pending_context, text);
}

/* ----------
 * The plainest of them: a table's state
 * ----------
 */

static void
store_state(EtlWriter *writer, EtlPending *pending)
{
	etl_store_state(writer->config->id, pending->relid, pending->state);
}

void
etl_pending_state(EtlWriter *writer, EtlTracked *tracked, EtlTableState state)
{
	EtlPending *pending;

	tracked->stored = state;
	pending = etl_pending_new(writer, store_state, NULL, 0);
	pending->relid = tracked->relid;
	pending->state = state;
}

/* ----------
 * Storing
 * ----------
 */

static bool extension_gone;

static void
store_body(void *arg)
{
	EtlWriter  *writer = arg;
	ListCell   *lc;

	extension_gone = !etl_extension_present();
	if (extension_gone)
		return;
	foreach(lc, writer->pending)
	{
		EtlPending *pending = lfirst(lc);

		pending->store(writer, pending);
	}
}

static void
show_lock(EtlWriter *writer, bool locked)
{
	EtlPipelineShared *pipeline = writer->pipeline;

	if (writer->lock_shown == locked)
		return;
	writer->lock_shown = locked;
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (locked && pipeline->waiting_for == ETL_WAIT_NOTHING)
		pipeline->waiting_for = ETL_WAIT_LOCK;
	else if (!locked && pipeline->waiting_for == ETL_WAIT_LOCK)
		pipeline->waiting_for = ETL_WAIT_NOTHING;
	LWLockRelease(&pipeline->lock);
}

void
etl_pending_run(EtlWriter *writer)
{
	static int	failures = 0;
	List	   *done;
	ListCell   *lc;

	if (writer->pending == NIL || writer->pending_next > GetCurrentTimestamp())
		return;

	ETL_FAILPOINT("writer_before_store");
	if (!etl_bracket_try(ETL_BRACKET_WRITE, "etl: storing state", store_body, writer))
	{
		writer->pending_next = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), LOCK_RETRY);
		if (++failures >= SHOW_AFTER)
			show_lock(writer, true);
		return;
	}
	if (extension_gone)
		etl_worker_exit(ETL_EXIT_DONE);
	ETL_FAILPOINT("writer_stored");
	failures = 0;
	show_lock(writer, false);
	writer->pending_next = 0;

	/* what is called now may add new ones: give them a context of their own */
	done = writer->pending;
	writer->pending = NIL;
	{
		MemoryContext old = writer->pending_context;

		writer->pending_context = AllocSetContextCreate(EtlWorkerContext,
														"etl things to store",
														ALLOCSET_DEFAULT_SIZES);
		foreach(lc, done)
		{
			EtlPending *pending = lfirst(lc);

			if (pending->stored)
				pending->stored(writer, pending);
		}
		MemoryContextDelete(old);
	}
}

bool
etl_pending_holds(const EtlWriter *writer)
{
	ListCell   *lc;

	foreach(lc, writer->pending)
		if (((EtlPending *) lfirst(lc))->holds)
			return true;
	return false;
}

/* Position of the oldest thing of "intake" that is not stored. */
uint64
etl_pending_oldest(EtlWriter *writer, const EtlIntake *intake)
{
	ListCell   *lc;

	if (etl_pending_holds(writer))
		return 0;
	foreach(lc, writer->pending)
	{
		EtlPending *pending = lfirst(lc);

		if (pending->intake == intake)
			return pending->position;
	}
	return PG_UINT64_MAX;
}
