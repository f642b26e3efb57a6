/*-------------------------------------------------------------------------
 *
 * retry.h
 *	  When to try again: capped, jittered backoff that resets on success.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_RETRY_H
#define ETL_RETRY_H

#include "catalog/config.h"

typedef struct EtlBackoff
{
	int			attempts;		/* failures in a row */
	TimestampTz next;			/* not before this; 0: at once */
	EtlStatus	status;			/* of the last failure */
} EtlBackoff;

/* Plain doubling between two bounds with full jitter, in ms. */
extern int	etl_backoff_delay(int attempts, int first, int most);

/*
 * A try failed with ETL_RETRY or ETL_ENDPOINT: fix the time of the next one,
 * tell the log (the first failure of a row and every change of kind) and the
 * views.
 */
extern void etl_backoff_failed(EtlBackoff *backoff, const EtlConfig *config, const EtlResult *result);

/* A try succeeded. */
extern void etl_backoff_reset(EtlBackoff *backoff);

/* The same, and nobody is told. */
extern void etl_backoff_clear(EtlBackoff *backoff);

/* ms until the next try is due, 0 when it is. */
extern long etl_backoff_left(const EtlBackoff *backoff, TimestampTz now);

#endif							/* ETL_RETRY_H */
