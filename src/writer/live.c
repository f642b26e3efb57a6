/*-------------------------------------------------------------------------
 *
 * live.c
 *	  Unchanged out-of-line values, read from the live row of the source.
 *
 * The second place of toast.h.  What stands in a hole of a row is a pointer
 * into the TOAST table: which table, which value, its size.  If the row that
 * lives under the same key now has the very same pointer, its value is the one
 * that is missing, for a value in a TOAST table is never changed, only
 * deleted, and its number is not given again while it is there.  Any other
 * pointer, or none, proves nothing, and nothing is taken: a later value would
 * be one that the row never had.
 *
 * The writer may do this, because it does not decode: it opens a bracket with
 * the current catalogs.  A column whose type is not what it was, or whose text
 * depends on catalogs (an enum, a composite), is left to the third place.  A
 * user's lock is not waited for.  A table that is published as a whole has its
 * rows in partitions: the TOAST table's owner is the one to look into.
 *
 * Cost: a transaction without an XID, and one look-up in the index of the
 * replica identity, for each row that the first place could not complete;
 * and reading the value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "schema/shape.h"
#include "server/worker.h"
#include "source/partition.h"
#include "writer/toast.h"

/* One call of etl_live_fill(). */
typedef struct LiveCall
{
	EtlWriter  *writer;
	EtlGeneration *generation;
	const EtlRecord *record;
	EtlCodec   *codec;
	EtlItem    *item;
	MemoryContext context;		/* of the result */
	EtlRowMap  *map;			/* rows of a partition into its root's; or NULL */
	bool		filled;
	bool		complete;
} LiveCall;

/* ----------
 * The row
 * ----------
 */

/*
 * Values of the key's columns, by place in the key, from the bytes of the
 * record's key; in the order of stream_row.c's encode_key().  False when the
 * columns are not what they were.
 */
static bool
decode_key(const EtlShape *shape, const EtlRecord *record, TupleDesc desc, Datum *values)
{
	const char *at = ETL_RECORD_KEY(record);

	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *column = &shape->columns[i];
		Form_pg_attribute att;
		uint32		len;
		char	   *copy;

		if (column->key_position == 0)
			continue;
		att = TupleDescAttr(desc, column->attnum - 1);
		if (att->attisdropped || att->atttypid != column->type)
			return false;
		if (att->attbyval)
		{
			memcpy(&values[column->key_position - 1], at, sizeof(Datum));
			at += sizeof(Datum);
			continue;
		}
		memcpy(&len, at, sizeof(len));
		at += sizeof(len);
		copy = palloc0(VARHDRSZ + len + 1);
		memcpy(att->attlen == -1 ? VARDATA(copy) : copy, at, len);
		if (att->attlen == -1)
			SET_VARSIZE(copy, VARHDRSZ + len);
		values[column->key_position - 1] = PointerGetDatum(copy);
		at += len;
	}
	return true;
}

/*
 * Conditions on the index for these values; false when it is not the index of
 * the shape's key any more.
 */
static bool
make_conditions(const LiveCall *call, Relation index, const Datum *values, ScanKey keys)
{
	const EtlShape *shape = call->generation->shape;

	if (index->rd_index->indnkeyatts != shape->nkeys || !index->rd_index->indisvalid)
		return false;
	for (int i = 0; i < shape->nkeys; i++)
	{
		AttrNumber	attnum = index->rd_index->indkey.values[i];
		const EtlColumn *column = etl_shape_column(shape, call->map ?
												   etl_row_map_attnum(call->map, attnum) : attnum);
		Oid			type = index->rd_opcintype[i];
		Oid			operator = get_opfamily_member(index->rd_opfamily[i], type, type,
												   BTEqualStrategyNumber);

		if (column == NULL || column->key_position != i + 1 || !OidIsValid(operator))
			return false;
		ScanKeyEntryInitialize(&keys[i], 0, i + 1, BTEqualStrategyNumber, InvalidOid,
							   index->rd_indcollation[i], get_opcode(operator), values[i]);
	}
	return true;
}

/*
 * The live row under the record's key, in "row", which is a row of the table
 * itself; false: none, or not to be found.
 */
