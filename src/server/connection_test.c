/*-------------------------------------------------------------------------
 *
 * connection_test.c
 *	  A user asks whether a destination can be reached; a worker tries.
 *
 * The backend makes a small segment with what is to be tested and a message
 * queue, registers a check worker, and waits for its answers:
 *
 *	 backend		segment, worker, wait, take answers, worker gone
 *	 check worker	read the definition (a bracket), connect (no transaction),
 *					send one message a check, end
 *
 * The worker gives itself TEST_LIMIT; the backend a little more.  When the
 * backend is cancelled, or gone, the segment is detached and the worker gets
 * SIGTERM.
 *
 * The worker sees what is committed, and nothing else.  So a destination that
 * the asking transaction has just made or changed is not tested.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shm_mq.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "catalog/bracket.h"
#include "catalog/config.h"
#include "catalog/options.h"
#include "compat.h"
#include "server/connection_test.h"
#include "server/launcher.h"

#define TEST_LIMIT		10000	/* ms for the destination */
#define TEST_GRACE		2000	/* ms on top, for worker and postmaster */
#define TEST_QUEUE		16384	/* bytes */

/* Head of the segment; the queue is behind it, and the names behind that. */
typedef struct TestHead
{
	Oid			server;
	Oid			role;
	int64		pipeline;		/* 0: none */
	int			nnames;			/* each with its terminating zero */
} TestHead;

#define QUEUE_OFFSET	MAXALIGN(sizeof(TestHead))
#define NAMES_OFFSET	(QUEUE_OFFSET + TEST_QUEUE)

static shm_mq *
queue_of(dsm_segment *segment)
{
	return (shm_mq *) ((char *) dsm_segment_address(segment) + QUEUE_OFFSET);
}

/* ----------
 * The backend that asks
 * ----------
 */

static List *
untested(List *rows, int64 elapsed, const char *hint, const char *fmt,...) pg_attribute_printf(4, 5);

/* Nobody knows; "fmt" says why. */
static List *
untested(List *rows, int64 elapsed, const char *hint, const char *fmt,...)
{
	EtlTestRow *row = palloc0_object(EtlTestRow);
	StringInfoData message;
	va_list		args;
	int			needed;

	initStringInfo(&message);
	appendStringInfoString(&message, "could not be tested: ");
	for (;;)
	{
		va_start(args, fmt);
		needed = appendStringInfoVA(&message, fmt, args);
		va_end(args);
		if (needed == 0)
			break;
		enlargeStringInfo(&message, needed);
	}
	row->check_name = ETL_CHECK_CONNECT;
	row->message = message.data;
	row->hint = hint ? pstrdup(hint) : NULL;
	row->elapsed = elapsed;
	return lappend(rows, row);
}

/* Has this transaction made or changed the tuple?  Releases it. */
static bool
is_own_change(HeapTuple tuple)
{
	bool		own;

	if (!HeapTupleIsValid(tuple))
		return false;
	own = TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
	ReleaseSysCache(tuple);
	return own;
}

static bool
is_uncommitted(Oid server, Oid role)
{
	return is_own_change(SearchSysCache1(FOREIGNSERVEROID, ObjectIdGetDatum(server))) ||
		is_own_change(SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(role),
									  ObjectIdGetDatum(server))) ||
		is_own_change(SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(InvalidOid),
									  ObjectIdGetDatum(server)));
}

/* on_dsm_detach callback: nobody listens any more. */
static void
end_worker(dsm_segment *segment, Datum arg)
{
	TerminateBackgroundWorker((BackgroundWorkerHandle *) DatumGetPointer(arg));
}

/* One message: texts, each with its terminating zero. */
static EtlTestRow *
parse_row(const char *data, Size len)
{
	EtlTestRow *row = palloc0_object(EtlTestRow);
	char	   *copy = palloc(len + 1);
	const char *end = copy + len;
	char	   *fields[5];

	memcpy(copy, data, len);
	copy[len] = '\0';
	for (int i = 0; i < lengthof(fields); i++)
	{
		if (copy >= end)
			elog(ERROR, "malformed answer of a connection test");
		fields[i] = copy;
		copy += strlen(copy) + 1;
	}
	row->check_name = fields[0];
	row->ok = fields[1][0] == 't';
	row->tested = fields[1][0] != 'u';
	row->elapsed = strtoll(fields[2], NULL, 10);
	row->message = fields[3];
	row->hint = fields[4][0] ? fields[4] : NULL;
	return row;
}

