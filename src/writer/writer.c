/*-------------------------------------------------------------------------
 *
 * writer.c
 *	  The writer of a pipeline: from the queues to the destination.
 *
 * A turn of the main loop:
 *
 *	 1. look around: stop, definition, requests, sync workers, table states
 *	 2. take records that are there, put rows into lanes	(lanes.c)
 *	 3. store what must be stored							(pending.c)
 *	 4. let the sender start, drive and finish transfers	(send.c)
 *	 5. move durable positions, release the rings			(progress.c)
 *
 * Only when nothing was taken does it wait: in the sender while transfers are
 * under way, else on the latch.  There is no polling: whoever has something
 * new sets the latch, and what is due by itself says when.
 *
 * Nothing that this process has in memory needs saving.  When it ends, in
 * whatever way, the pair starts again from what was confirmed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "guc.h"
#include "server/worker.h"
#include "writer/writer.h"

#define STATISTICS_INTERVAL	10000	/* ms */
#define TRANSFER_TURN		250 /* ms in the sender while transfers run */
#define LOCK_RETRY			200 /* ms between two tries of a bracket */

/* ----------
 * Brackets of start and end
 * ----------
 */

void
etl_writer_bracket(EtlBracketKind kind, const char *name, void (*body) (void *arg), void *arg)
{
	while (!etl_bracket_try(kind, name, body, arg))
	{
		LWLockAcquire(&etl_worker_pipeline->lock, LW_EXCLUSIVE);
		etl_worker_pipeline->waiting_for = ETL_WAIT_LOCK;
		LWLockRelease(&etl_worker_pipeline->lock);
		(void) etl_worker_wait(LOCK_RETRY);
		if (etl_worker_should_stop())
			etl_worker_exit(ETL_EXIT_AGAIN);
	}
	LWLockAcquire(&etl_worker_pipeline->lock, LW_EXCLUSIVE);
	if (etl_worker_pipeline->waiting_for == ETL_WAIT_LOCK)
		etl_worker_pipeline->waiting_for = ETL_WAIT_NOTHING;
	LWLockRelease(&etl_worker_pipeline->lock);
}

/*
 * Apply confirms what is durable and nothing else, so this is as far as the
 * slot can be confirmed once we are gone.  What has not been compared yet
 * stays as it was.
 */
static void
store_stopped(void)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	XLogRecPtr	stopped;

	LWLockAcquire(&pipeline->lock, LW_SHARED);
	stopped = pipeline->stopped_lsn;
	LWLockRelease(&pipeline->lock);
	if (XLogRecPtrIsInvalid(stopped))
		stopped = Max(pg_atomic_read_u64(&pipeline->durable_lsn),
					  pg_atomic_read_u64(&pipeline->confirmed_lsn));
	if (!XLogRecPtrIsInvalid(stopped))
		etl_store_stopped(pipeline->id, stopped);
}

static void
stopped_body(void *arg)
{
	if (etl_extension_present())
		store_stopped();
}

typedef struct Failure
{
	int64		id;
	int			sqlstate;
	const char *message;
	const char *hint;
} Failure;

static void
failure_body(void *arg)
{
	Failure    *failure = arg;

	if (!etl_extension_present())
		return;
	etl_store_failed(failure->id, failure->sqlstate, failure->message, failure->hint);
	store_stopped();
	etl_worker_give_up();
}

/*
 * The pipeline cannot go on until a user acts: say so and end, in a way that
 * does not make the launcher start the pair again.
 */
void
etl_writer_fail(EtlWriter *writer, int sqlstate, const char *message, const char *hint)
{
	Failure		failure = {writer->pipeline->id, sqlstate, message, hint};

	etl_shmem_set_failed(writer->pipeline, sqlstate, message, hint);
	ereport(LOG,
			(errcode(sqlstate),
			 errmsg("pipeline \"%s\" has failed: %s",
					NameStr(writer->pipeline->name), message),
			 hint ? errhint("%s", hint) : 0));
	etl_writer_bracket(ETL_BRACKET_WRITE, "etl: storing failure", failure_body, &failure);
	etl_worker_exit(ETL_EXIT_DONE);
}

/* ----------
 * Statistics
 * ----------
 */

