/*-------------------------------------------------------------------------
 *
 * local_kind.c
 *	  etl_test_local: a destination inside the source's own database.
 *
 * Rows end in etl_test.local_row (the current state by key) and each change
 * in etl_test.local_change, in the writer's transaction.  Copied rows cannot
 * be written while the copy's snapshot is held: they are kept and written at
 * end_copy(), in a transaction of their own.
 *
 * Needs a key for every table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/snapmgr.h"

#include "row.h"

struct EtlConnection
{
	MemoryContext kept_context;
	StringInfoData kept;		/* copied rows: KeptRow, row */
};

typedef struct KeptRow
{
	Oid			relid;			/* InvalidOid: written */
	uint32		len;
} KeptRow;

static const EtlOptionDef local_options[] = {
	{.name = NULL}
};

static EtlConnection *
local_open(const EtlConnectArgs *args)
{
	EtlConnection *connection = palloc0(sizeof(EtlConnection));

	connection->kept_context = AllocSetContextCreate(CurrentMemoryContext, "etl_test local",
													 ALLOCSET_DEFAULT_SIZES);
	return connection;
}

static void
local_connect(EtlConnection *connection, EtlResult *result)
{
	result->status = ETL_DONE;
}

static void
local_close(EtlConnection *connection)
{
}

