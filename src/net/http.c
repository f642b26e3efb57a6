/*-------------------------------------------------------------------------
 *
 * http.c
 *	  The one HTTP driver: curl_multi, bounded, interruptible.
 *
 * Three properties matter more than speed:
 *
 * - The process answers.  Waiting is done in slices by curl_multi_poll(),
 *	 which a signal ends at once; between slices interrupts are served.  A
 *	 resolver that hangs does so in a thread of its own that nobody joins
 *	 (CURLOPT_QUICK_EXIT), and a process that exits cleans up nothing.
 *
 * - Signals stay in the main thread.  Resolver threads inherit the signal
 *	 mask, so all signals are blocked while libcurl may make one; else the
 *	 server's handlers would run there.
 *
 * - Nothing leaks.  Handles are malloc'ed, so each hangs on the reset callback
 *	 of a memory context: the pool's on its own, a transfer's on a child of it,
 *	 which goes first.  An ERROR out of etl_http_poll() needs no care.
 *
 * Life of a transfer: etl_http_start() makes it, with a response already when
 * our own rules refuse it; etl_http_poll() drives it and fills the response
 * when libcurl is done; etl_http_finish() deletes it, at any time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "net/transfer.h"

#if LIBCURL_VERSION_NUM < 0x075700
#error "etl needs libcurl 7.87 or newer"
#endif

#define SLICE_BUSY		100		/* ms in one wait */
#define SLICE_QUIET		250		/* ms, once nothing moved for QUIET_AFTER */
#define QUIET_AFTER		1000	/* ms */

static sigset_t blocked_signals;
static bool curl_ready = false;

/*
 * Initialise libcurl, once in this process and never in the postmaster: it
 * must not be inherited through fork().
 */
static void
global_init(void)
{
	curl_version_info_data *info;

	if (curl_ready)
		return;
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("could not initialize libcurl")));
	info = curl_version_info(CURLVERSION_NOW);
	if (info->version_num < 0x075700 ||
		!(info->features & CURL_VERSION_SSL) ||
		!(info->features & CURL_VERSION_ASYNCHDNS))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("libcurl %s cannot be used", info->version),
				 errdetail("Version 7.87 or newer with TLS and asynchronous name resolution is needed.")));

	/* BlockSig leaves SIGQUIT free, which must not reach a thread either */
	blocked_signals = BlockSig;
	sigaddset(&blocked_signals, SIGQUIT);
	curl_ready = true;
}

/*
 * Reset callback of a pool.  Its transfers are gone: their contexts are
 * children of the pool's.
 */
static void
free_pool(void *arg)
{
	EtlHttp    *http = (EtlHttp *) arg;

	if (!proc_exit_inprogress)
		curl_multi_cleanup(http->multi);
	http->multi = NULL;
}

static const char *
copy_text(const char *text)
{
	return text && *text ? pstrdup(text) : NULL;
}

EtlHttp *
etl_http_create(const EtlHttpSettings *settings)
{
	MemoryContext context;
	MemoryContext old;
	EtlHttp    *http;
	char	   *bad;

	global_init();
	context = AllocSetContextCreate(CurrentMemoryContext, "EtlHttp",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	http = (EtlHttp *) palloc0(sizeof(EtlHttp));
	http->context = context;
	http->settings = *settings;
	http->settings.ca_file = copy_text(settings->ca_file);
	http->settings.client_cert_file = copy_text(settings->client_cert_file);
	http->settings.client_key_file = copy_text(settings->client_key_file);
	http->settings.proxy = copy_text(settings->proxy);
	http->settings.allowed_hosts = copy_text(settings->allowed_hosts);
	http->allowed = etl_host_list_parse(settings->allowed_hosts, &bad);
	dlist_init(&http->transfers);
	INSTR_TIME_SET_CURRENT(http->moved);

	http->multi = curl_multi_init();
	if (http->multi == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	http->callback.func = free_pool;
	http->callback.arg = http;
	MemoryContextRegisterResetCallback(context, &http->callback);
	curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, 16L);
	MemoryContextSwitchTo(old);
	return http;
}

/* Reset callback of a transfer: whoever deletes its context ends it. */
static void
free_transfer(void *arg)
{
	EtlHttpTransfer *t = (EtlHttpTransfer *) arg;

	dlist_delete(&t->node);
	if (!t->ended)
		t->http->active--;
	etl_transfer_release(t);
}

EtlHttpTransfer *
etl_http_start(EtlHttp *http, const EtlHttpRequest *request)
{
	MemoryContext context;
	MemoryContext old;
	EtlHttpTransfer *t;
	sigset_t	mask;

	context = AllocSetContextCreate(http->context, "EtlHttpTransfer",
									ALLOCSET_SMALL_SIZES);
	old = MemoryContextSwitchTo(context);
	t = (EtlHttpTransfer *) palloc0(sizeof(EtlHttpTransfer));
	t->http = http;
	t->context = context;
	dlist_push_tail(&http->transfers, &t->node);
	http->active++;
	t->callback.func = free_transfer;
	t->callback.arg = t;
	MemoryContextRegisterResetCallback(context, &t->callback);
	INSTR_TIME_SET_CURRENT(t->started_at);
	t->moved_at = t->started_at;
	http->moved = t->started_at;

	if (etl_transfer_prepare(t, request))
	{
		CURLMcode	code;

		sigprocmask(SIG_SETMASK, &blocked_signals, &mask);
		code = curl_multi_add_handle(http->multi, t->easy);
		sigprocmask(SIG_SETMASK, &mask, NULL);
		if (code == CURLM_OK)
			t->in_multi = true;
		else
			etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_OUT_OF_MEMORY,
							"could not start a request to \"%s\": %s",
							t->response.peer, curl_multi_strerror(code));
	}
	if (t->ended)
	{
		http->active--;
		http->news = true;
	}
	MemoryContextSwitchTo(old);
	return t;
}

