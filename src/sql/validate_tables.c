/*-------------------------------------------------------------------------
 *
 * validate_tables.c
 *	  etl.validate_pipeline(): the publication and its tables.
 *
 * The publication is read with the same code that a pipeline reads it with.
 * Tables are locked for the moment they are looked at, one at a time, so that
 * a publication of many thousand tables does not fill the lock table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/syscache.h"

#include "compat.h"
#include "schema/shape.h"
#include "source/partition.h"
#include "source/filter.h"
#include "source/rules.h"
#include "sql/common.h"
#include "sql/validate.h"

/* Is the name of a table at the destination taken, and by whom? */
typedef struct NameEntry
{
	char		name[256];		/* hash key */
	char		table[2 * NAMEDATALEN + 8];
} NameEntry;

/* ----------
 * One table
 * ----------
 */

static bool
has_generated(Relation relation)
{
	TupleDesc	desc = RelationGetDescr(relation);

	return desc->constr && desc->constr->has_generated_stored;
}

/*
 * What identifies a row?  Without an answer the server itself refuses updates
 * and deletes of the source's users.
 */
static void
check_identity(EtlValidation *v, const char *target, Relation relation,
			   const EtlRule *rule, const EtlShape *shape, const EtlOptions *options)
{
	bool		changes = (rule->operations & (ETL_PUBLISH_UPDATE | ETL_PUBLISH_DELETE)) != 0;
	bool		full = relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL;
	Oid			index = full ? etl_primary_key(relation) : RelationGetReplicaIndex(relation);
	bool		needs_key = v->config && (etl_table_abilities(v->config->routine, options) & ETL_NEEDS_KEY) != 0;

	if (!full && !OidIsValid(index))
	{
		/* whether changes of a partitioned table fail is a matter of its leaves */
		if (changes && !rule->partitioned)
			etl_validate_report(v, ETL_WARNING, "keyless_update_rejected", target,
								"Add a primary key, use ALTER TABLE ... REPLICA IDENTITY, or publish inserts alone.",
								"the table has no replica identity: UPDATE and DELETE of it fail since it is published");
		etl_validate_report(v, needs_key ? ETL_ERROR : ETL_WARNING, "replica_identity", target,
							"Add a primary key.",
							needs_key ? "the table has no key, and the destination needs one" :
							"the table has no key: a row that is delivered twice cannot be told from two rows");
		return;
	}
	if (index == InvalidOid && needs_key)
		etl_validate_report(v, ETL_ERROR, "replica_identity", target, "Add a primary key.",
							"the table has no key, and the destination needs one");

	/* which 18 asks for; earlier versions log them and say nothing */
	if (full && changes && !rule->generated && has_generated(relation))
		etl_validate_report(v, ETL_ERROR, "replica_identity", target,
							"Set publish_generated_columns = stored in the publication, or use another REPLICA IDENTITY.",
							"the table has REPLICA IDENTITY FULL and unpublished generated columns: UPDATE and DELETE of it fail");

	if (rule->columns == NULL || (!changes && !needs_key))
		return;
	if (full && changes && !rule->partitioned)
		etl_validate_report(v, ETL_ERROR, "key_columns_published", target,
							"Publish all columns, or use another REPLICA IDENTITY.",
							"the table has REPLICA IDENTITY FULL and a column list: UPDATE and DELETE of it fail");
	else if (shape->nkeys == 0)
		etl_validate_report(v, ETL_ERROR, "key_columns_published", target,
							"Add the columns of the replica identity to the publication's column list.",
							changes ? "the column list leaves out columns of the replica identity: UPDATE and DELETE of the table fail" :
							"the column list leaves out columns of the key, which the destination needs");
}

/*
 * A partition of a table that is published as a whole: what the WAL has of its
 * old rows must tell which row of the root it was.
 */
