/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  The only file that knows versions of PostgreSQL.
 *
 * Code is written to one API; what differs between the supported majors (15
 * and newer) is bridged here, newest spelling first.  Include it after the
 * headers of the server whose functions it wraps.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_COMPAT_H
#define ETL_COMPAT_H

/* Macros of variable-length values: in postgres.h before 16. */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* Typed allocation: not in the first minor releases of 15. */
#ifndef palloc_object
#define palloc_object(type) ((type *) palloc(sizeof(type)))
#define palloc0_object(type) ((type *) palloc0(sizeof(type)))
#define palloc_array(type, count) ((type *) palloc(sizeof(type) * (count)))
#define palloc0_array(type, count) ((type *) palloc0(sizeof(type) * (count)))
#endif

/* Drop the temporary slots of this process (17 can spare synced ones). */
#if PG_VERSION_NUM >= 170000
#define etl_slot_cleanup()	ReplicationSlotCleanup(false)
#else
#define etl_slot_cleanup()	ReplicationSlotCleanup()
#endif

/* Does a role own a database? */
#if PG_VERSION_NUM >= 160000
#define etl_database_ownercheck(database, role) \
	object_ownercheck(DatabaseRelationId, database, role)
#else
#define etl_database_ownercheck(database, role) \
	pg_database_ownercheck(database, role)
#endif

/* May a role use a foreign server? */
#if PG_VERSION_NUM >= 160000
#define etl_server_aclcheck(server, role) \
	object_aclcheck(ForeignServerRelationId, server, role, ACL_USAGE)
#else
#define etl_server_aclcheck(server, role) \
	pg_foreign_server_aclcheck(server, role, ACL_USAGE)
#endif

/* Wait event of our own waits; named where the server can name it. */
#if PG_VERSION_NUM >= 170000
#define etl_wait_event_new(name)	WaitEventExtensionNew(name)
#else
#define etl_wait_event_new(name)	PG_WAIT_EXTENSION
#endif

/* A module with a name and a version, where the server can show them (18). */
#if PG_VERSION_NUM >= 180000
#define ETL_MODULE_MAGIC	PG_MODULE_MAGIC_EXT(.name = "etl", .version = "1.0")
#else
#define ETL_MODULE_MAGIC	PG_MODULE_MAGIC
#endif

#endif							/* ETL_COMPAT_H */
