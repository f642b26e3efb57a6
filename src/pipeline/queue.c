/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  The ring from a decoding process to the writer.
 *
 * Life of a byte: the producer writes a record between head and tail + size
 * and moves head past it; the writer looks at it (moves its private read
 * position), hands pointers into it to the destination, and moves tail past
 * it once it is durable.  head and tail are the only shared variables that
 * order the two; each has one writer:
 *
 *	 producer	bytes, write barrier, head
 *	 writer		head, read barrier, bytes ... full barrier, tail
 *
 * Sleeping needs a handshake, or a wake-up would be lost between "nothing
 * there" and the wait: the side that wants to sleep raises its flag, issues a
 * full barrier, and looks again; the other side moves its position, issues a
 * full barrier, and looks at the flag.
 *
 * A record that does not fit before the end of the ring is preceded by a PAD
 * record, of which only the first eight bytes may exist.  A record longer
 * than a quarter of the ring travels as FRAGMENTs: "n" is 0 for the first,
 * "ordinal" the length of the whole record, and the body a piece of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"

#include "pipeline/queue.h"
#include "server/worker.h"

#define QUEUE_MAGIC			0x45514C31
#define QUEUE_MIN_SIZE		((Size) 64 * 1024)
#define PRODUCER_WAIT_MS	250

struct EtlQueueHeader
{
	uint32		magic;
	uint64		size;			/* bytes of the ring, multiple of 8 */

	/* each side sets its own before it first sleeps */
	PGPROC	   *producer;
	PGPROC	   *consumer;

	/* apart from each other, so that the two sides share no cache line */
	char		pad1[PG_CACHE_LINE_SIZE];
	pg_atomic_uint64 head;
	pg_atomic_uint32 producer_waits;
	char		pad2[PG_CACHE_LINE_SIZE];
	pg_atomic_uint64 tail;
	pg_atomic_uint32 consumer_sleeps;
	char		pad3[PG_CACHE_LINE_SIZE];
};

struct EtlQueue
{
	MemoryContext context;
	dsm_segment *segment;
	EtlQueueHeader *header;
	char	   *ring;
	uint64		size;

	/* producer */
	EtlQueueIdle idle;
	void	   *idle_arg;
	bool		abandoned;
	uint64		head;			/* private copy of the shared one */
	uint64		tail_seen;		/* tail as last read */
	uint64		flushed;		/* head when the writer was last looked at */

	/* consumer */
	uint64		read;			/* end of what was handed out */
	uint64		head_seen;		/* head as last read */
	char	   *joining;		/* record that is coming in fragments */
	uint64		join_total;
	uint64		join_done;
	uint64		join_position;	/* where its first fragment begins */
	bool		broken;			/* begins in the middle of a record */
};

#define RING_OFFSET		MAXALIGN(sizeof(EtlQueueHeader))
#define RECORD_HEADER	MAXALIGN(sizeof(EtlRecord))

static EtlQueue *
queue_init(dsm_segment *segment)
{
	EtlQueue   *queue = palloc0(sizeof(EtlQueue));

	queue->context = CurrentMemoryContext;
	queue->segment = segment;
	queue->header = dsm_segment_address(segment);
	queue->ring = (char *) queue->header + RING_OFFSET;
	return queue;
}

EtlQueue *
etl_queue_create(Size size)
{
	dsm_segment *segment;
	EtlQueue   *queue;
	EtlQueueHeader *header;

	size = MAXALIGN(Max(size, QUEUE_MIN_SIZE));
	segment = dsm_create(RING_OFFSET + size, 0);
	dsm_pin_mapping(segment);

	queue = queue_init(segment);
	header = queue->header;
	memset(header, 0, sizeof(EtlQueueHeader));
	header->magic = QUEUE_MAGIC;
	header->size = size;
	pg_atomic_init_u64(&header->head, 0);
	pg_atomic_init_u64(&header->tail, 0);
	pg_atomic_init_u32(&header->producer_waits, 0);
	pg_atomic_init_u32(&header->consumer_sleeps, 0);
	queue->size = size;

	return queue;
}

