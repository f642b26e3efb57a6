/*-------------------------------------------------------------------------
 *
 * ownership.c
 *	  Who delivers a transaction's changes of a table: apply or sync?
 *
 * Everything here is a few assignments under the pipeline's lock.  See
 * ownership.h for the protocol and doc/architecture.md for its proof.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "pipeline/ownership.h"
#include "pipeline/table_state.h"

/* States in which nothing of the table is delivered by apply. */
static bool
out_of_stream(const EtlTableSlot *slot)
{
	return slot->state == ETL_TABLE_ERRORED ||
		slot->state == ETL_TABLE_EXCLUDED ||
		slot->state == ETL_TABLE_DROPPED;
}

static bool
belongs(const EtlPipelineShared *pipeline, const EtlTableSlot *slot)
{
	return slot->pipeline == etl_shmem_pipeline_index(pipeline);
}

void
etl_ownership_decide(EtlPipelineShared *pipeline, XLogRecPtr end_lsn)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (pipeline->decided < end_lsn)
		pipeline->decided = end_lsn;
	LWLockRelease(&pipeline->lock);
}

void
etl_ownership_seen(EtlPipelineShared *pipeline, uint64 version)
{
	pg_atomic_write_u64(&pipeline->tables_seen, version);
}

void
etl_ownership_want_seen(EtlPipelineShared *pipeline, uint64 version)
{
	uint64		wanted = pg_atomic_read_u64(&pipeline->tables_wanted);

	while (wanted < version &&
		   !pg_atomic_compare_exchange_u64(&pipeline->tables_wanted, &wanted, version))
		;
}

bool
etl_ownership_is_wanted(const EtlPipelineShared *pipeline, uint64 seen)
{
	return pg_atomic_read_u64(&unconstify(EtlPipelineShared *, pipeline)->tables_wanted) > seen;
}

void
etl_ownership_hold(EtlPipelineShared *pipeline, int ms)
{
	TimestampTz until = 0;

	if (ms > 0)
		until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), ms);
	pg_atomic_write_u64(&pipeline->hold_until, (uint64) until);
}

long
etl_ownership_held(EtlPipelineShared *pipeline)
{
	TimestampTz until = (TimestampTz) pg_atomic_read_u64(&pipeline->hold_until);

	if (until == 0)
		return 0;
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);
}

void
etl_ownership_forget(EtlPipelineShared *pipeline)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	pipeline->decided = InvalidXLogRecPtr;
	LWLockRelease(&pipeline->lock);
}

bool
etl_ownership_lookup(EtlPipelineShared *pipeline, uint32 slot, Oid relid,
					 XLogRecPtr commit_lsn, EtlOwnership *owned)
{
	const EtlTableSlot *table = &etl_shared->tables[slot];
	bool		found = false;

	LWLockAcquire(&pipeline->lock, LW_SHARED);
	if (belongs(pipeline, table) && table->relid == relid &&
		!out_of_stream(table))
	{
		for (int i = 0; i < lengthof(table->owned) && !found; i++)
		{
			if (table->owned[i].generation != 0 &&
				table->owned[i].owned_from <= commit_lsn)
			{
				*owned = table->owned[i];
				found = true;
			}
		}
	}
	LWLockRelease(&pipeline->lock);

	return found;
}

/* May this claim's table still be handed over?  Lock held. */
static bool
claim_valid(const EtlPipelineShared *pipeline, const EtlOwnershipClaim *claim)
{
	const EtlTableSlot *table = &etl_shared->tables[claim->slot];

	return belongs(pipeline, table) && table->relid == claim->relid &&
		table->generation == claim->generation &&
		(table->state == ETL_TABLE_FINISHED_COPY ||
		 table->state == ETL_TABLE_SYNC_WAIT ||
		 table->state == ETL_TABLE_CATCHUP);
}

bool
etl_ownership_take(EtlPipelineShared *pipeline, int nclaims,
				   EtlOwnershipClaim *claims, XLogRecPtr s)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);

	/* not decided anything yet: its slot may not even exist */
	if (pipeline->decided == InvalidXLogRecPtr || pipeline->decided > s)
	{
		LWLockRelease(&pipeline->lock);
		return false;
	}

	for (int i = 0; i < nclaims; i++)
	{
		EtlOwnershipClaim *claim = &claims[i];
		EtlTableSlot *table = &etl_shared->tables[claim->slot];

		claim->taken = claim_valid(pipeline, claim);
		if (!claim->taken)
			continue;

		table->owned[1] = table->owned[0];
		table->owned[0].generation = claim->generation;
		table->owned[0].owned_from = s;
		table->owned[0].shape_hash = claim->shape_hash;
		(void) etl_table_state_move(table, ETL_TABLE_SYNC_DONE);
	}

	LWLockRelease(&pipeline->lock);
	pg_atomic_fetch_add_u64(&pipeline->tables_version, 1);

	return true;
}

void
etl_ownership_revert(EtlPipelineShared *pipeline, uint32 slot, uint32 generation)
{
	EtlTableSlot *table = &etl_shared->tables[slot];

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (belongs(pipeline, table) && table->owned[0].generation == generation)
	{
		table->owned[0] = table->owned[1];
		memset(&table->owned[1], 0, sizeof(EtlOwnership));
	}
	LWLockRelease(&pipeline->lock);
	pg_atomic_fetch_add_u64(&pipeline->tables_version, 1);
}

void
etl_ownership_settle(EtlPipelineShared *pipeline, uint32 slot, uint32 generation)
{
	EtlTableSlot *table = &etl_shared->tables[slot];

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (belongs(pipeline, table) && table->owned[0].generation == generation)
		memset(&table->owned[1], 0, sizeof(EtlOwnership));
	LWLockRelease(&pipeline->lock);
	pg_atomic_fetch_add_u64(&pipeline->tables_version, 1);
}
