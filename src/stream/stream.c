/*-------------------------------------------------------------------------
 *
 * stream.c
 *	  Decoded changes -> rules -> encoder -> records in the queue.
 *
 * The callbacks of a decoder.  For each change: is the relation ours to
 * deliver in this transaction (stream_relation.c), what does it look like,
 * and then the destination's own encoder turns it into bytes that travel to
 * the writer.  BEGIN is put before the first delivered change and COMMIT
 * whenever BEGIN was put, so transactions that concern nobody cost nothing.
 *
 * An ERROR inside an encoder is not caught here (locks and pins would be left
 * behind): the process notes the change as poison and dies; on the replay
 * that change parks its table instead of being encoded.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "server/worker.h"
#include "stream/stream_private.h"

/* Buffers that one huge row has grown are given back. */
#define KEEP_BUFFER_SIZE	(1024 * 1024)

/* Changes of a transaction that takes its time. */
#define LARGE_TRANSACTION	1000

static EtlStream *
create_stream(EtlConfig *config, EtlQueue *queue)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "etl stream",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	EtlStream  *stream = palloc0(sizeof(EtlStream));

	stream->config = config;
	stream->queue = queue;
	stream->publication = config->publication_oid;
	namestrcpy(&stream->publication_name, config->publication);
	stream->context = context;
	stream->change_context = AllocSetContextCreate(context, "etl change", ALLOCSET_DEFAULT_SIZES);
	stream->origin.source = config->source;
	stream->origin.pipeline = config->name;
	stream->origin.database = MyDatabaseId;
	stream->origin.epoch = config->epoch;
	stream->origin.phase = ETL_PHASE_STREAM;
	initStringInfo(&stream->body);
	initStringInfo(&stream->key);
	MemoryContextSwitchTo(caller);

	etl_stream_register_callbacks(stream);
	return stream;
}

EtlStream *
etl_stream_create_apply(EtlConfig *config, EtlQueue *queue)
{
	return create_stream(config, queue);
}

EtlStream *
etl_stream_create_sync(EtlConfig *config, EtlQueue *queue, int ntables,
					   EtlStreamTable *tables, List *rules)
{
	EtlStream  *stream = create_stream(config, queue);
	ListCell   *lc;

	stream->is_sync = true;
	stream->origin.catch_up = true;
	stream->ntables = ntables;
	stream->tables = tables;
	foreach(lc, rules)
		etl_stream_add_rule(stream, lfirst(lc));
	for (int i = 0; i < ntables; i++)
	{
		EtlStreamRelation *entry = etl_stream_relation(stream, tables[i].relid, true);

		foreach(lc, tables[i].versions)
			etl_stream_add_version(stream, entry, lfirst(lc));
		if (tables[i].versions == NIL)
			etl_stream_add_version(stream, entry, tables[i].shape);
		entry->options = tables[i].options;
		entry->stop_on_error = tables[i].options &&
			etl_config_on_error(tables[i].options) == ETL_ON_ERROR_STOP;
	}
	return stream;
}

void
etl_stream_set_idle(EtlStream *stream, EtlQueueIdle idle, void *arg)
{
	etl_queue_set_producer(stream->queue, idle, arg);
}

XLogRecPtr
etl_stream_position(EtlStream *stream)
{
	return stream->position;
}

uint64
etl_stream_shapes_put(EtlStream *stream)
{
	return stream->shapes_put;
}

/* ----------
 * Records
 * ----------
 */
void
etl_stream_reset_buffer(StringInfo buffer)
{
	if (buffer->maxlen > KEEP_BUFFER_SIZE)
	{
		MemoryContext caller = MemoryContextSwitchTo(GetMemoryChunkContext(buffer->data));

		pfree(buffer->data);
		initStringInfo(buffer);
		MemoryContextSwitchTo(caller);
	}
	else
		resetStringInfo(buffer);
}

/* BEGIN, unless this transaction has it already. */
void
etl_stream_begin_record(EtlStream *stream)
{
	EtlRecord	record = {.kind = ETL_RECORD_BEGIN,.table = ETL_NO_TABLE};
	StringInfoData event;

	if (stream->begun)
		return;
	stream->begun = true;
	initStringInfo(&event);
	if (stream->config->routine->encode_begin && !stream->is_sync)
		stream->config->routine->encode_begin(stream->config->options, &stream->origin, &event);
	record.lsn = stream->origin.commit_lsn;
	record.lsn2 = stream->origin.end_lsn;
	record.time = stream->origin.timestamp;
	etl_queue_put(stream->queue, &record, NULL, 0, event.data, event.len);
	pfree(event.data);
}

