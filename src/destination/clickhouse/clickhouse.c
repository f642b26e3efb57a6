/*-------------------------------------------------------------------------
 *
 * clickhouse.c
 *	  The ClickHouse destination: tables with the current rows, or with every
 *	  change.  This file has the options and the routine.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "destination/clickhouse/clickhouse.h"
#include "destination/http_options.h"

static const char *const engine_values[] = {"replacing_merge_tree", "merge_tree", NULL};
static const char *const if_exists_values[] = {"error", "replace", NULL};
static const char *const on_truncate_values[] = {"apply", "log", "ignore", NULL};
static const char *const metadata_values[] = {"committed_at", NULL};

#define S	ETL_SCOPE_SERVER
#define P	ETL_SCOPE_PIPELINE
#define T	ETL_SCOPE_TABLE
#define C	ETL_SCOPE_COLUMN
#define R	ETL_OPTION_RESTART
#define L	(ETL_OPTION_RESTART | ETL_OPTION_LAYOUT)

static const EtlOptionDef clickhouse_options[] = {
	ETL_HTTP_OPTIONS("zstd", "300000"),
	{
		"database", ETL_OPTION_TEXT, S | ETL_OPTION_REQUIRED, NULL, 0, 0, NULL,
		"Database at ClickHouse that tables are made in; it must exist."
	},
	{
		"engine", ETL_OPTION_ENUM, S | P | T | L, "replacing_merge_tree", 0, 0, engine_values,
		"What a table holds: the current rows (replacing_merge_tree) or every change (merge_tree)."
	},
	{
		"order_by", ETL_OPTION_TEXT, T | L, NULL, 0, 0, NULL,
		"Columns of ORDER BY, separated by commas; the key's if unset."
	},
	{
		"partition_by", ETL_OPTION_TEXT, T, NULL, 0, 0, NULL,
		"Expression of PARTITION BY over columns of ORDER BY."
	},
	{
		"table_settings", ETL_OPTION_TEXT, S | T, NULL, 0, 0, NULL,
		"Settings of tables, as CREATE TABLE takes them."
	},
	{
		"nullable", ETL_OPTION_BOOL, T | L, "true", 0, 0, NULL,
		"Columns that may be null are Nullable; if false, a null becomes the type's zero."
	},
	{
		"view_suffix", ETL_OPTION_TEXT, S, "_current", 0, 0, NULL,
		"End of the name of the view of the current rows; empty for no view."
	},
	{
		"metadata_columns", ETL_OPTION_LIST, P | T | L, NULL, 0, 0, NULL,
		"Further columns of ours: committed_at."
	},
	{
		"if_exists", ETL_OPTION_ENUM, P | T, "error", 0, 0, if_exists_values,
		"What is done when somebody else's table has the name: the table is parked, or it is replaced."
	},
	{
		"on_truncate", ETL_OPTION_ENUM, P | T | R, NULL, 0, 0, on_truncate_values,
		"What TRUNCATE does at the destination; unset means apply, with engine merge_tree log."
	},
	{
		"destination_column", ETL_OPTION_TEXT, C | L, NULL, 0, 0, NULL,
		"Name of the column at the destination."
	},
	{
		"destination_type", ETL_OPTION_TEXT, C | L, NULL, 0, 0, NULL,
		"Type of the column at the destination."
	},
	{NULL}
};

static bool
text_is(const char *text, const char *value)
{
	return text != NULL && strcmp(text, value) == 0;
}

static void
validate_metadata(const EtlOptions *options)
{
	ListCell   *lc;

	foreach(lc, etl_option_list(options, "metadata_columns"))
	{
		if (strcmp(lfirst(lc), metadata_values[0]) != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unrecognized column \"%s\" in option \"metadata_columns\"",
							(char *) lfirst(lc)),
					 errhint("Valid columns are: committed_at.")));
	}
}

/* What is set must say something. */
static void
refuse_empty(const EtlOptions *options, const char *name)
{
	if (text_is(etl_option_text(options, name), ""))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" must not be empty", name)));
}

