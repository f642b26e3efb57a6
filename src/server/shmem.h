/*-------------------------------------------------------------------------
 *
 * shmem.h
 *	  What the processes of etl share: pipelines, sync workers, tables.
 *
 * Everything lives in fixed arrays of the main shared memory segment.  The
 * tables of schema etl are the truth that survives a restart; shared memory
 * is what views, etl.wait_for() and the hand-over read.
 *
 * Locks:
 *	 EtlShared->lock	allocation of pipeline entries, sync entries, table
 *						slots; everything that launcher and workers agree on
 *	 pipeline->lock		the "table-state lock" of one pipeline: states,
 *						generations, ownership, decided
 * Order: EtlShared->lock before pipeline->lock.  Neither is held across
 * catalog access, a wait or a network call.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SHMEM_H
#define ETL_SHMEM_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/dsm.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/spin.h"

#define ETL_ERROR_TEXT_LEN	512
#define ETL_HINT_TEXT_LEN	256
#define ETL_SYNCS_PER_PIPELINE 4

/* States of a pipeline, as etl.pipeline_status shows them. */
typedef enum EtlPipelineState
{
	ETL_PIPELINE_STOPPED = 0,
	ETL_PIPELINE_STARTING,
	ETL_PIPELINE_WAITING,		/* for a limit: see waiting_for */
	ETL_PIPELINE_INITIAL_SYNC,
	ETL_PIPELINE_REPLICATING,
	ETL_PIPELINE_RETRYING,
	ETL_PIPELINE_FAILED,
	ETL_PIPELINE_DROPPING
} EtlPipelineState;

/* What a pipeline waits for (pipeline_status.waiting_for). */
typedef enum EtlWaitingFor
{
	ETL_WAIT_NOTHING = 0,
	ETL_WAIT_MAX_WORKERS,		/* "etl.max_workers" */
	ETL_WAIT_WORKER_PROCESSES,	/* "max_worker_processes" */
	ETL_WAIT_REPLICATION_SLOTS, /* "max_replication_slots" */
	ETL_WAIT_MAX_PIPELINES,		/* "etl.max_pipelines" */
	ETL_WAIT_MAX_TABLES,		/* "etl.max_tables" */
	ETL_WAIT_MAX_SYNC_WORKERS,	/* "etl.max_sync_workers" */
	ETL_WAIT_TRANSACTIONS,		/* "running transactions": slot creation */
	ETL_WAIT_DESTINATION,		/* "destination" */
	ETL_WAIT_LOCK				/* "lock": a bracket met a user's lock */
} EtlWaitingFor;

/* States of a table; transitions are checked in pipeline/table_state.c. */
typedef enum EtlTableState
{
	ETL_TABLE_INIT = 0,
	ETL_TABLE_DATA_SYNC,
	ETL_TABLE_FINISHED_COPY,
	ETL_TABLE_SYNC_WAIT,
	ETL_TABLE_CATCHUP,
	ETL_TABLE_SYNC_DONE,
	ETL_TABLE_READY,
	ETL_TABLE_ERRORED,
	ETL_TABLE_EXCLUDED,
	ETL_TABLE_DROPPED
} EtlTableState;

typedef enum EtlRecovery
{
	ETL_RECOVERY_NONE = 0,
	ETL_RECOVERY_RETRY,			/* retry_table: a new copy attempt */
	ETL_RECOVERY_RESUME,		/* retry_table: goes on in place (stop) */
	ETL_RECOVERY_RESYNC			/* retry_table: a resync */
} EtlRecovery;

/* Why a copy is made (events' "reason"). */
typedef enum EtlCopyReason
{
	ETL_COPY_INITIAL = 0,
	ETL_COPY_RESYNC,
	ETL_COPY_REWRITE,
	ETL_COPY_FILTER_CHANGE,
	ETL_COPY_SLOT_LOSS
} EtlCopyReason;

/* One physical copy of a table that apply may deliver to. */
typedef struct EtlOwnership
{
	uint32		generation;		/* 0: none */
	XLogRecPtr	owned_from;		/* apply delivers iff commit_lsn >= this */
	uint64		shape_hash;		/* of the generation's base shape */
} EtlOwnership;

/*
 * One tracked table of one pipeline.  All fields but the atomics are under
 * the pipeline's lock; written by the writer, by the table's sync worker in
 * its copy and hand-over, and never by apply.
 */
