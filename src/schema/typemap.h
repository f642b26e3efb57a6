/*-------------------------------------------------------------------------
 *
 * typemap.h
 *	  What types of PostgreSQL become at a destination: the mechanism.
 *
 * A kind with schemas has one map: an array of EtlTypeRule, looked through
 * from its beginning, so that special rules stand before general ones.  What
 * the map and the options say about a column is an EtlTypeMapping.  From that
 * one answer the kind makes its table, encodes rows in copy and stream, and
 * tells users (describe_column()), so these cannot differ.
 *
 * Domains are looked through before a map is asked, elements of arrays are
 * asked for like columns (EtlColumn has both); so a map has base types alone.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_TYPEMAP_H
#define ETL_TYPEMAP_H

#include "etl/destination.h"

/* Option value_policy: what is done with a value that the type cannot hold. */
typedef enum EtlValuePolicy
{
	ETL_POLICY_ERROR = 0,		/* the table is parked */
	ETL_POLICY_NULL,			/* it becomes null */
	ETL_POLICY_CLAMP,			/* the nearest value, where there is one */
	ETL_POLICY_TEXT				/* there is no such value: a type that cannot
								 * hold all is not taken, but text */
} EtlValuePolicy;

typedef enum EtlExactness
{
	ETL_EXACT = 0,				/* every value arrives */
	ETL_EXACT_TEXT,				/* every value arrives, as text */
	ETL_EXACT_WITHIN			/* some values are outside */
} EtlExactness;

typedef struct EtlTypeRule
{
	Oid			source;			/* base type; InvalidOid: all of "kind" */
	char		kind;			/* typtype, with source InvalidOid; '\0': any */
	const char *type;			/* text of the destination's type, or */
	const char *(*make) (int32 typmod); /* the same by modifier; returns NULL
										 * where the rule does not apply */
	EtlExactness exactness;
	const char *range;			/* ETL_EXACT_WITHIN: what it holds, in words */
} EtlTypeRule;

typedef struct EtlTypeMapping
{
	const char *type;			/* text of the destination's type */
	EtlExactness exactness;
	const char *range;			/* of an ETL_EXACT_WITHIN rule */
	EtlValuePolicy policy;		/* in force; ETL_POLICY_ERROR where no value is
								 * outside */
	bool		companion;		/* a column behind it says whether it is null */
	bool		zero;			/* a null becomes the type's zero */
} EtlTypeMapping;

/* What the options and the place of a column ask for. */
typedef struct EtlTypeWish
{
	const char *type;			/* option destination_type, or NULL */
	EtlValuePolicy policy;
	bool		nulls;			/* the column may be null */
	bool		never_null;		/* but not there: a null becomes the zero */
	bool		key;			/* rows are told apart by it: two of its values
								 * must not become one */
	bool		sorted;			/* the destination sorts by it */
	bool		flat;			/* it cannot be an array there */
} EtlTypeWish;

/*
 * The first rule for a base type and its text in "*type", in
 * CurrentMemoryContext where it is made.  Every map ends with a rule for
 * whatever is left.
 */
extern const EtlTypeRule *etl_type_rule(const EtlTypeRule *rules, Oid source, int32 typmod,
										char kind, const char **type);

/* The policy that options want for a column. */
extern EtlValuePolicy etl_value_policy(const EtlOptions *options, const char *column);
extern const char *etl_value_policy_name(EtlValuePolicy policy);

#endif							/* ETL_TYPEMAP_H */
