/*-------------------------------------------------------------------------
 *
 * bracket.h
 *	  Transactions as named brackets.
 *
 * The only place where workers begin and end transactions of their own.  A
 * bracket pins search_path and user, uses a short lock_timeout (a user's
 * lock means "later", never "wait"), and marks writes with DoNotReplicateId.
 *
 * A decoding process opens read-only brackets alone, and empties its catalog
 * caches at both ends (the first law: historic and current entries must never
 * meet).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_BRACKET_H
#define ETL_BRACKET_H

#include "postgres_ext.h"
#include "nodes/pg_list.h"

typedef enum EtlBracketKind
{
	ETL_BRACKET_WRITE,			/* writer, check, sync before and after its copy */
	ETL_BRACKET_READ,			/* the same processes, reading */
	ETL_BRACKET_DECODER			/* apply and sync in catch-up: read only */
} EtlBracketKind;

/* Begin; SPI is connected, schema etl is usable.  "name" is shown as activity. */
extern void etl_bracket_begin(EtlBracketKind kind, const char *name);
extern void etl_bracket_commit(void);

/*
 * Run "body(arg)" in a bracket.  Returns true when it committed; false, after
 * a clean abort, when a lock was not to be had in time (SQLSTATE 55P03), a
 * deadlock or serialization failure broke it, or the query was cancelled by
 * lock_timeout: try later.  Other errors pass through.
 */
extern bool etl_bracket_try(EtlBracketKind kind, const char *name, void (*body) (void *arg), void *arg);

/* Is the extension still there?  Call in a bracket. */
extern bool etl_extension_present(void);

/*
 * Is there a relation with this OID now?  1 or 0, -1 when a lock is in the
 * way.  In a transaction, or in a bracket of its own; not in a decoder.
 */
extern int	etl_relation_exists(Oid relid);

#endif							/* ETL_BRACKET_H */
