/*-------------------------------------------------------------------------
 *
 * table_state.h
 *	  The life of a table as a state machine.
 *
 * All functions take the pipeline's lock themselves unless they say
 * otherwise, change shared memory alone, and bump tables_version.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_TABLE_STATE_H
#define ETL_TABLE_STATE_H

#include "server/shmem.h"

/* Does the diagram have this edge? */
extern bool etl_table_state_edge(EtlTableState from, EtlTableState to);

/*
 * The one transition function.  The pipeline's lock is held exclusively.
 * False, with nothing changed, when there is no such edge.
 */
extern bool etl_table_state_move(EtlTableSlot *slot, EtlTableState to);

/*
 * A new copy is wanted.  "beside": the generation in force goes on receiving
 * changes until the new one takes over; else none of them does.
 */
extern bool etl_table_state_renew(EtlPipelineShared *pipeline, EtlTableSlot *slot,
								  EtlCopyReason reason, bool beside);

/* No change goes to generation "number" any more; the state stays. */
extern void etl_table_state_disown(EtlPipelineShared *pipeline, EtlTableSlot *slot, uint32 number);

/* Set aside.  With ETL_RECOVERY_RESUME what was handed over stays in force. */
extern bool etl_table_state_park(EtlPipelineShared *pipeline, EtlTableSlot *slot,
								 EtlRecovery recovery, int sqlstate,
								 XLogRecPtr lsn, uint64 ordinal);

/* Plain edges: sync_done -> ready, any -> excluded, any -> dropped. */
extern bool etl_table_state_set(EtlPipelineShared *pipeline, EtlTableSlot *slot, EtlTableState to);

#endif							/* ETL_TABLE_STATE_H */
