/*-------------------------------------------------------------------------
 *
 * common.h
 *	  What all SQL-callable functions of etl share.
 *
 * Every such function has the same frame: check arguments and rights as the
 * caller, then switch to the extension's owner for what it reads and writes
 * in schema etl, then switch back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SQL_COMMON_H
#define ETL_SQL_COMMON_H

#include "access/tupdesc.h"
#include "fmgr.h"
#include "utils/jsonb.h"

#include "etl/destination.h"

/* What etl_sql_enter() changed and etl_sql_leave() restores. */
typedef struct EtlSqlFrame
{
	Oid			caller;
	int			security_context;
	int			guc_level;
	Oid			owner;			/* of the extension */
} EtlSqlFrame;

/*
 * Become the extension's owner with a safe search_path and SPI connected.
 * An ERROR in between is cleaned up by the (sub)transaction's abort.
 */
extern void etl_sql_enter(EtlSqlFrame *frame);
extern void etl_sql_leave(EtlSqlFrame *frame);

/*
 * Materialize mode for a function that returns rows of "ncolumns" columns.
 * ERROR 55000 when the installed SQL objects are of another version: the
 * library may be newer than they are until ALTER EXTENSION etl UPDATE.
 */
extern void etl_sql_rows(FunctionCallInfo fcinfo, int ncolumns);
extern void etl_sql_check_row_type(TupleDesc desc, int ncolumns);

/* For a moment the caller again (checks of the caller's rights), and back. */
extern void etl_sql_suspend(const EtlSqlFrame *frame);
extern void etl_sql_resume(const EtlSqlFrame *frame);

/* A pipeline's row, palloc'd in the SPI procedure's context. */
typedef struct EtlPipelineRow
{
	int64		id;
	Oid			owner;
	char	   *name;
	char	   *publication;
	char	   *server;
	Jsonb	   *options;
	bool		enabled;
	bool		dropping;
} EtlPipelineRow;

/* Caller must be superuser or have REPLICATION: ERROR 42501. */
extern void etl_sql_require_role(void);

/* Arguments that must not be NULL: ERROR 22004. */
extern void etl_sql_require_arg(FunctionCallInfo fcinfo, int number, const char *name);
extern char *etl_sql_text_arg(FunctionCallInfo fcinfo, int number, const char *name);
extern bool etl_sql_bool_arg(FunctionCallInfo fcinfo, int number, const char *name);
extern Oid	etl_sql_oid_arg(FunctionCallInfo fcinfo, int number, const char *name);
extern Jsonb *etl_sql_jsonb_arg(FunctionCallInfo fcinfo, int number, const char *name);

/* A name for something new: 1 to 63 bytes. */
extern void etl_sql_check_name(const char *name, const char *what);

/*
 * Find a pipeline and check that the caller may act for its owner.  Between
 * enter and leave; "lock" also locks the row against other SQL functions,
 * without it the newest committed row is read.
 * NULL only with missing_ok.
 */
extern EtlPipelineRow *etl_sql_find_pipeline(const EtlSqlFrame *frame, const char *name,
											 bool lock, bool missing_ok);

/* ERROR 55000 if the pipeline is on its way out. */
extern void etl_sql_refuse_dropping(const EtlPipelineRow *pipeline);

/* Run a query with bigint and other arguments; returns SPI_processed. */
extern uint64 etl_sql_run(const char *query, int nargs, Oid *types, Datum *values, const char *nulls);

/* First column of the first row of the last etl_sql_run(). */
extern Datum etl_sql_value(bool *isnull);

/* Ask for a look at commit if the library is preloaded (else nobody looks). */
extern void etl_sql_look(void);

/* "schema.table", quoted where needed, or the OID of a dropped table. */
extern char *etl_sql_table_name(Oid relid);

/* The routine of a server by name, with the caller's USAGE checked. */
extern const EtlDestinationRoutine *etl_sql_routine(const char *server, Oid caller);

/*
 * Options after a change: checked as a whole (ERROR 22023, 42501), without the
 * nulls that mean "back to the default".  "scope" is one ETL_SCOPE_ bit.
 */
extern Jsonb *etl_sql_check_options(const EtlDestinationRoutine *routine, Jsonb *old_options,
									Jsonb *new_options, uint32 scope);
extern Jsonb *etl_sql_empty_object(void);

/*
 * The options in force for a table whose own are these (NULL: none), but for
 * those of the user mapping: nothing that a session shows depends on them.
 */
extern EtlOptions *etl_sql_options_in_force(const EtlDestinationRoutine *routine, const char *server,
											Jsonb *pipeline, Jsonb *table, Jsonb *columns);

/*
 * Would the destination take no such table, for its columns or options?  Then
 * "result" says why.
 */
extern bool etl_sql_table_refused(const EtlDestinationRoutine *routine, const EtlShape *shape,
								  const EtlOptions *options, EtlResult *result);

#endif							/* ETL_SQL_COMMON_H */
