/*-------------------------------------------------------------------------
 *
 * decode.h
 *	  Life of a decoding context in a worker, and reading WAL without waiting.
 *
 * One decoder a process.  The context is created inside a short transaction,
 * so that PROC_IN_LOGICAL_DECODING stays off, and used outside any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_DECODE_H
#define ETL_DECODE_H

#include "access/xlogdefs.h"
#include "replication/logical.h"
#include "replication/reorderbuffer.h"
#include "utils/resowner.h"

/*
 * What the output plugin calls.  A historic snapshot is in force; no XID may
 * be assigned, no table read, no current catalog opened.  Ordinals follow
 * DESIGN section 4: every change and truncate record counts one.
 */
typedef struct EtlDecodeCallbacks
{
	void		(*begin) (void *arg, ReorderBufferTXN *txn);
	void		(*change) (void *arg, ReorderBufferTXN *txn, uint64 ordinal, Relation relation,
						   ReorderBufferChange *change);
	void		(*truncate) (void *arg, ReorderBufferTXN *txn, uint64 ordinal, int nrelations,
							 Relation *relations, ReorderBufferChange *change);
	void		(*commit) (void *arg, ReorderBufferTXN *txn, uint64 ordinal, XLogRecPtr commit_lsn);

	/*
	 * One of them has thrown; must not return.  The ERROR is not let into the
	 * reorder buffer, whose own clean-up may use memory that it has freed.
	 */
	void		(*failed) (void *arg);
} EtlDecodeCallbacks;

typedef struct EtlDecoder EtlDecoder;

/* Allow our plugin for this process only (output_plugin_libraries); logs one line. */
extern void etl_decode_allow_plugin(void);

/*
 * Continue from an acquired slot at "start_lsn" (Invalid: where it stands).
 * Must be called outside a transaction.
 */
extern EtlDecoder *etl_decoder_start(XLogRecPtr start_lsn, const EtlDecodeCallbacks *callbacks, void *arg);

/*
 * Read and process one WAL record that is flushed already.  Returns false at
 * the end of the flushed WAL.
 */
extern bool etl_decoder_step(EtlDecoder *decoder);

/* End of the last record processed. */
extern XLogRecPtr etl_decoder_position(EtlDecoder *decoder);

/*
 * Confirm "lsn" to the slot; "save" also writes the slot to disk.  Allowed in
 * a callback.
 */
extern void etl_decoder_confirm(EtlDecoder *decoder, XLogRecPtr lsn, bool save);

/* Free the context (the slot stays acquired). */
extern void etl_decoder_stop(EtlDecoder *decoder);

/*
 * The output plugin works only where a decoder or an initial snapshot of ours
 * is being set up; set around CreateInitDecodingContext by source/snapshot.c
 * and source/slot.c.
 */
extern bool etl_decode_plugin_allowed;

/* Release and delete a resource owner that decoding outside a transaction used. */
extern void etl_decode_free_owner(ResourceOwner owner);

#endif							/* ETL_DECODE_H */
