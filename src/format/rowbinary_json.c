/*-------------------------------------------------------------------------
 *
 * rowbinary_json.c
 *	  Can ClickHouse's type JSON hold this value?
 *
 * The type takes an object apart into paths and typed values.  What it would
 * store as something else is outside of it: a value that is no object, a name
 * twice in an object, names with dots (they become paths), numbers that
 * neither a 64-bit integer nor a double holds.  Members that are null and
 * empty objects are not kept by the type at all; whoever chooses it, chooses
 * that.
 *
 * For an array and the arrays in it one type is looked for, first among those
 * of other rows, and where there is one, elements become it: integers become
 * doubles, booleans beside numbers or strings become these, and a null in the
 * place of an array becomes an empty one.  So the integers in an array must be
 * doubles, none of its nulls may be beside arrays or without other neighbours.
 *
 * The text is valid JSON: PostgreSQL has checked it, but for halves of
 * surrogate pairs, which no server of ClickHouse takes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "common/shortest_dec.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "compat.h"
#include "format/rowbinary_codec.h"

/* A text that is walked over. */
typedef struct Walk
{
	const char *p;
	const char *end;
	int			arrays;			/* that it is in, objects between them or not */
} Walk;

/* A name of a member, escapes resolved. */
typedef struct MemberName
{
	const char *data;
	int			len;
} MemberName;

/* What was met in an array and the arrays in it, but not in objects there. */
typedef struct Elements
{
	bool		booleans;
	bool		strings;
	bool		numbers;
	int			depth;			/* of the array that is walked over, from 1 */
	int			nlevels;
	uint8	   *levels;			/* by depth: LEVEL_... */
} Elements;

#define LEVEL_NULLS		1
#define LEVEL_ARRAYS	2

static bool holds_value(Walk *walk, Elements *in);

static void
skip_blanks(Walk *walk)
{
	while (walk->p < walk->end &&
		   (*walk->p == ' ' || *walk->p == '\t' || *walk->p == '\r' || *walk->p == '\n'))
		walk->p++;
}

/* ----------
 * Strings
 * ----------
 */

