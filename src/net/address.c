/*-------------------------------------------------------------------------
 *
 * address.c
 *	  Which hosts and addresses a destination may be at.
 *
 * Everything is decided on 16 bytes: an IPv4 address stands as ::ffff:a.b.c.d.
 * IPv6 forms that carry an IPv4 address (mapped, compatible, NAT64, 6to4) are
 * judged by that address, because a translator on the way may deliver there.
 *
 * The functions that take a socket address are called from libcurl's socket
 * callback: they neither allocate nor raise errors.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "net/address.h"

typedef struct EtlBlock
{
	uint8		address[16];
	int			bits;			/* of the 128 that must agree */
} EtlBlock;

typedef struct EtlHostEntry
{
	bool		is_block;
	EtlBlock	block;
	const char *name;			/* lower case; with a leading dot a suffix */
} EtlHostEntry;

struct EtlHostList
{
	int			nentries;
	int			nblocks;
	EtlHostEntry entries[FLEXIBLE_ARRAY_MEMBER];
};

/*
 * Never reached, whatever the settings say.  What is not link-local here is
 * a metadata service of a cloud at an address of its own.
 */
static const char *const forbidden_blocks[] = {
	"169.254.0.0/16",			/* link-local: AWS, Azure, Google, OpenStack */
	"fe80::/10",				/* link-local */
	"fd00:ec2::/32",			/* AWS */
	"fd20:ce::254/128",			/* Google */
	"100.100.100.200/32",		/* Alibaba */
	"168.63.129.16/32",			/* Azure wire server */
	"192.0.0.192/32",			/* Oracle */
};

static const uint8 mapped_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
static const uint8 nat64_prefix[12] = {0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0};

static void
set_mapped(uint8 *out, const void *v4)
{
	uint8		quad[4];

	memcpy(quad, v4, 4);		/* "v4" may lie inside "out" */
	memcpy(out, mapped_prefix, 12);
	memcpy(out + 12, quad, 4);
}

/* Replace an IPv6 address that carries an IPv4 one by the latter. */
static void
unwrap(uint8 *a)
{
	static const uint8 zero[12] = {0};

	if (memcmp(a, nat64_prefix, 12) == 0)
		set_mapped(a, a + 12);
	else if (a[0] == 0x20 && a[1] == 0x02)
		set_mapped(a, a + 2);	/* 6to4 */
	else if (memcmp(a, zero, 12) == 0 && (a[12] | a[13] | a[14]) != 0)
		set_mapped(a, a + 12);	/* compatible; not :: and ::1 */
}

static bool
from_sockaddr(const struct sockaddr *address, uint8 *out)
{
	if (address->sa_family == AF_INET)
	{
		set_mapped(out, &((const struct sockaddr_in *) address)->sin_addr);
		return true;
	}
	if (address->sa_family == AF_INET6)
	{
		memcpy(out, &((const struct sockaddr_in6 *) address)->sin6_addr, 16);
		return true;
	}
	return false;
}

/* A literal address, without brackets or zone; *bits becomes its length. */
static bool
from_text(const char *text, uint8 *out, int *bits)
{
	uint8		v4[4];

	if (inet_pton(AF_INET, text, v4) == 1)
	{
		set_mapped(out, v4);
		*bits = 32;
		return true;
	}
	if (inet_pton(AF_INET6, text, out) == 1)
	{
		*bits = 128;
		return true;
	}
	return false;
}

/* "address" or "address/bits", at most 63 bytes. */
static bool
parse_block(const char *text, EtlBlock *block)
{
	char		copy[64];
	char	   *slash;
	char	   *end;
	int			width;
	long		bits;

	if (strlcpy(copy, text, sizeof(copy)) >= sizeof(copy))
		return false;
	slash = strchr(copy, '/');
	if (slash)
		*slash = '\0';
	if (!from_text(copy, block->address, &width))
		return false;
	bits = width;
	if (slash)
	{
		if (slash[1] < '0' || slash[1] > '9')
			return false;
		bits = strtol(slash + 1, &end, 10);
		if (*end != '\0' || bits > width)
			return false;
	}
	block->bits = (int) bits + (128 - width);
	return true;
}

static bool
in_block(const uint8 *a, const EtlBlock *block)
{
	int			whole = block->bits / 8;
	int			rest = block->bits % 8;

	if (memcmp(a, block->address, whole) != 0)
		return false;
	return rest == 0 ||
		((a[whole] ^ block->address[whole]) & (0xff << (8 - rest)) & 0xff) == 0;
}

static bool
forbidden(const uint8 *plain)
{
	uint8		a[16];

	memcpy(a, plain, 16);
	unwrap(a);
	for (int i = 0; i < lengthof(forbidden_blocks); i++)
	{
		EtlBlock	block;

		if (parse_block(forbidden_blocks[i], &block) &&
			(in_block(a, &block) || in_block(plain, &block)))
			return true;
	}
	return false;
}

