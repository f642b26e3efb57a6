/*-------------------------------------------------------------------------
 *
 * toast.c
 *	  Completion of rows whose unchanged out-of-line values did not come.
 *
 * For each queue there is a map from (generation, key) to the newest row of
 * that key.  Rows are not copied: their bytes are in the ring as long as they
 * are not durable, and an entry counts only as long as its bytes are there.
 * What has been written anew lives in a chunk of its own, under the same rule.
 *
 * A row that was completed takes the place of the one it was completed from,
 * so a chain of updates is completed link by link.  A deleted row, or one in
 * another shape, ends the search.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "catalog/bracket.h"
#include "schema/shape.h"
#include "server/worker.h"
#include "writer/toast.h"

/* More rows than this are not remembered: the map is not to outgrow the ring. */
#define MOST_ENTRIES	(100 * 1000)
#define FIRST_SWEEP		4096

typedef struct ToastKey
{
	uint64		hash;			/* of the key's bytes */
	uint64		generation;		/* EtlGeneration.key */
} ToastKey;

typedef struct ToastEntry
{
	ToastKey	id;				/* hash key */
	uint64		position;
	const char *key;			/* in the ring, or in a chunk */
	const char *data;
	uint32		key_len;
	uint32		len;
	uint32		version;		/* of the shape */
	uint8		op;
	bool		moved;			/* incomplete, and what it was before is under
								 * another key */
} ToastEntry;

/* Private memory that goes when the ring is released past "position". */
typedef struct ToastChunk
{
	uint64		position;
	void	   *chunk;
} ToastChunk;

struct EtlToast
{
	MemoryContext context;
	HTAB	   *entries;
	long		sweep_at;		/* number of entries */
	uint64		released;
	uint64		forgotten;		/* rows before it are not remembered */
	ToastEntry	moved;			/* row whose key changes: it left the old one
								 * last; data NULL: none */
	XLogRecPtr	moved_lsn;
	uint64		moved_ordinal;
	ToastChunk *chunks;			/* by position */
	int			nchunks;
	int			allocated;
};

static void
make_map(EtlToast *toast)
{
	HASHCTL		control;

	memset(&control, 0, sizeof(control));
	control.keysize = sizeof(ToastKey);
	control.entrysize = sizeof(ToastEntry);
	control.hcxt = toast->context;
	toast->entries = hash_create("etl rows by key", 1024, &control,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	toast->sweep_at = FIRST_SWEEP;
}

EtlToast *
etl_toast_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "etl rows by key",
												  ALLOCSET_DEFAULT_SIZES);
	EtlToast   *toast = MemoryContextAllocZero(context, sizeof(EtlToast));

	toast->context = context;
	make_map(toast);
	return toast;
}

void
etl_toast_destroy(EtlToast *toast)
{
	for (int i = 0; i < toast->nchunks; i++)
		pfree(toast->chunks[i].chunk);
	MemoryContextDelete(toast->context);
}

/* ----------
 * Lifetime
 * ----------
 */

static void
keep_chunk(EtlToast *toast, uint64 position, void *chunk)
{
	if (toast->nchunks == toast->allocated)
	{
		toast->allocated = Max(toast->allocated * 2, 16);
		if (toast->chunks == NULL)
			toast->chunks = MemoryContextAlloc(toast->context,
											   sizeof(ToastChunk) * toast->allocated);
		else
			toast->chunks = repalloc_huge(toast->chunks,
										  sizeof(ToastChunk) * (Size) toast->allocated);
	}
	toast->chunks[toast->nchunks].position = position;
	toast->chunks[toast->nchunks].chunk = chunk;
	toast->nchunks++;
}

void
etl_toast_release(EtlToast *toast, uint64 position)
{
	int			gone = 0;

	if (position <= toast->released)
		return;
	toast->released = position;
	while (gone < toast->nchunks && toast->chunks[gone].position < position)
		pfree(toast->chunks[gone++].chunk);
	toast->nchunks -= gone;
	if (gone > 0 && toast->nchunks > 0)
		memmove(toast->chunks, toast->chunks + gone, sizeof(ToastChunk) * toast->nchunks);
}

