/*-------------------------------------------------------------------------
 *
 * generations.c
 *	  Generations of tables, and the tables that the writer knows.
 *
 * Items refer to a generation of a table, not to the table: what is left of
 * a parked or replaced generation in rings and batches is skipped, while a
 * new generation of the same table is already delivered.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "server/adjusted.h"
#include "server/worker.h"
#include "writer/writer.h"

#define GENERATION_KEY(slot, generation) \
	(((uint64) (slot) << 32) | (generation))

typedef struct GenerationEntry
{
	uint64		key;
	EtlGeneration *generation;
} GenerationEntry;

void
etl_writer_init_tables(EtlWriter *writer)
{
	HASHCTL		control;

	memset(&control, 0, sizeof(control));
	control.keysize = sizeof(uint64);
	control.entrysize = sizeof(GenerationEntry);
	control.hcxt = EtlWorkerContext;
	writer->generation_hash = hash_create("etl generations", 256, &control,
										  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	writer->allocated_generations = 64;
	writer->generations = MemoryContextAlloc(EtlWorkerContext,
											 sizeof(EtlGeneration *) * 64);
	writer->tracked = MemoryContextAllocZero(EtlWorkerContext,
											 sizeof(EtlTracked *) * etl_shared->ntables);
}

/* ----------
 * Generations
 * ----------
 */

static EtlGeneration *
make_generation(EtlWriter *writer, GenerationEntry *entry, EtlTracked *tracked,
				uint32 number)
{
	EtlGeneration *generation = MemoryContextAllocZero(EtlWorkerContext,
													   sizeof(EtlGeneration));
	const EtlOptions *options = etl_config_table_options(writer->config, tracked->schema_name,
														 tracked->table_name);

	options = etl_config_generation_options(writer->config, tracked->relid, number, options);

	generation->key = entry->key;
	generation->slot = tracked->slot;
	generation->generation = number;
	generation->relid = tracked->relid;
	generation->on_error = etl_config_on_error(options);
	generation->table = MemoryContextAllocZero(EtlWorkerContext, sizeof(EtlTable));
	generation->table->relid = tracked->relid;
	generation->table->options = options;
	generation->table->generation = number;

	if (writer->ngenerations == writer->allocated_generations)
	{
		writer->allocated_generations *= 2;
		writer->generations = repalloc(writer->generations,
									   sizeof(EtlGeneration *) * writer->allocated_generations);
	}
	generation->index = writer->ngenerations;
	writer->generations[writer->ngenerations++] = generation;
	entry->generation = generation;
	return generation;
}

/*
 * The generation that a record is about, number 0 for the one that apply
 * delivers to now.  NULL when the table slot is not ours (any more).
 */
EtlGeneration *
etl_writer_generation(EtlWriter *writer, uint32 slot, uint32 number)
{
	EtlTracked *tracked;
	GenerationEntry *entry;
	uint64		key;
	bool		found;

	if (number == 0 && slot < etl_shared->ntables)
		number = etl_shared->tables[slot].owned[0].generation;
	key = GENERATION_KEY(slot, number);
	if (writer->last && writer->last->key == key)
		return writer->last;
	if (slot >= etl_shared->ntables || writer->tracked[slot] == NULL)
		return NULL;
	tracked = writer->tracked[slot];

	entry = hash_search(writer->generation_hash, &key, HASH_ENTER, &found);
	if (!found || entry->generation->relid != tracked->relid)
		make_generation(writer, entry, tracked, number);
	writer->last = entry->generation;
	return entry->generation;
}

/* Rows of this generation have another shape from here on. */
void
etl_writer_set_shape(EtlWriter *writer, EtlGeneration *generation, EtlShape *shape)
{
	EtlTable   *table = MemoryContextAlloc(EtlWorkerContext, sizeof(EtlTable));

	/* batches that are not sent yet keep the old one */
	*table = *generation->table;
	table->shape = shape;
	generation->shape = shape;
	generation->table = table;
}

/* Nothing of any generation of this table is delivered any more. */
void
etl_writer_give_up(EtlWriter *writer, uint32 slot)
{
	for (int i = 0; i < writer->ngenerations; i++)
	{
		if (writer->generations[i]->slot == slot)
			writer->generations[i]->out = true;
	}
}

/* ----------
 * Tracked tables
 * ----------
 */

EtlTracked *
etl_writer_track(EtlWriter *writer, EtlTableSlot *slot,
				 const char *schema_name, const char *table_name)
{
	uint32		index = etl_shmem_table_index(slot);
	EtlTracked *tracked = writer->tracked[index];

	if (tracked == NULL || tracked->relid != slot->relid)
	{
		tracked = MemoryContextAllocZero(EtlWorkerContext, sizeof(EtlTracked));
		tracked->relid = slot->relid;
		tracked->slot = index;
		writer->tracked[index] = tracked;
		writer->last = NULL;
	}
	tracked->schema_name = MemoryContextStrdup(EtlWorkerContext, schema_name);
	tracked->table_name = MemoryContextStrdup(EtlWorkerContext, table_name);
	return tracked;
}

/* After a restart of the server, counts of columns go on where they were. */
void
etl_writer_load_columns(EtlWriter *writer, List *rows)
{
	ListCell   *lc;

	foreach(lc, rows)
	{
		const EtlColumnRow *row = lfirst(lc);
		EtlTableSlot *slot = etl_shmem_find_table(writer->pipeline, row->relid);
		uint32		index;

		if (slot == NULL)
			continue;
		index = etl_shmem_table_index(slot);
		if (etl_adjusted_get(index, row->attnum) < row->adjusted)
			etl_adjusted_set(index, row->attnum, row->adjusted);
	}
}

/* Others must look at the table slots. */
void
etl_writer_tables_changed(EtlWriter *writer)
{
	pg_atomic_fetch_add_u64(&writer->pipeline->tables_version, 1);
	etl_shmem_wake_pipeline(writer->pipeline);
	writer->scan = true;
	writer->schedule_wanted = true;
}
