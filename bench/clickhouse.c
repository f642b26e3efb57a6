/*-------------------------------------------------------------------------
 *
 * clickhouse.c
 *	  Enough of ClickHouse for a destination of this kind: tables without rows.
 *
 * Statements that make, rename, exchange and drop tables change a list of
 * names, engines, comments and columns; questions about system.tables and
 * system.columns are answered from it, in RowBinary.  Rows are none of our
 * business: the sink throws them away.
 *
 * Knows the statements of src/destination/clickhouse as they are written
 * there, for names without quotes and backslashes, which those of the bench
 * are.  Anything else is answered with nothing.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clickhouse.h"

#define VERSION		"25.3.1.1"
#define TABLES		256
#define COLUMNS		64
#define NAME		256

typedef struct Column
{
	char		name[NAME];
	char		type[NAME];
	char		comment[NAME];
} Column;

typedef struct Table
{
	char		name[NAME];		/* empty: this place is free */
	char		engine[NAME];
	char		comment[NAME];
	int			ncolumns;
	Column		columns[COLUMNS];
} Table;

static Table tables[TABLES];
static char out[256 * 1024];
static size_t out_len;

/* ----------
 * Reading statements
 * ----------
 */

/* Copy the text from "p" to "end"; longer ones are cut. */
static void
copy(char *to, const char *p, const char *end)
{
	size_t		len = end - p < NAME - 1 ? (size_t) (end - p) : NAME - 1;

	memcpy(to, p, len);
	to[len] = '\0';
}

/* What is quoted by "quote" at or behind "p"; returns what follows it. */
static const char *
quoted(const char *p, char quote, char *to)
{
	const char *begin = strchr(p, quote);
	const char *end = begin ? strchr(begin + 1, quote) : NULL;

	to[0] = '\0';
	if (end == NULL)
		return p + strlen(p);
	copy(to, begin + 1, end);
	return end + 1;
}

/* The table of `database`.`table` at or behind "p". */
static const char *
table_name(const char *p, char *to)
{
	return quoted(quoted(p, '`', to), '`', to);
}

/* The literal behind "label" in "sql", or "". */
static void
literal_behind(const char *sql, const char *label, char *to)
{
	const char *p = strstr(sql, label);

	to[0] = '\0';
	if (p)
		quoted(p + strlen(label), '\'', to);
}

/* The columns between the parentheses that begin behind "p". */
static void
read_columns(Table *table, const char *p)
{
	while (table->ncolumns < COLUMNS)
	{
		Column	   *column = &table->columns[table->ncolumns];
		const char *type;
		int			depth = 0;

		p = quoted(p, '`', column->name);
		type = ++p;
		for (; *p; p++)
		{
			if (depth == 0 && (*p == ',' || *p == ')' || strncmp(p, " COMMENT ", 9) == 0))
				break;
			depth += (*p == '(') - (*p == ')');
		}
		copy(column->type, type, p);
		column->comment[0] = '\0';
		if (*p == ' ')
			p = quoted(p, '\'', column->comment);
		table->ncolumns++;
		if (*p != ',')
			return;
	}
}

/* ----------
 * Tables
 * ----------
 */

/* The table of this name; with the name "" a free place. */
static Table *
find(const char *name)
{
	for (int i = 0; i < TABLES; i++)
		if (strcmp(tables[i].name, name) == 0)
			return &tables[i];
	return NULL;
}

static void
create(const char *sql, bool view)
{
	char		name[NAME];
	const char *p = table_name(sql, name);
	const char *comment = NULL;
	Table	   *table = find(name);

	if (table == NULL)
		table = find("");
	if (table == NULL)
	{
		fprintf(stderr, "sink: too many tables\n");
		exit(1);
	}
	memset(table, 0, sizeof(*table));
	strcpy(table->name, name);
	for (const char *q = p; (q = strstr(q, " COMMENT '")) != NULL; q++)
		comment = q;			/* the last is the table's */
	if (comment)
		quoted(comment, '\'', table->comment);
	if (view)
	{
		strcpy(table->engine, "View");
		return;
	}
	read_columns(table, p);
	if ((p = strstr(p, " ENGINE = ")) != NULL)
	{
		p += strlen(" ENGINE = ");
		copy(table->engine, p, p + strcspn(p, "( "));
	}
}

