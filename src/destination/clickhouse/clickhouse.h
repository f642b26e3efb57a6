/*-------------------------------------------------------------------------
 *
 * clickhouse.h
 *	  What the parts of the ClickHouse destination share.
 *
 *	 clickhouse.c	options, the routine
 *	 layout.c		columns of a table, as a pure function of shape and options
 *	 names.c		names of tables, marks of ownership, quoting
 *	 encode.c		rows in RowBinary
 *	 connect.c		a connection: secrets, version, rights
 *	 client.c		one statement over HTTP
 *	 answer.c		what its answer means
 *	 ddl.c			statements that make and unmake tables
 *	 generation.c	life of a generation: begun, published, emptied, dropped
 *	 step.c			its steps: tried again, and what they leave behind
 *	 taken.c		names that are taken
 *	 place.c		where its rows go
 *	 expected.c		is there what should be, and what should not?
 *	 send.c			batches
 *	 readback.c		what is there under the keys of rows with holes
 *
 * Encoder, CREATE TABLE and the head of an INSERT all follow the same layout,
 * so they cannot disagree; what the server has is compared by the server,
 * which gets names and types with each INSERT.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_CLICKHOUSE_H
#define ETL_CLICKHOUSE_H

#include "lib/ilist.h"
#include "utils/hsearch.h"

#include "etl/destination.h"
#include "net/http.h"
#include "schema/typemap.h"

/* --- layout.c --- */

/* A column of the destination that holds one of the source. */
typedef struct ChColumn
{
	AttrNumber	attnum;
	const char *name;
	const EtlColumn *source;
	EtlTypeMapping mapping;		/* its type, and what else decides its bytes */
	bool		chosen;			/* the type, by a user */
	bool		sorted;			/* in ORDER BY */
} ChColumn;

/* A column as it is made there. */
typedef struct ChPart
{
	const char *name;
	const char *type;
	const ChColumn *column;		/* NULL: ours alone */
	bool		companion;		/* says whether the array before it is null */
} ChPart;

typedef struct ChLayout
{
	bool		log;			/* engine merge_tree: one row a change */
	bool		committed_at;	/* metadata_columns */
	int			ncolumns;
	ChColumn   *columns;		/* by attnum */
	int			nsorted;
	int		   *sorted;			/* ORDER BY: indexes of columns */
	bool		sorted_by_more; /* than the key */
	int			nparts;
	ChPart	   *parts;			/* columns and companions, then ours: as they
								 * are made and as a row has them */
} ChLayout;

extern bool ch_is_log(const EtlOptions *options);

/*
 * In CurrentMemoryContext.  What is wrong with it shows ch_layout_check();
 * what cannot be is left out here.
 */
extern ChLayout *ch_layout(const EtlShape *shape, const EtlOptions *options);

/* May a table look like that?  If not, ETL_PARK with a hint. */
extern bool ch_layout_check(const EtlShape *shape, const EtlOptions *options, EtlResult *result);

extern const char *ch_map_column(const EtlShape *shape, const EtlColumn *column,
								 const EtlOptions *options, EtlValueError *error);
extern void ch_describe_column(const EtlShape *shape, const EtlColumn *column,
							   const EtlOptions *options, EtlColumnPlan *plan);

/* --- encode.c --- */

extern EtlCodec *ch_codec_create(const EtlShape *shape, const EtlTarget *target,
								 const EtlOptions *options);
extern bool ch_encode_row(EtlCodec *codec, const EtlChange *change, StringInfo out,
						  EtlValueError *error);
extern bool ch_extract(EtlCodec *codec, const char *row, uint32 len, AttrNumber attnum,
					   const char **value, uint32 *value_len);
extern bool ch_splice(EtlCodec *codec, const char *row, uint32 len, int ncolumns,
					  const AttrNumber *attnums, const char *const *values,
					  const uint32 *value_lens, StringInfo out);

/* A codec that can but walk over values of this type (etl_rowbinary_skip()); no catalogs. */
extern struct EtlRowBinaryCodec *ch_walker(const char *type, bool companion);

/* --- readback.c --- */

extern void ch_read_back(EtlConnection *connection, EtlTable *table, int nrows, const EtlItem *rows,
						 int ncolumns, const AttrNumber *attnums,
						 void (*found) (void *arg, int row, EtlPosition version,
										const char *const *values, const uint32 *lens),
						 void *arg, EtlResult *result);

