/*-------------------------------------------------------------------------
 *
 * transfer.c
 *	  From a request to a libcurl handle, and the callbacks of the latter.
 *
 * A callback runs on libcurl's stack: no ERROR may cross it.  So callbacks
 * note what they met in the transfer and return a short count, and memory
 * comes from allocators that return NULL.
 *
 * Every handle is set up here and only here, which is why the rules of safety
 * (no redirects, no environment, no foreign protocols, the address filter)
 * stand in one place: transfer_options().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/socket.h>
#include <unistd.h>

#include "storage/ipc.h"
#include "utils/memutils.h"

#include "net/transfer.h"

#define CONNECT_TIMEOUT 10000	/* ms; defaults */
#define REQUEST_TIMEOUT 60000
#define STALL_TIMEOUT	30000

/* ----------
 * Callbacks
 * ----------
 */

/* Append as much as "limit" allows.  False when memory is out. */
static bool
keep(EtlHttpTransfer *t, EtlKept *kept, const char *data, Size len, Size limit)
{
	kept->seen += len;
	len = Min(len, limit - Min(limit, kept->len));
	if (kept->len + len + 1 > kept->capacity || kept->data == NULL)
	{
		Size		capacity = Max(kept->capacity * 2, kept->len + len + 1);
		char	   *grown;

		capacity = Max(capacity, 256);
		grown = MemoryContextAllocExtended(t->context, capacity,
										   MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
		if (grown == NULL)
		{
			t->no_memory = true;
			return false;
		}
		if (kept->data)
		{
			memcpy(grown, kept->data, kept->len);
			pfree(kept->data);
		}
		kept->data = grown;
		kept->capacity = capacity;
	}
	memcpy(kept->data + kept->len, data, len);
	kept->len += len;
	kept->data[kept->len] = '\0';
	return true;
}

static size_t
on_header(char *data, size_t size, size_t count, void *arg)
{
	EtlHttpTransfer *t = (EtlHttpTransfer *) arg;
	Size		len = size * count;

	t->received += len;
	/* a later status line (after 100 Continue) begins the real headers */
	if (len > 5 && memcmp(data, "HTTP/", 5) == 0)
		t->headers_kept.len = 0;
	if (!keep(t, &t->headers_kept, data, len, ETL_HTTP_HEADER_KEPT))
		return 0;
	if (t->headers_kept.seen > ETL_HTTP_HEADER_LIMIT)
	{
		t->header_overflow = true;
		return 0;
	}
	return len;
}

static size_t
on_answer(char *data, size_t size, size_t count, void *arg)
{
	EtlHttpTransfer *t = (EtlHttpTransfer *) arg;
	Size		len = size * count;

	t->received += len;
	if (!keep(t, &t->answer, data, len, t->response_limit))
		return 0;
	if (t->answer.seen > (uint64) t->response_limit + ETL_HTTP_DISCARD_LIMIT)
	{
		t->answer_overflow = true;
		return 0;
	}
	return len;
}

static size_t
on_read(char *buffer, size_t size, size_t count, void *arg)
{
	EtlHttpTransfer *t = (EtlHttpTransfer *) arg;
	int64		n = etl_body_read(t->body, buffer, size * count);

	if (n < 0)
		return CURL_READFUNC_ABORT;
	t->sent += n;
	return n;
}

/*
 * libcurl starts a request again when a connection kept open turns out to be
 * dead.
 */
static int
on_seek(void *arg, curl_off_t offset, int origin)
{
	EtlHttpTransfer *t = (EtlHttpTransfer *) arg;

	if (origin != SEEK_SET || offset != 0 || !etl_body_rewind(t->body))
		return CURL_SEEKFUNC_FAIL;
	t->sent = 0;
	return CURL_SEEKFUNC_OK;
}

/*
 * The address filter: the name has been resolved, nothing has been sent.
 */
static curl_socket_t
on_open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	EtlHttpTransfer *t = (EtlHttpTransfer *) arg;
	int			type = address->socktype;

	if (etl_address_forbidden(&address->addr) ||
		!(t->host_named ||
		  etl_address_listed(t->http->allowed, &address->addr)))
	{
		t->refused = true;
		return CURL_SOCKET_BAD;
	}
	t->opened = true;
#ifdef SOCK_CLOEXEC
	type |= SOCK_CLOEXEC;
#endif
	return socket(address->family, type, address->protocol);
}

