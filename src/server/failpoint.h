/*-------------------------------------------------------------------------
 *
 * failpoint.h
 *	  Shared memory of failpoints; the points themselves are in worker.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_FAILPOINT_H
#define ETL_FAILPOINT_H

#ifdef ETL_TEST
extern Size etl_failpoint_shmem_size(void);
extern void etl_failpoint_shmem_init(void); /* AddinShmemInitLock is held */

/* The launcher, after a reload: forget hits of elements that are gone. */
extern void etl_failpoint_reload(void);
#endif

#endif							/* ETL_FAILPOINT_H */
