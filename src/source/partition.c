/*-------------------------------------------------------------------------
 *
 * partition.c
 *	  Partitions and the tables that they are published as.
 *
 * Columns of a leaf and of its root have equal names and types, but not
 * always equal places: a leaf may have been a table of its own before.  Values
 * of columns that were added later with a default are known to the leaf's
 * descriptor alone (attmissingval), so a tuple is always taken apart by it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/partition.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "executor/tuptable.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "source/partition.h"

/* ----------
 * Trees
 * ----------
 */

List *
etl_partition_ancestors(Oid relid)
{
	return get_rel_relispartition(relid) ? get_partition_ancestors(relid) : NIL;
}

/* Append the partitions of "parent" to "tree". */
static List *
add_partitions(List *tree, Relation inherits, Oid parent)
{
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(parent));
	scan = systable_beginscan(inherits, InheritsParentIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_inherits form = (Form_pg_inherits) GETSTRUCT(tuple);

		if (!form->inhdetachpending)
			tree = lappend_oid(tree, form->inhrelid);
	}
	systable_endscan(scan);
	return tree;
}

List *
etl_partition_tree(Oid relid)
{
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);
	List	   *tree = list_make1_oid(relid);

	/* the list grows while it is walked */
	for (int i = 0; i < list_length(tree); i++)
		if (get_rel_relkind(list_nth_oid(tree, i)) == RELKIND_PARTITIONED_TABLE)
			tree = add_partitions(tree, inherits, list_nth_oid(tree, i));
	table_close(inherits, AccessShareLock);
	return tree;
}

static Oid
toast_of(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			toast = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		toast = ((Form_pg_class) GETSTRUCT(tuple))->reltoastrelid;
		ReleaseSysCache(tuple);
	}
	return toast;
}

/* The name of a TOAST table says whose it is; whether that is so is asked. */
Oid
etl_partition_of_toast(Oid relid, Oid toast)
{
	char	   *name = get_rel_name(toast);
	Oid			owner;

	if (toast_of(relid) == toast)
		return relid;
	if (name == NULL || sscanf(name, "pg_toast_%u", &owner) != 1 || toast_of(owner) != toast ||
		!list_member_oid(etl_partition_ancestors(owner), relid))
		return InvalidOid;
	return owner;
}

bool
etl_partition_has_missing(Oid root, const char *column)
{
	List	   *tree = etl_partition_tree(root);
	bool		found = false;
	ListCell   *lc;

	foreach(lc, tree)
	{
		HeapTuple	tuple = found ? NULL : SearchSysCacheAttName(lfirst_oid(lc), column);

		if (!HeapTupleIsValid(tuple))
			continue;
		found = ((Form_pg_attribute) GETSTRUCT(tuple))->atthasmissing;
		ReleaseSysCache(tuple);
	}
	list_free(tree);
	return found;
}

/*
 * Rows of pg_class and pg_type are replaced by many commands; those of system
 * columns never, so they carry the transaction that made the relation.
 */
bool
etl_partition_is_new(Oid relid)
{
	Snapshot	snapshot = GetCatalogSnapshot(AttributeRelationId);
	HeapTuple	tuple = SearchSysCache2(ATTNUM, ObjectIdGetDatum(relid),
										Int16GetDatum(SelfItemPointerAttributeNumber));
	TransactionId xmin;

	if (!HeapTupleIsValid(tuple))
		return false;
	xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	ReleaseSysCache(tuple);

	/* a historic snapshot has the transaction and its subtransactions there */
	Assert(HistoricSnapshotActive());
	for (int32 i = 0; i < snapshot->subxcnt; i++)
		if (TransactionIdEquals(snapshot->subxip[i], xmin))
			return true;
	return false;
}

/* ----------
 * Rows
 * ----------
 */
struct EtlRowMap
{
	TupleTableSlot *leaf;		/* to take tuples apart */
	int			natts;			/* of the root */
	AttrNumber *from;			/* by attribute of the root: the leaf's, or 0 */
};

/* The leaf's column of that name. */
static AttrNumber
find_column(TupleDesc leaf, const Form_pg_attribute wanted)
{
	for (int i = 0; i < leaf->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(leaf, i);

		if (!att->attisdropped && strcmp(NameStr(att->attname), NameStr(wanted->attname)) == 0)
			return att->attnum;
	}
	elog(ERROR, "partition has no column \"%s\"", NameStr(wanted->attname));
}

EtlRowMap *
etl_row_map_create(Relation leaf, TupleDesc root)
{
	EtlRowMap  *map = palloc0_object(EtlRowMap);
	TupleDesc	desc = CreateTupleDescCopyConstr(RelationGetDescr(leaf));

	map->leaf = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	map->natts = root->natts;
	map->from = palloc0_array(AttrNumber, Max(root->natts, 1));
	for (int i = 0; i < root->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(root, i);

		if (!att->attisdropped)
			map->from[i] = find_column(desc, att);
	}
	return map;
}

void
etl_row_map_store(EtlRowMap *map, HeapTuple tuple, TupleTableSlot *row)
{
	ExecStoreHeapTuple(tuple, map->leaf, false);
	slot_getallattrs(map->leaf);
	ExecClearTuple(row);
	for (int i = 0; i < map->natts; i++)
	{
		AttrNumber	from = map->from[i];

		row->tts_isnull[i] = from == 0 || map->leaf->tts_isnull[from - 1];
		row->tts_values[i] = from == 0 ? (Datum) 0 : map->leaf->tts_values[from - 1];
	}
	ExecStoreVirtualTuple(row);
}

AttrNumber
etl_row_map_attnum(const EtlRowMap *map, AttrNumber leaf)
{
	for (int i = 0; i < map->natts; i++)
		if (map->from[i] == leaf)
			return i + 1;
	return InvalidAttrNumber;
}

bool
etl_row_map_identifies(const EtlRowMap *map, Relation leaf, const EtlShape *root)
{
	Oid			index_oid;
	Relation	index;
	bool		all = true;

	if (leaf->rd_rel->relreplident == REPLICA_IDENTITY_FULL)
		return true;
	index_oid = RelationGetReplicaIndex(leaf);
	if (!OidIsValid(index_oid) || root->nkeys == 0)
		return false;
	index = RelationIdGetRelation(index_oid);
	if (!RelationIsValid(index))
		return false;
	for (int i = 0; i < root->ncolumns; i++)
	{
		bool		found = root->columns[i].key_position == 0;

		for (int j = 0; j < index->rd_index->indnkeyatts && !found; j++)
			found = index->rd_index->indkey.values[j] == map->from[root->columns[i].attnum - 1];
		all = all && found;
	}
	RelationClose(index);
	return all;
}
