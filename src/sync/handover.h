/*-------------------------------------------------------------------------
 *
 * handover.h
 *	  What handover.c and handover_start.c share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_HANDOVER_H
#define ETL_HANDOVER_H

#include "source/decode.h"
#include "stream/stream.h"
#include "sync/sync.h"

typedef struct EtlHandover
{
	EtlSyncGroup *group;
	EtlConfig  *config;
	List	   *rules;			/* EtlRule * */
	MemoryContext context;		/* of everything below; one incarnation */
	uint64		incarnation;	/* of the pair */
	EtlQueue   *queue;
	EtlStream  *stream;
	EtlDecoder *decoder;
	int			ntables;
	EtlStreamTable *tables;

	uint64		tables_version; /* as of the last look at the slots */
	uint64		needed;			/* tables_version that apply must have seen */
	uint64		shapes_put;
	XLogRecPtr	progressed;		/* of the last PROGRESS record */
	XLogRecPtr	confirmed;
	TimestampTz saved;

	bool		near;			/* within one batch of apply */
	TimestampTz near_since;		/* or since the last hold */
	int			hold_after;
	long		wait_ms;

	bool		taken;			/* handed over at "s" */
	XLogRecPtr	s;
} EtlHandover;

/* handover_start.c */

/*
 * Everything that lives as long as the pair: queue, stream, decoder.  "again":
 * the pair is a new one.  The slot is acquired.
 */
extern void etl_handover_build(EtlHandover *h, bool again);

/* The decoding context is of no use any more: get rid of all it may hold. */
extern void etl_handover_clean_up(EtlHandover *h);

/* Is the pair another one than the one that the queue was made for? */
extern bool etl_handover_pair_changed(const EtlHandover *h);

/* Everything before "lsn" is durable: tell the slot. */
extern void etl_handover_confirm(EtlHandover *h, XLogRecPtr lsn);

#endif							/* ETL_HANDOVER_H */