/* A transfer is over: make the response, let libcurl's part go. */
static void
end_transfer(EtlHttpTransfer *t, CURLcode code)
{
	MemoryContext old = MemoryContextSwitchTo(t->context);

	etl_answer_fill(t, code);
	etl_transfer_release(t);
	Assert(t->ended);
	t->http->active--;
	t->http->news = true;
	MemoryContextSwitchTo(old);
}

/*
 * Let libcurl do what can be done without waiting, and gather what ended.
 */
static void
perform(EtlHttp *http)
{
	sigset_t	mask;
	int			running;
	CURLMcode	rc;
	CURLMsg    *message;
	int			left;
	dlist_mutable_iter iter;

	sigprocmask(SIG_SETMASK, &blocked_signals, &mask);
	rc = curl_multi_perform(http->multi, &running);
	sigprocmask(SIG_SETMASK, &mask, NULL);

	while ((message = curl_multi_info_read(http->multi, &left)) != NULL)
	{
		EtlHttpTransfer *t = NULL;
		CURLcode	code = message->data.result;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **) &t);
		if (t && !t->ended)
			end_transfer(t, code);
	}

	dlist_foreach_modify(iter, &http->transfers)
	{
		EtlHttpTransfer *t = dlist_container(EtlHttpTransfer, node, iter.cur);

		if (t->ended)
			continue;
		if (rc != CURLM_OK)
			end_transfer(t, CURLE_OUT_OF_MEMORY);
		else if (!etl_transfer_watch(t))
			end_transfer(t, CURLE_OPERATION_TIMEDOUT);
	}
}

static int
elapsed_ms(instr_time since)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, since);
	return (int) INSTR_TIME_GET_MILLISEC(now);
}

/*
 * Drive what is under way for at most "timeout" ms.  Returns early when a
 * transfer ended, our latch is set or "stop" says so.
 */
static void
drive(EtlHttp *http, int timeout, bool (*stop) (void))
{
	instr_time	start;

	INSTR_TIME_SET_CURRENT(start);
	for (;;)
	{
		int			left;
		int			slice;
		instr_time	before;
		instr_time	after;

		perform(http);
		CHECK_FOR_INTERRUPTS();
		left = timeout - elapsed_ms(start);
		if (http->news || left <= 0 || MyLatch->is_set || (stop && stop()))
			break;

		slice = elapsed_ms(http->moved) < QUIET_AFTER ? SLICE_BUSY : SLICE_QUIET;
		pgstat_report_wait_start(PG_WAIT_EXTENSION);
		INSTR_TIME_SET_CURRENT(before);
		curl_multi_poll(http->multi, NULL, 0, Min(left, slice), NULL);
		INSTR_TIME_SET_CURRENT(after);
		INSTR_TIME_ACCUM_DIFF(http->waited, after, before);
		pgstat_report_wait_end();
		if (!PostmasterIsAlive())
			proc_exit(1);
	}
	http->news = false;
}

void
etl_http_poll(EtlHttp *http, int timeout)
{
	CHECK_FOR_INTERRUPTS();
	if (http->active > 0)
		drive(http, timeout, NULL);
	else
	{
		/* a response that nobody has seen yet is a reason to return */
		if (http->news)
			timeout = 0;
		http->news = false;
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Max(timeout, 0), PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}
}

uint64
etl_http_waited(const EtlHttp *http)
{
	return (uint64) INSTR_TIME_GET_MICROSEC(http->waited);
}

const EtlHttpResponse *
etl_http_response(EtlHttpTransfer *transfer)
{
	return transfer->ended ? &transfer->response : NULL;
}

void
etl_http_finish(EtlHttpTransfer *transfer)
{
	if (transfer)
		MemoryContextDelete(transfer->context);
}

/*
 * The latch is reset here, for else the waits would be no waits; it is set
 * again at the end, because what it was set for is the caller's to find out.
 */
const EtlHttpResponse *
etl_http_perform(EtlHttp *http, const EtlHttpRequest *request,
				 bool (*stop) (void), EtlHttpTransfer **transfer)
{
	EtlHttpTransfer *t = etl_http_start(http, request);
	bool		latch_was_set = false;

	*transfer = t;
	while (!t->ended)
	{
		if (stop && stop())
		{
			end_transfer(t, CURLE_ABORTED_BY_CALLBACK);
			break;
		}
		drive(http, PG_INT32_MAX, stop);
		if (MyLatch->is_set)
		{
			latch_was_set = true;
			ResetLatch(MyLatch);
		}
	}
	if (latch_was_set)
		SetLatch(MyLatch);
	http->news = true;			/* others may have ended meanwhile */
	return &t->response;
}

const char *
etl_http_curl_version(void)
{
	return curl_version_info(CURLVERSION_NOW)->version;
}

const char *
etl_http_tls_version(void)
{
	const char *version = curl_version_info(CURLVERSION_NOW)->ssl_version;

	return version ? version : "none";
}
