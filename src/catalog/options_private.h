/*-------------------------------------------------------------------------
 *
 * options_private.h
 *	  What EtlOptions is made of, for options.c and option_layout.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_OPTIONS_PRIVATE_H
#define ETL_OPTIONS_PRIVATE_H

#include "catalog/options.h"

typedef struct EtlOptionValue
{
	const EtlOptionDef *def;
	EtlOptionSource source;		/* scope that set it; DEFAULT: none did */
	char	   *text;			/* normal form; NULL when no scope set it */
	int64		number;
} EtlOptionValue;

/* Option of one column (few: a list will do). */
typedef struct EtlColumnValue
{
	char	   *column;
	EtlOptionValue value;
} EtlColumnValue;

struct EtlOptions
{
	MemoryContext context;		/* where everything below lives */
	const EtlDestinationRoutine *routine;
	int			nvalues;
	EtlOptionValue *values;
	List	   *columns;		/* of EtlColumnValue * */
};

#endif							/* ETL_OPTIONS_PRIVATE_H */
