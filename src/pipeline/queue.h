/*-------------------------------------------------------------------------
 *
 * queue.h
 *	  The ring from a decoding process (apply, sync in catch-up) to the writer.
 *
 * One byte ring in a dynamic shared memory segment per producer.  Single
 * producer, single consumer.  Positions are byte counts that only grow; the
 * place in the ring is position modulo size.
 *
 *	 tail <= read <= head
 *
 *	 head	producer: end of what is written
 *	 read	writer (private): end of what it has looked at
 *	 tail	writer: everything before is durable and may be overwritten
 *
 * Records are 8-aligned and never wrapped: a PAD record fills the end of the
 * ring.  A record larger than a quarter of the ring travels as FRAGMENTs that
 * the writer joins in private memory.  So the writer can hand pointers into
 * the ring to the destination, and what is in flight is bounded by the ring.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_QUEUE_H
#define ETL_QUEUE_H

#include "access/attnum.h"
#include "access/xlogdefs.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"
#include "storage/dsm.h"

typedef enum EtlRecordKind
{
	ETL_RECORD_PAD = 1,
	ETL_RECORD_FRAGMENT,		/* part of a larger record */
	ETL_RECORD_BEGIN,			/* before the first delivered change */
	ETL_RECORD_COMMIT,			/* whenever BEGIN was sent */
	ETL_RECORD_ROW,
	ETL_RECORD_TRUNCATE,		/* table slots, options */
	ETL_RECORD_SHAPE,			/* a table's shape from here on */
	ETL_RECORD_RULES,			/* new rule versions, for the writer to store */
	ETL_RECORD_PARK,			/* a table leaves the stream here */
	ETL_RECORD_RESYNC,			/* a table needs a new generation from here */
	ETL_RECORD_GONE,			/* left the publication or dropped */
	ETL_RECORD_HANDOVER,		/* sync: owned_from decided */
	ETL_RECORD_PROGRESS			/* nothing open before lsn */
} EtlRecordKind;

#define ETL_RECORD_INCOMPLETE	0x01	/* ROW with holes: see toast.h */
#define ETL_RECORD_KEY_CHANGED	0x02	/* ROW: another key than before, and no
										 * delete of the old one; the record before
										 * it has that */
#define ETL_RECORD_CASCADE		0x01	/* TRUNCATE */
#define ETL_RECORD_RESTART_IDENTITY 0x02	/* TRUNCATE */
#define ETL_RECORD_BESIDE		0x01	/* RESYNC */

/*
 * Header of every record.  After it: "key_len" bytes of key (padded to 8),
 * then "body_len" bytes of body, then zero bytes up to "len".
 *
 *	 BEGIN, COMMIT		body: the encoded event, may be empty; COMMIT's lsn2 is
 *						the end of the commit record, time the commit time
 *	 ROW				key: encoded identity (memcmp-equal = same key) or empty;
 *						body: encoded row, then n EtlToastPointers if it is
 *						incomplete; empty: a row has left this key
 *	 TRUNCATE			key: EtlTruncatedTable of each table; body: encoded
 *						event, may be empty; flags: bit 0 cascade, bit 1
 *						restart identity
 *	 SHAPE				key: serialised EtlShape (schema/shape.h); body: encoded
 *						relation event, may be empty
 *	 RULES				key: serialised rule changes (source/rules.h)
 *	 PARK				key: EtlParkInfo
 *	 RESYNC				n: EtlCopyReason; generation: that is out of date; flags:
 *						ETL_RECORD_BESIDE when it goes on receiving changes
 *	 HANDOVER			lsn2: owned_from
 *	 PROGRESS			lsn: every change before it is in the ring
 */
typedef struct EtlRecord
{
	uint32		len;			/* whole record, multiple of 8 */
	uint8		kind;			/* EtlRecordKind */
	uint8		flags;
	uint8		op;				/* EtlOperation of a ROW */
	uint8		sub;			/* 1 for the new row of a key change */
	uint32		table;			/* table slot, or ETL_NO_TABLE */
	uint32		generation;		/* of the table, for ROW, TRUNCATE, SHAPE */
	uint32		key_len;
	uint32		body_len;
	uint32		version;		/* shape version of a ROW */
	uint32		n;
	XLogRecPtr	lsn;			/* commit_lsn; PROGRESS: position */
	XLogRecPtr	lsn2;
	uint64		ordinal;
	TimestampTz time;
} EtlRecord;

