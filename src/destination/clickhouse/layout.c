/*-------------------------------------------------------------------------
 *
 * layout.c
 *	  Columns of a table at ClickHouse, as a function of shape and options.
 *
 * Pure: no network, no catalogs; the same in every process.
 *
 * replacing_merge_tree keeps the current rows.  It is sorted by the key of
 * the source, because the server replaces rows by ORDER BY; more columns may
 * be in it only where deletes carry them too, under REPLICA IDENTITY FULL.
 *
 * merge_tree keeps one row a change.  A delete has only its key, so every
 * column is Nullable, and the place of the change is the order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "catalog/pg_class.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"
#include "format/rowbinary.h"
#include "format/rowbinary_type.h"

static const ChPart row_meta[] = {
	{"_etl_version", "UInt128"},
	{"_etl_deleted", "UInt8"},
	{"_etl_committed_at", "DateTime64(6, 'UTC')"}	/* metadata_columns */
};

static const ChPart log_meta[] = {
	{"cdc_operation", "LowCardinality(String)"},
	{"cdc_epoch", "UInt16"},
	{"cdc_lsn", "UInt64"},
	{"cdc_ordinal", "UInt64"},
	{"cdc_timestamp", "DateTime64(6, 'UTC')"},
	{"cdc_old_key", "Nullable(String)"}
};

bool
ch_is_log(const EtlOptions *options)
{
	const char *engine = etl_option_text(options, "engine");

	return engine != NULL && strcmp(engine, "merge_tree") == 0;
}

static bool
has_metadata(const EtlOptions *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, etl_option_list(options, "metadata_columns"))
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	return false;
}

/* The next name of a list like: a, "B ""c""".  NULL at its end or if malformed. */
static char *
next_name(const char **p)
{
	StringInfoData name;

	while (isspace((unsigned char) **p) || **p == ',')
		(*p)++;
	if (**p == '\0')
		return NULL;
	initStringInfo(&name);
	if (**p == '"')
	{
		for ((*p)++; **p; (*p)++)
		{
			if (**p == '"' && *++(*p) != '"')
				break;
			appendStringInfoChar(&name, **p);
		}
	}
	else
	{
		while (**p && **p != ',' && !isspace((unsigned char) **p))
			appendStringInfoChar(&name, *(*p)++);
	}
	return name.data;
}

static const EtlColumn *
column_of_name(const EtlShape *shape, const char *name)
{
	for (int i = 0; i < shape->ncolumns; i++)
		if (strcmp(shape->columns[i].name, name) == 0)
			return &shape->columns[i];
	return NULL;
}

/* Columns of ORDER BY (of EtlColumn *), what is not there left out. */
static List *
sort_columns(const EtlShape *shape, const EtlOptions *options)
{
	const char *text = etl_option_text(options, "order_by");
	List	   *columns = NIL;

	if (text)
	{
		char	   *name;

		while ((name = next_name(&text)) != NULL)
		{
			const EtlColumn *column = column_of_name(shape, name);

			if (column)
				columns = list_append_unique_ptr(columns, unconstify(EtlColumn *, column));
		}
		return columns;
	}
	for (int place = 1; place <= shape->nkeys; place++)
		for (int i = 0; i < shape->ncolumns; i++)
			if (shape->columns[i].key_position == place)
				columns = lappend(columns, &shape->columns[i]);
	return columns;
}

/* Is the column among those by which rows replace each other? */
static bool
is_sorted(const EtlShape *shape, const EtlColumn *column, const EtlOptions *options)
{
	ListCell   *lc;

	if (ch_is_log(options))
		return false;
	foreach(lc, sort_columns(shape, options))
	{
		/* "column" may be a copy of the shape's */
		if (((const EtlColumn *) lfirst(lc))->attnum == column->attnum)
			return true;
	}
	return false;
}

static const char *
name_of(const EtlColumn *column, const EtlOptions *options)
{
	const char *name = etl_option_column(options, column->name, "destination_column");

	return name ? name : column->name;
}

/*
 * What the column becomes.  A log has nulls in every column, since a deletion
 * has its key alone; but the key tells rows apart there too.  Arrays with dots
 * in their names are taken for members of one Nested, all of one size.
 */
static void
map(const EtlColumn *column, const EtlOptions *options, bool sorted, EtlTypeMapping *mapping)
{
	bool		log = ch_is_log(options);
	bool		key = sorted || column->key_position > 0;
	EtlTypeWish wish = {
		.type = etl_option_column(options, column->name, "destination_type"),
		.policy = etl_value_policy(options, column->name),
		.nulls = log || (column->nullable && !key),
		.never_null = !log && !etl_option_bool(options, "nullable"),
		.key = key,
		.sorted = sorted,
		.flat = strchr(name_of(column, options), '.') != NULL
	};

	etl_rowbinary_map(column, &wish, mapping);
}