static void
clickhouse_validate_options(const EtlOptions *options, uint32 scope)
{
	const char *url = etl_option_text(options, "url");
	const char *wrong = url ? etl_http_url_error(url) : NULL;
	const char *table = etl_option_text(options, "destination_table");

	if (wrong)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("URL of the destination %s", wrong)));
	validate_metadata(options);
	refuse_empty(options, "database");
	refuse_empty(options, "destination_table");
	refuse_empty(options, "destination_column");
	refuse_empty(options, "destination_type");
	if (etl_option_text(options, "password") && etl_option_text(options, "password_file"))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options \"password\" and \"password_file\" exclude each other")));
	if (table != NULL && strncmp(table, "_etl_", 5) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for option \"destination_table\""),
				 errdetail("Names that begin with \"_etl_\" are those of unfinished copies.")));
	if (scope == ETL_SCOPE_TABLE && ch_is_log(options))
	{
		if (etl_option_text(options, "order_by") || etl_option_text(options, "partition_by"))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("options \"order_by\" and \"partition_by\" are not for engine merge_tree"),
					 errdetail("An event log is ordered by position, and each INSERT goes to one part of it.")));
	}
	if (scope != ETL_SCOPE_SERVER && scope != ETL_SCOPE_MAPPING && !ch_is_log(options) &&
		text_is(etl_option_text(options, "on_truncate"), "log"))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("on_truncate log needs engine merge_tree")));
}

/*
 * The two engines want different things.  A log takes every change as it is;
 * a truncate that is not applied is a row of it, or with "ignore" no row.
 */
static uint32
clickhouse_table_abilities(const EtlOptions *options)
{
	const char *on_truncate = etl_option_text(options, "on_truncate");
	uint32		abilities = ETL_HAS_SCHEMAS | ETL_CAN_READ_BACK;

	if (ch_is_log(options))
	{
		abilities |= ETL_KEEPS_OLD_ROWS;
		if (!text_is(on_truncate, "apply"))
			abilities |= ETL_TRUNCATE_IS_ROW;
	}
	else
	{
		abilities |= ETL_NEEDS_KEY | ETL_SPLIT_KEY_CHANGE;
		if (text_is(on_truncate, "ignore"))
			abilities |= ETL_TRUNCATE_IS_ROW;
	}
	return abilities;
}

static List *
clickhouse_table_names(const EtlShape *shape, const EtlOptions *options, EtlResult *result)
{
	ChNames		names;

	if (!ch_names(etl_option_text(options, "database"), shape, options, &names, result))
		return NIL;
	return names.view ? list_make2(names.base, names.view) : list_make1(names.base);
}

static void
clickhouse_check_table(const EtlShape *shape, const EtlOptions *options, EtlResult *result)
{
	(void) ch_layout_check(shape, options, result);
}

const EtlDestinationRoutine etl_clickhouse_routine = {
	.magic = ETL_DESTINATION_MAGIC,
	.version = ETL_DESTINATION_VERSION,
	.size = sizeof(EtlDestinationRoutine),
	.kind = "clickhouse",
	.abilities = ETL_HAS_SCHEMAS | ETL_NEEDS_KEY | ETL_SPLIT_KEY_CHANGE | ETL_CAN_READ_BACK,
	.max_batch_size = -1,
	.max_batch_events = -1,
	.max_batch_delay = 1000,
	.options = clickhouse_options,
	.validate_options = clickhouse_validate_options,
	.map_column = ch_map_column,
	.codec_create = ch_codec_create,
	.encode_row = ch_encode_row,
	.extract = ch_extract,
	.splice = ch_splice,
	.open = ch_open,
	.connect = ch_connect,
	.close = ch_close,
	.send_start = ch_send_start,
	.send_poll = ch_send_poll,
	.send_result = ch_send_result,
	.send_finish = ch_send_finish,
	.begin_generation = ch_begin_generation,
	.publish_generation = ch_publish_generation,
	.abandon_generation = ch_abandon_generation,
	.read_columns = ch_read_columns,
	.truncate = ch_truncate,
	.read_back = ch_read_back,
	.drop_table = ch_drop_table,
	.table_abilities = clickhouse_table_abilities,
	.table_names = clickhouse_table_names,
	.describe_column = ch_describe_column,
	.check_table = clickhouse_check_table,
	.plan_table = ch_plan_table,
	.find_generations = ch_find_generations,
	.drop_all = ch_drop_all,
	.find_names = ch_find_names,
};

PG_FUNCTION_INFO_V1(etl_clickhouse_handler);

/* What the wrapper etl_clickhouse names as its handler. */
Datum
etl_clickhouse_handler(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(&etl_clickhouse_routine);
}
