/*-------------------------------------------------------------------------
 *
 * registry.c
 *	  Kinds of destinations: finding a routine, validators of our wrappers.
 *
 * A kind is a foreign-data wrapper without handler whose option etl_handler
 * names a C function "schema.function(internal) RETURNS internal" that
 * returns a const EtlDestinationRoutine.  The library of that function stays loaded for
 * the life of the process, so routines may be kept.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "parser/parse_func.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "catalog/config.h"
#include "compat.h"
#include "destination/http_options.h"
#include "destination/registry.h"

/* Kinds made for an older interface have routines at least this long. */
#define MIN_ROUTINE_SIZE	offsetof(EtlDestinationRoutine, drop_table)

const char *const etl_compression_values[] = {"none", "gzip", "lz4", "zstd", NULL};

/* Handlers of our own kinds, each in its folder. */
extern Datum etl_clickhouse_handler(PG_FUNCTION_ARGS);
extern Datum etl_webhook_handler(PG_FUNCTION_ARGS);
extern Datum etl_null_handler(PG_FUNCTION_ARGS);

PG_FUNCTION_INFO_V1(etl_clickhouse_validator);
PG_FUNCTION_INFO_V1(etl_webhook_validator);
PG_FUNCTION_INFO_V1(etl_null_validator);

/* A shorter routine, made whole: what it does not have is zero. */
typedef struct EtlPaddedRoutine
{
	const EtlDestinationRoutine *original;
	EtlDestinationRoutine whole;
} EtlPaddedRoutine;

static List *padded_routines = NIL;

static const EtlDestinationRoutine *
pad_routine(const EtlDestinationRoutine *routine)
{
	MemoryContext old;
	EtlPaddedRoutine *padded;
	ListCell   *lc;

	foreach(lc, padded_routines)
	{
		padded = lfirst(lc);
		if (padded->original == routine)
			return &padded->whole;
	}
	old = MemoryContextSwitchTo(TopMemoryContext);
	padded = palloc0(sizeof(EtlPaddedRoutine));
	padded->original = routine;
	memcpy(&padded->whole, routine, routine->size);
	padded_routines = lappend(padded_routines, padded);
	MemoryContextSwitchTo(old);
	return &padded->whole;
}

/* Is what a handler returned usable?  Never trust it further than its head. */
static const EtlDestinationRoutine *
check_routine(const EtlDestinationRoutine *routine, const char *handler)
{
	if (routine == NULL || routine->magic != ETL_DESTINATION_MAGIC)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s did not return a routine of a destination", handler)));
	if (routine->version != ETL_DESTINATION_VERSION || routine->size < MIN_ROUTINE_SIZE)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("function %s is made for another version of etl", handler),
				 errdetail("It has version %u of the interface, etl has version %u.",
						   routine->version, ETL_DESTINATION_VERSION),
				 errhint("Install a version of the library that fits.")));
	if (routine->size < sizeof(EtlDestinationRoutine))
		return pad_routine(routine);
	return routine;
}

/* Call the function that option etl_handler names. */
static const EtlDestinationRoutine *
call_handler(const char *handler)
{
	List	   *names = etl_qualified_name(handler);
	Oid			argtypes[] = {INTERNALOID};
	Oid			function;
	Datum		result;

	if (list_length(names) != 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for option \"%s\": \"%s\"", "etl_handler", handler),
				 errhint("Name a function with its schema: schema.function.")));
	function = LookupFuncName(names, 1, argtypes, false);
	if (get_func_rettype(function) != INTERNALOID)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("function %s must return type %s", handler, "internal")));
	result = OidFunctionCall1(function, PointerGetDatum(NULL));
	return check_routine((const EtlDestinationRoutine *) DatumGetPointer(result),
						 handler);
}

/* Value of option etl_handler among a wrapper's options, or NULL. */
static const char *
handler_option(List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "etl_handler") == 0)
			return defGetString(option);
	}
	return NULL;
}

const EtlDestinationRoutine *
etl_routine_for_wrapper(Oid wrapper_oid, bool missing_ok)
{
	ForeignDataWrapper *wrapper = GetForeignDataWrapper(wrapper_oid);
	const char *handler = handler_option(wrapper->options);

	if (handler == NULL)
	{
		if (missing_ok)
			return NULL;
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("foreign-data wrapper \"%s\" is no kind of destination", wrapper->fdwname),
				 errhint("Use a server of a wrapper that has the option \"etl_handler\".")));
	}
	return call_handler(handler);
}

const EtlDestinationRoutine *
etl_routine_for_server(Oid server_oid)
{
	return etl_routine_for_wrapper(GetForeignServer(server_oid)->fdwid, false);
}

List *
etl_routine_list(void)
{
	Relation	rel = table_open(ForeignDataWrapperRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	List	   *oids = NIL;
	List	   *result = NIL;
	HeapTuple	tuple;
	ListCell   *lc;

	while ((tuple = systable_getnext(scan)) != NULL)
		oids = lappend_oid(oids, ((Form_pg_foreign_data_wrapper) GETSTRUCT(tuple))->oid);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	foreach(lc, oids)
	{
		const EtlDestinationRoutine *routine = etl_routine_for_wrapper(lfirst_oid(lc), true);

		if (routine != NULL)
			result = list_append_unique_ptr(result, unconstify(EtlDestinationRoutine *, routine));
	}
	return result;
}

/* ----------
 * Validators: a wrapper's validator learns neither wrapper nor server, so
 * each of our wrappers has one of its own.
 * ----------
 */
static const EtlDestinationRoutine *
own_routine(PGFunction handler)
{
	LOCAL_FCINFO(fcinfo, 1);

	InitFunctionCallInfoData(*fcinfo, NULL, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = PointerGetDatum(NULL);
	fcinfo->args[0].isnull = false;
	return (const EtlDestinationRoutine *) DatumGetPointer(handler(fcinfo));
}

Datum
etl_clickhouse_validator(PG_FUNCTION_ARGS)
{
	etl_options_validate(own_routine(etl_clickhouse_handler), PG_GETARG_DATUM(0), PG_GETARG_OID(1));
	PG_RETURN_VOID();
}

Datum
etl_webhook_validator(PG_FUNCTION_ARGS)
{
	etl_options_validate(own_routine(etl_webhook_handler), PG_GETARG_DATUM(0), PG_GETARG_OID(1));
	PG_RETURN_VOID();
}

Datum
etl_null_validator(PG_FUNCTION_ARGS)
{
	etl_options_validate(own_routine(etl_null_handler), PG_GETARG_DATUM(0), PG_GETARG_OID(1));
	PG_RETURN_VOID();
}