/* Does ClickHouse sort by the type? */
static bool
is_sortable(const char *text)
{
	EtlRowBinaryType type;

	etl_rowbinary_parse(text, &type);
	return type.base != ETL_RB_JSON && !type.nullable;
}

/* False, and why, if the column cannot be what it would become. */
static bool
can_be(const EtlColumn *column, const EtlOptions *options, bool sorted,
	   const EtlTypeMapping *mapping, char *message, Size size)
{
	const char *chosen = etl_option_column(options, column->name, "destination_type");
	bool		supported = etl_rowbinary_supported(column, mapping->type);
	const char *reason = "";

	if (supported && strncmp(mapping->type, "Array(", 6) == 0 &&
		strchr(name_of(column, options), '.') != NULL)
		reason = ": ClickHouse takes arrays with a dot in their name for parts of one";
	else if (supported && sorted && !is_sortable(mapping->type))
		reason = ": ClickHouse does not sort by it";
	else if (supported)
		return true;
	snprintf(message, size, "column \"%s\" of type %s cannot be written as %s%s",
			 column->name, column->type_name, chosen ? chosen : mapping->type, reason);
	return false;
}

const char *
ch_map_column(const EtlShape *shape, const EtlColumn *column,
			  const EtlOptions *options, EtlValueError *error)
{
	bool		sorted = is_sorted(shape, column, options);
	EtlTypeMapping mapping;

	map(column, options, sorted, &mapping);
	if (can_be(column, options, sorted, &mapping, error->message, sizeof(error->message)))
		return mapping.type;
	error->attnum = column->attnum;
	error->sqlstate = ERRCODE_FEATURE_NOT_SUPPORTED;
	return NULL;
}

/* Of the column that says whether an array is null. */
#define COMPANION_TYPE	"UInt8"

static const char *
companion_name(const char *name)
{
	return psprintf("%s%s", name, ETL_ROWBINARY_IS_NULL);
}

/* Sentences for people, joined. */
static void
add_note(EtlColumnPlan *plan, const char *note)
{
	plan->note = plan->note ? psprintf("%s; %s", plan->note, note) : note;
}

void
ch_describe_column(const EtlShape *shape, const EtlColumn *column,
				   const EtlOptions *options, EtlColumnPlan *plan)
{
	EtlValuePolicy wanted = etl_value_policy(options, column->name);
	bool		sorted = is_sorted(shape, column, options);
	EtlTypeMapping mapping;
	char		message[sizeof(((EtlValueError *) NULL)->message)];

	memset(plan, 0, sizeof(*plan));
	plan->name = name_of(column, options);
	map(column, options, sorted, &mapping);
	if (!can_be(column, options, sorted, &mapping, message, sizeof(message)))
	{
		plan->note = pstrdup(message);
		return;
	}
	plan->type = mapping.type;
	if (mapping.exactness == ETL_EXACT_WITHIN)
	{
		plan->policy = etl_value_policy_name(mapping.policy);
		if (mapping.range)
			add_note(plan, psprintf("holds %s", mapping.range));
		if (mapping.policy != wanted)
			add_note(plan, psprintf("value_policy %s is not for %s", etl_value_policy_name(wanted),
									wanted == ETL_POLICY_TEXT ? "a chosen type" : "columns of the key"));
	}
	else if (mapping.exactness == ETL_EXACT_TEXT)
		add_note(plan, "as text");
	if (mapping.companion)
	{
		EtlColumnPlan *companion = palloc0_object(EtlColumnPlan);

		companion->name = companion_name(plan->name);
		companion->type = COMPANION_TYPE;
		plan->companion = companion;
		add_note(plan, psprintf("null is 1 in %s", companion->name));
	}
	if (column->nullable && column->key_position == 0 && !ch_is_log(options) &&
		!etl_option_bool(options, "nullable"))
		add_note(plan, "null becomes the type's zero");
}

/* The columns with their companions, and ours. */
static void
make_parts(ChLayout *layout)
{
	const ChPart *meta = layout->log ? log_meta : row_meta;
	int			nmeta = layout->log ? lengthof(log_meta) : layout->committed_at ? 3 : 2;

	layout->parts = palloc0_array(ChPart, 2 * layout->ncolumns + nmeta);
	for (int i = 0; i < layout->ncolumns; i++)
	{
		const ChColumn *column = &layout->columns[i];
		ChPart	   *part = &layout->parts[layout->nparts++];

		part->name = column->name;
		part->type = column->mapping.type;
		part->column = column;
		if (!column->mapping.companion)
			continue;
		part = &layout->parts[layout->nparts++];
		part->name = companion_name(column->name);
		part->type = COMPANION_TYPE;
		part->column = column;
		part->companion = true;
	}
	for (int i = 0; i < nmeta; i++)
		layout->parts[layout->nparts++] = meta[i];
}

