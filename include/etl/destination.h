/*-------------------------------------------------------------------------
 *
 * destination.h
 *	  The public interface between etl and a kind of destination.
 *
 * A kind of destination (a warehouse, a lake, a webhook receiver) is one
 * const EtlDestinationRoutine, returned by a C function
 *
 *		CREATE FUNCTION s.f(internal) RETURNS internal LANGUAGE C ...
 *
 * that a foreign-data wrapper names in its option "etl_handler 's.f'".  Only
 * superusers can set options of wrappers.  The core never asks which kind it
 * talks to; it asks what the kind declares.
 *
 * Which call runs where matters more than anything else here:
 *
 *	 pure		any process, also one that decodes: no network, no catalog
 *				access, no transaction of its own.  May ereport(ERROR) only
 *				where its comment says so.
 *	 encode		a process that decodes (apply, sync in catch-up) or copies:
 *				as pure, but may call output functions of types.
 *	 network	writer, sync worker in its copy, check worker: no transaction
 *				is open (a copy's read-only one excepted).  Trouble is a
 *				returned EtlResult, never an ERROR.
 *	 local		writer with an open transaction (ETL_LOCAL_TRANSACTION only):
 *				SPI allowed, ERROR allowed; the core classifies by SQLSTATE.
 *
 * Structs that a kind receives may grow at their end within one
 * ETL_DESTINATION_VERSION; a kind never allocates them.  EtlDestinationRoutine
 * carries its own size so that older kinds keep working.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_DESTINATION_H
#define ETL_DESTINATION_H

#include "access/htup_details.h"
#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "lib/stringinfo.h"
#include "nodes/bitmapset.h"
#include "nodes/pg_list.h"

#define ETL_VERSION				"1.0"	/* of the library */

#define ETL_DESTINATION_MAGIC	0x45544C31	/* "ETL1" */
#define ETL_DESTINATION_VERSION 1

/* ----------
 * Positions
 * ----------
 */

/*
 * The place of one change.  Total order over (epoch, commit_lsn, ordinal,
 * sub); the same change has the same position in every run.
 */
typedef struct EtlPosition
{
	uint16		epoch;			/* raised when LSNs may have fallen back */
	uint8		sub;			/* 0; 1 for the new row of a key change */
	XLogRecPtr	commit_lsn;		/* start of the commit record; for a copied
								 * row the snapshot's position */
	uint64		ordinal;		/* 0 Begin, 1.. records of the transaction */
} EtlPosition;

typedef enum EtlOperation
{
	ETL_INSERT = 1,
	ETL_UPDATE = 2,
	ETL_DELETE = 3,
	ETL_TRUNCATE = 4
} EtlOperation;

/* ----------
 * Shapes: a source table as published, at one position
 * ----------
 */
typedef struct EtlColumn
{
	AttrNumber	attnum;
	const char *name;
	Oid			type;			/* declared type */
	int32		typmod;
	Oid			base_type;		/* type with domains looked through */
	int32		base_typmod;
	const char *type_name;		/* format_type() of the declared type */
	const char *names;			/* fingerprint of the labels and attribute
								 * names that its values show, NULL: none */
	bool		nullable;
	char		generated;		/* '\0' or 's' (ATTRIBUTE_GENERATED_STORED) */
	char		identity;		/* '\0', 'a', 'd' */
	const char *default_expr;	/* SQL text, or NULL */
	int16		key_position;	/* 1.. place in the key, 0 = not in it */
	int16		primary_position;	/* 1.. place in the primary key, 0 */
	bool		toastable;		/* can arrive as unchanged TOAST */
	char		base_kind;		/* typtype of base_type: 'b', 'c', 'e', 'm', 'r' */

	/* where base_type is an array: its elements, domains looked through */
	Oid			element_type;	/* InvalidOid: no array */
	int32		element_typmod;
	char		element_kind;	/* typtype of element_type */
	bool		nested;			/* element_type is an array (of a domain) */
	int16		dimensions;		/* declared number, 1 if none is; PostgreSQL
								 * holds nobody to it */
} EtlColumn;

