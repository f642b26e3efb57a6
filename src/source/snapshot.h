/*-------------------------------------------------------------------------
 *
 * snapshot.h
 *	  The snapshot of an initial sync: a temporary slot and a transaction
 *	  that sees exactly what the slot will not deliver.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SNAPSHOT_H
#define ETL_SNAPSHOT_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"
#include "utils/relcache.h"

/*
 * Begin the transaction of a copy: REPEATABLE READ, read only, its snapshot
 * active, the temporary slot "slot_name" acquired.  Everything that committed
 * before the returned position is visible, everything else will be decoded.
 *
 * *touched: relations (InvalidOid: any) that the slot must not be used for,
 * see startpoint.h; lives as long as the transaction.
 *
 * Waits for every transaction of the whole server that runs now.  Must be
 * called outside a transaction.  ERRORs that only mean "later": 53400 (no
 * slot free), 40001 (too many transactions for a snapshot); the caller cleans
 * up with etl_snapshot_abandon().
 */
extern XLogRecPtr etl_snapshot_begin(const char *slot_name, List **touched);

/* End it: the snapshot and all locks are given up, the slot stays acquired. */
extern void etl_snapshot_end(void);

/*
 * Give up, in a transaction or not, after an ERROR or not: abort, drop the
 * temporary slot, empty the catalog caches.
 */
extern void etl_snapshot_abandon(void);

/*
 * Is this relation, open and locked, still what it was under the snapshot?
 * If not, a copy would read rows of another file or another shape: rewritten
 * rows are invisible to an older snapshot, without any error.
 */
extern bool etl_snapshot_matches(Relation relation);

#endif							/* ETL_SNAPSHOT_H */
