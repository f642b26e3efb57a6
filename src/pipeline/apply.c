/*-------------------------------------------------------------------------
 *
 * apply.c
 *	  The apply worker: owns the pipeline's slot, decodes, confirms.
 *
 * Life: wait for the writer (queue, destination connected) -> slot -> rules
 * and shapes in a bracket -> decode.  Between WAL records, and only there, it
 * looks at shared memory: stop, hold for a hand-over, changed tables (a
 * bracket), what may be confirmed.
 *
 * Invariant: confirmed <= durable <= decoded.  "durable" is the writer's word;
 * nothing else ever reaches the slot.
 *
 * This process decodes: it writes no table, opens no network connection, and
 * opens brackets of kind ETL_BRACKET_DECODER alone.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "catalog/config.h"
#include "pipeline/ownership.h"
#include "server/worker.h"
#include "source/decode.h"
#include "source/slot.h"
#include "stream/stream.h"

#define RECORDS_A_TURN		64	/* between two looks at shared memory */
#define REFRESH_INTERVAL	200 /* ms between two brackets */
#define WANTED_INTERVAL		10	/* the same while a sync worker waits for one */
#define PROGRESS_INTERVAL	1000	/* ms between two wake-ups of the writer for
									 * WAL of others; ours has its own positions */
#define FLUSH_INTERVAL		1	/* ms in which the writer may sleep over commits,
								 * while there is more to read */
#define SAVE_INTERVAL		1000	/* ms between two writes of the slot */
#define IDLE_WAIT			200 /* ms: slow look for WAL nobody told us of */

typedef struct Apply
{
	EtlConfig  *config;
	EtlQueue   *queue;
	EtlStream  *stream;
	EtlDecoder *decoder;
	XLogRecPtr	start;			/* everything before it is durable */
	XLogRecPtr	progress;		/* of the last PROGRESS record */
	TimestampTz progress_time;
	XLogRecPtr	confirmed;
	TimestampTz saved;			/* slot written to disk */
	uint64		tables_seen;	/* tables_version of the last bracket */
	TimestampTz refreshed;
	TimestampTz flushed;		/* the writer was woken, if it slept */
} Apply;

static void
exit_if_stopped(void)
{
	CHECK_FOR_INTERRUPTS();
	if (etl_worker_should_stop())
		etl_worker_exit(ETL_EXIT_AGAIN);
}

/* ----------
 * Start
 * ----------
 */

/* The writer of this incarnation has a queue and a connected destination. */
static void
wait_for_writer(Apply *apply)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	for (;;)
	{
		dsm_handle	handle = 0;

		exit_if_stopped();
		LWLockAcquire(&pipeline->lock, LW_SHARED);
		if (pipeline->shapes_ready)
			handle = pipeline->queue;
		LWLockRelease(&pipeline->lock);
		if (handle != 0)
		{
			apply->queue = etl_queue_attach(handle);
			if (apply->queue == NULL)
				etl_worker_exit(ETL_EXIT_AGAIN);
			return;
		}
		(void) etl_worker_wait(10000);
	}
}

static void
load_config(void *arg)
{
	Apply	   *apply = arg;

	apply->config = etl_config_load(etl_worker_pipeline->id, false, EtlWorkerContext);
}

/* Tell the writer that the slot is not what it should be, and wait for its answer. */
static void
report_lost_slot(void)
{
	LWLockAcquire(&etl_worker_pipeline->lock, LW_EXCLUSIVE);
	etl_worker_pipeline->slot_lost = true;
	LWLockRelease(&etl_worker_pipeline->lock);
	etl_shmem_wake_pipeline(etl_worker_pipeline);
	for (;;)
	{
		exit_if_stopped();
		(void) etl_worker_wait(10000);
	}
}

/* Make the slot that is not marked made, and wait until the writer marked it. */
static void
make_slot(const char *name)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	for (;;)
	{
		bool		limit;
		XLogRecPtr	point;

		exit_if_stopped();

		/* nothing may be handed over to a slot that is not there yet */
		etl_ownership_forget(pipeline);
		if (!etl_slot_drop(name))
		{
			(void) etl_worker_wait(100);
			continue;			/* an older incarnation still holds it */
		}
		etl_shmem_set_state(pipeline, ETL_PIPELINE_WAITING, ETL_WAIT_TRANSACTIONS);
		point = etl_slot_make(name, &limit);
		if (!limit)
		{
			LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
			pipeline->slot_point = point;
			pipeline->slot_ready = true;
			LWLockRelease(&pipeline->lock);
			etl_shmem_set_state(pipeline, ETL_PIPELINE_STARTING, ETL_WAIT_NOTHING);
			etl_shmem_wake_pipeline(pipeline);
			break;
		}
		etl_shmem_set_state(pipeline, ETL_PIPELINE_WAITING, ETL_WAIT_REPLICATION_SLOTS);
		(void) etl_worker_wait(1000);
	}

	ETL_FAILPOINT("apply_slot_made");
	for (;;)
	{
		bool		created;

		exit_if_stopped();
		LWLockAcquire(&pipeline->lock, LW_SHARED);
		created = pipeline->slot_created;
		LWLockRelease(&pipeline->lock);
		if (created)
			return;
		(void) etl_worker_wait(10000);
	}
}

