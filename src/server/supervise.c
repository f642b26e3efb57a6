/*-------------------------------------------------------------------------
 *
 * supervise.c
 *	  The launcher's care for the workers of pipelines.
 *
 * Apply and writer of a pipeline live and die together.  A pair's life:
 *
 *	 start		a new incarnation number is drawn, what the old one left in
 *				shared memory is reset, both workers are registered, or neither
 *	 run		each attaches to the entry, if its incarnation is still current
 *	 stop		the pipeline is not wanted any more, or one of the two is gone:
 *				the other sees that by itself (etl_worker_should_stop()); who
 *				has not gone after a time of grace gets SIGTERM
 *	 end		both are gone: the entry is ready for the next start, at once
 *				when the run has lasted, else after a growing delay
 *
 * A worker is known by its handle, or, after a restart of the launcher, by
 * its PGPROC in the entry.  Sync workers are registered for entries that
 * writers have filled; their lives do not depend on the pair's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "guc.h"
#include "server/launcher.h"
#include "server/request.h"
#include "server/worker.h"

#define LASTING_RUN		10000	/* ms: such a run resets the backoff */

/*
 * ms between attempts while a limit is hit.  A pair that finds room for only
 * one worker holds that for a moment; who needs one alone (sync workers,
 * looks) asks more often, so that they do not meet again and again.
 */
#define PAIR_RETRY		1000
#define SINGLE_RETRY	250

#define PARTNER_GRACE	500		/* ms for the other half of a broken pair */
#define STOP_GRACE		500		/* ms on top of etl.shutdown_timeout */
#define TERMINATE_AGAIN 5000	/* ms after SIGTERM did not help */

/* What the launcher itself remembers of an entry. */
typedef struct Pair
{
	BackgroundWorkerHandle *apply;
	BackgroundWorkerHandle *writer;
	BackgroundWorkerHandle *cleanup;	/* check worker that drops it */
	TimestampTz terminate_at;	/* SIGTERM is due; 0 = nothing is stopping */
} Pair;

typedef struct Sync
{
	BackgroundWorkerHandle *handle;
	TimestampTz terminate_at;
} Sync;

static Pair *pairs;
static Sync *syncs;

static uint64
next_incarnation(void)
{
	Assert(LWLockHeldByMeInMode(&etl_shared->lock, LW_EXCLUSIVE));
	return ++etl_shared->next_incarnation;
}

static bool
should_run(const EtlPipelineShared *pipeline)
{
	return pipeline->in_use && pipeline->wanted && !pipeline->released &&
		!pipeline->doomed && etl_enabled;
}

/* Ask a process to end, by its handle or else by its pid in shared memory. */
static void
terminate(BackgroundWorkerHandle *handle, pid_t pid)
{
	if (handle != NULL)
		TerminateBackgroundWorker(handle);
	else if (pid != 0)
		kill(pid, SIGTERM);
}

static int
stop_grace(const EtlPipelineShared *pipeline)
{
	/* a utility command waits 5 s at most */
	if (pipeline->released)
		return Min(etl_shutdown_timeout, 2000) + STOP_GRACE;
	if (!should_run(pipeline))
		return etl_shutdown_timeout + STOP_GRACE;
	return PARTNER_GRACE;
}

/* ----------
 * Counting
 * ----------
 */

static bool
pair_alive(int i)
{
	const EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

	return pairs[i].apply != NULL || pairs[i].writer != NULL ||
		pipeline->apply_proc != NULL || pipeline->writer_proc != NULL;
}

static bool
sync_alive(int k)
{
	const EtlSyncShared *sync = &etl_shared->syncs[k];

	return syncs[k].handle != NULL ||
		sync->state == ETL_SYNC_STARTED || sync->state == ETL_SYNC_RUNNING;
}

static bool
any_sync_alive(int pipeline)
{
	for (int k = 0; k < etl_shared->nsyncs; k++)
		if (etl_shared->syncs[k].pipeline == pipeline && sync_alive(k))
			return true;
	return false;
}

/* Room for "n" more workers under etl.max_workers? */
static bool
workers_left(int n)
{
	int			count = 0;

	for (int i = 0; i < etl_shared->npipelines; i++)
		if (pair_alive(i))
			count += 2;
	for (int k = 0; k < etl_shared->nsyncs; k++)
		if (sync_alive(k))
			count++;
	pg_atomic_write_u32(&etl_shared->workers, count);
	return count + n <= etl_guc_workers();
}

/* ----------
 * Start of a pair
 * ----------
 */

