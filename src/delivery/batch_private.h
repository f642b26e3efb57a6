/*-------------------------------------------------------------------------
 *
 * batch_private.h
 *	  What batch.c (lanes), send.c (the sender) and bisect.c share.
 *
 * A lane is a list of units, oldest first: sealed batches and steps; at its
 * end may be an open batch that still takes items.  Only the first unit of a
 * lane is worked on.
 *
 * A batch is sent as one window over its items.  When the destination refuses
 * it, the window is split, and the parts are sent one after the other: the
 * windows of a batch are a stack whose top is the part that comes first.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_BATCH_PRIVATE_H
#define ETL_BATCH_PRIVATE_H

#include "lib/ilist.h"

#include "delivery/batch.h"
#include "delivery/retry.h"

/* In EtlItem.flags, the core's own: data is a chunk to be freed. */
#define ITEM_OWNED		0x8000

/* Rows with holes that are asked for at once: what fills them may be large. */
#define MOST_COMPLETED	64

/* More items would make the arrays of a batch the largest thing in memory. */
#define MOST_ITEMS		(128 * 1024)

/* Transfers that a sender has under way at most, over all lanes. */
#define MOST_IN_FLIGHT	8

typedef struct EtlWindow
{
	int			start;
	int			count;
	bool		prepared;		/* rows of parked tables are out */
	bool		completed;		/* no row has holes that could be filled */
	bool		trial;			/* to find out whether the row below it or the
								 * "begin" before it is refused */
	bool		too_large;		/* below a trial: refused for its size */
} EtlWindow;

typedef struct EtlUnit
{
	dlist_node	node;
	EtlLane    *lane;
	uint64		position;		/* of its first item that is no "begin", or the
								 * step's */

	/* a step, if run is set */
	EtlStep		run;
	void	   *arg;
	uint32		table;

	/* a batch */
	EtlTable   *target;
	EtlItem    *items;
	int			nitems;
	int			allocated;
	bool		owns;			/* an item has ITEM_OWNED, or had */
	uint64		bytes;
	List	   *chunks;			/* palloc'd, hold items' bytes */
	TimestampTz opened_at;
	TimestampTz sealed_at;
	EtlWindow  *windows;
	int			nwindows;
	bool		in_flight;
	bool		fresh;			/* the top window has not been sent yet */
	EtlBatch	batch;			/* the top window, as the kind sees it */
} EtlUnit;

struct EtlLane
{
	dlist_node	node;			/* in sender->active, when active */
	bool		active;
	EtlSender  *sender;
	EtlTable   *table;
	EtlPhase	phase;
	int			group;
	dlist_head	units;
	EtlUnit    *open;
	EtlBackoff	backoff;
	XLogRecPtr	begun;			/* transaction whose "begin" was delivered
								 * last */
	EtlItem		held;			/* "begin" without a row yet (owned), if it
								 * has data */
};

struct EtlSender
{
	MemoryContext context;
	const EtlConfig *config;
	const EtlDestinationRoutine *routine;
	EtlConnection *connection;
	const EtlSenderCallbacks *callbacks;
	void	   *arg;
	dlist_head	active;			/* lanes with anything in them */
	int			in_flight;
	uint64		bytes;
	uint64		nitems;
	uint64		next_id;
	bool		halted;
	bool		troubled;		/* a lane's trouble is shown */
	uint32		hurry;			/* groups for which max_batch_delay counts as 0 */
};

/* send.c: the same again later */
extern void etl_lane_failed(EtlLane *lane, const EtlResult *result);

/* batch.c */
extern void etl_unit_free(EtlUnit *unit);
extern void etl_lane_pop(EtlLane *lane);

/* bisect.c: all of them work on the top window of a batch */
extern bool etl_window_prepare(EtlUnit *unit);
extern void etl_window_delivered(EtlUnit *unit);

/* Send the items of the top window from "index" (within it) on in another one. */
extern void etl_window_split(EtlUnit *unit, int index);

/*
 * The destination refuses the top window, its item "index" (within the window)
 * or one not known (-1).  Returns false with "result" rewritten to
 * ETL_ENDPOINT when no table is to blame.
 */
extern bool etl_window_refused(EtlUnit *unit, EtlResult *result, int index);

#endif							/* ETL_BATCH_PRIVATE_H */