/*
 * Does the slot go on from where we stopped?  Not if somebody else has
 * advanced it since: the changes in between would be missing silently.  Who
 * died instead of stopping does not know, but was back before anybody could.
 */
static bool
leads_on(void)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	XLogRecPtr	confirmed = MyReplicationSlot->data.confirmed_flush;
	XLogRecPtr	stopped;
	bool		ok;

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	stopped = pipeline->stopped_lsn;
	ok = XLogRecPtrIsInvalid(stopped) || confirmed <= stopped;
	if (ok)
		pipeline->stopped_lsn = InvalidXLogRecPtr;
	LWLockRelease(&pipeline->lock);
	if (!ok)
		ereport(LOG,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("replication slot \"%s\" was advanced from %X/%X to %X/%X while its pipeline was stopped",
						NameStr(pipeline->slot_name),
						LSN_FORMAT_ARGS(stopped), LSN_FORMAT_ARGS(confirmed))));
	return ok;
}

static void
acquire_slot(void)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	const char *name = NameStr(pipeline->slot_name);
	bool		created;

	ETL_FAILPOINT("apply_before_slot");
	LWLockAcquire(&pipeline->lock, LW_SHARED);
	created = pipeline->slot_created;
	LWLockRelease(&pipeline->lock);
	if (!created)
		make_slot(name);

	for (;;)
	{
		exit_if_stopped();
		switch (etl_slot_look(name))
		{
			case ETL_SLOT_USABLE:
				if (!etl_slot_acquire(name))
					break;
				if (leads_on())
					return;
				etl_slot_release();
				report_lost_slot();
				break;
			case ETL_SLOT_ACTIVE:
				break;			/* an older incarnation still holds it */
			case ETL_SLOT_MISSING:
			case ETL_SLOT_FOREIGN:
			case ETL_SLOT_LOST:
				report_lost_slot();
				break;
		}
		(void) etl_worker_wait(100);
	}
}

static void
load_rules(void *arg)
{
	Apply	   *apply = arg;

	if (!etl_stream_load_rules(apply->stream))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("publication \"%s\" does not exist", apply->config->publication),
				 errhint("Create it, or drop the pipeline.")));
}

static void
refresh(void *arg)
{
	etl_stream_refresh(((Apply *) arg)->stream);
}

/*
 * Everything stored before tables_version was "version" has been read.  The
 * value must be older than the bracket, whose snapshot decides what it saw.
 */
static void
note_seen(Apply *apply, uint64 version)
{
	apply->tables_seen = version;
	etl_ownership_seen(etl_worker_pipeline, version);
}

/* A bracket that met a user's lock is tried again: "later", not "never". */
static void
run_bracket(const char *name, void (*body) (void *), Apply *apply)
{
	while (!etl_bracket_try(ETL_BRACKET_DECODER, name, body, apply))
	{
		exit_if_stopped();
		(void) etl_worker_wait(100);
	}
}

/* ----------
 * The loop
 * ----------
 */
static void
confirm(Apply *apply)
{
	XLogRecPtr	durable = pg_atomic_read_u64(&etl_worker_pipeline->durable_lsn);
	TimestampTz now;
	bool		save;

	if (durable <= apply->confirmed)
		return;
	now = GetCurrentTimestamp();
	save = TimestampDifferenceExceeds(apply->saved, now, SAVE_INTERVAL);
	etl_decoder_confirm(apply->decoder, durable, save);
	if (save)
		apply->saved = now;
	apply->confirmed = durable;
	pg_atomic_write_u64(&etl_worker_pipeline->confirmed_lsn, durable);
}

/* The ring is full: the destination is slower than the decoder. */
static void
ring_full(void *arg)
{
	exit_if_stopped();
	confirm((Apply *) arg);
}

/*
 * Everything before "position" has been read.  Nobody is in a hurry to know
 * but who waits for something to be durable.
 */
static void
put_progress(Apply *apply, XLogRecPtr position, TimestampTz now, bool at_end)
{
	uint64		target = pg_atomic_read_u64(&etl_worker_pipeline->flush_target);
	bool		wanted = target > apply->progress && (at_end || position >= target);

	/* the slot may begin with what is durable */
	position = Max(position, apply->start);
	if (position <= apply->progress)
		return;
	if (!wanted &&
		!TimestampDifferenceExceeds(apply->progress_time, now, PROGRESS_INTERVAL))
		return;
	etl_stream_progress(apply->stream, position);
	apply->progress = position;
	apply->progress_time = now;
}

