/*-------------------------------------------------------------------------
 *
 * shape.c
 *	  Versions of a table's shape: build, compare, serialise.
 *
 * A shape is what a row of a table means at one WAL position: its published
 * columns by attnum, with everything that decides how a value is encoded.
 * It is built from an open relation, whatever catalogs are in force, so the
 * same code serves copy (current catalogs) and stream (historic ones).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"

#include "compat.h"
#include "schema/shape.h"
#include "schema/type_names.h"

#define SHAPE_FORMAT	3		/* first byte of the flat form */

/*
 * The index whose columns identify a row to others: the replica identity's;
 * under FULL the primary key's; else none.
 */
static Oid
key_index(Relation relation)
{
	Oid			replica = RelationGetReplicaIndex(relation);

	if (relation->rd_rel->relreplident == REPLICA_IDENTITY_FULL)
		return etl_primary_key(relation);
	return replica;
}

/* Place of "attnum" in an index's key columns, counted from 1; 0 if absent. */
static int16
position_in_index(Relation index, AttrNumber attnum)
{
	if (index == NULL)
		return 0;
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
		if (index->rd_index->indkey.values[i] == attnum)
			return i + 1;
	return 0;
}

/* SQL text of a column's default (or generation) expression, or NULL. */
static char *
default_text(Relation relation, AttrNumber attnum)
{
	TupleConstr *constr = RelationGetDescr(relation)->constr;

	if (constr == NULL)
		return NULL;
	for (int i = 0; i < constr->num_defval; i++)
	{
		if (constr->defval[i].adnum == attnum)
		{
			Node	   *expr = stringToNode(constr->defval[i].adbin);
			List	   *context = deparse_context_for(RelationGetRelationName(relation),
													  RelationGetRelid(relation));

			return deparse_expression(expr, context, false, false);
		}
	}
	return NULL;
}

/* Declared dimensions of a domain over arrays. */
static int16
domain_dimensions(Oid type)
{
	int16		dimensions = 0;

	while (dimensions == 0)
	{
		HeapTuple	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
		Form_pg_type form;

		if (!HeapTupleIsValid(tuple))
			break;
		form = (Form_pg_type) GETSTRUCT(tuple);
		type = form->typbasetype;
		dimensions = form->typtype == TYPTYPE_DOMAIN ? form->typndims : 1;
		ReleaseSysCache(tuple);
	}
	return dimensions;
}

void
etl_shape_type(EtlColumn *column, int dimensions)
{
	Oid			element;

	column->base_typmod = column->typmod;
	column->base_type = getBaseTypeAndTypmod(column->type, &column->base_typmod);
	column->base_kind = get_typtype(column->base_type);
	element = get_element_type(column->base_type);
	column->element_type = InvalidOid;
	if (!OidIsValid(element))
		return;
	column->element_typmod = column->base_typmod;
	column->element_type = getBaseTypeAndTypmod(element, &column->element_typmod);
	column->element_kind = get_typtype(column->element_type);
	column->nested = OidIsValid(get_element_type(column->element_type));
	column->dimensions = column->type == column->base_type ? dimensions : domain_dimensions(column->type);
	if (column->dimensions == 0)
		column->dimensions = 1;
}

static void
build_column(EtlColumn *column, Relation relation, Form_pg_attribute att,
			 Relation key, Relation primary)
{
	column->attnum = att->attnum;
	column->name = pstrdup(NameStr(att->attname));
	column->type = att->atttypid;
	column->typmod = att->atttypmod;
	etl_shape_type(column, att->attndims);
	column->type_name = format_type_with_typemod(att->atttypid, att->atttypmod);
	column->names = etl_type_names(att->atttypid);
	column->nullable = etl_attribute_is_nullable(RelationGetDescr(relation), att->attnum - 1);
	column->generated = att->attgenerated;
	column->identity = att->attidentity;
	column->default_expr = att->atthasdef ? default_text(relation, att->attnum) : NULL;
	column->key_position = position_in_index(key, att->attnum);
	column->primary_position = position_in_index(primary, att->attnum);

	/* not the column's storage: SET STORAGE PLAIN leaves old values where they are */
	column->toastable = att->attlen == -1 && get_typstorage(att->atttypid) != TYPSTORAGE_PLAIN;
}