/* ----------
 * Checks before anything is sent
 * ----------
 */

/* Copy a part of a URL; false when it is absent or longer than "out". */
static bool
url_part(CURLU *url, CURLUPart part, unsigned int flags, char *out, Size size)
{
	char	   *value = NULL;
	bool		ok;

	ok = curl_url_get(url, part, &value, flags) == CURLUE_OK &&
		strlcpy(out, value, size) < size;
	curl_free(value);
	return ok;
}

/*
 * What follows "scheme://", or NULL: libcurl forgives one or three slashes, we
 * do not.
 */
static const char *
url_authority(const char *url)
{
	const char *colon = strchr(url, ':');

	if (colon == NULL || strncmp(colon, "://", 3) != 0 || colon[3] == '/')
		return NULL;
	return colon + 3;
}

/*
 * Take a URL apart.  "peer" becomes "host:port".  Returns what is wrong, or
 * NULL.  Texts complete "URL ...".
 */
static const char *
parse_url(const char *text, char *host, Size host_size, char *peer, Size peer_size)
{
	CURLU	   *url;
	char		scheme[16];
	char		port[16];
	const char *authority = url_authority(text);
	const char *wrong = NULL;

	host[0] = peer[0] = '\0';
	for (const char *p = text; *p; p++)
	{
		if ((unsigned char) *p <= ' ' || *p == 0x7f || *p == '\\')
			return "contains a space, a backslash or a control character";
	}
	url = curl_url();
	if (url == NULL)
		return "could not be read: out of memory";
	if (strstr(text, "://") == NULL)
		wrong = "must begin with http:// or https://";
	else if (curl_url_set(url, CURLUPART_URL, text, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK)
		wrong = "is not valid";
	else if (!url_part(url, CURLUPART_SCHEME, 0, scheme, sizeof(scheme)) ||
			 (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
		wrong = "must begin with http:// or https://";
	else if (authority == NULL ||
			 !url_part(url, CURLUPART_HOST, 0, host, host_size) || !*host ||
			 !url_part(url, CURLUPART_PORT, CURLU_DEFAULT_PORT, port, sizeof(port)))
		wrong = "has no valid host";
	else if (memchr(authority, '@', strcspn(authority, "/?#")) != NULL)
		wrong = "must not contain user information";
	else
		snprintf(peer, peer_size, "%s:%s", host, port);
	curl_url_cleanup(url);
	return wrong;
}

const char *
etl_http_url_error(const char *url)
{
	char		host[256];
	char		peer[280];

	return parse_url(url, host, sizeof(host), peer, sizeof(peer));
}

/* "Name: value" without anything that could begin another header. */
static bool
header_valid(const char *header)
{
	const char *colon = strchr(header, ':');

	if (colon == NULL || colon == header)
		return false;
	for (const char *p = header; *p; p++)
	{
		unsigned char c = (unsigned char) *p;

		if (p < colon && (c <= ' ' || c >= 0x7f || strchr("()<>@,;\\\"/[]?={}", c)))
			return false;
		if ((c < ' ' && c != '\t') || c == 0x7f)
			return false;
	}
	return true;
}

/*
 * May the transfer go where it wants to?  With a proxy the target's address
 * is not ours to see, so the target must be named; the proxy itself is judged
 * like any host.
 */
static bool
check_hosts(EtlHttpTransfer *t, const char *host)
{
	const EtlHttpSettings *settings = &t->http->settings;
	const EtlHostList *allowed = t->http->allowed;

	if (allowed == NULL)
	{
		etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_INVALID_PARAMETER_VALUE,
						"setting \"etl.allowed_hosts\" is not valid");
		return false;
	}
	t->host_named = etl_host_named(allowed, host);
	if (etl_host_forbidden(host) ||
		(!t->host_named &&
		 (settings->proxy || !etl_host_list_has_blocks(allowed))))
	{
		etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
						"connecting to host \"%s\" is not allowed", host);
		return false;
	}
	if (settings->proxy)
	{
		char		proxy_host[256];
		char		proxy_peer[280];
		const char *wrong = parse_url(settings->proxy, proxy_host, sizeof(proxy_host),
									  proxy_peer, sizeof(proxy_peer));

		if (wrong)
		{
			etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_INVALID_PARAMETER_VALUE,
							"proxy URL %s", wrong);
			return false;
		}
		t->host_named = etl_host_named(allowed, proxy_host);
		if (etl_host_forbidden(proxy_host) ||
			(!t->host_named && !etl_host_list_has_blocks(allowed)))
		{
			etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_SQLCLIENT_UNABLE_TO_ESTABLISH_SQLCONNECTION,
							"connecting to proxy host \"%s\" is not allowed", proxy_host);
			return false;
		}
	}
	return true;
}

