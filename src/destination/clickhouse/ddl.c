/*-------------------------------------------------------------------------
 *
 * ddl.c
 *	  Statements that find, make and unmake tables at ClickHouse.
 *
 * Everything that is made carries its mark from the statement that makes it;
 * nothing is ever there without one.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "compat.h"
#include "destination/clickhouse/clickhouse.h"

#define DEDUP_WINDOW	"non_replicated_deduplication_window"

/* ----------
 * Looking
 * ----------
 */

bool
ch_find(EtlConnection *connection, Oid relid, const char *const *names, int nnames,
		List **found, EtlResult *result)
{
	StringInfoData sql;
	ChRows		rows;

	*found = NIL;
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT name, engine, comment FROM system.tables WHERE database = ");
	ch_put_literal(&sql, connection->database);
	appendStringInfoString(&sql, " AND (startsWith(comment, ");
	ch_put_literal(&sql, ch_mark_prefix(connection, relid));
	appendStringInfoChar(&sql, ')');
	if (OidIsValid(relid))
	{
		appendStringInfoString(&sql, " OR startsWith(name, ");
		ch_put_literal(&sql, ch_staging_prefix(connection, relid));
		appendStringInfoChar(&sql, ')');
	}
	for (int i = 0; i < nnames; i++)
	{
		if (names[i] == NULL)
			continue;
		appendStringInfoString(&sql, " OR name = ");
		ch_put_literal(&sql, names[i]);
	}
	appendStringInfoString(&sql, ") ORDER BY name FORMAT RowBinary");
	if (!ch_run(connection, CH_READ, sql.data, &rows, result))
		return false;
	while (ch_rows_more(&rows))
	{
		ChFound    *table = palloc0_object(ChFound);

		table->name = ch_rows_string(&rows);
		table->engine = ch_rows_string(&rows);
		table->comment = ch_rows_string(&rows);
		table->ours = ch_mark_parse(connection, table->comment, &table->mark);
		*found = lappend(*found, table);
	}
	if (!rows.broken)
		return true;
	etl_result_set(result, ETL_RETRY, ERRCODE_FDW_ERROR, "the answer of ClickHouse is malformed");
	return false;
}

ChFound *
ch_find_name(List *found, const char *name)
{
	ListCell   *lc;

	foreach(lc, found)
	{
		ChFound    *table = lfirst(lc);

		if (name && strcmp(table->name, name) == 0)
			return table;
	}
	return NULL;
}

/* ----------
 * Making
 * ----------
 */

/* "generation" 0: without the mark of each column. */
static void
put_columns(StringInfo sql, const ChLayout *layout, uint32 generation)
{
	for (int i = 0; i < layout->nparts; i++)
	{
		const ChPart *part = &layout->parts[i];

		if (i > 0)
			appendStringInfoString(sql, ", ");
		ch_put_identifier(sql, part->name);
		appendStringInfo(sql, " %s", part->type);
		if (part->column && generation != 0)
			appendStringInfo(sql, " COMMENT 'etl:%d:%u%s'", part->column->attnum, generation,
							 part->companion ? CH_COMPANION_MARK : "");
	}
}

static void
put_engine(StringInfo sql, const ChLayout *layout, const EtlOptions *options)
{
	const char *partition = etl_option_text(options, "partition_by");

	if (layout->log)
	{
		appendStringInfoString(sql, " ENGINE = MergeTree ORDER BY (`cdc_epoch`, `cdc_lsn`, `cdc_ordinal`)");
		return;
	}
	appendStringInfoString(sql, " ENGINE = ReplacingMergeTree(`_etl_version`, `_etl_deleted`)");
	if (partition)
		appendStringInfo(sql, " PARTITION BY %s", partition);
	appendStringInfoString(sql, " ORDER BY (");
	for (int i = 0; i < layout->nsorted; i++)
	{
		if (i > 0)
			appendStringInfoString(sql, ", ");
		ch_put_identifier(sql, layout->columns[layout->sorted[i]].name);
	}
	appendStringInfoChar(sql, ')');
}

static void
put_settings(StringInfo sql, const EtlOptions *options)
{
	const char *settings = etl_option_text(options, "table_settings");

	appendStringInfoString(sql, " SETTINGS ");
	if (settings == NULL || strstr(settings, DEDUP_WINDOW) == NULL)
		appendStringInfo(sql, DEDUP_WINDOW " = 1000%s", settings ? ", " : "");
	if (settings)
		appendStringInfoString(sql, settings);
}

static void
put_table(StringInfo sql, const char *database, const char *name, const ChLayout *layout,
		  const EtlOptions *options, uint32 generation)
{
	appendStringInfoString(sql, "CREATE TABLE ");
	ch_put_name(sql, database, name);
	appendStringInfoString(sql, " (");
	put_columns(sql, layout, generation);
	appendStringInfoChar(sql, ')');
	put_engine(sql, layout, options);
	put_settings(sql, options);
}

