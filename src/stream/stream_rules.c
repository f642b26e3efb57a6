/*-------------------------------------------------------------------------
 *
 * stream_rules.c
 *	  Following the publication through the WAL.
 *
 * During the replay of a transaction the reorder buffer executes its catalog
 * invalidations, so the callbacks below tell which relations it touched and
 * whether it touched a publication.  In commit_cb, with the historic snapshot
 * of the commit still in force, what was touched is looked at, and what
 * differs becomes a new rule version at this commit's position.
 *
 * Invalidations also arrive outside of replays (this process is a backend
 * like any other).  They only make caches stale.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "catalog/options.h"
#include "catalog/store.h"
#include "server/worker.h"
#include "stream/stream_private.h"

/*
 * A transaction that touches more relations than this has the publication
 * read as a whole instead.
 */
#define MAX_TOUCHED			20000
#define HASH_TOUCHED_FROM	32

/* The stream of this process, for the callbacks (which cannot be removed). */
static EtlStream *callback_stream = NULL;

void
etl_stream_touch(EtlStream *stream, Oid relid)
{
	MemoryContext caller;
	bool		found;

	if (list_length(stream->touched) >= MAX_TOUCHED)
	{
		stream->publication_touched = true;
		return;
	}
	if (stream->touched_hash == NULL)
	{
		if (list_member_oid(stream->touched, relid))
			return;
		if (list_length(stream->touched) >= HASH_TOUCHED_FROM)
		{
			HASHCTL		control;
			ListCell   *lc;

			memset(&control, 0, sizeof(control));
			control.keysize = sizeof(Oid);
			control.entrysize = sizeof(Oid);
			control.hcxt = stream->context;
			stream->touched_hash = hash_create("etl touched relations", 256, &control,
											   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
			foreach(lc, stream->touched)
				hash_search(stream->touched_hash, &lfirst_oid(lc), HASH_ENTER, NULL);
		}
	}
	if (stream->touched_hash)
	{
		hash_search(stream->touched_hash, &relid, HASH_ENTER, &found);
		if (found)
			return;
	}
	caller = MemoryContextSwitchTo(stream->context);
	stream->touched = lappend_oid(stream->touched, relid);
	MemoryContextSwitchTo(caller);
}

static void
make_all_stale(EtlStream *stream, bool foreign_types_only)
{
	HASH_SEQ_STATUS scan;
	EtlStreamRelation *entry;

	if (stream->relations == NULL)
		return;
	hash_seq_init(&scan, stream->relations);
	while ((entry = hash_seq_search(&scan)) != NULL)
		if (!foreign_types_only || entry->foreign_types)
			entry->stale = true;
}

/*
 * A composite type has changed (its relation), or enums have (InvalidOid): so
 * have the tables whose rows show them.
 */
static void
touch_types(EtlStream *stream, Oid composite)
{
	HASH_SEQ_STATUS scan;
	EtlStreamRelation *entry;

	if (stream->relations == NULL)
		return;
	hash_seq_init(&scan, stream->relations);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (entry->versions == NIL)
			continue;			/* of which nothing was delivered */
		if (OidIsValid(composite) ? !list_member_oid(entry->composites, composite) :
			entry->shape && !entry->foreign_types)
			continue;
		entry->stale = true;
		if (stream->in_transaction && entry->rules != NIL)
			etl_stream_touch(stream, entry->relid);
	}
}

static void
relcache_callback(Datum arg, Oid relid)
{
	EtlStream  *stream = callback_stream;

	if (stream == NULL)
		return;
	if (!OidIsValid(relid))
	{
		/* everything: the transaction's own list of changes overflowed */
		make_all_stale(stream, false);
		etl_stream_partition_invalid(stream, InvalidOid);
		stream->publication_touched = stream->in_transaction;
		return;
	}
	if (stream->relations)
	{
		EtlStreamRelation *entry = hash_search(stream->relations, &relid, HASH_FIND, NULL);

		if (entry)
			entry->stale = true;
	}
	if (list_member_oid(stream->composites, relid))
		touch_types(stream, relid);
	etl_stream_partition_invalid(stream, relid);
	if (stream->in_transaction)
		etl_stream_touch(stream, relid);
}

/* Publication catalogs, and schemas (renames change names in shapes). */
static void
publication_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	EtlStream  *stream = callback_stream;

	if (stream == NULL)
		return;
	if (cacheid == NAMESPACEOID)
		make_all_stale(stream, false);
	if (stream->in_transaction)
		stream->publication_touched = true;
}

/* Types: enums, composites and domains change without their tables. */
static void
type_callback(Datum arg, int cacheid, uint32 hashvalue)
{
	if (callback_stream == NULL)
		return;
	if (cacheid == ENUMOID)
		touch_types(callback_stream, InvalidOid);
	else
		make_all_stale(callback_stream, true);
}

/* A stream may go before its process does (sync, when the pair is new). */
static void
forget_stream(void *arg)
{
	if (callback_stream == arg)
		callback_stream = NULL;
}

