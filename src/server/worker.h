/*-------------------------------------------------------------------------
 *
 * worker.h
 *	  Life of a worker process: start, pinned settings, waiting, exit.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_WORKER_H
#define ETL_WORKER_H

#include "compat.h"
#include "server/shmem.h"

#define ETL_EXIT_DONE		0	/* do not start again */
#define ETL_EXIT_AGAIN		1	/* the launcher starts it again */

typedef enum EtlWorkerRole
{
	ETL_ROLE_LAUNCHER,
	ETL_ROLE_APPLY,
	ETL_ROLE_WRITER,
	ETL_ROLE_SYNC,
	ETL_ROLE_CHECK
} EtlWorkerRole;

/* What the launcher passes in bgw_extra. */
typedef struct EtlWorkerArgs
{
	Oid			database;
	int32		pipeline;		/* index, or -1 */
	int32		sync;			/* index, or -1 */
	uint64		incarnation;
	uint32		test;			/* check worker: dsm handle of a connection test */
} EtlWorkerArgs;

/* This process (set by etl_worker_start). */
extern EtlWorkerRole etl_worker_role;
extern EtlWorkerArgs etl_worker_args;
extern EtlPipelineShared *etl_worker_pipeline;	/* NULL for launcher, check */
extern EtlSyncShared *etl_worker_sync;	/* sync workers only */
extern MemoryContext EtlWorkerContext;	/* as long as the process */

/*
 * Common start of every worker with a database: signals, attach to the shared
 * entry (exit 0 when the incarnation is not current), connect as bootstrap
 * superuser, pin settings, register the exit callback that detaches.
 */
extern void etl_worker_start(EtlWorkerRole role, Datum main_arg);

/*
 * The only latch wait of a worker: at most "timeout" ms (-1: no limit); serves
 * interrupts, reloads settings, exits when the postmaster died.  Returns true
 * when the latch was set.
 */
extern bool etl_worker_wait(long timeout);

/*
 * Must this worker end now (pipeline stopped, database released, incarnation
 * replaced, partner gone)?  Cheap; reads shared memory.
 */
extern bool etl_worker_should_stop(void);

/* Is this one of the pipeline's tables now?  Reads shared memory. */
extern bool etl_worker_is_tracked(Oid relid);

/*
 * The pipeline stays down until the next request: said by its pair, before
 * anybody can see why, so that no request made because of that gets lost.
 */
extern void etl_worker_give_up(void);

/* End this process in good order. */
pg_noreturn extern void etl_worker_exit(int code);

/*
 * Run the worker's main loop under the error frame: an ERROR is reported to
 * the log, recorded for the views, and ends the process with ETL_EXIT_AGAIN.
 */
extern void etl_worker_run(void (*body) (void));

/* In a PG_CATCH block: report the ERROR, clean up, end with ETL_EXIT_AGAIN. */
pg_noreturn extern void etl_worker_fail(void);

/* Deterministic faults for tests; does nothing unless built with ETL_TEST. */
#ifdef ETL_TEST
extern void etl_failpoint_hit(const char *name);
#define ETL_FAILPOINT(name) etl_failpoint_hit(name)
#else
#define ETL_FAILPOINT(name) ((void) 0)
#endif

/* Entry points (bgw_function_name). */
extern PGDLLEXPORT void etl_launcher_main(Datum main_arg);
extern PGDLLEXPORT void etl_apply_main(Datum main_arg);
extern PGDLLEXPORT void etl_writer_main(Datum main_arg);
extern PGDLLEXPORT void etl_sync_main(Datum main_arg);
extern PGDLLEXPORT void etl_check_main(Datum main_arg);

#endif							/* ETL_WORKER_H */