static void
drop(const char *sql)
{
	char		name[NAME];
	Table	   *table;

	table_name(sql, name);
	if (name[0] && (table = find(name)) != NULL)
		memset(table, 0, sizeof(*table));
}

/* RENAME TABLE one TO other, EXCHANGE TABLES one AND other. */
static void
swap(const char *sql)
{
	char		one[NAME];
	char		other[NAME];
	Table	   *first;
	Table	   *second;

	table_name(table_name(sql, one), other);
	if (one[0] == '\0' || other[0] == '\0')
		return;
	first = find(one);
	second = find(other);
	if (first)
		strcpy(first->name, other);
	if (second)
		strcpy(second->name, one);
}

/* ----------
 * Answers
 * ----------
 */

static void
put(const void *data, size_t len)
{
	if (out_len + len > sizeof(out))
	{
		fprintf(stderr, "sink: answer is too long\n");
		exit(1);
	}
	memcpy(out + out_len, data, len);
	out_len += len;
}

static void
put_string(const char *text)
{
	size_t		len = strlen(text);
	unsigned char head[2] = {(len & 0x7F) | 0x80, len >> 7};

	if (len < 0x80)
		head[0] = len;
	put(head, len < 0x80 ? 1 : 2);
	put(text, len);
}

/* Those that begin with the mark, and those with one of the names. */
static void
put_tables(const char *sql)
{
	char		mark[NAME];

	literal_behind(sql, "startsWith(comment, ", mark);
	for (int i = 0; i < TABLES; i++)
	{
		const Table *table = &tables[i];
		char		named[NAME + 16];

		if (table->name[0] == '\0')
			continue;
		snprintf(named, sizeof(named), " OR name = '%.*s'", NAME - 1, table->name);
		if (strncmp(table->comment, mark, strlen(mark)) != 0 && strstr(sql, named) == NULL)
			continue;
		put_string(table->name);
		put_string(table->engine);
		put_string(table->comment);
	}
}

static void
put_columns(const char *sql, bool comments)
{
	char		name[NAME];
	const Table *table;

	literal_behind(sql, " AND table = ", name);
	table = name[0] ? find(name) : NULL;
	for (int i = 0; table && i < table->ncolumns; i++)
	{
		put_string(table->columns[i].name);
		put_string(table->columns[i].type);
		if (comments)
			put_string(table->columns[i].comment);
	}
}

static bool
begins(const char *sql, const char *with)
{
	return strncmp(sql, with, strlen(with)) == 0;
}

/* The body of the answer to a statement, valid until the next one. */
const char *
clickhouse_answer(const char *sql, size_t *len)
{
	out_len = 0;
	if (begins(sql, "SELECT version()"))
	{
		put_string(VERSION);
		put_string("Atomic");
	}
	else if (begins(sql, "CHECK GRANT "))
		put("\1", 1);
	else if (begins(sql, "SELECT name, engine, comment FROM system.tables "))
		put_tables(sql);
	else if (begins(sql, "SELECT name, type, comment FROM system.columns "))
		put_columns(sql, true);
	else if (begins(sql, "SELECT name, type FROM system.columns "))
		put_columns(sql, false);
	else if (begins(sql, "SELECT tupleElement("))
		put("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 26);	/* an empty log */
	else if (begins(sql, "CREATE TABLE "))
		create(sql, false);
	else if (begins(sql, "CREATE OR REPLACE VIEW "))
		create(sql, true);
	else if (begins(sql, "DROP "))
		drop(sql);
	else if (begins(sql, "RENAME TABLE ") || begins(sql, "EXCHANGE TABLES "))
		swap(sql);
	*len = out_len;
	return out;
}
