/*-------------------------------------------------------------------------
 *
 * address.h
 *	  Which hosts and addresses a destination may be at.
 *
 * A user who may define a destination makes the server open sockets.  Two
 * rules bound where to: link-local and cloud metadata addresses are never
 * reached, and with etl.allowed_hosts set nothing outside it is.  Names are
 * checked before anything is sent, addresses when the socket is opened, after
 * resolution, so that a name that changes its address between the two gains
 * nothing.
 *
 *-------------------------------------------------------------------------
 */
#ifndef ETL_ADDRESS_H
#define ETL_ADDRESS_H

#include <sys/socket.h>

typedef struct EtlHostList EtlHostList;

/*
 * Parse a list of host names, suffixes (".example.com"), addresses and CIDR
 * blocks, separated by commas.  The list is one chunk in CurrentMemoryContext.
 * Returns NULL when an entry is malformed, with *bad set to a copy of it.
 */
extern EtlHostList *etl_host_list_parse(const char *text, char **bad);

extern bool etl_host_list_is_empty(const EtlHostList *list);

/*
 * Does the list name this host, by name or as a literal address?  "host" is as
 * in a URL; brackets around IPv6 and a trailing dot do not matter.  An empty
 * list names every host.
 */
extern bool etl_host_named(const EtlHostList *list, const char *host);

/* Has the list CIDR blocks or addresses, which only resolution can decide? */
extern bool etl_host_list_has_blocks(const EtlHostList *list);

/* Is the address in one of the blocks of the list (an empty list: yes)? */
extern bool etl_address_listed(const EtlHostList *list, const struct sockaddr *address);

/*
 * Link-local or a metadata service, also in its mapped and translated IPv6
 * forms; or no internet address at all.
 */
extern bool etl_address_forbidden(const struct sockaddr *address);

/* The same for a host that is a literal address; false for a name. */
extern bool etl_host_forbidden(const char *host);

#endif							/* ETL_ADDRESS_H */