/* A hole of an incomplete row, and what stands there in the source's WAL. */
typedef struct EtlToastPointer
{
	AttrNumber	attnum;
	varatt_external external;
} EtlToastPointer;

#define ETL_RECORD_KEY(r)	((char *) (r) + MAXALIGN(sizeof(EtlRecord)))
#define ETL_RECORD_BODY(r)	(ETL_RECORD_KEY(r) + MAXALIGN((r)->key_len))

typedef struct EtlTruncatedTable
{
	uint32		table;			/* table slot */
	uint32		generation;
} EtlTruncatedTable;

typedef struct EtlParkInfo
{
	int			sqlstate;
	bool		stop;			/* on_error = stop: the pipeline fails here */
	char		message[512];
	char		hint[256];
} EtlParkInfo;

/* The segment; private to queue.c but for its statistics. */
typedef struct EtlQueueHeader EtlQueueHeader;

/* One process's end of a queue; lives in the memory context of its making. */
typedef struct EtlQueue EtlQueue;

/* --- both ends --- */

/*
 * Make a queue of "size" bytes (producer side or writer side may make it) and
 * attach to it, or attach to one made elsewhere.  The mapping lives as long
 * as the process or until etl_queue_detach().  etl_queue_attach() returns
 * NULL when the segment is gone.
 */
extern EtlQueue *etl_queue_create(Size size);
extern EtlQueue *etl_queue_attach(dsm_handle handle);
extern dsm_handle etl_queue_handle(EtlQueue *queue);
extern void etl_queue_detach(EtlQueue *queue);
extern uint64 etl_queue_used(EtlQueue *queue);	/* head - tail */
extern uint64 etl_queue_capacity(EtlQueue *queue);

/* --- producer --- */

/* Called (at most every 250 ms) while the ring is full; may ereport. */
typedef void (*EtlQueueIdle) (void *arg);

extern void etl_queue_set_producer(EtlQueue *queue, EtlQueueIdle idle, void *arg);

/*
 * Append a record.  "header" has everything but len, key_len, body_len.
 * Waits while the ring is full: on the latch, at most 250 ms a turn, serving
 * interrupts and calling the idle callback.  Allowed in a decoding callback:
 * no catalog, no transaction.  The record becomes visible to the writer at
 * once; the writer is woken by etl_queue_flush() or after a sixteenth of the
 * ring.
 */
extern void etl_queue_put(EtlQueue *queue, const EtlRecord *header,
						  const char *key, uint32 key_len,
						  const char *body, uint32 body_len);

/* Wake the writer if it sleeps. */
extern void etl_queue_flush(EtlQueue *queue);

/*
 * Nobody reads this queue any more: what is put from now on is dropped.  The
 * idle callback may call it, to get out of a put that waits for room.
 */
extern void etl_queue_abandon(EtlQueue *queue);

/* --- writer --- */

extern void etl_queue_set_consumer(EtlQueue *queue);

/*
 * Next record, or NULL when nothing is there.  "position" is where the record
 * begins, for etl_queue_release().  A record in the ring stays valid until
 * its position is released; one that came in fragments is a palloc'd chunk in
 * CurrentMemoryContext (*joined = true), the caller's to free.
 */
extern EtlRecord *etl_queue_next(EtlQueue *queue, uint64 *position, bool *joined);

/* End of what etl_queue_next() has returned: the position after it. */
extern uint64 etl_queue_read_position(EtlQueue *queue);

/* Everything before "position" may be overwritten. */
extern void etl_queue_release(EtlQueue *queue, uint64 position);

/*
 * About to sleep: returns false when there is something to read after all.
 * Pair with etl_queue_awake().
 */
extern bool etl_queue_may_sleep(EtlQueue *queue);
extern void etl_queue_awake(EtlQueue *queue);

#endif							/* ETL_QUEUE_H */