static void
check_leaf_identity(EtlValidation *v, const char *target, Relation leaf, Relation root,
					const EtlRule *root_rule)
{
	const EtlShape *shape = etl_shape_build(root, root_rule->columns, true);
	EtlRowMap  *map = etl_row_map_create(leaf, RelationGetDescr(root));
	bool		full = leaf->rd_rel->relreplident == REPLICA_IDENTITY_FULL;

	if (!full && !OidIsValid(RelationGetReplicaIndex(leaf)))
		etl_validate_report(v, ETL_WARNING, "keyless_update_rejected", target,
							"Add a primary key, use ALTER TABLE ... REPLICA IDENTITY, or publish inserts alone.",
							"the partition has no replica identity: UPDATE and DELETE of it fail since it is published");
	else if (full && root_rule->columns != NULL)
		etl_validate_report(v, ETL_ERROR, "key_columns_published", target,
							"Publish all columns, or use another REPLICA IDENTITY.",
							"the partition has REPLICA IDENTITY FULL and its table a column list: UPDATE and DELETE of it fail");
	else if (!etl_row_map_identifies(map, leaf, shape))
		etl_validate_report(v, ETL_ERROR, "replica_identity", target,
							"Use ALTER TABLE ... REPLICA IDENTITY FULL, or an index over the key of the partitioned table.",
							"the partition's replica identity does not have the key of table \"%s.%s\": an UPDATE or DELETE of it will park the table",
							root_rule->schema_name, root_rule->table_name);
}

/*
 * Columns, of the rows and of the row filter, that the owner may not read, as a
 * list; NULL when it may read all.
 */
static char *
unreadable_columns(Oid owner, const EtlRule *rule, const EtlShape *shape)
{
	Bitmapset  *columns = rule->filter ? etl_filter_columns(rule->filter) : NULL;
	int			attnum = -1;
	StringInfoData names;

	if (pg_class_aclcheck(rule->relid, owner, ACL_SELECT) == ACLCHECK_OK)
		return NULL;
	initStringInfo(&names);
	for (int i = 0; i < shape->ncolumns; i++)
		columns = bms_add_member(columns, shape->columns[i].attnum);
	while ((attnum = bms_next_member(columns, attnum)) >= 0)
		if (pg_attribute_aclcheck(rule->relid, attnum, owner, ACL_SELECT) != ACLCHECK_OK)
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
							 quote_identifier(get_attname(rule->relid, attnum, false)));
	return names.len > 0 ? names.data : NULL;
}

static void
check_rights(EtlValidation *v, const char *target, const EtlRule *rule, const EtlShape *shape)
{
	char	   *owner;
	char	   *columns;

	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(v->owner)))
		return;
	owner = GetUserNameFromId(v->owner, false);
	columns = unreadable_columns(v->owner, rule, shape);
	if (columns != NULL)
		etl_validate_report(v, ETL_ERROR, "table_select", target,
							psprintf("GRANT SELECT ON %s TO %s.", target, quote_identifier(owner)),
							"role \"%s\", the pipeline's owner, may not read: %s", owner, columns);
	if (check_enable_rls(rule->relid, v->owner, true) == RLS_ENABLED)
		etl_validate_report(v, ETL_ERROR, "row_security", target,
							psprintf("Give role %s BYPASSRLS.", quote_identifier(owner)),
							"row-level security would hide rows from role \"%s\", the pipeline's owner", owner);
}

static void
check_generated(EtlValidation *v, const char *target, const EtlRule *rule, const EtlShape *shape,
				const EtlOptions *options)
{
	bool		published = rule->generated || rule->columns;
	bool		replicated = options ? etl_config_generated(options, published) : published;
	StringInfoData names;

	/* those of a key are replicated in any case */
	initStringInfo(&names);
	for (int i = 0; i < shape->ncolumns; i++)
		if (shape->columns[i].generated && (replicated || shape->columns[i].key_position == 0))
			appendStringInfo(&names, "%s%s", names.len > 0 ? ", " : "",
							 quote_identifier(shape->columns[i].name));
	if (names.len == 0)
		return;
	if (replicated)
		etl_validate_report(v, ETL_NOTICE, "generated_columns", target,
							"Option generated_columns = false leaves them out.",
							"generated columns are replicated like others: %s", names.data);
	else
		etl_validate_report(v, ETL_NOTICE, "generated_columns", target,
							"Option generated_columns = true replicates them.",
							"generated columns are left out: %s", names.data);
}