/* --- connection --- */

static inline void
ch_reset_result(EtlResult *result)
{
	memset(result, 0, sizeof(*result));
	result->rejected = -1;
	result->retry_after = -1;
}

#define CH_HEX_LEN		8

/* Where rows of a generation go, as the writer knows it. */
typedef struct ChPlaceKey
{
	Oid			relid;
	uint32		generation;
} ChPlaceKey;

typedef struct ChPlace
{
	ChPlaceKey	key;			/* hash key */
	char	   *name;
	bool		skip;			/* event log: rows up to here are in it */
	uint16		epoch;
	uint64		lsn;
	uint64		ordinal;
} ChPlace;

struct EtlConnection
{
	MemoryContext context;
	const EtlOptions *options;	/* of the pipeline */
	const char *identity;		/* "<system>/<database>/<pipeline>" */
	char		hex[CH_HEX_LEN + 1];	/* end of the slot's name */
	uint16		epoch;
	uint64		incarnation;
	bool		(*is_tracked) (Oid relid);
	int			(*exists) (Oid relid);
	const char *database;
	EtlCompression compression;
	MemoryContext secrets_context;	/* emptied at each connect */
	char	   *password;
	bool		refused;		/* with it: read it again before the next request */
	MemoryContext http_context; /* holds the pool */
	EtlHttp    *http;
	int			in_flight;
	uint64		sequence;		/* of query ids */
	Oid			changing;		/* table of the call under way, or none */
	int			code;			/* of the last answer's exception, 0: none */
	List	   *unsure;			/* statements that may still run; client.c */
	List	   *steps;			/* that are tried again; step.c */
	bool		has_deduplicate_insert; /* the server knows these settings */
	bool		has_drop_limit; /* max_table_size_to_drop */
	TimestampTz insert_time;	/* when the last INSERT began, */
	uint64		insert_waited;	/* and etl_http_waited() then */
	MemoryContext scratch;		/* of one call */
	bool		settled;		/* nothing of a former writer runs any more */
	HTAB	   *places;
	dlist_head	sends;			/* of ChSend */
};

/* A batch under way (EtlBatch.private_data). */
typedef struct ChSend
{
	dlist_node	node;
	MemoryContext context;		/* holds this struct */
	ChPlaceKey	key;
	EtlHttpTransfer *transfer;	/* NULL: "result" is known already */
	EtlResult	result;
} ChSend;

/* --- connect.c --- */

extern EtlConnection *ch_open(const EtlConnectArgs *args);
extern void ch_connect(EtlConnection *connection, EtlResult *result);
extern void ch_close(EtlConnection *connection);

/* A pool with settings and certificates as they are now, if there is none. */
extern void ch_need_pool(EtlConnection *connection);

/* After an answer, and before the next request: passwords change. */
extern void ch_note_refusal(EtlConnection *connection, const EtlResult *result);
extern bool ch_need_password(EtlConnection *connection, EtlResult *result);

/* --- client.c --- */

typedef enum ChKind
{
	CH_READ,
	CH_CHANGE,					/* DDL, KILL */
	CH_INSERT
} ChKind;

/* Codes of ClickHouse's exceptions that somebody asks for. */
#define CH_UNKNOWN_TABLE	60
#define CH_TOO_LARGE_TO_DROP 359

/* Rows of a SELECT in RowBinary, read one value after the other. */
typedef struct ChRows
{
	const char *data;
	Size		len;
	Size		at;
	bool		broken;			/* read beyond the end */
} ChRows;

extern bool ch_rows_more(ChRows *rows);
extern char *ch_rows_string(ChRows *rows);
extern uint64 ch_rows_number(ChRows *rows, int width);

/* Was it all, and no more? */
extern bool ch_rows_done(const ChRows *rows);

/*
 * What an answer means (answer.c).  Returns the exception's code, 0 if there
 * is none.
 */
extern int	ch_classify(const EtlHttpResponse *response, ChKind kind, EtlResult *result);

/*
 * Run one statement to its end; everything in CurrentMemoryContext.  "rows"
 * for a statement that ends with FORMAT RowBinary, else NULL.  False when the
 * result is not ETL_DONE; connection->code tells more.
 */