/*
 * Take answers until the worker has gone, or the time is over (false).
 */
static bool
take_rows(shm_mq_handle *queue, TimestampTz deadline, List **rows)
{
	uint32		event = etl_wait_event_new("EtlConnectionTest");

	for (;;)
	{
		Size		len;
		void	   *data;
		shm_mq_result result = shm_mq_receive(queue, &len, &data, true);
		long		left;

		if (result == SHM_MQ_SUCCESS)
		{
			*rows = lappend(*rows, parse_row(data, len));
			continue;
		}
		if (result == SHM_MQ_DETACHED)
			return true;
		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);
		if (left <= 0)
			return false;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, left, event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* The segment, with what is asked. */
static dsm_segment *
make_segment(Oid server, Oid role, int64 pipeline, List *names)
{
	Size		size = NAMES_OFFSET;
	dsm_segment *segment;
	TestHead   *head;
	char	   *to;
	ListCell   *lc;

	foreach(lc, names)
		size += strlen(lfirst(lc)) + 1;
	segment = dsm_create(size, 0);
	head = dsm_segment_address(segment);
	head->server = server;
	head->role = role;
	head->pipeline = pipeline;
	head->nnames = list_length(names);
	to = (char *) head + NAMES_OFFSET;
	foreach(lc, names)
		to = stpcpy(to, lfirst(lc)) + 1;
	shm_mq_set_receiver(shm_mq_create(queue_of(segment), TEST_QUEUE), MyProc);
	return segment;
}

List *
etl_connection_test(Oid server, Oid role, int64 pipeline, List *names)
{
	EtlWorkerArgs args = {.database = MyDatabaseId,.pipeline = -1,.sync = -1};
	TimestampTz start = GetCurrentTimestamp();
	BackgroundWorkerHandle *worker;
	shm_mq_handle *queue;
	dsm_segment *segment;
	MemoryContext caller;
	List	   *rows = NIL;
	bool		ended;

	if (etl_shared == NULL)
		return untested(NIL, 0, "Add \"etl\" to shared_preload_libraries and restart the server.",
						"etl is not in shared_preload_libraries");
	if (RecoveryInProgress())
		return untested(NIL, 0, "Ask the primary server.", "recovery is in progress");
	if (is_uncommitted(server, role))
		return untested(NIL, 0, "Commit first.", "not committed yet");

	segment = make_segment(server, role, pipeline, names);
	args.test = dsm_segment_handle(segment);
	/* the callback may run when the caller's context is gone already */
	caller = MemoryContextSwitchTo(TopTransactionContext);
	worker = etl_launch(ETL_ROLE_CHECK, &args);
	MemoryContextSwitchTo(caller);
	if (worker == NULL)
	{
		dsm_detach(segment);
		return untested(NIL, 0, "Try again later, or raise max_worker_processes.",
						"no worker process is free");
	}
	on_dsm_detach(segment, end_worker, PointerGetDatum(worker));

	queue = shm_mq_attach(queue_of(segment), segment, worker);
	ended = take_rows(queue, TimestampTzPlusMilliseconds(start, TEST_LIMIT + TEST_GRACE), &rows);
	if (ended)
	{
		cancel_on_dsm_detach(segment, end_worker, PointerGetDatum(worker));
		(void) WaitForBackgroundWorkerShutdown(worker);
	}
	dsm_detach(segment);

	if (!ended)
		return untested(rows, GetCurrentTimestamp() - start, "Try again later.",
						"the worker process gave no answer within %d s",
						(TEST_LIMIT + TEST_GRACE) / 1000);
	if (rows == NIL)
		return untested(NIL, GetCurrentTimestamp() - start,
						"The server's log may say more.", "the worker process ended without an answer");
	return rows;
}

/* ----------
 * The check worker
 * ----------
 */
static TestHead *head;
static shm_mq_handle *answers;
static TimestampTz test_start;

/* Send one answer; "ok" is 't', 'f' or 'u' (untested). */
static void
answer(const char *check_name, char ok, const char *hint, const char *message)
{
	StringInfoData row;

	initStringInfo(&row);
	appendBinaryStringInfo(&row, check_name, strlen(check_name) + 1);
	appendStringInfoChar(&row, ok);
	appendStringInfoChar(&row, '\0');
	appendStringInfo(&row, INT64_FORMAT, (int64) (GetCurrentTimestamp() - test_start));
	appendStringInfoChar(&row, '\0');
	appendBinaryStringInfo(&row, message, strlen(message) + 1);
	appendBinaryStringInfo(&row, hint ? hint : "", hint ? strlen(hint) + 1 : 1);
	(void) shm_mq_send(answers, row.len, row.data, false, true);
	pfree(row.data);
}

/* What the bracket has found. */
typedef struct Test
{
	EtlConfig  *config;			/* NULL: not there */
	bool		has_mapping;
	bool		owner_is_superuser;
	char	   *role;			/* name */
} Test;

static void
load_body(void *arg)
{
	Test	   *test = arg;
	Oid			role;

	if (!etl_extension_present())
		return;
	if (head->pipeline != 0)
		test->config = etl_config_load(head->pipeline, true, EtlWorkerContext);
	else
		test->config = etl_config_load_destination(head->server, head->role, EtlWorkerContext);
	if (test->config == NULL)
		return;

	role = test->config->owner;
	test->owner_is_superuser = superuser_arg(role);
	test->role = MemoryContextStrdup(EtlWorkerContext, GetUserNameFromId(role, false));
	test->has_mapping =
		SearchSysCacheExists2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(role),
							  ObjectIdGetDatum(test->config->server_oid)) ||
		SearchSysCacheExists2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(InvalidOid),
							  ObjectIdGetDatum(test->config->server_oid));
}

