/*-------------------------------------------------------------------------
 *
 * stream_partition.c
 *	  Tables that are published as a whole (publish_via_partition_root).
 *
 * The reorder buffer hands over changes of leaves; what is delivered are
 * changes of the root, in its shape and with its key, rules and generation.
 * Which root a leaf has is read from the historic catalogs at the change: a
 * partition that was made, or attached, within the transaction has its root
 * before any rule says so.
 *
 * The content of a root changes also without a row in the WAL: a partition
 * with rows is attached, detached, dropped or truncated.  Then the root is
 * copied again, beside the generation that goes on receiving changes.  In
 * commit_cb the rules of the partitions that the transaction touched tell of
 * it (a leaf's rule names its root, and what it was before is stored), so it
 * is found at its place, in replays too.
 *
 * Nothing is to be copied for a partition that the same transaction has made,
 * unless rows were put into it before it was attached.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "source/partition.h"
#include "stream/stream_private.h"

/* A partition, or what once was one. */
typedef struct EtlStreamLeaf
{
	Oid			relid;			/* hash key */
	List	   *ancestors;		/* OIDs, nearest first, as of "trees" */
	uint64		trees;
	uint64		transaction;	/* for which "root" was found */
	EtlStreamRelation *root;	/* or NULL */

	/* --- rows; rebuilt when stale --- */
	bool		stale;			/* invalidated since */
	EtlStreamRelation *built_for;
	uint64		builds;			/* of that root's encoder */
	MemoryContext context;		/* of the following */
	EtlRowMap  *map;
	char		identity;		/* relreplident */
	bool		identifies;		/* ... has the root's key */
} EtlStreamLeaf;

typedef struct EtlStreamPartitions
{
	HTAB	   *leaves;			/* EtlStreamLeaf by relid */
	HTAB	   *nodes;			/* OIDs above them */
	EtlStreamLeaf *last;		/* of the last lookup */
	uint64		trees;			/* counts up when any of them was invalidated */
	uint64		walks;			/* over trees, see touch_tree() */
	List	   *roots;			/* OIDs: to be copied again after this transaction */

	/* relations that got rows which went nowhere, in "stray_transaction" */
	HTAB	   *strays;
	uint64		stray_transaction;
	Oid			last_stray;
} EtlStreamPartitions;

