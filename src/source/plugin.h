/*-------------------------------------------------------------------------
 *
 * plugin.h
 *	  What the output plugin keeps between callbacks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_PLUGIN_H
#define ETL_PLUGIN_H

#include "source/decode.h"

typedef struct EtlPlugin
{
	const EtlDecodeCallbacks *callbacks;
	void	   *arg;
	uint64		ordinal;		/* of the last record of the transaction */
} EtlPlugin;

#endif							/* ETL_PLUGIN_H */
