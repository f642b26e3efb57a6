/*-------------------------------------------------------------------------
 *
 * membership.c
 *	  Tables come and go: RULES records of the stream.
 *
 * A rule becomes a row of etl.table_state first; only when that is stored does
 * the table get its slot in shared memory, where apply and the views see it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pipeline/table_state.h"
#include "server/worker.h"
#include "writer/writer.h"

static void
store_rules(EtlWriter *writer, EtlPending *pending)
{
	int64		id = writer->config->id;
	ListCell   *lc;

	etl_store_publication(id);
	etl_store_rules(id, pending->rules);
	foreach(lc, pending->rules)
	{
		EtlRule    *rule = lfirst(lc);
		EtlTableSlot *slot = etl_shmem_find_table(writer->pipeline, rule->relid);
		bool		tracked = slot && writer->tracked[etl_shmem_table_index(slot)];

		if (!etl_rule_is_table(rule))
		{
			if (rule->dropped)
				etl_store_state(id, rule->relid, ETL_TABLE_DROPPED);
			else
				etl_store_delete_table(id, rule->relid);
			continue;
		}

		/* on_new_table = ignore: the publication's first tables are not new */
		if (!tracked && !writer->config->sync_new_tables && rule->from_lsn != 0)
			continue;
		etl_store_insert_table(id, rule, rule->excluded ? ETL_TABLE_EXCLUDED : ETL_TABLE_INIT);
	}
}

static void
release_table(EtlWriter *writer, EtlTableSlot *slot)
{
	uint32		index = etl_shmem_table_index(slot);

	(void) etl_table_state_set(writer->pipeline, slot, ETL_TABLE_DROPPED);
	if (slot->sync >= 0)
		return;					/* its sync worker finds out and ends */
	etl_shmem_free_table(slot);
	writer->tracked[index] = NULL;
	writer->last = NULL;
}

/* A table is published: make it known, or take in what changed. */
static void
admit_table(EtlWriter *writer, const EtlRule *rule)
{
	EtlTableSlot *slot = etl_shmem_find_table(writer->pipeline, rule->relid);
	bool		is_new = slot == NULL || writer->tracked[etl_shmem_table_index(slot)] == NULL;
	EtlTracked *tracked;

	if (is_new && ((!writer->config->sync_new_tables && rule->from_lsn != 0) ||
				   rule->excluded))
		return;
	if (is_new)
		slot = etl_shmem_get_table(writer->pipeline, rule->relid);
	if (slot == NULL)
	{
		writer->tables_full = true;
		return;
	}

	tracked = etl_writer_track(writer, slot, rule->schema_name, rule->table_name);
	if (is_new)
	{
		LWLockAcquire(&writer->pipeline->lock, LW_EXCLUSIVE);
		slot->state = ETL_TABLE_INIT;
		slot->reason = ETL_COPY_INITIAL;
		slot->sync = -1;
		LWLockRelease(&writer->pipeline->lock);
		tracked->stored = ETL_TABLE_INIT;
	}
	if (rule->excluded)
	{
		(void) etl_table_state_set(writer->pipeline, slot, ETL_TABLE_EXCLUDED);
		tracked->stored = ETL_TABLE_EXCLUDED;
	}
	else if (slot->state == ETL_TABLE_EXCLUDED || slot->state == ETL_TABLE_DROPPED)
	{
		(void) etl_table_state_renew(writer->pipeline, slot, ETL_COPY_INITIAL, false);
		tracked->stored = ETL_TABLE_INIT;
	}
}

static void
rules_stored(EtlWriter *writer, EtlPending *pending)
{
	ListCell   *lc;

	foreach(lc, pending->rules)
	{
		EtlRule    *rule = lfirst(lc);

		if (etl_rule_is_table(rule))
			admit_table(writer, rule);
		else
		{
			EtlTableSlot *slot = etl_shmem_find_table(writer->pipeline, rule->relid);

			if (slot)
				release_table(writer, slot);
		}
	}
	etl_writer_tables_changed(writer);
}

void
etl_writer_rules(EtlWriter *writer, EtlIntake *intake, uint64 position, List *rules)
{
	EtlPending *pending = etl_pending_new(writer, store_rules, intake, position);

	pending->stored = rules_stored;
	pending->rules = rules;
}
