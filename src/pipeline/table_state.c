/*-------------------------------------------------------------------------
 *
 * table_state.c
 *	  The life of a table as a state machine.
 *
 *	 init -> data_sync -> finished_copy -> sync_wait -> catchup -> sync_done -> ready
 *	  ^          |              |              |           |           |          |
 *	  |          +--------------+- sync ended early -------+           |          |
 *	  +------------------ a new copy is wanted ------------------------+----------+
 *
 *	 any but dropped -> errored	errored -> init (new copy)
 *								errored -> ready, sync_done, init (goes on in place)
 *	 any -> excluded, dropped	excluded, dropped -> init (is there again)
 *
 * finished_copy may be left for sync_done directly: a table that needs no
 * catching up.  data_sync may follow data_sync: the next attempt of the same
 * sync worker.
 *
 * Who makes which transition is in doc/architecture.md.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pipeline/table_state.h"

#define TO(state)	(1 << (state))

#define INIT		TO(ETL_TABLE_INIT)
#define DATA_SYNC	TO(ETL_TABLE_DATA_SYNC)
#define FINISHED	TO(ETL_TABLE_FINISHED_COPY)
#define SYNC_WAIT	TO(ETL_TABLE_SYNC_WAIT)
#define CATCHUP		TO(ETL_TABLE_CATCHUP)
#define SYNC_DONE	TO(ETL_TABLE_SYNC_DONE)
#define READY		TO(ETL_TABLE_READY)
#define ERRORED		TO(ETL_TABLE_ERRORED)
#define OUT			(TO(ETL_TABLE_EXCLUDED) | TO(ETL_TABLE_DROPPED))

/* Edges by the state they leave. */
static const uint16 edges[] = {
	[ETL_TABLE_INIT] = INIT | DATA_SYNC | ERRORED | OUT,
	[ETL_TABLE_DATA_SYNC] = DATA_SYNC | FINISHED | INIT | ERRORED | OUT,
	[ETL_TABLE_FINISHED_COPY] = SYNC_WAIT | CATCHUP | SYNC_DONE | DATA_SYNC | INIT | ERRORED | OUT,
	[ETL_TABLE_SYNC_WAIT] = CATCHUP | SYNC_DONE | INIT | ERRORED | OUT,
	[ETL_TABLE_CATCHUP] = SYNC_WAIT | SYNC_DONE | INIT | ERRORED | OUT,
	[ETL_TABLE_SYNC_DONE] = READY | INIT | ERRORED | OUT,
	[ETL_TABLE_READY] = INIT | ERRORED | OUT,
	[ETL_TABLE_ERRORED] = INIT | SYNC_DONE | READY | ERRORED | OUT,
	[ETL_TABLE_EXCLUDED] = INIT | ERRORED | OUT,
	[ETL_TABLE_DROPPED] = INIT | OUT
};

bool
etl_table_state_edge(EtlTableState from, EtlTableState to)
{
	return (int) from < lengthof(edges) && (edges[from] & TO(to)) != 0;
}

bool
etl_table_state_move(EtlTableSlot *slot, EtlTableState to)
{
	if (!etl_table_state_edge((EtlTableState) slot->state, to))
		return false;
	slot->state = to;
	if (to != ETL_TABLE_ERRORED)
		slot->recovery = ETL_RECOVERY_NONE;
	return true;
}

static void
disown(EtlTableSlot *slot)
{
	memset(slot->owned, 0, sizeof(slot->owned));
}

static void
changed(EtlPipelineShared *pipeline)
{
	pg_atomic_fetch_add_u64(&pipeline->tables_version, 1);
}

bool
etl_table_state_renew(EtlPipelineShared *pipeline, EtlTableSlot *slot,
					  EtlCopyReason reason, bool beside)
{
	bool		moved;

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	moved = etl_table_state_move(slot, ETL_TABLE_INIT);
	if (moved)
	{
		slot->reason = reason;
		if (!beside)
			disown(slot);
	}
	LWLockRelease(&pipeline->lock);
	changed(pipeline);

	return moved;
}

void
etl_table_state_disown(EtlPipelineShared *pipeline, EtlTableSlot *slot, uint32 number)
{
	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	if (slot->owned[0].generation == number)
		disown(slot);
	LWLockRelease(&pipeline->lock);
	changed(pipeline);
}

bool
etl_table_state_park(EtlPipelineShared *pipeline, EtlTableSlot *slot,
					 EtlRecovery recovery, int sqlstate, XLogRecPtr lsn, uint64 ordinal)
{
	bool		moved;

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	moved = etl_table_state_move(slot, ETL_TABLE_ERRORED);
	if (moved)
	{
		slot->recovery = recovery;
		slot->sqlstate = sqlstate;
		slot->error_lsn = lsn;
		slot->error_ordinal = ordinal;
		if (recovery != ETL_RECOVERY_RESUME)
			disown(slot);
	}
	LWLockRelease(&pipeline->lock);
	changed(pipeline);

	return moved;
}

bool
etl_table_state_set(EtlPipelineShared *pipeline, EtlTableSlot *slot, EtlTableState to)
{
	bool		moved;

	LWLockAcquire(&pipeline->lock, LW_EXCLUSIVE);
	moved = etl_table_state_move(slot, to);
	if (moved && (to == ETL_TABLE_EXCLUDED || to == ETL_TABLE_DROPPED))
		disown(slot);
	LWLockRelease(&pipeline->lock);
	changed(pipeline);

	return moved;
}