static bool
find_row(const LiveCall *call, Relation relation, TupleTableSlot *row)
{
	const EtlShape *shape = call->generation->shape;
	Datum	   *values = palloc0(sizeof(Datum) * shape->nkeys);
	ScanKey		keys = palloc(sizeof(ScanKeyData) * shape->nkeys);
	Oid			oid = RelationGetReplicaIndex(relation);
	TupleTableSlot *slot;
	Relation	index;
	bool		found = false;

	if (!OidIsValid(oid) || !decode_key(shape, call->record, row->tts_tupleDescriptor, values))
		return false;
	slot = call->map ? table_slot_create(relation, NULL) : row;
	index = index_open(oid, AccessShareLock);
	if (make_conditions(call, index, values, keys))
	{
		IndexScanDesc scan = etl_index_beginscan(relation, index, GetActiveSnapshot(),
												 shape->nkeys);

		index_rescan(scan, keys, shape->nkeys, NULL, 0);
		found = index_getnext_slot(scan, ForwardScanDirection, slot);
		if (found && call->map)
			etl_row_map_store(call->map, ExecCopySlotHeapTuple(slot), row);
		else if (found)
			slot_getallattrs(slot);
		index_endscan(scan);
	}
	index_close(index, AccessShareLock);
	if (call->map)
		ExecDropSingleTupleTableSlot(slot);
	return found;
}

/* ----------
 * Its values
 * ----------
 */

/*
 * Is the text of this type's values the same under all catalogs?  Of types
 * that show names of objects, arrays may be stored out of line.
 */
static bool
is_timeless(Oid type)
{
	Oid			element = get_base_element_type(type);
	Oid			base = getBaseType(OidIsValid(element) ? element : type);

	switch (base)
	{
		case REGPROCOID:
		case REGPROCEDUREOID:
		case REGOPEROID:
		case REGOPERATOROID:
		case REGCLASSOID:
		case REGTYPEOID:
		case REGROLEOID:
		case REGNAMESPACEOID:
		case REGCONFIGOID:
		case REGDICTIONARYOID:
		case REGCOLLATIONOID:
		case ACLITEMOID:
			return false;
		default:
			return get_typtype(base) == TYPTYPE_BASE;
	}
}

/* If the row has the value that the pointer of the hole is to: fetch it. */
static bool
fetch_value(const EtlShape *shape, TupleTableSlot *row, const EtlToastPointer *pointer, Datum *value)
{
	const EtlColumn *column = etl_shape_column(shape, pointer->attnum);
	int			i = pointer->attnum - 1;
	Form_pg_attribute att;
	varatt_external external;

	if (column == NULL || i >= row->tts_nvalid || row->tts_isnull[i])
		return false;
	att = TupleDescAttr(row->tts_tupleDescriptor, i);
	if (att->attisdropped || att->attlen != -1 || att->atttypid != column->type ||
		!is_timeless(att->atttypid) ||
		!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(row->tts_values[i])))
		return false;
	VARATT_EXTERNAL_GET_POINTER(external, DatumGetPointer(row->tts_values[i]));
	if (memcmp(&external, &pointer->external, sizeof(external)) != 0)
		return false;
	*value = PointerGetDatum(detoast_external_attr((struct varlena *)
												   DatumGetPointer(row->tts_values[i])));
	return true;
}

/*
 * Put what was fetched into the item: a row that has these values and nothing
 * else is encoded, and taken apart again.
 */
static void
splice_values(LiveCall *call, TupleTableSlot *values, const Bitmapset *missing, int nfetched,
			  const AttrNumber *attnums)
{
	const EtlDestinationRoutine *routine = call->writer->config->routine;
	const EtlConfig *config = call->writer->config;
	EtlOrigin	origin = {.source = config->source,.pipeline = config->name,
	.phase = ETL_PHASE_STREAM};
	EtlChange	change = {.op = ETL_UPDATE,.origin = &origin,.new_row = values,
	.old_kind = ETL_OLD_NONE,.missing = missing};
	const char **data = palloc(sizeof(char *) * nfetched);
	uint32	   *lens = palloc(sizeof(uint32) * nfetched);
	EtlValueError error;
	StringInfoData row;
	StringInfoData out;

	initStringInfo(&row);
	if (!routine->encode_row(call->codec, &change, &row, &error))
		return;
	for (int i = 0; i < nfetched; i++)
		if (!routine->extract(call->codec, row.data, row.len, attnums[i], &data[i], &lens[i]))
			return;

	MemoryContextSwitchTo(call->context);
	initStringInfo(&out);
	if (routine->splice(call->codec, call->item->data, call->item->len, nfetched, attnums,
						data, lens, &out))
	{
		call->item->data = out.data;
		call->item->len = out.len;
		call->filled = true;
	}
	else
		pfree(out.data);
}