static HTAB *
make_hash(MemoryContext context, const char *name, Size entry_size)
{
	HASHCTL		control = {0};

	control.keysize = sizeof(Oid);
	control.entrysize = entry_size;
	control.hcxt = context;
	return hash_create(name, 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

void
etl_stream_partitions_init(EtlStream *stream)
{
	EtlStreamPartitions *p = MemoryContextAllocZero(stream->context, sizeof(EtlStreamPartitions));

	p->leaves = make_hash(stream->context, "etl partitions", sizeof(EtlStreamLeaf));
	p->nodes = make_hash(stream->context, "etl partitioned tables", sizeof(Oid));
	p->trees = 1;
	stream->partitions = p;
}

/* In the relcache callback: "relid" (Invalid: everything) may be another now. */
void
etl_stream_partition_invalid(EtlStream *stream, Oid relid)
{
	EtlStreamPartitions *p = stream->partitions;
	EtlStreamLeaf *leaf;

	if (p == NULL)
		return;
	if (OidIsValid(relid))
	{
		leaf = hash_search(p->leaves, &relid, HASH_FIND, NULL);
		if (leaf)
			leaf->stale = true;
		if (leaf || hash_search(p->nodes, &relid, HASH_FIND, NULL))
			p->trees++;
	}
	else
	{
		HASH_SEQ_STATUS scan;

		hash_seq_init(&scan, p->leaves);
		while ((leaf = hash_seq_search(&scan)) != NULL)
			leaf->stale = true;
		p->trees++;
	}
}

/* ----------
 * From a leaf to its root
 * ----------
 */
static void
read_ancestors(EtlStream *stream, EtlStreamLeaf *leaf)
{
	EtlStreamPartitions *p = stream->partitions;
	List	   *ancestors;
	MemoryContext caller;
	ListCell   *lc;

	/* first, since reading may meet invalidations */
	leaf->trees = p->trees;
	ancestors = etl_partition_ancestors(leaf->relid);
	caller = MemoryContextSwitchTo(stream->context);
	list_free(leaf->ancestors);
	leaf->ancestors = list_copy(ancestors);
	MemoryContextSwitchTo(caller);
	foreach(lc, ancestors)
		hash_search(p->nodes, &lfirst_oid(lc), HASH_ENTER, NULL);
}

static EtlStreamRelation *
find_root(EtlStream *stream, EtlStreamLeaf *leaf)
{
	EtlStreamRelation *root = NULL;
	ListCell   *lc;

	foreach(lc, leaf->ancestors)
	{
		EtlStreamRelation *entry = etl_stream_relation(stream, lfirst_oid(lc), false);

		if (entry == NULL)
			continue;
		etl_stream_fix(stream, entry);
		if (entry->rule && etl_rule_is_table(entry->rule))
			root = entry;
	}
	return root;
}

/*
 * The table that the partition "relid" is published as in this transaction,
 * fixed for it, with its ->leaf set; NULL when it is not a part of any.
 */
EtlStreamRelation *
etl_stream_root(EtlStream *stream, Oid relid)
{
	EtlStreamPartitions *p = stream->partitions;
	EtlStreamLeaf *leaf = p->last;
	EtlStreamRelation *root;
	bool		found;

	if (leaf == NULL || leaf->relid != relid)
	{
		leaf = hash_search(p->leaves, &relid, HASH_ENTER, &found);
		if (!found)
		{
			memset(leaf, 0, sizeof(*leaf));
			leaf->relid = relid;
			leaf->stale = true;
		}
		p->last = leaf;
	}
	if (leaf->transaction != stream->transaction || leaf->trees != p->trees)
	{
		if (leaf->trees != p->trees)
			read_ancestors(stream, leaf);
		root = find_root(stream, leaf);

		/* rows of before went to another one: attached here, they count */
		if (leaf->transaction == stream->transaction && leaf->root != root)
			etl_stream_note_stray(stream, relid);
		leaf->transaction = stream->transaction;
		leaf->root = root;
	}
	if (leaf->root)
		leaf->root->leaf = leaf;
	return leaf->root;
}

static void
build_map(EtlStream *stream, EtlStreamRelation *entry, EtlStreamLeaf *leaf, Relation relation)
{
	MemoryContext old = leaf->context;
	MemoryContext caller;

	leaf->stale = false;
	leaf->built_for = entry;
	leaf->builds = entry->builds;
	leaf->context = AllocSetContextCreate(stream->context, "etl partition", ALLOCSET_SMALL_SIZES);
	caller = MemoryContextSwitchTo(leaf->context);
	leaf->map = etl_row_map_create(relation, entry->new_row->tts_tupleDescriptor);
	leaf->identity = relation->rd_rel->relreplident;
	leaf->identifies = etl_row_map_identifies(leaf->map, relation, entry->shape);
	MemoryContextSwitchTo(caller);
	if (old)
		MemoryContextDelete(old);
}

/*
 * The WAL does not have what would tell which row of the root was changed, and
 * never will: a retry is a new copy, also under on_error = stop.
 */
static void
park_unidentified(EtlStream *stream, EtlStreamRelation *entry, Relation relation, uint64 ordinal)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(relation));
	const char *name = RelationGetRelationName(relation);
	bool		stop = entry->stop_on_error;

	entry->stop_on_error = false;
	etl_stream_park(stream, entry, ordinal, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
					psprintf("the replica identity of partition \"%s.%s\" does not have the key of table \"%s.%s\"",
							 schema, name, entry->shape->schema_name, entry->shape->table_name),
					"Use ALTER TABLE ... REPLICA IDENTITY FULL for the partition, or an index over the key of the partitioned table.");
	entry->stop_on_error = stop;
}

/*
 * Bring root and leaf up to date for a change of the leaf; "identified": an
 * older row must be found by it.  False when it is not to be delivered.
 */
bool
etl_stream_resolve_root(EtlStream *stream, EtlStreamRelation *entry, Relation relation,
						bool identified, uint64 ordinal)
{
	EtlStreamLeaf *leaf = entry->leaf;

	if (entry->stale || entry->shape == NULL ||
		entry->shape->generation != entry->owned.generation ||
		(entry->rule->filter && entry->filter == NULL))
	{
		Relation	root = RelationIdGetRelation(entry->relid);

		if (!RelationIsValid(root))
			elog(ERROR, "partitioned table %u is gone", entry->relid);
		etl_stream_resolve_shape(stream, entry, root);
		if (entry->deliver)
			(void) etl_stream_filter(stream, entry, root);
		RelationClose(root);
	}
	if (!entry->deliver)
		return false;
	if (leaf->stale || leaf->built_for != entry || leaf->builds != entry->builds)
		build_map(stream, entry, leaf, relation);
	if (identified && !leaf->identifies)
	{
		park_unidentified(stream, entry, relation, ordinal);
		return false;
	}
	return true;
}