static const char *
why_not_replicable(const EtlRule *rule)
{
	switch ((EtlExcluded) rule->excluded)
	{
		case ETL_EXCLUDED_UNLOGGED:
			return "unlogged tables are not replicated";
		case ETL_EXCLUDED_FOREIGN:
			return "foreign tables are not replicated";
		case ETL_EXCLUDED_OURS:
		case ETL_NOT_EXCLUDED:
			break;
	}
	if (rule->excluded && OidIsValid(rule->root))
		return "rows of this partition cannot be replicated: the partitioned table will be parked";
	return NULL;
}

/* ----------
 * Names at the destination
 * ----------
 */
static HTAB *
make_names(void)
{
	HASHCTL		control = {0};

	control.keysize = sizeof(((NameEntry *) 0)->name);
	control.entrysize = sizeof(NameEntry);
	control.hcxt = CurrentMemoryContext;
	return hash_create("etl names", 256, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

/* Enter a name for a table; the other one that has it, or NULL. */
static const char *
enter_name(HTAB *names, const char *name, const char *table)
{
	char		key[sizeof(((NameEntry *) 0)->name)];
	NameEntry  *entry;
	bool		found;

	strlcpy(key, name, sizeof(key));
	entry = hash_search(names, key, HASH_ENTER, &found);
	if (!found)
		strlcpy(entry->table, table, sizeof(entry->table));
	return found && strcmp(entry->table, table) != 0 ? entry->table : NULL;
}

/* Names that tables of other pipelines to the same server have there. */
static void
enter_others(EtlValidation *v, HTAB *names)
{
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(v->id), CStringGetTextDatum(v->server)};

	etl_sql_run("SELECT t.destination_table, format('%I.%I of pipeline \"%s\"', t.schema_name, t.table_name, p.name)"
				" FROM etl.table_state t JOIN etl.pipeline p ON p.id = t.pipeline_id"
				" WHERE p.id <> $1 AND p.server = $2 AND t.destination_table IS NOT NULL",
				2, types, values, NULL);
	for (uint64 i = 0; i < SPI_processed; i++)
		(void) enter_name(names,
						  SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1),
						  SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2));
}

/* To be looked for at the destination, where it must not be yet. */
static void
note_wanted(EtlValidation *v, const char *name, const char *target, const EtlOptions *options)
{
	const char *if_exists = etl_option_text(options, "if_exists");
	MemoryContext old;
	EtlWantedName *wanted;

	if (if_exists && strcmp(if_exists, "replace") == 0)
		return;
	old = MemoryContextSwitchTo(v->context);
	wanted = palloc_object(EtlWantedName);
	wanted->name = pstrdup(name);
	wanted->target = pstrdup(target);
	v->names = lappend(v->names, wanted);
	MemoryContextSwitchTo(old);
}

static void
check_names(EtlValidation *v, HTAB *names, const char *target, const EtlShape *shape,
			const EtlOptions *options)
{
	EtlResult	result = {.status = ETL_DONE};
	List	   *wanted = v->config->routine->table_names(shape, options, &result);
	ListCell   *lc;

	if (wanted == NIL)
		etl_validate_report(v, ETL_ERROR, "name_collision", target, result.hint, "%s", result.message);
	foreach(lc, wanted)
		note_wanted(v, lfirst(lc), target, options);
	foreach(lc, wanted)
	{
		const char *other = enter_name(names, lfirst(lc), target);

		if (other == NULL)
			continue;
		etl_validate_report(v, ETL_ERROR, "name_collision", target,
							"Choose another name with option destination_table of etl.alter_table().",
							"the name \"%s\" at the destination is that of %s, too",
							(char *) lfirst(lc), other);
		break;
	}
}

/* Columns and options that the destination cannot take. */
static void
check_taken(EtlValidation *v, const char *target, const EtlShape *shape, const EtlOptions *options)
{
	EtlResult	result = {.status = ETL_DONE};
	bool		name;

	if (!etl_sql_table_refused(v->config->routine, shape, options, &result))
		return;
	name = result.sqlstate == ERRCODE_RESERVED_NAME || result.sqlstate == ERRCODE_DUPLICATE_COLUMN;
	if (result.sqlstate == ERRCODE_FEATURE_NOT_SUPPORTED)
		etl_validate_report(v, ETL_NOTICE, "not_replicable", target, result.hint,
							"the table will be parked: %s", result.message);
	else
		etl_validate_report(v, ETL_ERROR, name ? "name_collision" : "replica_identity", target,
							result.hint, "%s", result.message);
}

