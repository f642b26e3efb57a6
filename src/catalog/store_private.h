/*-------------------------------------------------------------------------
 *
 * store_private.h
 *	  Parameters and results of the statements in store*.c.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_STORE_PRIVATE_H
#define ETL_STORE_PRIVATE_H

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

#define MOST_PARAMS 16

/* Parameters $1, $2, ... of one statement, in this order. */
typedef struct Params
{
	int			n;
	Oid			types[MOST_PARAMS];
	Datum		values[MOST_PARAMS];
	char		nulls[MOST_PARAMS];
} Params;

static inline void
param(Params *params, Oid type, Datum value, bool isnull)
{
	Assert(params->n < MOST_PARAMS);
	params->types[params->n] = type;
	params->values[params->n] = value;
	params->nulls[params->n] = isnull ? 'n' : ' ';
	params->n++;
}

static inline void
param_int8(Params *params, int64 value)
{
	param(params, INT8OID, Int64GetDatum(value), false);
}

static inline void
param_int4(Params *params, int32 value)
{
	param(params, INT4OID, Int32GetDatum(value), false);
}

static inline void
param_oid(Params *params, Oid value)
{
	param(params, OIDOID, ObjectIdGetDatum(value), false);
}

static inline void
param_bool(Params *params, bool value)
{
	param(params, BOOLOID, BoolGetDatum(value), false);
}

/* InvalidXLogRecPtr is NULL. */
static inline void
param_lsn(Params *params, XLogRecPtr value)
{
	param(params, PG_LSNOID, LSNGetDatum(value), XLogRecPtrIsInvalid(value));
}

/* NULL and '' are NULL. */
static inline void
param_text(Params *params, const char *value)
{
	bool		isnull = value == NULL || value[0] == '\0';

	param(params, TEXTOID, isnull ? (Datum) 0 : CStringGetTextDatum(value), isnull);
}

static inline void
param_bytes(Params *params, const char *data, int len)
{
	bytea	   *value = palloc(VARHDRSZ + len);

	SET_VARSIZE(value, VARHDRSZ + len);
	memcpy(VARDATA(value), data, len);
	param(params, BYTEAOID, PointerGetDatum(value), false);
}

/* Names longer than 63 bytes cannot come from a catalog. */
static inline void
param_name(Params *params, const char *value)
{
	Name		name = palloc0(NAMEDATALEN);

	strlcpy(NameStr(*name), value, NAMEDATALEN);
	param(params, NAMEOID, NameGetDatum(name), false);
}

static inline void
param_time(Params *params, TimestampTz value)
{
	param(params, TIMESTAMPTZOID, TimestampTzGetDatum(value), value == 0);
}

/*
 * Run one statement; number of rows it returned or changed.  SPI leaves its
 * own memory context in force; what is allocated behind it is the caller's.
 */
static inline uint64
run(const char *sql, Params *params)
{
	MemoryContext context = CurrentMemoryContext;
	int			result = SPI_execute_with_args(sql, params->n, params->types,
											   params->values, params->nulls,
											   false, 0);

	MemoryContextSwitchTo(context);
	if (result < 0)
		elog(ERROR, "could not run a statement on the state tables: %s",
			 SPI_result_code_string(result));
	return SPI_processed;
}

static inline Datum
field(uint64 row, int column, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, isnull);
}

#endif							/* ETL_STORE_PRIVATE_H */