typedef struct EtlShape
{
	Oid			relid;
	const char *schema_name;
	const char *table_name;
	char		replica_identity;	/* 'd', 'n', 'f', 'i' */
	int			natts;			/* physical attributes, dropped included */
	int			ncolumns;		/* published columns, by attnum */
	EtlColumn  *columns;
	int			nkeys;			/* columns in the key; 0: table without key */
	uint32		generation;		/* physical copy these rows belong to */
	uint32		version;		/* 1 = base shape of the generation */
	XLogRecPtr	lsn;			/* first position with this shape */
	uint64		hash;			/* over everything that alters encoded rows */
} EtlShape;

/* A column as the destination really has it. */
typedef struct EtlTargetColumn
{
	AttrNumber	attnum;			/* from the column's mark */
	uint32		generation;		/* from the column's mark */
	const char *name;
	const char *type;			/* the destination's type text */
} EtlTargetColumn;

typedef struct EtlTarget
{
	const char *name;			/* destination table, as users know it */
	int			ncolumns;
	EtlTargetColumn *columns;	/* in the destination's order */
} EtlTarget;

/* ----------
 * Options
 * ----------
 */
typedef enum EtlOptionType
{
	ETL_OPTION_BOOL,
	ETL_OPTION_INT,				/* plain number */
	ETL_OPTION_SIZE,			/* kB, takes units */
	ETL_OPTION_TIME,			/* ms, takes units */
	ETL_OPTION_ENUM,
	ETL_OPTION_TEXT,
	ETL_OPTION_LIST,			/* JSON array of strings */
	ETL_OPTION_JSON				/* JSON object */
} EtlOptionType;

/* Where an option may stand (bits). */
#define ETL_SCOPE_SETTING	0x01	/* etl.<name> */
#define ETL_SCOPE_SERVER	0x02
#define ETL_SCOPE_MAPPING	0x04	/* user mapping */
#define ETL_SCOPE_PIPELINE	0x08
#define ETL_SCOPE_TABLE		0x10
#define ETL_SCOPE_COLUMN	0x20

/* Further properties (bits). */
#define ETL_OPTION_REQUIRED 0x0100	/* a server needs it */
#define ETL_OPTION_SECRET	0x0200	/* never shown */
#define ETL_OPTION_FILE		0x0400	/* needs pg_read_server_files */
#define ETL_OPTION_SUPERUSER 0x0800 /* superusers only */
#define ETL_OPTION_RESTART	0x1000	/* changes encoding: pair restarts */
#define ETL_OPTION_LAYOUT	0x2000	/* decides what a table looks like: a
									 * generation keeps the value it was made
									 * with, another value makes a new one */

typedef struct EtlOptionDef
{
	const char *name;
	EtlOptionType type;
	uint32		flags;			/* scopes and properties */
	const char *default_value;	/* text in base units, or NULL */
	int64		min;
	int64		max;
	const char *const *enumvals;	/* NULL-terminated, for ETL_OPTION_ENUM */
	const char *comment;		/* one sentence, shown by etl.settings */
} EtlOptionDef;

/*
 * The options in force for a pipeline or one of its tables: narrowest scope
 * wins (table > pipeline > mapping and server > setting > default).
 */
typedef struct EtlOptions EtlOptions;

extern PGDLLEXPORT const char *etl_option_text(const EtlOptions *options, const char *name);	/* NULL if unset */
extern PGDLLEXPORT int64 etl_option_int(const EtlOptions *options, const char *name);	/* base unit: count, kB, ms */
extern PGDLLEXPORT bool etl_option_bool(const EtlOptions *options, const char *name);
extern PGDLLEXPORT List *etl_option_list(const EtlOptions *options, const char *name);	/* of char * */

/*
 * Value of a column's option (scope C), falling back to the table's, the
 * pipeline's and so on.
 */
extern PGDLLEXPORT const char *etl_option_column(const EtlOptions *options, const char *column, const char *name);

/* ----------
 * Results
 * ----------
 */