void
etl_stream_register_callbacks(EtlStream *stream)
{
	static bool registered = false;
	MemoryContextCallback *forget = MemoryContextAllocZero(stream->context, sizeof(*forget));

	forget->func = forget_stream;
	forget->arg = stream;
	MemoryContextRegisterResetCallback(stream->context, forget);

	callback_stream = stream;
	if (registered)
		return;
	registered = true;
	CacheRegisterRelcacheCallback(relcache_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONOID, publication_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONRELMAP, publication_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONNAMESPACEMAP, publication_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, publication_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(TYPEOID, type_callback, (Datum) 0);
	CacheRegisterSyscacheCallback(ENUMOID, type_callback, (Datum) 0);
}

/* Add a rule version to its relation, newest first. */
void
etl_stream_add_rule(EtlStream *stream, const EtlRule *rule)
{
	EtlStreamRelation *entry = etl_stream_relation(stream, rule->relid, true);
	MemoryContext caller = MemoryContextSwitchTo(stream->context);

	entry->rules = lcons(etl_rule_copy(rule), entry->rules);
	MemoryContextSwitchTo(caller);
	if (rule->partitioned && stream->partitions == NULL)
		etl_stream_partitions_init(stream);
}

/* "moved": the publication has another name or OID, which is stored with the rules. */
static void
put_rules(EtlStream *stream, List *rules, bool moved, XLogRecPtr lsn)
{
	EtlRecord	record = {.kind = ETL_RECORD_RULES,.table = ETL_NO_TABLE,.lsn = lsn};
	StringInfoData flat;

	if ((rules == NIL && !moved) || stream->is_sync)
		return;
	initStringInfo(&flat);
	etl_rules_serialize(rules, &flat);
	etl_queue_put(stream->queue, &record, flat.data, flat.len, NULL, 0);
	pfree(flat.data);
}

/*
 * Name of the publication under the catalogs in force.  It is followed when it
 * is renamed; one that is dropped is looked for under its last name.
 */
const char *
etl_stream_publication(EtlStream *stream)
{
	char	   *name = OidIsValid(stream->publication) ? get_publication_name(stream->publication, true) : NULL;

	if (name)
		namestrcpy(&stream->publication_name, name);
	else
		stream->publication = get_publication_oid(NameStr(stream->publication_name), true);
	return NameStr(stream->publication_name);
}

bool
etl_stream_load_rules(EtlStream *stream)
{
	List	   *rules;
	ListCell   *lc;
	bool		found = true;

	etl_rules_load_local_schemas();
	rules = etl_store_read_rules(stream->config->id);
	if (rules == NIL)
	{
		rules = etl_rules_read(etl_stream_publication(stream), InvalidXLogRecPtr, &found);
		put_rules(stream, rules, false, InvalidXLogRecPtr);
	}
	foreach(lc, rules)
		etl_stream_add_rule(stream, lfirst(lc));
	return found;
}

/* ----------
 * At commit
 * ----------
 */

/* The newest version, whatever its position; and the one made by this commit. */
static const EtlRule *
newest_rule(EtlStreamRelation *entry)
{
	return entry && entry->rules ? linitial(entry->rules) : NULL;
}

static const EtlRule *
rule_of_commit(EtlStream *stream, EtlStreamRelation *entry)
{
	ListCell   *lc;

	foreach(lc, entry->rules)
		if (((EtlRule *) lfirst(lc))->from_lsn == stream->origin.commit_lsn)
			return lfirst(lc);
	return NULL;
}

/*
 * Rows that are at the destination, or are missing there, by the old rule: does
 * the new one ask for a new copy?  (What new columns ask for, the shape says.)
 */
static bool
outdates_rows(EtlStream *stream, const EtlStreamRelation *entry,
			  const EtlRule *old, const EtlRule *rule)
{
	const EtlOptions *options = etl_stream_options(stream, entry);

	return ((rule->operations & ~old->operations) != 0 ||
			!etl_filter_equal(old->filter, rule->filter)) &&
		strcmp(etl_option_text(options, "on_filter_change"), "resync") == 0;
}

/*
 * The rule of a table changes with this commit: its new shape is announced at
 * this place, and its rows are copied again where they are out of date.  A
 * replay does the same: the writer knows whether it is done.
 */
static void
follow_rule(EtlStream *stream, const EtlRule *old, const EtlRule *rule)
{
	EtlStreamRelation *entry = etl_stream_relation(stream, rule->relid, false);
	const EtlRule *known = rule_of_commit(stream, entry);
	Relation	relation;

	if (!etl_rule_is_table(old) || !etl_rule_is_table(rule) || rule->excluded)
		return;
	etl_stream_fix(stream, entry);
	if (!entry->deliver)
		return;
	if (outdates_rows(stream, entry, old, rule))
		etl_stream_put_resync(stream, entry, ETL_COPY_FILTER_CHANGE);
	if (!entry->deliver || known == NULL ||
		(bms_equal(old->columns, rule->columns) && old->generated == rule->generated))
		return;

	relation = RelationIdGetRelation(rule->relid);
	if (relation == NULL)
		return;
	entry->rule = known;		/* no row of this transaction comes any more */
	entry->stale = true;
	etl_stream_resolve_shape(stream, entry, relation);
	RelationClose(relation);
}

/*
 * Does "rule" differ from what was in force?  Then it is a new version, unless
 * this is a replay, which finds known versions again.
 */
static List *
compare_rule(EtlStream *stream, EtlRule *rule, List *changed)
{
	EtlStreamRelation *entry = etl_stream_relation(stream, rule->relid, false);
	const EtlRule *newest = newest_rule(entry);
	const EtlRule *old = entry ? etl_stream_rule_in_force(stream, entry) : NULL;
	XLogRecPtr	lsn = stream->origin.commit_lsn;

	if (stream->partitions)
		etl_stream_compare_root(stream, rule);
	if (old == NULL ? !rule->published : etl_rule_equal(old, rule))
		return changed;
	if (newest == NULL || newest->from_lsn < lsn)
	{
		etl_stream_add_rule(stream, rule);
		changed = lappend(changed, rule);
	}
	if (old)
		follow_rule(stream, old, rule);
	return changed;
}

/* The publication was touched: compare all of it. */
static List *
compare_publication(EtlStream *stream)
{
	XLogRecPtr	lsn = stream->origin.commit_lsn;
	bool		found;
	List	   *rules = etl_rules_read(NameStr(stream->publication_name), lsn, &found);
	List	   *changed = NIL;
	List	   *gone = NIL;
	HASH_SEQ_STATUS scan;
	EtlStreamRelation *entry;
	ListCell   *lc;

	/*
	 * Without the publication nothing says what should be sent: its tables
	 * stay as they were until it is there again.
	 */
	if (!found)
	{
		etl_shmem_report_error(etl_worker_pipeline, ERRCODE_UNDEFINED_OBJECT,
							   psprintf("publication \"%s\" does not exist",
										NameStr(stream->publication_name)), 0, false);
		return NIL;
	}

	foreach(lc, rules)
	{
		EtlRule    *rule = lfirst(lc);

		changed = compare_rule(stream, rule, changed);
		etl_stream_relation(stream, rule->relid, true)->listed = stream->transaction;
	}

	/* tables that were published and are not in the list any more */
	if (stream->relations == NULL)
		return changed;
	hash_seq_init(&scan, stream->relations);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		const EtlRule *known = etl_stream_rule_in_force(stream, entry);

		if (known && known->published && entry->listed != stream->transaction)
			gone = lappend_oid(gone, entry->relid);
	}
	foreach(lc, gone)
		changed = compare_rule(stream,
							   etl_rules_read_relation(NameStr(stream->publication_name),
													   lfirst_oid(lc), lsn), changed);
	return changed;
}

