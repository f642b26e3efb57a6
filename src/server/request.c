/*-------------------------------------------------------------------------
 *
 * request.c
 *	  "Look at this database": requests of SQL functions, at commit.
 *
 * A commit callback cannot fail, so room is reserved when the function is
 * called, held by the subtransaction that called it, passed on to its parent
 * when that commits, and published by the commit of the whole.  The entry
 * says only "look": a look too many is harmless.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"

#include "server/request.h"
#include "server/shmem.h"

/*
 * Nesting level of the (sub)transaction that holds this backend's reservation,
 * 0 = none.  Requests of its children need none of their own: it is the
 * outermost that has asked.
 */
static int	reserved_level = 0;

/* The entry of a database, or a free one made its; NULL when all are taken. */
static EtlDatabaseRequest *
get_request(Oid database)
{
	EtlDatabaseRequest *free = NULL;

	Assert(LWLockHeldByMeInMode(&etl_shared->lock, LW_EXCLUSIVE));

	for (int i = 0; i < etl_shared->nrequests; i++)
	{
		EtlDatabaseRequest *request = &etl_shared->requests[i];

		if (request->database == database)
			return request;
		if (free == NULL && !OidIsValid(request->database))
			free = request;
	}
	if (free != NULL)
	{
		memset(free, 0, sizeof(EtlDatabaseRequest));
		free->database = database;
	}
	return free;
}

static void
publish_locked(EtlDatabaseRequest *request, Oid database)
{
	if (request != NULL)
	{
		request->published = true;
		request->next_try = 0;
		request->failures = 0;
	}
	else
		etl_shared->look_everywhere = true;

	/* the database's running pipelines read their intent again at once */
	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];

		if (!pipeline->in_use || pipeline->database != database)
			continue;
		pg_atomic_fetch_add_u64(&pipeline->config_wanted, 1);
		etl_shmem_wake_pipeline_locked(pipeline);
	}
	etl_shmem_wake_launcher_locked();
}

void
etl_request_publish(Oid database)
{
	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	publish_locked(get_request(database), database);
	LWLockRelease(&etl_shared->lock);
}

/* ----------
 * Requests of transactions
 * ----------
 */

static void
reserve(void)
{
	EtlDatabaseRequest *request;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	request = get_request(MyDatabaseId);
	if (request != NULL)
		request->reservations++;
	LWLockRelease(&etl_shared->lock);

	if (request == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases have requests for etl at the same time"),
				 errhint("Try again later.")));
}

/* Give the reservation back, and publish it if the transaction committed. */
static void
end_reservation(bool commit)
{
	EtlDatabaseRequest *request;

	reserved_level = 0;

	LWLockAcquire(&etl_shared->lock, LW_EXCLUSIVE);
	request = get_request(MyDatabaseId);
	Assert(request != NULL && request->reservations > 0);
	request->reservations--;
	if (commit)
		publish_locked(request, MyDatabaseId);
	else if (!request->published && request->reservations == 0)
		request->database = InvalidOid;
	LWLockRelease(&etl_shared->lock);
}

static void
transaction_callback(XactEvent event, void *arg)
{
	if (reserved_level == 0)
		return;

	switch (event)
	{
		case XACT_EVENT_COMMIT:
			end_reservation(true);
			break;
		case XACT_EVENT_ABORT:
			end_reservation(false);
			break;
		case XACT_EVENT_PRE_PREPARE:
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has changed pipelines")));
			break;
		default:
			break;
	}
}

static void
subtransaction_callback(SubXactEvent event, SubTransactionId mySubid,
						SubTransactionId parentSubid, void *arg)
{
	if (reserved_level == 0 || reserved_level != GetCurrentTransactionNestLevel())
		return;

	if (event == SUBXACT_EVENT_ABORT_SUB)
		end_reservation(false);
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		reserved_level--;		/* the parent inherits it */
}

void
etl_request_look(void)
{
	static bool registered = false;

	etl_shmem_require();

	if (!registered)
	{
		RegisterXactCallback(transaction_callback, NULL);
		RegisterSubXactCallback(subtransaction_callback, NULL);
		registered = true;
	}

	if (reserved_level == 0)
	{
		reserve();
		reserved_level = GetCurrentTransactionNestLevel();
	}
}