/* Put a tuple of a table, or of a root's leaf, into one of the table's slots. */
void
etl_stream_store_row(EtlStreamRelation *entry, TupleTableSlot *row, HeapTuple tuple)
{
	if (entry->rule->partitioned)
	{
		etl_row_map_store(entry->leaf->map, tuple, row);
		return;
	}
	ExecStoreHeapTuple(tuple, row, false);
}

/* The replica identity by which old rows were written. */
char
etl_stream_identity(const EtlStreamRelation *entry)
{
	return entry->rule->partitioned ? entry->leaf->identity : entry->shape->replica_identity;
}

/* ----------
 * What changes a root's content without a row
 * ----------
 */

/*
 * A row went into a relation that is no table of the pipeline.  It counts if
 * the relation is attached later in the same transaction.
 */
void
etl_stream_note_stray(EtlStream *stream, Oid relid)
{
	EtlStreamPartitions *p = stream->partitions;

	if (p->stray_transaction != stream->transaction)
	{
		if (p->strays)
			hash_destroy(p->strays);
		p->strays = NULL;
		p->stray_transaction = stream->transaction;
		p->last_stray = InvalidOid;
	}
	if (p->last_stray == relid)
		return;
	if (p->strays == NULL)
		p->strays = make_hash(stream->context, "etl stray rows", sizeof(Oid));
	hash_search(p->strays, &relid, HASH_ENTER, NULL);
	p->last_stray = relid;
}

static bool
is_stray(EtlStream *stream, Oid relid)
{
	EtlStreamPartitions *p = stream->partitions;

	return p->strays && p->stray_transaction == stream->transaction &&
		hash_search(p->strays, &relid, HASH_FIND, NULL) != NULL;
}

static uint32
abilities_of(EtlStream *stream, EtlStreamRelation *entry)
{
	return etl_table_abilities(stream->config->routine, etl_stream_options(stream, entry));
}

/* By option; and a table that is a log of changes has what was there once. */
static bool
keeps_detached(EtlStream *stream, EtlStreamRelation *entry)
{
	const uint32 log = ETL_HAS_SCHEMAS | ETL_KEEPS_OLD_ROWS;

	return (abilities_of(stream, entry) & log) == log ||
		strcmp(etl_option_text(etl_stream_options(stream, entry), "on_partition_detached"), "keep") == 0;
}

/* One new copy covers all that a transaction did: it begins behind it. */
static void
resync_root(EtlStream *stream, EtlStreamRelation *entry)
{
	if (entry->resynced == stream->transaction)
		return;
	entry->resynced = stream->transaction;
	etl_stream_put_resync(stream, entry, ETL_COPY_RESYNC);
}

/*
 * One of "relations", which a statement truncates, is no table: if it is a
 * part of one that is not truncated as a whole, that has lost some rows.
 */
void
etl_stream_truncated_leaf(EtlStream *stream, Oid relid, int nrelations, Relation *relations)
{
	EtlStreamRelation *entry;

	if (stream->partitions == NULL || !get_rel_relispartition(relid))
		return;
	entry = etl_stream_root(stream, relid);
	if (entry == NULL || !entry->deliver || (entry->rule->operations & ETL_PUBLISH_TRUNCATE) == 0 ||
		(abilities_of(stream, entry) & ETL_TRUNCATE_IS_ROW) != 0)
		return;
	for (int i = 0; i < nrelations; i++)
		if (RelationGetRelid(relations[i]) == entry->relid)
			return;
	resync_root(stream, entry);
}

/* The root has gained or lost rows ("leaving") in this transaction. */
static void
want_resync(EtlStream *stream, Oid relid, bool leaving)
{
	EtlStreamPartitions *p = stream->partitions;
	EtlStreamRelation *entry = etl_stream_relation(stream, relid, false);
	MemoryContext caller;

	if (entry == NULL || (leaving && keeps_detached(stream, entry)))
		return;
	caller = MemoryContextSwitchTo(stream->context);
	p->roots = list_append_unique_oid(p->roots, relid);
	MemoryContextSwitchTo(caller);
}

