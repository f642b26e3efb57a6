/*-------------------------------------------------------------------------
 *
 * launcher.h
 *	  The process that keeps the others running.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_LAUNCHER_H
#define ETL_LAUNCHER_H

extern void etl_launcher_register(void);	/* from _PG_init when preloading */

#endif							/* ETL_LAUNCHER_H */
