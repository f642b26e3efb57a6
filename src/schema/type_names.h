/*-------------------------------------------------------------------------
 *
 * type_names.h
 *	  What the values of a type are called: labels, attribute names.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_TYPE_NAMES_H
#define ETL_TYPE_NAMES_H

#include "nodes/pg_list.h"

/*
 * Fingerprint of every label and attribute name that values of "type" may show,
 * under the catalogs in force; palloc'd.  NULL: it shows none, as most types.
 */
extern char *etl_type_names(Oid type);

/*
 * Do values that were written when the fingerprint was "old" read the same now
 * that it is "new"?  So it is when labels were added and nothing else.
 */
extern bool etl_type_names_hold(const char *old, const char *new);

/* OIDs of the composites' relations within "type", added to "relids". */
extern List *etl_type_composites(List *relids, Oid type);

#endif							/* ETL_TYPE_NAMES_H */
