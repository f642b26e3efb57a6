/*-------------------------------------------------------------------------
 *
 * rules.h
 *	  What happens to this change of this relation?
 *
 * The rules of a publication are versions per table, keyed by the commit
 * position of the transaction that changed them.  A transaction as a whole
 * uses the newest version strictly below its own commit position; a table's
 * first version also covers transactions that began before it.
 *
 * Rules are read from the catalogs in force: current ones in the first
 * bracket after the slot was made, historic ones in commit_cb.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_RULES_H
#define ETL_RULES_H

#include "access/xlogdefs.h"
#include "lib/stringinfo.h"
#include "nodes/bitmapset.h"
#include "nodes/pg_list.h"

#define ETL_PUBLISH_INSERT		0x01
#define ETL_PUBLISH_UPDATE		0x02
#define ETL_PUBLISH_DELETE		0x04
#define ETL_PUBLISH_TRUNCATE	0x08
#define ETL_PUBLISH_ROWS		(ETL_PUBLISH_INSERT | ETL_PUBLISH_UPDATE | ETL_PUBLISH_DELETE)

/* Why a published relation is not replicated (table_status.excluded_reason). */
typedef enum EtlExcluded
{
	ETL_NOT_EXCLUDED = 0,
	ETL_EXCLUDED_UNLOGGED,
	ETL_EXCLUDED_FOREIGN,
	ETL_EXCLUDED_OURS			/* schema etl or a registered local schema */
} EtlExcluded;

/* One version of one table's rule. */
typedef struct EtlRule
{
	Oid			relid;
	XLogRecPtr	from_lsn;		/* commit position that made it; 0: from ever */
	bool		published;		/* false: left the publication here */
	bool		dropped;		/* ... because the table is gone */
	uint8		operations;		/* ETL_PUBLISH_ bits */
	uint8		excluded;		/* EtlExcluded */
	bool		partitioned;	/* published as a whole: a partitioned table */
	Oid			root;			/* a partition published as a part of this
								 * table, which has a rule of its own */
	bool		generated;		/* stored generated columns too, listed or not */
	Bitmapset  *columns;		/* attnums, NULL = all */
	char	   *filter;			/* see filter.h, NULL = all rows */
	char	   *schema_name;
	char	   *table_name;
} EtlRule;

extern const char *etl_excluded_name(EtlExcluded excluded); /* NULL for none */

/*
 * Is the rule that of a table with a place at the destination?  Else it has
 * left the publication, or its rows are those of its root.
 */
static inline bool
etl_rule_is_table(const EtlRule *rule)
{
	return rule->published && !OidIsValid(rule->root);
}

/*
 * All tables of the publication under the catalogs in force, and under
 * publish_via_partition_root their partitions, as a list of EtlRule * with
 * from_lsn as given.  NIL with *found false when there is no such publication.
 */
extern List *etl_rules_read(const char *publication, XLogRecPtr from_lsn, bool *found);

/* One relation's rule under the catalogs in force (published = false if it is out). */
extern EtlRule *etl_rules_read_relation(const char *publication, Oid relid, XLogRecPtr from_lsn);

/* Is this schema ours (etl or registered in etl.local_schema)? */
extern bool etl_rules_own_schema(Oid namespace_oid);

/* Read etl.local_schema; in a bracket, at start and when configuration changed. */
extern void etl_rules_load_local_schemas(void);

extern EtlRule *etl_rule_copy(const EtlRule *rule);

/* Do the two say the same (positions and names aside)? */
extern bool etl_rule_equal(const EtlRule *a, const EtlRule *b);

/* Flat form of a list of EtlRule *, for RULES records and etl.rule_history. */
extern void etl_rules_serialize(List *rules, StringInfo out);
extern List *etl_rules_deserialize(const char *data, uint32 len);

#endif							/* ETL_RULES_H */
