/*-------------------------------------------------------------------------
 *
 * plugin.c
 *	  The output plugin: numbers what the reorder buffer hands over.
 *
 * The numbering must not depend on anything but the WAL: every change and
 * every truncate record counts one, before any rule, whatever relation it is
 * of, rows of rewrites included.  So a replay under any rules, in any worker,
 * gives the same number to the same change.
 *
 * The plugin serves our own workers only.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "replication/logical.h"
#include "replication/origin.h"
#include "replication/output_plugin.h"

#include "compat.h"
#include "source/plugin.h"

extern PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *callbacks);

static void
startup_cb(LogicalDecodingContext *decoding, OutputPluginOptions *options, bool is_init)
{
	if (!etl_decode_plugin_allowed)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("output plugin \"etl\" works only inside the workers of extension \"etl\""),
				 errhint("Use etl.create_pipeline() to replicate tables, or another output plugin.")));

	options->output_type = OUTPUT_PLUGIN_BINARY_OUTPUT;

	/* the rows of a rewriting ALTER TABLE say that a copy is needed */
	options->receive_rewrites = true;
}

/* Call back; what is thrown ends the process here. */
#define GUARDED(plugin, call) \
	do { \
		PG_TRY(); \
		{ \
			(plugin)->callbacks->call; \
		} \
		PG_CATCH(); \
		{ \
			(plugin)->callbacks->failed((plugin)->arg); \
		} \
		PG_END_TRY(); \
	} while (0)

static void
begin_cb(LogicalDecodingContext *decoding, ReorderBufferTXN *txn)
{
	EtlPlugin  *plugin = decoding->output_plugin_private;

	plugin->ordinal = 0;
	GUARDED(plugin, begin(plugin->arg, txn));
}

static void
change_cb(LogicalDecodingContext *decoding, ReorderBufferTXN *txn,
		  Relation relation, ReorderBufferChange *change)
{
	EtlPlugin  *plugin = decoding->output_plugin_private;

	plugin->ordinal++;
	GUARDED(plugin, change(plugin->arg, txn, plugin->ordinal, relation, change));
}

static void
truncate_cb(LogicalDecodingContext *decoding, ReorderBufferTXN *txn,
			int nrelations, Relation relations[], ReorderBufferChange *change)
{
	EtlPlugin  *plugin = decoding->output_plugin_private;

	plugin->ordinal++;
	GUARDED(plugin, truncate(plugin->arg, txn, plugin->ordinal, nrelations, relations, change));
}

static void
commit_cb(LogicalDecodingContext *decoding, ReorderBufferTXN *txn, XLogRecPtr commit_lsn)
{
	EtlPlugin  *plugin = decoding->output_plugin_private;

	plugin->ordinal++;
	GUARDED(plugin, commit(plugin->arg, txn, plugin->ordinal, commit_lsn));
}

/* Our own workers' writes carry DoNotReplicateId. */
static bool
filter_by_origin_cb(LogicalDecodingContext *decoding, RepOriginId origin)
{
	return origin == DoNotReplicateId;
}

void
_PG_output_plugin_init(OutputPluginCallbacks *callbacks)
{
	callbacks->startup_cb = startup_cb;
	callbacks->begin_cb = begin_cb;
	callbacks->change_cb = change_cb;
	callbacks->truncate_cb = truncate_cb;
	callbacks->commit_cb = commit_cb;
	callbacks->filter_by_origin_cb = filter_by_origin_cb;

	/*
	 * No streaming of open transactions (large ones spill to disk instead, and
	 * nothing has to be undone) and no two-phase callbacks (a prepared
	 * transaction arrives at COMMIT PREPARED).
	 */
}