typedef enum EtlStatus
{
	ETL_DONE = 0,				/* durable at the destination / succeeded */
	ETL_PENDING,				/* send_poll() only: still under way */
	ETL_RETRY,					/* transient: send the same again later */
	ETL_REJECTED,				/* the destination refuses rows of the batch */
	ETL_TOO_LARGE,				/* send less at once */
	ETL_ENDPOINT,				/* credentials, URL, database: nobody's row */
	ETL_PARK,					/* this table cannot go on */
	ETL_FATAL					/* this pipeline cannot go on */
} EtlStatus;

/*
 * Outcome of a call that may meet trouble.  Texts follow PostgreSQL's
 * message style and hold no secret and no row value.
 */
typedef struct EtlResult
{
	EtlStatus	status;
	int			rejected;		/* ETL_REJECTED: index in the batch, or -1 */
	int			retry_after;	/* ETL_RETRY: ms asked for, or -1 */
	int			sqlstate;		/* MAKE_SQLSTATE(); 0 when ETL_DONE */
	char		message[512];
	char		hint[256];
} EtlResult;

extern PGDLLEXPORT void etl_result_set(EtlResult *result, EtlStatus status, int sqlstate,
									   const char *fmt,...) pg_attribute_printf(4, 5);

/* ----------
 * Encoding
 * ----------
 */
typedef enum EtlPhase
{
	ETL_PHASE_COPY,				/* "initial_sync" */
	ETL_PHASE_STREAM			/* "ongoing_replication" */
} EtlPhase;

typedef enum EtlOldKind
{
	ETL_OLD_NONE,
	ETL_OLD_KEY,				/* old holds the identity's columns only */
	ETL_OLD_FULL
} EtlOldKind;

/* What every event of a transaction or a copy shares. */
typedef struct EtlOrigin
{
	const char *source;			/* "/etl/<system>/<database>/<pipeline>" */
	const char *pipeline;		/* name */
	Oid			database;
	uint16		epoch;
	EtlPhase	phase;
	XLogRecPtr	commit_lsn;		/* or the snapshot's position */
	XLogRecPtr	end_lsn;		/* stream: end of the commit record */
	TimestampTz timestamp;		/* commit time, or start of the copy */
	TransactionId xid;			/* Invalid in a copy */
	bool		catch_up;		/* stream: by a sync worker, for its tables alone,
								 * while apply may deliver other tables' changes
								 * of the same transaction */
} EtlOrigin;

/*
 * Values of one row that went out as something else than they are, because
 * the destination cannot hold them and the column's value_policy says so.  The
 * core empties it before a row and counts what is in it behind the row.
 */
typedef struct EtlAdjusted
{
	int			n;
	AttrNumber	attnums[MaxHeapAttributeNumber];	/* at most once each */
} EtlAdjusted;

static inline void
etl_adjusted_note(EtlAdjusted *adjusted, AttrNumber attnum)
{
	if (adjusted != NULL && adjusted->n < MaxHeapAttributeNumber)
		adjusted->attnums[adjusted->n++] = attnum;
}

/*
 * One row change to be encoded.  Slots hold all physical attributes of the
 * shape, deformed (slot_getallattrs).
 */
typedef struct EtlChange
{
	EtlOperation op;			/* insert, update, delete; truncate without
								 * rows (ETL_TRUNCATE_IS_ROW) */
	EtlPosition position;
	const EtlOrigin *origin;
	TupleTableSlot *new_row;	/* NULL for delete */
	TupleTableSlot *old_row;	/* NULL when old_kind is ETL_OLD_NONE */
	EtlOldKind	old_kind;
	const Bitmapset *missing;	/* attnums of new_row that are unchanged TOAST
								 * and not known, or NULL */
	uint32		copy;			/* ETL_PHASE_COPY: generation of the copy */
	uint64		row;			/* ETL_PHASE_COPY: 1.. number of the row */
	EtlAdjusted *adjusted;		/* encode_row() notes here what it changed by
								 * policy; NULL: nobody counts */
} EtlChange;

typedef struct EtlCodec EtlCodec;	/* the kind's own; see codec_create */

