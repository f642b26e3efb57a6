/*-------------------------------------------------------------------------
 *
 * copy.h
 *	  All rows of one table, under the active snapshot, as its reader sees
 *	  them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_COPY_H
#define ETL_COPY_H

#include "etl/destination.h"
#include "utils/relcache.h"

/*
 * What becomes of one row.  "row" holds all physical attributes of the table:
 * published ones by attnum, the others NULL, nothing stored out of line.  It
 * lives in CurrentMemoryContext, which is reset after the call.  Returns
 * false to end the copy here.
 */
typedef bool (*EtlCopyRow) (void *arg, TupleTableSlot *row);

/*
 * Read the shape's columns of the open relation and call "row" for each row
 * that passes "filter" (filter.h; NULL: all).  Returns true when all rows were read, false when "row" ended it.
 *
 * Privileges are those of "owner": ERROR 42501 when it may not SELECT these
 * columns, or when row-level security would filter the rows.  Needs an open
 * transaction with an active snapshot.
 */
extern bool etl_copy_table(Relation relation, const EtlShape *shape, const char *filter,
						   Oid owner, EtlCopyRow row, void *arg);

/*
 * Has another session been waiting for a lock on one of these tables for at
 * least "ms"?  Looks at the whole lock table: not for every row.
 */
extern bool etl_copy_in_the_way(const List *relids, int ms);

#endif							/* ETL_COPY_H */
