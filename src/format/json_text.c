/*-------------------------------------------------------------------------
 *
 * json_text.c
 *	  JSON as text: strings out, and walking over what we wrote ourselves.
 *
 * Strings are written run by run: bytes that need no escape are found eight
 * at a time and copied as a whole.  The walking functions never trust their
 * input: they stay inside the length that they are given and answer "not
 * there" on anything malformed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "format/json.h"

#define ONES	UINT64CONST(0x0101010101010101)
#define HIGHS	UINT64CONST(0x8080808080808080)

/* Does one of the eight bytes need an escape (control, quote, backslash)? */
static inline bool
needs_escape(uint64 w)
{
	uint64		quote = w ^ (ONES * '"');
	uint64		slash = w ^ (ONES * '\\');

	return (((w - ONES * 0x20) & ~w) |
			((quote - ONES) & ~quote) |
			((slash - ONES) & ~slash)) & HIGHS;
}

/* Number of bytes at the beginning that go out as they are. */
static inline int
plain_run(const char *s, int len)
{
	int			i = 0;

	while (i + 8 <= len)
	{
		uint64		w;

		memcpy(&w, s + i, 8);
		if (needs_escape(w))
			break;
		i += 8;
	}
	while (i < len)
	{
		unsigned char c = s[i];

		if (c < 0x20 || c == '"' || c == '\\')
			break;
		i++;
	}
	return i;
}

static void
append_escape(StringInfo out, unsigned char c)
{
	static const char hex[] = "0123456789abcdef";
	char		buf[6] = {'\\', 0, '0', '0', 0, 0};

	switch (c)
	{
		case '\b':
			buf[1] = 'b';
			break;
		case '\f':
			buf[1] = 'f';
			break;
		case '\n':
			buf[1] = 'n';
			break;
		case '\r':
			buf[1] = 'r';
			break;
		case '\t':
			buf[1] = 't';
			break;
		case '"':
		case '\\':
			buf[1] = c;
			break;
		default:
			buf[1] = 'u';
			buf[4] = hex[c >> 4];
			buf[5] = hex[c & 0xf];
			appendBinaryStringInfo(out, buf, 6);
			return;
	}
	appendBinaryStringInfo(out, buf, 2);
}

void
etl_json_quote(StringInfo out, const char *text, int len)
{
	enlargeStringInfo(out, len + 2);
	appendStringInfoCharMacro(out, '"');
	while (len > 0)
	{
		int			run = plain_run(text, len);

		appendBinaryStringInfo(out, text, run);
		text += run;
		len -= run;
		if (len > 0)
		{
			append_escape(out, (unsigned char) *text++);
			len--;
		}
	}
	appendStringInfoChar(out, '"');
}

void
etl_json_string_len(StringInfo out, const char *text, int len)
{
	char	   *converted;

	if (GetDatabaseEncoding() == PG_UTF8)
	{
		etl_json_quote(out, text, len);
		return;
	}
	converted = pg_server_to_any(text, len, PG_UTF8);
	if (converted == text)
	{
		etl_json_quote(out, text, len);
		return;
	}
	etl_json_quote(out, converted, strlen(converted));
	pfree(converted);
}

void
etl_json_string(StringInfo out, const char *text)
{
	etl_json_string_len(out, text, strlen(text));
}

static inline bool
is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Length of the string that begins with the quote at "s"; 0 if it does not end. */
static uint32
skip_string(const char *s, uint32 len)
{
	uint32		i = 1;

	while (i < len)
	{
		const char *next;

		if (s[i] == '"')
			return i + 1;
		if (s[i] == '\\')
		{
			i += 2;
			continue;
		}
		next = memchr(s + i, '"', len - i);
		if (next == NULL)
			return 0;
		/* an escaped quote may come first */
		{
			const char *slash = memchr(s + i, '\\', next - (s + i));

			i = (slash ? slash : next) - s;
		}
	}
	return 0;
}

uint32
etl_json_skip(const char *json, uint32 len)
{
	uint32		i = 0;
	int			depth = 0;

	while (i < len && is_space(json[i]))
		i++;
	if (i >= len)
		return 0;

	do
	{
		char		c;

		if (i >= len)
			return 0;
		c = json[i];
		if (c == '"')
		{
			uint32		n = skip_string(json + i, len - i);

			if (n == 0)
				return 0;
			i += n;
		}
		else if (c == '{' || c == '[')
		{
			depth++;
			i++;
		}
		else if (c == '}' || c == ']')
		{
			if (depth-- == 0)
				return 0;
			i++;
		}
		else if (depth > 0 && (c == ',' || c == ':' || is_space(c)))
			i++;
		else
		{
			uint32		start = i;

			while (i < len && strchr(",:{}[]\" \t\r\n", json[i]) == NULL)
				i++;
			if (i == start)
				return 0;
		}
	} while (depth > 0);

	while (i < len && is_space(json[i]))
		i++;
	return i;
}

bool
etl_json_member(const char *json, uint32 len, const char *name, uint32 name_len,
				const char **value, uint32 *value_len)
{
	uint32		i = 0;

	while (i < len && is_space(json[i]))
		i++;
	if (i >= len || json[i++] != '{')
		return false;

	for (;;)
	{
		uint32		key;
		uint32		n;

		while (i < len && is_space(json[i]))
			i++;
		if (i >= len || json[i] != '"')
			return false;
		key = i;
		n = skip_string(json + i, len - i);
		if (n == 0)
			return false;
		i += n;
		while (i < len && is_space(json[i]))
			i++;
		if (i >= len || json[i++] != ':')
			return false;
		if (n == name_len && memcmp(json + key, name, n) == 0)
		{
			n = etl_json_skip(json + i, len - i);
			if (n == 0)
				return false;
			*value = json + i;
			*value_len = n;
			return true;
		}
		n = etl_json_skip(json + i, len - i);
		if (n == 0)
			return false;
		i += n;
		if (i >= len || json[i++] != ',')
			return false;
	}
}
