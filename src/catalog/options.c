/*-------------------------------------------------------------------------
 *
 * options.c
 *	  Values of options in force: one per definition, narrowest scope wins.
 *
 * Built in a bracket or in a user's backend, read anywhere.  A value that no
 * scope sets is looked up at each read: the setting if it says something,
 * then the kind's default, then the definition's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/defrem.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "catalog/options_private.h"

EtlOptions *
etl_options_create(const EtlDestinationRoutine *routine)
{
	EtlOptions *options = palloc0(sizeof(EtlOptions));
	List	   *defs = etl_option_defs(routine, ~0U);
	ListCell   *lc;
	int			i = 0;

	options->context = CurrentMemoryContext;
	options->routine = routine;
	options->nvalues = list_length(defs);
	options->values = palloc0(sizeof(EtlOptionValue) * options->nvalues);
	foreach(lc, defs)
		options->values[i++].def = lfirst(lc);
	list_free(defs);
	return options;
}

/* Texts are shared with the original only within one context. */
EtlOptions *
etl_options_copy(const EtlOptions *options)
{
	EtlOptions *copy = palloc0(sizeof(EtlOptions));
	ListCell   *lc;

	copy->context = CurrentMemoryContext;
	copy->routine = options->routine;
	copy->nvalues = options->nvalues;
	copy->values = palloc(sizeof(EtlOptionValue) * options->nvalues);
	memcpy(copy->values, options->values, sizeof(EtlOptionValue) * options->nvalues);
	for (int i = 0; i < copy->nvalues; i++)
	{
		if (copy->values[i].text != NULL)
			copy->values[i].text = pstrdup(copy->values[i].text);
	}
	foreach(lc, options->columns)
	{
		EtlColumnValue *from = lfirst(lc);
		EtlColumnValue *to = palloc(sizeof(EtlColumnValue));

		*to = *from;
		to->column = pstrdup(from->column);
		to->value.text = pstrdup(from->value.text);
		copy->columns = lappend(copy->columns, to);
	}
	return copy;
}

static EtlOptionValue *
find_value(const EtlOptions *options, const char *name)
{
	for (int i = 0; i < options->nvalues; i++)
	{
		if (strcmp(options->values[i].def->name, name) == 0)
			return &options->values[i];
	}
	return NULL;
}

static uint32
scope_of_source(EtlOptionSource source)
{
	switch (source)
	{
		case ETL_SOURCE_SERVER:
			return ETL_SCOPE_SERVER;
		case ETL_SOURCE_MAPPING:
			return ETL_SCOPE_MAPPING;
		case ETL_SOURCE_PIPELINE:
			return ETL_SCOPE_PIPELINE;
		case ETL_SOURCE_TABLE:
			return ETL_SCOPE_TABLE;
		case ETL_SOURCE_COLUMN:
			return ETL_SCOPE_COLUMN;
		default:
			return ETL_SCOPE_SETTING;
	}
}

static EtlOptionValue *
find_settable(const EtlOptions *options, const char *name, uint32 scope)
{
	EtlOptionValue *value = find_value(options, name);

	if (value == NULL || (value->def->flags & scope) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unrecognized option \"%s\"", name),
				 errhint("Valid options here: %s.", etl_option_names(options->routine, scope))));
	return value;
}

/*
 * Take a value; objects are joined member by member, so that a server's
 * ordinary headers and a user mapping's secret ones are both sent.
 */
static void
take(EtlOptionValue *value, char *text, int64 number, EtlOptionSource source)
{
	if (value->def->type == ETL_OPTION_JSON && value->text != NULL)
	{
		Jsonb	   *joined = etl_options_merge(etl_option_json_in(value->def, value->text),
											   etl_option_json_in(value->def, text));

		text = JsonbToCString(NULL, &joined->root, VARSIZE(joined));
	}
	value->text = text;
	value->number = number;
	value->source = source;
}

