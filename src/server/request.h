/*-------------------------------------------------------------------------
 *
 * request.h
 *	  "Look at this database": requests of SQL functions, at commit.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_REQUEST_H
#define ETL_REQUEST_H

#include "postgres_ext.h"

/*
 * Ask the launcher to look at the current database (and running workers of
 * its pipelines to re-read their intent) when this transaction commits.
 *
 * Reserves an entry now: ERROR 53400 when all are taken, ERROR 55000 unless
 * preloaded.  Abort of the (sub)transaction frees it; PREPARE TRANSACTION is
 * refused (0A000).
 */
extern void etl_request_look(void);

/* The launcher's and the hooks' way, outside any transaction. */
extern void etl_request_publish(Oid database);

#endif							/* ETL_REQUEST_H */
