/*-------------------------------------------------------------------------
 *
 * hooks.c
 *	  What users' commands mean for running pipelines.
 *
 * ProcessUtility: commands that need a database for themselves get it (see
 * release.c); a destination or its credentials that change are looked at when
 * that has committed.
 *
 * object_access (OAT_DROP): when extension etl is dropped, the launcher is
 * asked to look at the database when that has committed.  A foreign server
 * that a pipeline uses must not be dropped.  Whether one does is asked behind
 * the command: what goes together with the extension, in whatever order, is
 * not refused, since then there is no pipeline left.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_foreign_server.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "server/hooks.h"
#include "server/release.h"
#include "server/request.h"
#include "server/shmem.h"

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* Names of servers that the running command has dropped (TopTransactionContext). */
static List *dropped_servers = NIL;

/* ----------
 * Commands that need a database for themselves
 * ----------
 */

/* Value of an option of a utility command, NULL if it is not given. */
static DefElem *
find_option(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, name) == 0)
			return option;
	}
	return NULL;
}

/* Name of the database that the command needs alone, or NULL. */
static const char *
exclusive_database(const Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			return ((const DropdbStmt *) statement)->dbname;

		case T_RenameStmt:
			if (((const RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				return ((const RenameStmt *) statement)->subname;
			return NULL;

		case T_AlterDatabaseStmt:
			if (find_option(((const AlterDatabaseStmt *) statement)->options, "tablespace"))
				return ((const AlterDatabaseStmt *) statement)->dbname;
			return NULL;

		case T_CreatedbStmt:
			{
				DefElem    *option = find_option(((const CreatedbStmt *) statement)->options,
												 "template");

				if (option != NULL && option->arg != NULL)
					return defGetString(option);
				return NULL;
			}

		default:
			return NULL;
	}
}

/*
 * May the user run the command on that database?  Who may not shall not make
 * pipelines pause either.
 */
static bool
may_run_on(Oid database, const Node *statement)
{
	HeapTuple	tuple;
	bool		is_template;

	if (etl_database_ownercheck(database, GetUserId()))
		return true;
	if (!IsA(statement, CreatedbStmt))
		return false;

	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(database));
	if (!HeapTupleIsValid(tuple))
		return false;
	is_template = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
	ReleaseSysCache(tuple);
	return is_template;
}

/*
 * Release the database that this command needs, if any.  Kept out of line:
 * inlined, its variables would be the caller's, across its PG_TRY.
 */
static pg_noinline void
release_for(const Node *statement)
{
	const char *name = exclusive_database(statement);
	Oid			database;

	if (name == NULL || etl_shared == NULL)
		return;

	/* most of these fail at once in a transaction block */
	if (!IsA(statement, RenameStmt) && IsTransactionBlock())
		return;

	database = get_database_oid(name, true);
	if (OidIsValid(database) && database != MyDatabaseId &&
		may_run_on(database, statement))
		etl_release_database(database);
}

/* ----------
 * Servers in use
 * ----------
 */

/* Is the pipeline on its way out?  (etl.pipeline_intent) */
static bool
pipeline_is_dropping(Oid intent_relid, int64 id, Snapshot snapshot)
{
	Relation	rel = table_open(intent_relid, AccessShareLock);
	AttrNumber	id_attnum = get_attnum(intent_relid, "pipeline_id");
	AttrNumber	dropping_attnum = get_attnum(intent_relid, "dropping");
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	bool		dropping = false;

	while (!dropping && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;

		if (DatumGetInt64(slot_getattr(slot, id_attnum, &isnull)) == id)
			dropping = DatumGetBool(slot_getattr(slot, dropping_attnum, &isnull));
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	return dropping;
}

/*
 * Name of a pipeline that uses the server, or NULL.  Reads the tables
 * directly: the user of a DROP SERVER need not have rights on them.
 */
static char *
pipeline_using(Oid pipeline_relid, Oid intent_relid, const char *server)
{
	Relation	rel = table_open(pipeline_relid, AccessShareLock);
	AttrNumber	id_attnum = get_attnum(pipeline_relid, "id");
	AttrNumber	name_attnum = get_attnum(pipeline_relid, "name");
	AttrNumber	server_attnum = get_attnum(pipeline_relid, "server");
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	char	   *result = NULL;

	while (result == NULL && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;
		Name		used = DatumGetName(slot_getattr(slot, server_attnum, &isnull));
		int64		id = DatumGetInt64(slot_getattr(slot, id_attnum, &isnull));

		if (strcmp(NameStr(*used), server) == 0 &&
			!pipeline_is_dropping(intent_relid, id, snapshot))
			result = TextDatumGetCString(slot_getattr(slot, name_attnum, &isnull));
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	return result;
}

/* Behind a command: was one of the servers it has dropped in use? */
static void
check_dropped_servers(void)
{
	List	   *servers = dropped_servers;
	ListCell   *lc;
	Oid			schema;
	Oid			pipeline_relid;
	Oid			intent_relid;

	dropped_servers = NIL;
	if (!OidIsValid(get_extension_oid("etl", true)))
		return;
	schema = get_namespace_oid("etl", true);
	if (!OidIsValid(schema))
		return;
	pipeline_relid = get_relname_relid("pipeline", schema);
	intent_relid = get_relname_relid("pipeline_intent", schema);
	if (!OidIsValid(pipeline_relid) || !OidIsValid(intent_relid))
		return;

	foreach(lc, servers)
	{
		const char *server = lfirst(lc);
		char	   *pipeline = pipeline_using(pipeline_relid, intent_relid, server);

		if (pipeline != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
					 errmsg("cannot drop server \"%s\" because pipeline \"%s\" uses it",
							server, pipeline),
					 errhint("Use etl.drop_pipeline() to drop the pipeline first.")));
	}
}

static void
remember_dropped_server(Oid server_oid)
{
	ForeignServer *server;
	MemoryContext oldcontext;

	if (!OidIsValid(get_extension_oid("etl", true)))
		return;
	server = GetForeignServerExtended(server_oid, FSV_MISSING_OK);
	if (server == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(TopTransactionContext);
	dropped_servers = lappend(dropped_servers, pstrdup(server->servername));
	MemoryContextSwitchTo(oldcontext);
}

static bool
is_our_extension(Oid extension)
{
	char	   *name = get_extension_name(extension);

	return name != NULL && strcmp(name, "etl") == 0;
}

/* ----------
 * Destinations that change
 * ----------
 */

/* Name of the server that the command changes, or whose credentials, or NULL. */
static const char *
changed_server(const Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_AlterForeignServerStmt:
			return ((const AlterForeignServerStmt *) statement)->servername;
		case T_CreateUserMappingStmt:
			return ((const CreateUserMappingStmt *) statement)->servername;
		case T_AlterUserMappingStmt:
			return ((const AlterUserMappingStmt *) statement)->servername;
		case T_DropUserMappingStmt:
			return ((const DropUserMappingStmt *) statement)->servername;
		default:
			return NULL;
	}
}

/*
 * Behind a command: have running pipelines read a destination of ours again.
 * Out of line for the same reason as release_for().
 */
static pg_noinline void
look_after_change(const Node *statement)
{
	const char *name = changed_server(statement);
	ForeignServer *server;

	if (name == NULL || etl_shared == NULL ||
		!OidIsValid(get_extension_oid("etl", true)))
		return;
	server = GetForeignServerByName(name, true);
	if (server != NULL &&
		find_option(GetForeignDataWrapper(server->fdwid)->options, "etl_handler"))
		etl_request_look();
}

/* ----------
 * The hooks
 * ----------
 */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);

	if (access != OAT_DROP || subId != 0 || etl_shared == NULL)
		return;
	if (classId == ForeignServerRelationId)
		remember_dropped_server(objectId);
	else if (classId == ExtensionRelationId && is_our_extension(objectId))
		etl_request_look();
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	ProcessUtility_hook_type next =
	prev_process_utility ? prev_process_utility : standard_ProcessUtility;
	bool		dropping_database = IsA(pstmt->utilityStmt, DropdbStmt);

	PG_TRY();
	{
		release_for(pstmt->utilityStmt);
		next(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		if (dropped_servers != NIL)
			check_dropped_servers();
		look_after_change(pstmt->utilityStmt);
	}
	PG_CATCH();
	{
		dropped_servers = NIL;
		etl_release_take_back(false);
		PG_RE_THROW();
	}
	PG_END_TRY();

	etl_release_take_back(dropping_database);
}

void
etl_hooks_install(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	prev_object_access = object_access_hook;
	object_access_hook = object_access;
}
