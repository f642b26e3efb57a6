/*-------------------------------------------------------------------------
 *
 * look.c
 *	  Looks into databases: which one is next, and its check worker.
 *
 * Only a process connected to a database can read what is wanted there, so
 * the launcher sends an "etl check" worker, one at a time: into every
 * connectable database once after it has started (nothing else would find an
 * enabled pipeline after a restart or a promotion), and later wherever
 * a request was committed.  Requests of users go first.
 *
 * A look that fails is tried again, less and less often; a database that is
 * gone, or takes no connections, is forgotten.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "server/launcher.h"
#include "server/request.h"

#define LIMIT_RETRY		250		/* ms, when no worker process is to be had */
#define LATER_RETRY		500		/* ms, after an unfinished look; doubles */

/* Databases not looked at since this launcher has started. */
static List *unseen = NIL;

/* The look under way. */
static BackgroundWorkerHandle *check = NULL;
static Oid	check_database = InvalidOid;
static int	check_failures = 0;

/* ----------
 * Databases
 * ----------
 */

/* May a worker connect?  Templates are left alone: they must stay copyable. */
static bool
connectable(Form_pg_database database)
{
	return database->datallowconn && !database->datistemplate &&
		database->datconnlimit != DATCONNLIMIT_INVALID_DB;
}

/*
 * List of connectable databases, or, with "database", whether that one
 * exists (*exists) and is in the list.  Without a connection to a database
 * only a plain scan of the shared catalog is possible.
 */
static List *
read_databases(Oid database, bool *exists)
{
	List	   *result = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	*exists = false;
	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext oldcontext;

		if (OidIsValid(database) && form->oid != database)
			continue;
		*exists = true;
		if (!connectable(form))
			continue;
		oldcontext = MemoryContextSwitchTo(EtlWorkerContext);
		result = lappend_oid(result, form->oid);
		MemoryContextSwitchTo(oldcontext);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	MemoryContextSwitchTo(EtlWorkerContext);
	return result;
}

/* Its database is gone: so is the pipeline. */
static void
doom_pipelines(Oid database)
{
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (pipeline->in_use && pipeline->database == database)
		{
			pipeline->wanted = false;
			pipeline->doomed = true;
		}
	}
	LWLockRelease(&etl_shared->lock);
}

static bool
may_look(Oid database)
{
	bool		exists;
	List	   *found = read_databases(database, &exists);
	bool		result = found != NIL;

	list_free(found);
	if (!exists)
		doom_pipelines(database);
	return result;
}

/* ----------
 * Requests
 * ----------
 */

/*
 * Take the next published request that is due.  Earlier looks' failures come
 * with it.  *due becomes the time of the earliest that is not.
 */
static Oid
take_request(TimestampTz now, TimestampTz *due)
{
	Oid			result = InvalidOid;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < etl_shared->nrequests && !OidIsValid(result); i++)
	{
		EtlDatabaseRequest *request = &etl_shared->requests[i];

		if (!OidIsValid(request->database) || !request->published ||
			etl_shmem_released(request->database))
			continue;
		if (request->next_try > now)
		{
			*due = etl_earlier(*due, request->next_try);
			continue;
		}
		result = request->database;
		check_failures = request->failures;
		request->published = false;
		if (request->reservations == 0)
			request->database = InvalidOid;
	}
	LWLockRelease(&etl_shared->lock);
	return result;
}

/* Ask again for a look at "database", after a while. */
static void
put_request(Oid database, int failures, int delay)
{
	etl_request_publish(database);

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	for (int i = 0; i < etl_shared->nrequests; i++)
	{
		EtlDatabaseRequest *request = &etl_shared->requests[i];

		if (request->database == database)
		{
			request->failures = failures;
			request->next_try = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), delay);
		}
	}
	LWLockRelease(&etl_shared->lock);
}

