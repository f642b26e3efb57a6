/*-------------------------------------------------------------------------
 *
 * rowbinary_json.c
 *	  Can ClickHouse's type JSON hold this value?
 *
 * The type takes an object apart into paths and typed values.  What it would
 * store as something else is outside of it: a value that is no object, a name
 * twice in an object, names with dots (they become paths), numbers that
 * neither a 64-bit integer nor a double holds, booleans beside numbers in an
 * array.  Members that are null and empty objects are not kept by the type at
 * all; whoever chooses it, chooses that.
 *
 * The text is valid JSON: PostgreSQL has checked it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "common/shortest_dec.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"
#include "format/rowbinary_codec.h"

static bool holds_value(const char **p, const char *end, char *kind);

static void
skip_blanks(const char **p, const char *end)
{
	while (*p < end && strchr(" \t\r\n", **p) != NULL && **p != '\0')
		(*p)++;
}

/* Move behind a string; "*dotted" is set if there is a dot in it. */
static void
skip_string(const char **p, const char *end, bool *dotted)
{
	for ((*p)++; *p < end && **p != '"'; (*p)++)
	{
		if (**p == '\\')
			(*p)++;
		else if (**p == '.')
			*dotted = true;
	}
	(*p)++;
}

static Datum
to_numeric(const char *text)
{
	return DirectFunctionCall3(numeric_in, CStringGetDatum(text),
							   ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
}

/* Is what a 64-bit integer or a double would make of it the same number? */
static bool
holds_number(const char *text)
{
	char		shortest[DOUBLE_SHORTEST_DECIMAL_LEN];
	double		value;

	errno = 0;
	if (strpbrk(text, ".eE") == NULL)
	{
		if (*text == '-')
			(void) strtoll(text, NULL, 10);
		else
			(void) strtoull(text, NULL, 10);
		return errno == 0;
	}
	value = strtod(text, NULL);
	if (isinf(value))
		return false;
	double_to_shortest_decimal_buf(value, shortest);
	return DatumGetBool(DirectFunctionCall2(numeric_eq, to_numeric(text), to_numeric(shortest)));
}

static bool
holds_array(const char **p, const char *end)
{
	bool		booleans = false;
	bool		numbers = false;
	char		kind;

	(*p)++;
	for (;;)
	{
		skip_blanks(p, end);
		if (*p >= end || **p == ']')
			break;
		if (!holds_value(p, end, &kind))
			return false;
		booleans |= kind == 'b';
		numbers |= kind == 'n';
		skip_blanks(p, end);
		if (*p < end && **p == ',')
			(*p)++;
	}
	(*p)++;
	return !(booleans && numbers);
}

static bool
is_member(const List *names, const char *name)
{
	ListCell   *lc;

	foreach(lc, names)
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	return false;
}

static bool
holds_object(const char **p, const char *end)
{
	List	   *names = NIL;
	char		kind;

	(*p)++;
	for (;;)
	{
		const char *begin;
		char	   *name;
		bool		dotted = false;

		skip_blanks(p, end);
		if (*p >= end || **p == '}')
			break;
		begin = *p;
		skip_string(p, end, &dotted);
		name = pnstrdup(begin, *p - begin);
		if (dotted || is_member(names, name))
			return false;
		names = lappend(names, name);
		skip_blanks(p, end);
		(*p)++;					/* colon */
		if (!holds_value(p, end, &kind))
			return false;
		skip_blanks(p, end);
		if (*p < end && **p == ',')
			(*p)++;
	}
	(*p)++;
	return true;
}

/* "*kind": o, a, s, b(oolean), n(umber), 0 for null. */
static bool
holds_value(const char **p, const char *end, char *kind)
{
	const char *begin;
	bool		dotted;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	skip_blanks(p, end);
	*kind = '0';
	if (*p >= end)
		return false;
	switch (**p)
	{
		case '{':
			*kind = 'o';
			return holds_object(p, end);
		case '[':
			*kind = 'a';
			return holds_array(p, end);
		case '"':
			*kind = 's';
			skip_string(p, end, &dotted);
			return true;
		case 't':
		case 'f':
			*kind = 'b';
			*p += **p == 't' ? 4 : 5;
			return true;
		case 'n':
			*p += 4;
			return true;
		default:
			*kind = 'n';
			begin = *p;
			while (*p < end && strchr("+-.eE0123456789", **p) != NULL && **p != '\0')
				(*p)++;
			return holds_number(pnstrdup(begin, *p - begin));
	}
}

bool
etl_rowbinary_json_holds(const char *json, uint32 len)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "etl rowbinary JSON",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	const char *p = json;
	char		kind = '0';
	bool		holds = holds_value(&p, json + len, &kind) && kind == 'o';

	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return holds;
}
