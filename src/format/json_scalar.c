/*-------------------------------------------------------------------------
 *
 * json_scalar.c
 *	  JSON of single values: numbers, strings, dates, json itself.
 *
 * Types with a fixed form are written straight from the Datum with the
 * server's own formatting routines, so that no setting reaches them.  The
 * caller has made the scratch context current: what is palloc'd here is gone
 * before the next value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <math.h>

#include "common/base64.h"
#include "common/shortest_dec.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/cash.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "format/json_codec.h"

/* Append bytes that need no escape as a JSON string. */
static void
put_quoted(StringInfo out, const char *text, int len)
{
	enlargeStringInfo(out, len + 2);
	out->data[out->len++] = '"';
	memcpy(out->data + out->len, text, len);
	out->len += len;
	out->data[out->len++] = '"';
	out->data[out->len] = '\0';
}

static void
put_float8(StringInfo out, double value)
{
	char		buf[DOUBLE_SHORTEST_DECIMAL_LEN];

	if (isnan(value))
		put_quoted(out, "NaN", 3);
	else if (isinf(value))
	{
		if (value > 0)
			put_quoted(out, "Infinity", 8);
		else
			put_quoted(out, "-Infinity", 9);
	}
	else
		appendBinaryStringInfo(out, buf, double_to_shortest_decimal_buf(value, buf));
}

static void
put_float4(StringInfo out, float value)
{
	char		buf[FLOAT_SHORTEST_DECIMAL_LEN];

	if (isnan(value) || isinf(value))
		put_float8(out, value);
	else
		appendBinaryStringInfo(out, buf, float_to_shortest_decimal_buf(value, buf));
}

static void
put_numeric(StringInfo out, Datum value, bool as_number)
{
	char	   *text = DatumGetCString(DirectFunctionCall1(numeric_out, value));
	int			len = strlen(text);

	/* NaN, Infinity and -Infinity are no JSON numbers */
	if (as_number && isdigit((unsigned char) text[len - 1]))
		appendBinaryStringInfo(out, text, len);
	else
		put_quoted(out, text, len);
}

/*
 * Money as a plain decimal: its text depends on lc_monetary and cannot be
 * told apart from another currency's.
 */
void
etl_json_money(int64 cents, int digits, char *buf)
{
	uint64		v = cents < 0 ? -(uint64) cents : (uint64) cents;
	char		rev[ETL_JSON_MONEY_LEN];
	int			n = 0;

	do
	{
		rev[n++] = '0' + v % 10;
		v /= 10;
	} while (v > 0 || n <= digits);

	if (cents < 0)
		*buf++ = '-';
	while (n > 0)
	{
		if (n == digits)
			*buf++ = '.';
		*buf++ = rev[--n];
	}
	*buf = '\0';
}

static void
put_bytea(StringInfo out, Datum value, bool as_base64)
{
	bytea	   *b = DatumGetByteaPP(value);
	int			len = VARSIZE_ANY_EXHDR(b);

	/* the lengths below must not overflow on their way to a StringInfo's limit */
	if (len > (MaxAllocSize - 16) / 2)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("bytea value of %d bytes is too large for a JSON string", len)));

	if (as_base64)
	{
		int			size = pg_b64_enc_len(len);

		enlargeStringInfo(out, size + 2);
		out->data[out->len++] = '"';
		if (len > 0)
		{
			int			n = pg_b64_encode((const void *) VARDATA_ANY(b), len, out->data + out->len, size);

			if (n < 0)
				elog(ERROR, "base64 buffer too small");
			out->len += n;
		}
		appendStringInfoChar(out, '"');
		return;
	}

	enlargeStringInfo(out, 2 * len + 5);
	memcpy(out->data + out->len, "\"\\\\x", 4);
	out->len += 4;
	out->len += hex_encode(VARDATA_ANY(b), len, out->data + out->len);
	appendStringInfoChar(out, '"');
}

static void
put_uuid(StringInfo out, const unsigned char *u)
{
	static const char hex[] = "0123456789abcdef";
	char		buf[36];
	char	   *p = buf;

	for (int i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		*p++ = hex[u[i] >> 4];
		*p++ = hex[u[i] & 0xf];
	}
	put_quoted(out, buf, sizeof(buf));
}

/*
 * As to_json() has it: XSD's form, except for timetz, which it leaves to the
 * output function ("+00", where XSD's is "+00:00").
 */
static void
put_datetime(StringInfo out, Datum value, Oid type)
{
	static const int utc = 0;
	char		buf[MAXDATELEN + 1];

	if (type == TIMETZOID)
	{
		struct pg_tm tm;
		fsec_t		fsec;
		int			tz;

		timetz2tm(DatumGetTimeTzADTP(value), &tm, &fsec, &tz);
		EncodeTimeOnly(&tm, fsec, true, tz, USE_ISO_DATES, buf);
	}
	else
		JsonEncodeDateTime(buf, value, type, type == TIMESTAMPTZOID ? &utc : NULL);
	put_quoted(out, buf, strlen(buf));
}

static void
put_interval(EtlJsonCodec *codec, Datum value, StringInfo out)
{
	Interval   *span = DatumGetIntervalP(value);
	struct pg_itm itm;
	char		buf[MAXDATELEN + 1];

#ifdef INTERVAL_NOT_FINITE
	if (INTERVAL_NOT_FINITE(span))
	{
		etl_json_string(out, OutputFunctionCall(&codec->output, value));
		return;
	}
#endif
	interval2itm(*span, &itm);
	EncodeInterval(&itm, INTSTYLE_ISO_8601, buf);
	put_quoted(out, buf, strlen(buf));
}

