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

/* Functions that do not return: a prefix since 18. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/* The parts of a qualified name; ERROR if malformed (utils/regproc.h). */
#if PG_VERSION_NUM >= 160000
#define etl_qualified_name(text)	stringToQualifiedNameList(text, NULL)
#else
#define etl_qualified_name(text)	stringToQualifiedNameList(text)
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

/* Write a non-transactional logical message (17 can flush it at once). */
#if PG_VERSION_NUM >= 170000
#define etl_log_message(prefix, message, size) \
	LogLogicalMessage(prefix, message, size, false, true)
#else
#define etl_log_message(prefix, message, size) \
	LogLogicalMessage(prefix, message, size, false)
#endif

/* Wait event of our own waits; named where the server can name it. */
#if PG_VERSION_NUM >= 170000
#define etl_wait_event_new(name)	WaitEventExtensionNew(name)
#else
#define etl_wait_event_new(name)	PG_WAIT_EXTENSION
#endif

/* An index scan for conditions alone (access/genam.h). */
#if PG_VERSION_NUM >= 180000
#define etl_index_beginscan(relation, index, snapshot, nkeys) \
	index_beginscan(relation, index, snapshot, NULL, nkeys, 0)
#else
#define etl_index_beginscan(relation, index, snapshot, nkeys) \
	index_beginscan(relation, index, snapshot, nkeys, 0)
#endif

/* A module with a name and a version, where the server can show them (18). */
#if PG_VERSION_NUM >= 180000
#define ETL_MODULE_MAGIC	PG_MODULE_MAGIC_EXT(.name = "etl", .version = "1.0")
#else
#define ETL_MODULE_MAGIC	PG_MODULE_MAGIC
#endif

/* Virtual generated columns in an expression (rewrite/rewriteHandler.h; 18). */
#if PG_VERSION_NUM >= 180000
#define etl_expand_generated_columns(node, relation, index) \
	expand_generated_columns_in_expr(node, relation, index)
#else
#define etl_expand_generated_columns(node, relation, index) (node)
#endif

/* Does the publication publish stored generated columns that are in no list?  Before 18: it does not say. */
#if PG_VERSION_NUM >= 180000
#define etl_publishes_generated(publication) \
	((publication)->pubgencols_type == PUBLISH_GENCOLS_STORED)
#else
#define etl_publishes_generated(publication) true
#endif

/* Does it say (so that nothing has to be recorded for what is created)? */
#if PG_VERSION_NUM >= 180000
#define ETL_PUBLICATION_SAYS_GENERATED true
#else
#define ETL_PUBLICATION_SAYS_GENERATED false
#endif

/*
 * May attribute "i" of a table be null (access/tupdesc.h)?  Since 18 there are
 * NOT NULL constraints that older rows need not meet (NOT VALID).
 */
#if PG_VERSION_NUM >= 180000
#define etl_attribute_is_nullable(desc, i) \
	(TupleDescCompactAttr(desc, i)->attnullability != ATTNULLABLE_VALID)
#else
#define etl_attribute_is_nullable(desc, i)	(!TupleDescAttr(desc, i)->attnotnull)
#endif

/* ----------
 * Logical decoding.  Users include replication/logical.h and slot.h first.
 * ----------
 */

/* The heap tuple of a decoded change, or NULL. */
#if PG_VERSION_NUM >= 170000
#define etl_change_tuple(t) (t)
#else
#define etl_change_tuple(t) ((t) ? &(t)->tuple : NULL)
#endif

/* Has the slot lost the WAL it needs?  Caller holds the slot's mutex. */
#if PG_VERSION_NUM >= 160000
#define etl_slot_invalidated(slot) ((slot)->data.invalidated != RS_INVAL_NONE)
#else
#define etl_slot_invalidated(slot) \
	(XLogRecPtrIsInvalid((slot)->data.restart_lsn) && \
	 !XLogRecPtrIsInvalid((slot)->data.invalidated_at))
#endif

/* A logical slot of this database, without two-phase and failover. */
#if PG_VERSION_NUM >= 190000
#define etl_slot_create(name, persistency) \
	ReplicationSlotCreate(name, true, persistency, false, false, false, false)
#elif PG_VERSION_NUM >= 170000
#define etl_slot_create(name, persistency) \
	ReplicationSlotCreate(name, true, persistency, false, false, false)
#else
#define etl_slot_create(name, persistency) \
	ReplicationSlotCreate(name, true, persistency, false)
#endif

#if PG_VERSION_NUM >= 180000
#define etl_slot_acquire_nowait(name)	ReplicationSlotAcquire(name, true, true)
#else
#define etl_slot_acquire_nowait(name)	ReplicationSlotAcquire(name, true)
#endif

#if PG_VERSION_NUM >= 190000
#define etl_check_decoding_requirements()	CheckLogicalDecodingRequirements(false)
#else
#define etl_check_decoding_requirements()	CheckLogicalDecodingRequirements()
#endif

/* CreateInitDecodingContext() of our plugin; "..." is an XL_ROUTINE(). */
#if PG_VERSION_NUM >= 190000
#define etl_create_init_decoding_context(full, ...) \
	CreateInitDecodingContext("etl", NIL, full, false, InvalidXLogRecPtr, \
							  __VA_ARGS__, NULL, NULL, NULL)
#else
#define etl_create_init_decoding_context(full, ...) \
	CreateInitDecodingContext("etl", NIL, full, InvalidXLogRecPtr, \
							  __VA_ARGS__, NULL, NULL, NULL)
#endif

/*
 * Index of the primary key, as a relation's index list knows it.  A deferrable
 * one may break off in the middle of a transaction and identifies no row; 17
 * lists it all the same.
 */
#if PG_VERSION_NUM >= 170000
#define etl_primary_key(relation) \
	((relation)->rd_ispkdeferrable ? InvalidOid : (relation)->rd_pkindex)
#else
#define etl_primary_key(relation)	((relation)->rd_pkindex)
#endif

#endif							/* ETL_COMPAT_H */