/* What belongs to an incarnation, back to its beginning. */
static void
reset_incarnation(EtlPipelineShared *pipeline)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->state = ETL_PIPELINE_STARTING;
	pipeline->waiting_for = ETL_WAIT_NOTHING;
	pipeline->restart_requested = false;
	pipeline->shapes_ready = false;
	pipeline->queue = 0;
	pipeline->slot_ready = false;
	pipeline->slot_lost = false;
	pipeline->next_retry_time = 0;
	LWLockRelease(&pipeline->lock);
}

static TimestampTz
wait_for_limit(EtlPipelineShared *pipeline, EtlWaitingFor limit, TimestampTz now)
{
	etl_shmem_set_state(pipeline, ETL_PIPELINE_WAITING, limit);
	return TimestampTzPlusMilliseconds(now, PAIR_RETRY);
}

/* Register both workers, or neither.  The lock is not held. */
static TimestampTz
start_pair(int i, TimestampTz now)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[i];
	EtlWorkerArgs args = {.pipeline = i,.sync = -1};
	bool		room;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	if (!should_run(pipeline))
	{
		/* changed since the lock was released: look at it again */
		LWLockRelease(&etl_shared->lock);
		return now;
	}
	room = workers_left(2);
	if (room)
	{
		args.database = pipeline->database;
		pipeline->incarnation = args.incarnation = next_incarnation();
		pipeline->started_at = now;
		reset_incarnation(pipeline);
	}
	LWLockRelease(&etl_shared->lock);
	if (!room)
		return wait_for_limit(pipeline, ETL_WAIT_MAX_WORKERS, now);

	pairs[i].writer = etl_launch(ETL_ROLE_WRITER, &args);
	if (pairs[i].writer != NULL)
		pairs[i].apply = etl_launch(ETL_ROLE_APPLY, &args);
	if (pairs[i].apply != NULL)
		return ETL_NEVER;

	/* the writer must not stay alone */
	if (pairs[i].writer != NULL)
		TerminateBackgroundWorker(pairs[i].writer);
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	pipeline->incarnation = next_incarnation();
	pipeline->started_at = 0;
	pipeline->next_start = TimestampTzPlusMilliseconds(now, PAIR_RETRY);
	LWLockRelease(&etl_shared->lock);
	return wait_for_limit(pipeline, ETL_WAIT_WORKER_PROCESSES, now);
}

/* ----------
 * Stop and end of a pair
 * ----------
 */

/* Is this half of a started pair gone, or did it never come? */
static bool
half_gone(const EtlPipelineShared *pipeline, BackgroundWorkerHandle *handle,
		  PGPROC *proc, uint64 attached)
{
	if (proc != NULL)
		return false;
	return handle == NULL || attached == pipeline->incarnation;
}

/*
 * A pair that is alive: see to it that it ends when it must.  Lock held.
 */
static TimestampTz
watch_pair(int i, TimestampTz now)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[i];
	Pair	   *pair = &pairs[i];
	bool		apply_gone = half_gone(pipeline, pair->apply, pipeline->apply_proc,
									   pipeline->apply_attached);
	bool		writer_gone = half_gone(pipeline, pair->writer, pipeline->writer_proc,
										pipeline->writer_attached);

	if (should_run(pipeline) && !pipeline->restart_requested &&
		!apply_gone && !writer_gone && pipeline->started_at != 0)
	{
		pair->terminate_at = 0;
		return ETL_NEVER;
	}

	if (pair->terminate_at == 0)
	{
		pair->terminate_at = TimestampTzPlusMilliseconds(now, stop_grace(pipeline));

		/*
		 * A half that never attached would be waited for: only a change of
		 * the incarnation tells the other one.
		 */
		if ((apply_gone && pipeline->apply_attached != pipeline->incarnation) ||
			(writer_gone && pipeline->writer_attached != pipeline->incarnation))
			pipeline->incarnation = next_incarnation();
		etl_shmem_wake_pipeline_locked(pipeline);
	}
	else if (now >= pair->terminate_at)
	{
		terminate(pair->apply, pipeline->apply_pid);
		terminate(pair->writer, pipeline->writer_pid);
		pair->terminate_at = TimestampTzPlusMilliseconds(now, TERMINATE_AGAIN);
	}
	return pair->terminate_at;
}

/*
 * Both are gone: decide when the next pair may start.  Lock held.
 */
static void
end_run(int i, TimestampTz now)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[i];
	int			delay = 0;

	if (!should_run(pipeline) ||
		TimestampDifferenceExceeds(pipeline->started_at, now, LASTING_RUN))
		pipeline->failures = 0;
	else if (pipeline->restart_requested)
		delay = etl_launch_backoff(pipeline->failures++);	/* the first at once */
	else
		delay = etl_launch_backoff(++pipeline->failures);

	pairs[i].terminate_at = 0;
	pipeline->started_at = 0;
	pipeline->next_start = TimestampTzPlusMilliseconds(now, delay);

	if (should_run(pipeline))
	{
		LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
		if (pipeline->state != ETL_PIPELINE_DROPPING)
		{
			pipeline->resume_state = ETL_PIPELINE_STARTING;
			pipeline->state = delay > 1000 ? ETL_PIPELINE_RETRYING : ETL_PIPELINE_STARTING;
		}
		pipeline->next_retry_time = delay > 1000 ? pipeline->next_start : 0;
		LWLockRelease(&pipeline->lock);
	}
}