/* Append JSON text as it is, but for its encoding. */
static void
put_json(StringInfo out, const char *text, int len, bool one_line)
{
	int			start;

	if (GetDatabaseEncoding() != PG_UTF8)
	{
		char	   *utf8 = pg_server_to_any(text, len, PG_UTF8);

		if (utf8 != text)
		{
			text = utf8;
			len = strlen(utf8);
		}
	}
	start = out->len;
	appendBinaryStringInfo(out, text, len);

	/* json allows raw line ends between tokens only */
	if (one_line)
	{
		for (char *p = out->data + start; p < out->data + out->len; p++)
			if (*p == '\n' || *p == '\r')
				*p = ' ';
	}
}

static void
put_jsonb(StringInfo out, Datum value)
{
	Jsonb	   *jb = DatumGetJsonbP(value);

	if (GetDatabaseEncoding() == PG_UTF8)
		(void) JsonbToCString(out, &jb->root, VARSIZE(jb));
	else
	{
		char	   *text = JsonbToCString(NULL, &jb->root, VARSIZE(jb));

		put_json(out, text, strlen(text), false);
	}
}

/* One quoted token of hstore's output text, as JSON; moves *p behind it. */
static void
put_hstore_token(StringInfo out, const char **p, StringInfo token)
{
	const char *s = *p;

	if (*s++ != '"')
		elog(ERROR, "unexpected hstore text");
	resetStringInfo(token);
	while (*s != '"')
	{
		if (*s == '\\')
			s++;
		if (*s == '\0')
			elog(ERROR, "unexpected hstore text");
		appendStringInfoCharMacro(token, *s++);
	}
	*p = s + 1;
	etl_json_string_len(out, token->data, token->len);
}

/*
 * hstore as an object, from its text ("k"=>"v", "k2"=>NULL): the text is a
 * promise to dumps, its binary layout has changed once.
 */
static void
put_hstore(EtlJsonCodec *codec, Datum value, StringInfo out)
{
	const char *p = OutputFunctionCall(&codec->output, value);
	StringInfoData token;

	initStringInfo(&token);
	appendStringInfoChar(out, '{');
	while (*p != '\0')
	{
		put_hstore_token(out, &p, &token);
		if (strncmp(p, "=>", 2) != 0)
			elog(ERROR, "unexpected hstore text");
		p += 2;
		appendStringInfoChar(out, ':');
		if (strncmp(p, "NULL", 4) == 0)
		{
			appendBinaryStringInfo(out, "null", 4);
			p += 4;
		}
		else
			put_hstore_token(out, &p, &token);
		if (*p == ',')
		{
			appendStringInfoChar(out, ',');
			p++;
			while (*p == ' ')
				p++;
		}
		else if (*p != '\0')
			elog(ERROR, "unexpected hstore text");
	}
	appendStringInfoChar(out, '}');
}

/* Append a value of any form but arrays and composites. */
void
etl_json_scalar(EtlJsonCodec *codec, Datum value, StringInfo out)
{
	char		buf[ETL_JSON_MONEY_LEN];

	switch (codec->form)
	{
		case ETL_JSON_BOOL:
			if (DatumGetBool(value))
				appendBinaryStringInfo(out, "true", 4);
			else
				appendBinaryStringInfo(out, "false", 5);
			break;
		case ETL_JSON_INT2:
			appendBinaryStringInfo(out, buf, pg_itoa(DatumGetInt16(value), buf));
			break;
		case ETL_JSON_INT4:
			appendBinaryStringInfo(out, buf, pg_ltoa(DatumGetInt32(value), buf));
			break;
		case ETL_JSON_INT8:
			if (codec->options.int8_as_string)
				put_quoted(out, buf, pg_lltoa(DatumGetInt64(value), buf));
			else
				appendBinaryStringInfo(out, buf, pg_lltoa(DatumGetInt64(value), buf));
			break;
		case ETL_JSON_FLOAT4:
			put_float4(out, DatumGetFloat4(value));
			break;
		case ETL_JSON_FLOAT8:
			put_float8(out, DatumGetFloat8(value));
			break;
		case ETL_JSON_NUMERIC:
			put_numeric(out, value, codec->options.numeric_as_number);
			break;
		case ETL_JSON_MONEY:
			etl_json_money(DatumGetCash(value), codec->digits, buf);
			put_quoted(out, buf, strlen(buf));
			break;
		case ETL_JSON_TEXT:
			{
				text	   *t = DatumGetTextPP(value);

				etl_json_string_len(out, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
				break;
			}
		case ETL_JSON_BYTEA:
			put_bytea(out, value, codec->options.bytea_as_base64);
			break;
		case ETL_JSON_UUID:
			put_uuid(out, DatumGetUUIDP(value)->data);
			break;
		case ETL_JSON_DATETIME:
			put_datetime(out, value, codec->type);
			break;
		case ETL_JSON_INTERVAL:
			put_interval(codec, value, out);
			break;
		case ETL_JSON_JSON:
			{
				text	   *t = DatumGetTextPP(value);

				put_json(out, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t), codec->options.one_line);
				break;
			}
		case ETL_JSON_JSONB:
			put_jsonb(out, value);
			break;
		case ETL_JSON_HSTORE:
			put_hstore(codec, value, out);
			break;
		case ETL_JSON_OUTPUT:
			etl_json_string(out, OutputFunctionCall(&codec->output, value));
			break;
		case ETL_JSON_ARRAY:
		case ETL_JSON_RECORD:
			elog(ERROR, "not a scalar form: %d", (int) codec->form);
	}
}
