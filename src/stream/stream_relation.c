/*-------------------------------------------------------------------------
 *
 * stream_relation.c
 *	  Relations of a stream: who delivers, in which shape, with which encoder.
 *
 * Three things are decided here, each at its own pace:
 *
 *	 - per transaction (etl_stream_fix): the rule in force, and whether and to
 *	   which generation this process delivers.  Fixed once, so that a
 *	   transaction is treated as a whole.
 *	 - per invalidation (etl_stream_resolve_shape): the shape under the
 *	   historic catalogs, its version, the encoder.
 *	 - per bracket (etl_stream_refresh): what other processes have stored.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_class.h"
#include "executor/tuptable.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"

#include "catalog/options.h"
#include "catalog/store.h"
#include "schema/type_names.h"
#include "server/worker.h"
#include "source/partition.h"
#include "stream/stream_private.h"

typedef struct SlotEntry
{
	Oid			relid;			/* hash key */
	uint32		slot;
} SlotEntry;

static HTAB *
make_hash(EtlStream *stream, const char *name, Size entry_size)
{
	HASHCTL		control;

	memset(&control, 0, sizeof(control));
	control.keysize = sizeof(Oid);
	control.entrysize = entry_size;
	control.hcxt = stream->context;
	return hash_create(name, 128, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

EtlStreamRelation *
etl_stream_relation(EtlStream *stream, Oid relid, bool create)
{
	EtlStreamRelation *entry;
	bool		found;

	if (stream->last && stream->last->relid == relid)
		return stream->last;
	if (stream->relations == NULL)
		stream->relations = make_hash(stream, "etl stream relations", sizeof(EtlStreamRelation));

	entry = hash_search(stream->relations, &relid, create ? HASH_ENTER : HASH_FIND, &found);
	if (entry == NULL)
		return NULL;
	if (!found)
	{
		memset(entry, 0, sizeof(*entry));
		entry->relid = relid;
		entry->stale = true;
		entry->slot = ETL_NO_TABLE;
	}
	stream->last = entry;
	return entry;
}

/* ----------
 * Ownership, fixed for the transaction
 * ----------
 */

/* One pass over the table slots whenever any of them changed. */
static void
map_slots(EtlStream *stream)
{
	uint64		version = pg_atomic_read_u64(&etl_worker_pipeline->tables_version);
	int32		pipeline = etl_shmem_pipeline_index(etl_worker_pipeline);

	if (stream->slots && stream->slots_version == version)
		return;
	if (stream->slots)
		hash_destroy(stream->slots);
	stream->slots = make_hash(stream, "etl stream slots", sizeof(SlotEntry));
	stream->slots_version = version;

	LWLockAcquire(&etl_worker_pipeline->lock, LW_SHARED);
	for (int i = 0; i < etl_shared->ntables; i++)
	{
		EtlTableSlot *slot = &etl_shared->tables[i];

		if (slot->pipeline == pipeline && OidIsValid(slot->relid))
		{
			SlotEntry  *entry = hash_search(stream->slots, &slot->relid, HASH_ENTER, NULL);

			entry->slot = i;
		}
	}
	LWLockRelease(&etl_worker_pipeline->lock);
}

static bool
own_by_slot(EtlStream *stream, EtlStreamRelation *entry)
{
	SlotEntry  *found;

	map_slots(stream);
	found = hash_search(stream->slots, &entry->relid, HASH_FIND, NULL);
	if (found == NULL)
		return false;
	entry->slot = found->slot;
	if (!etl_ownership_lookup(etl_worker_pipeline, entry->slot, entry->relid,
							  stream->origin.commit_lsn, &entry->owned))
		return false;

	/* A table that was parked in this run comes back with a new generation. */
	if (entry->owned.generation <= entry->stopped_generation)
		return false;
	entry->parked = false;
	return true;
}

static bool
own_by_group(EtlStream *stream, EtlStreamRelation *entry)
{
	for (int i = 0; i < stream->ntables; i++)
	{
		EtlStreamTable *table = &stream->tables[i];

		if (table->relid != entry->relid)
			continue;
		entry->slot = table->slot;
		entry->owned.generation = table->generation;
		entry->owned.owned_from = InvalidXLogRecPtr;
		entry->options = table->options;
		return !table->parked && table->generation > entry->stopped_generation;
	}
	return false;
}

static const EtlRule *
newest_rule_below(const EtlStreamRelation *entry, XLogRecPtr lsn)
{
	ListCell   *lc;

	foreach(lc, entry ? entry->rules : NIL)
	{
		const EtlRule *rule = lfirst(lc);

		if (rule->from_lsn < lsn)
			return rule;
	}
	return NULL;
}

/*
 * The rule for the changes of the transaction being replayed: what this
 * transaction itself makes of it comes into force behind it.
 */
const EtlRule *
etl_stream_rule_in_force(const EtlStream *stream, const EtlStreamRelation *entry)
{
	return newest_rule_below(entry, stream->origin.commit_lsn);
}

/* The rule from this transaction's commit on. */
const EtlRule *
etl_stream_rule_after(const EtlStream *stream, const EtlStreamRelation *entry)
{
	return newest_rule_below(entry, stream->origin.commit_lsn + 1);
}

/* The table's options; those of the pipeline before a bracket has seen it. */
const EtlOptions *
etl_stream_options(const EtlStream *stream, const EtlStreamRelation *entry)
{
	return entry->options ? entry->options : stream->config->options;
}

/*
 * Decide, once for the transaction, what happens to the relation's changes.
 */
void
etl_stream_fix(EtlStream *stream, EtlStreamRelation *entry)
{
	const EtlRule *rule;

	if (entry->transaction == stream->transaction)
		return;
	entry->transaction = stream->transaction;
	entry->deliver = false;

	rule = etl_stream_rule_in_force(stream, entry);
	if (rule != entry->rule)
	{
		entry->rule = rule;
		entry->stale = true;	/* the column list may differ */
	}
	if (rule == NULL || !etl_rule_is_table(rule) || rule->excluded)
		return;
	entry->deliver = stream->is_sync ? own_by_group(stream, entry) : own_by_slot(stream, entry);
}

/* ----------
 * Shapes
 * ----------
 */

/* Remember a version of the relation's shape. */
void
etl_stream_add_version(EtlStream *stream, EtlStreamRelation *entry, const EtlShape *shape)
{
	MemoryContext caller = MemoryContextSwitchTo(stream->context);

	entry->versions = lappend(entry->versions, etl_shape_copy(shape));
	MemoryContextSwitchTo(caller);
}

/*
 * Give "built" its version: the newest known one of this generation that
 * looks like it and begins no later; else a new version.  So a replay names
 * the same version at the same place.  *previous is the version before it.
 */
static bool
find_version(EtlStream *stream, EtlStreamRelation *entry, EtlShape *built, EtlShape **previous)
{
	EtlShape   *match = NULL;
	EtlShape   *newest = NULL;
	ListCell   *lc;

	*previous = NULL;
	built->generation = entry->owned.generation;
	foreach(lc, entry->versions)
	{
		EtlShape   *known = lfirst(lc);

		if (known->generation != built->generation)
			continue;
		if (known->lsn <= stream->origin.commit_lsn && etl_shape_equal(known, built) &&
			(match == NULL || known->version > match->version))
			match = known;
		if (newest == NULL || known->version > newest->version)
			newest = known;
	}

	if (match)
	{
		built->version = match->version;
		built->lsn = match->lsn;
		foreach(lc, entry->versions)
		{
			EtlShape   *known = lfirst(lc);

			if (known->generation == built->generation && known->version == built->version - 1)
				*previous = known;
		}
		return false;
	}
	built->version = newest ? newest->version + 1 : 1;
	built->lsn = stream->origin.commit_lsn;
	*previous = newest;
	return true;
}

/* Do old rows have a value in an added column that no event carries? */
static bool
adds_value_to_old_rows(Relation relation, const EtlShape *previous, const EtlShape *shape)
{
	TupleDesc	desc = RelationGetDescr(relation);

	for (int i = 0; i < shape->ncolumns; i++)
	{
		if (etl_shape_column(previous, shape->columns[i].attnum) != NULL)
			continue;
		if (relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
			etl_partition_has_missing(RelationGetRelid(relation), shape->columns[i].name) :
			TupleDescAttr(desc, shape->columns[i].attnum - 1)->atthasmissing)
			return true;
	}
	return false;
}

/*
 * Columns that the table had before, and that enter the publication's list
 * here: old rows have values that no event has carried.
 */
static bool
publishes_old_columns(const EtlShape *previous, const EtlShape *shape, const EtlOptions *options)
{
	if (strcmp(etl_option_text(options, "on_column_published"), "resync") != 0)
		return false;
	for (int i = 0; i < shape->ncolumns; i++)
		if (shape->columns[i].attnum <= previous->natts &&
			etl_shape_column(previous, shape->columns[i].attnum) == NULL)
			return true;
	return false;
}

/* Do old rows show other labels or attribute names now? */
static bool
renames_values(const EtlShape *previous, const EtlShape *shape)
{
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *old = etl_shape_column(previous, shape->columns[i].attnum);

		if (old && !etl_type_names_hold(old->names, shape->columns[i].names))
			return true;
	}
	return false;
}

/*
 * Rows can be completed by key: is it worth sending the key along?  What old
 * rows hold is said by the leaves' replica identities, not by their root's.
 */
static bool
wants_key(const EtlStream *stream, const EtlShape *shape, bool partitioned)
{
	if (stream->config->routine->extract == NULL || shape->nkeys == 0 ||
		(shape->replica_identity == REPLICA_IDENTITY_FULL && !partitioned))
		return false;
	for (int i = 0; i < shape->ncolumns; i++)
		if (shape->columns[i].toastable && shape->columns[i].key_position == 0)
			return true;
	return false;
}

/* Note the composite types whose changes are changes of the relation. */
static void
note_composites(EtlStream *stream, EtlStreamRelation *entry, const EtlShape *shape)
{
	MemoryContext caller = MemoryContextSwitchTo(stream->context);

	list_free(entry->composites);
	entry->composites = NIL;
	for (int i = 0; i < shape->ncolumns; i++)
		entry->composites = etl_type_composites(entry->composites, shape->columns[i].type);
	stream->composites = list_concat_unique_oid(stream->composites, entry->composites);
	MemoryContextSwitchTo(caller);
}

/* Make the encoder and the slots for "shape" in the entry's fresh context. */
static void
build_encoder(EtlStream *stream, EtlStreamRelation *entry, Relation relation, EtlShape *shape)
{
	const EtlOptions *options = etl_stream_options(stream, entry);
	TupleDesc	desc = CreateTupleDescCopyConstr(RelationGetDescr(relation));
	const TupleTableSlotOps *row_ops = entry->rule->partitioned ? &TTSOpsVirtual : &TTSOpsHeapTuple;

	options = etl_config_generation_options(stream->config, entry->relid,
											entry->owned.generation, options);
	entry->shape = shape;
	entry->filter = NULL;		/* made when the first row comes */
	entry->new_row = MakeSingleTupleTableSlot(desc, row_ops);
	entry->old_row = MakeSingleTupleTableSlot(desc, row_ops);
	entry->keyed = wants_key(stream, shape, entry->rule->partitioned);
	entry->builds++;
	entry->foreign_types = false;
	entry->toastable = palloc(sizeof(int) * shape->ncolumns);
	entry->ntoastable = 0;
	for (int i = 0; i < shape->ncolumns; i++)
	{
		if (shape->columns[i].type >= FirstNormalObjectId)
			entry->foreign_types = true;
		if (shape->columns[i].toastable)
			entry->toastable[entry->ntoastable++] = shape->columns[i].attnum - 1;
	}
	entry->abilities = etl_table_abilities(stream->config->routine, options);
	entry->codec = stream->config->routine->codec_create(shape, NULL, options);
}

/*
 * The row filter of the rule in force, compiled for the relation as it is now;
 * NULL: there is none.  A transaction that changes the table together with its
 * filter is filtered as the catalogs have it at this change.
 */
EtlFilter *
etl_stream_filter(EtlStream *stream, EtlStreamRelation *entry, Relation relation)
{
	const char *expression = entry->rule->filter;
	MemoryContext caller;

	if (expression == NULL || entry->filter)
		return entry->filter;
	if (!etl_filter_fits(expression, relation))
		expression = etl_rules_read_relation(etl_stream_publication(stream), entry->relid,
											 stream->origin.commit_lsn)->filter;
	if (expression)
	{
		caller = MemoryContextSwitchTo(entry->context);
		entry->filter = etl_filter_create(expression, relation);
		MemoryContextSwitchTo(caller);
	}
	return entry->filter;
}

/* Why the owner may not read the columns of "shape" (any more); NULL: may. */
static char *
not_permitted(Oid owner, Relation relation, const EtlShape *shape, const char **hint)
{
	Oid			relid = RelationGetRelid(relation);
	bool		whole = pg_class_aclcheck(relid, owner, ACL_SELECT) == ACLCHECK_OK;

	for (int i = 0; i < shape->ncolumns && !whole; i++)
	{
		if (pg_attribute_aclcheck(relid, shape->columns[i].attnum, owner, ACL_SELECT) == ACLCHECK_OK)
			continue;
		*hint = "Grant SELECT on the published columns to the pipeline's owner.";
		return psprintf("permission denied for table \"%s.%s\"",
						shape->schema_name, shape->table_name);
	}
	if (check_enable_rls(relid, owner, true) == RLS_ENABLED)
	{
		*hint = "Give the pipeline's owner BYPASSRLS.";
		return psprintf("row-level security of table \"%s.%s\" would filter rows for the pipeline's owner",
						shape->schema_name, shape->table_name);
	}
	return NULL;
}

/*
 * What an owner loses, it loses at its place in the WAL; GRANT and REVOKE
 * invalidate the relation like any other change.  A retry is a new copy, which
 * begins behind the GRANT: going on in place would find the same again.
 */
static bool
check_permission(EtlStream *stream, EtlStreamRelation *entry, Relation relation)
{
	const char *hint = NULL;
	char	   *message = not_permitted(stream->config->owner, relation, entry->shape, &hint);
	bool		stop = entry->stop_on_error;

	if (message == NULL)
		return true;
	entry->stop_on_error = false;
	etl_stream_park(stream, entry, stream->encoding ? stream->encoding_ordinal : 0,
					ERRCODE_INSUFFICIENT_PRIVILEGE, message, hint);
	entry->stop_on_error = stop;
	return false;
}

/*
 * Bring the entry's shape and encoder up to date with the relation as the
 * historic catalogs show it.  A new version is announced (SHAPE record), and
 * leads to a resync where the destination cannot follow by itself.  After the
 * call entry->deliver may have become false.
 */
void
etl_stream_resolve_shape(EtlStream *stream, EtlStreamRelation *entry, Relation relation)
{
	MemoryContext caller;
	MemoryContext old = entry->context;
	EtlShape   *built;
	EtlShape   *previous;
	bool		is_new;
	bool		follows = (stream->config->routine->abilities & ETL_FOLLOWS_SHAPES) != 0;

	if (!entry->stale && entry->shape &&
		entry->shape->generation == entry->owned.generation)
		return;

	entry->context = AllocSetContextCreate(stream->context, "etl stream relation",
										   ALLOCSET_DEFAULT_SIZES);
	caller = MemoryContextSwitchTo(entry->context);
	built = etl_shape_build(relation, entry->rule->columns,
							etl_config_generated(etl_stream_options(stream, entry),
												 entry->rule->generated || entry->rule->columns));
	is_new = find_version(stream, entry, built, &previous);
	note_composites(stream, entry, built);
	build_encoder(stream, entry, relation, built);
	MemoryContextSwitchTo(caller);
	if (old)
		MemoryContextDelete(old);
	entry->stale = false;

	if (!check_permission(stream, entry, relation))
		return;
	if (is_new)
		etl_stream_add_version(stream, entry, built);
	if (entry->announced_generation != built->generation ||
		entry->announced_version != built->version)
	{
		if (is_new && previous && !follows && previous->hash != built->hash)
		{
			etl_stream_put_resync(stream, entry, ETL_COPY_REWRITE);
			return;
		}

		/* the copy is asked for first: a shape that is stored is not new again */
		if (is_new && previous && adds_value_to_old_rows(relation, previous, built))
			etl_stream_put_resync(stream, entry, ETL_COPY_REWRITE);
		else if (is_new && previous && renames_values(previous, built))
			etl_stream_put_resync(stream, entry, ETL_COPY_RESYNC);
		else if (is_new && previous &&
				 publishes_old_columns(previous, built, etl_stream_options(stream, entry)))
			etl_stream_put_resync(stream, entry, ETL_COPY_FILTER_CHANGE);
		etl_stream_announce(stream, entry, previous);
	}
}

/* ----------
 * What others have stored
 * ----------
 */

/* Does the entry know a shape of this generation? */
static bool
knows_generation(EtlStreamRelation *entry, uint32 generation)
{
	ListCell   *lc;

	foreach(lc, entry->versions)
		if (((EtlShape *) lfirst(lc))->generation == generation)
			return true;
	return false;
}

typedef struct Wanted
{
	Oid			relid;
	uint32		generations[3]; /* owned, owned before, newest attempt */
} Wanted;

/*
 * Replace what is known of a generation by what is stored.  What is delivered
 * to is kept, however many attempts at a newer one there have been: the next
 * version is counted from it.
 */
static void
load_versions(EtlStream *stream, EtlStreamRelation *entry, const Wanted *table, uint32 generation)
{
	List	   *stored = etl_store_read_shapes(stream->config->id, entry->relid, generation);
	ListCell   *lc;

	foreach(lc, entry->versions)
	{
		EtlShape   *known = lfirst(lc);

		if (known->generation == generation ||
			(known->generation < generation && known->generation != table->generations[0] &&
			 known->generation != table->generations[1]))
		{
			entry->versions = foreach_delete_current(entry->versions, lc);
			etl_shape_free(known);
		}
	}
	foreach(lc, stored)
		etl_stream_add_version(stream, entry, lfirst(lc));
	if (stored != NIL && entry->shape == NULL)
		note_composites(stream, entry, llast(stored));
}

/* Table slots of this pipeline, copied under the lock. */
static List *
wanted_tables(void)
{
	int32		pipeline = etl_shmem_pipeline_index(etl_worker_pipeline);
	List	   *tables = NIL;
	int			n = 0;
	Wanted	   *copies = NULL;

	for (int pass = 0; pass < 2; pass++)
	{
		int			found = 0;

		LWLockAcquire(&etl_worker_pipeline->lock, LW_SHARED);
		for (int i = 0; i < etl_shared->ntables; i++)
		{
			EtlTableSlot *slot = &etl_shared->tables[i];

			if (slot->pipeline != pipeline || !OidIsValid(slot->relid))
				continue;
			if (pass == 1 && found < n)
			{
				copies[found].relid = slot->relid;
				copies[found].generations[0] = slot->owned[0].generation;
				copies[found].generations[1] = slot->owned[1].generation;
				copies[found].generations[2] = slot->generation;
			}
			found++;
		}
		LWLockRelease(&etl_worker_pipeline->lock);
		if (pass == 0)
		{
			n = found;
			copies = palloc0(sizeof(Wanted) * Max(n, 1));
		}
		else
			n = Min(n, found);
	}
	for (int i = 0; i < n; i++)
		tables = lappend(tables, &copies[i]);
	return tables;
}

void
etl_stream_refresh(EtlStream *stream)
{
	ListCell   *lc;

	etl_rules_load_local_schemas();
	foreach(lc, wanted_tables())
	{
		Wanted	   *table = lfirst(lc);
		EtlStreamRelation *entry = etl_stream_relation(stream, table->relid, true);

		/*
		 * Versions that this process made itself need no reading; those of a
		 * generation that it does not deliver to are other processes'.
		 */
		for (int i = 0; i < 3; i++)
			if (table->generations[i] != 0 &&
				((i == 2 && table->generations[2] != table->generations[0]) ||
				 !knows_generation(entry, table->generations[i])) &&
				(entry->announced_generation != table->generations[i]))
				load_versions(stream, entry, table, table->generations[i]);

		if (entry->options == NULL && entry->rules != NIL)
		{
			const EtlRule *rule = linitial(entry->rules);
			MemoryContext caller = MemoryContextSwitchTo(stream->context);

			entry->options = etl_config_table_options(stream->config, rule->schema_name,
													  rule->table_name);
			entry->stop_on_error = etl_config_on_error(entry->options) == ETL_ON_ERROR_STOP;
			entry->stale = true;
			MemoryContextSwitchTo(caller);
		}
	}
}