void
etl_options_set_list(EtlOptions *options, List *defelems, EtlOptionSource source)
{
	MemoryContext old = MemoryContextSwitchTo(options->context);
	ListCell   *lc;

	foreach(lc, defelems)
	{
		DefElem    *option = lfirst_node(DefElem, lc);
		EtlOptionValue *value = find_settable(options, option->defname, scope_of_source(source));
		int64		number;
		char	   *text = etl_option_parse_text(value->def, defGetString(option), &number);

		take(value, text, number, source);
	}
	MemoryContextSwitchTo(old);
}

void
etl_options_set_json(EtlOptions *options, Jsonb *values, EtlOptionSource source)
{
	MemoryContext old = MemoryContextSwitchTo(options->context);
	JsonbIterator *it = JsonbIteratorInit(&values->root);
	JsonbIteratorToken token;
	JsonbValue	item;
	EtlOptionValue *value = NULL;

	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			value = find_settable(options, pnstrdup(item.val.string.val, item.val.string.len),
								  scope_of_source(source));
		else if (token == WJB_VALUE && item.type != jbvNull)
		{
			int64		number;
			char	   *text = etl_option_parse_json(value->def, &item, &number);

			take(value, text, number, source);
		}
	}
	MemoryContextSwitchTo(old);
}

/* Options of one column; "values" is an object. */
static void
set_column(EtlOptions *options, const char *column, Jsonb *values)
{
	JsonbIterator *it = JsonbIteratorInit(&values->root);
	JsonbIteratorToken token;
	JsonbValue	item;
	const EtlOptionDef *def = NULL;

	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			def = find_settable(options, pnstrdup(item.val.string.val, item.val.string.len),
								ETL_SCOPE_COLUMN)->def;
		else if (token == WJB_VALUE && item.type != jbvNull)
		{
			EtlColumnValue *value = palloc0(sizeof(EtlColumnValue));

			value->column = pstrdup(column);
			value->value.def = def;
			value->value.source = ETL_SOURCE_COLUMN;
			value->value.text = etl_option_parse_json(def, &item, &value->value.number);
			options->columns = lappend(options->columns, value);
		}
	}
}

void
etl_options_set_columns(EtlOptions *options, Jsonb *columns)
{
	MemoryContext old = MemoryContextSwitchTo(options->context);
	JsonbIterator *it = JsonbIteratorInit(&columns->root);
	JsonbIteratorToken token;
	JsonbValue	item;
	char	   *column = NULL;

	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			column = pnstrdup(item.val.string.val, item.val.string.len);
		else if (token == WJB_VALUE && item.type == jbvBinary)
			set_column(options, column, JsonbValueToJsonb(&item));
	}
	MemoryContextSwitchTo(old);
}

/* ----------
 * Reading
 * ----------
 */

/* The kind's default of the options that every kind has, or -1. */
static int
kind_default(const EtlOptions *options, const char *name)
{
	const EtlDestinationRoutine *routine = options->routine;

	if (routine == NULL)
		return -1;
	if (strcmp(name, "max_batch_size") == 0)
		return routine->max_batch_size;
	if (strcmp(name, "max_batch_events") == 0)
		return routine->max_batch_events;
	if (strcmp(name, "max_batch_delay") == 0)
		return routine->max_batch_delay;
	return -1;
}

/* Number of an unset option; false if it has none. */
static bool
unset_number(const EtlOptions *options, const EtlOptionDef *def, int64 *number, EtlOptionSource *source)
{
	*source = ETL_SOURCE_SETTING;
	if (etl_option_setting(def, number))
		return true;
	*source = ETL_SOURCE_DEFAULT;
	*number = kind_default(options, def->name);
	if (*number != -1)
		return true;
	if (def->default_value == NULL)
		return false;
	if (def->type == ETL_OPTION_BOOL)
		*number = strcmp(def->default_value, "true") == 0;
	else
		*number = strtoll(def->default_value, NULL, 10);
	return true;
}