static void
statistics_body(void *arg)
{
	EtlWriter  *writer = arg;

	if (!etl_extension_present())
		return;

	/* an ERROR ends the pair, and the next start fails with it */
	etl_config_check_owner(writer->config);
	etl_store_statistics(writer->pipeline);
	etl_store_prune_rules(writer->pipeline->id,
						  pg_atomic_read_u64(&writer->pipeline->confirmed_lsn));
}

/* Counters of shared memory into the tables; a user's lock means "next time". */
static void
store_statistics(EtlWriter *writer, TimestampTz now)
{
	static uint64 stored_batches = 0;
	static XLogRecPtr stored_durable = InvalidXLogRecPtr;
	uint64		batches = pg_atomic_read_u64(&writer->pipeline->batches);
	XLogRecPtr	confirmed = pg_atomic_read_u64(&writer->pipeline->confirmed_lsn);

	writer->statistics_next = TimestampTzPlusMilliseconds(now, STATISTICS_INTERVAL);

	/* an idle pipeline writes nothing, or it would feed itself */
	if (batches == stored_batches && stored_durable != InvalidXLogRecPtr)
		return;
	if (etl_bracket_try(ETL_BRACKET_WRITE, "etl: storing statistics", statistics_body, writer))
	{
		stored_batches = batches;
		stored_durable = confirmed;
	}
}

/* ----------
 * Waiting
 * ----------
 */

static long
sooner(long a, long b)
{
	if (a < 0)
		return b;
	if (b < 0)
		return a;
	return Min(a, b);
}

static long
ms_until(TimestampTz when, TimestampTz now)
{
	if (when == 0)
		return -1;
	return when <= now ? 0 : (long) ((when - now + 999) / 1000);
}

/* ms until something of ours is due. */
static long
next_due(EtlWriter *writer)
{
	TimestampTz now = GetCurrentTimestamp();
	long		due = ms_until(writer->statistics_next, now);

	if (writer->scan)
		return 0;
	if (writer->pending != NIL)
		due = sooner(due, Max(ms_until(writer->pending_next, now), 0));
	else if (writer->schedule_wanted && writer->pipeline->slot_created && !writer->failing)
		due = sooner(due, Max(ms_until(writer->schedule_next, now), 0));
	if (writer->config_next != 0)
		due = sooner(due, ms_until(writer->config_next, now));
	return due;
}

/* Tell the producers that we sleep; false when one has something after all. */
static bool
fall_asleep(EtlWriter *writer)
{
	for (int i = 0; i < ETL_INTAKES; i++)
	{
		if (writer->intakes[i].queue && !etl_queue_may_sleep(writer->intakes[i].queue))
			return false;
	}
	return true;
}

static void
wake_up(EtlWriter *writer)
{
	for (int i = 0; i < ETL_INTAKES; i++)
	{
		if (writer->intakes[i].queue)
			etl_queue_awake(writer->intakes[i].queue);
	}
}

/*
 * Nothing to take: drive transfers, or sleep.  "reading" is false while the
 * queues are left alone because too much is in memory already.
 */
static void
wait_for_work(EtlWriter *writer, long due, bool busy, bool reading)
{
	due = sooner(due, next_due(writer));
	if (due == 0)
		return;
	if (!reading || fall_asleep(writer))
	{
		if (busy)
		{
			due = sooner(due, TRANSFER_TURN);
			(void) etl_sender_run(writer->sender, (int) due, &busy);
			etl_progress_update(writer);
		}
		else
			(void) etl_worker_wait(due);
	}
	wake_up(writer);
}

/* ----------
 * The loop
 * ----------
 */

/*
 * Is there a reason not to wait for the age of batches?  Somebody waits (a
 * session in wait_for(), a sync worker near its hand-over), or the ring is
 * nearly full.
 */
static bool
in_a_hurry(EtlWriter *writer, EtlIntake *intake)
{
	XLogRecPtr	durable;

	if (writer->failing)
		return true;
	if (intake->queue == NULL)
		return false;
	durable = intake->sync ? intake->durable :
		pg_atomic_read_u64(&writer->pipeline->durable_lsn);
	return pg_atomic_read_u64(&writer->pipeline->flush_target) > durable ||
		etl_queue_used(intake->queue) > etl_queue_capacity(intake->queue) / 4 * 3;
}

