/*-------------------------------------------------------------------------
 *
 * rules.c
 *	  What a publication says about a relation, under the catalogs in force.
 *
 * Everything here reads system catalogs through syscache, relcache and
 * systable scans alone, so it gives the state of the WAL position in a
 * decoding callback and the current state in a bracket.
 *
 * The meaning is pgoutput's (get_rel_sync_entry() in pgoutput.c): under
 * publish_via_partition_root a partition belongs to its topmost ancestor in
 * the publication, whose column list, filter and operations hold; else each
 * partition is a table of its own, with an entry of its own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/catalog.h"
#include "catalog/catversion.h"
#include "catalog/indexing.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_rel.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "source/filter.h"
#include "source/rules.h"

/* Names in etl.local_schema, as of the last bracket; in TopMemoryContext. */
static List *local_schemas = NIL;

const char *
etl_excluded_name(EtlExcluded excluded)
{
	static const char *const names[] = {
		[ETL_NOT_EXCLUDED] = NULL,
		[ETL_EXCLUDED_UNLOGGED] = "unlogged",
		[ETL_EXCLUDED_FOREIGN] = "foreign",
		[ETL_EXCLUDED_OURS] = "ours",
	};

	return names[excluded];
}

void
etl_rules_load_local_schemas(void)
{
	MemoryContext caller;

	if (SPI_execute("SELECT schema_name::pg_catalog.text FROM etl.local_schema", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read etl.local_schema");

	caller = MemoryContextSwitchTo(TopMemoryContext);
	list_free_deep(local_schemas);
	local_schemas = NIL;
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		char	   *name = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);

		local_schemas = lappend(local_schemas, pstrdup(name));
	}
	MemoryContextSwitchTo(caller);
}

bool
etl_rules_own_schema(Oid namespace_oid)
{
	char	   *name = get_namespace_name(namespace_oid);
	bool		own;
	ListCell   *lc;

	if (name == NULL)
		return false;
	own = strcmp(name, "etl") == 0;
	foreach(lc, local_schemas)
		own = own || strcmp(name, (char *) lfirst(lc)) == 0;
	pfree(name);
	return own;
}

/* Why a relation that the publication names is not replicated. */
static EtlExcluded
excluded_reason(Form_pg_class class)
{
	if (etl_rules_own_schema(class->relnamespace))
		return ETL_EXCLUDED_OURS;
	if (class->relkind == RELKIND_FOREIGN_TABLE)
		return ETL_EXCLUDED_FOREIGN;
	if (class->relpersistence == RELPERSISTENCE_UNLOGGED)
		return ETL_EXCLUDED_UNLOGGED;
	return ETL_NOT_EXCLUDED;
}

/*
 * Is the relation in the publication, itself or through its schema, a
 * partitioned ancestor, or FOR ALL TABLES?  *top is the topmost ancestor that
 * is, if any.
 */
static bool
is_published(const Publication *publication, Oid relid, Form_pg_class class, Oid *top)
{
	*top = InvalidOid;
	if (class->relispartition)
	{
		List	   *ancestors = get_partition_ancestors(relid);

		if (!publication->alltables)
			*top = GetTopMostAncestorInPublication(publication->oid, ancestors, NULL);
		else if (ancestors != NIL)
			*top = llast_oid(ancestors);
		list_free(ancestors);
	}
	return publication->alltables || OidIsValid(*top) ||
		list_member_oid(GetRelationPublications(relid), publication->oid) ||
		list_member_oid(GetSchemaPublications(class->relnamespace), publication->oid);
}

/*
 * Kinds of relations that can have a rule: what has rows, and roots.  Temporary
 * tables come and go and are in no publication, be it FOR ALL TABLES.
 */
static bool
may_be_published(const Publication *publication, Form_pg_class class)
{
	return class->relpersistence != RELPERSISTENCE_TEMP &&
		(class->relkind == RELKIND_RELATION || class->relkind == RELKIND_FOREIGN_TABLE ||
		 (class->relkind == RELKIND_PARTITIONED_TABLE && publication->pubviaroot));
}

/*
 * Column list and row filter of the relation's own entry, if it has one.  The
 * filter counts for nothing where the publication has all tables or all of
 * the relation's schema.
 */
static void
read_entry(const Publication *publication, EtlRule *rule, Oid namespace_oid)
{
	HeapTuple	tuple = SearchSysCache2(PUBLICATIONRELMAP, ObjectIdGetDatum(rule->relid),
										ObjectIdGetDatum(publication->oid));
	bool		isnull;
	Datum		filter;
	Datum		columns;

	if (!HeapTupleIsValid(tuple))
		return;

	filter = SysCacheGetAttr(PUBLICATIONRELMAP, tuple, Anum_pg_publication_rel_prqual, &isnull);
	if (!isnull && !list_member_oid(GetSchemaPublications(namespace_oid), publication->oid))
		rule->filter = TextDatumGetCString(filter);
	columns = SysCacheGetAttr(PUBLICATIONRELMAP, tuple, Anum_pg_publication_rel_prattrs, &isnull);
	if (!isnull)
		rule->columns = pub_collist_to_bitmapset(NULL, columns, NULL);
	ReleaseSysCache(tuple);
}