EtlShape *
etl_shape_build(Relation relation, const Bitmapset *published, bool generated)
{
	TupleDesc	desc = RelationGetDescr(relation);
	EtlShape   *shape = palloc0(sizeof(EtlShape));
	Oid			key_oid = key_index(relation);
	Relation	key = OidIsValid(key_oid) ? RelationIdGetRelation(key_oid) : NULL;
	Oid			primary_oid = etl_primary_key(relation);
	Relation	primary = OidIsValid(primary_oid) ? RelationIdGetRelation(primary_oid) : NULL;

	shape->relid = RelationGetRelid(relation);
	shape->schema_name = get_namespace_name(RelationGetNamespace(relation));
	shape->table_name = pstrdup(RelationGetRelationName(relation));
	shape->replica_identity = relation->rd_rel->relreplident;
	shape->natts = desc->natts;
	shape->columns = palloc0(sizeof(EtlColumn) * Max(desc->natts, 1));

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped ||
			(published && !bms_is_member(att->attnum, published)) ||
			(att->attgenerated && att->attgenerated != ATTRIBUTE_GENERATED_STORED) ||
			(att->attgenerated && !generated && position_in_index(key, att->attnum) == 0))
			continue;
		build_column(&shape->columns[shape->ncolumns], relation, att, key, primary);
		if (shape->columns[shape->ncolumns].key_position > 0)
			shape->nkeys++;
		shape->ncolumns++;
	}

	/* A key that is not published as a whole is no key. */
	if (key && shape->nkeys < key->rd_index->indnkeyatts)
	{
		for (int i = 0; i < shape->ncolumns; i++)
			shape->columns[i].key_position = 0;
		shape->nkeys = 0;
	}

	if (key)
		RelationClose(key);
	if (primary)
		RelationClose(primary);

	shape->hash = etl_shape_hash(shape);
	return shape;
}

const EtlColumn *
etl_shape_column(const EtlShape *shape, AttrNumber attnum)
{
	for (int i = 0; i < shape->ncolumns; i++)
		if (shape->columns[i].attnum == attnum)
			return &shape->columns[i];
	return NULL;
}

/* ----------
 * Comparison
 * ----------
 */
static bool
same_text(const char *a, const char *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return strcmp(a, b) == 0;
}

uint64
etl_shape_hash(const EtlShape *shape)
{
	uint64		hash = hash_combine64(shape->natts, shape->ncolumns);

	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *c = &shape->columns[i];
		int64		parts[7] = {c->attnum, c->type, c->typmod, c->nullable,
		c->generated, c->key_position, c->dimensions};

		hash = hash_combine64(hash, hash_bytes_extended((const unsigned char *) parts,
														sizeof(parts), 0));
		hash = hash_combine64(hash, hash_bytes_extended((const unsigned char *) c->name,
														strlen(c->name), 0));
	}

	/* 0 means "no hash" in table slots */
	return hash ? hash : 1;
}

static bool
same_column(const EtlColumn *a, const EtlColumn *b)
{
	return a->attnum == b->attnum && strcmp(a->name, b->name) == 0 &&
		a->type == b->type && a->typmod == b->typmod &&
		a->base_type == b->base_type && a->base_typmod == b->base_typmod &&
		a->dimensions == b->dimensions && same_text(a->names, b->names) &&
		strcmp(a->type_name, b->type_name) == 0 &&
		a->nullable == b->nullable && a->generated == b->generated &&
		a->identity == b->identity && same_text(a->default_expr, b->default_expr) &&
		a->key_position == b->key_position &&
		a->primary_position == b->primary_position;
}

bool
etl_shape_equal(const EtlShape *a, const EtlShape *b)
{
	if (a->ncolumns != b->ncolumns || a->natts != b->natts ||
		a->replica_identity != b->replica_identity ||
		strcmp(a->schema_name, b->schema_name) != 0 ||
		strcmp(a->table_name, b->table_name) != 0)
		return false;
	for (int i = 0; i < a->ncolumns; i++)
		if (!same_column(&a->columns[i], &b->columns[i]))
			return false;
	return true;
}

static List *
add_change(List *changes, EtlShapeChangeKind kind, const EtlColumn *column, const char *old_column)
{
	EtlShapeChange *change = palloc0(sizeof(EtlShapeChange));

	change->kind = kind;
	if (column)
	{
		change->attnum = column->attnum;
		change->column = column->name;
	}
	change->old_column = old_column;
	return lappend(changes, change);
}

