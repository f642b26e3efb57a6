/*-------------------------------------------------------------------------
 *
 * etl.c
 *	  The library: what happens when the server loads it.
 *
 * Everything that runs needs shared_preload_libraries.  A session that loads
 * the library without it (CREATE EXTENSION, pg_upgrade --check, a restore
 * that meets a wrapper's validator) gets the settings and the functions, in
 * silence; functions that need more say so (etl_shmem_require()).
 *
 * The output plugin's entry point is in source/plugin.c.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "compat.h"
#include "guc.h"
#include "server/hooks.h"
#include "server/launcher.h"
#include "server/shmem.h"
#include "server/wake.h"

ETL_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	etl_guc_define(process_shared_preload_libraries_in_progress);

	/* the new server of an upgrade must neither decode nor deliver */
	if (!process_shared_preload_libraries_in_progress || IsBinaryUpgrade)
		return;

	etl_shmem_install_hooks();
	etl_hooks_install();
	etl_wake_install();
	etl_launcher_register();
}
