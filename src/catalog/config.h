/*-------------------------------------------------------------------------
 *
 * config.h
 *	  A pipeline's definition and options, as a worker uses them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_CONFIG_H
#define ETL_CONFIG_H

#include "etl/destination.h"

typedef enum EtlOnError
{
	ETL_ON_ERROR_PARK,
	ETL_ON_ERROR_STOP
} EtlOnError;

typedef struct EtlTableConfig EtlTableConfig;	/* see config.c */

typedef struct EtlConfig
{
	MemoryContext context;		/* holds all of it */
	int64		id;
	char	   *name;
	Oid			owner;
	char	   *publication;	/* its name now: it is followed when renamed */
	Oid			publication_oid;	/* as last followed, or invalid */
	char	   *server;
	Oid			server_oid;

	/* intent */
	bool		enabled;
	bool		dropping;
	bool		drop_tables;
	bool		force;
	int64		resync_requests;	/* resync_pipeline counter */
	int64		start_requests; /* start_pipeline counter, see start_done */

	/* identity, from etl.pipeline_state */
	bool		has_state;
	uint64		system_identifier;
	Oid			database;
	char	   *slot_name;		/* NULL until drawn */
	bool		slot_created;
	int			epoch;
	uint32		timeline;
	uint64		data_directory; /* its inode */
	int64		start_done;		/* start_requests that were acted on: a failed
								 * pipeline starts again when they differ */

	/* general options; routine and options NULL when dropping without server */
	const EtlDestinationRoutine *routine;
	EtlOptions *options;
	Size		max_batch_size; /* bytes */
	int			max_batch_events;	/* 0 = no limit */
	int			max_batch_delay;	/* ms */
	Size		queue_size;		/* bytes */
	int			max_sync_workers;
	EtlOnError	on_error;
	bool		copy_data;
	bool		sync_new_tables;	/* on_new_table = sync */
	int			retry_delay;	/* ms */
	int			max_retry_delay;
	int			auth_retry_delay;
	int			stall_timeout;
	bool		resync_on_slot_loss;

	List	   *tables;			/* of EtlTableConfig *: tables with options */
	List	   *layouts;		/* of EtlLayoutConfig *: generations that were made
								 * with other options than those of now */

	char	   *source;			/* "/etl/<system>/<database>/<pipeline>" */
} EtlConfig;

/*
 * Load a pipeline in an open bracket; NULL when there is no such pipeline.
 * "secrets": also the owner's user mapping.  ERROR when the definition cannot
 * be used (server, wrapper or owner is gone, malformed option, the owner lost
 * a right); the caller makes the pipeline FAILED with it.  A pipeline that is
 * being dropped loads also without its server or owner: routine and options
 * are NULL then.  Allocates a context under "parent".
 */
extern EtlConfig *etl_config_load(int64 pipeline_id, bool secrets, MemoryContext parent);

/*
 * A number that belongs to this copy of the cluster's files: cp, rsync and
 * tar make another one.  (A snapshot of a whole volume does not.)
 */
extern uint64 etl_config_data_directory(void);

/*
 * Is this the server, the database and the copy of the files that the
 * pipeline ran on last?  Only then is what carries its mark its own.
 */
extern bool etl_config_is_original(const EtlConfig *config);

/*
 * A server alone, as a pipeline of "role" with that destination would find it
 * (no identity, no tables, an empty name); NULL when it does not exist.
 */
extern EtlConfig *etl_config_load_destination(Oid server, Oid role, MemoryContext parent);

/*
 * Options of one table: its own (etl.table_option) over the pipeline's.  Reads
 * memory alone, so a decoding process may ask; owned by "config".
 */
extern EtlOptions *etl_config_table_options(const EtlConfig *config, const char *schema_name,
											const char *table_name);

/* Has any table, published already or not, other options of its own in "new"? */
extern bool etl_config_tables_differ(const EtlConfig *old, const EtlConfig *new);

/*
 * Options of one generation of a table: those with which it was made, as far
 * as they decide what it looks like (see catalog/option_layout.c), else "now",
 * the table's.  Reads memory alone.
 */
extern const EtlOptions *etl_config_generation_options(const EtlConfig *config, Oid relid,
													   uint32 generation, const EtlOptions *now);

/* Does the generation look otherwise than a new one would? */
extern bool etl_config_outdated(const EtlConfig *config, Oid relid, uint32 generation);

/*
 * The owner must exist and be superuser or have REPLICATION: ERROR otherwise.
 * In a bracket; at every start, and every ten seconds while changes flow.
 */
extern void etl_config_check_owner(const EtlConfig *config);

extern EtlOnError etl_config_on_error(const EtlOptions *table_options);

/*
 * Are stored generated columns of a table replicated?  The option, where any
 * scope sets it; else what the publication says of them ("published").
 */
extern bool etl_config_generated(const EtlOptions *table_options, bool published);

/* What the kind declares for a table with these options.  Pure. */
extern uint32 etl_table_abilities(const EtlDestinationRoutine *routine, const EtlOptions *table_options);

/* Routine of a wrapper through its etl_handler option; ERROR if unusable. */
extern const EtlDestinationRoutine *etl_routine_for_server(Oid server_oid);

#endif							/* ETL_CONFIG_H */