static bool
check_file(EtlHttpTransfer *t, const char *path)
{
	if (path == NULL || access(path, R_OK) == 0)
		return true;
	etl_answer_fail(t, ETL_HTTP_REFUSED,
					errno == ENOENT ? ERRCODE_UNDEFINED_FILE : ERRCODE_IO_ERROR,
					"could not read file \"%s\": %s", path, strerror(errno));
	return false;
}

static bool
check_request(EtlHttpTransfer *t, const EtlHttpRequest *request)
{
	char		host[256];
	char		peer[280];
	const char *wrong;
	ListCell   *lc;

	wrong = parse_url(request->url, host, sizeof(host), peer, sizeof(peer));
	t->response.peer = pstrdup(peer);
	if (wrong)
	{
		etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_INVALID_PARAMETER_VALUE,
						"destination URL %s", wrong);
		return false;
	}
	foreach(lc, request->headers)
	{
		const char *header = (const char *) lfirst(lc);

		if (!header_valid(header))
		{
			/* its text may be a secret */
			etl_answer_fail(t, ETL_HTTP_REFUSED, ERRCODE_INVALID_PARAMETER_VALUE,
							"HTTP header number %d is not valid",
							foreach_current_index(lc) + 1);
			return false;
		}
	}
	return check_hosts(t, host) &&
		check_file(t, t->http->settings.ca_file) &&
		check_file(t, t->http->settings.client_cert_file) &&
		check_file(t, t->http->settings.client_key_file);
}

/* ----------
 * Making and freeing the handle
 * ----------
 */

#define SET(option, value) \
	(ok = curl_easy_setopt(t->easy, option, value) == CURLE_OK && ok)