/* Nobody knows any more what a partition was before: all tables it may concern. */
static void
want_all(EtlStream *stream)
{
	for (int i = 0; i < stream->ntables; i++)
		want_resync(stream, stream->tables[i].relid, false);
}

/*
 * In commit_cb: "rule" is what the publication says now of a relation that
 * the transaction touched.
 */
void
etl_stream_compare_root(EtlStream *stream, const EtlRule *rule)
{
	EtlStreamRelation *entry = etl_stream_relation(stream, rule->relid, false);
	const EtlRule *before = etl_stream_rule_in_force(stream, entry);
	Oid			old_root = before && before->published ? before->root : InvalidOid;
	Oid			new_root = rule->published ? rule->root : InvalidOid;

	/*
	 * A sync worker whose pair was started again has the rules that apply has
	 * stored, which may be ahead of it and without what they were before.
	 */
	if (before == NULL && stream->is_sync && entry && entry->rules != NIL)
		want_all(stream);
	else if (old_root == new_root)
	{
		if (OidIsValid(new_root) && before->excluded != rule->excluded)
			want_resync(stream, new_root, false);
	}
	else
	{
		if (OidIsValid(old_root))
			want_resync(stream, old_root, true);
		if (OidIsValid(new_root) &&
			(rule->excluded || !etl_partition_is_new(rule->relid) || is_stray(stream, rule->relid)))
			want_resync(stream, new_root, false);
	}
}

static bool
is_whole(const EtlRule *rule)
{
	return rule && etl_rule_is_table(rule) && rule->partitioned;
}

/* What held of the relation before this transaction. */
static const EtlRule *
known_rule(EtlStream *stream, Oid relid)
{
	return etl_stream_rule_in_force(stream, etl_stream_relation(stream, relid, false));
}

/* The partitioned table that stands for "relid", itself if there is none. */
static Oid
top_of(EtlStream *stream, Oid relid)
{
	Oid			top = relid;
	ListCell   *lc;

	foreach(lc, etl_partition_ancestors(relid))
		if (is_whole(known_rule(stream, lfirst_oid(lc))))
			top = lfirst_oid(lc);
	return top;
}

/*
 * Touch what came into the tree of "top", and what has left it.  What is
 * invalidated with a subtree that comes or goes differs between releases, and
 * a partition that is being detached may not be at all.
 */
static void
touch_tree(EtlStream *stream, Oid top)
{
	bool		whole = is_whole(known_rule(stream, top));
	uint64		walk = ++stream->partitions->walks;
	HASH_SEQ_STATUS scan;
	EtlStreamRelation *entry;
	ListCell   *lc;

	foreach(lc, etl_partition_tree(top))
	{
		const EtlRule *rule = known_rule(stream, lfirst_oid(lc));
		Oid			root = rule && rule->published ? rule->root : InvalidOid;

		if (root != (whole ? top : InvalidOid) && lfirst_oid(lc) != top)
			etl_stream_touch(stream, lfirst_oid(lc));
		entry = etl_stream_relation(stream, lfirst_oid(lc), false);
		if (entry)
			entry->walk = walk;
	}
	if (!whole)
		return;
	hash_seq_init(&scan, stream->relations);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		const EtlRule *rule = etl_stream_rule_in_force(stream, entry);

		if (rule && rule->published && rule->root == top && entry->walk != walk)
			etl_stream_touch(stream, entry->relid);
	}
}

/* In commit_cb, before what was touched is looked at. */
void
etl_stream_touch_trees(EtlStream *stream)
{
	List	   *tops = NIL;
	ListCell   *lc;

	foreach(lc, stream->touched)
		if (get_rel_relkind(lfirst_oid(lc)) == RELKIND_PARTITIONED_TABLE)
			tops = list_append_unique_oid(tops, top_of(stream, lfirst_oid(lc)));
	foreach(lc, tops)
		touch_tree(stream, lfirst_oid(lc));
	list_free(tops);
}

/* In commit_cb, when rules and shapes are known. */
void
etl_stream_resync_roots(EtlStream *stream)
{
	EtlStreamPartitions *p = stream->partitions;
	List	   *roots = p->roots;
	ListCell   *lc;

	p->roots = NIL;
	foreach(lc, roots)
	{
		EtlStreamRelation *entry = etl_stream_relation(stream, lfirst_oid(lc), false);

		etl_stream_fix(stream, entry);
		if (entry->deliver && is_whole(etl_stream_rule_after(stream, entry)))
			resync_root(stream, entry);
	}
	list_free(roots);
}
