/*-------------------------------------------------------------------------
 *
 * stream_row.c
 *	  Rows of a stream: images, keys, and the records they become.
 *
 * The reorder buffer hands over what the WAL has: the new row, and of the old
 * one what the replica identity asks for.  Values that an update left alone
 * and that are stored out of line are not in the WAL; they come from the old
 * row where that is whole, and else stay a hole that the writer may fill
 * (writer/toast.h).  They are never fetched here: a decoder would see a later value,
 * or none.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_class.h"
#include "utils/datum.h"
#include "utils/memutils.h"

#include "compat.h"
#include "server/adjusted.h"
#include "stream/stream_private.h"

/*
 * Fill unchanged TOAST of the new row from the old one, and list what stays
 * unknown.  The result lives in the change's context.
 */
static Bitmapset *
find_missing(EtlStreamRelation *entry, bool have_old)
{
	Bitmapset  *missing = NULL;

	for (int i = 0; i < entry->ntoastable; i++)
	{
		int			att = entry->toastable[i];
		TupleTableSlot *row = entry->new_row;
		TupleTableSlot *old = entry->old_row;

		if (row->tts_isnull[att] ||
			!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(row->tts_values[att])))
			continue;
		if (have_old && !old->tts_isnull[att] &&
			!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(old->tts_values[att])))
			row->tts_values[att] = old->tts_values[att];
		else
			missing = bms_add_member(missing, att + 1);
	}
	return missing;
}

/*
 * Values that are stored out of line.  Those that the reorder buffer has put
 * together are behind pointers to memory: take the memory itself, which nobody
 * then copies.
 */
static void
take_out_of_line(EtlStreamRelation *entry)
{
	for (int i = 0; i < entry->ntoastable; i++)
	{
		Datum	   *value = &entry->new_row->tts_values[entry->toastable[i]];
		varatt_indirect indirect;

		if (entry->new_row->tts_isnull[entry->toastable[i]] ||
			!VARATT_IS_EXTERNAL(DatumGetPointer(*value)))
			continue;
		entry->toasted = true;
		if (!VARATT_IS_EXTERNAL_INDIRECT(DatumGetPointer(*value)))
			continue;
		VARATT_EXTERNAL_GET_POINTER(indirect, DatumGetPointer(*value));
		*value = PointerGetDatum(indirect.pointer);
	}
}

/* Do the two rows differ in a column of the key? */
static bool
key_changed(EtlStreamRelation *entry)
{
	TupleDesc	desc = entry->new_row->tts_tupleDescriptor;

	for (int i = 0; i < entry->shape->ncolumns; i++)
	{
		int			att = entry->shape->columns[i].attnum - 1;
		Form_pg_attribute form = TupleDescAttr(desc, att);

		if (entry->shape->columns[i].key_position == 0)
			continue;
		if (entry->new_row->tts_isnull[att] != entry->old_row->tts_isnull[att])
			return true;
		if (entry->new_row->tts_isnull[att])
			continue;
		if (form->attlen == -1 &&
			VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(entry->new_row->tts_values[att])))
			continue;			/* unchanged, by definition */
		if (!datum_image_eq(entry->new_row->tts_values[att], entry->old_row->tts_values[att],
							form->attbyval, form->attlen))
			return true;
	}
	return false;
}

/*
 * The row's key, byte-equal for equal values of one table: what the writer
 * finds earlier rows of the same key by.  Before the table's first value out
 * of line there is nothing that it could look for: whatever is missing later
 * was written after that.
 */