/*
 * What a column becomes at the destination, for people (describe_column()).
 * Texts are in CurrentMemoryContext or constant.
 */
typedef struct EtlColumnPlan
{
	const char *name;			/* column at the destination */
	const char *type;			/* its type there; NULL: it cannot be held, and
								 * "note" says why */
	const char *policy;			/* value_policy in force; NULL where every
								 * value arrives as it is */
	const char *note;			/* what else is worth knowing, or NULL */
	const struct EtlColumnPlan *companion;	/* a further column behind it (name
											 * and type), or NULL */
} EtlColumnPlan;

/* A value the destination cannot hold (returned by encode calls). */
typedef struct EtlValueError
{
	AttrNumber	attnum;
	int			sqlstate;		/* ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE ... */
	char		message[256];
} EtlValueError;

/* ----------
 * Batches, as the writer or a copying sync worker hands them over
 * ----------
 */

/*
 * One encoded thing in a batch.  The bytes belong to the core and stay until
 * the batch is finished; a kind never copies them needlessly.
 */
typedef struct EtlItem
{
	const char *data;
	uint32		len;
	uint8		op;				/* EtlOperation, 0 for other events */
	uint8		sub;
	uint16		flags;
	uint32		table;			/* index usable with batch->tables, or
								 * ETL_NO_TABLE */
	XLogRecPtr	commit_lsn;
	uint64		ordinal;
} EtlItem;

#define ETL_NO_TABLE		0xFFFFFFFF

#define ETL_ITEM_INCOMPLETE 0x0001	/* row with holes, see complete calls */
#define ETL_ITEM_EVENT		0x0002	/* not a row: begin, commit, relation,
									 * truncate, copy_begin, copy_end */
#define ETL_ITEM_BEGIN		0x0004	/* with EVENT: begin */
#define ETL_ITEM_COMMIT		0x0008	/* with EVENT: commit */

typedef struct EtlTable
{
	Oid			relid;
	const EtlShape *shape;		/* newest shape the batch's rows have */
	const EtlTarget *target;	/* NULL for kinds without schemas */
	const EtlOptions *options;
	uint32		generation;
	bool		staging;		/* generation not yet published */
	void	   *private_data;	/* the kind's own, in the table's context */
} EtlTable;

typedef struct EtlBatch
{
	uint64		id;				/* never reused within an incarnation */
	EtlPhase	phase;
	uint16		epoch;
	EtlTable   *table;			/* the one table, or NULL (ETL_BATCH_PIPELINE) */
	int			nitems;
	const EtlItem *items;
	uint64		bytes;			/* sum of len */
	uint64		first_row;		/* ETL_PHASE_COPY: number of the first row */
	TimestampTz sealed_at;		/* fixed over retries */
	int			attempt;		/* 1.. */
	uint64		incarnation;	/* of the worker */
	void	   *private_data;	/* the kind's own, freed in send_finish */
} EtlBatch;

/* A generation that is said to be at the destination; see find_generations(). */
typedef struct EtlExpected
{
	Oid			relid;
	uint32		generation;
	bool		found;			/* set by the kind: it is there */
	bool		traces;			/* set by the kind: it, or something that was
								 * made for it */
} EtlExpected;

/* ----------
 * The routine
 * ----------
 */

/* Abilities (bits of EtlDestinationRoutine.abilities). */
#define ETL_NEEDS_KEY			0x0001	/* tables without key are refused */
#define ETL_TAKES_PARTIAL		0x0002	/* rows with missing columns are fine */
#define ETL_KEEPS_OLD_ROWS		0x0004	/* an event log: old images matter */
#define ETL_CAN_READ_BACK		0x0008	/* read_back() */
#define ETL_HAS_SCHEMAS			0x0010	/* tables with columns: map_column(),
										 * read_columns(), ensure_shape() */
#define ETL_LOCAL_TRANSACTION	0x0020	/* lives in this database: apply_local() */
#define ETL_BATCH_PIPELINE		0x0040	/* one batch holds all tables, in order,
										 * with begin, commit and relation;
										 * else one batch a table */
