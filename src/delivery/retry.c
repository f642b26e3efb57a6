/*-------------------------------------------------------------------------
 *
 * retry.c
 *	  When to try again: capped, jittered backoff that resets on success.
 *
 * Transient trouble is retried for ever.  The wait doubles from retry_delay
 * to max_retry_delay and is drawn anew each time from the whole range (full
 * jitter), so that many pipelines do not hit a recovering destination at the
 * same moment; what the destination asks for (Retry-After) is the least.
 * Trouble of the endpoint is tried again every auth_retry_delay.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "delivery/retry.h"
#include "server/worker.h"

/* Shorter waits would only burn CPU. */
#define LEAST_DELAY_MS	10

int
etl_backoff_delay(int attempts, int first, int most)
{
	double		range = first;

	for (int i = 1; i < attempts && range < most; i++)
		range *= 2;
	range = Min(range, (double) most);

	return Max(LEAST_DELAY_MS,
			   (int) (pg_prng_double(&pg_global_prng_state) * range));
}

void
etl_backoff_failed(EtlBackoff *backoff, const EtlConfig *config, const EtlResult *result)
{
	bool		endpoint = result->status == ETL_ENDPOINT;
	bool		news = backoff->attempts == 0 || backoff->status != result->status;
	int			delay;

	backoff->attempts++;
	backoff->status = result->status;
	if (endpoint)
		delay = Max(config->auth_retry_delay, LEAST_DELAY_MS);
	else
		delay = etl_backoff_delay(backoff->attempts, config->retry_delay,
								  config->max_retry_delay);
	if (!endpoint && result->retry_after > delay)
		delay = result->retry_after;
	backoff->next = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), delay);

	if (etl_worker_pipeline == NULL)
		return;
	pg_atomic_fetch_add_u64(&etl_worker_pipeline->retries, 1);
	etl_shmem_report_error(etl_worker_pipeline, result->sqlstate,
						   result->message, backoff->next, endpoint);
	if (news && etl_worker_role == ETL_ROLE_SYNC)
	{
		/* the transaction it is in is the copy's: the writer logs it */
		LWLockAcquire(&etl_worker_pipeline->lock, LW_EXCLUSIVE);
		etl_worker_pipeline->error_unlogged = true;
		LWLockRelease(&etl_worker_pipeline->lock);
		etl_shmem_wake_pipeline(etl_worker_pipeline);
	}
	if (news)
		ereport(LOG,
				(errcode(result->sqlstate),
				 errmsg("pipeline \"%s\": %s", config->name, result->message),
				 errdetail("The same is tried again in %d ms, and so on until it succeeds.",
						   delay),
				 result->hint[0] ? errhint("%s", result->hint) : 0));
}

void
etl_backoff_clear(EtlBackoff *backoff)
{
	backoff->attempts = 0;
	backoff->next = 0;
	backoff->status = ETL_DONE;
}

/*
 * The first success of a writer is reported too: the trouble that is shown
 * may be its predecessor's.
 */
void
etl_backoff_reset(EtlBackoff *backoff)
{
	static bool reported = false;

	if ((backoff->attempts > 0 || (!reported && etl_worker_role == ETL_ROLE_WRITER)) &&
		etl_worker_pipeline != NULL)
	{
		etl_shmem_report_success(etl_worker_pipeline);
		reported = true;
	}
	etl_backoff_clear(backoff);
}

long
etl_backoff_left(const EtlBackoff *backoff, TimestampTz now)
{
	if (backoff->next <= now)
		return 0;
	return (long) ((backoff->next - now + 999) / 1000);
}
