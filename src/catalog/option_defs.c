/*-------------------------------------------------------------------------
 *
 * option_defs.c
 *	  The general options, and finding definitions by name and scope.
 *
 * Each option has exactly one row here (or in the array of a kind): scopes,
 * type, range, default and the sentence that etl.settings shows.  Options
 * whose feature is not there yet have no row, so they are refused by name.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"

#include "catalog/options.h"
#include "guc.h"
#include "server/shmem.h"

/* Ranges are those of the settings, see guc.c. */
#define MAX_QUEUE_SIZE	(4 * 1024 * 1024 - 1)
#define MAX_BATCH_SIZE	(1024 * 1024)
#define DAY_MS			(24 * 60 * 60 * 1000)

static const char *const on_error_values[] = {"park", "stop", NULL};
static const char *const on_slot_loss_values[] = {"error", "resync", NULL};
static const char *const on_new_table_values[] = {"sync", "ignore", NULL};
static const char *const on_partition_detached_values[] = {"remove", "keep", NULL};
static const char *const on_filter_change_values[] = {"resync", "ignore", NULL};
static const char *const on_column_published_values[] = {"resync", "null", NULL};
static const char *const value_policy_values[] = {"error", "null", "clamp", "text", NULL};

#define G	ETL_SCOPE_SETTING
#define S	ETL_SCOPE_SERVER
#define P	ETL_SCOPE_PIPELINE
#define T	ETL_SCOPE_TABLE
#define C	ETL_SCOPE_COLUMN

static const EtlOptionDef general_options[] = {
	{
		"queue_size", ETL_OPTION_SIZE, G | P, "0", 0, MAX_QUEUE_SIZE, NULL,
		"Shared memory between apply and writer; 0 means the larger of 16MB and twice max_batch_size."
	},
	{
		"stall_timeout", ETL_OPTION_TIME, G | P, "300000", 1000, PG_INT32_MAX, NULL,
		"A pipeline with undelivered changes and no progress for this long is not healthy."
	},
	{
		"copy_data", ETL_OPTION_BOOL, P | T, "true", 0, 0, NULL,
		"Copies the existing rows of a table; if false, only changes are delivered."
	},
	{
		"max_sync_workers", ETL_OPTION_INT, G | P, "2", 1, ETL_SYNCS_PER_PIPELINE, NULL,
		"Sync workers of a pipeline at the same time."
	},
	{
		"copy_yield_timeout", ETL_OPTION_TIME, G | P, "2000", 0, DAY_MS, NULL,
		"A copy gives way to a stronger lock that has waited for this long."
	},
	{
		"max_batch_size", ETL_OPTION_SIZE, G | S | P, "8192", 1, MAX_BATCH_SIZE, NULL,
		"Uncompressed bytes that close a batch."
	},
	{
		"max_batch_events", ETL_OPTION_INT, S | P, "0", 0, PG_INT32_MAX, NULL,
		"Events that close a batch; 0 means no limit."
	},
	{
		"max_batch_delay", ETL_OPTION_TIME, G | S | P, "0", 0, DAY_MS, NULL,
		"Age that closes a batch; 0 means as soon as no more WAL is there."
	},
	{
		"on_error", ETL_OPTION_ENUM, P | T, "park", 0, 0, on_error_values,
		"What a row that cannot be delivered does: parks its table or stops the pipeline."
	},
	{
		"retry_delay", ETL_OPTION_TIME, G | P, "1000", 1, DAY_MS, NULL,
		"First wait after a transient error; it doubles with each further one."
	},
	{
		"max_retry_delay", ETL_OPTION_TIME, G | P, "60000", 1, DAY_MS, NULL,
		"Longest wait after a transient error."
	},
	{
		"auth_retry_delay", ETL_OPTION_TIME, G | P, "60000", 1, DAY_MS, NULL,
		"Wait after the destination refused the credentials or the address."
	},
	{
		"on_slot_loss", ETL_OPTION_ENUM, P, "error", 0, 0, on_slot_loss_values,
		"What a lost replication slot does: fails the pipeline or copies all tables again."
	},
	{
		"on_new_table", ETL_OPTION_ENUM, P, "sync", 0, 0, on_new_table_values,
		"What is done with a table that enters the publication of a running pipeline."
	},
	{
		"on_partition_detached", ETL_OPTION_ENUM, P | T, "remove", 0, 0, on_partition_detached_values,
		"What is done with the rows of a partition that leaves a table published as a whole."
	},
	{
		"on_filter_change", ETL_OPTION_ENUM, P | T, "resync", 0, 0, on_filter_change_values,
		"What is done when the row filter of a published table changes."
	},
	{
		"on_column_published", ETL_OPTION_ENUM, P | T, "resync", 0, 0, on_column_published_values,
		"What older rows get in a column that is newly published: their values by a new copy, or null."
	},
	{
		"generated_columns", ETL_OPTION_BOOL, P | T | ETL_OPTION_RESTART, "true", 0, 0, NULL,
		"Replicates stored generated columns."
	},
	{
		"value_policy", ETL_OPTION_ENUM, P | T | C | ETL_OPTION_RESTART | ETL_OPTION_LAYOUT, "error",
		0, 0, value_policy_values,
		"What a value that the destination's type cannot hold becomes."
	},
	{
		"destination_table", ETL_OPTION_TEXT, T | ETL_OPTION_RESTART | ETL_OPTION_LAYOUT, NULL, 0, 0, NULL,
		"Name of the table at the destination."
	},
	{NULL}
};