static void
encode_key(EtlStream *stream, EtlStreamRelation *entry, TupleTableSlot *row)
{
	etl_stream_reset_buffer(&stream->key);

	/* a row that comes and goes unseen could be taken for another */
	if (!entry->keyed || !entry->toasted || (entry->rule->operations & ETL_PUBLISH_ROWS) != ETL_PUBLISH_ROWS)
		return;
	for (int i = 0; i < entry->shape->ncolumns; i++)
	{
		int			att = entry->shape->columns[i].attnum - 1;
		Form_pg_attribute form = TupleDescAttr(row->tts_tupleDescriptor, att);
		Datum		value = row->tts_values[att];

		if (entry->shape->columns[i].key_position == 0)
			continue;
		if (row->tts_isnull[att] ||
			(form->attlen == -1 && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value))))
		{
			etl_stream_reset_buffer(&stream->key);
			return;
		}
		if (form->attbyval)
			appendBinaryStringInfo(&stream->key, (const char *) &value, sizeof(value));
		else
		{
			struct varlena *packed = form->attlen == -1 ?
				pg_detoast_datum_packed((struct varlena *) DatumGetPointer(value)) : NULL;
			const char *bytes = packed ? VARDATA_ANY(packed) : DatumGetPointer(value);
			uint32		len = packed ? VARSIZE_ANY_EXHDR(packed) :
				(form->attlen == -2 ? strlen(bytes) : form->attlen);

			appendBinaryStringInfo(&stream->key, (const char *) &len, sizeof(len));
			appendBinaryStringInfo(&stream->key, bytes, len);
		}
	}
}

/*
 * Behind a row with holes: the pointers that stand in them, by which the
 * writer may find the values at the source (live.c).  Returns their number.
 */
static uint32
append_pointers(EtlStream *stream, const EtlChange *change)
{
	uint32		n = 0;
	int			attnum = -1;

	while ((attnum = bms_next_member(change->missing, attnum)) >= 0)
	{
		EtlToastPointer pointer;

		memset(&pointer, 0, sizeof(pointer));
		pointer.attnum = attnum;
		VARATT_EXTERNAL_GET_POINTER(pointer.external,
									DatumGetPointer(change->new_row->tts_values[attnum - 1]));
		appendBinaryStringInfo(&stream->body, (const char *) &pointer, sizeof(pointer));
		n++;
	}
	return n;
}

/*
 * The row leaves its key for another one, and no delete says so: a record
 * without a body that tells it to those who look for earlier rows by key.
 */
static void
put_key_left(EtlStream *stream, EtlStreamRelation *entry, const EtlChange *change)
{
	EtlRecord	record = {.kind = ETL_RECORD_ROW};

	encode_key(stream, entry, change->old_row);
	if (stream->key.len == 0)
		return;
	record.op = ETL_DELETE;
	record.table = entry->slot;
	record.generation = entry->owned.generation;
	record.version = entry->shape->version;
	record.lsn = stream->origin.commit_lsn;
	record.ordinal = change->position.ordinal;
	record.time = stream->origin.timestamp;
	etl_queue_put(stream->queue, &record, stream->key.data, stream->key.len, NULL, 0);
}

/* Encode one image and put it.  False when the table was parked over it. */
static bool
put_row(EtlStream *stream, EtlStreamRelation *entry, EtlChange *change)
{
	static EtlAdjusted adjusted;
	EtlRecord	record = {.kind = ETL_RECORD_ROW};
	EtlValueError error;

	adjusted.n = 0;
	change->adjusted = &adjusted;
	etl_stream_reset_buffer(&stream->body);
	if (!stream->config->routine->encode_row(entry->codec, change, &stream->body, &error))
	{
		const EtlColumn *column = etl_shape_column(entry->shape, error.attnum);

		etl_stream_park(stream, entry, change->position.ordinal, error.sqlstate,
						psprintf("column \"%s\" of table \"%s.%s\": %s",
								 column ? column->name : "?", entry->shape->schema_name,
								 entry->shape->table_name, error.message), NULL);
		return false;
	}
	if (stream->body.len == 0)
		return true;			/* the destination does not want it */
	if (unlikely(adjusted.n > 0) && stream->counts)
		etl_adjusted_count(entry->slot, &adjusted);

	etl_stream_begin_record(stream);
	record.op = change->op;
	record.sub = change->position.sub;
	if (change->missing)
	{
		record.flags |= ETL_RECORD_INCOMPLETE;
		record.n = append_pointers(stream, change);
	}
	if (entry->keyed && entry->toasted && change->op == ETL_UPDATE && change->position.sub == 0 &&
		change->old_row && key_changed(entry))
	{
		record.flags |= ETL_RECORD_KEY_CHANGED;
		put_key_left(stream, entry, change);
	}
	record.table = entry->slot;
	record.generation = entry->owned.generation;
	record.version = entry->shape->version;
	record.lsn = stream->origin.commit_lsn;
	record.ordinal = change->position.ordinal;
	record.time = stream->origin.timestamp;
	if (change->op == ETL_TRUNCATE)
		etl_stream_reset_buffer(&stream->key);
	else
		encode_key(stream, entry, change->new_row ? change->new_row : change->old_row);
	etl_queue_put(stream->queue, &record, stream->key.data, stream->key.len,
				  stream->body.data, stream->body.len);
	etl_stream_reset_buffer(&stream->body);
	return true;
}