/* The rule of one relation of "publication" (NULL: there is none any more). */
static EtlRule *
read_rule(const Publication *publication, Oid relid, XLogRecPtr from_lsn)
{
	EtlRule    *rule = palloc0(sizeof(EtlRule));
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class class;
	Oid			top;

	rule->relid = relid;
	rule->from_lsn = from_lsn;
	if (!HeapTupleIsValid(tuple))
	{
		rule->dropped = true;
		return rule;
	}

	class = (Form_pg_class) GETSTRUCT(tuple);
	rule->schema_name = get_namespace_name(class->relnamespace);
	if (rule->schema_name == NULL)
		rule->schema_name = pstrdup("");
	rule->table_name = pstrdup(NameStr(class->relname));
	rule->excluded = excluded_reason(class);

	if (publication != NULL && may_be_published(publication, class) &&
		relid >= FirstNormalObjectId && !IsCatalogRelationOid(relid) &&
		!IsToastNamespace(class->relnamespace) &&
		is_published(publication, relid, class, &top))
	{
		rule->partitioned = class->relkind == RELKIND_PARTITIONED_TABLE;
		rule->root = publication->pubviaroot ? top : InvalidOid;

		/* a subpartitioned table inside of a root is of no account */
		rule->published = !rule->partitioned || !OidIsValid(rule->root);
		rule->generated = etl_publishes_generated(publication);
		rule->operations =
			(publication->pubactions.pubinsert ? ETL_PUBLISH_INSERT : 0) |
			(publication->pubactions.pubupdate ? ETL_PUBLISH_UPDATE : 0) |
			(publication->pubactions.pubdelete ? ETL_PUBLISH_DELETE : 0) |
			(publication->pubactions.pubtruncate ? ETL_PUBLISH_TRUNCATE : 0);
		if (!publication->alltables && !OidIsValid(rule->root))
			read_entry(publication, rule, class->relnamespace);
	}
	ReleaseSysCache(tuple);
	return rule;
}

EtlRule *
etl_rules_read_relation(const char *publication, Oid relid, XLogRecPtr from_lsn)
{
	return read_rule(GetPublicationByName(publication, true), relid, from_lsn);
}

/*
 * Add the rules of all relations that FOR ALL TABLES or a published schema
 * brings in, the ones that cannot be replicated included.
 */
static List *
scan_relations(List *rules, const Publication *publication, XLogRecPtr from_lsn)
{
	Relation	class_relation = table_open(RelationRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(class_relation, InvalidOid, false, NULL, 0, NULL);
	List	   *relids = NIL;
	HeapTuple	tuple;
	ListCell   *lc;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_class class = (Form_pg_class) GETSTRUCT(tuple);

		if (may_be_published(publication, class) &&
			class->oid >= FirstNormalObjectId && !OidIsValid(class->relrewrite))
			relids = lappend_oid(relids, class->oid);
	}
	systable_endscan(scan);
	table_close(class_relation, AccessShareLock);

	foreach(lc, relids)
	{
		EtlRule    *rule = read_rule(publication, lfirst_oid(lc), from_lsn);

		if (rule->published)
			rules = lappend(rules, rule);
	}
	return rules;
}

List *
etl_rules_read(const char *name, XLogRecPtr from_lsn, bool *found)
{
	Publication *publication = GetPublicationByName(name, true);
	List	   *rules = NIL;
	ListCell   *lc;

	*found = publication != NULL;
	if (publication == NULL)
		return NIL;

	if (publication->alltables || GetPublicationSchemas(publication->oid) != NIL)
		rules = scan_relations(rules, publication, from_lsn);
	if (!publication->alltables)
	{
		foreach(lc, GetPublicationRelations(publication->oid, publication->pubviaroot ?
											PUBLICATION_PART_ALL : PUBLICATION_PART_LEAF))
		{
			Oid			relid = lfirst_oid(lc);
			bool		known = false;
			ListCell   *other;

			if (GetPublicationSchemas(publication->oid) != NIL)
			{
				foreach(other, rules)
					known = known || ((EtlRule *) lfirst(other))->relid == relid;
			}
			if (!known)
			{
				EtlRule    *rule = read_rule(publication, relid, from_lsn);

				if (rule->published)
					rules = lappend(rules, rule);
			}
		}
	}
	return rules;
}

bool
etl_rule_equal(const EtlRule *a, const EtlRule *b)
{
	if (a->published != b->published)
		return false;
	if (!a->published)
		return a->dropped == b->dropped;
	return a->operations == b->operations && a->excluded == b->excluded &&
		a->partitioned == b->partitioned && a->root == b->root &&
		a->generated == b->generated && bms_equal(a->columns, b->columns) &&
		etl_filter_equal(a->filter, b->filter);
}

