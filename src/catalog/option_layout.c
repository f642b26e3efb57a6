/*-------------------------------------------------------------------------
 *
 * option_layout.c
 *	  Options that a generation of a table keeps for its life.
 *
 * Some options decide what a table looks like at the destination: its name,
 * its columns, its engine (ETL_OPTION_LAYOUT).  Their values are stored with
 * the generation that was made with them.  When they change, the generation
 * that is there goes on receiving changes as it was made, while a new one is
 * copied; so nothing is ever sent in a form that its table has not.
 *
 * value_policy is one of them only as far as "text" and "null" go, which make
 * other types of columns: any other change of it is in force at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "catalog/options_private.h"

#define POLICY	"value_policy"

static bool
is_layout(const EtlOptionDef *def)
{
	return (def->flags & ETL_OPTION_LAYOUT) != 0;
}

static bool
is_policy(const EtlOptionDef *def)
{
	return strcmp(def->name, POLICY) == 0;
}

/* Does a table look different under this policy? */
static bool
is_telling(const char *policy)
{
	return policy != NULL && (strcmp(policy, "text") == 0 || strcmp(policy, "null") == 0);
}

/* ----------
 * To a text
 * ----------
 */

static void
push_key(JsonbParseState **state, const char *name)
{
	JsonbValue	key;

	key.type = jbvString;
	key.val.string.val = unconstify(char *, name);
	key.val.string.len = strlen(name);
	pushJsonbValue(state, WJB_KEY, &key);
}

static void
push(JsonbParseState **state, const char *name, const char *text)
{
	JsonbValue	value;

	push_key(state, name);
	value.type = jbvString;
	value.val.string.val = unconstify(char *, text);
	value.val.string.len = strlen(text);
	pushJsonbValue(state, WJB_VALUE, &value);
}

/*
 * What stands for a value, or NULL if nothing need.  "normal": only what makes
 * a table look different.
 */
static const char *
to_push(const EtlOptions *options, const EtlOptionDef *def, const char *text, bool of_column,
		bool normal)
{
	if (!is_layout(def) || text == NULL)
		return NULL;
	if (!normal || !is_policy(def) || is_telling(text))
		return text;
	return of_column && is_telling(etl_option_text(options, POLICY)) ? "error" : NULL;
}

/* Is there an earlier value of the same column in the list? */
static bool
is_repeated(const List *columns, int index, const char *column)
{
	for (int i = 0; i < index; i++)
		if (strcmp(((EtlColumnValue *) list_nth(columns, i))->column, column) == 0)
			return true;
	return false;
}

static void
push_columns(JsonbParseState **state, const EtlOptions *options, bool normal)
{
	for (int i = 0; i < list_length(options->columns); i++)
	{
		const char *column = ((EtlColumnValue *) list_nth(options->columns, i))->column;
		bool		begun = false;
		ListCell   *lc;

		if (is_repeated(options->columns, i, column))
			continue;
		for_each_from(lc, options->columns, i)
		{
			const EtlColumnValue *other = lfirst(lc);
			const char *text;

			if (strcmp(other->column, column) != 0)
				continue;
			text = to_push(options, other->value.def, other->value.text, true, normal);
			if (text == NULL)
				continue;
			if (!begun)
			{
				push_key(state, column);
				pushJsonbValue(state, WJB_BEGIN_OBJECT, NULL);
				begun = true;
			}
			push(state, other->value.def->name, text);
		}
		if (begun)
			pushJsonbValue(state, WJB_END_OBJECT, NULL);
	}
}

static char *
layout_text(const EtlOptions *options, bool normal)
{
	JsonbParseState *state = NULL;
	Jsonb	   *result;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	push_key(&state, "table");
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < options->nvalues; i++)
	{
		const EtlOptionDef *def = options->values[i].def;
		const char *text = to_push(options, def, etl_option_text(options, def->name), false, normal);

		if (text != NULL)
			push(&state, def->name, text);
	}
	pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	push_key(&state, "columns");
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	push_columns(&state, options, normal);
	pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	result = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	return JsonbToCString(NULL, &result->root, VARSIZE(result));
}