#define ETL_SPLIT_KEY_CHANGE	0x0080	/* key-changing update = delete of the
										 * old key (sub 0) + row (sub 1) */
#define ETL_FOLLOWS_SHAPES		0x0100	/* a new shape needs nothing at the
										 * destination but its event */
#define ETL_TRUNCATE_IS_ROW		0x0200	/* a truncate goes to encode_row(), and
										 * to the destination like a row */

/* A connection of one process to one destination; the kind's own. */
typedef struct EtlConnection EtlConnection;

typedef struct EtlConnectArgs
{
	const EtlOptions *options;	/* pipeline scope, secrets included */
	const char *source;			/* as EtlOrigin */
	const char *pipeline;
	int64		pipeline_id;
	const char *slot_name;
	uint16		epoch;
	uint64		incarnation;
	bool		is_superuser;	/* of the pipeline's owner */
	bool		(*is_tracked) (Oid relid);	/* is this a table of the pipeline
											 * now? NULL: not known here */
	int			(*exists) (Oid relid);	/* is there such a relation in the
										 * database now?  1 or 0, -1: ask again
										 * later; NULL: not known here */
} EtlConnectArgs;

typedef struct EtlDestinationRoutine
{
	uint32		magic;			/* ETL_DESTINATION_MAGIC */
	uint16		version;		/* ETL_DESTINATION_VERSION */
	uint16		size;			/* sizeof(EtlDestinationRoutine) */
	const char *kind;			/* "webhook" */
	uint32		abilities;

	/* defaults that differ by kind; -1 keeps the general one */
	int			max_batch_size; /* kB */
	int			max_batch_events;
	int			max_batch_delay;	/* ms */

	/* options of the kind, ended by a NULL name (pure) */
	const EtlOptionDef *options;

	/*
	 * Cross-checks of options that no single definition can express.  Pure;
	 * ereport(ERROR, ERRCODE_INVALID_PARAMETER_VALUE) on trouble.  "scope" is
	 * one ETL_SCOPE_ bit.  NULL: nothing to check.
	 */
	void		(*validate_options) (const EtlOptions *options, uint32 scope);

	/* --- pure: plan and encode --- */

	/*
	 * Destination type of a column, or NULL with "error" filled when the kind
	 * cannot hold it (ETL_HAS_SCHEMAS).
	 */
	const char *(*map_column) (const EtlShape *shape, const EtlColumn *column,
							   const EtlOptions *options, EtlValueError *error);

	/*
	 * Build what encode_row() needs for rows of "shape" going to "target"
	 * (NULL for kinds without schemas), in CurrentMemoryContext, whose reset
	 * ends its life.
	 */
	EtlCodec   *(*codec_create) (const EtlShape *shape, const EtlTarget *target,
								 const EtlOptions *options);

	/*
	 * Append the encoded change to "out".  Returns false with "error" filled
	 * when a value is outside the destination's range.  An ERROR of an output
	 * function passes through.
	 */
	bool		(*encode_row) (EtlCodec *codec, const EtlChange *change,
							   StringInfo out, EtlValueError *error);

	/*
	 * Events other than rows, for ETL_BATCH_PIPELINE kinds; NULL = none wanted.
	 * Each appends one encoded event.  "ordinal" is the record's number.
	 */
	void		(*encode_begin) (const EtlOptions *options, const EtlOrigin *origin, StringInfo out);
	void		(*encode_commit) (const EtlOptions *options, const EtlOrigin *origin,
								  uint64 ordinal, StringInfo out);
	void		(*encode_relation) (const EtlOptions *options, const EtlOrigin *origin,
									const EtlShape *shape, const EtlShape *previous, StringInfo out);
	void		(*encode_truncate) (const EtlOptions *options, const EtlOrigin *origin,
									uint64 ordinal, int nshapes, const EtlShape *const *shapes,
									bool cascade, bool restart_identity, StringInfo out);
	void		(*encode_copy_begin) (const EtlOptions *options, const EtlOrigin *origin,
									  const EtlShape *shape, const char *reason, StringInfo out);
	void		(*encode_copy_end) (const EtlOptions *options, const EtlOrigin *origin,
									const EtlShape *shape, uint64 rows, StringInfo out);

	/*
	 * Unchanged TOAST.  extract() finds the bytes of one column in an encoded
	 * row (false: not there); splice() appends to "out" the row with the given
	 * columns filled in and its missing list shortened.  Pure.
	 */
	bool		(*extract) (EtlCodec *codec, const char *row, uint32 len, AttrNumber attnum,
							const char **value, uint32 *value_len);
	bool		(*splice) (EtlCodec *codec, const char *row, uint32 len, int ncolumns,
						   const AttrNumber *attnums, const char *const *values,
						   const uint32 *value_lens, StringInfo out);

	/* --- network --- */

	/*
	 * Connect and check what can be checked without a table: address, TLS,
	 * credentials, version, privileges.  Returns a connection even when the
	 * result is not ETL_DONE; connect() may be called on it again.  Lives in
	 * CurrentMemoryContext; foreign resources hang on a reset callback.
	 */
	EtlConnection *(*open) (const EtlConnectArgs *args);
	void		(*connect) (EtlConnection *connection, EtlResult *result);

	/*
	 * Everything that can be reused (also connections in flight) may be thrown
	 * away.  Must not block.
	 */
	void		(*close) (EtlConnection *connection);

	/*
	 * Send one batch.  send_start() returns at once; send_poll() drives the
	 * transfers of the connection for at most "timeout" ms (returning early
	 * when one ends) and must serve interrupts; send_result() tells about one
	 * batch (ETL_PENDING while under way); send_finish() releases it, also
	 * when it is still under way.
	 */
	void		(*send_start) (EtlConnection *connection, EtlBatch *batch);
	void		(*send_poll) (EtlConnection *connection, int timeout);
	void		(*send_result) (EtlConnection *connection, EtlBatch *batch, EtlResult *result);
	void		(*send_finish) (EtlConnection *connection, EtlBatch *batch);

	/*
	 * Life of a generation.  begin_generation() makes an empty physical copy
	 * that carries our mark; rows go there with send_start(); end_copy() makes
	 * the copied rows durable as a whole; publish_generation() puts it in the
	 * place of the older one (also called again after a crash); abandon
	 * removes it if it carries our mark.  Kinds without schemas leave them
	 * NULL.
	 */
	void		(*begin_generation) (EtlConnection *connection, EtlTable *table, EtlResult *result);
	void		(*end_copy) (EtlConnection *connection, EtlTable *table, EtlResult *result);
	void		(*publish_generation) (EtlConnection *connection, EtlTable *table, EtlResult *result);
	void		(*abandon_generation) (EtlConnection *connection, EtlTable *table, EtlResult *result);

	/*
	 * Columns that the destination really has, by their marks, in the current
	 * memory context; a target without columns when the table is not there.
	 */
	EtlTarget  *(*read_columns) (EtlConnection *connection, EtlTable *table, EtlResult *result);

	/* Bring the destination's table to "shape"; idempotent. */
	void		(*ensure_shape) (EtlConnection *connection, EtlTable *table,
								 const EtlShape *shape, EtlResult *result);

	/* Empty the table at this place in the stream. */
	void		(*truncate) (EtlConnection *connection, EtlTable *table, EtlResult *result);

	/*
	 * What the destination has now, for rows with holes (ETL_CAN_READ_BACK).
	 * Everything before them is durable.  "rows" are the incomplete rows as
	 * this kind has encoded them: it takes the keys from them.  For each one
	 * that it finds it calls "found" with the index, the position of what it
	 * has, and the encoded values of the columns, as extract() gives them
	 * (NULL: not known); they need not outlive the call.  A row that was
	 * deleted before ours was made is not found.  In place of the new row of a
	 * key change (ETL_SPLIT_KEY_CHANGE) may stand the deletion of the old one:
	 * then only a row that was there before counts.  ETL_TOO_LARGE: fewer rows.
	 */
	void		(*read_back) (EtlConnection *connection, EtlTable *table,
							  int nrows, const EtlItem *rows, int ncolumns, const AttrNumber *attnums,
							  void (*found) (void *arg, int row, EtlPosition version,
											 const char *const *values, const uint32 *lens),
							  void *arg, EtlResult *result);

	/* Housekeeping when idle (etl.maintain); NULL = none. */
	void		(*maintain) (EtlConnection *connection, const char *action, EtlResult *result);

	/* Remove what carries our mark (drop_pipeline with drop_tables). */
	void		(*drop_table) (EtlConnection *connection, EtlTable *table, EtlResult *result);

	/* --- local (ETL_LOCAL_TRANSACTION) --- */

	/*
	 * Apply a batch in the writer's open transaction; several calls and then
	 * the core's progress row make one commit.
	 */
	void		(*apply_local) (EtlConnection *connection, EtlBatch *batch);

	/* --- pure --- */

	/*
	 * Abilities for a table with these options, where they decide what a
	 * table is (ETL_NEEDS_KEY, ETL_SPLIT_KEY_CHANGE, ETL_KEEPS_OLD_ROWS,
	 * ETL_TAKES_PARTIAL, ETL_CAN_READ_BACK, ETL_TRUNCATE_IS_ROW; the others cannot differ).
	 * NULL: as "abilities" says.
	 */
	uint32		(*table_abilities) (const EtlOptions *options);

	/*
	 * All names that a table gets at the destination (its own first, then
	 * views and the like), for finding collisions: List of char *, or NIL with
	 * "result" filled when there can be none.  NULL: nothing gets a name.
	 */
	List	   *(*table_names) (const EtlShape *shape, const EtlOptions *options, EtlResult *result);

	/*
	 * What a column becomes there: the same decision by which tables are made
	 * and rows encoded, for etl.plan() and the view column_status.  As
	 * codec_create() it may look types up in the catalogs in force.  NULL:
	 * columns are not told apart.
	 */
	void		(*describe_column) (const EtlShape *shape, const EtlColumn *column,
									const EtlOptions *options, EtlColumnPlan *plan);

	/*
	 * May a table look like that, as far as shape and options say?  If not,
	 * ETL_PARK with a hint: begin_generation() would do the same.  Pure.
	 * NULL: it may.
	 */
	void		(*check_table) (const EtlShape *shape, const EtlOptions *options, EtlResult *result);

	/*
	 * What a start makes of a table, for etl.plan(): appends the statements to
	 * "ddl", without marks, and returns the columns that are the kind's own
	 * (List of EtlColumnPlan *, name and type).  Pure.  NULL: no statements.
	 */
	List	   *(*plan_table) (const EtlShape *shape, const EtlOptions *options, StringInfo ddl);

	/* --- network --- */

	/*
	 * Which of these generations are there, by their marks?  Asked at each
	 * connect, and when one is missed: a destination that has none of them is
	 * another one than before, and gets nothing.
	 */
	void		(*find_generations) (EtlConnection *connection, int n, EtlExpected *expected,
									 EtlResult *result);

	/*
	 * Remove all that carries the pipeline's marks, also of tables that have
	 * left the publication.  NULL: drop_table() for each table that is known.
	 */
	void		(*drop_all) (EtlConnection *connection, EtlResult *result);

	/*
	 * Which of these names are taken by what does not carry the pipeline's
	 * marks?  For etl.validate_pipeline(); NULL: not known before the start.
	 */
	void		(*find_names) (EtlConnection *connection, int n, const char *const *names,
							   bool *taken, EtlResult *result);
} EtlDestinationRoutine;

/*
 * Body of a wrapper's validator: "options" and "catalog" are its arguments.
 * ERROR 22023 for what the kind (or everybody) does not know or allow.
 */
extern PGDLLEXPORT void etl_options_validate(const EtlDestinationRoutine *routine, Datum options, Oid catalog);

/*
 * Type of the handler function's result: PG_RETURN_POINTER(&routine).
 */

#endif							/* ETL_DESTINATION_H */
