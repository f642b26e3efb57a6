/*-------------------------------------------------------------------------
 *
 * sync_lock.c
 *	  Lock the tables of a copy, and compare them with the snapshot.
 *
 * A table that was changed between snapshot and lock would be read under
 * another shape, or as empty, without any error; a partition that came or went
 * in between would be missing.  So each is compared, and if anything differs
 * the attempt begins again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_class.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "server/worker.h"
#include "source/partition.h"
#include "source/snapshot.h"
#include "sync/sync.h"

typedef enum Locked
{
	LOCKED,
	LOCK_LATER,					/* somebody has it, or it was changed */
	LOCK_GONE
} Locked;

/*
 * Lock one relation, a table of the group or a partition of one, and see
 * whether it is still what the snapshot knows.
 */
static Locked
lock_relation(EtlSyncGroup *group, EtlSyncTable *table, Oid relid, List *touched, double *rows)
{
	MemoryContext context = MemoryContextSwitchTo(group->context);
	Relation	relation;
	bool		matches;

	group->locked = lappend_oid(group->locked, relid);
	MemoryContextSwitchTo(context);
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
	{
		etl_sync_waiting(ETL_WAIT_LOCK);
		return LOCK_LATER;
	}
	relation = try_table_open(relid, NoLock);
	if (relation == NULL)
		return LOCK_GONE;
	matches = etl_snapshot_matches(relation) &&
		!list_member_oid(touched, relid) && !list_member_oid(touched, InvalidOid);
	if (RELKIND_HAS_STORAGE(relation->rd_rel->relkind))
		*rows += Max(relation->rd_rel->reltuples, 0);
	table_close(relation, NoLock);
	if (!matches)
		ereport(LOG,
				(errmsg("table \"%s.%s\" was changed while its initial sync began",
						table->schema_name, table->table_name),
				 errdetail("The initial sync starts again.")));
	return matches ? LOCKED : LOCK_LATER;
}

bool
etl_sync_lock_tables(EtlSyncGroup *group, List *touched)
{
	for (int i = 0; i < group->ntables; i++)
	{
		EtlSyncTable *table = &group->tables[i];
		double		rows = 0;
		Locked		locked;
		List	   *tree;

		if (table->left)
			continue;
		locked = lock_relation(group, table, table->relid, touched, &rows);
		if (locked == LOCK_GONE)
		{
			table->left = true;
			continue;
		}
		if (locked == LOCK_LATER)
			return false;

		/* the root's lock keeps partitions from going; one that comes is a change that catch-up sees */
		tree = etl_partition_tree(table->relid);
		for (int j = 1; j < list_length(tree); j++)
			if (lock_relation(group, table, list_nth_oid(tree, j), touched, &rows) != LOCKED)
				return false;
		list_free(tree);
		pg_atomic_write_u64(&etl_shared->tables[table->slot].rows_estimated, (uint64) rows);
	}
	return true;
}