/* Nothing runs and nothing should: show it.  FAILED stays for users to see. */
static void
show_stopped(EtlPipelineShared *pipeline)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (pipeline->state != ETL_PIPELINE_FAILED && pipeline->state != ETL_PIPELINE_DROPPING)
		pipeline->state = ETL_PIPELINE_STOPPED;
	pipeline->waiting_for = ETL_WAIT_NOTHING;
	if (pipeline->state != ETL_PIPELINE_DROPPING)
		pipeline->next_retry_time = 0;
	LWLockRelease(&pipeline->lock);
}

/* ----------
 * Pipelines that are being dropped
 * ----------
 */

/* A check worker removes slot, tables and rows; the lock is not held. */
static TimestampTz
start_cleanup(int i, TimestampTz now)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[i];
	EtlWorkerArgs args = {.database = pipeline->database,.pipeline = i,.sync = -1};

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	pipeline->incarnation = args.incarnation = next_incarnation();
	/* when it fails without saying when to try again */
	pipeline->next_start =
		TimestampTzPlusMilliseconds(now, etl_launch_backoff(++pipeline->failures));
	LWLockRelease(&etl_shared->lock);

	pairs[i].cleanup = etl_launch(ETL_ROLE_CHECK, &args);
	if (pairs[i].cleanup == NULL)
		return TimestampTzPlusMilliseconds(now, SINGLE_RETRY);
	return ETL_NEVER;
}

/* ----------
 * One entry
 * ----------
 */
typedef enum Action
{
	ACT_NOTHING,
	ACT_START,
	ACT_CLEANUP,
	ACT_LOOK					/* the entry was freed: look at "database" */
} Action;

/* An entry without a pair: what is to be done about it?  Lock held. */
static Action
idle_pair_action(int i, TimestampTz now, TimestampTz *due)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

	if (should_run(pipeline))
	{
		if (now >= pipeline->next_start)
			return ACT_START;
		*due = pipeline->next_start;
		return ACT_NOTHING;
	}

	show_stopped(pipeline);
	if (any_sync_alive(i) || pairs[i].cleanup != NULL || pipeline->cleanup_pid != 0)
		return ACT_NOTHING;

	if (pipeline->doomed)
	{
		etl_shmem_free_pipeline(pipeline);
		return ACT_LOOK;
	}
	if (pipeline->state == ETL_PIPELINE_DROPPING && !pipeline->released)
	{
		if (now >= pipeline->next_start)
			return ACT_CLEANUP;
		*due = pipeline->next_start;
	}
	return ACT_NOTHING;
}

static TimestampTz
supervise_pipeline(int i, TimestampTz now)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[i];
	Oid			database;
	TimestampTz due = ETL_NEVER;
	Action		action = ACT_NOTHING;

	(void) etl_launch_ended(&pairs[i].apply);
	(void) etl_launch_ended(&pairs[i].writer);
	(void) etl_launch_ended(&pairs[i].cleanup);

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	database = pipeline->database;
	if (pipeline->in_use)
	{
		bool		alive = pair_alive(i);

		if (!alive && pipeline->started_at != 0)
			end_run(i, now);
		if (alive)
			due = watch_pair(i, now);
		else
			action = idle_pair_action(i, now, &due);
	}
	LWLockRelease(&etl_shared->lock);

	if (action == ACT_START)
		return start_pair(i, now);
	if (action == ACT_CLEANUP)
		return start_cleanup(i, now);
	if (action == ACT_LOOK)
		etl_request_publish(database);
	return due;
}

/* ----------
 * Sync workers
 * ----------
 */

/* Name the limit that keeps a sync worker from starting, or clear it. */
static void
show_sync_waiting(EtlSyncShared *sync, EtlWaitingFor limit)
{
	EtlPipelineShared *pipeline = &etl_shared->pipelines[sync->pipeline];

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (limit != ETL_WAIT_NOTHING
		? pipeline->waiting_for == ETL_WAIT_NOTHING
		: pipeline->waiting_for == sync->waiting_for)
		pipeline->waiting_for = limit;
	sync->waiting_for = limit;
	LWLockRelease(&pipeline->lock);
}