/* Forget rows whose bytes are gone; all of them if that is not enough. */
static void
sweep(EtlToast *toast, uint64 position)
{
	HASH_SEQ_STATUS scan;
	ToastEntry *entry;

	if (hash_get_num_entries(toast->entries) < toast->sweep_at)
		return;
	hash_seq_init(&scan, toast->entries);
	while ((entry = hash_seq_search(&scan)) != NULL)
	{
		if (entry->position < toast->released)
			hash_search(toast->entries, &entry->id, HASH_REMOVE, NULL);
	}
	toast->sweep_at = Max(hash_get_num_entries(toast->entries) * 2, FIRST_SWEEP);
	if (hash_get_num_entries(toast->entries) < MOST_ENTRIES)
		return;
	hash_destroy(toast->entries);
	make_map(toast);
	toast->forgotten = position;
}

/* ----------
 * The encoder of a shape, to take rows apart
 * ----------
 */

typedef struct CodecArgs
{
	EtlWriter  *writer;
	EtlGeneration *generation;
	MemoryContext context;
	EtlCodec   *codec;
} CodecArgs;

static void
codec_body(void *arg)
{
	CodecArgs  *args = arg;
	MemoryContext context = MemoryContextSwitchTo(args->context);

	args->codec = args->writer->config->routine->codec_create(args->generation->shape,
															  args->generation->table->target,
															  args->generation->table->options);
	MemoryContextSwitchTo(context);
}

/* Making a codec looks types up, so it needs a bracket. */
EtlCodec *
etl_toast_codec(EtlWriter *writer, EtlGeneration *generation)
{
	MemoryContext context = CurrentMemoryContext;
	CodecArgs	args = {writer, generation, NULL, NULL};

	if (generation->shape == NULL || generation->codec_shape == generation->shape)
		return generation->codec;
	generation->codec_shape = generation->shape;
	generation->codec = NULL;
	if (generation->codec_context)
		MemoryContextDelete(generation->codec_context);
	generation->codec_context = AllocSetContextCreate(EtlWorkerContext, "etl codec",
													  ALLOCSET_SMALL_SIZES);
	args.context = generation->codec_context;

	PG_TRY();
	{
		if (etl_bracket_try(ETL_BRACKET_READ, "etl: reading types", codec_body, &args))
			generation->codec = args.codec;
		else
			generation->codec_shape = NULL; /* the next row tries again */
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION)
			PG_RE_THROW();
		FlushErrorState();
		FreeErrorData(error);
	}
	PG_END_TRY();

	return generation->codec;
}

/* ----------
 * Completion
 * ----------
 */

/*
 * Fill the holes of "item" from an earlier row.  True when something was
 * filled in; item then points to a new chunk.  *complete tells whether
 * nothing is missing any more.
 */
static bool
fill_in(EtlWriter *writer, EtlGeneration *generation, const ToastEntry *entry,
		EtlItem *item, bool *complete)
{
	const EtlDestinationRoutine *routine = writer->config->routine;
	const EtlShape *shape = generation->shape;
	EtlCodec   *codec = etl_toast_codec(writer, generation);
	AttrNumber *attnums;
	const char **values;
	uint32	   *lens;
	int			n = 0;
	bool		filled = false;
	StringInfoData out;

	*complete = true;
	if (codec == NULL)
	{
		*complete = false;
		return false;
	}
	attnums = palloc(sizeof(AttrNumber) * shape->ncolumns);
	values = palloc(sizeof(char *) * shape->ncolumns);
	lens = palloc(sizeof(uint32) * shape->ncolumns);
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const char *value;
		uint32		len;

		if (!shape->columns[i].toastable ||
			routine->extract(codec, item->data, item->len, shape->columns[i].attnum, &value, &len))
			continue;
		if (!routine->extract(codec, entry->data, entry->len, shape->columns[i].attnum,
							  &values[n], &lens[n]))
		{
			*complete = false;
			continue;
		}
		attnums[n++] = shape->columns[i].attnum;
	}

	if (n > 0)
	{
		initStringInfo(&out);
		filled = routine->splice(codec, item->data, item->len, n, attnums, values, lens, &out);
		if (filled)
		{
			item->data = out.data;
			item->len = out.len;
		}
		else
		{
			*complete = false;
			pfree(out.data);
		}
	}
	pfree(attnums);
	pfree(values);
	pfree(lens);
	return filled;
}

/* Can rows of this shape be completed from the remembered one? */
static bool
is_usable(const EtlToast *toast, const ToastEntry *entry, const EtlRecord *record)
{
	return entry->position >= toast->released &&
		entry->op != ETL_DELETE && entry->version == record->version;
}

