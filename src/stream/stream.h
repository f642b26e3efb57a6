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
	EtlShape   *shape;			/* newest known; the base shape, as copied, at first */
	List	   *versions;		/* all known ones, or NIL: "shape" alone */
	const EtlOptions *options;	/* etl_config_table_options() */
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

/*
 * Wake the writer for what was put.  A commit does not do it: the caller does,
 * when it has read all there is, or after a moment.
 */
extern void etl_stream_flush(EtlStream *stream);

/* Emit PROGRESS for a position before which nothing is open, and wake the writer. */
extern void etl_stream_progress(EtlStream *stream, XLogRecPtr lsn);

/* End of the last transaction or PROGRESS put into the queue. */
extern XLogRecPtr etl_stream_position(EtlStream *stream);

/* Put HANDOVER records for all tables of the group that are not parked. */
extern void etl_stream_handover(EtlStream *stream, XLogRecPtr owned_from);

/*
 * Apply, in a decoder bracket: rule versions from etl.rule_history, or, when
 * there are none, the publication as it is now (and put as the first RULES
 * record).  Returns false when there is no such publication.
 */
extern bool etl_stream_load_rules(EtlStream *stream);

/*
 * Apply, in a decoder bracket: shapes and options of the tables that have a
 * slot.  Shapes of a generation must have been seen before apply may own it.
 */
extern void etl_stream_refresh(EtlStream *stream);

/*
 * SHAPE records put so far: sync, which must let apply see a shape before it
 * hands the table over, learns of new ones here.
 */
extern uint64 etl_stream_shapes_put(EtlStream *stream);

/*
 * An ERROR is on its way out of etl_decoder_step(): if it came from encoding a
 * change and is not a passing trouble, note the change as poison.
 */
extern void etl_stream_note_error(EtlStream *stream, const ErrorData *error);

/* Called while the ring is full (at most every 250 ms). */
extern void etl_stream_set_idle(EtlStream *stream, EtlQueueIdle idle, void *arg);

#endif							/* ETL_STREAM_H */