/* Are the credentials there that the kind cannot do without? */
static bool
check_mapping(const Test *test)
{
	ListCell   *lc;

	foreach(lc, etl_option_defs(test->config->routine, ETL_SCOPE_MAPPING))
	{
		const EtlOptionDef *def = lfirst(lc);

		if ((def->flags & ETL_OPTION_REQUIRED) == 0 ||
			etl_option_text(test->config->options, def->name) != NULL)
			continue;
		answer(ETL_CHECK_MAPPING, 'f',
			   psprintf("Use CREATE USER MAPPING FOR %s SERVER %s.",
						quote_identifier(test->role), quote_identifier(test->config->server)),
			   test->has_mapping ?
			   psprintf("user mapping of role \"%s\" for server \"%s\" lacks option \"%s\"",
						test->role, test->config->server, def->name) :
			   psprintf("role \"%s\" has no user mapping for server \"%s\"",
						test->role, test->config->server));
		return false;
	}
	return true;
}

/*
 * Checks in the order in which a destination makes them: what failed tells
 * that those before it succeeded.
 */
typedef enum Rung
{
	RUNG_CONNECT,
	RUNG_MAPPING,
	RUNG_VERSION,
	RUNG_PRIVILEGES,
	RUNGS
} Rung;

static Rung
failed_rung(int sqlstate)
{
	int			category = ERRCODE_TO_CATEGORY(sqlstate);

	if (category == ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION)
		return RUNG_MAPPING;
	if (sqlstate == ERRCODE_FEATURE_NOT_SUPPORTED)
		return RUNG_VERSION;
	if (sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE)
		return RUNG_PRIVILEGES;
	return RUNG_CONNECT;
}

