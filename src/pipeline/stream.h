/*-------------------------------------------------------------------------
 *
 * stream.h
 *	  Decoded changes -> rules -> encoder -> records in the queue.
 *
 * Used by the apply worker for all tables it owns, and by a sync worker in
 * catch-up for the tables of its group.  The process decodes: no writes, no
 * network, brackets only between WAL records.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_STREAM_H
#define ETL_STREAM_H

#include "catalog/config.h"
#include "pipeline/queue.h"
#include "server/shmem.h"
#include "source/decode.h"

typedef struct EtlStream EtlStream;

/* A table of a sync worker's group. */
typedef struct EtlStreamTable
{
	uint32		slot;			/* table slot index */
	Oid			relid;
	uint32		generation;		/* being copied */
	EtlShape   *shape;			/* base shape, as copied */
	bool		parked;			/* out of the group (set by either side) */
} EtlStreamTable;

/* Apply: ownership comes from the table slots. */
extern EtlStream *etl_stream_create_apply(EtlConfig *config, EtlQueue *queue);

/*
 * Catch-up: delivers exactly the given tables, from the slot's start on.
 * "rules" (List of EtlRule *) holds the rules under the copy's snapshot.
 */
extern EtlStream *etl_stream_create_sync(EtlConfig *config, EtlQueue *queue,
										 int ntables, EtlStreamTable *tables, List *rules);

extern const EtlDecodeCallbacks etl_stream_callbacks;	/* arg: the EtlStream */

/* Emit PROGRESS for a position before which nothing is open, and wake the writer. */
extern void etl_stream_progress(EtlStream *stream, XLogRecPtr lsn);

/* End of the last transaction or PROGRESS put into the queue. */
extern XLogRecPtr etl_stream_position(EtlStream *stream);

/* Put HANDOVER records for all tables of the group that are not parked. */
extern void etl_stream_handover(EtlStream *stream, XLogRecPtr owned_from);

/* Called while the ring is full (at most every 250 ms). */
extern void etl_stream_set_idle(EtlStream *stream, EtlQueueIdle idle, void *arg);

#endif							/* ETL_STREAM_H */
