/*-------------------------------------------------------------------------
 *
 * hooks.h
 *	  What users' commands mean for running pipelines.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_HOOKS_H
#define ETL_HOOKS_H

extern void etl_hooks_install(void);	/* from _PG_init when preloading */

#endif							/* ETL_HOOKS_H */
