/*-------------------------------------------------------------------------
 *
 * filter.h
 *	  Row filters of publications (WHERE), evaluated as pgoutput does it.
 *
 * A filter is kept as the catalog has it (pg_publication_rel.prqual, a node
 * tree over the table's attnums); the server allows immutable built-in
 * functions and types alone in it, so it means the same under all catalogs.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_FILTER_H
#define ETL_FILTER_H

#include "etl/destination.h"
#include "utils/relcache.h"

typedef struct EtlFilter EtlFilter;

/* Do the two keep back the same rows?  NULL: no filter, all rows pass. */
extern bool etl_filter_equal(const char *a, const char *b);

/* Are the columns that the filter names still what they were for it? */
extern bool etl_filter_fits(const char *expression, Relation relation);

/*
 * Make a filter ready for rows of the relation, in CurrentMemoryContext.  ERROR
 * when a constant part of it cannot be computed (division by zero).
 */
extern EtlFilter *etl_filter_create(const char *expression, Relation relation);

/*
 * What becomes of a change?  "new_row" and "old_row" are the stored rows, or
 * NULL.  False: the filter keeps it back.  An update that only one of its rows
 * passes becomes the insert or the delete that the other side needs.  Values
 * of the new row that are unchanged and out of line are taken from the old
 * one, as far as it has them.  ERROR when the expression cannot be computed.
 */
extern bool etl_filter_change(EtlFilter *filter, EtlOperation *op,
							  TupleTableSlot *new_row, TupleTableSlot *old_row);

/* SQL text of the filter, for a query over the relation alone. */
extern char *etl_filter_text(const char *expression, Relation relation);

/* Attnums that the filter reads. */
extern Bitmapset *etl_filter_columns(const char *expression);

#endif							/* ETL_FILTER_H */