EtlQueue *
etl_queue_attach(dsm_handle handle)
{
	dsm_segment *segment = dsm_attach(handle);
	EtlQueue   *queue;

	if (segment == NULL)
		return NULL;
	dsm_pin_mapping(segment);

	queue = queue_init(segment);
	if (queue->header->magic != QUEUE_MAGIC)
		elog(ERROR, "segment %u is not a queue", handle);
	queue->size = queue->header->size;
	queue->head = pg_atomic_read_u64(&queue->header->head);
	queue->tail_seen = pg_atomic_read_u64(&queue->header->tail);
	queue->read = queue->tail_seen;
	queue->head_seen = queue->read;

	return queue;
}

dsm_handle
etl_queue_handle(EtlQueue *queue)
{
	return dsm_segment_handle(queue->segment);
}

void
etl_queue_detach(EtlQueue *queue)
{
	if (queue->joining)
		pfree(queue->joining);
	dsm_detach(queue->segment);
	pfree(queue);
}

uint64
etl_queue_used(EtlQueue *queue)
{
	uint64		tail = pg_atomic_read_u64(&queue->header->tail);

	return pg_atomic_read_u64(&queue->header->head) - tail;
}

uint64
etl_queue_capacity(EtlQueue *queue)
{
	return queue->size;
}

static void
wake(PGPROC *proc)
{
	/* A process that is gone costs its successor one idle turn at most. */
	if (proc != NULL)
		SetLatch(&proc->procLatch);
}

/* Take back the other side's wish to be woken: one wake-up a sleep is enough. */
static bool
lower_flag(pg_atomic_uint32 *flag)
{
	return pg_atomic_read_u32(flag) != 0 && pg_atomic_exchange_u32(flag, 0) != 0;
}

/* ----------
 * Producer
 * ----------
 */

void
etl_queue_set_producer(EtlQueue *queue, EtlQueueIdle idle, void *arg)
{
	queue->header->producer = MyProc;
	queue->idle = idle;
	queue->idle_arg = arg;
}

/* Who sleeps has seen what was flushed before, and needs no waking for it. */
void
etl_queue_flush(EtlQueue *queue)
{
	if (queue->flushed == queue->head)
		return;
	queue->flushed = queue->head;
	pg_memory_barrier();
	if (lower_flag(&queue->header->consumer_sleeps))
		wake(queue->header->consumer);
}

static bool
has_room(EtlQueue *queue, uint64 need)
{
	if (queue->size - (queue->head - queue->tail_seen) >= need)
		return true;
	queue->tail_seen = pg_atomic_read_u64(&queue->header->tail);
	/* the bytes we overwrite next were read before tail moved */
	pg_memory_barrier();
	return queue->size - (queue->head - queue->tail_seen) >= need;
}

/* Wait until "need" bytes are free; false when nobody reads any more. */
static bool
wait_for_room(EtlQueue *queue, uint64 need)
{
	EtlQueueHeader *header = queue->header;

	while (!has_room(queue, need))
	{
		etl_queue_flush(queue);

		pg_atomic_write_u32(&header->producer_waits, 1);
		pg_memory_barrier();
		if (!has_room(queue, need))
			(void) etl_worker_wait(PRODUCER_WAIT_MS);
		pg_atomic_write_u32(&header->producer_waits, 0);

		if (queue->idle)
			queue->idle(queue->idle_arg);
		if (queue->abandoned)
			return false;
	}
	return true;
}

/* Make what was written up to "head" visible. */
static void
publish(EtlQueue *queue, uint64 head)
{
	queue->head = head;
	pg_write_barrier();
	pg_atomic_write_u64(&queue->header->head, head);

	/* not with every record: a barrier, and a writer that sleeps in between */
	if (head - queue->flushed >= queue->size / 16)
		etl_queue_flush(queue);
}

/*
 * Room for "len" bytes in one piece; fills the end of the ring if it is too
 * short.  len is at most a quarter of the ring, so that this always ends.
 */