/*
 * Waking the writer costs a system call, a hundredth of a millisecond; with
 * each of many small transactions that is more than the rest of a commit.
 */
static void
flush(Apply *apply, TimestampTz now)
{
	if (now > apply->flushed && !TimestampDifferenceExceeds(apply->flushed, now, FLUSH_INTERVAL))
		return;
	etl_stream_flush(apply->stream);
	apply->flushed = now;
}

static int
refresh_interval(const Apply *apply)
{
	return etl_ownership_is_wanted(etl_worker_pipeline, apply->tables_seen) ?
		WANTED_INTERVAL : REFRESH_INTERVAL;
}

/*
 * Between WAL records: everything that is looked at while there is more to
 * read.  Returns the ms for which nothing more may be read.
 */
static long
look_around(Apply *apply)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	XLogRecPtr	position = etl_decoder_position(apply->decoder);
	TimestampTz now = GetCurrentTimestamp();
	uint64		version;

	exit_if_stopped();
	pg_atomic_write_u64(&pipeline->decoded_lsn, position);
	confirm(apply);
	flush(apply, now);

	version = pg_atomic_read_u64(&pipeline->tables_version);
	if (version != apply->tables_seen &&
		TimestampDifferenceExceeds(apply->refreshed, now, refresh_interval(apply)))
	{
		if (etl_bracket_try(ETL_BRACKET_DECODER, "reading state", refresh, apply))
			note_seen(apply, version);
		apply->refreshed = GetCurrentTimestamp();	/* or a user's lock was in the way */
	}
	put_progress(apply, position, now, false);
	return etl_ownership_held(pipeline);
}

/* Everything flushed has been read: tell how far, and wait for more. */
static void
wait_for_wal(Apply *apply)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	XLogRecPtr	position = etl_decoder_position(apply->decoder);
	uint64		seen = pg_atomic_read_u64(&pipeline->tables_version);

	etl_ownership_decide(pipeline, position);
	put_progress(apply, position, GetCurrentTimestamp(), true);
	etl_stream_flush(apply->stream);
	pg_atomic_write_u64(&pipeline->apply_idle, 1);

	/* a commit may have slipped in before the flag */
	if (etl_decoder_step(apply->decoder))
	{
		pg_atomic_write_u64(&pipeline->apply_idle, 0);
		return;
	}
	(void) etl_worker_wait(seen != apply->tables_seen ? refresh_interval(apply) / 2 : IDLE_WAIT);
	pg_atomic_write_u64(&pipeline->apply_idle, 0);
}

static void
decode(Apply *apply)
{
	for (;;)
	{
		long		held = look_around(apply);

		if (held > 0)
		{
			etl_stream_flush(apply->stream);
			(void) etl_worker_wait(Min(held, 20));
			continue;
		}
		for (int i = 0; i < RECORDS_A_TURN; i++)
		{
			if (!etl_decoder_step(apply->decoder))
			{
				wait_for_wal(apply);
				break;
			}
		}
	}
}

static void
apply_body(void)
{
	Apply	   *apply = MemoryContextAllocZero(EtlWorkerContext, sizeof(Apply));
	MemoryContext context;
	uint64		version;

	MemoryContextSwitchTo(EtlWorkerContext);
	wait_for_writer(apply);
	run_bracket("reading definition", load_config, apply);
	if (apply->config == NULL)
		etl_worker_exit(ETL_EXIT_AGAIN);	/* dropped meanwhile */
	MemoryContextSwitchTo(EtlWorkerContext);

	etl_decode_allow_plugin();
	acquire_slot();
	apply->confirmed = MyReplicationSlot->data.confirmed_flush;
	pg_atomic_write_u64(&etl_worker_pipeline->confirmed_lsn, apply->confirmed);

	apply->stream = etl_stream_create_apply(apply->config, apply->queue);
	etl_stream_set_idle(apply->stream, ring_full, apply);
	version = pg_atomic_read_u64(&etl_worker_pipeline->tables_version);
	run_bracket("reading rules", load_rules, apply);
	run_bracket("reading state", refresh, apply);
	note_seen(apply, version);

	/* what is durable is not seen again, confirmed or not: it is decided */
	apply->start = pg_atomic_read_u64(&etl_worker_pipeline->durable_lsn);
	etl_ownership_decide(etl_worker_pipeline, Max(apply->start, apply->confirmed));

	MemoryContextSwitchTo(EtlWorkerContext);
	context = CurrentMemoryContext;
	apply->decoder = etl_decoder_start(apply->start, &etl_stream_callbacks, apply->stream);
	PG_TRY();
	{
		decode(apply);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		/* the error may have come with a lock held that noting it needs */
		LWLockReleaseAll();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		etl_stream_note_error(apply->stream, error);
		FreeErrorData(error);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

void
etl_apply_main(Datum main_arg)
{
	etl_worker_start(ETL_ROLE_APPLY, main_arg);
	etl_worker_run(apply_body);
}
