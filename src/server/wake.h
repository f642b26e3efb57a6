/*-------------------------------------------------------------------------
 *
 * wake.h
 *	  Wake apply workers at commit.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_WAKE_H
#define ETL_WAKE_H

/* Once, in the postmaster: every process forked from it inherits the callback. */
extern void etl_wake_install(void);

#endif							/* ETL_WAKE_H */