/* Differences of columns that both shapes have, but for names. */
static List *
diff_columns(List *changes, const EtlShape *previous, const EtlShape *shape,
			 EtlShapeChangeKind kind)
{
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *new = &shape->columns[i];
		const EtlColumn *old = etl_shape_column(previous, new->attnum);
		bool		differs = false;

		if (old == NULL)
			continue;
		if (kind == ETL_SHAPE_ALTER_TYPE)
			differs = new->type != old->type || new->typmod != old->typmod ||
				new->dimensions != old->dimensions || strcmp(new->type_name, old->type_name) != 0;
		else if (kind == ETL_SHAPE_ALTER_NULLABILITY)
			differs = new->nullable != old->nullable;
		else if (kind == ETL_SHAPE_ALTER_DEFAULT)
			differs = !same_text(new->default_expr, old->default_expr) ||
				new->generated != old->generated || new->identity != old->identity;
		if (differs)
			changes = add_change(changes, kind, new, NULL);
	}
	return changes;
}

static bool
same_key(const EtlShape *a, const EtlShape *b)
{
	if (a->nkeys != b->nkeys)
		return false;
	for (int i = 0; i < a->ncolumns; i++)
	{
		const EtlColumn *other = etl_shape_column(b, a->columns[i].attnum);
		int16		position = other ? other->key_position : 0;

		if (a->columns[i].key_position != position)
			return false;
	}
	return true;
}

List *
etl_shape_diff(const EtlShape *previous, const EtlShape *shape)
{
	List	   *changes = NIL;

	if (previous == NULL)
		return add_change(NIL, ETL_SHAPE_CREATE, NULL, NULL);

	for (int i = 0; i < previous->ncolumns; i++)
		if (etl_shape_column(shape, previous->columns[i].attnum) == NULL)
			changes = add_change(changes, ETL_SHAPE_DROP_COLUMN, &previous->columns[i], NULL);
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *old = etl_shape_column(previous, shape->columns[i].attnum);

		if (old && strcmp(old->name, shape->columns[i].name) != 0)
			changes = add_change(changes, ETL_SHAPE_RENAME_COLUMN, &shape->columns[i], old->name);
	}
	for (int i = 0; i < shape->ncolumns; i++)
		if (etl_shape_column(previous, shape->columns[i].attnum) == NULL)
			changes = add_change(changes, ETL_SHAPE_ADD_COLUMN, &shape->columns[i], NULL);

	changes = diff_columns(changes, previous, shape, ETL_SHAPE_ALTER_TYPE);
	changes = diff_columns(changes, previous, shape, ETL_SHAPE_ALTER_NULLABILITY);
	changes = diff_columns(changes, previous, shape, ETL_SHAPE_ALTER_DEFAULT);
	if (!same_key(previous, shape))
		changes = add_change(changes, ETL_SHAPE_ALTER_KEY, NULL, NULL);
	if (previous->replica_identity != shape->replica_identity)
		changes = add_change(changes, ETL_SHAPE_ALTER_IDENTITY, NULL, NULL);
	if (strcmp(previous->schema_name, shape->schema_name) != 0 ||
		strcmp(previous->table_name, shape->table_name) != 0)
		changes = add_change(changes, ETL_SHAPE_RENAME_TABLE, NULL, NULL);
	return changes;
}

const char *
etl_shape_change_name(EtlShapeChangeKind kind)
{
	static const char *const names[] = {
		[ETL_SHAPE_CREATE] = "create",
		[ETL_SHAPE_DROP_COLUMN] = "drop_column",
		[ETL_SHAPE_RENAME_COLUMN] = "rename_column",
		[ETL_SHAPE_ADD_COLUMN] = "add_column",
		[ETL_SHAPE_ALTER_TYPE] = "alter_type",
		[ETL_SHAPE_ALTER_NULLABILITY] = "alter_nullability",
		[ETL_SHAPE_ALTER_DEFAULT] = "alter_default",
		[ETL_SHAPE_ALTER_KEY] = "alter_key",
		[ETL_SHAPE_ALTER_IDENTITY] = "alter_identity",
		[ETL_SHAPE_RENAME_TABLE] = "rename_table",
	};

	return names[kind];
}

/* ----------
 * Flat form.  Read back on the machine that wrote it, so host byte order.
 * ----------
 */
static void
put_text(StringInfo out, const char *text)
{
	int32		len = text ? strlen(text) : -1;

	appendBinaryStringInfo(out, (const char *) &len, sizeof(len));
	if (text)
		appendBinaryStringInfo(out, text, len);
}

#define PUT(out, value) \
	appendBinaryStringInfo(out, (const char *) &(value), sizeof(value))