/* The current rows without what is ours. */
static void
put_view(StringInfo sql, const char *database, const ChNames *names, const ChLayout *layout)
{
	appendStringInfoString(sql, "CREATE OR REPLACE VIEW ");
	ch_put_name(sql, database, names->view);
	appendStringInfoString(sql, " AS SELECT ");
	for (int i = 0; i < layout->nparts && layout->parts[i].column; i++)
	{
		if (i > 0)
			appendStringInfoString(sql, ", ");
		ch_put_identifier(sql, layout->parts[i].name);
	}
	if (layout->committed_at)
		appendStringInfoString(sql, ", `_etl_committed_at`");
	appendStringInfoString(sql, " FROM ");
	ch_put_name(sql, database, names->base);
	appendStringInfoString(sql, " FINAL WHERE `_etl_deleted` = 0");
}

/* An empty table for the generation under this name, which must be free. */
bool
ch_create_table(EtlConnection *connection, const EtlTable *table, const char *name,
				EtlResult *result)
{
	StringInfoData sql;

	initStringInfo(&sql);
	put_table(&sql, connection->database, name, ch_layout(table->shape, table->options),
			  table->options, table->generation);
	appendStringInfoString(&sql, " COMMENT ");
	ch_put_literal(&sql, ch_mark(connection, table->relid, table->generation, table->shape->lsn));
	return ch_run(connection, CH_CHANGE, sql.data, NULL, result);
}

bool
ch_create_view(EtlConnection *connection, const EtlTable *table, const ChNames *names,
			   EtlResult *result)
{
	StringInfoData sql;

	initStringInfo(&sql);
	put_view(&sql, connection->database, names, ch_layout(table->shape, table->options));
	appendStringInfoString(&sql, " COMMENT ");
	ch_put_literal(&sql, ch_mark(connection, table->relid, table->generation, table->shape->lsn));
	return ch_run(connection, CH_CHANGE, sql.data, NULL, result);
}

/* What would be made, under the names that it has in the end. */
List *
ch_plan_table(const EtlShape *shape, const EtlOptions *options, StringInfo ddl)
{
	const char *database = etl_option_text(options, "database");
	ChLayout   *layout = ch_layout(shape, options);
	EtlResult	result = {.status = ETL_DONE};
	ChNames		names;
	List	   *own = NIL;

	if (!ch_names(database, shape, options, &names, &result))
		return NIL;
	put_table(ddl, database, names.base, layout, options, 0);
	if (names.view)
	{
		appendStringInfoString(ddl, ";\n");
		put_view(ddl, database, &names, layout);
	}
	for (int i = 0; i < layout->nparts; i++)
	{
		EtlColumnPlan *plan;

		if (layout->parts[i].column)
			continue;			/* describe_column() tells of it */
		plan = palloc0_object(EtlColumnPlan);
		plan->name = layout->parts[i].name;
		plan->type = layout->parts[i].type;
		own = lappend(own, plan);
	}
	return own;
}

/* ----------
 * Unmaking, renaming
 * ----------
 */

/*
 * Only for what carries our mark, or was put aside under a name of ours.  A
 * large table is protected (max_table_size_to_drop) from people who did not
 * mean it; nobody reads this one.  Not asked for before it is needed: users may
 * be forbidden to set anything.
 */
bool
ch_drop(EtlConnection *connection, const char *name, bool view, EtlResult *result)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfo(&sql, "DROP %s IF EXISTS ", view ? "VIEW" : "TABLE");
	ch_put_table(&sql, connection, name);
	return ch_run(connection, CH_CHANGE, sql.data, NULL, result) ||
		(connection->code == CH_TOO_LARGE_TO_DROP && connection->has_drop_limit &&
		 ch_run_with(connection, CH_CHANGE, "max_table_size_to_drop=0", sql.data, NULL, result));
}

bool
ch_rename(EtlConnection *connection, const char *from, const char *to, EtlResult *result)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "RENAME TABLE ");
	ch_put_table(&sql, connection, from);
	appendStringInfoString(&sql, " TO ");
	ch_put_table(&sql, connection, to);
	return ch_run(connection, CH_CHANGE, sql.data, NULL, result);
}

bool
ch_exchange(EtlConnection *connection, const char *one, const char *other, EtlResult *result)
{
	StringInfoData sql;

	initStringInfo(&sql);
	appendStringInfoString(&sql, "EXCHANGE TABLES ");
	ch_put_table(&sql, connection, one);
	appendStringInfoString(&sql, " AND ");
	ch_put_table(&sql, connection, other);
	return ch_run(connection, CH_CHANGE, sql.data, NULL, result);
}
