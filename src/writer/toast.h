/*-------------------------------------------------------------------------
 *
 * toast.h
 *	  Completion of rows whose unchanged out-of-line values did not come.
 *
 * An update that leaves a TOASTed value alone does not have it in the WAL: the
 * row is encoded with a hole (ETL_RECORD_INCOMPLETE).  There are three places
 * where the value may be found, to be asked in this order:
 *
 *	 1. an earlier row of the same key that is still in the ring or on its way
 *	 2. the live row of the source, if it has the very same TOAST pointer
 *	 3. the destination, once everything before is durable (read_back())
 *
 * They are done in toast.c, live.c and readback.c.  What is still incomplete
 * behind them goes out as it is where the destination takes partial rows, and
 * parks the table elsewhere.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_TOAST_H
#define ETL_TOAST_H

#include "compat.h"
#include "pipeline/queue.h"
#include "writer/writer.h"

/* Why a table is parked over such a row. */
#define ETL_INCOMPLETE_MESSAGE "an unchanged out-of-line value of a row is not known"
#define ETL_INCOMPLETE_HINT "Use ALTER TABLE ... REPLICA IDENTITY FULL, then etl.retry_table()."

typedef struct EtlToast EtlToast;	/* rows of one queue, by key */

extern EtlToast *etl_toast_create(MemoryContext parent);
extern void etl_toast_destroy(EtlToast *toast);

/*
 * A row with a key is taken: complete it if it is incomplete, and remember it
 * for later ones.  Sets item->data and item->len to what is to be sent and
 * clears ETL_ITEM_INCOMPLETE when nothing is missing any more.  "chunk" is
 * the palloc'd record, or NULL when it is in the ring; it is taken over.  The
 * bytes stay until etl_toast_release() passes "position".
 */
extern void etl_toast_take(EtlToast *toast, EtlWriter *writer, EtlGeneration *generation,
						   const EtlRecord *record, uint64 position, void *chunk,
						   EtlItem *item);

/*
 * A row leaves its key: "record" has no body, and the next one is the row under
 * its new key (ETL_RECORD_KEY_CHANGED).
 */
extern void etl_toast_leave(EtlToast *toast, EtlGeneration *generation, const EtlRecord *record);

/* Everything before "position" is durable, and may be overwritten. */
extern void etl_toast_release(EtlToast *toast, uint64 position);

/*
 * Encoder of the generation's newest shape, to take rows apart; NULL when
 * there is none (a type was dropped meanwhile).  May open a bracket.
 */
extern EtlCodec *etl_toast_codec(EtlWriter *writer, EtlGeneration *generation);

/*
 * Fill the holes of "item", the row of "record", from the live row of the
 * source (live.c).  Opens a bracket; never waits for a lock.  True when item
 * points to a new chunk of CurrentMemoryContext; *complete tells whether
 * nothing is missing any more.
 */
extern bool etl_live_fill(EtlWriter *writer, EtlGeneration *generation,
						  const EtlRecord *record, EtlItem *item, bool *complete);

/* EtlSenderCallbacks.complete of the writer: asks the destination (readback.c). */
extern void etl_read_back(void *arg, EtlItem *items, int nitems, EtlResult *result);

#endif							/* ETL_TOAST_H */
