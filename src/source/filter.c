/*-------------------------------------------------------------------------
 *
 * filter.c
 *	  Row filters of publications (WHERE), evaluated as pgoutput does it.
 *
 * The expression is compiled once per relation and rule version, and
 * evaluated against decoded rows.  NULL keeps a row back like false.  An
 * update is judged by both of its rows:
 *
 *		old		new		delivered as
 *		no		no		nothing
 *		no		yes		insert
 *		yes		no		delete
 *		yes		yes		update
 *
 * The old row is in the WAL when a column of the replica identity has
 * changed; a filter of a publication that publishes updates may name no other
 * columns.  Without an old row, old and new agree.
 *
 * Nothing here reads tables: in a decoding callback only the historic
 * catalogs are asked, while the expression is compiled.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/sysattr.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteHandler.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"

#include "compat.h"
#include "source/filter.h"

struct EtlFilter
{
	ExprState  *state;
	ExprContext *context;
	List	   *toastable;		/* attnums read that may be stored out of line */
};

bool
etl_filter_equal(const char *a, const char *b)
{
	if (a == NULL || b == NULL)
		return a == b;

	/* the same expression may have been typed at another place of a command */
	return strcmp(a, b) == 0 || equal(stringToNode(a), stringToNode(b));
}

static bool
var_differs(Node *node, void *arg)
{
	TupleDesc	desc = arg;

	if (node == NULL)
		return false;
	if (IsA(node, Var))
	{
		Var		   *var = (Var *) node;
		Form_pg_attribute att;

		if (var->varattno <= 0)
			return false;
		if (var->varattno > desc->natts)
			return true;
		att = TupleDescAttr(desc, var->varattno - 1);
		return att->attisdropped || att->atttypid != var->vartype;
	}
	return expression_tree_walker(node, var_differs, arg);
}

bool
etl_filter_fits(const char *expression, Relation relation)
{
	return !var_differs(stringToNode(expression), RelationGetDescr(relation));
}

EtlFilter *
etl_filter_create(const char *expression, Relation relation)
{
	EtlFilter  *filter = palloc(sizeof(EtlFilter));
	Node	   *node = stringToNode(expression);
	Bitmapset  *columns = etl_filter_columns(expression);
	int			attnum = -1;

	node = etl_expand_generated_columns(node, relation, 1);
	filter->state = ExecInitExpr(expression_planner((Expr *) node), NULL);
	filter->context = CreateStandaloneExprContext();
	filter->toastable = NIL;
	while ((attnum = bms_next_member(columns, attnum)) >= 0)
		if (TupleDescAttr(RelationGetDescr(relation), attnum - 1)->attlen == -1)
			filter->toastable = lappend_int(filter->toastable, attnum);
	return filter;
}

static bool
passes(EtlFilter *filter, TupleTableSlot *row)
{
	bool		isnull;
	Datum		result;

	filter->context->ecxt_scantuple = row;
	result = ExecEvalExprSwitchContext(filter->state, filter->context, &isnull);
	ResetExprContext(filter->context);
	return !isnull && DatumGetBool(result);
}

/* The new row has no unchanged values that are stored out of line; the old one may. */
static void
fill_unchanged(TupleTableSlot *new_row, TupleTableSlot *old_row)
{
	TupleDesc	desc = new_row->tts_tupleDescriptor;

	slot_getallattrs(new_row);
	slot_getallattrs(old_row);
	for (int i = 0; i < desc->natts; i++)
	{
		if (TupleDescAttr(desc, i)->attlen != -1 || new_row->tts_isnull[i] || old_row->tts_isnull[i])
			continue;
		if (VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(new_row->tts_values[i])) &&
			!VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(old_row->tts_values[i])))
			new_row->tts_values[i] = old_row->tts_values[i];
	}
}

/*
 * Does the row lack a value that the filter reads?  Only when it was written
 * before the publication had this filter, and committed after: then it goes as
 * it would have gone before.  The value must not be fetched: a decoder would
 * find a later one, or none.
 */
static bool
lacks_value(const EtlFilter *filter, TupleTableSlot *new_row)
{
	ListCell   *lc;

	foreach(lc, filter->toastable)
	{
		bool		isnull;
		Datum		value = slot_getattr(new_row, lfirst_int(lc), &isnull);

		if (!isnull && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value)))
			return true;
	}
	return false;
}

bool
etl_filter_change(EtlFilter *filter, EtlOperation *op, TupleTableSlot *new_row, TupleTableSlot *old_row)
{
	bool		before;
	bool		after;

	if (new_row == NULL)
		return passes(filter, old_row);
	if (old_row)
		fill_unchanged(new_row, old_row);
	if (lacks_value(filter, new_row))
		return true;
	if (old_row == NULL)
		return passes(filter, new_row);

	before = passes(filter, old_row);
	after = passes(filter, new_row);
	if (before != after)
		*op = after ? ETL_INSERT : ETL_DELETE;
	return before || after;
}

char *
etl_filter_text(const char *expression, Relation relation)
{
	List	   *context = deparse_context_for(RelationGetRelationName(relation),
											  RelationGetRelid(relation));

	return deparse_expression(stringToNode(expression), context, false, false);
}

Bitmapset *
etl_filter_columns(const char *expression)
{
	Bitmapset  *offset = NULL;
	Bitmapset  *columns = NULL;
	int			member = -1;

	pull_varattnos(stringToNode(expression), 1, &offset);
	while ((member = bms_next_member(offset, member)) >= 0)
		columns = bms_add_member(columns, member + FirstLowInvalidHeapAttributeNumber);
	return columns;
}