/* An entry in state REQUESTED; the lock is held, and dropped on the way. */
static TimestampTz
start_sync(int k, TimestampTz now)
{
	EtlSyncShared *sync = &etl_shared->syncs[k];
	EtlPipelineShared *pipeline = &etl_shared->pipelines[sync->pipeline];
	EtlWorkerArgs args = {.database = pipeline->database,.pipeline = sync->pipeline,.sync = k};

	if (!workers_left(1))
	{
		show_sync_waiting(sync, ETL_WAIT_MAX_WORKERS);
		return TimestampTzPlusMilliseconds(now, SINGLE_RETRY);
	}
	sync->incarnation = args.incarnation = next_incarnation();
	sync->state = ETL_SYNC_STARTED;
	syncs[k].terminate_at = 0;

	LWLockRelease(&etl_shared->lock);
	syncs[k].handle = etl_launch(ETL_ROLE_SYNC, &args);
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);

	if (syncs[k].handle == NULL)
	{
		sync->state = ETL_SYNC_REQUESTED;
		show_sync_waiting(sync, ETL_WAIT_WORKER_PROCESSES);
		return TimestampTzPlusMilliseconds(now, SINGLE_RETRY);
	}
	show_sync_waiting(sync, ETL_WAIT_NOTHING);
	return ETL_NEVER;
}

/* A running sync worker of a pipeline that must not run; lock held. */
static TimestampTz
stop_sync(int k, TimestampTz now)
{
	EtlSyncShared *sync = &etl_shared->syncs[k];

	if (syncs[k].terminate_at == 0)
	{
		syncs[k].terminate_at =
			TimestampTzPlusMilliseconds(now, stop_grace(&etl_shared->pipelines[sync->pipeline]));
		if (sync->proc != NULL)
			SetLatch(&sync->proc->procLatch);
	}
	else if (now >= syncs[k].terminate_at)
	{
		terminate(syncs[k].handle, sync->pid);
		syncs[k].terminate_at = TimestampTzPlusMilliseconds(now, TERMINATE_AGAIN);
	}
	return syncs[k].terminate_at;
}

static TimestampTz
supervise_sync(int k, TimestampTz now)
{
	EtlSyncShared *sync = &etl_shared->syncs[k];
	bool		ended = etl_launch_ended(&syncs[k].handle);
	TimestampTz due = ETL_NEVER;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	switch (sync->state)
	{
		case ETL_SYNC_FREE:
		case ETL_SYNC_EXITED:
			break;

		case ETL_SYNC_REQUESTED:
			if (should_run(&etl_shared->pipelines[sync->pipeline]) && ended)
				due = start_sync(k, now);
			break;

		case ETL_SYNC_STARTED:
			/* registered, and gone before it could attach */
			if (ended)
			{
				sync->state = ETL_SYNC_EXITED;
				etl_shmem_wake_pipeline_locked(&etl_shared->pipelines[sync->pipeline]);
			}
			break;

		case ETL_SYNC_RUNNING:
			if (should_run(&etl_shared->pipelines[sync->pipeline]))
				syncs[k].terminate_at = 0;
			else
				due = stop_sync(k, now);
			break;
	}
	LWLockRelease(&etl_shared->lock);
	return due;
}

/* ----------
 * The launcher's calls
 * ----------
 */

/*
 * Handles of an earlier launcher are lost: whoever was registered and has not
 * attached is shut out; whoever has is watched from now on.
 */
void
etl_supervise_adopt(void)
{
	pairs = MemoryContextAllocZero(EtlWorkerContext, sizeof(Pair) * etl_shared->npipelines);
	syncs = MemoryContextAllocZero(EtlWorkerContext, sizeof(Sync) * etl_shared->nsyncs);

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (pipeline->in_use && pipeline->started_at != 0 &&
			(pipeline->apply_proc == NULL || pipeline->writer_proc == NULL))
			pipeline->incarnation = next_incarnation();
	}
	for (int k = 0; k < etl_shared->nsyncs; k++)
	{
		EtlSyncShared *sync = &etl_shared->syncs[k];

		if (sync->state == ETL_SYNC_STARTED)
		{
			sync->incarnation = next_incarnation();
			sync->state = ETL_SYNC_REQUESTED;
		}
	}
	LWLockRelease(&etl_shared->lock);
}

TimestampTz
etl_supervise_run(TimestampTz now)
{
	TimestampTz due = ETL_NEVER;

	for (int i = 0; i < etl_shared->npipelines; i++)
		due = etl_earlier(due, supervise_pipeline(i, now));

	/* what pairs leave of the workers' share is for sync workers */
	for (int k = 0; k < etl_shared->nsyncs; k++)
	{
		bool		was_there = syncs[k].handle != NULL;

		due = etl_earlier(due, supervise_sync(k, now));

		/* its pipeline may have waited for that, and will not wake us */
		if (was_there && syncs[k].handle == NULL)
			due = now;
	}
	return due;
}
