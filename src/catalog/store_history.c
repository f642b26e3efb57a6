/*-------------------------------------------------------------------------
 *
 * store_history.c
 *	  Versions of rules and shapes in etl.rule_history, etl.schema_history.
 *
 * Both are keyed by what makes a version, so storing what a replay brings
 * again changes nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/store.h"
#include "catalog/store_private.h"
#include "schema/shape.h"

void
etl_store_rules(int64 pipeline_id, List *rules)
{
	ListCell   *lc;

	foreach(lc, rules)
	{
		EtlRule    *rule = lfirst(lc);
		Params		params = {0};
		StringInfoData flat;

		initStringInfo(&flat);
		etl_rules_serialize(list_make1(rule), &flat);
		param_int8(&params, pipeline_id);
		param_oid(&params, rule->relid);
		/* "from ever" is a position here, not NULL */
		param(&params, PG_LSNOID, LSNGetDatum(rule->from_lsn), false);
		param_bytes(&params, flat.data, flat.len);
		run("INSERT INTO etl.rule_history (pipeline_id, relid, from_lsn, rule)"
			" VALUES ($1, $2, $3, $4)"
			" ON CONFLICT (pipeline_id, relid, from_lsn) DO UPDATE SET rule = EXCLUDED.rule",
			&params);
		pfree(flat.data);
	}
}

List *
etl_store_read_rules(int64 pipeline_id)
{
	Params		params = {0};
	List	   *rules = NIL;
	uint64		n;
	SPITupleTable *table;

	param_int8(&params, pipeline_id);
	n = run("SELECT rule FROM etl.rule_history WHERE pipeline_id = $1"
			" ORDER BY from_lsn, relid", &params);
	table = SPI_tuptable;
	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;
		bytea	   *flat = DatumGetByteaPP(SPI_getbinval(table->vals[i], table->tupdesc,
														 1, &isnull));

		rules = list_concat(rules, etl_rules_deserialize(VARDATA_ANY(flat),
														 VARSIZE_ANY_EXHDR(flat)));
	}
	return rules;
}

/*
 * A transaction uses the newest version below its commit position, which is
 * "confirmed" at the lowest: all versions before the newest one below that
 * can go.
 */
void
etl_store_prune_rules(int64 pipeline_id, XLogRecPtr confirmed)
{
	Params		params = {0};

	param_int8(&params, pipeline_id);
	param_lsn(&params, confirmed);
	run("DELETE FROM etl.rule_history h USING ("
		"  SELECT relid, max(from_lsn) AS newest FROM etl.rule_history"
		"   WHERE pipeline_id = $1 AND from_lsn < $2 GROUP BY relid) n"
		" WHERE h.pipeline_id = $1 AND h.relid = n.relid AND h.from_lsn < n.newest",
		&params);
}

void
etl_store_shape(int64 pipeline_id, const EtlShape *shape, const char *layout)
{
	Params		params = {0};
	StringInfoData flat;

	initStringInfo(&flat);
	etl_shape_serialize(shape, &flat);
	param_int8(&params, pipeline_id);
	param_oid(&params, shape->relid);
	param_int4(&params, (int32) shape->generation);
	param_int4(&params, (int32) shape->version);
	param(&params, PG_LSNOID, LSNGetDatum(shape->lsn), false);
	param_bytes(&params, flat.data, flat.len);
	param_text(&params, layout);
	run("INSERT INTO etl.schema_history (pipeline_id, relid, generation, version, from_lsn, shape,"
		"  layout) VALUES ($1, $2, $3, $4, $5, $6, $7)"
		" ON CONFLICT (pipeline_id, relid, generation, version) DO NOTHING", &params);
	pfree(flat.data);
}

List *
etl_store_read_shapes(int64 pipeline_id, Oid relid, uint32 generation)
{
	Params		params = {0};
	List	   *shapes = NIL;
	SPITupleTable *table;
	uint64		n;

	param_int8(&params, pipeline_id);
	param_oid(&params, relid);
	param_int4(&params, (int32) generation);
	n = run("SELECT shape FROM etl.schema_history"
			" WHERE pipeline_id = $1 AND relid = $2 AND generation = $3 ORDER BY version",
			&params);
	table = SPI_tuptable;
	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;
		bytea	   *flat = DatumGetByteaPP(SPI_getbinval(table->vals[i], table->tupdesc,
														 1, &isnull));

		shapes = lappend(shapes, etl_shape_deserialize(VARDATA_ANY(flat),
													   VARSIZE_ANY_EXHDR(flat)));
	}
	return shapes;
}
