/*-------------------------------------------------------------------------
 *
 * startpoint.h
 *	  Where a new slot begins to deliver, and what it must not see too old.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_STARTPOINT_H
#define ETL_STARTPOINT_H

#include "nodes/pg_list.h"
#include "replication/logical.h"

/*
 * Find the start point of the acquired slot; waits for every transaction of
 * the server that runs now.  Returns, in CurrentMemoryContext, the relations
 * of this database (InvalidOid: any) whose catalog rows were changed by
 * transactions that ended meanwhile.  Decoding from this start point may see
 * those relations as they were before, until the catalogs change again.
 *
 * Memory context and resource owner are the caller's again afterwards.
 */
extern List *etl_startpoint_find(LogicalDecodingContext *decoding);

/*
 * Move the start point to a later place from which all catalogs are seen as
 * they are; waits again.  Returns it.  The context is of no use afterwards.
 */
extern XLogRecPtr etl_startpoint_move(LogicalDecodingContext *decoding);

#endif							/* ETL_STARTPOINT_H */
