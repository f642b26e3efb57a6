/*-------------------------------------------------------------------------
 *
 * startpoint.c
 *	  Where a new slot begins to deliver.
 *
 * While a slot looks for its start point, the server already decodes what
 * younger transactions do, and builds a catalog snapshot for them.  A
 * transaction that changed catalogs before that, and commits after it, is in
 * none of the lists from which the snapshot was made, and the snapshot is
 * kept until some later transaction changes catalogs.  Until then rows are
 * decoded under a catalog without those changes: "could not map filenode" in
 * the best case, rows without their new columns in the worst, and the same
 * again at each restart.
 *
 * So the commits in that span are looked at.  Where a changed relation
 * matters, an initial sync starts again.  A pipeline's slot moves its start
 * point instead: to where all transactions have ended that ran when a correct
 * snapshot was saved, from which decoding then restarts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogreader.h"
#include "miscadmin.h"
#include "replication/decode.h"
#include "replication/slot.h"
#include "replication/snapbuild.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/sinval.h"
#include "storage/spin.h"
#include "storage/standby.h"
#include "storage/standbydefs.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "source/startpoint.h"

/* Read and process one record; "look" sees it before it is processed. */
static void
step(LogicalDecodingContext *decoding, void (*look) (XLogReaderState *record, void *arg), void *arg)
{
	MemoryContext context = MemoryContextSwitchTo(decoding->context);
	ResourceOwner owner = CurrentResourceOwner;
	char	   *error = NULL;
	XLogRecord *record = XLogReadRecord(decoding->reader, &error);

	if (record == NULL)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read WAL for a start point: %s",
						error ? error : "unexpected end")));
	MemoryContextSwitchTo(context);
	look(decoding->reader, arg);
	MemoryContextSwitchTo(decoding->context);
	LogicalDecodingProcessRecord(decoding, decoding->reader);
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	CHECK_FOR_INTERRUPTS();
}

/* Collect the relations that a commit of this database invalidates. */
static void
look_at_commit(XLogReaderState *record, void *arg)
{
	List	  **touched = arg;
	uint8		info = XLogRecGetInfo(record) & XLOG_XACT_OPMASK;
	xl_xact_parsed_commit commit;

	if (XLogRecGetRmid(record) != RM_XACT_ID ||
		(info != XLOG_XACT_COMMIT && info != XLOG_XACT_COMMIT_PREPARED))
		return;
	ParseCommitRecord(XLogRecGetInfo(record),
					  (xl_xact_commit *) XLogRecGetData(record), &commit);
	for (int i = 0; i < commit.nmsgs; i++)
	{
		const SharedInvalidationMessage *message = &commit.msgs[i];

		if (message->id == SHAREDINVALRELCACHE_ID &&
			message->rc.dbId == MyDatabaseId)
			*touched = list_append_unique_oid(*touched, message->rc.relId);
	}
}

List *
etl_startpoint_find(LogicalDecodingContext *decoding)
{
	ReplicationSlot *slot = decoding->slot;
	List	   *touched = NIL;

	XLogBeginRead(decoding->reader, slot->data.restart_lsn);
	do
	{
		step(decoding, look_at_commit, &touched);
	} while (!DecodingContextReady(decoding));

	SpinLockAcquire(&slot->mutex);
	slot->data.confirmed_flush = decoding->reader->EndRecPtr;
	SpinLockRelease(&slot->mutex);
	return touched;
}

/* The record of running transactions at which a snapshot is saved. */
typedef struct Running
{
	XLogRecPtr	lsn;			/* Invalid: not met yet */
	List	   *xids;
} Running;

static void
look_at_running(XLogReaderState *record, void *arg)
{
	Running    *running = arg;
	xl_running_xacts *xacts = (xl_running_xacts *) XLogRecGetData(record);

	if (XLogRecGetRmid(record) != RM_STANDBY_ID ||
		(XLogRecGetInfo(record) & ~XLR_INFO_MASK) != XLOG_RUNNING_XACTS)
		return;
	running->lsn = record->ReadRecPtr;
	for (int i = 0; i < xacts->xcnt; i++)
		running->xids = lappend_oid(running->xids, (Oid) xacts->xids[i]);
}

XLogRecPtr
etl_startpoint_move(LogicalDecodingContext *decoding)
{
	ReplicationSlot *slot = decoding->slot;
	Running		running = {InvalidXLogRecPtr, NIL};
	XLogRecPtr	point;
	ListCell   *lc;

	/* nothing is to be delivered on the way */
	decoding->fast_forward = true;
	XLogFlush(LogStandbySnapshot());
	while (XLogRecPtrIsInvalid(running.lsn))
		step(decoding, look_at_running, &running);

	/* who was running then is delivered by nobody: let them all end first */
	foreach(lc, running.xids)
		XactLockTableWait((TransactionId) lfirst_oid(lc), NULL, NULL, XLTW_None);
	list_free(running.xids);

	point = LogStandbySnapshot();
	XLogFlush(point);
	SpinLockAcquire(&slot->mutex);
	slot->data.restart_lsn = running.lsn;
	slot->data.confirmed_flush = point;
	SpinLockRelease(&slot->mutex);
	ReplicationSlotMarkDirty();
	ReplicationSlotsComputeRequiredLSN();
	return point;
}