static void
put_commit(EtlStream *stream, uint64 ordinal)
{
	EtlRecord	record = {.kind = ETL_RECORD_COMMIT,.table = ETL_NO_TABLE};
	StringInfoData event;

	initStringInfo(&event);
	if (stream->config->routine->encode_commit && !stream->is_sync)
		stream->config->routine->encode_commit(stream->config->options, &stream->origin,
											   ordinal, &event);
	record.lsn = stream->origin.commit_lsn;
	record.lsn2 = stream->origin.end_lsn;
	record.ordinal = ordinal;
	record.time = stream->origin.timestamp;
	etl_queue_put(stream->queue, &record, NULL, 0, event.data, event.len);
	pfree(event.data);
}

/*
 * SHAPE: rows of the entry's table have entry->shape from here on.
 * "previous" is the version before it, NULL for a base shape.
 */
void
etl_stream_announce(EtlStream *stream, EtlStreamRelation *entry, const EtlShape *previous)
{
	EtlRecord	record = {.kind = ETL_RECORD_SHAPE};
	StringInfoData event;
	StringInfoData flat;

	initStringInfo(&event);
	initStringInfo(&flat);
	etl_shape_serialize(entry->shape, &flat);
	if (stream->config->routine->encode_relation)
		stream->config->routine->encode_relation(etl_stream_options(stream, entry),
												 &stream->origin, entry->shape, previous, &event);
	record.table = entry->slot;
	record.generation = entry->shape->generation;
	record.version = entry->shape->version;
	record.lsn = stream->origin.commit_lsn;
	etl_queue_put(stream->queue, &record, flat.data, flat.len, event.data, event.len);
	pfree(flat.data);
	pfree(event.data);
	entry->announced_generation = entry->shape->generation;
	entry->announced_version = entry->shape->version;
	stream->shapes_put++;
}

/*
 * RESYNC: the table needs a new generation from here.  Where the destination
 * follows shapes, or the shape stays, the old one goes on receiving changes
 * beside it; else the table's changes stop here.
 */
void
etl_stream_put_resync(EtlStream *stream, EtlStreamRelation *entry, EtlCopyReason reason)
{
	EtlRecord	record = {.kind = ETL_RECORD_RESYNC};
	bool		beside = reason == ETL_COPY_FILTER_CHANGE || reason == ETL_COPY_RESYNC ||
		(stream->config->routine->abilities & ETL_FOLLOWS_SHAPES) != 0;

	record.table = entry->slot;
	record.generation = entry->owned.generation;
	record.flags = beside ? ETL_RECORD_BESIDE : 0;
	record.n = reason;
	record.lsn = stream->origin.commit_lsn;
	etl_queue_put(stream->queue, &record, NULL, 0, NULL, 0);
	if (!beside)
	{
		entry->stopped_generation = entry->owned.generation;
		entry->deliver = false;
	}
}

/* PARK: the table leaves the stream here. */
void
etl_stream_park(EtlStream *stream, EtlStreamRelation *entry, uint64 ordinal,
				int sqlstate, const char *message, const char *hint)
{
	EtlRecord	record = {.kind = ETL_RECORD_PARK};
	EtlParkInfo info;

	memset(&info, 0, sizeof(info));
	info.sqlstate = sqlstate;
	info.stop = entry->stop_on_error;
	strlcpy(info.message, message, sizeof(info.message));
	if (hint)
		strlcpy(info.hint, hint, sizeof(info.hint));
	record.table = entry->slot;
	record.generation = entry->owned.generation;
	record.lsn = stream->origin.commit_lsn;
	record.ordinal = ordinal;
	etl_queue_put(stream->queue, &record, (char *) &info, sizeof(info), NULL, 0);
	etl_queue_flush(stream->queue);

	entry->parked = true;
	entry->stopped_generation = entry->owned.generation;
	entry->deliver = false;
	for (int i = 0; i < stream->ntables; i++)
		if (stream->tables[i].relid == entry->relid)
			stream->tables[i].parked = true;
}

void
etl_stream_flush(EtlStream *stream)
{
	etl_queue_flush(stream->queue);
}