/*
 * Shape and rewrite of a tracked relation that the transaction touched: its
 * new shape is announced at this place, DDL-only transactions included.
 */
static void
look_at_shape(EtlStream *stream, Oid relid)
{
	EtlStreamRelation *entry = etl_stream_relation(stream, relid, false);
	Relation	relation;

	if (entry == NULL || entry->rules == NIL)
		return;
	etl_stream_fix(stream, entry);
	if (!entry->deliver)
		return;
	relation = RelationIdGetRelation(relid);
	if (relation == NULL)
		return;					/* dropped: its rule says so */
	etl_stream_resolve_shape(stream, entry, relation);
	RelationClose(relation);

	if (entry->deliver && entry->rewritten == stream->transaction)
		etl_stream_put_resync(stream, entry, ETL_COPY_REWRITE);
}

/*
 * In commit_cb: new rules, new shapes, rewrites of what this transaction
 * touched.
 */
void
etl_stream_commit_rules(EtlStream *stream)
{
	List	   *touched;
	List	   *changed = NIL;
	Oid			publication = stream->publication;
	NameData	name = stream->publication_name;
	ListCell   *lc;

	if (stream->touched == NIL && !stream->publication_touched)
		return;
	(void) etl_stream_publication(stream);
	if (stream->partitions && !stream->publication_touched)
		etl_stream_touch_trees(stream);
	touched = stream->touched;

	/* looking at relations may fill the list anew: take it away first */
	stream->touched = NIL;
	if (stream->touched_hash)
		hash_destroy(stream->touched_hash);
	stream->touched_hash = NULL;

	if (stream->publication_touched)
		changed = compare_publication(stream);
	else if (OidIsValid(stream->publication))
	{
		foreach(lc, touched)
			changed = compare_rule(stream,
								   etl_rules_read_relation(NameStr(stream->publication_name),
														   lfirst_oid(lc),
														   stream->origin.commit_lsn),
								   changed);
	}

	foreach(lc, touched)
		look_at_shape(stream, lfirst_oid(lc));
	if (stream->partitions)
		etl_stream_resync_roots(stream);
	put_rules(stream, changed,
			  publication != stream->publication || strcmp(NameStr(name), NameStr(stream->publication_name)) != 0,
			  stream->origin.commit_lsn);

	list_free(touched);
	list_free(stream->touched);
	stream->touched = NIL;
	if (stream->touched_hash)
		hash_destroy(stream->touched_hash);
	stream->touched_hash = NULL;
	stream->publication_touched = false;
}