typedef struct EtlTableSlot
{
	Oid			relid;
	int32		pipeline;		/* index of the entry, -1 = free slot */
	int32		next;			/* chain of its hash bucket, or of free slots;
								 * under EtlShared->lock */
	uint8		state;			/* EtlTableState of the newest generation */
	uint8		recovery;		/* EtlRecovery when ERRORED */
	uint8		reason;			/* EtlCopyReason of the newest generation */
	bool		on_error_stop;
	uint32		generation;		/* newest generation started */
	int32		sync;			/* index of its sync entry, or -1 */

	/*
	 * Newest first; [1] receives changes while [0] takes over (a resync
	 * beside).  A change goes to the first whose owned_from <= commit_lsn.
	 */
	EtlOwnership owned[2];

	int64		resync_done;	/* request counters that were acted on */
	int64		retry_done;
	int64		resync_claimed; /* counters the running copy was started for */
	int64		retry_claimed;

	/* last trouble, for ERRORED; texts are in etl.table_state */
	int			sqlstate;
	XLogRecPtr	error_lsn;
	uint64		error_ordinal;

	/* statistics: each has one writer process at a time */
	pg_atomic_uint64 rows_copied;
	pg_atomic_uint64 bytes_copied;
	pg_atomic_uint64 inserts;
	pg_atomic_uint64 updates;
	pg_atomic_uint64 deletes;
	pg_atomic_uint64 truncates;
	pg_atomic_uint64 last_change_time;	/* TimestampTz */
	pg_atomic_uint64 last_delivered_lsn;
	pg_atomic_uint64 rows_estimated;
} EtlTableSlot;

/*
 * A change that made an output function throw: the process died, and on the
 * replay that change parks its table instead of being encoded.  Written by
 * the dying apply (or sync in catch-up) under pipeline->lock; survives pair
 * restarts.
 */
typedef struct EtlPoison
{
	Oid			relid;			/* Invalid: none */
	XLogRecPtr	commit_lsn;
	uint64		ordinal;
	int			sqlstate;
	char		message[ETL_ERROR_TEXT_LEN];
} EtlPoison;

/*
 * One pipeline that is enabled, being dropped, or was running since the
 * server started.
 */