/*
 * on_error = stop: what comes before the trouble is delivered, then the
 * pipeline ends.  When the destination itself refused something, the sender
 * is halted and only what is under way ends.
 */
static void
fail_if_due(EtlWriter *writer)
{
	if (!writer->failing || !etl_sender_quiet(writer->sender))
		return;
	etl_progress_update(writer);
	etl_pending_run(writer);
	if (writer->pending != NIL)
		return;					/* a user's lock: in a moment */
	etl_writer_fail(writer, writer->fail_sqlstate, writer->fail_message,
					writer->fail_hint[0] ? writer->fail_hint : NULL);
}

static void
turn(EtlWriter *writer)
{
	bool		took;
	bool		busy;
	long		due;
	TimestampTz now = GetCurrentTimestamp();

	etl_writer_watch(writer);
	etl_writer_watch_syncs(writer);
	etl_writer_log_others(writer);

	took = etl_writer_take(writer);
	if (writer->scan ||
		writer->tables_version != pg_atomic_read_u64(&writer->pipeline->tables_version))
		etl_writer_scan(writer);
	etl_pending_run(writer);
	etl_writer_schedule(writer);

	for (int i = 0; i < ETL_INTAKES; i++)
		etl_sender_hurry(writer->sender, i, in_a_hurry(writer, &writer->intakes[i]));
	if (writer->local)
	{
		due = etl_local_run(writer, !took);
		busy = false;
	}
	else
		due = etl_sender_run(writer->sender, 0, &busy);
	etl_progress_update(writer);
	fail_if_due(writer);

	if (now >= writer->statistics_next)
	{
		if (writer->tables_full)
			etl_writer_load_waiting(writer);
		store_statistics(writer, now);
	}
	if (!took)
		wait_for_work(writer, due, busy, etl_writer_may_take(writer));
}

/* ----------
 * The end
 * ----------
 */

/* Let transfers under way end, as far as time allows. */
static void
finish_transfers(EtlWriter *writer)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												  etl_shutdown_timeout);
	bool		busy;

	etl_sender_halt(writer->sender);
	while (etl_sender_in_flight(writer->sender) > 0)
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);

		if (left <= 0)
			break;
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		(void) etl_sender_run(writer->sender, (int) Min(left, 50), &busy);
	}
	etl_progress_update(writer);
}

static void
end_in_good_order(EtlWriter *writer)
{
	EtlPipelineShared *pipeline = writer->pipeline;
	bool		wanted = pipeline->in_use && pipeline->wanted;

	if (writer->sender)
		finish_transfers(writer);
	if (!pipeline->released)
	{
		writer->pending_next = 0;
		etl_pending_run(writer);
		store_statistics(writer, GetCurrentTimestamp());
		(void) etl_bracket_try(ETL_BRACKET_WRITE, "etl: storing position", stopped_body, NULL);
	}
	if (writer->connection)
		writer->config->routine->close(writer->connection);
	etl_worker_exit(wanted ? ETL_EXIT_AGAIN : ETL_EXIT_DONE);
}

static void
writer_body(void)
{
	EtlWriter  *writer = etl_writer_start();

	/* before a success clears what the last one died of */
	etl_writer_log_others(writer);
	etl_writer_connect(writer);
	if (etl_worker_should_stop())
		end_in_good_order(writer);

	writer->sender = etl_sender_create(writer->config, writer->connection,
									   &etl_writer_callbacks, writer);
	if (writer->config->routine->abilities & ETL_LOCAL_TRANSACTION)
		writer->local = etl_local_create(writer);
	writer->statistics_next = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														  STATISTICS_INTERVAL);
	for (;;)
	{
		/* serves interrupts and resets the latch before we look at anything */
		(void) etl_worker_wait(0);
		if (etl_worker_should_stop())
			end_in_good_order(writer);
		turn(writer);
	}
}

void
etl_writer_main(Datum main_arg)
{
	etl_worker_start(ETL_ROLE_WRITER, main_arg);
	etl_worker_run(writer_body);
}