static bool
has_key(const ToastEntry *entry, const EtlRecord *record)
{
	return entry->key_len == record->key_len &&
		memcmp(entry->key, ETL_RECORD_KEY(record), record->key_len) == 0;
}

/*
 * A deletion, or a row that leaves its key, may be the first half of a change
 * of the key: the second half can be completed from the row that goes away
 * here.  "entry" is what is remembered under the old key, or NULL.
 */
static void
note_moved(EtlToast *toast, const EtlRecord *record, const ToastEntry *entry)
{
	toast->moved.data = NULL;
	if (entry == NULL || record->op != ETL_DELETE || !is_usable(toast, entry, record) ||
		!has_key(entry, record))
		return;
	toast->moved = *entry;
	toast->moved_lsn = record->lsn;
	toast->moved_ordinal = record->ordinal;
}

static void
set_key(ToastKey *id, const EtlGeneration *generation, const EtlRecord *record)
{
	id->hash = DatumGetUInt64(hash_any_extended((const unsigned char *) ETL_RECORD_KEY(record),
												record->key_len, 0));
	id->generation = generation->key;
}

void
etl_toast_leave(EtlToast *toast, EtlGeneration *generation, const EtlRecord *record)
{
	ToastKey	id;
	ToastEntry *entry;

	set_key(&id, generation, record);
	entry = hash_search(toast->entries, &id, HASH_FIND, NULL);
	note_moved(toast, record, entry);
	if (entry && has_key(entry, record))
		hash_search(toast->entries, &id, HASH_REMOVE, NULL);
}

/* What "record" was before, of what is remembered; else NULL. */
static const ToastEntry *
former_row(const EtlToast *toast, const EtlRecord *record, const ToastEntry *entry, bool found)
{
	if (record->sub > 0 || (record->flags & ETL_RECORD_KEY_CHANGED))
		return toast->moved.data && toast->moved_lsn == record->lsn &&
			toast->moved_ordinal == record->ordinal &&
			toast->moved.id.generation == entry->id.generation &&
			is_usable(toast, &toast->moved, record) ? &toast->moved : NULL;
	return found && is_usable(toast, entry, record) && has_key(entry, record) ? entry : NULL;
}

void
etl_toast_take(EtlToast *toast, EtlWriter *writer, EtlGeneration *generation,
			   const EtlRecord *record, uint64 position, void *chunk, EtlItem *item)
{
	ToastKey	id;
	ToastEntry *entry;
	const ToastEntry *former;
	bool		found;
	bool		moved = false;

	if (chunk)
		keep_chunk(toast, position, chunk);
	set_key(&id, generation, record);
	sweep(toast, position);
	entry = hash_search(toast->entries, &id, HASH_ENTER, &found);
	former = former_row(toast, record, entry, found);
	if (former && (item->flags & ETL_ITEM_INCOMPLETE))
	{
		MemoryContext context = MemoryContextSwitchTo(toast->context);
		bool		complete;

		if (fill_in(writer, generation, former, item, &complete))
			keep_chunk(toast, position, unconstify(char *, item->data));
		if (complete)
			item->flags &= ~ETL_ITEM_INCOMPLETE;
		MemoryContextSwitchTo(context);
	}
	if (item->flags & ETL_ITEM_INCOMPLETE)
	{
		MemoryContext context = MemoryContextSwitchTo(toast->context);
		bool		complete;

		if (etl_live_fill(writer, generation, record, item, &complete))
			keep_chunk(toast, position, unconstify(char *, item->data));
		if (complete)
			item->flags &= ~ETL_ITEM_INCOMPLETE;
		MemoryContextSwitchTo(context);
	}

	if (item->flags & ETL_ITEM_INCOMPLETE)
	{
		/*
		 * What comes before it in its batch may be what it was, for all we
		 * know; or the destination must have that first under the new key.
		 */
		if (toast->forgotten > toast->released || (former && former->moved))
			item->flags |= ETL_ITEM_APART;
		moved = record->sub > 0 || (record->flags & ETL_RECORD_KEY_CHANGED) ||
			(former && former->moved);
	}

	note_moved(toast, record, found ? entry : NULL);
	entry->position = position;
	entry->key = ETL_RECORD_KEY(record);
	entry->key_len = record->key_len;
	entry->data = item->data;
	entry->len = item->len;
	entry->version = record->version;
	entry->op = record->op;
	entry->moved = moved;
}