/* What is the same for every request. */
static bool
transfer_options(EtlHttpTransfer *t)
{
	const EtlHttpSettings *settings = &t->http->settings;
	bool		ok = true;

	SET(CURLOPT_PRIVATE, t);
	SET(CURLOPT_ERRORBUFFER, t->error);
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_QUICK_EXIT, 1L);
	SET(CURLOPT_NOPROGRESS, 1L);

	/* where to, and nowhere else */
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
	SET(CURLOPT_NETRC, (long) CURL_NETRC_IGNORED);
	SET(CURLOPT_PROXY, settings->proxy ? settings->proxy : "");
	SET(CURLOPT_NOPROXY, "");
	SET(CURLOPT_OPENSOCKETFUNCTION, on_open_socket);
	SET(CURLOPT_OPENSOCKETDATA, t);

	/* one request at a time on a connection: what HTTP/1.1 does */
	SET(CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	SET(CURLOPT_TCP_KEEPALIVE, 1L);
	SET(CURLOPT_TCP_KEEPIDLE, 30L);
	SET(CURLOPT_TCP_KEEPINTVL, 10L);
	SET(CURLOPT_CONNECTTIMEOUT_MS, (long) t->connect_timeout);
	SET(CURLOPT_TIMEOUT_MS, (long) t->request_timeout);

	/* own authorities replace the system's, they do not join them */
	SET(CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
	SET(CURLOPT_SSL_VERIFYPEER, 1L);
	SET(CURLOPT_SSL_VERIFYHOST, 2L);
	if (settings->ca_file)
	{
		SET(CURLOPT_CAINFO, settings->ca_file);
		SET(CURLOPT_CAPATH, NULL);
		SET(CURLOPT_PROXY_CAINFO, settings->ca_file);
		SET(CURLOPT_PROXY_CAPATH, NULL);
	}
	if (settings->client_cert_file)
		SET(CURLOPT_SSLCERT, settings->client_cert_file);
	if (settings->client_key_file)
		SET(CURLOPT_SSLKEY, settings->client_key_file);

	SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	SET(CURLOPT_HEADERFUNCTION, on_header);
	SET(CURLOPT_HEADERDATA, t);
	SET(CURLOPT_WRITEFUNCTION, on_answer);
	SET(CURLOPT_WRITEDATA, t);
	return ok;
}

static bool
add_header(EtlHttpTransfer *t, const char *header)
{
	struct curl_slist *longer = curl_slist_append(t->headers, header);

	if (longer == NULL)
		return false;
	t->headers = longer;
	return true;
}

/* Method, body, headers. */
static bool
request_options(EtlHttpTransfer *t, const EtlHttpRequest *request)
{
	const char *encoding = etl_compression_name(request->compression);
	bool		post = strcmp(request->method, "POST") == 0;
	bool		has_body = post || request->nspans > 0;
	bool		ok = true;
	ListCell   *lc;
	int64		length;
	char		line[64];

	if (request->connect_only)
	{
		SET(CURLOPT_CONNECT_ONLY, 1L);
		SET(CURLOPT_URL, request->url);
		return ok;
	}
	foreach(lc, request->headers)
		ok = ok && add_header(t, (const char *) lfirst(lc));
	ok = ok && add_header(t, "Expect:");

	if (has_body)
	{
		if (request->nspans == 0)
			encoding = NULL;
		t->body = etl_body_create(encoding ? request->compression : ETL_COMPRESS_NONE,
								  request->fast, request->nspans, request->spans);
		if (t->body == NULL)
			return false;
		length = etl_body_length(t->body);
		SET(CURLOPT_READFUNCTION, on_read);
		SET(CURLOPT_READDATA, t);
		SET(CURLOPT_SEEKFUNCTION, on_seek);
		SET(CURLOPT_SEEKDATA, t);
		if (length < 0 || length > 64 * 1024)
			SET(CURLOPT_UPLOAD_BUFFERSIZE, 256 * 1024L);
		if (post)
		{
			SET(CURLOPT_POST, 1L);
			SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) length);
			if (length < 0)
				ok = ok && add_header(t, "Transfer-Encoding: chunked");
		}
		else
		{
			SET(CURLOPT_UPLOAD, 1L);
			SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t) length);
		}
		if (encoding)
		{
			snprintf(line, sizeof(line), "Content-Encoding: %s", encoding);
			ok = ok && add_header(t, line);
		}
	}
	else if (strcmp(request->method, "HEAD") == 0)
		SET(CURLOPT_NOBODY, 1L);
	else
		SET(CURLOPT_HTTPGET, 1L);
	if (!post)
		SET(CURLOPT_CUSTOMREQUEST, request->method);

	if (request->user)
	{
		SET(CURLOPT_HTTPAUTH, (long) CURLAUTH_BASIC);
		SET(CURLOPT_USERNAME, request->user);
		SET(CURLOPT_PASSWORD, request->password ? request->password : "");
	}
	/*
	 * A connection that was used before may be closed by the time it is used
	 * again, so libcurl repeats a request that gets no answer there.  It may
	 * have been taken all the same.
	 */
	if (request->once)
	{
		SET(CURLOPT_FRESH_CONNECT, 1L);
		SET(CURLOPT_FORBID_REUSE, 1L);
	}
	SET(CURLOPT_URL, request->url);
	SET(CURLOPT_HTTPHEADER, t->headers);
	return ok;
}

