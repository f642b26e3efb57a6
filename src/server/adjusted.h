/*-------------------------------------------------------------------------
 *
 * adjusted.h
 *	  Counts of values that a value policy changed, by column.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_ADJUSTED_H
#define ETL_ADJUSTED_H

#include "etl/destination.h"

/*
 * Columns that are counted at the same time in the whole server.  Only a
 * column that had such a value takes a place; what finds none is not counted.
 */
#define ETL_ADJUSTED_COLUMNS 4096

/* Count the values of one row of a table (its slot in shared memory). */
extern void etl_adjusted_count(uint32 slot, const EtlAdjusted *adjusted);

/* Values of one column changed since its table was entered or etl_adjusted_set(). */
extern uint64 etl_adjusted_get(uint32 slot, AttrNumber attnum);

/* All counts, in CurrentMemoryContext. */
typedef struct EtlAdjustedCount
{
	uint32		slot;
	AttrNumber	attnum;
	uint64		values;
} EtlAdjustedCount;

extern EtlAdjustedCount *etl_adjusted_all(int *n);

/* Begin with what was counted in a former life of the server. */
extern void etl_adjusted_set(uint32 slot, AttrNumber attnum, uint64 count);

/* --- for shmem.c --- */

extern Size etl_adjusted_shmem_size(void);
extern void etl_adjusted_shmem_init(void);	/* AddinShmemInitLock is held */

/* A slot changes hands: its counts go.  EtlShared->lock may be held. */
extern void etl_adjusted_forget(uint32 slot);

#endif							/* ETL_ADJUSTED_H */
