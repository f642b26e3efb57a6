/*-------------------------------------------------------------------------
 *
 * slot.c
 *	  Replication slots: make, look at, release, drop.
 *
 * The pipeline's slot is persistent and made once; it is ephemeral until its
 * start point is found, so that an error or a crash on the way leaves
 * nothing behind.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "replication/logical.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "source/decode.h"
#include "source/slot.h"
#include "source/startpoint.h"

EtlSlotCondition
etl_slot_look(const char *name)
{
	EtlSlotCondition condition = ETL_SLOT_MISSING;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		if (!slot->in_use || strcmp(NameStr(slot->data.name), name) != 0)
			continue;

		SpinLockAcquire(&slot->mutex);
		if (slot->data.database != MyDatabaseId ||
			strcmp(NameStr(slot->data.plugin), "etl") != 0)
			condition = ETL_SLOT_FOREIGN;
		else if (etl_slot_invalidated(slot))
			condition = ETL_SLOT_LOST;
		else if (slot->active_pid != 0 && slot->active_pid != MyProcPid)
			condition = ETL_SLOT_ACTIVE;
		else
			condition = ETL_SLOT_USABLE;
		SpinLockRelease(&slot->mutex);
		break;
	}
	LWLockRelease(ReplicationSlotControlLock);
	return condition;
}

/* Is there room for one more slot?  (Another process may still be faster.) */
static bool
slot_available(void)
{
	bool		available = false;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots && !available; i++)
		available = !ReplicationSlotCtl->replication_slots[i].in_use;
	LWLockRelease(ReplicationSlotControlLock);
	return available;
}

XLogRecPtr
etl_slot_make(const char *name, bool *limit)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner caller = CurrentResourceOwner;
	ResourceOwner owner;
	LogicalDecodingContext *decoding;
	List	   *touched;
	XLogRecPtr	point;

	*limit = !slot_available();
	if (*limit)
		return InvalidXLogRecPtr;

	etl_check_decoding_requirements();
	etl_slot_create(name, RS_EPHEMERAL);

	/*
	 * The transaction around the making of the context keeps
	 * PROC_IN_LOGICAL_DECODING off: with it on, other sessions would take
	 * this process's later transactions for aborted ones.
	 */
	etl_decode_plugin_allowed = true;
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	decoding = etl_create_init_decoding_context(false, XL_ROUTINE(.page_read = read_local_xlog_page,
																  .segment_open = wal_segment_open,
																  .segment_close = wal_segment_close));
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);

	/* it waits on locks, which need an owner; it leaves another one behind */
	owner = ResourceOwnerCreate(NULL, "etl slot creation");
	CurrentResourceOwner = owner;
	touched = etl_startpoint_find(decoding);
	point = MyReplicationSlot->data.confirmed_flush;
	if (touched != NIL)
		point = etl_startpoint_move(decoding);
	list_free(touched);
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = caller;
	etl_decode_free_owner(owner);

	FreeDecodingContext(decoding);
	etl_decode_plugin_allowed = false;
	ReplicationSlotPersist();
	ReplicationSlotRelease();
	return point;
}

bool
etl_slot_acquire(const char *name)
{
	if (etl_slot_look(name) == ETL_SLOT_ACTIVE)
		return false;
	etl_slot_acquire_nowait(name);
	return true;
}

void
etl_slot_release(void)
{
	if (MyReplicationSlot)
		ReplicationSlotRelease();
}

bool
etl_slot_drop(const char *name)
{
	switch (etl_slot_look(name))
	{
		case ETL_SLOT_MISSING:
			return true;
		case ETL_SLOT_ACTIVE:
			return false;
		case ETL_SLOT_FOREIGN:
			/* not ours to drop: whoever holds the name keeps it */
			return true;
		case ETL_SLOT_USABLE:
		case ETL_SLOT_LOST:
			break;
	}
	ReplicationSlotDrop(name, true);
	return true;
}

void
etl_slot_draw_name(Oid database, NameData *name)
{
	uint32		random;

	if (!pg_strong_random(&random, sizeof(random)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values for a slot name")));
	snprintf(NameStr(*name), NAMEDATALEN, "etl_%u_%08x", database, random);
}

List *
etl_slot_list(Oid database)
{
	List	   *names = NIL;
	NameData   *found = palloc(sizeof(NameData) * max_replication_slots);
	int			n = 0;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		if (slot->in_use && slot->data.database == database &&
			strcmp(NameStr(slot->data.plugin), "etl") == 0)
			found[n++] = slot->data.name;
	}
	LWLockRelease(ReplicationSlotControlLock);

	for (int i = 0; i < n; i++)
		names = lappend(names, pstrdup(NameStr(found[i])));
	pfree(found);
	return names;
}
