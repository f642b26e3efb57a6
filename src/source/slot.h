/*-------------------------------------------------------------------------
 *
 * slot.h
 *	  Replication slots: make, look at, release, drop.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SLOT_H
#define ETL_SLOT_H

#include "access/xlogdefs.h"
#include "replication/slot.h"

typedef enum EtlSlotCondition
{
	ETL_SLOT_MISSING,
	ETL_SLOT_USABLE,
	ETL_SLOT_FOREIGN,			/* other plugin or database */
	ETL_SLOT_LOST,				/* invalidated: its WAL is gone */
	ETL_SLOT_ACTIVE				/* another process holds it */
} EtlSlotCondition;

extern EtlSlotCondition etl_slot_look(const char *name);

/*
 * Make the persistent slot "name" and find its start point, which waits for
 * every transaction that runs now (of all databases).  Returns the position
 * from which it will deliver.  The slot is left released.  *limit is set, and
 * Invalid returned, when max_replication_slots is reached.
 */
extern XLogRecPtr etl_slot_make(const char *name, bool *limit);

/* Acquire / release for this process; acquire returns false when it is held elsewhere. */
extern bool etl_slot_acquire(const char *name);
extern void etl_slot_release(void);

/* Drop if it exists and nobody holds it (returns false if held). */
extern bool etl_slot_drop(const char *name);

/* "etl_<database oid>_<8 hex digits>", drawn from the strong random source. */
extern void etl_slot_draw_name(Oid database, NameData *name);

/* Names of all slots of plugin "etl" in that database (list of char *). */
extern List *etl_slot_list(Oid database);

#endif							/* ETL_SLOT_H */
