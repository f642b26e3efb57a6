/*-------------------------------------------------------------------------
 *
 * ownership.h
 *	  Who delivers a transaction's changes of a table: apply or sync?
 *
 * The hand-over needs no waiting and no message, only one order, given by the
 * pipeline's lock:
 *
 *	 apply	etl_ownership_decide(end of the transaction), and only then
 *			etl_ownership_lookup() for its tables
 *	 sync	etl_ownership_take(s), with everything before s durable; it
 *			succeeds only while decided <= s
 *
 * Every transaction is then delivered once: with commit_lsn < s by the sync
 * worker, else by apply.  After decide(), a lookup for that transaction gives
 * the same answer until the transaction's end, however late it is asked: what
 * takes over meanwhile does so from s >= decided on.
 *
 * commit_lsn is the start of a commit record, s and decided are ends.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_OWNERSHIP_H
#define ETL_OWNERSHIP_H

#include "server/shmem.h"

/*
 * Apply: every transaction that ends at or before "end_lsn" has been decided.
 * In begin_cb with the end of the transaction's commit record, when idle with
 * the end of what was read, and once before it starts reading with the
 * position it starts from.  It never falls back, also when apply reads again
 * from an older position: so a replay delivers no table of a transaction that
 * the first run did not deliver, and the event of a TRUNCATE of several tables
 * never comes with more of them under the same id.
 */
extern void etl_ownership_decide(EtlPipelineShared *pipeline, XLogRecPtr end_lsn);

/* Apply: the pipeline's slot is about to be made: nothing is decided. */
extern void etl_ownership_forget(EtlPipelineShared *pipeline);

/*
 * Apply: the generation that a change committed at "commit_lsn" goes to.
 * False when it is not apply's to deliver: no generation handed over yet,
 * committed before the hand-over (sync delivered it), table parked, excluded,
 * dropped, or the slot is not "relid"'s any more.
 */
extern bool etl_ownership_lookup(EtlPipelineShared *pipeline, uint32 slot, Oid relid,
								 XLogRecPtr commit_lsn, EtlOwnership *owned);

/*
 * Under constant load apply is always a little ahead of what sync has made
 * durable, and the hand-over could be put off for ever.  Sync then asks for a
 * short hold, about one round trip of the destination: apply, between WAL records, reads
 * on only when etl_ownership_held() is 0.  It gives the milliseconds left.
 */
extern void etl_ownership_hold(EtlPipelineShared *pipeline, int ms);	/* 0 ends it */
extern long etl_ownership_held(EtlPipelineShared *pipeline);

/*
 * Apply: its last bracket has read shapes and table rows as of "version", the
 * value of tables_version read before that bracket began.  Sync hands a table
 * over only after its base shape has been seen by apply.
 */
extern void etl_ownership_seen(EtlPipelineShared *pipeline, uint64 version);

/*
 * Sync waits until "version" has been seen: apply does not put off its next
 * bracket then.
 */
extern void etl_ownership_want_seen(EtlPipelineShared *pipeline, uint64 version);
extern bool etl_ownership_is_wanted(const EtlPipelineShared *pipeline, uint64 seen);

/* One table of a sync worker's group, for etl_ownership_take(). */
typedef struct EtlOwnershipClaim
{
	uint32		slot;			/* table slot index */
	Oid			relid;
	uint32		generation;		/* that was copied */
	uint64		shape_hash;		/* of its base shape */
	bool		taken;			/* out: false when the table has left the
								 * group (parked, dropped, newer generation) */
} EtlOwnershipClaim;

/*
 * Sync: hand all claims over at "s", the end of what it has decoded.
 * Everything before s must be durable.  Returns false, with nothing changed,
 * when apply has decided a transaction past s: decode further, try again.
 */
extern bool etl_ownership_take(EtlPipelineShared *pipeline, int nclaims,
							   EtlOwnershipClaim *claims, XLogRecPtr s);

/*
 * Writer: what take() has done stands in the table slot (state sync_done,
 * owned[0], claimed counters), and everything before owned_from is durable.
 * So if the sync worker dies before its HANDOVER record arrives, the writer
 * can do what that record asks for (publish, store) without it.  It must
 * store a hand-over before it reports anything of apply's durable past
 * owned_from.
 *
 * revert() is for the case that the new generation cannot be published at
 * all: the older generation owns the table again, without what was delivered
 * to the new one, so a resync must follow.
 */
extern void etl_ownership_revert(EtlPipelineShared *pipeline, uint32 slot, uint32 generation);

/* Writer: apply's durable position has passed owned_from: forget the older generation. */
extern void etl_ownership_settle(EtlPipelineShared *pipeline, uint32 slot, uint32 generation);

#endif							/* ETL_OWNERSHIP_H */
