/*-------------------------------------------------------------------------
 *
 * failpoint.c
 *	  Deterministic faults, in builds for tests (-DETL_TEST) only.
 *
 * The setting etl.failpoint is a list of "name=action[:count]".  A process
 * that comes by ETL_FAILPOINT(name) does
 *
 *	 error	raises an ERROR
 *	 fatal	raises a FATAL error: the process ends as if it were terminated
 *	 panic	kills itself with SIGKILL: the server restarts all processes
 *	 wait	waits, open to interrupts, until the setting no longer names it
 *
 * With a count the fault happens that many times, all processes together, and
 * never again until the element has been out of the setting for one reload
 * (or the server has restarted).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef ETL_TEST

#include <signal.h>
#include <unistd.h>

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#include "guc.h"
#include "server/failpoint.h"
#include "server/worker.h"

#define MAX_COUNTED		32
#define ELEMENT_LEN		128

typedef struct FailpointCount
{
	char		element[ELEMENT_LEN];	/* "" = free */
	int			hits;
} FailpointCount;

typedef struct FailpointShared
{
	slock_t		mutex;
	FailpointCount counts[MAX_COUNTED];
} FailpointShared;

typedef struct Failpoint
{
	char		element[ELEMENT_LEN];	/* as written */
	char		action[16];
	int			count;			/* 0 = always */
} Failpoint;

static FailpointShared *failpoints = NULL;

Size
etl_failpoint_shmem_size(void)
{
	return MAXALIGN(sizeof(FailpointShared));
}

void
etl_failpoint_shmem_init(void)
{
	bool		found;

	failpoints = ShmemInitStruct("etl failpoints", sizeof(FailpointShared), &found);
	if (!found)
	{
		memset(failpoints, 0, sizeof(FailpointShared));
		SpinLockInit(&failpoints->mutex);
	}
}

/* The next element of the setting at *text; false at its end. */
static bool
next_element(const char **text, char *element)
{
	const char *start = *text + strspn(*text, ", \t\n");
	size_t		len = strcspn(start, ", \t\n");

	if (len == 0)
		return false;
	*text = start + len;
	strlcpy(element, start, Min(len + 1, ELEMENT_LEN));
	return true;
}

/* Is there a fault for this name in the setting? */
static bool
find_failpoint(const char *name, Failpoint *point)
{
	const char *text = etl_failpoint ? etl_failpoint : "";
	size_t		name_len = strlen(name);

	while (next_element(&text, point->element))
	{
		const char *action = point->element + name_len;
		const char *colon;

		if (strncmp(point->element, name, name_len) != 0 || *action != '=')
			continue;
		action++;
		colon = strchr(action, ':');
		point->count = colon ? atoi(colon + 1) : 0;
		strlcpy(point->action, action,
				Min(colon ? (size_t) (colon - action) + 1 : sizeof(point->action),
					sizeof(point->action)));
		return true;
	}
	return false;
}

/*
 * Count a hit; false when the count is used up.  Comparing strings under a
 * spinlock is no model to follow: this is not in any build that users run.
 */
static bool
take_hit(const Failpoint *point)
{
	bool		taken = false;

	if (point->count == 0 || failpoints == NULL)
		return true;

	SpinLockAcquire(&failpoints->mutex);
	for (int pass = 0; pass < 2; pass++)
	{
		const char *wanted = pass == 0 ? point->element : "";
		int			i;

		for (i = 0; i < MAX_COUNTED; i++)
			if (strcmp(failpoints->counts[i].element, wanted) == 0)
				break;
		if (i == MAX_COUNTED)
			continue;
		strlcpy(failpoints->counts[i].element, point->element, ELEMENT_LEN);
		taken = failpoints->counts[i].hits < point->count;
		failpoints->counts[i].hits++;
		break;
	}
	SpinLockRelease(&failpoints->mutex);
	return taken;
}

void
etl_failpoint_hit(const char *name)
{
	Failpoint	point;

	if (etl_failpoint == NULL || etl_failpoint[0] == '\0' ||
		!find_failpoint(name, &point) || !take_hit(&point))
		return;

	elog(LOG, "failpoint \"%s\": %s", name, point.action);
	if (strcmp(point.action, "error") == 0)
		elog(ERROR, "failpoint \"%s\"", name);
	else if (strcmp(point.action, "fatal") == 0)
		elog(FATAL, "failpoint \"%s\"", name);
	else if (strcmp(point.action, "panic") == 0)
		kill(getpid(), SIGKILL);
	else if (strcmp(point.action, "wait") == 0)
	{
		while (find_failpoint(name, &point) && strcmp(point.action, "wait") == 0)
			etl_worker_wait(1000);
	}
	else
		elog(WARNING, "failpoint \"%s\": unknown action \"%s\"", name, point.action);
}

void
etl_failpoint_reload(void)
{
	if (failpoints == NULL)
		return;

	for (int i = 0; i < MAX_COUNTED; i++)
	{
		FailpointCount *count = &failpoints->counts[i];
		const char *text = etl_failpoint ? etl_failpoint : "";
		char		element[ELEMENT_LEN];
		bool		named = false;

		while (!named && next_element(&text, element))
			named = strcmp(element, count->element) == 0;
		if (!named)
		{
			SpinLockAcquire(&failpoints->mutex);
			count->element[0] = '\0';
			count->hits = 0;
			SpinLockRelease(&failpoints->mutex);
		}
	}
}

#endif							/* ETL_TEST */