static char *
reserve(EtlQueue *queue, uint64 len)
{
	uint64		to_end = queue->size - queue->head % queue->size;

	if (to_end < len)
	{
		EtlRecord	pad;

		if (!wait_for_room(queue, to_end))
			return NULL;
		memset(&pad, 0, sizeof(pad));
		pad.len = (uint32) to_end;
		pad.kind = ETL_RECORD_PAD;
		memcpy(queue->ring + queue->head % queue->size, &pad,
			   Min(to_end, sizeof(pad)));
		publish(queue, queue->head + to_end);
	}
	if (!wait_for_room(queue, len))
		return NULL;
	return queue->ring + queue->head % queue->size;
}

/* Lay a record out: header, key, body, each followed by zeroes to 8 bytes. */
static void
fill(char *to, const EtlRecord *record, const char *key, const char *body)
{
	uint32		key_room = MAXALIGN(record->key_len);

	memcpy(to, record, sizeof(EtlRecord));
	to += RECORD_HEADER;
	if (record->key_len > 0)
	{
		memcpy(to, key, record->key_len);
		memset(to + record->key_len, 0, key_room - record->key_len);
		to += key_room;
	}
	if (record->body_len > 0)
	{
		memcpy(to, body, record->body_len);
		memset(to + record->body_len, 0,
			   MAXALIGN(record->body_len) - record->body_len);
	}
}

/* The next "want" bytes of a record that is not laid out anywhere. */
static void
copy_piece(char *to, uint64 from, uint64 want, const EtlRecord *record,
		   const char *key, const char *body)
{
	struct
	{
		const char *data;
		uint64		len;
		uint64		room;
	}			part[3] = {
		{(const char *) record, sizeof(EtlRecord), RECORD_HEADER},
		{key, record->key_len, MAXALIGN(record->key_len)},
		{body, record->body_len, MAXALIGN((uint64) record->body_len)}
	};

	for (int i = 0; i < 3 && want > 0; i++)
	{
		uint64		n;

		if (from >= part[i].room)
		{
			from -= part[i].room;
			continue;
		}
		n = Min(want, part[i].room - from);
		memset(to, 0, n);
		if (from < part[i].len)
			memcpy(to, part[i].data + from, Min(n, part[i].len - from));
		to += n;
		want -= n;
		from = 0;
	}
}

static void
put_fragments(EtlQueue *queue, const EtlRecord *record, const char *key,
			  const char *body, uint64 total)
{
	uint64		most = TYPEALIGN_DOWN(8, queue->size / 8 - RECORD_HEADER);
	uint64		done = 0;
	uint32		n = 0;

	while (done < total)
	{
		uint64		piece = Min(most, total - done);
		uint64		len = RECORD_HEADER + piece;
		EtlRecord	fragment;
		char	   *to;

		memset(&fragment, 0, sizeof(fragment));
		fragment.len = (uint32) len;
		fragment.kind = ETL_RECORD_FRAGMENT;
		fragment.table = record->table;
		fragment.body_len = (uint32) piece;
		fragment.n = n++;
		fragment.ordinal = total;

		to = reserve(queue, len);
		if (to == NULL)
			return;
		memcpy(to, &fragment, sizeof(fragment));
		copy_piece(to + RECORD_HEADER, done, piece, record, key, body);
		publish(queue, queue->head + len);
		done += piece;
	}
}

void
etl_queue_put(EtlQueue *queue, const EtlRecord *header,
			  const char *key, uint32 key_len,
			  const char *body, uint32 body_len)
{
	EtlRecord	record = *header;
	uint64		len;
	char	   *to;

	if (queue->abandoned)
		return;
	len = RECORD_HEADER + MAXALIGN((uint64) key_len) + MAXALIGN((uint64) body_len);
	if (len > PG_UINT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("encoded row of %llu bytes is too large",
						(unsigned long long) len)));
	record.len = (uint32) len;
	record.key_len = key_len;
	record.body_len = body_len;

	if (len > queue->size / 4)
	{
		put_fragments(queue, &record, key, body, len);
		return;
	}

	to = reserve(queue, len);
	if (to == NULL)
		return;
	fill(to, &record, key, body);
	publish(queue, queue->head + len);
}

