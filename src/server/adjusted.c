/*-------------------------------------------------------------------------
 *
 * adjusted.c
 *	  Counts of values that a value policy changed, by column.
 *
 * Written by processes that decode, which write no tables: so the counts are
 * in shared memory.  Few columns ever have such values; a hash table of those
 * that had is much smaller than a counter for each column would be.  Entries
 * go with their table's slot.
 *
 * The lock is the innermost of all: nothing is locked while it is held.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/hsearch.h"

#include "compat.h"
#include "server/adjusted.h"
#include "server/shmem.h"

typedef struct CountKey
{
	uint32		slot;			/* of the table */
	int32		attnum;
} CountKey;

typedef struct Count
{
	CountKey	key;			/* hash key */
	pg_atomic_uint64 values;	/* under "lock" in any mode */
} Count;

typedef struct Counts
{
	LWLock		lock;
} Counts;

static Counts *counts = NULL;
static HTAB *count_of = NULL;	/* entries come and go under counts->lock */

Size
etl_adjusted_shmem_size(void)
{
	return add_size(MAXALIGN(sizeof(Counts)),
					hash_estimate_size(ETL_ADJUSTED_COLUMNS, sizeof(Count)));
}

void
etl_adjusted_shmem_init(void)
{
	HASHCTL		ctl = {.keysize = sizeof(CountKey), .entrysize = sizeof(Count)};
	bool		found;

	counts = ShmemInitStruct("etl adjusted values", sizeof(Counts), &found);
	if (!found)
		LWLockInitialize(&counts->lock, LWLockNewTrancheId());
	LWLockRegisterTranche(counts->lock.tranche, "etl adjusted values");
	count_of = ShmemInitHash("etl adjusted values by column", ETL_ADJUSTED_COLUMNS,
							 ETL_ADJUSTED_COLUMNS, &ctl, HASH_ELEM | HASH_BLOBS);
}

/* Find a column's entry; NULL if there is none.  The lock is held. */
static Count *
find(uint32 slot, AttrNumber attnum)
{
	CountKey	key = {slot, attnum};

	return hash_search(count_of, &key, HASH_FIND, NULL);
}

/* Find or make it; NULL when there is no room.  The lock is held exclusively. */
static Count *
enter(uint32 slot, AttrNumber attnum)
{
	CountKey	key = {slot, attnum};
	bool		found;
	Count	   *count;

	/* more would take memory that others have reserved */
	if (hash_get_num_entries(count_of) >= ETL_ADJUSTED_COLUMNS)
		return find(slot, attnum);
	count = hash_search(count_of, &key, HASH_ENTER_NULL, &found);
	if (count != NULL && !found)
		pg_atomic_init_u64(&count->values, 0);
	return count;
}

static void
add(uint32 slot, AttrNumber attnum, uint64 n)
{
	Count	   *count;

	LWLockAcquire(&counts->lock, LW_SHARED);
	count = find(slot, attnum);
	if (count != NULL)
		pg_atomic_fetch_add_u64(&count->values, n);
	LWLockRelease(&counts->lock);
	if (count != NULL)
		return;

	LWLockAcquire(&counts->lock, LW_EXCLUSIVE);
	count = enter(slot, attnum);
	if (count != NULL)
		pg_atomic_fetch_add_u64(&count->values, n);
	LWLockRelease(&counts->lock);
}

void
etl_adjusted_count(uint32 slot, const EtlAdjusted *adjusted)
{
	for (int i = 0; i < adjusted->n; i++)
		add(slot, adjusted->attnums[i], 1);
}

uint64
etl_adjusted_get(uint32 slot, AttrNumber attnum)
{
	Count	   *count;
	uint64		values = 0;

	LWLockAcquire(&counts->lock, LW_SHARED);
	count = find(slot, attnum);
	if (count != NULL)
		values = pg_atomic_read_u64(&count->values);
	LWLockRelease(&counts->lock);
	return values;
}

EtlAdjustedCount *
etl_adjusted_all(int *n)
{
	EtlAdjustedCount *all = palloc(sizeof(EtlAdjustedCount) * ETL_ADJUSTED_COLUMNS);
	HASH_SEQ_STATUS scan;
	Count	   *count;

	*n = 0;
	LWLockAcquire(&counts->lock, LW_SHARED);
	if (hash_get_num_entries(count_of) > 0)
	{
		hash_seq_init(&scan, count_of);
		while ((count = hash_seq_search(&scan)) != NULL)
		{
			all[*n].slot = count->key.slot;
			all[*n].attnum = (AttrNumber) count->key.attnum;
			all[(*n)++].values = pg_atomic_read_u64(&count->values);
		}
	}
	LWLockRelease(&counts->lock);
	return all;
}

void
etl_adjusted_set(uint32 slot, AttrNumber attnum, uint64 values)
{
	Count	   *count;

	LWLockAcquire(&counts->lock, LW_EXCLUSIVE);
	count = values > 0 ? enter(slot, attnum) : find(slot, attnum);
	if (count != NULL)
		pg_atomic_write_u64(&count->values, values);
	LWLockRelease(&counts->lock);
}

void
etl_adjusted_forget(uint32 slot)
{
	HASH_SEQ_STATUS scan;
	Count	   *count;

	LWLockAcquire(&counts->lock, LW_EXCLUSIVE);
	if (hash_get_num_entries(count_of) > 0)
	{
		hash_seq_init(&scan, count_of);
		while ((count = hash_seq_search(&scan)) != NULL)
			if (count->key.slot == slot)
				(void) hash_search(count_of, &count->key, HASH_REMOVE, NULL);
	}
	LWLockRelease(&counts->lock);
}
