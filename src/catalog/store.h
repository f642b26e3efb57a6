/*-------------------------------------------------------------------------
 *
 * store.h
 *	  Runtime state in etl.* tables: read and written in brackets.
 *
 * Every function runs inside an open bracket of the caller.
 *
 * Requests are counters.  etl.start_pipeline() raises
 * pipeline_intent.start_requests; whoever starts the pipeline (or finds it
 * running) copies it to pipeline_state.start_done.  A pipeline with
 * failed_sqlstate starts again only while the two differ; acting on the
 * request clears the failed_ columns.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_STORE_H
#define ETL_STORE_H

#include "access/attnum.h"

#include "catalog/config.h"
#include "server/shmem.h"
#include "source/rules.h"

/* Row of etl.table_state that concerns the life of the table. */
typedef struct EtlTableRow
{
	Oid			relid;
	char	   *schema_name;
	char	   *table_name;
	EtlTableState state;
	EtlCopyReason reason;
	uint32		generation;
	uint32		owned_generation;
	XLogRecPtr	owned_from;
	uint64		shape_hash;
	int64		resync_done;
	int64		retry_done;
	EtlRecovery recovery;

	/* statistics */
	uint64		rows_copied;
	uint64		bytes_copied;
	uint64		rows_estimated;
	uint64		inserts;
	uint64		updates;
	uint64		deletes;
	uint64		truncates;
	TimestampTz last_change_time;
	XLogRecPtr	last_delivered_lsn;
} EtlTableRow;

extern List *etl_store_read_tables(int64 pipeline_id);	/* of EtlTableRow * */

/*
 * A table enters (state init or excluded), or its names or its exclusion
 * changed: then the state is left alone unless it is or becomes excluded.
 */
extern void etl_store_insert_table(int64 pipeline_id, const EtlRule *rule, EtlTableState state);
extern void etl_store_delete_table(int64 pipeline_id, Oid relid);
extern void etl_store_rename_table(int64 pipeline_id, Oid relid, const char *schema_name,
								   const char *table_name);

/*
 * Sync worker, before its copy: state data_sync, generation + 1, request
 * counters taken from etl.table_intent into *resync / *retry (they count as
 * done when the copy is handed over).  Returns the new generation, 0 when the
 * table is not to be copied any more.
 */
extern uint32 etl_store_claim(int64 pipeline_id, Oid relid, int64 *resync, int64 *retry);

/*
 * Sync worker, after its copy: finished_copy, base shape (version 1) and the
 * layout that it was made with (or NULL), name at the destination (or NULL),
 * figures.
 */
extern void etl_store_finished_copy(int64 pipeline_id, Oid relid, uint32 generation,
									const EtlShape *shape, const char *layout,
									const char *destination_table, uint64 rows, uint64 bytes);

extern void etl_store_state(int64 pipeline_id, Oid relid, EtlTableState state);

/*
 * A new copy is wanted: state init, with this reason.  The generation that
 * was handed over stays in force only if "beside".
 */
extern void etl_store_init(int64 pipeline_id, Oid relid, EtlCopyReason reason, bool beside);

/* Nothing goes to the generation that was handed over; the state stays. */
extern void etl_store_disown(int64 pipeline_id, Oid relid);

/* Back to "state" after on_error = stop; its error is cleared. */
extern void etl_store_resume(int64 pipeline_id, Oid relid, EtlTableState state, int64 retry_done);

/* Hand-over: owned_generation, owned_from; the state stays. */
extern void etl_store_owned(int64 pipeline_id, Oid relid, uint32 generation, XLogRecPtr owned_from,
							uint64 shape_hash);

/* And where nothing newer is asked for: sync_done, done counters; errors cleared. */
extern void etl_store_sync_done(int64 pipeline_id, Oid relid, int64 resync, int64 retry);

/* Park a table and log it. */
extern void etl_store_park(int64 pipeline_id, Oid relid, EtlRecovery recovery, int sqlstate,
						   const char *message, const char *hint, XLogRecPtr lsn, uint64 ordinal);

/* etl.error_entry, pruned to etl.error_log_size. */
extern void etl_store_error(int64 pipeline_id, Oid relid, int sqlstate, const char *message,
							const char *hint, XLogRecPtr lsn, uint64 ordinal);

/* The pipeline cannot go on (logged too); sqlstate 0: it can again. */
extern void etl_store_failed(int64 pipeline_id, int sqlstate, const char *message, const char *hint);

/* What users have asked for, of tables (of EtlTableIntent *). */
typedef struct EtlTableIntent
{
	Oid			relid;
	int64		resync_requests;
	int64		retry_requests;
} EtlTableIntent;

extern List *etl_store_read_intents(int64 pipeline_id);

/*
 * Identity: the row of etl.pipeline_state with what "config" says about
 * system, database, timeline, epoch and slot; inserted or overwritten.
 */
extern void etl_store_identity(const EtlConfig *config);

/* Follow the publication by its OID, in a write bracket. */
extern void etl_store_publication(int64 pipeline_id);
extern void etl_store_slot_created(int64 pipeline_id, bool created);

/* Requests of etl.start_pipeline() and etl.resync_pipeline() that were acted on. */
extern void etl_store_start_done(int64 pipeline_id, int64 start_done);
extern void etl_store_resync_done(int64 pipeline_id, int64 resync_done);
extern int64 etl_store_read_resync_done(int64 pipeline_id);

/* A new slot starts: nothing of the old stream's history holds any more. */
extern void etl_store_forget_history(int64 pipeline_id);

/* Position up to which a destination inside this database has everything. */
extern void etl_store_durable(int64 pipeline_id, XLogRecPtr lsn);
extern XLogRecPtr etl_store_read_durable(int64 pipeline_id);

/*
 * How far the slot can have been confirmed when the pipeline stopped in good
 * order.  Taken, and forgotten, at the next start: while it runs, that moves.
 */
extern void etl_store_stopped(int64 pipeline_id, XLogRecPtr lsn);
extern XLogRecPtr etl_store_take_stopped(int64 pipeline_id);

/*
 * Rules: store new versions; read all (of EtlRule *, oldest first); prune what
 * no transaction behind "confirmed" can need.
 */
extern void etl_store_rules(int64 pipeline_id, List *rules);
extern List *etl_store_read_rules(int64 pipeline_id);
extern void etl_store_prune_rules(int64 pipeline_id, XLogRecPtr confirmed);

/* Shapes of one table's generation (of EtlShape *, by version), and a new one. */
extern void etl_store_shape(int64 pipeline_id, const EtlShape *shape, const char *layout);
extern List *etl_store_read_shapes(int64 pipeline_id, Oid relid, uint32 generation);

/* Counters of shared memory into the tables (every 10 s and at exit). */
extern void etl_store_statistics(const EtlPipelineShared *pipeline);

/* Values of a column that went out as others, as stored. */
typedef struct EtlColumnRow
{
	Oid			relid;
	AttrNumber	attnum;
	uint64		adjusted;
} EtlColumnRow;

extern List *etl_store_read_columns(int64 pipeline_id);	/* of EtlColumnRow * */

/* The other way, for the pipeline's own: after a restart of the server. */
extern void etl_store_read_statistics(EtlPipelineShared *pipeline);

#endif							/* ETL_STORE_H */
