/*-------------------------------------------------------------------------
 *
 * copy.c
 *	  All rows of one table, under the active snapshot.
 *
 * The executor runs SELECT with a receiver of ours at its end: privileges and
 * row-level security are checked by the server itself, tuples are never
 * copied, and waiting for a slow destination inside the receiver is all the
 * back-pressure there is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_class.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "tcop/dest.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "source/copy.h"
#include "source/filter.h"

typedef struct CopyReceiver
{
	DestReceiver pub;			/* first: the executor knows this part */
	MemoryContext row_context;	/* reset after each row */
	const EtlShape *shape;
	TupleTableSlot *row;		/* full width */
	bool	   *varlena;		/* by column of the shape */
	EtlCopyRow	deliver;
	void	   *arg;
	bool		ended;			/* deliver() returned false */
} CopyReceiver;

/*
 * Place the query's columns at their attnums.  Values stored out of line are
 * fetched here: encoders take a pointer to the toast table for an unchanged
 * value, which a copy never has.
 */
static void
fill_row(CopyReceiver *receiver, TupleTableSlot *slot)
{
	TupleTableSlot *row = receiver->row;
	const EtlShape *shape = receiver->shape;

	slot_getallattrs(slot);
	ExecClearTuple(row);
	for (int i = 0; i < shape->ncolumns; i++)
	{
		int			place = shape->columns[i].attnum - 1;
		Datum		value = slot->tts_values[i];

		if (!slot->tts_isnull[i] && receiver->varlena[i] &&
			VARATT_IS_EXTERNAL(DatumGetPointer(value)))
			value = PointerGetDatum(detoast_external_attr((struct varlena *) DatumGetPointer(value)));
		row->tts_values[place] = value;
		row->tts_isnull[place] = slot->tts_isnull[i];
	}
	ExecStoreVirtualTuple(row);
}

static bool
receive_slot(TupleTableSlot *slot, DestReceiver *self)
{
	CopyReceiver *receiver = (CopyReceiver *) self;
	MemoryContext context = MemoryContextSwitchTo(receiver->row_context);

	CHECK_FOR_INTERRUPTS();
	fill_row(receiver, slot);
	if (!receiver->deliver(receiver->arg, receiver->row))
		receiver->ended = true;
	MemoryContextSwitchTo(context);
	MemoryContextReset(receiver->row_context);
	return !receiver->ended;
}

static void
receive_startup(DestReceiver *self, int operation, TupleDesc desc)
{
}

static void
receive_end(DestReceiver *self)
{
}

/* A receiver in CurrentMemoryContext. */
static CopyReceiver *
make_receiver(Relation relation, const EtlShape *shape, EtlCopyRow deliver, void *arg)
{
	CopyReceiver *receiver = palloc0(sizeof(CopyReceiver));
	TupleDesc	desc = CreateTupleDescCopyConstr(RelationGetDescr(relation));

	receiver->pub.receiveSlot = receive_slot;
	receiver->pub.rStartup = receive_startup;
	receiver->pub.rShutdown = receive_end;
	receiver->pub.rDestroy = receive_end;
	receiver->pub.mydest = DestTuplestore;
	receiver->row_context = AllocSetContextCreate(CurrentMemoryContext, "etl copied row",
												  ALLOCSET_DEFAULT_SIZES);
	receiver->shape = shape;
	receiver->row = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	memset(receiver->row->tts_isnull, true, sizeof(bool) * desc->natts);
	receiver->varlena = palloc(sizeof(bool) * Max(shape->ncolumns, 1));
	for (int i = 0; i < shape->ncolumns; i++)
		receiver->varlena[i] =
			TupleDescAttr(desc, shape->columns[i].attnum - 1)->attlen == -1;
	receiver->deliver = deliver;
	receiver->arg = arg;
	return receiver;
}

/*
 * The query.  ONLY, because each table of an inheritance tree is published
 * and copied by itself; a partitioned table is published as a whole.
 */
static char *
copy_query(Relation relation, const EtlShape *shape, const char *filter)
{
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT ");
	for (int i = 0; i < shape->ncolumns; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(relation),
											  shape->columns[i].attnum - 1);

		appendStringInfo(&query, "%s%s", i > 0 ? ", " : "",
						 quote_identifier(NameStr(att->attname)));
	}
	appendStringInfo(&query, " FROM %s%s",
					 relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ",
					 quote_qualified_identifier(get_namespace_name(RelationGetNamespace(relation)),
												RelationGetRelationName(relation)));
	if (filter)
		appendStringInfo(&query, " WHERE %s", etl_filter_text(filter, relation));
	return query.data;
}

/* Row-level security would silently leave rows out. */
static void
check_row_security(Relation relation, Oid owner)
{
	if (check_enable_rls(RelationGetRelid(relation), owner, true) != RLS_ENABLED)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("row-level security of table \"%s\" would filter rows for role \"%s\"",
					RelationGetRelationName(relation),
					GetUserNameFromId(owner, false)),
			 errhint("Give the pipeline's owner BYPASSRLS.")));
}

bool
etl_copy_table(Relation relation, const EtlShape *shape, const char *filter,
			   Oid owner, EtlCopyRow row, void *arg)
{
	CopyReceiver *receiver;
	SPIExecuteOptions options = {0};
	Oid			save_userid;
	int			save_sec_context;
	bool		ended;
	int			rc;

	GetUserIdAndSecContext(&save_userid, &save_sec_context);
	SetUserIdAndSecContext(owner, save_sec_context |
						   SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	check_row_security(relation, owner);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	receiver = make_receiver(relation, shape, row, arg);
	options.read_only = true;
	options.dest = &receiver->pub;
	rc = SPI_execute_extended(copy_query(relation, shape, filter), &options);
	if (rc != SPI_OK_SELECT)
		elog(ERROR, "copy of table \"%s\" returned %s",
			 RelationGetRelationName(relation), SPI_result_code_string(rc));
	ended = receiver->ended;
	ExecDropSingleTupleTableSlot(receiver->row);
	SPI_finish();

	SetUserIdAndSecContext(save_userid, save_sec_context);
	return !ended;
}

bool
etl_copy_in_the_way(const List *relids, int ms)
{
	LockData   *locks = GetLockStatusData();
	TimestampTz now = GetCurrentTimestamp();
	bool		found = false;

	for (int i = 0; i < locks->nelements && !found; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->waitLockMode == NoLock || lock->waitStart == 0 ||
			lock->locktag.locktag_type != LOCKTAG_RELATION ||
			lock->locktag.locktag_field1 != MyDatabaseId ||
			!TimestampDifferenceExceeds(lock->waitStart, now, ms))
			continue;
		found = list_member_oid(relids, lock->locktag.locktag_field2);
	}
	pfree(locks->locks);
	pfree(locks);
	return found;
}