extern bool ch_run(EtlConnection *connection, ChKind kind, const char *sql,
				   ChRows *rows, EtlResult *result);

/* The same with settings, as they stand in a URL. */
extern bool ch_run_with(EtlConnection *connection, ChKind kind, const char *settings,
						const char *sql, ChRows *rows, EtlResult *result);

/* Does nothing that changes the table of the call under way still run?  If so, ETL_RETRY. */
extern bool ch_is_sure(EtlConnection *connection, EtlResult *result);

/* Must this process end, whatever it waits for? */
extern bool ch_must_stop(void);

/* Start an INSERT whose data are the spans; "json": with columns of that type. */
extern EtlHttpTransfer *ch_start_insert(EtlConnection *connection, const char *sql,
										EtlPhase phase, bool json, const char *token,
										int nspans, const EtlSpan *spans);

/* --- names.c --- */

extern void ch_put_identifier(StringInfo out, const char *name);
extern void ch_put_literal(StringInfo out, const char *text);

/* `database`.`name` */
extern void ch_put_name(StringInfo out, const char *database, const char *name);
extern void ch_put_table(StringInfo out, const EtlConnection *connection, const char *name);

typedef struct ChNames
{
	char	   *base;
	char	   *view;			/* NULL: none */
} ChNames;

/* In CurrentMemoryContext; false when there can be no such names. */
extern bool ch_names(const char *database, const EtlShape *shape, const EtlOptions *options,
					 ChNames *names, EtlResult *result);
extern char *ch_staging_prefix(const EtlConnection *connection, Oid relid);
extern char *ch_staging_name(const EtlConnection *connection, Oid relid, uint32 generation);
extern char *ch_old_name(const EtlConnection *connection, Oid relid, uint32 generation);

/* What a comment on a table of ours says. */
typedef struct ChMark
{
	Oid			relid;
	uint32		generation;
} ChMark;

extern char *ch_mark(const EtlConnection *connection, Oid relid, uint32 generation,
					 XLogRecPtr shape_lsn);

/* What marks for the table begin with; InvalidOid: for any of the pipeline. */
extern char *ch_mark_prefix(const EtlConnection *connection, Oid relid);

/* Is it a mark of ours, of this pipeline? */
extern bool ch_mark_parse(const EtlConnection *connection, const char *comment, ChMark *mark);

/* End of the mark of a column that says whether an array is null. */
#define CH_COMPANION_MARK	":is_null"

/* Is it one of anybody's? */
extern bool ch_is_mark(const char *comment);

/* Can the name be sent as it is? */
extern bool ch_name_is_utf8(const char *name);

/* --- ddl.c --- */

/* A table or view that is there. */
typedef struct ChFound
{
	char	   *name;
	char	   *engine;
	char	   *comment;
	bool		ours;
	ChMark		mark;
} ChFound;

static inline bool
ch_is_view(const ChFound *found)
{
	return strcmp(found->engine, "View") == 0;
}

static inline bool
ch_is_generation(const ChFound *found, const EtlTable *table)
{
	return found->ours && !ch_is_view(found) && found->mark.relid == table->relid &&
		found->mark.generation == table->generation;
}

/* Is it under a name that only unfinished things have? */
static inline bool
ch_is_internal(const ChFound *found)
{
	return strncmp(found->name, "_etl_", 5) == 0;
}

/*
 * Tables with one of these names (NULL: none), under a staging name of the
 * table, or with our mark for it, InvalidOid: for any of the pipeline.
 */
extern bool ch_find(EtlConnection *connection, Oid relid, const char *const *names, int nnames,
					List **found, EtlResult *result);
extern ChFound *ch_find_name(List *found, const char *name);

extern List *ch_plan_table(const EtlShape *shape, const EtlOptions *options, StringInfo ddl);
extern bool ch_create_table(EtlConnection *connection, const EtlTable *table, const char *name,
							EtlResult *result);
extern bool ch_create_view(EtlConnection *connection, const EtlTable *table, const ChNames *names,
						   EtlResult *result);
extern bool ch_drop(EtlConnection *connection, const char *name, bool view, EtlResult *result);
extern bool ch_rename(EtlConnection *connection, const char *from, const char *to, EtlResult *result);
extern bool ch_exchange(EtlConnection *connection, const char *one, const char *other,
						EtlResult *result);

