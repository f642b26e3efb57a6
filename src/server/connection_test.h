/*-------------------------------------------------------------------------
 *
 * connection_test.h
 *	  Is the destination there, and does it let us in?
 *
 * No user's backend talks to a network: a check worker connects and tells the
 * backend that has asked.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_CONNECTION_TEST_H
#define ETL_CONNECTION_TEST_H

#include "nodes/pg_list.h"

/* Names of the checks, as etl.validate_pipeline() has them. */
#define ETL_CHECK_CONNECT		"destination_connect"
#define ETL_CHECK_MAPPING		"user_mapping"
#define ETL_CHECK_VERSION		"destination_version"
#define ETL_CHECK_PRIVILEGES	"destination_privileges"
#define ETL_CHECK_TABLE_EXISTS	"destination_table_exists"	/* the message is its name */

/* One answer; no secret is in its texts. */
typedef struct EtlTestRow
{
	char	   *check_name;
	bool		ok;
	bool		tested;			/* false: nobody knows, the message says why */
	char	   *message;
	char	   *hint;			/* NULL: none */
	int64		elapsed;		/* microseconds since the test began */
} EtlTestRow;

/*
 * Test the server with the mapping of "role", or as pipeline "pipeline" (0:
 * none) would connect; and whether one of "names" (of char *) is taken there,
 * an answer for each that is.  Called in a user's backend, in a transaction; waits,
 * interruptibly, for about ten seconds at most.  Returns EtlTestRow * in
 * CurrentMemoryContext, never NIL; what cannot be tested is an answer, too.
 */
extern List *etl_connection_test(Oid server, Oid role, int64 pipeline, List *names);

/* The check worker's side (etl_worker_args.test). */
extern void etl_connection_test_body(void);

#endif							/* ETL_CONNECTION_TEST_H */
