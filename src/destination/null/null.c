/*-------------------------------------------------------------------------
 *
 * null.c
 *	  The destination that acknowledges and discards.
 *
 * Every row is encoded as ClickHouse would get it: all columns in RowBinary,
 * a version and a flag for tombstones.  So it shows what reading and encoding
 * cost, and it runs the whole path from WAL to confirmation without a network.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "etl/destination.h"
#include "format/rowbinary.h"

/* Nothing is connected, but the core wants something to hold. */
struct EtlConnection
{
	uint64		batches;
};

struct EtlCodec
{
	int			ncolumns;
	EtlRowBinaryCodec **columns;
	Bitmapset  *not_key;		/* attnums that a tombstone leaves empty */
};

static const EtlOptionDef null_options[] = {
	{.name = NULL}
};

static EtlCodec *
null_codec_create(const EtlShape *shape, const EtlTarget *target,
				  const EtlOptions *options)
{
	EtlCodec   *codec = palloc0(sizeof(EtlCodec));

	codec->ncolumns = shape->ncolumns;
	codec->columns = palloc(sizeof(EtlRowBinaryCodec *) * Max(shape->ncolumns, 1));
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *column = &shape->columns[i];
		bool		is_key = column->key_position > 0;
		EtlTypeWish wish = {
			.policy = ETL_POLICY_NULL,	/* everything is taken */
			.nulls = column->nullable && !is_key,
			.key = is_key
		};
		EtlTypeMapping mapping;

		etl_rowbinary_map(column, &wish, &mapping);
		mapping.zero = true;
		codec->columns[i] = etl_rowbinary_codec(column, &mapping);
		if (!is_key)
			codec->not_key = bms_add_member(codec->not_key, column->attnum);
	}
	return codec;
}

/*
 * A row, or for a delete its key with the other columns empty.
 */
static bool
null_encode_row(EtlCodec *codec, const EtlChange *change, StringInfo out,
				EtlValueError *error)
{
	bool		is_delete = change->op == ETL_DELETE;
	TupleTableSlot *row = is_delete ? change->old_row : change->new_row;

	if (row == NULL)
		return true;			/* a delete in a table without key */
	if (!etl_rowbinary_row(codec->columns, codec->ncolumns,
						   row->tts_values, row->tts_isnull,
						   is_delete ? codec->not_key : change->missing,
						   change->adjusted, out, error))
		return false;
	etl_rowbinary_version(out, &change->position);
	etl_rowbinary_uint8(out, is_delete);
	return true;
}

static EtlConnection *
null_open(const EtlConnectArgs *args)
{
	return palloc0(sizeof(EtlConnection));
}

static void
null_connect(EtlConnection *connection, EtlResult *result)
{
	result->status = ETL_DONE;
}

static void
null_close(EtlConnection *connection)
{
}

static void
null_send_start(EtlConnection *connection, EtlBatch *batch)
{
	connection->batches++;
}

static void
null_send_poll(EtlConnection *connection, int timeout)
{
}

static void
null_send_result(EtlConnection *connection, EtlBatch *batch, EtlResult *result)
{
	result->status = ETL_DONE;
}

static void
null_send_finish(EtlConnection *connection, EtlBatch *batch)
{
}

const EtlDestinationRoutine etl_null_routine = {
	.magic = ETL_DESTINATION_MAGIC,
	.version = ETL_DESTINATION_VERSION,
	.size = sizeof(EtlDestinationRoutine),
	.kind = "null",
	.abilities = ETL_TAKES_PARTIAL | ETL_SPLIT_KEY_CHANGE | ETL_FOLLOWS_SHAPES,
	.max_batch_size = -1,
	.max_batch_events = -1,
	.max_batch_delay = -1,
	.options = null_options,
	.codec_create = null_codec_create,
	.encode_row = null_encode_row,
	.open = null_open,
	.connect = null_connect,
	.close = null_close,
	.send_start = null_send_start,
	.send_poll = null_send_poll,
	.send_result = null_send_result,
	.send_finish = null_send_finish,
};

PG_FUNCTION_INFO_V1(etl_null_handler);

Datum
etl_null_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&etl_null_routine);
}