char *
etl_options_layout(const EtlOptions *options)
{
	for (int i = 0; i < options->nvalues; i++)
		if (is_layout(options->values[i].def))
			return layout_text(options, false);
	return NULL;
}

/* ----------
 * And back
 * ----------
 */

/* Member "name" of an object as a text; NULL if there is none. */
static char *
member(JsonbContainer *object, const char *name)
{
	JsonbValue *value = getKeyJsonValueFromContainer(object, name, strlen(name), NULL);

	return value && value->type == jbvString ?
		pnstrdup(value->val.string.val, value->val.string.len) : NULL;
}

static JsonbContainer *
object_member(JsonbContainer *object, const char *name)
{
	JsonbValue *value = getKeyJsonValueFromContainer(object, name, strlen(name), NULL);

	if (value == NULL || value->type != jbvBinary)
		elog(ERROR, "layout of a table lacks \"%s\"", name);
	return value->val.binary.data;
}

static void
restore_table(EtlOptions *options, JsonbContainer *stored)
{
	for (int i = 0; i < options->nvalues; i++)
	{
		EtlOptionValue *value = &options->values[i];
		char	   *text;

		if (!is_layout(value->def))
			continue;
		text = member(stored, value->def->name);
		if (is_policy(value->def) && !is_telling(text) &&
			!is_telling(etl_option_text(options, POLICY)))
			continue;
		value->text = text ? etl_option_parse_text(value->def, text, &value->number) : NULL;
		value->source = text ? ETL_SOURCE_TABLE : ETL_SOURCE_DEFAULT;
	}
}

static EtlColumnValue *
find_column(const List *columns, const char *column, const EtlOptionDef *def)
{
	ListCell   *lc;

	foreach(lc, columns)
	{
		EtlColumnValue *value = lfirst(lc);

		if (value->value.def == def && strcmp(value->column, column) == 0)
			return value;
	}
	return NULL;
}

/* An option of a column as the layout has it, or as it is now. */
static void
restore_column(EtlOptions *options, const List *now, const char *column, const EtlOptionDef *def,
			   const char *text)
{
	EtlColumnValue *current = find_column(now, column, def);
	EtlColumnValue *value;

	if (is_policy(def) && !is_telling(text) && !(current && is_telling(current->value.text)))
	{
		if (current && find_column(options->columns, column, def) == NULL)
			options->columns = lappend(options->columns, current);
		return;
	}
	if (text == NULL)
		return;
	value = palloc0(sizeof(EtlColumnValue));
	value->column = pstrdup(column);
	value->value.def = def;
	value->value.source = ETL_SOURCE_COLUMN;
	value->value.text = etl_option_parse_text(def, text, &value->value.number);
	options->columns = lappend(options->columns, value);
}

static void
restore_columns(EtlOptions *options, JsonbContainer *stored)
{
	List	   *now = options->columns;
	JsonbIterator *it = JsonbIteratorInit(stored);
	JsonbIteratorToken token;
	JsonbValue	item;
	char	   *column = NULL;
	ListCell   *lc;

	options->columns = NIL;
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			column = pnstrdup(item.val.string.val, item.val.string.len);
		else if (token == WJB_VALUE && item.type == jbvBinary)
			for (int i = 0; i < options->nvalues; i++)
				if (is_layout(options->values[i].def))
					restore_column(options, now, column, options->values[i].def,
								   member(item.val.binary.data, options->values[i].def->name));
	}

	/* what the layout does not know of stays as it is, where it may */
	foreach(lc, now)
	{
		EtlColumnValue *value = lfirst(lc);

		if (!is_layout(value->value.def))
			options->columns = lappend(options->columns, value);
		else if (is_policy(value->value.def))
			restore_column(options, now, value->column, value->value.def, NULL);
	}
}

EtlOptions *
etl_options_with_layout(const EtlOptions *options, const char *layout)
{
	EtlOptions *made = etl_options_copy(options);
	Jsonb	   *stored = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(layout)));

	restore_table(made, object_member(&stored->root, "table"));
	restore_columns(made, object_member(&stored->root, "columns"));
	return strcmp(layout_text(made, true), layout_text(options, true)) == 0 ? NULL : made;
}