typedef struct EtlPipelineShared
{
	/* under EtlShared->lock; identity never changes while in_use */
	bool		in_use;
	Oid			database;
	int64		id;
	NameData	name;			/* may change by rename */
	NameData	slot_name;		/* "" until drawn */
	bool		wanted;			/* check and writer: should run */
	bool		released;		/* must not run for the moment: a utility
								 * command waits for the database */
	uint64		incarnation;	/* of the pair; counts up at each start */
	bool		doomed;			/* of a former life of the extension or its row:
								 * freed when its processes are gone */

	/* processes; each sets and clears its own under EtlShared->lock */
	PGPROC	   *apply_proc;
	PGPROC	   *writer_proc;
	pid_t		apply_pid;
	pid_t		writer_pid;
	uint64		apply_attached; /* newest incarnation that has attached */
	uint64		writer_attached;
	pid_t		cleanup_pid;	/* check worker that drops the pipeline */

	/* launcher's: restart backoff */
	TimestampTz started_at;		/* of the running pair; 0 = none was started */
	int			failures;		/* starts in a row that ended early */
	TimestampTz next_start;

	LWLock		lock;			/* the table-state lock */

	/* --- under lock --- */
	EtlPipelineState state;
	EtlPipelineState resume_state;	/* what RETRYING goes back to */
	EtlWaitingFor waiting_for;
	bool		restart_requested;	/* writer: pair must restart (decision 1) */
	uint32		definition;		/* writer, under EtlShared->lock: raised with a
								 * new definition; sync workers that began
								 * under an older one end */
	bool		shapes_ready;	/* writer connected: apply may decode */
	dsm_handle	queue;			/* made by the writer of this incarnation; 0 =
								 * not yet */
	XLogRecPtr	decided;		/* apply: end of the newest transaction whose
								 * ownership it has fixed */

	/*
	 * The slot.  The writer draws and stores the name, apply makes the slot
	 * and sets slot_ready, the writer stores that and sets slot_created; then
	 * apply may decode.  Apply sets slot_lost when a created slot is not
	 * there or cannot be used; the writer answers by on_slot_loss.
	 */
	bool		slot_ready;
	bool		slot_created;
	bool		slot_lost;
	XLogRecPtr	slot_point;		/* confirmed position when it was made */
	XLogRecPtr	stopped_lsn;	/* writer: the slot was confirmed to here at
								 * most when the pipeline last stopped; apply
								 * compares, and sets it to Invalid */
	int			epoch;
	int			failed_sqlstate;	/* state FAILED */
	char		failed_message[ETL_ERROR_TEXT_LEN];
	char		failed_hint[ETL_HINT_TEXT_LEN];
	int			last_sqlstate;
	char		last_error[ETL_ERROR_TEXT_LEN];
	TimestampTz last_error_time;
	bool		error_unlogged; /* last_error is of a worker that cannot write
								 * tables: the writer logs it */
	TimestampTz next_retry_time;	/* 0: not retrying */
	bool		endpoint_trouble;	/* last error is the endpoint's */
	EtlPoison	poison;
	TimestampTz oldest_undelivered; /* commit time; 0 = none.  By the writer */
	TimestampTz last_progress;	/* durable moved */
	TimestampTz waiting_since;	/* by the writer: something is to be delivered
								 * and durable has not moved since; 0: nothing
								 * to do */

	/* --- atomics: nothing else behind here --- */
	pg_atomic_uint64 config_wanted; /* bumped at commit of SQL functions */
	pg_atomic_uint64 config_seen_writer;	/* value the writer acted on */
	pg_atomic_uint64 config_seen_apply;
	pg_atomic_uint64 tables_version;	/* bumped when any table slot changes */
	pg_atomic_uint64 tables_seen;	/* apply: tables_version that its last bracket
									 * (shapes, table rows) has taken in */
	pg_atomic_uint64 tables_wanted; /* sync: value of tables_seen that it waits
									 * for */
	pg_atomic_uint64 hold_until;	/* sync: apply decides nothing new before this
									 * time (TimestampTz); 0 = none */
	pg_atomic_uint64 apply_idle;	/* apply waits for WAL: wake it at commit */
	pg_atomic_uint64 flush_target;	/* wait_for: deliver up to here at once */
	pg_atomic_uint64 decoded_lsn;	/* apply: end of what it read */
	pg_atomic_uint64 durable_lsn;	/* writer: may be confirmed */
	pg_atomic_uint64 confirmed_lsn; /* apply: confirmed to the slot */
	pg_atomic_uint64 counted_lsn;	/* apply: newest commit whose values changed by
									 * policy are counted */
	pg_atomic_uint64 transactions;	/* apply: delivered transactions */
	pg_atomic_uint64 changes;	/* apply: delivered changes */
	pg_atomic_uint64 rows_copied;	/* sync workers */
	pg_atomic_uint64 bytes_sent;	/* writer, sync workers */
	pg_atomic_uint64 batches;
	pg_atomic_uint64 retries;
	pg_atomic_uint64 last_commit_time;	/* apply: newest decoded commit */
	pg_atomic_uint64 last_delivery_time;	/* writer */
} EtlPipelineShared;

/*
 * One sync worker.  The writer fills the entry (state REQUESTED) with its
 * tables; the launcher registers the process.
 */
typedef enum EtlSyncState
{
	ETL_SYNC_FREE = 0,
	ETL_SYNC_REQUESTED,			/* by the writer */
	ETL_SYNC_STARTED,			/* registered by the launcher */
	ETL_SYNC_RUNNING,			/* attached */
	ETL_SYNC_EXITED				/* gone; the writer clears up and frees it */
} EtlSyncState;

#define ETL_SYNC_GROUP_TABLES 64	/* BUILD decision 9 */

typedef struct EtlSyncShared
{
	/* under EtlShared->lock */
	EtlSyncState state;
	int32		pipeline;		/* index of the entry */
	uint64		incarnation;	/* of the sync worker, counts up */
	PGPROC	   *proc;
	pid_t		pid;
	int			ntables;
	int32		tables[ETL_SYNC_GROUP_TABLES];	/* table slots */

	/* under the pipeline's lock */
	dsm_handle	queue;			/* catch-up queue; 0 = none yet */
	uint64		queue_for;		/* incarnation of the pair that it is made for */
	XLogRecPtr	snapshot_lsn;	/* position of the copied rows */
	EtlWaitingFor waiting_for;

	pg_atomic_uint64 durable_lsn;	/* writer: catch-up durable to here */
} EtlSyncShared;

/* A look into a database that somebody asked for. */
typedef struct EtlDatabaseRequest
{
	Oid			database;		/* Invalid: free */
	bool		published;		/* the asking transaction committed */
	int			reservations;	/* open transactions that may publish */
	TimestampTz next_try;		/* launcher: backoff of a failing look */
	int			failures;
} EtlDatabaseRequest;

/* A utility command needs a database for itself: keep away from it. */
typedef struct EtlRelease
{
	Oid			database;		/* Invalid: free */
	pid_t		backend;		/* that asked; it also takes the entry back */
} EtlRelease;

