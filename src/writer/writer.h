/*-------------------------------------------------------------------------
 *
 * writer.h
 *	  What the files of the writer process share.
 *
 *	 writer.c		the main loop, waiting, the end
 *	 writer_start.c	identity, tables into shared memory, queue, connection
 *	 lanes.c		records of a queue -> lanes, marks, things to store
 *	 generations.c	generations of tables, tables as the writer knows them
 *	 membership.c	tables come and go
 *	 tables.c		trouble, new copies, hand-overs, requests
 *	 feedback.c		what the sender says
 *	 toast.c		rows with unchanged out-of-line values
 *	 pending.c		what must be stored, in brackets, and retried
 *	 progress.c		marks -> durable positions, release of the rings
 *	 watch.c		definition, requests of users, the slot
 *	 expected.c		is the destination still the one that we left?
 *	 schedule.c		groups for sync workers, and their ends
 *	 local.c		destinations inside this database
 *
 * The process never decodes.  It opens brackets only between turns, with no
 * lock held, and what it is to store waits in a list of its own until no
 * user's lock is in the way; the stream goes on meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_WRITER_H
#define ETL_WRITER_H

#include "utils/hsearch.h"

#include "catalog/bracket.h"
#include "catalog/config.h"
#include "catalog/store.h"
#include "compat.h"
#include "delivery/batch.h"
#include "delivery/retry.h"
#include "pipeline/queue.h"
#include "server/shmem.h"

typedef struct EtlWriter EtlWriter;
typedef struct EtlIntake EtlIntake;

/* Queues of a pipeline: apply's, and one for each sync entry. */
#define ETL_INTAKES		(1 + ETL_SYNCS_PER_PIPELINE)

/*
 * One generation of one table.  EtlItem.table is the index of it in
 * writer->generations.
 */
typedef struct EtlGeneration
{
	uint64		key;			/* hash key: table slot and generation */
	uint32		index;
	uint32		slot;
	uint32		generation;
	Oid			relid;
	bool		out;			/* parked or given up: items are skipped */
	EtlOnError	on_error;
	EtlShape   *shape;			/* newest seen, or NULL */
	EtlTable   *table;			/* as batches refer to it */
	TimestampTz last_change;	/* commit time of the newest change taken */

	/* toast.c: encoder of codec_shape, to take rows apart */
	EtlCodec   *codec;
	EtlShape   *codec_shape;
	MemoryContext codec_context;

	EtlLane    *lanes[ETL_INTAKES];
} EtlGeneration;

/* A table slot of this pipeline, as the writer knows it. */
typedef struct EtlTracked
{
	Oid			relid;
	uint32		slot;
	char	   *schema_name;
	char	   *table_name;
	EtlTableState stored;		/* as etl.table_state has it or will have it */
	int64		resync_wanted;	/* counters of etl.table_intent */
	int64		retry_wanted;
	int			failures;		/* sync workers in a row that ended early */
	TimestampTz not_before;		/* of the next sync worker */
	uint32		handing_over;	/* generation whose hand-over was begun */
	bool		unstored_handover;	/* taken over, not stored yet */
	bool		settled;		/* older generation forgotten: ready */
} EtlTracked;

/* Everything before "position" being durable, so is everything before "lsn". */
typedef struct EtlMark
{
	uint64		position;
	XLogRecPtr	lsn;
	TimestampTz time;			/* of the oldest commit in it; 0: none */
	uint64		taken;			/* intake->taken when it was made */
} EtlMark;

/* One queue. */
struct EtlIntake
{
	int			group;			/* 0: apply's; else sync entry + 1 */
	EtlSyncShared *sync;		/* NULL for apply's */
	dsm_handle	handle;
	EtlQueue   *queue;			/* NULL: none */
	EtlLane    *lane;			/* kinds with ETL_BATCH_PIPELINE */
	struct EtlToast *toast;		/* rows by key; made when the first comes */
	uint64		taken;			/* items and things to store, so far */
	EtlMark    *marks;
	int			first_mark;
	int			nmarks;
	int			allocated_marks;
	XLogRecPtr	durable;
	TimestampTz commit_time;	/* of the transaction being taken */
};