/* Write one row; SPI is connected. */
static void
write_row(const EtlTable *table, const char *row, uint32 len)
{
	RowHead		head;
	StringInfoData key;
	StringInfoData values;
	Oid			types[] = {OIDOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, PG_LSNOID, INT8OID, INT4OID, BOOLOID};
	Datum		args[9];
	const char *const operations[] = {"", "insert", "update", "delete"};

	initStringInfo(&key);
	initStringInfo(&values);
	row_head(row, &head);
	row_json(table->shape, row, len, true, &key);
	row_json(table->shape, row, len, false, &values);
	args[0] = ObjectIdGetDatum(table->relid);
	args[1] = Int32GetDatum(table->generation);
	args[2] = CStringGetTextDatum(key.data);
	args[3] = CStringGetTextDatum(values.data);
	args[4] = CStringGetTextDatum(operations[head.op]);
	args[5] = LSNGetDatum(head.position.commit_lsn);
	args[6] = Int64GetDatum(head.position.ordinal);
	args[7] = Int32GetDatum(head.position.sub);
	args[8] = BoolGetDatum(head.phase == ETL_PHASE_COPY);

	if (SPI_execute_with_args("INSERT INTO etl_test.local_change"
							  " (relid, generation, key, \"row\", op, lsn, ordinal, sub, copied)"
							  " VALUES ($1, $2, $3::jsonb, $4::jsonb, $5, $6, $7, $8, $9)",
							  9, types, args, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not insert into etl_test.local_change");
	if (SPI_execute_with_args("DELETE FROM etl_test.local_row"
							  " WHERE relid = $1 AND generation = $2 AND key = $3::jsonb",
							  3, types, args, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not delete from etl_test.local_row");
	if (head.op != ETL_DELETE &&
		SPI_execute_with_args("INSERT INTO etl_test.local_row (relid, generation, key, \"row\")"
							  " VALUES ($1, $2, $3::jsonb, $4::jsonb)",
							  4, types, args, NULL, false, 0) != SPI_OK_INSERT)
		elog(ERROR, "could not insert into etl_test.local_row");
	pfree(key.data);
	pfree(values.data);
}

/* An event of a truncate is the OIDs of its tables. */
static void
local_encode_truncate(const EtlOptions *options, const EtlOrigin *origin, uint64 ordinal,
					  int nshapes, const EtlShape *const *shapes, bool cascade,
					  bool restart_identity, StringInfo out)
{
	for (int i = 0; i < nshapes; i++)
		appendBinaryStringInfo(out, (const char *) &shapes[i]->relid, sizeof(Oid));
}

/* Empty the published generation of each table; SPI is connected. */
static void
truncate_tables(const char *data, uint32 len)
{
	for (uint32 at = 0; at < len; at += sizeof(Oid))
	{
		Oid			types[] = {OIDOID};
		Oid			relid;
		Datum		args[1];

		memcpy(&relid, data + at, sizeof(relid));
		args[0] = ObjectIdGetDatum(relid);
		if (SPI_execute_with_args("DELETE FROM etl_test.local_row USING etl_test.local_table"
								  " WHERE local_row.relid = $1 AND local_table.relid = $1"
								  " AND local_row.generation = local_table.generation",
								  1, types, args, NULL, false, 0) != SPI_OK_DELETE)
			elog(ERROR, "could not delete from etl_test.local_row");
	}
}

static void
local_apply(EtlConnection *connection, EtlBatch *batch)
{
	SPI_connect();
	for (int i = 0; i < batch->nitems; i++)
	{
		const EtlItem *item = &batch->items[i];

		if (!(item->flags & ETL_ITEM_EVENT))
			write_row(batch->table, item->data, item->len);
		else if (item->op == ETL_TRUNCATE)
			truncate_tables(item->data, item->len);
	}
	SPI_finish();
}

/* Copied rows: keep them. */
static void
local_send_start(EtlConnection *connection, EtlBatch *batch)
{
	MemoryContext old = MemoryContextSwitchTo(connection->kept_context);

	if (connection->kept.data == NULL)
		initStringInfo(&connection->kept);
	for (int i = 0; i < batch->nitems; i++)
	{
		const EtlItem *item = &batch->items[i];
		KeptRow		kept = {batch->table->relid, item->len};

		if (item->flags & ETL_ITEM_EVENT)
			continue;
		appendBinaryStringInfo(&connection->kept, (const char *) &kept, sizeof(kept));
		appendBinaryStringInfo(&connection->kept, item->data, item->len);
	}
	MemoryContextSwitchTo(old);
}

static void
local_send_poll(EtlConnection *connection, int timeout)
{
}

static void
local_send_result(EtlConnection *connection, EtlBatch *batch, EtlResult *result)
{
	result->status = ETL_DONE;
}

static void
local_send_finish(EtlConnection *connection, EtlBatch *batch)
{
}

/* Forget the rows kept for a table, writing them first if asked to. */
static void
take_kept(EtlConnection *connection, EtlTable *table, bool write)
{
	int			at = 0;

	while (at < connection->kept.len)
	{
		char	   *p = connection->kept.data + at;
		KeptRow		kept;

		memcpy(&kept, p, sizeof(kept));
		at += sizeof(kept) + kept.len;
		if (kept.relid != table->relid)
			continue;
		if (write)
			write_row(table, p + sizeof(kept), kept.len);
		kept.relid = InvalidOid;
		memcpy(p, &kept, sizeof(kept));
	}
}

static void
local_begin_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	take_kept(connection, table, false);
	result->status = ETL_DONE;
}

static void
local_end_copy(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	MemoryContext caller = CurrentMemoryContext;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	take_kept(connection, table, true);
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	result->status = ETL_DONE;
}

/* Run a command on the tables for one of our tables, in a transaction. */
static void
execute(const EtlTable *table, const char *command, EtlResult *result)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		inside = IsTransactionState();
	Oid			types[] = {OIDOID, INT4OID};
	Datum		args[] = {ObjectIdGetDatum(table->relid), Int32GetDatum(table->generation)};

	if (!inside)
	{
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
	}
	SPI_connect();
	if (SPI_execute_with_args(command, 2, types, args, NULL, false, 0) < 0)
		elog(ERROR, "could not execute \"%s\"", command);
	SPI_finish();
	if (!inside)
	{
		PopActiveSnapshot();
		CommitTransactionCommand();
		MemoryContextSwitchTo(caller);
	}
	result->status = ETL_DONE;
}

static void
local_publish_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	execute(table, "DELETE FROM etl_test.local_row WHERE relid = $1 AND generation < $2", result);
	execute(table, "INSERT INTO etl_test.local_table VALUES ($1, $2)"
			" ON CONFLICT (relid) DO UPDATE SET generation = excluded.generation", result);
}

static void
local_abandon_generation(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	take_kept(connection, table, false);
	execute(table, "DELETE FROM etl_test.local_row WHERE relid = $1 AND generation = $2", result);
}

static void
local_truncate(EtlConnection *connection, EtlTable *table, EtlResult *result)
{
	execute(table, "DELETE FROM etl_test.local_row WHERE relid = $1 AND generation = $2", result);
}

static const EtlDestinationRoutine local_routine = {
	.magic = ETL_DESTINATION_MAGIC,
	.version = ETL_DESTINATION_VERSION,
	.size = sizeof(EtlDestinationRoutine),
	.kind = "test_local",
	.abilities = ETL_LOCAL_TRANSACTION | ETL_NEEDS_KEY | ETL_SPLIT_KEY_CHANGE | ETL_FOLLOWS_SHAPES,
	.max_batch_size = -1,
	.max_batch_events = -1,
	.max_batch_delay = -1,
	.options = local_options,
	.codec_create = row_codec_create,
	.encode_row = row_encode,
	.encode_truncate = local_encode_truncate,
	.extract = row_extract,
	.splice = row_splice,
	.open = local_open,
	.connect = local_connect,
	.close = local_close,
	.send_start = local_send_start,
	.send_poll = local_send_poll,
	.send_result = local_send_result,
	.send_finish = local_send_finish,
	.begin_generation = local_begin_generation,
	.end_copy = local_end_copy,
	.publish_generation = local_publish_generation,
	.abandon_generation = local_abandon_generation,
	.truncate = local_truncate,
	.apply_local = local_apply,
};

PG_FUNCTION_INFO_V1(etl_test_local_handler);

Datum
etl_test_local_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&local_routine);
}