void
etl_shape_serialize(const EtlShape *shape, StringInfo out)
{
	uint8		format = SHAPE_FORMAT;

	PUT(out, format);
	PUT(out, shape->relid);
	put_text(out, shape->schema_name);
	put_text(out, shape->table_name);
	PUT(out, shape->replica_identity);
	PUT(out, shape->natts);
	PUT(out, shape->ncolumns);
	PUT(out, shape->nkeys);
	PUT(out, shape->generation);
	PUT(out, shape->version);
	PUT(out, shape->lsn);
	PUT(out, shape->hash);
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *c = &shape->columns[i];

		PUT(out, c->attnum);
		put_text(out, c->name);
		PUT(out, c->type);
		PUT(out, c->typmod);
		PUT(out, c->base_type);
		PUT(out, c->base_typmod);
		put_text(out, c->type_name);
		put_text(out, c->names);
		PUT(out, c->nullable);
		PUT(out, c->generated);
		PUT(out, c->identity);
		put_text(out, c->default_expr);
		PUT(out, c->key_position);
		PUT(out, c->primary_position);
		PUT(out, c->toastable);
		PUT(out, c->base_kind);
		PUT(out, c->element_type);
		PUT(out, c->element_typmod);
		PUT(out, c->element_kind);
		PUT(out, c->nested);
		PUT(out, c->dimensions);
	}
}

typedef struct Reader
{
	const char *at;
	const char *end;
} Reader;

static void
get_bytes(Reader *reader, void *to, Size len)
{
	if (reader->end - reader->at < (ptrdiff_t) len)
		elog(ERROR, "flat shape is too short");
	memcpy(to, reader->at, len);
	reader->at += len;
}

static char *
get_text(Reader *reader)
{
	int32		len;
	char	   *text;

	get_bytes(reader, &len, sizeof(len));
	if (len < 0)
		return NULL;
	if (reader->end - reader->at < len)
		elog(ERROR, "flat shape is too short");
	text = pnstrdup(reader->at, len);
	reader->at += len;
	return text;
}

#define GET(reader, field) get_bytes(reader, &(field), sizeof(field))

EtlShape *
etl_shape_deserialize(const char *data, uint32 len)
{
	Reader		reader = {data, data + len};
	EtlShape   *shape = palloc0(sizeof(EtlShape));
	uint8		format;

	GET(&reader, format);
	if (format != SHAPE_FORMAT)
		elog(ERROR, "unknown format %d of a flat shape", format);
	GET(&reader, shape->relid);
	shape->schema_name = get_text(&reader);
	shape->table_name = get_text(&reader);
	GET(&reader, shape->replica_identity);
	GET(&reader, shape->natts);
	GET(&reader, shape->ncolumns);
	GET(&reader, shape->nkeys);
	GET(&reader, shape->generation);
	GET(&reader, shape->version);
	GET(&reader, shape->lsn);
	GET(&reader, shape->hash);
	if (shape->ncolumns < 0 || shape->ncolumns > MaxHeapAttributeNumber)
		elog(ERROR, "flat shape has %d columns", shape->ncolumns);
	shape->columns = palloc0(sizeof(EtlColumn) * Max(shape->ncolumns, 1));
	for (int i = 0; i < shape->ncolumns; i++)
	{
		EtlColumn  *c = &shape->columns[i];

		GET(&reader, c->attnum);
		c->name = get_text(&reader);
		GET(&reader, c->type);
		GET(&reader, c->typmod);
		GET(&reader, c->base_type);
		GET(&reader, c->base_typmod);
		c->type_name = get_text(&reader);
		c->names = get_text(&reader);
		GET(&reader, c->nullable);
		GET(&reader, c->generated);
		GET(&reader, c->identity);
		c->default_expr = get_text(&reader);
		GET(&reader, c->key_position);
		GET(&reader, c->primary_position);
		GET(&reader, c->toastable);
		GET(&reader, c->base_kind);
		GET(&reader, c->element_type);
		GET(&reader, c->element_typmod);
		GET(&reader, c->element_kind);
		GET(&reader, c->nested);
		GET(&reader, c->dimensions);
	}
	return shape;
}

static void
free_text(const char *text)
{
	if (text)
		pfree(unconstify(char *, text));
}

void
etl_shape_free(EtlShape *shape)
{
	for (int i = 0; i < shape->ncolumns; i++)
	{
		free_text(shape->columns[i].name);
		free_text(shape->columns[i].type_name);
		free_text(shape->columns[i].names);
		free_text(shape->columns[i].default_expr);
	}
	free_text(shape->schema_name);
	free_text(shape->table_name);
	pfree(shape->columns);
	pfree(shape);
}

EtlShape *
etl_shape_copy(const EtlShape *shape)
{
	StringInfoData flat;
	EtlShape   *copy;

	initStringInfo(&flat);
	etl_shape_serialize(shape, &flat);
	copy = etl_shape_deserialize(flat.data, flat.len);
	pfree(flat.data);
	return copy;
}
