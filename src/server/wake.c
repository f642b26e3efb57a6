/*-------------------------------------------------------------------------
 *
 * wake.c
 *	  Wake apply workers at commit.
 *
 * The server wakes walsenders when WAL is flushed, and nobody else.  So that a
 * commit reaches an idle apply worker without polling, each backend looks,
 * right after its own commit was flushed, whether a pipeline of its database
 * waits for WAL.  The price for users is one pass over the pipelines' flags
 * (etl.max_pipelines at most) per transaction that wrote.
 *
 * Commits that are flushed later (synchronous_commit = off) or by others
 * (COMMIT PREPARED) are found by the worker's own slow look at the WAL.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"

#include "server/shmem.h"
#include "server/wake.h"

/*
 * Runs after the transaction is visible and flushed.  Nothing here may fail:
 * the latch of a process that is just gone is set for nothing.
 */
static void
wake_at_commit(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT || etl_shared == NULL ||
		!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;

	for (int i = 0; i < etl_shared->npipelines; i++)
	{
		EtlPipelineShared *pipeline = &etl_shared->pipelines[i];
		PGPROC	   *apply;

		if (pipeline->database != MyDatabaseId ||
			pg_atomic_read_u64(&pipeline->apply_idle) == 0)
			continue;

		/* one commit wakes it; those behind need not */
		if (pg_atomic_exchange_u64(&pipeline->apply_idle, 0) == 0)
			continue;
		apply = pipeline->apply_proc;
		if (apply)
			SetLatch(&apply->procLatch);
	}
}

void
etl_wake_install(void)
{
	RegisterXactCallback(wake_at_commit, NULL);
}