void
etl_stream_progress(EtlStream *stream, XLogRecPtr lsn)
{
	EtlRecord	record = {.kind = ETL_RECORD_PROGRESS,.table = ETL_NO_TABLE};

	record.lsn = lsn;
	etl_queue_put(stream->queue, &record, NULL, 0, NULL, 0);
	etl_queue_flush(stream->queue);
	stream->position = Max(stream->position, lsn);
}

void
etl_stream_handover(EtlStream *stream, XLogRecPtr owned_from)
{
	for (int i = 0; i < stream->ntables; i++)
	{
		EtlRecord	record = {.kind = ETL_RECORD_HANDOVER};

		if (stream->tables[i].parked)
			continue;
		record.table = stream->tables[i].slot;
		record.generation = stream->tables[i].generation;
		record.lsn = owned_from;
		record.lsn2 = owned_from;
		etl_queue_put(stream->queue, &record, NULL, 0, NULL, 0);
	}
	etl_queue_flush(stream->queue);
}

/* ----------
 * Changes that break the encoder
 * ----------
 */

/* Is this the change that made the last run die? */
static bool
is_poison(EtlStream *stream, Oid relid, uint64 ordinal, EtlPoison *poison)
{
	EtlPipelineShared *pipeline = etl_worker_pipeline;

	/* unlocked look first: only a process of an older incarnation wrote it */
	if (pipeline->poison.relid != relid)
		return false;
	LWLockAcquire(&pipeline->lock, LW_SHARED);
	*poison = pipeline->poison;
	LWLockRelease(&pipeline->lock);
	return poison->relid == relid && poison->commit_lsn == stream->origin.commit_lsn &&
		poison->ordinal == ordinal;
}

void
etl_stream_note_error(EtlStream *stream, const ErrorData *error)
{
	EtlPoison  *poison = &etl_worker_pipeline->poison;

	if (!stream->encoding)
		return;
	switch (ERRCODE_TO_CATEGORY(error->sqlerrcode))
	{
			/* trouble of the moment or of the machine, not of the value */
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE:
			return;
	}
	LWLockAcquire(&etl_worker_pipeline->lock, LW_EXCLUSIVE);
	poison->relid = stream->encoding_relid;
	poison->commit_lsn = stream->origin.commit_lsn;
	poison->ordinal = stream->encoding_ordinal;
	poison->sqlstate = error->sqlerrcode;
	strlcpy(poison->message, error->message ? error->message : "", sizeof(poison->message));
	LWLockRelease(&etl_worker_pipeline->lock);
}

/* ----------
 * Callbacks
 * ----------
 */
static void
stream_begin(void *arg, ReorderBufferTXN *txn)
{
	EtlStream  *stream = arg;

	stream->in_transaction = true;
	stream->transaction++;
	stream->begun = false;
	stream->delivered = 0;
	stream->counts = stream->is_sync ||
		txn->final_lsn > pg_atomic_read_u64(&etl_worker_pipeline->counted_lsn);
	stream->encoding = false;
	stream->origin.commit_lsn = txn->final_lsn;
	stream->origin.end_lsn = txn->end_lsn;
	stream->origin.timestamp = txn->xact_time.commit_time;
	stream->origin.xid = txn->xid;
	if (!stream->is_sync)
		etl_ownership_decide(etl_worker_pipeline, txn->end_lsn);

	/* what is put already is not to wait for a transaction that takes long */
	if (txn->nentries > LARGE_TRANSACTION || txn->nsubtxns > 0)
		etl_queue_flush(stream->queue);
}

/* Does the rule in force publish this operation? */
static bool
published(const EtlStreamRelation *entry, uint8 operation)
{
	return (entry->rule->operations & operation) != 0;
}

/* The table that a relation's change belongs to: itself, or its root. */
static EtlStreamRelation *
find_table(EtlStream *stream, Relation relation, uint8 operation)
{
	Oid			relid = RelationGetRelid(relation);
	EtlStreamRelation *entry = etl_stream_relation(stream, relid, false);

	if (entry && entry->transaction != stream->transaction)
		etl_stream_fix(stream, entry);
	if (stream->partitions == NULL ||
		(entry && entry->rule && etl_rule_is_table(entry->rule)))
		return entry;
	if (operation == ETL_PUBLISH_TRUNCATE)
		return NULL;			/* of a part: see etl_stream_truncated_leaf() */

	entry = relation->rd_rel->relispartition ? etl_stream_root(stream, relid) : NULL;
	if (entry == NULL && operation != ETL_PUBLISH_DELETE)
		etl_stream_note_stray(stream, relid);
	return entry;
}

