/*-------------------------------------------------------------------------
 *
 * result.c
 *	  Filling an EtlResult.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "etl/destination.h"

/*
 * Set status, SQLSTATE and a message cut to what fits, at a character's end.
 * The hint becomes empty, rejected and retry_after unknown; set them after.
 * Allocates nothing and never throws.
 */
void
etl_result_set(EtlResult *result, EtlStatus status, int sqlstate, const char *fmt,...)
{
	va_list		args;
	int			len;

	result->status = status;
	result->sqlstate = sqlstate;
	result->rejected = -1;
	result->retry_after = -1;
	result->hint[0] = '\0';

	va_start(args, fmt);
	len = vsnprintf(result->message, sizeof(result->message), fmt, args);
	va_end(args);
	if (len >= (int) sizeof(result->message))
	{
		len = pg_mbcliplen(result->message, strlen(result->message), sizeof(result->message) - 1);
		result->message[len] = '\0';
	}
}
