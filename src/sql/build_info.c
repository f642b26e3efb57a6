/*-------------------------------------------------------------------------
 *
 * build_info.c
 *	  etl.build_info(): what this library is made of.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "utils/builtins.h"

#include <lz4.h>
#include <zlib.h>
#include <zstd.h>

#include "catalog/pg_type.h"
#include "executor/spi.h"

#include "compat.h"
#include "net/http.h"
#include "sql/common.h"

PG_FUNCTION_INFO_V1(etl_build_info);

static void
put(ReturnSetInfo *rsinfo, const char *component, const char *version)
{
	Datum		values[2];
	bool		nulls[2] = {false, false};

	values[0] = CStringGetTextDatum(component);
	nulls[1] = version == NULL;
	if (version != NULL)
		values[1] = CStringGetTextDatum(version);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Version of the installed SQL objects, which an update may have to catch up. */
static char *
sql_version(void)
{
	EtlSqlFrame frame;
	MemoryContext old = CurrentMemoryContext;
	char	   *version = NULL;
	bool		isnull;

	etl_sql_enter(&frame);
	if (etl_sql_run("SELECT extversion FROM pg_extension WHERE extname = 'etl'", 0, NULL, NULL, NULL) > 0)
		version = MemoryContextStrdup(old, TextDatumGetCString(etl_sql_value(&isnull)));
	etl_sql_leave(&frame);
	return version;
}

/*
 * etl.build_info()
 */
Datum
etl_build_info(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	etl_sql_rows(fcinfo, 2);
	put(rsinfo, "library", ETL_VERSION);
	put(rsinfo, "sql", sql_version());
	put(rsinfo, "postgresql", PG_VERSION);
	put(rsinfo, "libcurl", etl_http_curl_version());
	put(rsinfo, "tls", etl_http_tls_version());
	put(rsinfo, "zstd", ZSTD_versionString());
	put(rsinfo, "lz4", LZ4_versionString());
	put(rsinfo, "zlib", zlibVersion());
	return (Datum) 0;
}