static bool
is_number(const EtlOptionDef *def)
{
	return def->type == ETL_OPTION_INT || def->type == ETL_OPTION_SIZE || def->type == ETL_OPTION_TIME;
}

const char *
etl_option_text(const EtlOptions *options, const char *name)
{
	EtlOptionValue *value = find_value(options, name);

	if (value == NULL)
		return NULL;
	if (value->text != NULL)
		return value->text;
	if (is_number(value->def))
	{
		int64		number;
		EtlOptionSource source;

		return unset_number(options, value->def, &number, &source) ?
			psprintf("%lld", (long long) number) : NULL;
	}
	return value->def->default_value;
}

int64
etl_option_int(const EtlOptions *options, const char *name)
{
	EtlOptionValue *value = find_value(options, name);
	int64		number;
	EtlOptionSource source;

	if (value == NULL)
		elog(ERROR, "unknown option \"%s\"", name);
	if (value->text != NULL)
		return value->number;
	return unset_number(options, value->def, &number, &source) ? number : 0;
}

bool
etl_option_bool(const EtlOptions *options, const char *name)
{
	return etl_option_int(options, name) != 0;
}

List *
etl_option_list(const EtlOptions *options, const char *name)
{
	EtlOptionValue *value = find_value(options, name);
	const char *text = etl_option_text(options, name);
	List	   *result = NIL;
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	item;

	if (text == NULL)
		return NIL;
	it = JsonbIteratorInit(&etl_option_json_in(value->def, text)->root);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_ELEM && item.type == jbvString)
			result = lappend(result, pnstrdup(item.val.string.val, item.val.string.len));
	}
	return result;
}

const char *
etl_option_column(const EtlOptions *options, const char *column, const char *name)
{
	ListCell   *lc;

	foreach(lc, options->columns)
	{
		EtlColumnValue *value = lfirst(lc);

		if (strcmp(value->column, column) == 0 && strcmp(value->value.def->name, name) == 0)
			return value->value.text;
	}
	return etl_option_text(options, name);
}

EtlOptionSource
etl_option_source(const EtlOptions *options, const char *name)
{
	EtlOptionValue *value = find_value(options, name);
	EtlOptionSource source = ETL_SOURCE_DEFAULT;
	int64		number;

	if (value == NULL)
		return ETL_SOURCE_DEFAULT;
	if (value->text != NULL)
		return value->source;
	/* a setting at its default says no more than the definition does */
	if (is_number(value->def) &&
		unset_number(options, value->def, &number, &source) && source == ETL_SOURCE_SETTING &&
		value->def->default_value != NULL && number == strtoll(value->def->default_value, NULL, 10))
		source = ETL_SOURCE_DEFAULT;
	return source;
}

void
etl_options_check_files(const EtlOptions *options, Oid role)
{
	for (int i = 0; i < options->nvalues; i++)
	{
		if (options->values[i].text != NULL &&
			(options->values[i].def->flags & ETL_OPTION_FILE) != 0)
			etl_option_check_privilege(options->values[i].def, role);
	}
}

static bool
texts_equal(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool
etl_options_equal(const EtlOptions *a, const EtlOptions *b)
{
	ListCell   *lca;
	ListCell   *lcb;

	if (a->routine != b->routine || a->nvalues != b->nvalues)
		return false;
	for (int i = 0; i < a->nvalues; i++)
	{
		if (!texts_equal(a->values[i].text, b->values[i].text))
			return false;
	}
	if (list_length(a->columns) != list_length(b->columns))
		return false;
	forboth(lca, a->columns, lcb, b->columns)
	{
		EtlColumnValue *va = lfirst(lca);
		EtlColumnValue *vb = lfirst(lcb);

		if (va->value.def != vb->value.def || strcmp(va->column, vb->column) != 0 ||
			strcmp(va->value.text, vb->value.text) != 0)
			return false;
	}
	return true;
}
