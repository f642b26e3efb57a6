/*-------------------------------------------------------------------------
 *
 * sink.c
 *	  An HTTP/1.1 server that reads bodies, counts them and says 200.
 *
 *	sink PORT [MARK]
 *
 * One thread, epoll, keep-alive, bodies by length or in chunks.  With MARK,
 * every "MARK<digits>" in a body is noted with the time (microseconds since
 * 1970) at which that body was complete.
 *
 * A request with a query_id, but without a query in its address, is a
 * statement for ClickHouse: see clickhouse.c.  Bodies are taken in without a
 * look at them where that is possible, so that the sink costs little.
 *
 *	GET /stats	{"requests": n, "bytes": n}
 *	GET /marks	one line "digits time" per mark
 *	any other	200, counted
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "clickhouse.h"

#define BUFFER		(256 * 1024)
#define CARRY		64			/* longest mark that may be cut in two */
#define STATEMENT	(64 * 1024)

typedef enum State
{
	HEADER, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER
} State;

typedef struct Connection
{
	int			fd;
	State		state;
	bool		stats;
	bool		marks;
	long		rest;			/* bytes of body or chunk to come */
	char		line[65536];	/* header, or line of a chunked body */
	size_t		line_len;
	char		carry[CARRY];	/* end of the body so far */
	size_t		carry_len;
	size_t		first_mark;		/* marks of this body begin here */
	char	   *statement;		/* body of a statement, or NULL */
	size_t		statement_len;
} Connection;

typedef struct Mark
{
	long		number;
	long long	time;
} Mark;

static const char *pattern;
static size_t pattern_len;
static Mark *marks;
static size_t nmarks, marks_size;
static unsigned long long requests, bytes;
static char buffer[BUFFER + CARRY];

static long long
now(void)
{
	struct timeval tv;

	gettimeofday(&tv, NULL);
	return tv.tv_sec * 1000000LL + tv.tv_usec;
}

static void
add_mark(long number)
{
	if (nmarks == marks_size)
	{
		marks_size = marks_size ? 2 * marks_size : 4096;
		marks = realloc(marks, marks_size * sizeof(Mark));
		if (marks == NULL)
			exit(2);
	}
	marks[nmarks++] = (Mark) {number, 0};
}

/*
 * Note marks in "len" bytes of body.  A mark counts where its digits end, so
 * that one cut in two is seen once, in the next piece.
 */
static void
scan(Connection *c, const char *data, size_t len)
{
	static char joined[BUFFER + CARRY];
	const char *p = joined;
	const char *end;
	const char *done = joined;	/* behind the last mark noted */

	memcpy(joined, c->carry, c->carry_len);
	memcpy(joined + c->carry_len, data, len);
	end = joined + c->carry_len + len;
	while ((p = memmem(p, end - p, pattern, pattern_len)) != NULL)
	{
		const char *digits = p + pattern_len;
		const char *q = digits;

		while (q < end && *q >= '0' && *q <= '9')
			q++;
		if (q == end)
			break;				/* perhaps more to come */
		if (q > digits)
			add_mark(strtol(digits, NULL, 10));
		p = done = q;
	}
	if (end - done > CARRY)
		done = end - CARRY;
	c->carry_len = end - done;
	memcpy(c->carry, done, c->carry_len);
}

static void
body(Connection *c, const char *data, size_t len)
{
	bytes += len;
	if (c->statement != NULL)
	{
		size_t		room = STATEMENT - 1 - c->statement_len;

		if (len > room)
			len = room;
		memcpy(c->statement + c->statement_len, data, len);
		c->statement_len += len;
	}
	else if (pattern != NULL)
		scan(c, data, len);
}

static bool
answer(int fd, const char *data, size_t len)
{
	while (len > 0)
	{
		ssize_t		n = send(fd, data, len, MSG_NOSIGNAL);

		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (n > 0)
		{
			data += n;
			len -= n;
		}
	}
	return true;
}

static bool
answer_text(int fd, const char *text, size_t len)
{
	char		head[128];
	int			n = snprintf(head, sizeof(head),
							 "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", len);

	return answer(fd, head, n) && answer(fd, text, len);
}

/* The request is complete. */
static bool
complete(Connection *c)
{
	bool		ok;

	c->state = HEADER;
	c->line_len = 0;
	if (c->stats)
	{
		char		text[128];
		int			n = snprintf(text, sizeof(text), "{\"requests\": %llu, \"bytes\": %llu}\n",
								 requests, bytes);

		return answer_text(c->fd, text, n);
	}
	if (c->marks)
	{
		char	   *text = malloc(nmarks * 48 + 1);
		size_t		n = 0;

		for (size_t i = 0; i < nmarks; i++)
			n += sprintf(text + n, "%ld %lld\n", marks[i].number, marks[i].time);
		ok = answer_text(c->fd, text, n);
		free(text);
		return ok;
	}
	requests++;
	if (c->statement != NULL)
	{
		const char *text;
		size_t		n;

		c->statement[c->statement_len] = '\0';
		text = clickhouse_answer(c->statement, &n);
		free(c->statement);
		c->statement = NULL;
		return answer_text(c->fd, text, n);
	}
	if (pattern != NULL)
	{
		long long	time = now();

		for (size_t i = c->first_mark; i < nmarks; i++)
		{
			if (marks[i].time == 0)
				marks[i].time = time;
		}
		c->carry_len = 0;
	}
	return answer(c->fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 38);
}