/* --- generation.c --- */

extern void ch_begin_generation(EtlConnection *connection, EtlTable *table, EtlResult *result);
extern void ch_publish_generation(EtlConnection *connection, EtlTable *table, EtlResult *result);
extern void ch_abandon_generation(EtlConnection *connection, EtlTable *table, EtlResult *result);
extern void ch_truncate(EtlConnection *connection, EtlTable *table, EtlResult *result);
extern void ch_drop_table(EtlConnection *connection, EtlTable *table, EtlResult *result);
extern void ch_drop_all(EtlConnection *connection, EtlResult *result);

/* --- step.c --- */

typedef enum ChStepKind
{
	CH_STEP_BEGIN,
	CH_STEP_PUBLISH,
	CH_STEP_TRUNCATE
} ChStepKind;

/* A step of a generation that is under way, or tried again. */
typedef struct ChStep
{
	ChStepKind	kind;
	ChPlaceKey	key;
	bool		done;			/* but for what is to be dropped */
	int			failed_drops;
} ChStep;

/* A call about the table begins: an empty result, the connection's scratch context. */
extern MemoryContext ch_enter(EtlConnection *connection, Oid relid, EtlResult *result);
extern ChStep *ch_step_begin(EtlConnection *connection, ChStepKind kind, const EtlTable *table);
extern void ch_step_end(EtlConnection *connection, ChStep *step, const EtlResult *result);

/* Does nothing run any more that could change what is there?  For writers alone. */
extern bool ch_settle(EtlConnection *connection, EtlResult *result);

/*
 * Drop what a step leaves behind: "table" as it was found, under the name that
 * it has now.  False: not now.  True: it is gone, or stays there, which is noted.
 */
extern bool ch_drop_left(EtlConnection *connection, ChStep *step, const ChFound *table,
						 const char *name, EtlResult *result);

/* --- taken.c --- */

/* What is there under the table's names, and with its mark; may it give way? */
extern bool ch_look(EtlConnection *connection, const EtlTable *table, ChNames *names, List **found,
					EtlResult *result);

/*
 * Has an earlier step of the table left it under one of our names?  Without a
 * mark there may be what "replace" has put aside.
 */
extern bool ch_is_left(EtlConnection *connection, const EtlTable *table, const ChFound *found);

/* Make the name free for a table of ours. */
extern bool ch_clear_name(EtlConnection *connection, const EtlTable *table, List *found,
						  const char *name, EtlResult *result);

/* --- place.c --- */

/* The generation's table in "found": under the table's own name, or staging. */
extern ChFound *ch_find_generation(List *found, const EtlTable *table, const char *base);

/* It is not there. */
extern void ch_vanished(const EtlTable *table, EtlResult *result);

extern EtlTarget *ch_read_columns(EtlConnection *connection, EtlTable *table, EtlResult *result);

/*
 * Where rows of the table's generation go, asking the server at the first
 * time; NULL with "result" set.  Also sees to it that nothing of a former
 * writer still runs.
 */
extern ChPlace *ch_place(EtlConnection *connection, const EtlTable *table, EtlResult *result);
extern void ch_forget_place(EtlConnection *connection, Oid relid, uint32 generation);

/* Of all its generations. */
extern void ch_forget_places(EtlConnection *connection, Oid relid);

/* --- expected.c --- */

extern void ch_find_generations(EtlConnection *connection, int n, EtlExpected *expected,
								EtlResult *result);
extern void ch_find_names(EtlConnection *connection, int n, const char *const *names,
						  bool *taken, EtlResult *result);

/* --- send.c --- */

extern void ch_send_start(EtlConnection *connection, EtlBatch *batch);
extern void ch_send_poll(EtlConnection *connection, int timeout);
extern void ch_send_result(EtlConnection *connection, EtlBatch *batch, EtlResult *result);
extern void ch_send_finish(EtlConnection *connection, EtlBatch *batch);

/* Wait until nothing is under way to the table; not for ever: else ETL_RETRY. */
extern bool ch_send_wait(EtlConnection *connection, Oid relid, EtlResult *result);

#endif							/* ETL_CLICKHOUSE_H */
