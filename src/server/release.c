/*-------------------------------------------------------------------------
 *
 * release.c
 *	  Keep away from a database that a utility command needs for itself.
 *
 * DROP DATABASE fails at once while a logical slot of the database is in use,
 * WITH (FORCE) included, and other commands after five seconds while anybody
 * is connected.  So the command's backend marks the database in shared memory
 * before the command runs: workers end, none is started and none that was
 * registered attaches.  When the command is over the mark goes and the
 * launcher brings them back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/condition_variable.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "guc.h"
#include "server/release.h"
#include "server/shmem.h"

#define RELEASE_TIMEOUT 5000	/* ms for all of it */
#define RELEASE_GRACE	2500	/* ms before who is left gets SIGTERM */
#define RELEASE_POLL	100		/* ms */

/* Released by this backend; Invalid = nothing. */
static Oid	released = InvalidOid;

/* Send SIGTERM to a process of ours, or just count it. */
static void
meet(pid_t pid, bool terminate, int *count)
{
	if (pid == 0)
		return;
	(*count)++;
	if (terminate)
		kill(pid, SIGTERM);
}

/*
 * Number of our processes in the database; check workers get SIGTERM at once
 * (their look is repeated), the others when "terminate" says so.
 */
static int
processes_left(Oid database, bool terminate)
{
	int			count = 0;

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	if (etl_shared->checking_database == database)
		meet(etl_shared->checking_pid, true, &count);
	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (!pipeline->in_use || pipeline->database != database)
			continue;
		meet(pipeline->cleanup_pid, true, &count);
		meet(pipeline->apply_pid, terminate, &count);
		meet(pipeline->writer_pid, terminate, &count);
	}
	for (int k = 0; k < etl_shared->nsyncs; k++)
	{
		EtlSyncShared *sync = &etl_shared->syncs[k];

		if (sync->state == ETL_SYNC_RUNNING &&
			etl_shared->pipelines[sync->pipeline].database == database)
			meet(sync->pid, terminate, &count);
	}
	LWLockRelease(&etl_shared->lock);
	return count;
}

/* Mark or unmark the pipelines of a database, and tell everybody. */
static void
mark_pipelines(Oid database, bool is_released, bool dropped)
{
	Assert(LWLockHeldByMeInMode(&etl_shared->lock, LW_EXCLUSIVE));

	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (!pipeline->in_use || pipeline->database != database)
			continue;
		pipeline->released = is_released;
		if (dropped)
		{
			pipeline->wanted = false;
			pipeline->doomed = true;
		}
		etl_shmem_wake_pipeline_locked(pipeline);
	}
	for (int k = 0; k < etl_shared->nsyncs; k++)
	{
		EtlSyncShared *sync = &etl_shared->syncs[k];

		if (sync->proc != NULL &&
			etl_shared->pipelines[sync->pipeline].database == database)
			SetLatch(&sync->proc->procLatch);
	}
	etl_shmem_wake_launcher_locked();
}

void
etl_release_take_back(bool dropped)
{
	Oid			database = released;

	if (!OidIsValid(database))
		return;
	released = InvalidOid;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ETL_MAX_RELEASES; i++)
		if (etl_shared->releases[i].database == database &&
			etl_shared->releases[i].backend == MyProcPid)
			etl_shared->releases[i].database = InvalidOid;
	/* another backend may want it, too */
	mark_pipelines(database, etl_shmem_released(database), dropped);
	LWLockRelease(&etl_shared->lock);
}

static void
take_back_at_exit(int code, Datum arg)
{
	etl_release_take_back(false);
}

/* Enter the release; false when the (ample) room is used up. */
static bool
enter_release(Oid database)
{
	bool		entered = false;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ETL_MAX_RELEASES && !entered; i++)
	{
		EtlRelease *release = &etl_shared->releases[i];

		if (OidIsValid(release->database))
			continue;
		release->database = database;
		release->backend = MyProcPid;
		entered = true;
	}
	if (entered)
		mark_pipelines(database, true, false);
	LWLockRelease(&etl_shared->lock);
	return entered;
}

void
etl_release_database(Oid database)
{
	static bool registered = false;
	TimestampTz start = GetCurrentTimestamp();
	bool		terminated = false;

	Assert(!OidIsValid(released));

	if (!registered)
	{
		before_shmem_exit(take_back_at_exit, 0);
		registered = true;
	}

	if (!enter_release(database))
		return;
	released = database;

	ConditionVariablePrepareToSleep(&etl_shared->departed);
	for (;;)
	{
		TimestampTz now = GetCurrentTimestamp();
		bool		late = TimestampDifferenceExceeds(start, now, RELEASE_GRACE);

		if (processes_left(database, late && !terminated) == 0 ||
			TimestampDifferenceExceeds(start, now, RELEASE_TIMEOUT))
			break;
		terminated = late;
		ConditionVariableTimedSleep(&etl_shared->departed, RELEASE_POLL, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}