ChLayout *
ch_layout(const EtlShape *shape, const EtlOptions *options)
{
	ChLayout   *layout = palloc0_object(ChLayout);
	List	   *sorted;
	ListCell   *lc;

	layout->log = ch_is_log(options);
	layout->committed_at = !layout->log && has_metadata(options, "committed_at");
	layout->ncolumns = shape->ncolumns;
	layout->columns = palloc0_array(ChColumn, Max(shape->ncolumns, 1));
	layout->sorted = palloc0_array(int, Max(shape->ncolumns, 1));

	sorted = layout->log ? NIL : sort_columns(shape, options);
	foreach(lc, sorted)
	{
		const EtlColumn *column = lfirst(lc);

		layout->sorted[layout->nsorted++] = column - shape->columns;
		if (column->key_position == 0)
			layout->sorted_by_more = true;
	}
	for (int i = 0; i < shape->ncolumns; i++)
	{
		const EtlColumn *source = &shape->columns[i];
		ChColumn   *column = &layout->columns[i];

		column->attnum = source->attnum;
		column->source = source;
		column->name = name_of(source, options);
		column->chosen = etl_option_column(options, source->name, "destination_type") != NULL;
		column->sorted = list_member_ptr(sorted, unconstify(EtlColumn *, source));
		map(source, options, column->sorted, &column->mapping);
	}
	make_parts(layout);
	return layout;
}

/* ----------
 * What may not be
 * ----------
 */

static bool
is_reserved(const char *name)
{
	if (strncmp(name, "_etl_", 5) == 0)
		return true;
	for (int i = 0; i < lengthof(log_meta); i++)
		if (strcmp(name, log_meta[i].name) == 0)
			return true;
	return false;
}

static bool
refuse(EtlResult *result, int sqlstate, const char *message, const char *hint)
{
	etl_result_set(result, ETL_PARK, sqlstate, "%s", message);
	strlcpy(result->hint, hint, sizeof(result->hint));
	return false;
}

static bool
check_names(const ChLayout *layout, EtlResult *result)
{
	static const char hint[] = "Choose another name with option destination_column of the column.";

	for (int i = 0; i < layout->nparts && layout->parts[i].column; i++)
	{
		const char *name = layout->parts[i].name;

		if (is_reserved(name))
			return refuse(result, ERRCODE_RESERVED_NAME,
						  psprintf("column name \"%s\" is reserved at the destination", name), hint);
		if (!ch_name_is_utf8(name))
			return refuse(result, ERRCODE_FEATURE_NOT_SUPPORTED,
						  psprintf("column name \"%s\" cannot be converted to UTF-8", name), hint);
		for (int j = 0; j < i; j++)
			if (strcmp(layout->parts[j].name, name) == 0)
				return refuse(result, ERRCODE_DUPLICATE_COLUMN,
							  psprintf("two columns would be named \"%s\" at the destination", name), hint);
	}
	return true;
}

/* ORDER BY must hold the key, and nothing that a delete does not carry. */
static bool
check_sort(const EtlShape *shape, const ChLayout *layout, const EtlOptions *options,
		   EtlResult *result)
{
	const char *text = etl_option_text(options, "order_by");
	char	   *name;

	if (layout->log || text == NULL)
		return true;
	while ((name = next_name(&text)) != NULL)
	{
		const EtlColumn *column = column_of_name(shape, name);

		if (column == NULL)
			return refuse(result, ERRCODE_UNDEFINED_COLUMN,
						  psprintf("option order_by names column \"%s\", which is not published", name),
						  "Change option order_by of the table.");
		if (column->key_position == 0 && shape->replica_identity != REPLICA_IDENTITY_FULL)
			return refuse(result, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  psprintf("option order_by names column \"%s\", which is not in the replica identity", name),
						  psprintf("Use ALTER TABLE %s.%s REPLICA IDENTITY FULL, so that deletes carry it.",
								   shape->schema_name, shape->table_name));
		if (column->nullable && column->key_position == 0)
			return refuse(result, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  psprintf("option order_by names column \"%s\", which may be null", name),
						  "Use ALTER TABLE ... ALTER COLUMN ... SET NOT NULL.");
	}
	for (int i = 0; i < layout->ncolumns; i++)
		if (layout->columns[i].source->key_position > 0 && !layout->columns[i].sorted)
			return refuse(result, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						  psprintf("option order_by lacks column \"%s\" of the key",
								   layout->columns[i].source->name),
						  "Rows that differ in it only would replace each other.");
	return true;
}

bool
ch_layout_check(const EtlShape *shape, const EtlOptions *options, EtlResult *result)
{
	ChLayout   *layout = ch_layout(shape, options);

	return check_names(layout, result) && check_sort(shape, layout, options, result);
}
