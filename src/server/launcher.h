/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The process that keeps the others running, and its two halves:
 *	  supervise.c (workers of pipelines) and look.c (check workers).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_LAUNCHER_H
#define ETL_LAUNCHER_H

#include "datatype/timestamp.h"
#include "postmaster/bgworker.h"
#include "server/worker.h"

extern void etl_launcher_register(void);	/* from _PG_init when preloading */

/* Nothing is due by itself. */
#define ETL_NEVER	DT_NOEND

/* The earlier of two times (unlike Min(), evaluates each once). */
static inline TimestampTz
etl_earlier(TimestampTz a, TimestampTz b)
{
	return a < b ? a : b;
}

/*
 * Register a worker; NULL when max_worker_processes is reached.  The handle
 * lives in the current memory context.
 */
extern BackgroundWorkerHandle *etl_launch(EtlWorkerRole role, const EtlWorkerArgs *args);

/* Has the process of this handle ended (then the handle is freed)?  True for NULL. */
extern bool etl_launch_ended(BackgroundWorkerHandle **handle);

/* Wait after "failures" in a row, in ms: 0, then doubling to a minute, with jitter. */
extern int	etl_launch_backoff(int failures);

/* Take over what an earlier launcher has left; once at start. */
extern void etl_supervise_adopt(void);
extern void etl_look_adopt(void);

/* Do what is to be done now; returns when something is due by itself. */
extern TimestampTz etl_supervise_run(TimestampTz now);
extern TimestampTz etl_look_run(TimestampTz now);

#endif							/* ETL_LAUNCHER_H */