static int
hex_value(char c)
{
	return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

/* The code behind "\u" at "p", or 0 if there is none. */
static pg_wchar
escaped_code(const char *p, const char *end)
{
	pg_wchar	code = 0;

	if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
		return 0;
	for (int i = 2; i < 6; i++)
		code = code << 4 | hex_value(p[i]);
	return code;
}

/*
 * Append what the escape at walk->p stands for, or nothing to NULL, and move
 * to its last byte.  False if it is half of a pair.
 */
static bool
take_escape(Walk *walk, StringInfo out)
{
	static const char plain[] = "\"\\/bfnrt";
	static const char meant[] = "\"\\/\b\f\n\r\t";
	unsigned char utf8[MAX_MULTIBYTE_CHAR_LEN + 1];
	pg_wchar	code;

	if (walk->p[1] != 'u')
	{
		const char *found = strchr(plain, walk->p[1]);

		if (out && found)
			appendStringInfoChar(out, meant[found - plain]);
		walk->p++;
		return true;
	}
	code = escaped_code(walk->p, walk->end);
	walk->p += 5;
	if (is_utf16_surrogate_first(code))
	{
		pg_wchar	second = escaped_code(walk->p + 1, walk->end);

		if (!is_utf16_surrogate_second(second))
			return false;
		code = surrogate_pair_to_codepoint(code, second);
		walk->p += 6;
	}
	else if (is_utf16_surrogate_second(code))
		return false;
	if (out)
	{
		unicode_to_utf8(code, utf8);
		appendBinaryStringInfo(out, (char *) utf8, pg_utf_mblen(utf8));
	}
	return true;
}

/* Move behind a string. */
static bool
holds_string(Walk *walk)
{
	for (walk->p++; walk->p < walk->end && *walk->p != '"'; walk->p++)
		if (*walk->p == '\\' && !take_escape(walk, NULL))
			return false;
	walk->p++;
	return true;
}

/* Move behind a name.  False if it is no string or would be a path. */
static bool
take_name(Walk *walk, MemberName *name)
{
	const char *begin = walk->p + 1;
	StringInfoData decoded = {NULL};

	for (walk->p++; walk->p < walk->end && *walk->p != '"'; walk->p++)
	{
		if (*walk->p != '\\')
		{
			if (decoded.data)
				appendStringInfoChar(&decoded, *walk->p);
			continue;
		}
		if (decoded.data == NULL)
		{
			initStringInfo(&decoded);
			appendBinaryStringInfo(&decoded, begin, walk->p - begin);
		}
		if (!take_escape(walk, &decoded))
			return false;
	}
	name->data = decoded.data ? decoded.data : begin;
	name->len = decoded.data ? decoded.len : walk->p - begin;
	walk->p++;
	return memchr(name->data, '.', name->len) == NULL;
}

/* ----------
 * Numbers
 * ----------
 */

/*
 * The digits of a number, without its point and the zeros at both ends, and
 * the place of the point, counted from the first.  Returns how many there are.
 */
static int
take_digits(const char *text, char *digits, int64 *point)
{
	const int64 farthest = INT64CONST(1) << 40;
	bool		fraction = false;
	int			n = 0;

	*point = 0;
	if (*text == '-')
		text++;
	for (; *text != '\0' && *text != 'e' && *text != 'E'; text++)
	{
		if (*text == '.')
		{
			fraction = true;
			continue;
		}
		if (n > 0 || *text != '0')
			digits[n++] = *text;
		if (n > 0 && !fraction)
			(*point)++;
		else if (n == 0 && fraction)
			(*point)--;
	}
	while (n > 0 && digits[n - 1] == '0')
		n--;
	if (n == 0)
		*point = 0;
	else if (*text != '\0')
		*point += Max(-farthest, Min(strtoll(text + 1, NULL, 10), farthest));
	return n;
}

/*
 * Numbers of the same sign.  Not with numeric, which throws at exponents that
 * it does not hold.
 */
static bool
same_number(const char *a, const char *b)
{
	char	   *a_digits = palloc(strlen(a) + 1);
	char	   *b_digits = palloc(strlen(b) + 1);
	int64		a_point;
	int64		b_point;
	int			a_len = take_digits(a, a_digits, &a_point);
	int			b_len = take_digits(b, b_digits, &b_point);
	bool		same = a_len == b_len && a_point == b_point && memcmp(a_digits, b_digits, a_len) == 0;

	pfree(a_digits);
	pfree(b_digits);
	return same;
}

/* Is the text of a double that of the number? */
static bool
is_double(const char *text)
{
	char		shortest[DOUBLE_SHORTEST_DECIMAL_LEN];
	double		value = strtod(text, NULL);

	if (isinf(value))
		return false;
	double_to_shortest_decimal_buf(value, shortest);
	return same_number(text, shortest);
}

/* Is what a 64-bit integer or a double would make of it the same number? */
static bool
is_number(const char *text, bool in_array)
{
	if (strpbrk(text, ".eE") != NULL)
		return is_double(text);
	if (in_array && strlen(text) > 15 && !is_double(text))
		return false;
	errno = 0;
	if (*text == '-')
		(void) strtoll(text, NULL, 10);
	else
		(void) strtoull(text, NULL, 10);
	return errno == 0;
}

static bool
holds_number(Walk *walk, Elements *in)
{
	const char *begin = walk->p;
	char	   *text;
	bool		held;

	while (walk->p < walk->end && *walk->p != '\0' && strchr("+-.eE0123456789", *walk->p) != NULL)
		walk->p++;
	text = pnstrdup(begin, walk->p - begin);
	held = is_number(text, walk->arrays > 0);
	if (in)
		in->numbers = true;
	pfree(text);
	return held;
}

/* ----------
 * Arrays and objects
 * ----------
 */

/* There is a null or an array among the elements at this depth. */
static void
note_level(Elements *in, uint8 what)
{
	if (in->depth >= in->nlevels)
	{
		int			n = Max(16, 2 * in->depth);

		in->levels = in->levels ? repalloc(in->levels, n) : palloc(n);
		memset(in->levels + in->nlevels, 0, n - in->nlevels);
		in->nlevels = n;
	}
	in->levels[in->depth] |= what;
}

/* Does every element stay what it is? */
static bool
elements_stay(const Elements *in)
{
	if (in->booleans && (in->numbers || in->strings))
		return false;
	for (int i = 0; i < in->nlevels; i++)
		if (in->levels[i] == (LEVEL_NULLS | LEVEL_ARRAYS))
			return false;
	return true;
}

static bool
holds_array(Walk *walk, Elements *outer)
{
	Elements	own = {0};
	Elements   *in = outer ? outer : &own;
	bool		nulls = false;
	bool		others = false;

	if (outer)
		note_level(outer, LEVEL_ARRAYS);
	in->depth++;
	walk->arrays++;
	walk->p++;
	for (;;)
	{
		skip_blanks(walk);
		if (walk->p >= walk->end || *walk->p == ']')
			break;
		if (*walk->p == 'n')
			nulls = true;
		else
			others = true;
		if (!holds_value(walk, in))
			return false;
		skip_blanks(walk);
		if (walk->p < walk->end && *walk->p == ',')
			walk->p++;
	}
	walk->p++;
	walk->arrays--;
	in->depth--;
	if (nulls && !others)
		return false;
	return outer != NULL || elements_stay(&own);
}

static int
compare_names(const void *a, const void *b)
{
	const MemberName *left = a;
	const MemberName *right = b;

	if (left->len != right->len)
		return left->len < right->len ? -1 : 1;
	return memcmp(left->data, right->data, left->len);
}

static bool
are_distinct(MemberName *names, int n)
{
	qsort(names, n, sizeof(MemberName), compare_names);
	for (int i = 1; i < n; i++)
		if (compare_names(&names[i - 1], &names[i]) == 0)
			return false;
	return true;
}

static bool
holds_object(Walk *walk)
{
	int			room = 8;
	int			n = 0;
	MemberName *names = palloc_array(MemberName, room);
	bool		distinct;

	walk->p++;
	for (;;)
	{
		skip_blanks(walk);
		if (walk->p >= walk->end || *walk->p == '}')
			break;
		if (n == room)
		{
			room *= 2;
			names = repalloc_huge(names, sizeof(MemberName) * room);
		}
		if (!take_name(walk, &names[n++]))
			return false;
		skip_blanks(walk);
		walk->p++;				/* colon */
		if (!holds_value(walk, NULL))
			return false;
		skip_blanks(walk);
		if (walk->p < walk->end && *walk->p == ',')
			walk->p++;
	}
	walk->p++;
	distinct = are_distinct(names, n);
	pfree(names);
	return distinct;
}

/* "in": of the array whose element the value is, or NULL. */
static bool
holds_value(Walk *walk, Elements *in)
{
	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	skip_blanks(walk);
	if (walk->p >= walk->end)
		return false;
	switch (*walk->p)
	{
		case '{':
			return holds_object(walk);
		case '[':
			return holds_array(walk, in);
		case '"':
			if (in)
				in->strings = true;
			return holds_string(walk);
		case 't':
		case 'f':
			if (in)
				in->booleans = true;
			walk->p += *walk->p == 't' ? 4 : 5;
			return true;
		case 'n':
			if (in)
				note_level(in, LEVEL_NULLS);
			walk->p += 4;
			return true;
		default:
			return holds_number(walk, in);
	}
}

bool
etl_rowbinary_json_holds(const char *json, uint32 len)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "etl rowbinary JSON",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Walk		walk = {json, json + len, 0};
	bool		holds;

	skip_blanks(&walk);
	holds = walk.p < walk.end && *walk.p == '{' && holds_value(&walk, NULL);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return holds;
}
