/*-------------------------------------------------------------------------
 *
 * sync.h
 *	  What the files of the sync worker share.
 *
 *	 sync.c			life of the worker: claim, attempts, what is stored
 *	 sync_copy.c	one attempt: snapshot, locks, tables one by one
 *	 sync_lock.c	locks, and whether the tables are what the snapshot knows
 *	 sync_send.c	copied rows on their way to the destination
 *	 handover.c		catch-up and hand-over, once the copy is durable (and
 *					handover_start.c)
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_SYNC_H
#define ETL_SYNC_H

#include "catalog/config.h"
#include "compat.h"
#include "server/shmem.h"
#include "source/rules.h"

/* One table of the group. */
typedef struct EtlSyncTable
{
	uint32		slot;			/* table slot index */
	Oid			relid;
	const char *schema_name;	/* as the claim met them */
	const char *table_name;
	uint32		generation;		/* of this attempt */
	int64		resync;			/* request counters it was started for */
	int64		retry;
	EtlCopyReason reason;

	/* set while it is copied */
	EtlShape   *shape;
	const EtlRule *rule;
	EtlTable	table;			/* as the destination's routine sees it */
	bool		begun;			/* the generation exists at the destination */
	uint64		rows;
	uint64		bytes;

	/* out of the group; parked: with the following trouble */
	bool		left;
	bool		parked;
	int			sqlstate;
	char		message[ETL_ERROR_TEXT_LEN];
	char		hint[ETL_HINT_TEXT_LEN];
} EtlSyncTable;

/* One attempt at a group of tables; everything lives in "context". */
typedef struct EtlSyncGroup
{
	MemoryContext context;
	EtlConfig  *config;
	bool		owner_is_superuser;
	int			ntables;
	EtlSyncTable *tables;
	NameData	slot_name;		/* temporary slot */
	XLogRecPtr	snapshot_lsn;
	List	   *rules;			/* EtlRule * as the copy met them */
	List	   *locked;			/* OIDs: the tables, and partitions of theirs */

	/* while copying */
	MemoryContext network;		/* connection, sender, lanes, codecs */
	EtlConnection *connection;

	/* the pipeline cannot go on (sqlstate 0: it can) */
	int			failed_sqlstate;
	char		failed_message[ETL_ERROR_TEXT_LEN];
	char		failed_hint[ETL_HINT_TEXT_LEN];
} EtlSyncGroup;

typedef enum EtlSyncOutcome
{
	ETL_ATTEMPT_COPIED,			/* all rows of what is left are durable */
	ETL_ATTEMPT_LATER,			/* a table changed, a lock, a limit: again soon */
	ETL_ATTEMPT_DESTINATION,	/* no progress at the destination: given up */
	ETL_ATTEMPT_FAILED			/* the pipeline cannot go on */
} EtlSyncOutcome;

/* --- sync.c --- */

/* Show what this worker waits for, in its entry and its pipeline's. */
extern void etl_sync_waiting(EtlWaitingFor waiting_for);

/* Wait "ms"; ends the process when it must stop. */
extern void etl_sync_pause(long ms);
extern void etl_sync_check_stop(void);

/* A table leaves the group with this trouble (texts are copied). */
extern void etl_sync_park(EtlSyncTable *table, int sqlstate, const char *message, const char *hint);

/* State of all tables that are still in the group, in shared memory. */
extern void etl_sync_set_state(EtlSyncGroup *group, EtlTableState state);

/* Tables that have not left the group. */
extern int	etl_sync_remaining(const EtlSyncGroup *group);

/* --- sync_copy.c --- */

/*
 * One attempt, with the connection made and no transaction open.  On
 * ETL_ATTEMPT_COPIED the temporary slot is held by this process and no
 * transaction is open; else nothing of the attempt is left here.  ERRORs that
 * are no reason to try again in this process pass through.
 */
extern EtlSyncOutcome etl_sync_attempt(EtlSyncGroup *group);

/* --- sync_lock.c --- */

/*
 * Lock all tables, those that are published as a whole with all their
 * partitions.  False: not now.  Tables that are gone leave the group.
 * "touched": relations that commits invalidated while the snapshot was made.
 */
extern bool etl_sync_lock_tables(EtlSyncGroup *group, List *touched);

/* --- sync_send.c --- */

typedef struct EtlSyncSend EtlSyncSend;

extern EtlSyncSend *etl_sync_send_create(EtlSyncGroup *group);

/* Rows and events of "table" follow. */
extern void etl_sync_send_table(EtlSyncSend *send, EtlSyncTable *table);

/* Append one encoded row (number >= 1) or event (number 0). */
extern void etl_sync_send_put(EtlSyncSend *send, EtlSyncTable *table, StringInfo data, uint64 number);

/*
 * Let the sender work; waits while too much is on its way.  Returns false
 * when the attempt must end: see etl_sync_send_outcome().
 */
extern bool etl_sync_send_turn(EtlSyncSend *send);

/* Buffer for one encoded thing; its bytes may be taken over by put(). */
extern StringInfo etl_sync_send_buffer(EtlSyncSend *send);

/* Wait until everything is durable (false as above). */
extern bool etl_sync_send_finish(EtlSyncSend *send);

/*
 * Call one of the routine's functions about "table" until it is done.  False
 * when the table was parked by it or the attempt must end.
 */
typedef void (*EtlSyncCall) (EtlSyncGroup *group, EtlSyncTable *table, EtlResult *result);
extern bool etl_sync_send_call(EtlSyncSend *send, EtlSyncTable *table, EtlSyncCall call);

/*
 * From here on no snapshot and no lock is held: waiting for the destination
 * has no limit, and nobody waits for us.
 */
extern void etl_sync_send_unbounded(EtlSyncSend *send);

extern EtlSyncOutcome etl_sync_send_outcome(EtlSyncSend *send);

/* Has an ERROR come out of the sender, rather than out of the copy around it? */
extern bool etl_sync_send_is_sending(EtlSyncSend *send);

/* --- handover.c --- */

/* Decode from the group's slot until apply has taken over, then end the process. */
pg_noreturn extern void etl_sync_catch_up(EtlSyncGroup *group);

#endif							/* ETL_SYNC_H */
