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
 * Whether a column looks different says its kind, which describes it with the
 * one options and the other: value_policy may make another type of it, and
 * where it does not, another one is in force at once.
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

/* Is there an earlier value of the same column in the list? */
static bool
is_repeated(const List *columns, int index, const char *column)
{
	for (int i = 0; i < index; i++)
		if (strcmp(((EtlColumnValue *) list_nth(columns, i))->column, column) == 0)
			return true;
	return false;
}

/* All values of one column, from place "first" of the list on. */
static void
push_column(JsonbParseState **state, const List *columns, int first, const char *column)
{
	ListCell   *lc;

	push_key(state, column);
	pushJsonbValue(state, WJB_BEGIN_OBJECT, NULL);
	for_each_from(lc, columns, first)
	{
		const EtlColumnValue *value = lfirst(lc);

		if (strcmp(value->column, column) == 0 && is_layout(value->value.def))
			push(state, value->value.def->name, value->value.text);
	}
	pushJsonbValue(state, WJB_END_OBJECT, NULL);
}

char *
etl_options_layout(const EtlOptions *options)
{
	JsonbParseState *state = NULL;
	Jsonb	   *result;
	bool		any = false;

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	push_key(&state, "table");
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < options->nvalues; i++)
	{
		const EtlOptionDef *def = options->values[i].def;
		const char *text = is_layout(def) ? etl_option_text(options, def->name) : NULL;

		any = any || is_layout(def);
		if (text != NULL)
			push(&state, def->name, text);
	}
	pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	push_key(&state, "columns");
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < list_length(options->columns); i++)
	{
		const char *column = ((EtlColumnValue *) list_nth(options->columns, i))->column;

		if (!is_repeated(options->columns, i, column))
			push_column(&state, options->columns, i, column);
	}
	pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	result = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
	return any ? JsonbToCString(NULL, &result->root, VARSIZE(result)) : NULL;
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

/* Is the value one that the layout decides? */
static bool
is_restored(const EtlOptionDef *def, bool policies)
{
	return is_layout(def) && (policies || strcmp(def->name, POLICY) != 0);
}

static void
restore_column(EtlOptions *options, const char *column, JsonbContainer *stored, bool policies)
{
	for (int i = 0; i < options->nvalues; i++)
	{
		const EtlOptionDef *def = options->values[i].def;
		char	   *text = is_restored(def, policies) ? member(stored, def->name) : NULL;
		EtlColumnValue *value;

		if (text == NULL)
			continue;
		value = palloc0(sizeof(EtlColumnValue));
		value->column = pstrdup(column);
		value->value.def = def;
		value->value.source = ETL_SOURCE_COLUMN;
		value->value.text = etl_option_parse_text(def, text, &value->value.number);
		options->columns = lappend(options->columns, value);
	}
}

/* "options" with the values of the layout, those of value_policy if wanted. */
static EtlOptions *
restore(const EtlOptions *options, Jsonb *layout, bool policies)
{
	EtlOptions *made = etl_options_copy(options);
	JsonbContainer *stored = object_member(&layout->root, "table");
	JsonbIterator *it = JsonbIteratorInit(object_member(&layout->root, "columns"));
	JsonbIteratorToken token;
	JsonbValue	item;
	char	   *column = NULL;
	ListCell   *lc;

	for (int i = 0; i < made->nvalues; i++)
	{
		EtlOptionValue *value = &made->values[i];
		char	   *text;

		if (!is_restored(value->def, policies))
			continue;
		text = member(stored, value->def->name);
		value->text = text ? etl_option_parse_text(value->def, text, &value->number) : NULL;
		value->source = text ? ETL_SOURCE_TABLE : ETL_SOURCE_DEFAULT;
	}

	foreach(lc, made->columns)
		if (is_restored(((EtlColumnValue *) lfirst(lc))->value.def, policies))
			made->columns = foreach_delete_current(made->columns, lc);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			column = pnstrdup(item.val.string.val, item.val.string.len);
		else if (token == WJB_VALUE && item.type == jbvBinary)
			restore_column(made, column, item.val.binary.data, policies);
	}
	return made;
}

/* ----------
 * Comparison
 * ----------
 */

static bool
same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool
same_plan(const EtlColumnPlan *a, const EtlColumnPlan *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return same_text(a->name, b->name) && same_text(a->type, b->type) &&
		same_plan(a->companion, b->companion);
}

static bool
same_column(const EtlShape *shape, const EtlColumn *column, const EtlOptions *a, const EtlOptions *b)
{
	EtlColumnPlan as = {0};
	EtlColumnPlan bs = {0};

	if (a->routine->describe_column == NULL)
	{
		for (int i = 0; i < a->nvalues; i++)
		{
			const EtlOptionDef *def = a->values[i].def;

			if (is_restored(def, false) &&
				!same_text(etl_option_column(a, column->name, def->name),
						   etl_option_column(b, column->name, def->name)))
				return false;
		}
		return true;
	}
	a->routine->describe_column(shape, column, a, &as);
	a->routine->describe_column(shape, column, b, &bs);
	return same_plan(&as, &bs);
}

/* Does a table look the same with both? */
static bool
looks_same(const EtlShape *shape, const EtlOptions *a, const EtlOptions *b)
{
	for (int i = 0; i < a->nvalues; i++)
	{
		const EtlOptionDef *def = a->values[i].def;

		if (is_restored(def, false) &&
			!same_text(etl_option_text(a, def->name), etl_option_text(b, def->name)))
			return false;
	}
	for (int i = 0; i < shape->ncolumns; i++)
		if (!same_column(shape, &shape->columns[i], a, b))
			return false;
	return true;
}

EtlOptions *
etl_options_with_layout(const EtlOptions *options, const char *layout, const EtlShape *shape)
{
	Jsonb	   *stored = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(layout)));
	EtlOptions *made = restore(options, stored, true);
	EtlOptions *lenient;

	if (looks_same(shape, made, options))
		return NULL;

	/* policies of now, if they make nothing else of the columns */
	lenient = restore(options, stored, false);
	return looks_same(shape, lenient, made) ? lenient : made;
}