/*
 * Host of a URL without brackets, zone and trailing dot, in lower case.
 * False when it is too long for a host name.
 */
static bool
normal_host(const char *host, char *out, Size size)
{
	Size		len;
	char	   *zone;

	if (*host == '[')
		host++;
	len = strlcpy(out, host, size);
	if (len >= size)
		return false;
	if (len > 0 && out[len - 1] == ']')
		out[--len] = '\0';
	zone = strchr(out, '%');
	if (zone && strchr(out, ':'))
	{
		*zone = '\0';
		len = zone - out;
	}
	if (len > 0 && out[len - 1] == '.')
		out[--len] = '\0';
	for (char *p = out; *p; p++)
		*p = pg_tolower((unsigned char) *p);
	return len > 0;
}

/* Letters, digits, '-', '_' and dots; a leading dot makes a suffix. */
static bool
valid_name(const char *name)
{
	if (*name == '.')
		name++;
	if (*name == '\0' || strlen(name) > 253)
		return false;
	for (const char *p = name; *p; p++)
	{
		bool		ordinary = (*p >= 'a' && *p <= 'z') ||
			(*p >= '0' && *p <= '9') || *p == '-' || *p == '_' ||
			IS_HIGHBIT_SET(*p);

		if (!ordinary && !(*p == '.' && p != name && p[-1] != '.'))
			return false;
	}
	return true;
}

static bool
parse_entry(char *word, EtlHostEntry *entry)
{
	Size		len = strlen(word);

	for (char *p = word; *p; p++)
		*p = pg_tolower((unsigned char) *p);
	if (word[0] == '[' && word[len - 1] == ']')
	{
		word[len - 1] = '\0';
		word++;
	}
	entry->name = word;
	entry->is_block = parse_block(word, &entry->block);
	if (entry->is_block)
		return true;
	if (len > 1 && word[len - 1] == '.')
		word[len - 1] = '\0';
	return valid_name(word);
}

EtlHostList *
etl_host_list_parse(const char *text, char **bad)
{
	EtlHostList *list;
	char	   *word;
	int			ncommas = 0;
	Size		size;

	*bad = NULL;
	if (text == NULL)
		text = "";
	for (const char *p = text; *p; p++)
		ncommas += (*p == ',');
	size = offsetof(EtlHostList, entries) + (ncommas + 1) * sizeof(EtlHostEntry);
	list = (EtlHostList *) palloc0(size + strlen(text) + 1);
	word = strcpy((char *) list + size, text);

	while (word)
	{
		char	   *comma = strchr(word, ',');
		char	   *end = comma ? comma : word + strlen(word);
		char	   *next = comma ? comma + 1 : NULL;

		while (isspace((unsigned char) *word))
			word++;
		while (end > word && isspace((unsigned char) end[-1]))
			end--;
		*end = '\0';
		if (*word)
		{
			EtlHostEntry *entry = &list->entries[list->nentries];

			if (!parse_entry(word, entry))
			{
				*bad = pstrdup(word);
				pfree(list);
				return NULL;
			}
			list->nentries++;
			list->nblocks += entry->is_block;
		}
		word = next;
	}
	return list;
}

bool
etl_host_list_is_empty(const EtlHostList *list)
{
	return list->nentries == 0;
}

bool
etl_host_list_has_blocks(const EtlHostList *list)
{
	return list->nblocks > 0;
}

static bool
in_list(const EtlHostList *list, const uint8 *a)
{
	for (int i = 0; i < list->nentries; i++)
	{
		if (list->entries[i].is_block &&
			in_block(a, &list->entries[i].block))
			return true;
	}
	return false;
}

bool
etl_host_named(const EtlHostList *list, const char *host)
{
	char		name[256];
	uint8		a[16];
	int			bits;
	Size		len;

	if (list->nentries == 0)
		return true;
	if (!normal_host(host, name, sizeof(name)))
		return false;
	if (from_text(name, a, &bits))
		return in_list(list, a);
	len = strlen(name);
	for (int i = 0; i < list->nentries; i++)
	{
		const EtlHostEntry *entry = &list->entries[i];
		Size		entry_len = strlen(entry->name);

		if (entry->is_block)
			continue;
		if (strcmp(name, entry->name) == 0)
			return true;
		if (entry->name[0] == '.' && len > entry_len &&
			strcmp(name + len - entry_len, entry->name) == 0)
			return true;
	}
	return false;
}

bool
etl_address_listed(const EtlHostList *list, const struct sockaddr *address)
{
	uint8		a[16];

	if (list->nentries == 0)
		return true;
	return from_sockaddr(address, a) && in_list(list, a);
}

bool
etl_address_forbidden(const struct sockaddr *address)
{
	uint8		a[16];

	return !from_sockaddr(address, a) || forbidden(a);
}

bool
etl_host_forbidden(const char *host)
{
	char		name[256];
	uint8		a[16];
	int			bits;

	return normal_host(host, name, sizeof(name)) &&
		from_text(name, a, &bits) && forbidden(a);
}
