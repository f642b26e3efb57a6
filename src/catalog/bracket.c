/*-------------------------------------------------------------------------
 *
 * bracket.c
 *	  Transactions as named brackets.
 *
 * A bracket is a transaction with SPI connected and a snapshot pushed.  Its
 * writes carry DoNotReplicateId as their origin, so that no pipeline (also
 * none of a FOR ALL TABLES publication) sees the bookkeeping of another.
 *
 * Users' locks mean "later": lock_timeout is short inside, and
 * etl_bracket_try() turns the error that follows into a value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/origin.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "catalog/bracket.h"

/* How long a bracket waits for a lock. */
#define BRACKET_LOCK_TIMEOUT "100ms"

/* The open bracket; its caller's memory context is restored behind it. */
static EtlBracketKind current_kind;
static MemoryContext outer_context = NULL;

void
etl_bracket_begin(EtlBracketKind kind, const char *name)
{
	Assert(!IsTransactionState());

	current_kind = kind;
	outer_context = CurrentMemoryContext;

	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, name);
	StartTransactionCommand();

	/*
	 * A process whose flag is set is missing from other sessions' snapshots:
	 * they would take what it writes for aborted.
	 */
	Assert(!(MyProc->statusFlags & PROC_IN_LOGICAL_DECODING));

	if (kind == ETL_BRACKET_DECODER)
		InvalidateSystemCaches();
	if (kind == ETL_BRACKET_WRITE)
		replorigin_session_origin = DoNotReplicateId;
	else
		XactReadOnly = true;

	(void) set_config_option("lock_timeout", BRACKET_LOCK_TIMEOUT,
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
							 true, 0, false);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	PushActiveSnapshot(GetTransactionSnapshot());
}

/* What follows a bracket, whichever way it ended. */
static void
leave_bracket(void)
{
	replorigin_session_origin = InvalidRepOriginId;
	if (current_kind == ETL_BRACKET_DECODER)
		InvalidateSystemCaches();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	MemoryContextSwitchTo(outer_context);
}

void
etl_bracket_commit(void)
{
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");
	PopActiveSnapshot();
	CommitTransactionCommand();
	leave_bracket();
}

/* Errors that mean "somebody else was there": try later. */
static bool
is_contention(int sqlstate)
{
	return sqlstate == ERRCODE_LOCK_NOT_AVAILABLE ||
		sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED ||
		sqlstate == ERRCODE_T_R_SERIALIZATION_FAILURE;
}

bool
etl_bracket_try(EtlBracketKind kind, const char *name, void (*body) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		etl_bracket_begin(kind, name);
		body(arg);
		etl_bracket_commit();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		AbortOutOfAnyTransaction();
		leave_bracket();
		MemoryContextSwitchTo(context);

		if (!is_contention(edata->sqlerrcode))
			ReThrowError(edata);
		FreeErrorData(edata);
		return false;
	}
	PG_END_TRY();

	return true;
}

bool
etl_extension_present(void)
{
	return OidIsValid(get_extension_oid("etl", true));
}

typedef struct Existence
{
	Oid			relid;
	bool		exists;
} Existence;

static void
look_for_relation(void *arg)
{
	Existence  *existence = arg;

	existence->exists = SearchSysCacheExists1(RELOID, ObjectIdGetDatum(existence->relid));
}

int
etl_relation_exists(Oid relid)
{
	Existence	existence = {relid, false};

	if (IsTransactionState())
		look_for_relation(&existence);
	else if (!etl_bracket_try(ETL_BRACKET_READ, "etl: looking for a table",
							  look_for_relation, &existence))
		return -1;
	return existence.exists;
}
