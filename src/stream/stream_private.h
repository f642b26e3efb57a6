/*-------------------------------------------------------------------------
 *
 * stream_private.h
 *	  What the files stream*.c share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_STREAM_PRIVATE_H
#define ETL_STREAM_PRIVATE_H

#include "access/tupdesc.h"
#include "utils/hsearch.h"

#include "pipeline/ownership.h"
#include "schema/shape.h"
#include "source/filter.h"
#include "source/rules.h"
#include "stream/stream.h"

/* Everything known about one relation that a rule names or named. */
typedef struct EtlStreamRelation
{
	Oid			relid;			/* hash key */
	List	   *rules;			/* EtlRule *, newest first */
	const EtlOptions *options;	/* of the table; NULL before a bracket saw it */
	bool		stop_on_error;	/* on_error = stop */

	/* --- fixed for one transaction --- */
	uint64		transaction;	/* stream->transaction it was fixed for */
	const EtlRule *rule;		/* in force, or NULL */
	bool		deliver;
	uint32		slot;			/* table slot index */
	EtlOwnership owned;			/* generation that receives the change */

	/* --- shape and encoder; rebuilt when stale --- */
	bool		stale;			/* invalidated since they were built */
	MemoryContext context;		/* of the following */
	EtlShape   *shape;
	EtlCodec   *codec;
	uint32		abilities;		/* of the destination for this table */
	EtlFilter  *filter;			/* of rule, or NULL */
	TupleTableSlot *new_row;
	TupleTableSlot *old_row;
	bool		keyed;			/* rows carry their key (unchanged TOAST may be
								 * completed from them) */
	bool		foreign_types;	/* columns of types that may change by themselves */
	List	   *composites;		/* relations of composite types in its columns */
	int			ntoastable;
	int		   *toastable;		/* indexes of columns that may be out of line */
	uint64		builds;			/* of the encoder, counts up */

	/* a root: the leaf whose change is being delivered (stream_partition.c) */
	struct EtlStreamLeaf *leaf;

	/* --- over the whole run --- */
	bool		toasted;		/* a value out of line has been seen */
	List	   *versions;		/* EtlShape *, known versions of any generation */
	uint32		announced_generation;	/* newest SHAPE record put */
	uint32		announced_version;
	bool		parked;			/* left the stream in this run */
	uint32		stopped_generation; /* waits for a generation after this one */
	uint64		rewritten;		/* transaction in which it was rewritten */
	uint64		listed;			/* transaction at whose commit it was published */
	uint64		resynced;		/* a root: transaction that asked for a new copy */
	uint64		walk;			/* over its tree, the last one that met it */
} EtlStreamRelation;

struct EtlStream
{
	EtlConfig  *config;
	EtlQueue   *queue;
	bool		is_sync;
	MemoryContext context;		/* as long as the stream */
	MemoryContext change_context;	/* reset after every change */
	HTAB	   *relations;		/* EtlStreamRelation by relid */
	EtlStreamRelation *last;	/* of the last lookup */
	Oid			publication;	/* as last seen; names change */
	NameData	publication_name;

	List	   *composites;		/* of all relations, unique OIDs */

	/* apply: relid -> table slot, as of tables_version */
	HTAB	   *slots;
	uint64		slots_version;

	/* sync: its tables */
	int			ntables;
	EtlStreamTable *tables;

	/* --- the transaction being replayed --- */
	bool		in_transaction;
	uint64		transaction;	/* counts up; 0 = none yet */
	bool		begun;			/* BEGIN is in the queue */
	EtlOrigin	origin;
	uint64		delivered;		/* changes of this transaction */
	bool		counts;			/* values changed by policy: not in a replay */
	bool		publication_touched;	/* its catalogs changed: read all rules */
	List	   *touched;		/* OIDs of invalidated relations, unique */
	HTAB	   *touched_hash;	/* the same when there are many */

	/* stream_partition.c; NULL while no table is published as a whole */
	struct EtlStreamPartitions *partitions;

	/* the change being encoded, for EtlPoison */
	bool		encoding;
	Oid			encoding_relid;
	uint64		encoding_ordinal;

	StringInfoData body;
	StringInfoData key;
	XLogRecPtr	position;		/* end of the last thing put */
	uint64		shapes_put;
};

/* stream_relation.c */
extern EtlStreamRelation *etl_stream_relation(EtlStream *stream, Oid relid, bool create);
extern const EtlRule *etl_stream_rule_in_force(const EtlStream *stream,
											   const EtlStreamRelation *entry);
extern const EtlRule *etl_stream_rule_after(const EtlStream *stream,
											const EtlStreamRelation *entry);
extern const EtlOptions *etl_stream_options(const EtlStream *stream,
											const EtlStreamRelation *entry);
extern void etl_stream_fix(EtlStream *stream, EtlStreamRelation *entry);
extern void etl_stream_resolve_shape(EtlStream *stream, EtlStreamRelation *entry, Relation relation);
extern EtlFilter *etl_stream_filter(EtlStream *stream, EtlStreamRelation *entry, Relation relation);
extern void etl_stream_add_version(EtlStream *stream, EtlStreamRelation *entry, const EtlShape *shape);

/* stream_rules.c */
extern void etl_stream_register_callbacks(EtlStream *stream);
extern const char *etl_stream_publication(EtlStream *stream);
extern void etl_stream_add_rule(EtlStream *stream, const EtlRule *rule);
extern void etl_stream_commit_rules(EtlStream *stream);
extern void etl_stream_touch(EtlStream *stream, Oid relid);

/* stream_partition.c */
extern void etl_stream_partitions_init(EtlStream *stream);
extern void etl_stream_partition_invalid(EtlStream *stream, Oid relid);
extern EtlStreamRelation *etl_stream_root(EtlStream *stream, Oid relid);
extern bool etl_stream_resolve_root(EtlStream *stream, EtlStreamRelation *entry, Relation leaf,
									bool identified, uint64 ordinal);
extern void etl_stream_store_row(EtlStreamRelation *entry, TupleTableSlot *row, HeapTuple tuple);
extern char etl_stream_identity(const EtlStreamRelation *entry);
extern void etl_stream_note_stray(EtlStream *stream, Oid relid);
extern void etl_stream_truncated_leaf(EtlStream *stream, Oid relid, int nrelations, Relation *relations);
extern void etl_stream_compare_root(EtlStream *stream, const EtlRule *rule);
extern void etl_stream_touch_trees(EtlStream *stream);
extern void etl_stream_resync_roots(EtlStream *stream);

/* stream_row.c */
extern void etl_stream_deliver_row(EtlStream *stream, EtlStreamRelation *entry, EtlOperation op,
								   uint64 ordinal, HeapTuple new_tuple, HeapTuple old_tuple);
extern void etl_stream_deliver_truncate(EtlStream *stream, EtlStreamRelation *entry, uint64 ordinal);

/* stream.c */
extern void etl_stream_reset_buffer(StringInfo buffer);
extern void etl_stream_begin_record(EtlStream *stream);
extern void etl_stream_announce(EtlStream *stream, EtlStreamRelation *entry, const EtlShape *previous);
extern void etl_stream_put_resync(EtlStream *stream, EtlStreamRelation *entry, EtlCopyReason reason);
extern void etl_stream_park(EtlStream *stream, EtlStreamRelation *entry, uint64 ordinal,
							int sqlstate, const char *message, const char *hint);

#endif							/* ETL_STREAM_PRIVATE_H */