/* A key-changing update as a delete of the old key and the new row. */
static void
put_split(EtlStream *stream, EtlStreamRelation *entry, EtlChange *change)
{
	EtlChange	old = *change;

	old.op = ETL_DELETE;
	old.new_row = NULL;
	old.missing = NULL;
	if (!put_row(stream, entry, &old))
		return;
	change->position.sub = 1;
	(void) put_row(stream, entry, change);
}

/*
 * Ask the publication's row filter; what passes has its rows in the slots.  An
 * update may become an insert or a delete, which keeps its ordinal.
 */
static bool
passes_filter(EtlStreamRelation *entry, EtlOperation *op, HeapTuple *new_tuple, HeapTuple *old_tuple)
{
	bool		passes;

	if (*new_tuple)
		etl_stream_store_row(entry, entry->new_row, *new_tuple);
	if (*old_tuple)
		etl_stream_store_row(entry, entry->old_row, *old_tuple);
	passes = etl_filter_change(entry->filter, op, *new_tuple ? entry->new_row : NULL,
							   *old_tuple ? entry->old_row : NULL);
	if (!passes || *op == ETL_DELETE)
	{
		ExecClearTuple(entry->new_row);
		*new_tuple = NULL;
	}
	if (!passes || *op == ETL_INSERT)
	{
		ExecClearTuple(entry->old_row);
		*old_tuple = NULL;
	}
	return passes;
}

void
etl_stream_deliver_row(EtlStream *stream, EtlStreamRelation *entry, EtlOperation op,
			uint64 ordinal, HeapTuple new_tuple, HeapTuple old_tuple)
{
	EtlChange	change;
	bool		full = etl_stream_identity(entry) == REPLICA_IDENTITY_FULL;
	bool		updated = op == ETL_UPDATE;

	if (entry->filter && !passes_filter(entry, &op, &new_tuple, &old_tuple))
		return;

	memset(&change, 0, sizeof(change));
	change.op = op;
	change.position.epoch = stream->origin.epoch;
	change.position.commit_lsn = stream->origin.commit_lsn;
	change.position.ordinal = ordinal;
	change.origin = &stream->origin;
	if (new_tuple)
	{
		if (!entry->filter)
			etl_stream_store_row(entry, entry->new_row, new_tuple);
		slot_getallattrs(entry->new_row);
		change.new_row = entry->new_row;
		take_out_of_line(entry);
	}
	if (old_tuple)
	{
		if (!entry->filter)
			etl_stream_store_row(entry, entry->old_row, old_tuple);
		slot_getallattrs(entry->old_row);
		change.old_row = entry->old_row;
		change.old_kind = full ? ETL_OLD_FULL : ETL_OLD_KEY;
	}
	if (updated && new_tuple)
		change.missing = find_missing(entry, old_tuple != NULL);

	if (op == ETL_UPDATE && old_tuple && entry->shape->nkeys > 0 &&
		(entry->abilities & ETL_SPLIT_KEY_CHANGE) && key_changed(entry))
		put_split(stream, entry, &change);
	else
		(void) put_row(stream, entry, &change);

	ExecClearTuple(entry->new_row);
	ExecClearTuple(entry->old_row);
	stream->delivered++;
}

/* A truncate of one table, where that is a row like others. */
void
etl_stream_deliver_truncate(EtlStream *stream, EtlStreamRelation *entry, uint64 ordinal)
{
	EtlChange	change;

	memset(&change, 0, sizeof(change));
	change.op = ETL_TRUNCATE;
	change.position.epoch = stream->origin.epoch;
	change.position.commit_lsn = stream->origin.commit_lsn;
	change.position.ordinal = ordinal;
	change.origin = &stream->origin;
	(void) put_row(stream, entry, &change);
	stream->delivered++;
}
