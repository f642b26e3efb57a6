/*-------------------------------------------------------------------------
 *
 * registry.h
 *	  From a foreign server to the routine of its kind.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_REGISTRY_H
#define ETL_REGISTRY_H

#include "etl/destination.h"

/*
 * Routine of a wrapper.  With "missing_ok", NULL when the wrapper has no
 * option etl_handler; other trouble is an ERROR.
 */
extern const EtlDestinationRoutine *etl_routine_for_wrapper(Oid wrapper, bool missing_ok);

/* Routine of an installed kind for each wrapper with etl_handler (of EtlDestinationRoutine *). */
extern List *etl_routine_list(void);

#endif							/* ETL_REGISTRY_H */