/* ----------
 * All of them
 * ----------
 */

/* Table "rule" of the publication; false when it is gone meanwhile. */
static bool
check_table(EtlValidation *v, const EtlRule *rule, HTAB *names)
{
	Relation	relation = try_relation_open(rule->relid, AccessShareLock);
	const EtlOptions *options = NULL;
	const char *target;
	EtlShape   *shape;

	if (relation == NULL)
		return false;
	target = etl_sql_table_name(rule->relid);
	shape = etl_shape_build(relation, rule->columns, true);
	if (v->config != NULL)
		options = etl_config_table_options(v->config, rule->schema_name, rule->table_name);

	check_identity(v, target, relation, rule, shape, options);
	check_rights(v, target, rule, shape);
	check_generated(v, target, rule, shape, options);
	if (v->config != NULL)
		check_taken(v, target, shape, options);
	if (v->config != NULL && v->config->routine->table_names != NULL)
		check_names(v, names, target, shape, options);
	relation_close(relation, AccessShareLock);
	return true;
}

static const EtlRule *
find_rule(List *rules, Oid relid)
{
	ListCell   *lc;

	foreach(lc, rules)
		if (((EtlRule *) lfirst(lc))->relid == relid)
			return lfirst(lc);
	return NULL;
}

/* Partition "rule" of a table that is published as a whole. */
static void
check_leaf(EtlValidation *v, const EtlRule *rule, List *rules)
{
	const EtlRule *root_rule = find_rule(rules, rule->root);
	Relation	root;
	Relation	leaf;

	if (root_rule == NULL || root_rule->excluded ||
		(root_rule->operations & (ETL_PUBLISH_UPDATE | ETL_PUBLISH_DELETE)) == 0)
		return;
	root = try_relation_open(rule->root, AccessShareLock);
	if (root == NULL)
		return;
	leaf = try_relation_open(rule->relid, AccessShareLock);
	if (leaf != NULL)
	{
		check_leaf_identity(v, etl_sql_table_name(rule->relid), leaf, root, root_rule);
		relation_close(leaf, AccessShareLock);
	}
	relation_close(root, AccessShareLock);
}

void
etl_validate_tables(EtlValidation *v)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "etl validation of a table",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = CurrentMemoryContext;
	HTAB	   *names = make_names();
	List	   *rules;
	ListCell   *lc;
	bool		found;
	int			own = 0;
	int			tables = 0;

	etl_rules_load_local_schemas();
	rules = etl_rules_read(v->publication, InvalidXLogRecPtr, &found);
	if (!found)
	{
		etl_validate_report(v, ETL_ERROR, "publication_exists", v->publication,
							psprintf("CREATE PUBLICATION %s FOR TABLE ... makes one.",
									 quote_identifier(v->publication)),
							"publication \"%s\" does not exist", v->publication);
		return;
	}
	enter_others(v, names);

	foreach(lc, rules)
	{
		const EtlRule *rule = lfirst(lc);
		const char *why = why_not_replicable(rule);

		CHECK_FOR_INTERRUPTS();
		MemoryContextSwitchTo(scratch);
		if (rule->excluded == ETL_EXCLUDED_OURS)
			own++;
		else if (why != NULL)
			etl_validate_report(v, ETL_NOTICE, "not_replicable", etl_sql_table_name(rule->relid), NULL,
								"%s", why);
		else if (OidIsValid(rule->root))
			check_leaf(v, rule, rules);
		else if (check_table(v, rule, names))
			tables++;
		MemoryContextSwitchTo(old);
		MemoryContextReset(scratch);
	}

	if (own > 0)
		etl_validate_report(v, ETL_NOTICE, "own_tables_published", v->publication, NULL,
							"the publication has %d of the extension's own tables, which are never replicated", own);
	if (tables == 0)
		etl_validate_report(v, ETL_WARNING, "publication_empty", v->publication,
							psprintf("ALTER PUBLICATION %s ADD TABLE ... adds tables, also while the pipeline runs.",
									 quote_identifier(v->publication)),
							"publication \"%s\" has no table that is replicated", v->publication);
}
