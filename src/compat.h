/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between the majors of PostgreSQL, and nothing else.
 *
 * The only file with PG_VERSION_NUM.  Each name below has the meaning of the
 * newest major and is emulated downwards.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_COMPAT_H
#define ETL_COMPAT_H

#include "access/xlogreader.h"
#include "replication/logical.h"
#include "replication/reorderbuffer.h"
#include "replication/slot.h"

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* The heap tuple of a decoded change, or NULL. */
#if PG_VERSION_NUM < 170000
#define etl_change_tuple(t) ((t) ? &(t)->tuple : NULL)
#else
#define etl_change_tuple(t) (t)
#endif

/* Has the slot lost the WAL it needs?  Caller holds the slot's mutex. */
static inline bool
etl_slot_invalidated(const ReplicationSlot *slot)
{
#if PG_VERSION_NUM < 160000
	return XLogRecPtrIsInvalid(slot->data.restart_lsn) &&
		!XLogRecPtrIsInvalid(slot->data.invalidated_at);
#else
	return slot->data.invalidated != RS_INVAL_NONE;
#endif
}

static inline void
etl_slot_create(const char *name, ReplicationSlotPersistency persistency)
{
#if PG_VERSION_NUM < 170000
	ReplicationSlotCreate(name, true, persistency, false);
#elif PG_VERSION_NUM < 190000
	ReplicationSlotCreate(name, true, persistency, false, false, false);
#else
	ReplicationSlotCreate(name, true, persistency, false, false, false, false);
#endif
}

static inline void
etl_slot_acquire_nowait(const char *name)
{
#if PG_VERSION_NUM < 180000
	ReplicationSlotAcquire(name, true);
#else
	ReplicationSlotAcquire(name, true, true);
#endif
}

static inline void
etl_check_decoding_requirements(void)
{
#if PG_VERSION_NUM < 190000
	CheckLogicalDecodingRequirements();
#else
	CheckLogicalDecodingRequirements(false);
#endif
}

/* CreateInitDecodingContext() of our plugin. */
static inline LogicalDecodingContext *
etl_create_init_decoding_context(bool need_full_snapshot, XLogReaderRoutine *routine)
{
#if PG_VERSION_NUM < 190000
	return CreateInitDecodingContext("etl", NIL, need_full_snapshot,
									 InvalidXLogRecPtr, routine, NULL, NULL, NULL);
#else
	return CreateInitDecodingContext("etl", NIL, need_full_snapshot, false,
									 InvalidXLogRecPtr, routine, NULL, NULL, NULL);
#endif
}

#endif							/* ETL_COMPAT_H */