/* The next database that was not seen yet and is not kept away from us. */
static Oid
take_unseen(void)
{
	Oid			result = InvalidOid;
	ListCell   *lc;

	LWLockAcquire(&etl_shared->lock, LW_SHARED);
	foreach(lc, unseen)
	{
		if (etl_shmem_released(lfirst_oid(lc)))
			continue;
		result = lfirst_oid(lc);
		unseen = foreach_delete_current(unseen, lc);
		break;
	}
	LWLockRelease(&etl_shared->lock);
	check_failures = 0;
	return result;
}

/* ----------
 * The check worker
 * ----------
 */

/*
 * Send a worker.  False when none is to be had; the request is kept.
 */
static bool
start_look(Oid database)
{
	EtlWorkerArgs args = {.database = database,.pipeline = -1,.sync = -1};

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	args.incarnation = ++etl_shared->next_incarnation;
	etl_shared->checking_database = database;
	etl_shared->checking_incarnation = args.incarnation;
	etl_shared->checking_pid = 0;
	etl_shared->check_outcome = ETL_CHECK_FAILED;
	LWLockRelease(&etl_shared->lock);

	check = etl_launch(ETL_ROLE_CHECK, &args);
	if (check != NULL)
	{
		check_database = database;
		return true;
	}

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	etl_shared->checking_database = InvalidOid;
	LWLockRelease(&etl_shared->lock);
	put_request(database, check_failures, LIMIT_RETRY);
	return false;
}

/* The worker of the look under way has ended. */
static void
finish_look(void)
{
	EtlCheckOutcome outcome;
	bool		released;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	outcome = etl_shared->check_outcome;
	etl_shared->checking_database = InvalidOid;
	etl_shared->checking_incarnation = ++etl_shared->next_incarnation;
	released = etl_shmem_released(check_database);
	LWLockRelease(&etl_shared->lock);
	ConditionVariableBroadcast(&etl_shared->departed);

	if (outcome == ETL_CHECK_FAILED)
	{
		/* whoever took the database away from us is not our failure */
		if (!released)
			check_failures++;
		put_request(check_database, check_failures, etl_launch_backoff(check_failures));
	}
	else if (outcome == ETL_CHECK_LATER)
	{
		check_failures++;
		put_request(check_database, check_failures,
					Min(LATER_RETRY << Min(check_failures - 1, 6), 10000));
	}
	check_database = InvalidOid;
}

/* ----------
 * The launcher's calls
 * ----------
 */

void
etl_look_adopt(void)
{
	bool		exists;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	if (etl_shared->checking_pid == 0)
	{
		/* registered by an earlier launcher, if at all: shut it out */
		etl_shared->checking_database = InvalidOid;
		etl_shared->checking_incarnation = ++etl_shared->next_incarnation;
	}
	LWLockRelease(&etl_shared->lock);

	unseen = read_databases(InvalidOid, &exists);
}

TimestampTz
etl_look_run(TimestampTz now)
{
	TimestampTz due = ETL_NEVER;
	bool		everywhere;
	bool		busy;

	if (OidIsValid(check_database))
	{
		if (!etl_launch_ended(&check))
			return ETL_NEVER;
		finish_look();
	}

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	everywhere = etl_shared->look_everywhere;
	etl_shared->look_everywhere = false;
	/* an earlier launcher's worker is still at it: it wakes us */
	busy = OidIsValid(etl_shared->checking_database);
	LWLockRelease(&etl_shared->lock);

	if (everywhere)
	{
		bool		exists;

		list_free(unseen);
		unseen = read_databases(InvalidOid, &exists);
	}

	while (!busy)
	{
		Oid			database = take_request(now, &due);

		if (!OidIsValid(database))
			database = take_unseen();
		if (!OidIsValid(database))
			break;
		if (!may_look(database))
			continue;
		if (!start_look(database))
			due = etl_earlier(due, TimestampTzPlusMilliseconds(now, LIMIT_RETRY));
		break;
	}
	return due;
}
