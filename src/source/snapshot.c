/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *	  The snapshot of an initial sync.
 *
 * The order of calls is the whole content of this file.  In one fresh
 * REPEATABLE READ transaction: make the slot, make the decoding context, find
 * its start point, build the snapshot of that point, install it as the
 * transaction's own.  Exporting the snapshot instead and then reading in the
 * same process would read with another snapshot, silently; making the context
 * outside a transaction would make the process's later writes invisible.
 *
 * The slot is temporary: whatever becomes of this process, it vanishes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlogutils.h"
#include "catalog/indexing.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "replication/logical.h"
#include "replication/slot.h"
#include "replication/snapbuild.h"
#include "storage/proc.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "source/decode.h"
#include "source/snapshot.h"
#include "source/startpoint.h"

/*
 * Read WAL until the slot has a consistent point.  Waiting for running
 * transactions is done with the server's lock manager, so it can be
 * interrupted and is visible in pg_locks.
 */
static List *
find_startpoint(LogicalDecodingContext *decoding)
{
	List	   *volatile touched = NIL;

	PG_TRY();
	{
		touched = etl_startpoint_find(decoding);
	}
	PG_CATCH();
	{
		/* its memory goes with the transaction, its file would stay open */
		if (decoding->reader->seg.ws_file >= 0)
			wal_segment_close(decoding->reader);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return touched;
}

XLogRecPtr
etl_snapshot_begin(const char *slot_name, List **touched)
{
	LogicalDecodingContext *decoding;
	Snapshot	snapshot;
	XLogRecPtr	position;

	Assert(!IsTransactionState());
	Assert(MyReplicationSlot == NULL);

	StartTransactionCommand();
	XactIsoLevel = XACT_REPEATABLE_READ;
	XactReadOnly = true;

	/* waiting for others' transactions is no lock that could be refused */
	(void) set_config_option("lock_timeout", "0", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);

	etl_check_decoding_requirements();
	etl_slot_create(slot_name, RS_TEMPORARY);

	etl_decode_plugin_allowed = true;
	decoding = etl_create_init_decoding_context(true, XL_ROUTINE(.page_read = read_local_xlog_page,
																 .segment_open = wal_segment_open,
																 .segment_close = wal_segment_close));
	etl_decode_plugin_allowed = false;
	Assert((MyProc->statusFlags & PROC_IN_LOGICAL_DECODING) == 0);

	*touched = find_startpoint(decoding);

	/* a catalog snapshot would be in the way of the transaction's own */
	InvalidateCatalogSnapshot();
	snapshot = SnapBuildInitialSnapshot(decoding->snapshot_builder);
	RestoreTransactionSnapshot(snapshot, MyProc);
	position = MyReplicationSlot->data.confirmed_flush;
	FreeDecodingContext(decoding);

	PushActiveSnapshot(GetTransactionSnapshot());
	return position;
}

void
etl_snapshot_end(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
}

void
etl_snapshot_abandon(void)
{
	etl_decode_plugin_allowed = false;
	AbortOutOfAnyTransaction();
	if (MyReplicationSlot != NULL)
		ReplicationSlotRelease();
	etl_slot_cleanup();
	InvalidateSystemCaches();
}

/*
 * Append the places (ctid) of a catalog's rows about "relid", as "snapshot"
 * sees them.  A row that was changed has another place.
 */
static void
catalog_places(Oid catalog, Oid index, AttrNumber column, Oid relid,
			   Snapshot snapshot, StringInfo places)
{
	Relation	relation = table_open(catalog, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(relation, index, true, snapshot, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		/* of the indexes, only those that make a key */
		if (catalog == IndexRelationId)
		{
			Form_pg_index form = (Form_pg_index) GETSTRUCT(tuple);

			if (!form->indisprimary && !form->indisreplident)
				continue;
		}
		appendBinaryStringInfo(places, (char *) &tuple->t_self,
							   sizeof(ItemPointerData));
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
}

static bool
same_places(Oid catalog, Oid index, AttrNumber column, Oid relid)
{
	StringInfoData then;
	StringInfoData now;
	bool		same;

	initStringInfo(&then);
	initStringInfo(&now);
	catalog_places(catalog, index, column, relid, GetActiveSnapshot(), &then);
	catalog_places(catalog, index, column, relid, NULL, &now);
	same = then.len == now.len && memcmp(then.data, now.data, then.len) == 0;
	pfree(then.data);
	pfree(now.data);
	return same;
}

/* The table's row of pg_class, under the snapshot, against the current one. */
static bool
same_class(Relation relation)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	Form_pg_class now = relation->rd_rel;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		same = false;

	ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(relation)));
	scan = systable_beginscan(catalog, ClassOidIndexId, true,
							  GetActiveSnapshot(), 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_class then = (Form_pg_class) GETSTRUCT(tuple);

		same = then->relfilenode == now->relfilenode &&
			then->relnatts == now->relnatts &&
			then->relreplident == now->relreplident &&
			then->relpersistence == now->relpersistence &&
			then->relnamespace == now->relnamespace &&
			strcmp(NameStr(then->relname), NameStr(now->relname)) == 0;
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return same;
}

bool
etl_snapshot_matches(Relation relation)
{
	Oid			relid = RelationGetRelid(relation);

	if (relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE &&
		!same_places(InheritsRelationId, InheritsParentIndexId,
					 Anum_pg_inherits_inhparent, relid))
		return false;
	return same_class(relation) &&
		same_places(AttributeRelationId, AttributeRelidNumIndexId,
					Anum_pg_attribute_attrelid, relid) &&
		same_places(IndexRelationId, IndexIndrelidIndexId,
					Anum_pg_index_indrelid, relid);
}