/*
 * Common start for a change of a relation: the entry of its table if this
 * process delivers it, with shape and encoder up to date; else NULL.
 */
static EtlStreamRelation *
start_change(EtlStream *stream, Relation relation, uint8 operation, uint64 ordinal)
{
	EtlStreamRelation *entry = find_table(stream, relation, operation);
	EtlPoison	poison;

	if (entry == NULL || !entry->deliver || !published(entry, operation))
		return NULL;
	if (is_poison(stream, entry->relid, ordinal, &poison))
	{
		etl_stream_park(stream, entry, ordinal, poison.sqlstate, poison.message, NULL);
		return NULL;
	}
	stream->encoding = true;
	stream->encoding_relid = entry->relid;
	stream->encoding_ordinal = ordinal;
	if (entry->relid != RelationGetRelid(relation))
	{
		if (!etl_stream_resolve_root(stream, entry, relation, operation != ETL_PUBLISH_INSERT, ordinal))
			return NULL;
	}
	else
	{
		etl_stream_resolve_shape(stream, entry, relation);
		if (entry->deliver && entry->rule->filter && operation != ETL_PUBLISH_TRUNCATE)
			(void) etl_stream_filter(stream, entry, relation);
	}
	return entry->deliver ? entry : NULL;
}

static void
stream_change(void *arg, ReorderBufferTXN *txn, uint64 ordinal, Relation relation,
			  ReorderBufferChange *change)
{
	EtlStream  *stream = arg;
	MemoryContext caller;
	EtlStreamRelation *entry;
	HeapTuple	new_tuple = etl_change_tuple(change->data.tp.newtuple);
	HeapTuple	old_tuple = etl_change_tuple(change->data.tp.oldtuple);

	/* rows of a rewriting ALTER TABLE come as inserts of its transient heap */
	if (OidIsValid(relation->rd_rel->relrewrite))
	{
		entry = stream->partitions ? etl_stream_root(stream, relation->rd_rel->relrewrite) : NULL;
		if (entry == NULL)
			entry = etl_stream_relation(stream, relation->rd_rel->relrewrite, false);
		if (entry == NULL && stream->partitions)
			etl_stream_note_stray(stream, relation->rd_rel->relrewrite);
		if (entry && entry->rewritten != stream->transaction)
		{
			entry->rewritten = stream->transaction;
			etl_stream_touch(stream, entry->relid);
		}
		return;
	}

	caller = MemoryContextSwitchTo(stream->change_context);
	switch (change->action)
	{
		case REORDER_BUFFER_CHANGE_INSERT:
			entry = start_change(stream, relation, ETL_PUBLISH_INSERT, ordinal);
			if (entry && new_tuple)
				etl_stream_deliver_row(stream, entry, ETL_INSERT, ordinal, new_tuple, NULL);
			break;
		case REORDER_BUFFER_CHANGE_UPDATE:
			entry = start_change(stream, relation, ETL_PUBLISH_UPDATE, ordinal);
			if (entry && new_tuple)
				etl_stream_deliver_row(stream, entry, ETL_UPDATE, ordinal, new_tuple, old_tuple);
			break;
		case REORDER_BUFFER_CHANGE_DELETE:
			entry = start_change(stream, relation, ETL_PUBLISH_DELETE, ordinal);
			if (entry && old_tuple)
				etl_stream_deliver_row(stream, entry, ETL_DELETE, ordinal, NULL, old_tuple);
			break;
		default:
			break;
	}
	stream->encoding = false;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(stream->change_context);
}

