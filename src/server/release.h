/*-------------------------------------------------------------------------
 *
 * release.h
 *	  Keep away from a database that a utility command needs for itself.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_RELEASE_H
#define ETL_RELEASE_H

#include "postgres_ext.h"

/*
 * Make our processes leave "database" and stay away; returns when they have,
 * at the latest after five seconds (the command then says itself what is
 * wrong).  Open to interrupts: on an ERROR the caller takes it back.
 */
extern void etl_release_database(Oid database);

/*
 * Let them come back; "dropped" forgets the database's pipelines instead.
 * Nothing happens when nothing is released.  Also done when this backend ends.
 */
extern void etl_release_take_back(bool dropped);

#endif							/* ETL_RELEASE_H */