/* Options that are settings too: the variable, and the value that says nothing. */
static const struct
{
	const char *name;
	int		   *variable;
	bool		by_kind;		/* -1: the kind decides */
}			settings[] =
{
	{"queue_size", &etl_queue_size, false},
	{"stall_timeout", &etl_stall_timeout, false},
	{"max_sync_workers", &etl_max_sync_workers, false},
	{"copy_yield_timeout", &etl_copy_yield_timeout, false},
	{"max_batch_size", &etl_max_batch_size, true},
	{"max_batch_delay", &etl_max_batch_delay, true},
	{"retry_delay", &etl_retry_delay, false},
	{"max_retry_delay", &etl_max_retry_delay, false},
	{"auth_retry_delay", &etl_auth_retry_delay, false},
	{"connect_timeout", &etl_connect_timeout, false},
	{"request_timeout", &etl_request_timeout, true}
};

/* Does the general option make sense for this kind at all? */
static bool
general_applies(const EtlOptionDef *def, const EtlDestinationRoutine *routine)
{
	if (strcmp(def->name, "destination_table") == 0 || strcmp(def->name, "value_policy") == 0)
		return routine != NULL && (routine->abilities & ETL_HAS_SCHEMAS) != 0;
	return true;
}

static const EtlOptionDef *
find_own(const EtlDestinationRoutine *routine, const char *name)
{
	if (routine == NULL || routine->options == NULL)
		return NULL;
	for (const EtlOptionDef *def = routine->options; def->name != NULL; def++)
	{
		if (strcmp(def->name, name) == 0)
			return def;
	}
	return NULL;
}

const EtlOptionDef *
etl_option_find(const EtlDestinationRoutine *routine, const char *name, uint32 scopes)
{
	const EtlOptionDef *own = find_own(routine, name);

	if (own != NULL)
		return (own->flags & scopes) != 0 ? own : NULL;

	for (const EtlOptionDef *def = general_options; def->name != NULL; def++)
	{
		if (strcmp(def->name, name) == 0)
			return (def->flags & scopes) != 0 && general_applies(def, routine) ? def : NULL;
	}
	return NULL;
}

List *
etl_option_defs(const EtlDestinationRoutine *routine, uint32 scopes)
{
	List	   *result = NIL;

	for (const EtlOptionDef *def = general_options; def->name != NULL; def++)
	{
		if ((def->flags & scopes) != 0 && general_applies(def, routine) &&
			find_own(routine, def->name) == NULL)
			result = lappend(result, unconstify(EtlOptionDef *, def));
	}
	if (routine != NULL && routine->options != NULL)
	{
		for (const EtlOptionDef *def = routine->options; def->name != NULL; def++)
		{
			if ((def->flags & scopes) != 0)
				result = lappend(result, unconstify(EtlOptionDef *, def));
		}
	}
	return result;
}

static int
compare_names(const ListCell *a, const ListCell *b)
{
	return strcmp(((EtlOptionDef *) lfirst(a))->name, ((EtlOptionDef *) lfirst(b))->name);
}

char *
etl_option_names(const EtlDestinationRoutine *routine, uint32 scopes)
{
	List	   *defs = etl_option_defs(routine, scopes);
	StringInfoData buf;
	ListCell   *lc;

	list_sort(defs, compare_names);
	initStringInfo(&buf);
	foreach(lc, defs)
		appendStringInfo(&buf, "%s%s", buf.len > 0 ? ", " : "",
						 ((EtlOptionDef *) lfirst(lc))->name);
	return buf.data;
}

char *
etl_option_enum_values(const EtlOptionDef *def)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (const char *const *value = def->enumvals; *value != NULL; value++)
		appendStringInfo(&buf, "%s%s", buf.len > 0 ? ", " : "", *value);
	return buf.data;
}

bool
etl_option_setting(const EtlOptionDef *def, int64 *value)
{
	if ((def->flags & ETL_SCOPE_SETTING) == 0)
		return false;
	for (int i = 0; i < lengthof(settings); i++)
	{
		if (strcmp(settings[i].name, def->name) == 0)
		{
			if (settings[i].by_kind && *settings[i].variable == -1)
				return false;
			*value = *settings[i].variable;
			return true;
		}
	}
	return false;
}

const char *
etl_option_source_name(EtlOptionSource source)
{
	switch (source)
	{
		case ETL_SOURCE_DEFAULT:
			return "default";
		case ETL_SOURCE_SETTING:
			return "setting";
		case ETL_SOURCE_SERVER:
			return "server";
		case ETL_SOURCE_MAPPING:
			return "user mapping";
		case ETL_SOURCE_PIPELINE:
			return "pipeline";
		case ETL_SOURCE_TABLE:
			return "table";
		case ETL_SOURCE_COLUMN:
			return "column";
	}
	return "default";
}

const char *
etl_option_unit(const EtlOptionDef *def)
{
	switch (def->type)
	{
		case ETL_OPTION_SIZE:
			return "kB";
		case ETL_OPTION_TIME:
			return "ms";
		default:
			return NULL;
	}
}