void
etl_queue_abandon(EtlQueue *queue)
{
	queue->abandoned = true;
}

/* ----------
 * Consumer
 * ----------
 */

void
etl_queue_set_consumer(EtlQueue *queue)
{
	queue->header->consumer = MyProc;
}

/*
 * Add a fragment to the record being joined; true when that is complete.
 *
 * A consumer that attached while fragments of a record were under way sees
 * their rest only.  Nothing of this queue is of use to it then: whoever
 * produces for a consumer that was replaced starts a new one.
 */
static bool
join(EtlQueue *queue, const EtlRecord *fragment, uint64 position)
{
	if (fragment->n == 0)
	{
		if (queue->joining)
			pfree(queue->joining);
		queue->join_total = fragment->ordinal;
		queue->join_done = 0;
		queue->join_position = position;
		queue->joining = MemoryContextAllocHuge(queue->context,
												queue->join_total);
	}
	else if (queue->joining == NULL)
	{
		queue->broken = true;
		return false;
	}

	if (queue->join_done + fragment->body_len > queue->join_total)
		elog(ERROR, "fragments in queue do not match");
	memcpy(queue->joining + queue->join_done,
		   (const char *) fragment + RECORD_HEADER, fragment->body_len);
	queue->join_done += fragment->body_len;

	return queue->join_done == queue->join_total;
}

EtlRecord *
etl_queue_next(EtlQueue *queue, uint64 *position, bool *joined)
{
	for (;;)
	{
		EtlRecord  *record;
		uint64		begin = queue->read;

		if (queue->broken)
			return NULL;
		if (begin == queue->head_seen)
		{
			queue->head_seen = pg_atomic_read_u64(&queue->header->head);
			pg_read_barrier();
			if (begin == queue->head_seen)
				return NULL;
		}

		record = (EtlRecord *) (queue->ring + begin % queue->size);
		queue->read = begin + record->len;
		Assert(record->len > 0 && queue->read <= queue->head_seen);

		if (record->kind == ETL_RECORD_PAD)
			continue;
		if (record->kind != ETL_RECORD_FRAGMENT)
		{
			*position = begin;
			*joined = false;
			return record;
		}
		if (join(queue, record, begin))
		{
			record = (EtlRecord *) queue->joining;
			queue->joining = NULL;
			*position = queue->join_position;
			*joined = true;
			return record;
		}

		/*
		 * Fragments are copied at once, so a record larger than the whole
		 * ring needs its caller to release what was read: hand control back.
		 */
		if (begin + record->len == queue->head_seen)
			return NULL;
	}
}

uint64
etl_queue_read_position(EtlQueue *queue)
{
	return queue->read;
}

void
etl_queue_release(EtlQueue *queue, uint64 position)
{
	EtlQueueHeader *header = queue->header;

	Assert(position <= queue->read);
	if (position <= pg_atomic_read_u64(&header->tail))
		return;
	pg_memory_barrier();
	pg_atomic_write_u64(&header->tail, position);
	pg_memory_barrier();

	/* Room for one record at least, or the two would wake each other a lot. */
	if (etl_queue_used(queue) <= queue->size - queue->size / 4 &&
		lower_flag(&header->producer_waits))
		wake(header->producer);
}

bool
etl_queue_may_sleep(EtlQueue *queue)
{
	pg_atomic_write_u32(&queue->header->consumer_sleeps, 1);
	pg_memory_barrier();
	if (pg_atomic_read_u64(&queue->header->head) != queue->read && !queue->broken)
	{
		pg_atomic_write_u32(&queue->header->consumer_sleeps, 0);
		return false;
	}
	return true;
}

void
etl_queue_awake(EtlQueue *queue)
{
	pg_atomic_write_u32(&queue->header->consumer_sleeps, 0);
}
