/*-------------------------------------------------------------------------
 *
 * validate.h
 *	  Findings of etl.validate_pipeline().
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_VALIDATE_H
#define ETL_VALIDATE_H

#include "nodes/execnodes.h"

#include "catalog/config.h"

/* Severities. */
#define ETL_ERROR	"error"		/* it does not run, or a table does not */
#define ETL_WARNING "warning"	/* it runs, and may not as you wish */
#define ETL_NOTICE	"notice"	/* good to know */

typedef struct EtlValidation
{
	ReturnSetInfo *rsinfo;		/* where findings go */
	int64		id;
	char	   *name;
	Oid			owner;			/* may have been dropped */
	char	   *publication;
	char	   *server;
	char	   *slot_name;		/* NULL: none drawn */
	EtlConfig  *config;			/* NULL: the definition cannot be used */
	MemoryContext context;		/* for what follows */
	List	   *names;			/* of EtlWantedName *: may not exist there yet */
} EtlValidation;

/* A name that a table wants at the destination. */
typedef struct EtlWantedName
{
	char	   *name;
	char	   *target;
} EtlWantedName;

/* Add a finding; "hint" may be NULL. */
extern void etl_validate_report(EtlValidation *validation, const char *severity,
								const char *check_name, const char *target, const char *hint,
								const char *fmt,...) pg_attribute_printf(6, 7);

/*
 * Publication, tables, names at the destination.  As the extension's owner,
 * with SPI connected.
 */
extern void etl_validate_tables(EtlValidation *validation);

#endif							/* ETL_VALIDATE_H */