#define ETL_MAX_RELEASES 16

/* How a look into a database ended (written by its check worker). */
typedef enum EtlCheckOutcome
{
	ETL_CHECK_FAILED = 0,		/* or died: look again, with backoff */
	ETL_CHECK_DONE,
	ETL_CHECK_LATER				/* something has to be looked at again soon */
} EtlCheckOutcome;

typedef struct EtlShared
{
	LWLock		lock;
	PGPROC	   *launcher;		/* under lock; NULL when not running */
	pid_t		launcher_pid;
	EtlRelease	releases[ETL_MAX_RELEASES];
	uint64		next_incarnation;

	/* the look under way */
	Oid			checking_database;	/* Invalid: none */
	uint64		checking_incarnation;
	pid_t		checking_pid;	/* 0: not attached (yet, or any more) */
	EtlCheckOutcome check_outcome;
	bool		look_everywhere;	/* a request found no room */

	ConditionVariable departed; /* broadcast when a process of ours detaches */
	int			nbuckets;		/* of the table slots' hash, a power of two */
	int32		free_table;		/* head of the chain of free table slots */
	int			nrequests;
	int			npipelines;
	int			nsyncs;
	int			ntables;
	pg_atomic_uint32 workers;	/* apply, writer, sync processes alive or
								 * registered; by the launcher */

	/* the arrays, in the same segment */
	int32	   *buckets;
	EtlDatabaseRequest *requests;
	EtlPipelineShared *pipelines;
	EtlSyncShared *syncs;
	EtlTableSlot *tables;
} EtlShared;

extern EtlShared *etl_shared;	/* NULL unless preloaded */

extern void etl_shmem_install_hooks(void);	/* from _PG_init when preloading */
extern void etl_shmem_require(void);	/* ERROR 55000 with hint unless preloaded */

/* Entry of a pipeline, or NULL.  Caller holds EtlShared->lock. */
extern EtlPipelineShared *etl_shmem_find_pipeline(Oid database, int64 id);

/* The same, a new one if there is room (else NULL).  Lock held exclusively. */
extern EtlPipelineShared *etl_shmem_get_pipeline(Oid database, int64 id, const char *name);

/* Free an entry with its table slots.  Lock held exclusively. */
extern void etl_shmem_free_pipeline(EtlPipelineShared *pipeline);

/* Is a utility command waiting for this database?  Lock held. */
extern bool etl_shmem_released(Oid database);

extern int	etl_shmem_pipeline_index(const EtlPipelineShared *pipeline);

/*
 * Table slot of (pipeline, relid): find, or allocate (NULL when etl.max_tables
 * is reached).  Takes and releases the locks itself.
 */
extern EtlTableSlot *etl_shmem_find_table(EtlPipelineShared *pipeline, Oid relid);
extern EtlTableSlot *etl_shmem_get_table(EtlPipelineShared *pipeline, Oid relid);
extern void etl_shmem_free_table(EtlTableSlot *slot);
extern uint32 etl_shmem_table_index(const EtlTableSlot *slot);

/* Wake a process of ours whose PGPROC is in shared memory (takes the lock). */
extern void etl_shmem_wake_launcher(void);
extern void etl_shmem_wake_pipeline(EtlPipelineShared *pipeline);
/* The same, EtlShared->lock being held (in any mode). */
extern void etl_shmem_wake_launcher_locked(void);
extern void etl_shmem_wake_pipeline_locked(EtlPipelineShared *pipeline);

/* Record trouble / success of the pipeline for the views (takes its lock). */
extern void etl_shmem_report_error(EtlPipelineShared *pipeline, int sqlstate,
								   const char *message, TimestampTz next_retry, bool endpoint);
extern void etl_shmem_report_success(EtlPipelineShared *pipeline);
extern void etl_shmem_set_state(EtlPipelineShared *pipeline, EtlPipelineState state, EtlWaitingFor waiting_for);
extern void etl_shmem_set_failed(EtlPipelineShared *pipeline, int sqlstate, const char *message, const char *hint);

extern const char *etl_pipeline_state_name(EtlPipelineState state);
extern const char *etl_waiting_for_name(EtlWaitingFor waiting_for); /* NULL for nothing */
extern const char *etl_table_state_name(EtlTableState state);
extern EtlTableState etl_table_state_from_name(const char *name);
extern const char *etl_recovery_name(EtlRecovery recovery); /* NULL for none */
extern const char *etl_copy_reason_name(EtlCopyReason reason);

#endif							/* ETL_SHMEM_H */