/*
 * Something to be stored.  "store" runs in a bracket and may run again after
 * a failed one; "stored" once the bracket has committed.
 */
typedef struct EtlPending EtlPending;
typedef void (*EtlPendingCall) (EtlWriter *writer, EtlPending *pending);

struct EtlPending
{
	EtlPendingCall store;
	EtlPendingCall stored;		/* or NULL */
	EtlIntake  *intake;			/* marks of it behind "position" wait; or NULL */
	uint64		position;
	bool		holds;			/* all marks wait, whatever their intake */

	Oid			relid;
	uint32		slot;			/* or ETL_NO_TABLE */
	uint32		generation;
	EtlTableState state;
	EtlRecovery recovery;
	EtlCopyReason reason;
	bool		beside;
	int			sqlstate;
	char	   *message;
	char	   *hint;
	XLogRecPtr	lsn;
	uint64		number;
	List	   *rules;
	EtlShape   *shape;
};

/* A truncate of several tables under way: whom to blame if it is refused. */
typedef struct EtlTruncate
{
	XLogRecPtr	lsn;
	uint64		ordinal;
	int			n;
	uint32		generations[FLEXIBLE_ARRAY_MEMBER];
} EtlTruncate;

struct EtlWriter
{
	EtlConfig  *config;
	EtlPipelineShared *pipeline;
	EtlConnection *connection;
	EtlSender  *sender;
	struct EtlLocal *local;		/* ETL_LOCAL_TRANSACTION kinds */
	bool		pipeline_lanes; /* ETL_BATCH_PIPELINE */

	/* generations.c */
	HTAB	   *generation_hash;
	EtlGeneration **generations;
	int			ngenerations;
	int			allocated_generations;
	EtlGeneration *last;		/* of the last look-up */
	EtlTracked **tracked;		/* by table slot */
	List	   *truncates;
	uint64		tables_version; /* of the last scan */
	bool		scan;			/* look at all table slots */
	bool		tables_full;	/* a table found no slot */
	bool		any_unstored_handover;	/* tracked tables have such */
	bool		any_unsettled;
	XLogRecPtr	durable_told;	/* pipeline->durable_lsn by this incarnation */

	EtlIntake	intakes[ETL_INTAKES];

	/* pending.c */
	MemoryContext pending_context;
	List	   *pending;
	TimestampTz pending_next;	/* not before, after a failed bracket */
	bool		lock_shown;		/* waiting_for = lock */

	/* watch.c */
	uint64		config_seen;
	TimestampTz config_next;
	TimestampTz reloaded;		/* PgReloadTime of the config */
	const char *allowed_hosts;	/* etl.allowed_hosts at the start */
	int64		resync_done;	/* of the pipeline */
	bool		resync_told;	/* resync_pipeline() was acted on by this process */
	bool		moved;			/* the files are another copy than the last ones */
	bool		slot_pending;

	/* schedule.c */
	TimestampTz schedule_next;
	bool		schedule_wanted;

	TimestampTz statistics_next;

	/* on_error = stop has met trouble: everything ends here */
	bool		failing;
	int			fail_sqlstate;
	char		fail_message[ETL_ERROR_TEXT_LEN];
	char		fail_hint[ETL_HINT_TEXT_LEN];
};

/* writer_start.c */
extern EtlWriter *etl_writer_start(void);
extern void etl_writer_connect(EtlWriter *writer);

/* Tables that found no slot so far: is there room now? */
extern void etl_writer_load_waiting(EtlWriter *writer);

/* writer.c */
pg_noreturn extern void etl_writer_fail(EtlWriter *writer, int sqlstate, const char *message,
							const char *hint);

/* Run a bracket, waiting for users' locks; for start and end only. */
extern void etl_writer_bracket(EtlBracketKind kind, const char *name,
							   void (*body) (void *arg), void *arg);

/* lanes.c */
extern bool etl_writer_take(EtlWriter *writer);
extern bool etl_writer_may_take(EtlWriter *writer);
extern void etl_writer_attach(EtlWriter *writer, EtlIntake *intake, dsm_handle handle);
extern void etl_writer_detach(EtlWriter *writer, EtlIntake *intake);

