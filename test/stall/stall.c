/*-------------------------------------------------------------------------
 *
 * stall.c
 *	  A name server as the tests need it.
 *
 * Preloaded into a server process (LD_PRELOAD), it lets getaddrinfo() sleep
 * for names that begin with "stall", as long as ETL_STALL says in seconds
 * (default one hour), and then fail.  A name "at-127-0-0-1.example" has the
 * address it says.  Other names are resolved as ever.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*getaddrinfo_fn) (const char *, const char *,
							   const struct addrinfo *, struct addrinfo **);

int
getaddrinfo(const char *node, const char *service,
			const struct addrinfo *hints, struct addrinfo **res)
{
	getaddrinfo_fn real = (getaddrinfo_fn) dlsym(RTLD_NEXT, "getaddrinfo");

	if (node && strncmp(node, "stall", 5) == 0)
	{
		const char *seconds = getenv("ETL_STALL");
		struct timespec left = {seconds ? atol(seconds) : 3600, 0};

		while (nanosleep(&left, &left) != 0)
			;
		return EAI_AGAIN;
	}
	if (node && strncmp(node, "at-", 3) == 0)
	{
		char		address[64] = "";

		strncat(address, node + 3, sizeof(address) - 1);
		address[strcspn(address, ".")] = '\0';
		for (char *p = address; *p; p++)
		{
			if (*p == '-')
				*p = '.';
		}
		return real(address, service, hints, res);
	}
	return real(node, service, hints, res);
}