/* All holes that the live row can fill. */
static void
fill_holes(LiveCall *call, TupleTableSlot *row)
{
	const EtlRecord *record = call->record;
	const EtlShape *shape = call->generation->shape;
	TupleTableSlot *values = MakeSingleTupleTableSlot(row->tts_tupleDescriptor, &TTSOpsVirtual);
	AttrNumber *attnums = palloc(sizeof(AttrNumber) * record->n);
	const char *at = ETL_RECORD_BODY(record) + record->body_len - record->n * sizeof(EtlToastPointer);
	Bitmapset  *missing = NULL;
	bool		all = true;
	int			n = 0;

	ExecStoreAllNullTuple(values);
	for (int i = 0; i < shape->ncolumns; i++)
		missing = bms_add_member(missing, shape->columns[i].attnum);
	for (uint32 i = 0; i < record->n; i++, at += sizeof(EtlToastPointer))
	{
		EtlToastPointer pointer;
		const char *known;
		uint32		len;

		memcpy(&pointer, at, sizeof(pointer));
		if (call->writer->config->routine->extract(call->codec, call->item->data, call->item->len,
												   pointer.attnum, &known, &len))
			continue;
		if (!fetch_value(shape, row, &pointer, &values->tts_values[pointer.attnum - 1]))
		{
			all = false;
			continue;
		}
		values->tts_isnull[pointer.attnum - 1] = false;
		missing = bms_del_member(missing, pointer.attnum);
		attnums[n++] = pointer.attnum;
	}
	if (n > 0)
		splice_values(call, values, missing, n, attnums);
	call->complete = all && call->filled;
	ExecDropSingleTupleTableSlot(values);
}

/* ----------
 * The bracket
 * ----------
 */

/* A table that nobody has locked exclusively, or NULL. */
static Relation
open_at_once(Oid relid)
{
	if (!OidIsValid(relid) || !ConditionalLockRelationOid(relid, AccessShareLock))
		return NULL;
	return try_table_open(relid, NoLock);
}

static void
look_for_row(LiveCall *call, Relation relation, TupleTableSlot *row)
{
	Oid			user;
	int			sec_context;

	/* operators and output functions of users' types */
	GetUserIdAndSecContext(&user, &sec_context);
	SetUserIdAndSecContext(relation->rd_rel->relowner, sec_context |
						   SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	if (find_row(call, relation, row))
		fill_holes(call, row);
	SetUserIdAndSecContext(user, sec_context);
}

/* Of a table that is published as a whole: the partition whose values are missing. */
static void
look_in_partition(LiveCall *call, Relation whole, TupleTableSlot *row)
{
	const EtlRecord *record = call->record;
	EtlToastPointer pointer;
	Relation	relation;

	memcpy(&pointer, ETL_RECORD_BODY(record) + record->body_len - sizeof(pointer), sizeof(pointer));
	relation = open_at_once(etl_partition_of_toast(RelationGetRelid(whole),
												   pointer.external.va_toastrelid));
	if (relation == NULL)
		return;
	call->map = etl_row_map_create(relation, RelationGetDescr(whole));
	look_for_row(call, relation, row);
	table_close(relation, AccessShareLock);
}

static void
live_body(void *arg)
{
	LiveCall   *call = arg;
	Relation	relation = open_at_once(call->generation->relid);
	TupleTableSlot *row;

	if (relation == NULL)
		return;
	if (relation->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		row = MakeSingleTupleTableSlot(RelationGetDescr(relation), &TTSOpsVirtual);
		look_in_partition(call, relation, row);
		ExecDropSingleTupleTableSlot(row);
	}
	else if (relation->rd_rel->relkind == RELKIND_RELATION)
	{
		row = table_slot_create(relation, NULL);
		look_for_row(call, relation, row);
		ExecDropSingleTupleTableSlot(row);
	}
	table_close(relation, AccessShareLock);
}

bool
etl_live_fill(EtlWriter *writer, EtlGeneration *generation, const EtlRecord *record,
			  EtlItem *item, bool *complete)
{
	MemoryContext context = CurrentMemoryContext;
	LiveCall	call = {.writer = writer,.generation = generation,.record = record,
	.item = item,.context = context};

	*complete = false;
	if (record->n == 0 || generation->shape == NULL || generation->shape->nkeys == 0 ||
		generation->shape->version != record->version)
		return false;
	call.codec = etl_toast_codec(writer, generation);
	if (call.codec == NULL)
		return false;

	PG_TRY();
	{
		(void) etl_bracket_try(ETL_BRACKET_READ, "etl: reading a row", live_body, &call);
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

	*complete = call.filled && call.complete;
	return call.filled;
}
