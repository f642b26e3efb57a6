/*-------------------------------------------------------------------------
 *
 * batch.h
 *	  Lanes of batches: collect, seal, complete, send, classify, bisect, retry.
 *
 * A lane is a FIFO of batches and steps that must reach the destination in
 * order.  The writer has one lane a table and queue (or one a queue, for
 * kinds with ETL_BATCH_PIPELINE); a copying sync worker has one lane.  Both
 * use this file, so copy and stream share batching, answers, bisecting and
 * retries.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_BATCH_H
#define ETL_BATCH_H

#include "catalog/config.h"
#include "pipeline/queue.h"

/* In EtlItem.flags, besides those of destination.h. */
#define ETL_ITEM_FILLED 0x4000	/* complete(): data is a chunk, taken over */
#define ETL_ITEM_APART	0x2000	/* incomplete, and an earlier row of its batch
								 * may be one that it can be completed from */

typedef struct EtlSender EtlSender; /* all lanes of a process, one connection */
typedef struct EtlLane EtlLane;

/*
 * What the owner of the sender decides.  Called outside any transaction.
 */
typedef struct EtlSenderCallbacks
{
	/*
	 * A single row or event is refused, or a table cannot go on.  "table" is
	 * the item's, ETL_NO_TABLE for a truncate of several tables (found by
	 * lsn and ordinal).  May call etl_sender_halt(): then the row stays, and
	 * nothing behind it is sent.
	 */
	void		(*park) (void *arg, uint32 table, int sqlstate, const char *message, const char *hint,
						 XLogRecPtr lsn, uint64 ordinal);
	/* The pipeline cannot go on. */
	void		(*fail) (void *arg, int sqlstate, const char *message, const char *hint);
	/* Has this table left the stream (its items are skipped)? */
	bool		(*skipped) (void *arg, uint32 table);
	/* A batch is durable. */
	void		(*delivered) (void *arg, const EtlBatch *batch);
	/*
	 * Rows to be sent next, everything before them being durable, of which
	 * some are incomplete: fill them in, or park their tables.  An item that
	 * gets a chunk of its own is marked ETL_ITEM_FILLED.  ETL_TOO_LARGE: ask
	 * for fewer rows.  May be NULL.
	 */
	void		(*complete) (void *arg, EtlItem *items, int nitems, EtlResult *result);
	/* The first failure of a row that will be tried again (may be NULL). */
	void		(*trouble) (void *arg, const EtlResult *result);
} EtlSenderCallbacks;

extern EtlSender *etl_sender_create(const EtlConfig *config, EtlConnection *connection,
									const EtlSenderCallbacks *callbacks, void *arg);

/* "table" as batches refer to it; NULL for a pipeline-wide lane. */
extern EtlLane *etl_lane_create(EtlSender *sender, EtlTable *table, EtlPhase phase);
extern void etl_lane_destroy(EtlLane *lane);

/* Table of what is appended from now on; seals what was appended before. */
extern void etl_lane_set_table(EtlLane *lane, EtlTable *table);

/* A number for etl_sender_oldest(): lanes of one queue have the same one. */
extern void etl_lane_set_group(EtlLane *lane, int group);

/*
 * Append an item.  "position" is the ring position (or any growing number)
 * where its record begins: the bytes stay in use until it is durable.  Seals
 * the open batch when it is full.  "owned": item->data is a palloc'd chunk,
 * pfree'd with the batch.  A copy's rows carry their number in "ordinal".
 */
extern void etl_lane_append(EtlLane *lane, const EtlItem *item, uint64 position, bool owned);

/* The same for an item inside the palloc'd "chunk", pfree'd with the batch. */
extern void etl_lane_append_chunk(EtlLane *lane, const EtlItem *item, uint64 position, void *chunk);

/*
 * A step that runs alone, after all earlier batches are durable: "run" is
 * tried until it reports something else than ETL_RETRY / ETL_ENDPOINT.
 */
typedef void (*EtlStep) (void *arg, EtlResult *result);
extern void etl_lane_step(EtlLane *lane, EtlStep run, void *arg, uint32 table, uint64 position);

/* Seal the open batch now. */
extern void etl_lane_seal(EtlLane *lane);

/* Nothing open, sealed or in flight in this lane. */
extern bool etl_lane_idle(EtlLane *lane);

/* Lowest position in use by one lane; by all lanes of a group (PG_UINT64_MAX: none). */
extern uint64 etl_lane_oldest(EtlLane *lane);
extern uint64 etl_sender_oldest(EtlSender *sender, int group);

/* Bytes and items in open and sealed batches. */
extern uint64 etl_sender_bytes(EtlSender *sender);
extern uint64 etl_sender_items(EtlSender *sender);

/*
 * Start what can be started, drive transfers for at most "timeout" ms, handle
 * results.  Returns ms until something is due by itself (-1: nothing), so that
 * the caller knows how long it may sleep; *busy tells whether a transfer is
 * under way (then waiting is etl_sender_run()'s job).
 */
extern long etl_sender_run(EtlSender *sender, int timeout, bool *busy);

/* Seal every batch now (wait_for, shutdown, ring nearly full). */
extern void etl_sender_flush(EtlSender *sender);

/* While set for a group of lanes (below 32), age is no reason to keep a batch open. */
extern void etl_sender_hurry(EtlSender *sender, int group, bool hurry);

extern bool etl_sender_idle(EtlSender *sender); /* nothing open, sealed or in flight */

/* Idle but for a "begin" without rows; when halted: nothing is under way. */
extern bool etl_sender_quiet(EtlSender *sender);

/* Start nothing any more; transfers under way go on (etl_sender_in_flight()). */
extern void etl_sender_halt(EtlSender *sender);
extern int	etl_sender_in_flight(EtlSender *sender);

/* Is anything waiting for another try? */
extern bool etl_sender_retrying(EtlSender *sender);

#endif							/* ETL_BATCH_H */