/*
 * Make the handle.  False when the transfer has ended already: refused by our
 * rules, or out of memory.  CurrentMemoryContext is the transfer's.
 */
bool
etl_transfer_prepare(EtlHttpTransfer *t, const EtlHttpRequest *request)
{
	const EtlHttpSettings *settings = &t->http->settings;
	EtlHttpRequest own = *request;

	t->connect_timeout = settings->connect_timeout > 0 ? settings->connect_timeout : CONNECT_TIMEOUT;
	t->request_timeout = settings->request_timeout > 0 ? settings->request_timeout : REQUEST_TIMEOUT;
	if (request->timeout > 0)
		t->request_timeout = Min(t->request_timeout, request->timeout);
	t->stall_timeout = settings->stall_timeout > 0 ? settings->stall_timeout : STALL_TIMEOUT;
	t->response_limit = request->response_limit > 0 ? request->response_limit : ETL_HTTP_RESPONSE_LIMIT;
	t->connect_only = request->connect_only;

	if (!check_request(t, request))
		return false;

	if (request->nspans > 0)
	{
		Size		size = request->nspans * sizeof(EtlSpan);

		own.spans = memcpy(MemoryContextAllocHuge(t->context, size),
						   request->spans, size);
	}
	t->easy = curl_easy_init();
	if (t->easy == NULL || !transfer_options(t) || !request_options(t, &own))
	{
		etl_answer_fail(t, ETL_HTTP_FAILED, ERRCODE_OUT_OF_MEMORY,
						"could not set up a request to \"%s\"", t->response.peer);
		return false;
	}
	return true;
}

/*
 * Free what is libcurl's; the rest goes with the context.  Does nothing in a
 * process that exits: the kernel is faster.
 */
void
etl_transfer_release(EtlHttpTransfer *t)
{
	if (proc_exit_inprogress)
		return;
	if (t->easy)
	{
		if (t->in_multi)
			curl_multi_remove_handle(t->http->multi, t->easy);
		curl_easy_cleanup(t->easy);
	}
	curl_slist_free_all(t->headers);
	etl_body_free(t->body);
	t->easy = NULL;
	t->in_multi = false;
	t->headers = NULL;
	t->body = NULL;
}

/* Has libcurl taken the whole body? */
bool
etl_transfer_body_sent(const EtlHttpTransfer *t)
{
	int64		length;

	if (t->body == NULL)
		return true;
	length = etl_body_length(t->body);
	return length >= 0 ? t->sent == (uint64) length : etl_body_at_end(t->body);
}

/*
 * Watch that bytes move.  False when none did for the stall timeout while the
 * body is being sent or the answer received.  A destination may think as long
 * as the request timeout allows: libcurl's own low-speed limit cannot tell
 * that from a stall, and wakes us every second besides.
 */
bool
etl_transfer_watch(EtlHttpTransfer *t)
{
	uint64		bytes = t->sent + t->received;
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	if (bytes != t->moved_bytes)
	{
		t->moved_bytes = bytes;
		t->moved_at = now;
		t->http->moved = now;
		return true;
	}
	if (t->received == 0 && (t->sent == 0 || etl_transfer_body_sent(t)))
		return true;
	INSTR_TIME_SUBTRACT(now, t->moved_at);
	t->stalled = INSTR_TIME_GET_MILLISEC(now) > t->stall_timeout;
	return !t->stalled;
}