/* The header, ended by an empty line, is in c->line. */
static bool
header(Connection *c)
{
	char	   *p;

	char	   *address_end;

	c->line[c->line_len] = '\0';
	c->stats = strncmp(c->line, "GET /stats ", 11) == 0;
	c->marks = strncmp(c->line, "GET /marks ", 11) == 0;
	c->first_mark = nmarks;
	address_end = strchr(c->line, '\n');
	*address_end = '\0';
	if (strstr(c->line, "query_id=") && strstr(c->line, "&query=") == NULL)
	{
		c->statement = malloc(STATEMENT);
		c->statement_len = 0;
		if (c->statement == NULL)
			exit(2);
	}
	*address_end = '\n';
	c->rest = 0;
	c->state = LENGTH;
	if (strcasestr(c->line, "\r\nTransfer-Encoding: chunked"))
		c->state = CHUNK_SIZE;
	else if ((p = strcasestr(c->line, "\r\nContent-Length:")) != NULL)
		c->rest = strtol(p + 17, NULL, 10);
	if (strcasestr(c->line, "\r\nExpect: 100-continue") &&
		!answer(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25))
		return false;
	c->line_len = 0;
	return c->state != LENGTH || c->rest > 0 || complete(c);
}

/* Take in "len" bytes; false ends the connection. */
static bool
take(Connection *c, const char *data, size_t len)
{
	while (len > 0)
	{
		if (c->state == LENGTH || c->state == CHUNK)
		{
			size_t		n = (size_t) c->rest < len ? (size_t) c->rest : len;

			body(c, data, n);
			data += n;
			len -= n;
			c->rest -= n;
			if (c->rest == 0)
			{
				if (c->state == CHUNK)
					c->state = CHUNK_END;
				else if (!complete(c))
					return false;
			}
			continue;
		}

		if (c->line_len + 1 >= sizeof(c->line))
			return false;
		c->line[c->line_len++] = *data++;
		len--;
		if (c->line[c->line_len - 1] != '\n')
			continue;

		switch (c->state)
		{
			case HEADER:
				if (c->line_len >= 4 && memcmp(c->line + c->line_len - 4, "\r\n\r\n", 4) == 0 &&
					!header(c))
					return false;
				break;
			case CHUNK_SIZE:
				c->rest = strtol(c->line, NULL, 16);
				c->state = c->rest > 0 ? CHUNK : TRAILER;
				c->line_len = 0;
				break;
			case CHUNK_END:
				c->state = CHUNK_SIZE;
				c->line_len = 0;
				break;
			default:			/* TRAILER */
				if (c->line_len == 2 && !complete(c))
					return false;
				c->line_len = 0;
				break;
		}
	}
	return true;
}

/*
 * Take in what has come on the connection; false ends it.
 *
 * MSG_TRUNC makes TCP throw away what nobody wants to see, without copying.
 */
static bool
receive(Connection *c)
{
	bool		discard = (c->state == LENGTH || c->state == CHUNK) && c->rest > 1 &&
		pattern == NULL && c->statement == NULL;
	ssize_t		len;

	if (discard)
	{
		/* the last byte goes the usual way: it may complete the request */
		len = recv(c->fd, NULL, c->rest - 1, MSG_TRUNC);
		if (len > 0)
		{
			bytes += len;
			c->rest -= len;
			return true;
		}
	}
	else
	{
		len = read(c->fd, buffer, BUFFER);
		if (len > 0)
			return take(c, buffer, len);
	}
	return len < 0 && errno == EINTR;
}

static int
listen_on(int port)
{
	int			fd = socket(AF_INET, SOCK_STREAM, 0);
	int			on = 1;
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)
	};
	socklen_t	len = sizeof(address);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *) &address, sizeof(address)) != 0 || listen(fd, 64) != 0 ||
		getsockname(fd, (struct sockaddr *) &address, &len) != 0)
	{
		perror("sink");
		exit(1);
	}
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	return fd;
}

int
main(int argc, char **argv)
{
	int			listener;
	int			poll = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};

	if (argc < 2)
	{
		fprintf(stderr, "usage: sink PORT [MARK]\n");
		return 1;
	}
	if (argc > 2)
	{
		pattern = argv[2];
		pattern_len = strlen(pattern);
	}
	listener = listen_on(atoi(argv[1]));
	epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);

	for (;;)
	{
		struct epoll_event events[64];
		int			n = epoll_wait(poll, events, 64, -1);

		for (int i = 0; i < n; i++)
		{
			Connection *c = events[i].data.ptr;

			if (c == NULL)
			{
				int			on = 1;

				c = calloc(1, sizeof(Connection));
				c->fd = accept(listener, NULL, NULL);
				if (c->fd < 0)
				{
					free(c);
					continue;
				}
				setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
				event.data.ptr = c;
				epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
				continue;
			}
			if (!receive(c))
			{
				close(c->fd);
				free(c->statement);
				free(c);
			}
		}
	}
}
