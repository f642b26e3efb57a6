/*-------------------------------------------------------------------------
 *
 * shape.h
 *	  Versions of a table's shape: build, compare, serialise.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SHAPE_H
#define ETL_SHAPE_H

#include "etl/destination.h"
#include "utils/relcache.h"

/*
 * Shape of an open relation under the catalogs in force (historic in a
 * callback, current elsewhere), restricted to the published attnums (NULL =
 * all).  Generated stored columns are left out unless "generated".  Everything
 * is allocated in CurrentMemoryContext.  generation, version and lsn are left
 * zero for the caller.
 */
extern EtlShape *etl_shape_build(Relation relation, const Bitmapset *published, bool generated);

/*
 * What follows from type and typmod of a column: base type, kind, elements.
 * "dimensions" is the declared number of an array's (attndims).
 */
extern void etl_shape_type(EtlColumn *column, int dimensions);

/* Flat form for records and etl.schema_history; and back, in CurrentMemoryContext. */
extern void etl_shape_serialize(const EtlShape *shape, StringInfo out);
extern EtlShape *etl_shape_deserialize(const char *data, uint32 len);
extern EtlShape *etl_shape_copy(const EtlShape *shape);
extern void etl_shape_free(EtlShape *shape);	/* of the last two */

/*
 * Do rows of "a" and "b" encode alike (same columns, types, key, names)?
 * Equal hashes mean yes.
 */
extern uint64 etl_shape_hash(const EtlShape *shape);

/* Does anything that a relation event shows differ (defaults included)? */
extern bool etl_shape_equal(const EtlShape *a, const EtlShape *b);

extern const EtlColumn *etl_shape_column(const EtlShape *shape, AttrNumber attnum);

/*
 * One difference between two shapes, in the order in which they are shown:
 * drops and renames before adds.
 */
typedef enum EtlShapeChangeKind
{
	ETL_SHAPE_CREATE,
	ETL_SHAPE_DROP_COLUMN,
	ETL_SHAPE_RENAME_COLUMN,
	ETL_SHAPE_ADD_COLUMN,
	ETL_SHAPE_ALTER_TYPE,
	ETL_SHAPE_ALTER_NULLABILITY,
	ETL_SHAPE_ALTER_DEFAULT,
	ETL_SHAPE_ALTER_KEY,
	ETL_SHAPE_ALTER_IDENTITY,
	ETL_SHAPE_RENAME_TABLE
} EtlShapeChangeKind;

typedef struct EtlShapeChange
{
	EtlShapeChangeKind kind;
	AttrNumber	attnum;			/* 0 for changes of the table */
	const char *column;			/* new name; the dropped one's name */
	const char *old_column;		/* rename: the old name */
} EtlShapeChange;

/* List of EtlShapeChange *; "previous" NULL gives ETL_SHAPE_CREATE alone. */
extern List *etl_shape_diff(const EtlShape *previous, const EtlShape *shape);
extern const char *etl_shape_change_name(EtlShapeChangeKind kind);	/* "add_column" ... */

#endif							/* ETL_SHAPE_H */