EtlRule *
etl_rule_copy(const EtlRule *rule)
{
	EtlRule    *copy = palloc(sizeof(EtlRule));

	*copy = *rule;
	copy->columns = bms_copy(rule->columns);
	copy->filter = rule->filter ? pstrdup(rule->filter) : NULL;
	copy->schema_name = rule->schema_name ? pstrdup(rule->schema_name) : NULL;
	copy->table_name = rule->table_name ? pstrdup(rule->table_name) : NULL;
	return copy;
}

/* ----------
 * Flat form: fixed part, two texts, the column list as attnums, the filter.
 * Filters are of one catalog version: what a server of another one has left is
 * of no use.
 * ----------
 */
typedef struct FlatRule
{
	uint32		len;			/* of this rule, all included */
	uint32		catalog_version;
	Oid			relid;
	XLogRecPtr	from_lsn;
	bool		published;
	bool		dropped;
	uint8		operations;
	uint8		excluded;
	bool		partitioned;
	Oid			root;
	bool		generated;
	bool		has_columns;
	bool		has_filter;
	int16		ncolumns;
	uint16		schema_len;
	uint16		table_len;
	uint32		filter_len;
} FlatRule;

void
etl_rules_serialize(List *rules, StringInfo out)
{
	ListCell   *lc;

	foreach(lc, rules)
	{
		const EtlRule *rule = lfirst(lc);
		FlatRule	flat;
		int			attnum = -1;

		memset(&flat, 0, sizeof(flat));
		flat.catalog_version = CATALOG_VERSION_NO;
		flat.relid = rule->relid;
		flat.from_lsn = rule->from_lsn;
		flat.published = rule->published;
		flat.dropped = rule->dropped;
		flat.operations = rule->operations;
		flat.excluded = rule->excluded;
		flat.partitioned = rule->partitioned;
		flat.root = rule->root;
		flat.generated = rule->generated;
		flat.has_columns = rule->columns != NULL;
		flat.ncolumns = bms_num_members(rule->columns);
		flat.schema_len = rule->schema_name ? strlen(rule->schema_name) : 0;
		flat.table_len = rule->table_name ? strlen(rule->table_name) : 0;
		flat.has_filter = rule->filter != NULL;
		flat.filter_len = rule->filter ? strlen(rule->filter) : 0;
		flat.len = sizeof(flat) + flat.schema_len + flat.table_len +
			flat.ncolumns * sizeof(int16) + flat.filter_len;

		appendBinaryStringInfo(out, (const char *) &flat, sizeof(flat));
		appendBinaryStringInfo(out, rule->schema_name ? rule->schema_name : "", flat.schema_len);
		appendBinaryStringInfo(out, rule->table_name ? rule->table_name : "", flat.table_len);
		while ((attnum = bms_next_member(rule->columns, attnum)) >= 0)
		{
			int16		column = attnum;

			appendBinaryStringInfo(out, (const char *) &column, sizeof(column));
		}
		if (rule->filter)
			appendBinaryStringInfo(out, rule->filter, flat.filter_len);
	}
}

List *
etl_rules_deserialize(const char *data, uint32 len)
{
	List	   *rules = NIL;
	const char *end = data + len;

	while (data < end)
	{
		EtlRule    *rule = palloc0(sizeof(EtlRule));
		FlatRule	flat;
		const char *at = data + sizeof(flat);

		if (end - data < (ptrdiff_t) sizeof(flat))
			elog(ERROR, "flat rule is too short");
		memcpy(&flat, data, sizeof(flat));
		if (flat.len < sizeof(flat) || flat.len > end - data)
			elog(ERROR, "flat rule has a bad length");

		rule->relid = flat.relid;
		rule->from_lsn = flat.from_lsn;
		rule->published = flat.published;
		rule->dropped = flat.dropped;
		rule->operations = flat.operations;
		rule->excluded = flat.excluded;
		rule->partitioned = flat.partitioned;
		rule->root = flat.root;
		rule->generated = flat.generated;
		rule->schema_name = pnstrdup(at, flat.schema_len);
		at += flat.schema_len;
		rule->table_name = pnstrdup(at, flat.table_len);
		at += flat.table_len;
		for (int i = 0; i < flat.ncolumns; i++)
		{
			int16		column;

			memcpy(&column, at + i * sizeof(column), sizeof(column));
			rule->columns = bms_add_member(rule->columns, column);
		}
		at += flat.ncolumns * sizeof(int16);
		if (flat.has_filter)
			rule->filter = pnstrdup(at, flat.filter_len);
		if (flat.catalog_version == CATALOG_VERSION_NO)
			rules = lappend(rules, rule);
		data += flat.len;
	}
	return rules;
}
