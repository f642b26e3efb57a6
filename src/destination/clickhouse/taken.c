/*-------------------------------------------------------------------------
 *
 * taken.c
 *	  Names at ClickHouse that are taken: by whom, and may he give way?
 *
 *	 the table itself, an older copy		gives way
 *	 a table of the pipeline that was		gives way
 *	 dropped at the source
 *	 one that is published, or has left		is kept, its rows are somebody's
 *	 the publication alone
 *	 a stranger								gives way only if if_exists says so
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "destination/clickhouse/clickhouse.h"

static bool
replaces(const EtlOptions *options)
{
	const char *text = etl_option_text(options, "if_exists");

	return text != NULL && strcmp(text, "replace") == 0;
}

/*
 * Is what another table of the pipeline has left free to be taken?  That of a
 * table which was dropped, and perhaps made again; not that of one which has
 * left the publication alone: what there is of it is kept.  1, 0, -1: unknown.
 */
static int
is_orphan(EtlConnection *connection, const EtlTable *table, Oid relid)
{
	int			exists;

	if (connection->is_tracked == NULL || connection->is_tracked(relid))
		return 0;
	if (replaces(table->options))
		return 1;
	exists = connection->exists ? connection->exists(relid) : 1;
	return exists < 0 ? -1 : !exists;
}

/* May what is under the table's name, or its view's, be taken away? */
static bool
may_replace(EtlConnection *connection, const EtlTable *table, const ChFound *found,
			EtlResult *result)
{
	bool		marked = ch_is_mark(found->comment);
	int			orphan;

	if (found->ours && found->mark.relid == table->relid)
		return true;
	if (!marked && replaces(table->options))
		return true;

	if (found->ours)
	{
		orphan = is_orphan(connection, table, found->mark.relid);
		if (orphan > 0)
			return true;
		if (orphan < 0)
		{
			etl_result_set(result, ETL_RETRY, ERRCODE_LOCK_NOT_AVAILABLE,
						   "could not find out whose the table at the destination is");
			return false;
		}
		if (connection->is_tracked && !connection->is_tracked(found->mark.relid))
		{
			etl_result_set(result, ETL_PARK, ERRCODE_DUPLICATE_TABLE,
						   "table \"%s\" at the destination has the rows of another table, which has left the publication",
						   found->name);
			strlcpy(result->hint,
					"Choose another name with option destination_table, rename or drop it there, or set if_exists to replace.",
					sizeof(result->hint));
			return false;
		}
	}
	if (marked)
	{
		etl_result_set(result, ETL_PARK, ERRCODE_DUPLICATE_TABLE,
					   "table \"%s\" at the destination belongs to another table or pipeline",
					   found->name);
		strlcpy(result->hint, "Choose another name with option destination_table.",
				sizeof(result->hint));
		return false;
	}
	etl_result_set(result, ETL_PARK, ERRCODE_DUPLICATE_TABLE,
				   "table \"%s\" exists at the destination, and was not made by etl", found->name);
	strlcpy(result->hint,
			"Rename or drop it there, choose another name with option destination_table, or set if_exists to replace.",
			sizeof(result->hint));
	return false;
}

bool
ch_look(EtlConnection *connection, const EtlTable *table, ChNames *names, List **found,
		EtlResult *result)
{
	const char *wanted[2];
	ChFound    *other;

	if (!ch_is_sure(connection, result) ||
		!ch_names(connection->database, table->shape, table->options, names, result))
		return false;
	wanted[0] = names->base;
	wanted[1] = names->view;
	if (!ch_find(connection, table->relid, wanted, 2, found, result))
		return false;
	for (int i = 0; i < 2; i++)
	{
		other = ch_find_name(*found, wanted[i]);
		if (other && !may_replace(connection, table, other, result))
			return false;
	}
	return true;
}

bool
ch_is_left(EtlConnection *connection, const EtlTable *table, const ChFound *found)
{
	const char *prefix = ch_staging_prefix(connection, table->relid);

	if (!ch_is_internal(found))
		return false;
	if (found->ours && found->mark.relid == table->relid)
		return found->mark.generation <= table->generation;
	return strncmp(found->name, prefix, strlen(prefix)) == 0 &&
		(found->ours ? is_orphan(connection, table, found->mark.relid) > 0 :
		 !ch_is_mark(found->comment) && replaces(table->options));
}

bool
ch_clear_name(EtlConnection *connection, const EtlTable *table, List *found, const char *name,
			  EtlResult *result)
{
	ChFound    *other = ch_find_name(found, name);

	if (other == NULL)
		return true;
	if (!ch_is_left(connection, table, other) && !may_replace(connection, table, other, result))
		return false;
	return ch_drop(connection, name, ch_is_view(other), result);
}