/* TRUNCATE of tables that share one record, and one event. */
static void
put_truncate(EtlStream *stream, uint64 ordinal, int n, const EtlShape *const *shapes,
			 const EtlTruncatedTable *tables, bool cascade, bool restart)
{
	const EtlDestinationRoutine *routine = stream->config->routine;
	EtlRecord	record = {.kind = ETL_RECORD_TRUNCATE,.table = ETL_NO_TABLE};

	etl_stream_begin_record(stream);
	etl_stream_reset_buffer(&stream->body);
	if (routine->encode_truncate)
		routine->encode_truncate(stream->config->options, &stream->origin, ordinal, n,
								 shapes, cascade, restart, &stream->body);
	record.flags = (cascade ? ETL_RECORD_CASCADE : 0) |
		(restart ? ETL_RECORD_RESTART_IDENTITY : 0);
	record.op = ETL_TRUNCATE;
	record.n = n;
	record.lsn = stream->origin.commit_lsn;
	record.ordinal = ordinal;
	record.time = stream->origin.timestamp;
	etl_queue_put(stream->queue, &record, (const char *) tables, n * sizeof(EtlTruncatedTable),
				  stream->body.data, stream->body.len);
	stream->delivered++;
}

/*
 * Apply puts one record for all tables of the statement that it delivers.
 * Sync workers may deliver others of the same statement, so their records are
 * of one table each, and their events have ids of their own (origin.catch_up).
 */
static void
stream_truncate(void *arg, ReorderBufferTXN *txn, uint64 ordinal, int nrelations,
				Relation *relations, ReorderBufferChange *change)
{
	EtlStream  *stream = arg;
	MemoryContext caller = MemoryContextSwitchTo(stream->change_context);
	const EtlShape **shapes = palloc(sizeof(EtlShape *) * Max(nrelations, 1));
	EtlTruncatedTable *tables = palloc(sizeof(EtlTruncatedTable) * Max(nrelations, 1));
	bool		cascade = change->data.truncate.cascade;
	bool		restart = change->data.truncate.restart_seqs;
	int			n = 0;

	for (int i = 0; i < nrelations; i++)
	{
		EtlStreamRelation *entry = start_change(stream, relations[i], ETL_PUBLISH_TRUNCATE, ordinal);

		if (entry == NULL)
		{
			etl_stream_truncated_leaf(stream, RelationGetRelid(relations[i]), nrelations, relations);
			continue;
		}
		if (entry->abilities & ETL_TRUNCATE_IS_ROW)
		{
			etl_stream_deliver_truncate(stream, entry, ordinal);
			continue;
		}
		shapes[n] = entry->shape;
		tables[n].table = entry->slot;
		tables[n++].generation = entry->owned.generation;
	}
	if (stream->is_sync)
	{
		for (int i = 0; i < n; i++)
			put_truncate(stream, ordinal, 1, &shapes[i], &tables[i], cascade, restart);
	}
	else if (n > 0)
		put_truncate(stream, ordinal, n, shapes, tables, cascade, restart);
	stream->encoding = false;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(stream->change_context);
}

static void
stream_commit(void *arg, ReorderBufferTXN *txn, uint64 ordinal, XLogRecPtr commit_lsn)
{
	EtlStream  *stream = arg;
	EtlPipelineShared *pipeline = etl_worker_pipeline;
	MemoryContext caller = MemoryContextSwitchTo(stream->change_context);

	etl_stream_commit_rules(stream);
	if (stream->begun)
	{
		put_commit(stream, ordinal);
		stream->position = stream->origin.end_lsn;
		if (!stream->is_sync)
		{
			pg_atomic_fetch_add_u64(&pipeline->transactions, 1);
			pg_atomic_fetch_add_u64(&pipeline->changes, stream->delivered);
		}
	}
	if (!stream->is_sync && stream->counts)
		pg_atomic_write_u64(&pipeline->counted_lsn, commit_lsn);
	if (!stream->is_sync)
		pg_atomic_write_u64(&pipeline->last_commit_time, (uint64) stream->origin.timestamp);
	stream->in_transaction = false;
	MemoryContextSwitchTo(caller);
	MemoryContextReset(stream->change_context);
}

/* A callback has thrown: note which change it was about, and end. */
static void
stream_failed(void *arg)
{
	EtlStream  *stream = arg;
	ErrorData  *error;

	/* the error may have come with a lock held that noting it needs */
	LWLockReleaseAll();
	MemoryContextSwitchTo(stream->context);
	error = CopyErrorData();
	etl_stream_note_error(stream, error);
	TeardownHistoricSnapshot(true);
	etl_worker_fail();
}

const EtlDecodeCallbacks etl_stream_callbacks = {
	.begin = stream_begin,
	.change = stream_change,
	.truncate = stream_truncate,
	.commit = stream_commit,
	.failed = stream_failed,
};