/* generations.c */
extern void etl_writer_init_tables(EtlWriter *writer);
extern EtlGeneration *etl_writer_generation(EtlWriter *writer, uint32 slot, uint32 generation);
extern void etl_writer_set_shape(EtlWriter *writer, EtlGeneration *generation, EtlShape *shape);
extern void etl_writer_give_up(EtlWriter *writer, uint32 slot);
extern EtlTracked *etl_writer_track(EtlWriter *writer, EtlTableSlot *slot,
									const char *schema_name, const char *table_name);
extern void etl_writer_load_columns(EtlWriter *writer, List *rows); /* of EtlColumnRow * */
extern void etl_writer_tables_changed(EtlWriter *writer);

/* membership.c */
extern void etl_writer_rules(EtlWriter *writer, EtlIntake *intake, uint64 position, List *rules);

/* tables.c */
extern void etl_writer_park(EtlWriter *writer, EtlGeneration *generation, EtlIntake *intake,
							uint64 position, int sqlstate, const char *message,
							const char *hint, XLogRecPtr lsn, uint64 ordinal);
extern void etl_writer_stop_at(EtlWriter *writer, EtlGeneration *generation, int sqlstate,
							   const char *message, const char *hint,
							   XLogRecPtr lsn, uint64 ordinal);
extern void etl_writer_renew(EtlWriter *writer, EtlTracked *tracked, EtlIntake *intake,
							 uint64 position, EtlCopyReason reason, bool beside);
extern void etl_writer_resync(EtlWriter *writer, EtlIntake *intake, uint64 position,
							  uint32 slot, uint32 generation,
							  EtlCopyReason reason, bool beside);
extern void etl_writer_handover(EtlWriter *writer, EtlIntake *intake, uint64 position,
								uint32 slot, uint32 generation);
extern void etl_writer_scan(EtlWriter *writer);

/* feedback.c */
extern void etl_writer_log_others(EtlWriter *writer);
extern void etl_writer_log_trouble(EtlWriter *writer, const EtlResult *result);
extern void etl_writer_count(EtlWriter *writer, const EtlItem *items, int nitems);
extern const EtlSenderCallbacks etl_writer_callbacks;

/* pending.c */
extern EtlPending *etl_pending_new(EtlWriter *writer, EtlPendingCall store,
								   EtlIntake *intake, uint64 position);
extern char *etl_pending_text(EtlWriter *writer, const char *text);
extern void etl_pending_state(EtlWriter *writer, EtlTracked *tracked, EtlTableState state);
extern void etl_pending_run(EtlWriter *writer);
extern bool etl_pending_holds(const EtlWriter *writer); /* something that all marks wait for */
extern uint64 etl_pending_oldest(EtlWriter *writer, const EtlIntake *intake);

/* progress.c */
extern void etl_progress_mark(EtlIntake *intake, XLogRecPtr lsn, TimestampTz time);
extern void etl_progress_update(EtlWriter *writer);
extern void etl_progress_reset(EtlIntake *intake);

/* watch.c */
extern void etl_writer_watch(EtlWriter *writer);
extern void etl_writer_read_intents(EtlWriter *writer, List *intents);

/* expected.c */
extern void etl_writer_compare(EtlWriter *writer, EtlResult *result);
extern bool etl_writer_missing(EtlWriter *writer, EtlGeneration *generation);

/* schedule.c */
extern void etl_writer_schedule(EtlWriter *writer);
extern void etl_writer_watch_syncs(EtlWriter *writer);
extern bool etl_sync_entry_alive(const EtlSyncShared *sync);

/* local.c */
extern struct EtlLocal *etl_local_create(EtlWriter *writer);
extern void etl_local_append(EtlWriter *writer, const EtlItem *item, uint64 position, void *chunk);
extern void etl_local_commit(EtlWriter *writer, XLogRecPtr end_lsn, uint64 position);
extern long etl_local_run(EtlWriter *writer, bool dry);
extern uint64 etl_local_oldest(EtlWriter *writer);
extern uint64 etl_local_held(EtlWriter *writer);

#endif							/* ETL_WRITER_H */
