/*-------------------------------------------------------------------------
 *
 * type_names.c
 *	  What the values of a type are called: labels, attribute names.
 *
 * A row stores an enum by OID and a composite by position; destinations have
 * labels and names.  ALTER TYPE ... RENAME VALUE, RENAME ATTRIBUTE, ADD and
 * DROP ATTRIBUTE change what all old rows show without touching one of them.
 *
 * The fingerprint is a text:
 *
 *	 <a1,a2,...>		an enum: hashes of its labels in the order of their
 *						OIDs, so that a new one comes last
 *	 (1:n:t...,2:n:t...) a composite: number, hash of the name, OID of the type
 *						and fingerprint of each attribute
 *
 * with arrays, domains and ranges looked through.  OIDs that have wrapped
 * around put a new label elsewhere than last; then there is a copy too many.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "schema/type_names.h"

typedef struct Label
{
	Oid			oid;
	uint32		hash;
} Label;

static uint32
hash_name(const NameData *name)
{
	return hash_bytes((const unsigned char *) NameStr(*name), strlen(NameStr(*name)));
}

static int
compare_labels(const void *a, const void *b)
{
	Oid			x = ((const Label *) a)->oid;
	Oid			y = ((const Label *) b)->oid;

	return x < y ? -1 : x > y;
}

static void
put_enum(StringInfo out, Oid type)
{
	Relation	catalog = table_open(EnumRelationId, AccessShareLock);
	int			n = 0;
	int			allocated = 64;
	Label	   *labels = palloc(sizeof(Label) * allocated);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_enum_enumtypid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(type));
	scan = systable_beginscan(catalog, EnumTypIdLabelIndexId, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_enum form = (Form_pg_enum) GETSTRUCT(tuple);

		if (n == allocated)
			labels = repalloc(labels, sizeof(Label) * (allocated *= 2));
		labels[n].oid = form->oid;
		labels[n++].hash = hash_name(&form->enumlabel);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);

	qsort(labels, n, sizeof(Label), compare_labels);
	appendStringInfoChar(out, '<');
	for (int i = 0; i < n; i++)
		appendStringInfo(out, "%s%08x", i > 0 ? "," : "", labels[i].hash);
	appendStringInfoChar(out, '>');
	pfree(labels);
}

/*
 * Arrays, domains and ranges looked through: an enum, a composite, or
 * InvalidOid where nothing in it has names.
 */
static Oid
named_type(Oid type)
{
	while (type >= FirstNormalObjectId)
	{
		switch (get_typtype(type))
		{
			case TYPTYPE_DOMAIN:
				type = getBaseType(type);
				break;
			case TYPTYPE_RANGE:
				type = get_range_subtype(type);
				break;
			case TYPTYPE_MULTIRANGE:
				type = get_multirange_range(type);
				break;
			case TYPTYPE_BASE:
				type = get_element_type(type);
				break;
			case TYPTYPE_ENUM:
			case TYPTYPE_COMPOSITE:
				return type;
			default:
				return InvalidOid;
		}
	}
	return InvalidOid;
}

static void
put_names(StringInfo out, Oid type)
{
	Relation	relation;
	Oid			relid;

	check_stack_depth();
	type = named_type(type);
	if (!OidIsValid(type))
		return;
	relid = get_typ_typrelid(type);
	if (!OidIsValid(relid))
	{
		put_enum(out, type);
		return;
	}
	appendStringInfoChar(out, '(');
	relation = RelationIdGetRelation(relid);
	for (int i = 0; relation && i < RelationGetDescr(relation)->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(relation), i);

		if (att->attisdropped)
			continue;
		appendStringInfo(out, "%d:%08x:%u", att->attnum, hash_name(&att->attname), att->atttypid);
		put_names(out, att->atttypid);
		appendStringInfoChar(out, ',');
	}
	if (relation)
		RelationClose(relation);
	appendStringInfoChar(out, ')');
}

char *
etl_type_names(Oid type)
{
	StringInfoData out;

	if (!OidIsValid(named_type(type)))
		return NULL;
	initStringInfo(&out);
	put_names(&out, type);
	return out.data;
}

bool
etl_type_names_hold(const char *old, const char *new)
{
	if (old == NULL || new == NULL)
		return old == new;
	while (*old)
	{
		if (*old == '>')		/* further labels */
			new += strcspn(new, ">");
		if (*old++ != *new++)
			return false;
	}
	return *new == '\0';
}

List *
etl_type_composites(List *relids, Oid type)
{
	Relation	relation;
	Oid			relid;

	check_stack_depth();
	type = named_type(type);
	relid = OidIsValid(type) ? get_typ_typrelid(type) : InvalidOid;
	if (!OidIsValid(relid) || list_member_oid(relids, relid))
		return relids;
	relids = lappend_oid(relids, relid);
	relation = RelationIdGetRelation(relid);
	for (int i = 0; relation && i < RelationGetDescr(relation)->natts; i++)
		if (!TupleDescAttr(RelationGetDescr(relation), i)->attisdropped)
			relids = etl_type_composites(relids, TupleDescAttr(RelationGetDescr(relation), i)->atttypid);
	if (relation)
		RelationClose(relation);
	return relids;
}
