/*-------------------------------------------------------------------------
 *
 * decode.c
 *	  Life of a decoding context in a worker, and reading WAL without waiting.
 *
 * Three traps of decoding outside a walsender are closed here and nowhere
 * else:
 *
 *	 - A context made outside a transaction sets PROC_IN_LOGICAL_DECODING, and
 *	   this process's own later writes get lost.  The context is made inside
 *	   a short transaction.
 *	 - read_local_xlog_page_no_wait() writes through the reader's private_data,
 *	   which is the decoding context unless replaced.
 *	 - XLogReadRecord() allocates in the current context, and each decoded
 *	   transaction leaves another current context and resource owner behind.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogutils.h"
#include "miscadmin.h"
#include "replication/decode.h"
#include "replication/slot.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "compat.h"
#include "source/decode.h"
#include "source/plugin.h"

struct EtlDecoder
{
	LogicalDecodingContext *decoding;
	ReadLocalXLogPageNoWaitPrivate page;	/* the reader's private data */
	ResourceOwner owner;
	EtlPlugin	plugin;
};

bool		etl_decode_plugin_allowed = false;

void
etl_decode_allow_plugin(void)
{
	const char *setting = GetConfigOption("output_plugin_libraries", true, false);

	if (setting == NULL)
		return;					/* a minor release without it */
	SetConfigOption("output_plugin_libraries", "etl", PGC_SUSET, PGC_S_OVERRIDE);
	ereport(LOG,
			(errmsg("setting \"output_plugin_libraries\" is \"etl\" in this process only")));
}

EtlDecoder *
etl_decoder_start(XLogRecPtr start_lsn, const EtlDecodeCallbacks *callbacks, void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	EtlDecoder *decoder = palloc0(sizeof(EtlDecoder));
	LogicalDecodingContext *decoding;

	Assert(!IsTransactionState());
	Assert(MyReplicationSlot != NULL);

	etl_decode_plugin_allowed = true;
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	decoding = CreateDecodingContext(start_lsn, NIL, false,
									 XL_ROUTINE(.page_read = read_local_xlog_page_no_wait,
												.segment_open = wal_segment_open,
												.segment_close = wal_segment_close),
									 NULL, NULL, NULL);
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	etl_decode_plugin_allowed = false;
	Assert((MyProc->statusFlags & PROC_IN_LOGICAL_DECODING) == 0);

	decoder->decoding = decoding;
	decoder->owner = ResourceOwnerCreate(NULL, "etl decoding");
	decoder->plugin.callbacks = callbacks;
	decoder->plugin.arg = arg;
	decoding->output_plugin_private = &decoder->plugin;
	decoding->reader->private_data = &decoder->page;

	XLogBeginRead(decoding->reader, MyReplicationSlot->data.restart_lsn);
	return decoder;
}

bool
etl_decoder_step(EtlDecoder *decoder)
{
	LogicalDecodingContext *decoding = decoder->decoding;
	MemoryContext context = MemoryContextSwitchTo(decoding->context);
	ResourceOwner owner = CurrentResourceOwner;
	char	   *message = NULL;
	XLogRecord *record;

	CurrentResourceOwner = decoder->owner;
	decoder->page.end_of_wal = false;
	record = XLogReadRecord(decoding->reader, &message);
	if (record)
		LogicalDecodingProcessRecord(decoding, decoding->reader);
	CurrentResourceOwner = owner;
	MemoryContextSwitchTo(context);

	if (record == NULL && !decoder->page.end_of_wal)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read WAL at %X/%X: %s",
						LSN_FORMAT_ARGS(decoding->reader->EndRecPtr),
						message ? message : "unexpected end")));
	return record != NULL;
}

XLogRecPtr
etl_decoder_position(EtlDecoder *decoder)
{
	return decoder->decoding->reader->EndRecPtr;
}

void
etl_decoder_confirm(EtlDecoder *decoder, XLogRecPtr lsn, bool save)
{
	LogicalConfirmReceivedLocation(lsn);
	if (save)
	{
		ReplicationSlotMarkDirty();
		ReplicationSlotSave();
	}
}

void
etl_decode_free_owner(ResourceOwner owner)
{
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_BEFORE_LOCKS, false, true);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_LOCKS, false, true);
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_AFTER_LOCKS, false, true);
	ResourceOwnerDelete(owner);
}

void
etl_decoder_stop(EtlDecoder *decoder)
{
	FreeDecodingContext(decoder->decoding);
	etl_decode_free_owner(decoder->owner);
	pfree(decoder);
}
