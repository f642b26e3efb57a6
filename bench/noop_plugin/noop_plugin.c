/*-------------------------------------------------------------------------
 *
 * noop_plugin.c
 *	  An output plugin that looks at every change and writes nothing.
 *
 * What a reader of the same WAL needs beyond the time of this plugin is its
 * own doing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "replication/logical.h"
#include "replication/output_plugin.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *cb);

static void
noop_startup(LogicalDecodingContext *ctx, OutputPluginOptions *opt, bool is_init)
{
	opt->output_type = OUTPUT_PLUGIN_BINARY_OUTPUT;
}

static void
noop_begin(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
}

static void
noop_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			Relation relation, ReorderBufferChange *change)
{
}

static void
noop_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr commit_lsn)
{
}

void
_PG_output_plugin_init(OutputPluginCallbacks *cb)
{
	cb->startup_cb = noop_startup;
	cb->begin_cb = noop_begin;
	cb->change_cb = noop_change;
	cb->commit_cb = noop_commit;
}
