/*-------------------------------------------------------------------------
 *
 * partition.h
 *	  Partitions and the tables that they are published as.
 *
 * With publish_via_partition_root the table that a user sees is a partitioned
 * one, the root, and the WAL knows its leaves alone.  Which leaf belongs where
 * is read from the catalogs in force: historic ones in a decoding callback,
 * so that a partition made and filled in one transaction has its root.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_PARTITION_H
#define ETL_PARTITION_H

#include "access/htup.h"
#include "etl/destination.h"
#include "utils/relcache.h"

/*
 * Partitioned tables above a partition, nearest first; NIL for everything
 * else, and for a partition that is being detached.
 */
extern List *etl_partition_ancestors(Oid relid);

/*
 * A partitioned table and all that is below it, subpartitioned tables
 * included; partitions that are being detached are left out.
 */
extern List *etl_partition_tree(Oid relid);

/*
 * The table that a TOAST table belongs to, under current catalogs, if it is
 * "relid" or a partition somewhere below it; else InvalidOid.
 */
extern Oid	etl_partition_of_toast(Oid relid, Oid toast);

/*
 * Do old rows of a partitioned table have a value in this later column?  The
 * root's own descriptor does not know: it has no rows.
 */
extern bool etl_partition_has_missing(Oid root, const char *column);

/* In a callback: was the relation made by the transaction being replayed? */
extern bool etl_partition_is_new(Oid relid);

/* How rows of a leaf become rows of its root. */
typedef struct EtlRowMap EtlRowMap;

/* In CurrentMemoryContext, whose reset ends its life. */
extern EtlRowMap *etl_row_map_create(Relation leaf, TupleDesc root);

/*
 * Put a leaf's tuple into "row", a virtual slot of the root's descriptor.  The
 * values point into the tuple.
 */
extern void etl_row_map_store(EtlRowMap *map, HeapTuple tuple, TupleTableSlot *row);

/* The root's column that a column of the leaf becomes. */
extern AttrNumber etl_row_map_attnum(const EtlRowMap *map, AttrNumber leaf);

/*
 * Does what the WAL holds of an old row of the leaf (its replica identity)
 * have the root's key?  A root without key needs the whole row.
 */
extern bool etl_row_map_identifies(const EtlRowMap *map, Relation leaf, const EtlShape *root);

#endif							/* ETL_PARTITION_H */
