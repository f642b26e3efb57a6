/*-------------------------------------------------------------------------
 *
 * guc.h
 *	  Settings etl.<name> (INTERFACE: options with scope G).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_GUC_H
#define ETL_GUC_H

extern bool etl_enabled;
extern int	etl_max_pipelines;
extern int	etl_max_tables;
extern int	etl_queue_size;		/* kB, 0 = by batch size */
extern int	etl_max_workers;	/* -1 = half of max_worker_processes */
extern char *etl_allowed_hosts;
extern int	etl_error_log_size;
extern int	etl_shutdown_timeout;	/* ms */
extern int	etl_stall_timeout;	/* ms */
extern int	etl_max_sync_workers;
extern int	etl_copy_yield_timeout; /* ms */
extern int	etl_max_batch_size; /* kB, -1 = by kind */
extern int	etl_max_batch_delay;	/* ms, -1 = by kind */
extern int	etl_retry_delay;	/* ms */
extern int	etl_max_retry_delay;	/* ms */
extern int	etl_auth_retry_delay;	/* ms */
extern int	etl_connect_timeout;	/* ms */
extern int	etl_request_timeout;	/* ms, -1 = by kind */
#ifdef ETL_TEST
extern char *etl_failpoint;		/* "name=action[:count]" list, see failpoint.c */
#endif

extern void etl_guc_define(bool preloading);

/* etl.max_workers with -1 resolved. */
extern int	etl_guc_workers(void);

#endif							/* ETL_GUC_H */
