/*-------------------------------------------------------------------------
 *
 * check.h
 *	  The check worker's errands (its third: connection_test.h).
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_CHECK_H
#define ETL_CHECK_H

/* Remove a pipeline that is being dropped (etl_worker_pipeline). */
extern void etl_cleanup_body(void);

#endif							/* ETL_CHECK_H */
