/*-------------------------------------------------------------------------
 *
 * secret.h
 *	  Secrets that live in files of the server's host.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SECRET_H
#define ETL_SECRET_H

#include "etl/destination.h"

/*
 * The lines of a small text file (of char *), without their ends and without
 * empty ones, in CurrentMemoryContext.  NIL with "result" set to ETL_ENDPOINT
 * when it cannot be read or has none; the message names the file only.
 */
extern List *etl_secret_file(const char *path, EtlResult *result);

#endif							/* ETL_SECRET_H */