static void
answer_rungs(const Test *test, const EtlResult *result)
{
	static const struct
	{
		const char *name;
		const char *good;
	}			rungs[RUNGS] = {
		[RUNG_CONNECT] = {ETL_CHECK_CONNECT, "connected"},
		[RUNG_MAPPING] = {ETL_CHECK_MAPPING, "the credentials are accepted"},
		[RUNG_VERSION] = {ETL_CHECK_VERSION, "the version is supported"},
		[RUNG_PRIVILEGES] = {ETL_CHECK_PRIVILEGES, "the user has the rights that are needed"},
	};
	bool		failed = result->status != ETL_DONE;
	Rung		last;

	/* who takes events alone tells no more than that it is there */
	if (failed)
		last = failed_rung(result->sqlstate);
	else
		last = (test->config->routine->abilities & ETL_HAS_SCHEMAS) ? RUNG_PRIVILEGES : RUNG_CONNECT;

	for (int i = 0; i <= last; i++)
	{
		const char *hint = result->hint;

		if (!failed || i < last)
		{
			answer(rungs[i].name, 't', NULL, rungs[i].good);
			continue;
		}
		if (i == RUNG_MAPPING && !test->has_mapping)
			hint = psprintf("Role \"%s\" has no user mapping for server \"%s\"; use CREATE USER MAPPING.",
							test->role, test->config->server);
		else if (hint[0] == '\0')
			hint = psprintf("Check the options of server \"%s\" and of its user mapping, and whether the destination runs.", test->config->server);
		answer(rungs[i].name, 'f', hint, result->message);
	}
}

/* Which of the names are taken?  What cannot be asked shows at the start. */
static void
check_names(const Test *test, EtlConnection *connection)
{
	const EtlDestinationRoutine *routine = test->config->routine;
	int			n = head->nnames;
	const char **names = palloc_array(const char *, n);
	bool	   *taken = palloc0_array(bool, n);
	const char *at = (char *) head + NAMES_OFFSET;
	EtlResult	result = {.status = ETL_DONE,.rejected = -1,.retry_after = -1};

	for (int i = 0; i < n; i++)
	{
		names[i] = at;
		at += strlen(at) + 1;
	}
	routine->find_names(connection, n, names, taken, &result);
	for (int i = 0; i < n && result.status == ETL_DONE; i++)
		if (taken[i])
			answer(ETL_CHECK_TABLE_EXISTS, 'f', NULL, names[i]);
}

static void
run_test(Test *test)
{
	EtlResult	result = {.status = ETL_DONE,.rejected = -1,.retry_after = -1};
	EtlConnectArgs args = {0};
	EtlConfig  *config;
	EtlConnection *connection;

	while (!etl_bracket_try(ETL_BRACKET_READ, "etl: reading what is to be tested", load_body, test))
		(void) etl_worker_wait(100);
	config = test->config;
	if (config == NULL)
	{
		answer(ETL_CHECK_CONNECT, 'u', "Commit first.", "could not be tested: not committed yet");
		return;
	}
	if (!check_mapping(test))
		return;

	args.options = config->options;
	args.source = config->source;
	args.pipeline = config->name;
	args.pipeline_id = config->id;
	args.slot_name = config->slot_name;
	args.epoch = config->epoch;
	args.incarnation = etl_worker_args.incarnation;
	args.is_superuser = test->owner_is_superuser;
	pgstat_report_activity(STATE_RUNNING, "etl: testing a connection");
	connection = config->routine->open(&args);
	config->routine->connect(connection, &result);
	answer_rungs(test, &result);
	if (result.status == ETL_DONE && head->nnames > 0 && config->routine->find_names != NULL)
		check_names(test, connection);
	config->routine->close(connection);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/* The ERROR in flight as an answer. */
static void
answer_error(const Test *test)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(EtlWorkerContext);
	edata = CopyErrorData();
	FlushErrorState();
	AbortOutOfAnyTransaction();
	if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED)
		answer(ETL_CHECK_CONNECT, 'f', "Check the address and the firewalls on the way.",
			   psprintf("the destination did not answer within %d s", TEST_LIMIT / 1000));
	else
		answer(ETL_CHECK_CONNECT, 'f', edata->hint, edata->message);
}

void
etl_connection_test_body(void)
{
	dsm_segment *segment = dsm_attach(etl_worker_args.test);
	Test		test = {0};

	if (segment == NULL)
		return;					/* nobody waits any more */
	head = dsm_segment_address(segment);
	shm_mq_set_sender(queue_of(segment), MyProc);
	answers = shm_mq_attach(queue_of(segment), segment, NULL);
	test_start = GetCurrentTimestamp();

	enable_timeout_after(STATEMENT_TIMEOUT, TEST_LIMIT);
	PG_TRY();
	{
		run_test(&test);
	}
	PG_CATCH();
	{
		answer_error(&test);
	}
	PG_END_TRY();
	disable_timeout(STATEMENT_TIMEOUT, false);
}
