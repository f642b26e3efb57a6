#!/usr/bin/env python3
"""ClickHouse over HTTP: its engine (chdb) behind what its own HTTP interface says and answers.

    python3 test/engines/clickhouse.py --data /tmp/ch --port 8123 --control 8124
    curl localhost:8123/ping
    curl 'localhost:8123/?query=SELECT+version()'
    curl localhost:8123 -d 'CREATE DATABASE lake'

The first line it prints is JSON: {"port": ..., "control": ..., "version": ...}.
harness/clickhouse.py drives it from Python, proxy.py in front of it makes the
network fail.  What was answered 200 is on disk: kill -9 and a new start with
the same --data find it.

It is the real engine: SQL, types, formats, MergeTree tables with merges,
insert deduplication, Atomic databases (EXCHANGE TABLES), views, FINAL, system
tables, settings (an unknown one is code 115), privileges and error texts are
its own.  Made here: HTTP, users and passwords, query ids, KILL QUERY, content
encodings, status codes, headers.

What differs from a server
  * Each answer is complete before its status line (as with
    wait_end_of_query=1): no exception inside a body that began with 200.
    proxy.py can put one there.
  * No sessions (session_id), external tables, compress=1/decompress=1 (block
    format), JWT, certificates as users, role=, quotas, async inserts across
    requests, ON CLUSTER, Replicated engines, Keeper.  The database "default"
    is not Atomic: create one.
  * INSERT ... SELECT ... FROM input() is not fed from the body.
  * An INSERT of arrays `a.b` and `a.c` of different sizes is answered 200 and
    lost (a server: code 190).
  * A user other than "default" is a role inside: currentUser() says default,
    SHOW GRANTS shows the role.  Users come from --users or the control port,
    not from CREATE USER.
  * log_comment carries the query id: it is not the client's to set, and
    system.query_log has its own query_id and the client's as log_comment.
    SYSTEM FLUSH LOGS first, as always.
  * system.processes shows queries in the engine, not those held by a test;
    KILL QUERY sees both, by query_id, user, query and elapsed.

The control port (loopback):
    GET    /running             queries on their way
    PUT    /users               {"w": {"password": "x", "grants": ["SELECT ON lake.*"], "settings": {}}}
    PUT    /hold                {"contains": "INSERT", "when": "before" | "after", "count": 1, "skip": 0}
    DELETE /hold                let them go
    GET    /statements?since=N  JSON lines: what was run, from byte N of a log that outlives the process
    POST   /stop
"""

import argparse
import base64
import gzip
import http.client
import http.server
import json
import os
import signal
import socket
import ssl
import sys
import threading
import traceback
import urllib.parse
import uuid
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from clickhouse_core import Engine, Failure  # noqa: E402

URI_LIMIT = 1 << 20  # http_max_uri_size
PARAMETERS = {"query", "database", "user", "password", "quota_key", "query_id", "default_format", "role",
              "session_id", "session_timeout", "session_check", "wait_end_of_query", "buffer_size", "stacktrace",
              "compress", "decompress", "close_session", "client_protocol_version"}

# The status of an exception (everything else: 500).
STATUS = {code: status for status, codes in {
    400: (6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117, 123, 167, 168, 223, 321, 376, 427, 441, 675, 676),
    401: (194,),
    403: (192, 193, 497, 512, 516),
    404: (46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511),
    408: (159,),
    411: (381,),
    413: (229,),
    415: (779,),
    501: (48,),
    503: (76, 209, 439),
}.items() for code in codes}
CONTENT = {"JSON": "application/json; charset=UTF-8", "JSONCompact": "application/json; charset=UTF-8",
           "JSONEachRow": "application/x-ndjson; charset=UTF-8", "CSV": "text/csv; charset=UTF-8; header=absent",
           "TabSeparated": "text/tab-separated-values; charset=UTF-8", "TSV": "text/tab-separated-values; charset=UTF-8"}


class Gone(Exception):
    """The client went away in the middle of a request."""


def decode(body, encoding):
    """The body without its content encoding; errors are those of ClickHouse's readers."""
    encoding = (encoding or "identity").lower()
    if encoding == "identity" or not body:
        return body
    try:
        if encoding in ("gzip", "deflate"):
            return zlib.decompress(body, 31 if encoding == "gzip" else 15)
        if encoding in ("zstd", "lz4", "br", "bz2", "snappy"):
            import pyarrow

            names = {"br": "brotli"}
            stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(body), names.get(encoding, encoding))
            return stream.read()
        if encoding == "xz":
            import lzma

            return lzma.decompress(body)
    except (zlib.error, OSError, ValueError, EOFError) as error:
        code, name = {"zstd": (561, "ZSTD_DECODER_FAILED"), "lz4": (618, "LZ4_DECODER_FAILED"),
                      "gzip": (354, "ZLIB_INFLATE_FAILED")}.get(encoding, (33, "CANNOT_READ_ALL_DATA"))
        raise Failure(code, f"{encoding} stream decoding failed: {error}", name) from None
    raise Failure(89, f"Unknown compression method: {encoding}", "UNKNOWN_COMPRESSION_METHOD")


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 18
    engine = None
    keep_alive = 10
    slots = None

    def log_message(self, *args):
        pass

    # --- reading ---

    def handle_one_request(self):
        """As the library's, with ClickHouse's limit of an URI and its time-out of an idle connection."""
        try:
            self.connection.settimeout(self.keep_alive)
            self.raw_requestline = self.rfile.readline(URI_LIMIT + 64)
            self.connection.settimeout(60)
            if not self.raw_requestline:
                self.close_connection = True
                return
            if not self.parse_request():
                return
            self._serve()
            self.wfile.flush()
        except (Gone, OSError):
            self.close_connection = True

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while True:
                size = int(self.rfile.readline(100).split(b";")[0].strip() or b"x", 16)
                parts.append(self._exactly(size))
                self.rfile.readline(100)
                if size == 0:
                    return b"".join(parts)
        length = self.headers.get("Content-Length")
        if length is None:
            if self.command == "GET":
                return b""
            self.close_connection = True
            raise Failure(381, "The Transfer-Encoding is not chunked and there is no Content-Length header"
                               " for POST request", "HTTP_LENGTH_REQUIRED")
        return self._exactly(int(length))

    def _exactly(self, size):
        data = self.rfile.read(size)
        if len(data) != size:
            raise Gone
        return data

    # --- one request ---

    def _serve(self):
        url = urllib.parse.urlsplit(self.path)
        pairs = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
        if url.path == "/ping" and self.command == "GET":
            return self._answer(200, b"Ok.\n", {"Content-Type": "text/html; charset=UTF-8"})
        given = dict(pairs)
        query_id = given.get("query_id") or str(uuid.uuid4())
        headers = {"X-ClickHouse-Server-Display-Name": socket.gethostname(), "X-ClickHouse-Query-Id": query_id,
                   "X-ClickHouse-Timezone": self.engine.timezone}
        if url.path != "/":
            return self._answer(404, f"There is no handle {self.path}\n\nUse / or /ping for health checks.\n".encode())
        try:
            body = self._body()  # read even if refused, so that the connection can go on
            if self.command == "GET" and "query" not in given:
                return self._answer(200, b"Ok.\n", {"Content-Type": "text/html; charset=UTF-8"})
            user = self._user(given)
            source = decode(body, self.headers.get("Content-Encoding"))
            if given.get("query"):
                text = given["query"].encode("utf-8", "surrogateescape")
                source = text + b"\n" + source if source else text
            settings = {name: value for name, value in pairs if name not in PARAMETERS}
            default_format = given.get("default_format") or self.headers.get("X-ClickHouse-Format") or "TabSeparated"
            with self.slots:
                statement, result = self.engine.run(
                    source, user, given.get("database") or self.headers.get("X-ClickHouse-Database"), query_id, settings,
                    self.command == "GET", default_format)
        except Failure as failure:
            return self._fail(failure, headers)
        except (Gone, OSError):
            raise
        except Exception as error:
            traceback.print_exc()
            return self._fail(Failure(1001, f"{type(error).__name__}: {error}", "STD_EXCEPTION"), headers)
        shown = statement.format if statement.data is None and statement.format else default_format
        headers.update({"Content-Type": CONTENT.get(shown, "application/octet-stream"), "X-ClickHouse-Format": shown,
                        "X-ClickHouse-Summary": self._summary(result)})
        data = result.data
        if given.get("enable_http_compression") == "1" and "gzip" in self.headers.get("Accept-Encoding", ""):
            data, headers["Content-Encoding"] = gzip.compress(data, 1), "gzip"
        return self._answer(200, data, headers)

    @staticmethod
    def _summary(result):
        return json.dumps({name: str(value) for name, value in result.summary.items()}, separators=(",", ":"))

    def _user(self, given):
        """Who asks, by one of three ways; two at a time are refused."""
        name, key = self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key")
        basic = self.headers.get("Authorization")
        parameters = "user" in given or "password" in given
        if (name or key) and (basic or parameters) or (basic and parameters):
            raise Failure(516, "Invalid authentication: it is not allowed to use several ways of authentication simultaneously")
        if name or key:
            user, password = name or "default", key or ""
        elif basic:
            scheme, _, value = basic.partition(" ")
            if scheme.lower() != "basic":
                raise Failure(516, f"Invalid authentication: '{scheme}' HTTP Authorization scheme is not supported")
            try:
                user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            except ValueError:
                raise Failure(516, "Invalid authentication: malformed credentials") from None
        else:
            user, password = given.get("user", "default"), given.get("password", "")
        self.engine.authenticate(user, password)
        return user

    # --- answering ---

    def _fail(self, failure, headers):
        status = STATUS.get(failure.code, 500)
        text = f"{failure} (version {self.engine.version} (official build))\n"
        headers = dict(headers, **{"X-ClickHouse-Exception-Code": str(failure.code), "Content-Type": "text/plain; charset=UTF-8"})
        self._answer(status, text.encode("utf-8", "surrogateescape"), headers)

    def _answer(self, status, body, headers=None):
        head = [f"HTTP/1.1 {status} {http.client.responses.get(status, 'Unknown')}",
                f"Date: {self.date_time_string()}",
                f"Connection: {'Close' if self.close_connection else 'Keep-Alive'}",
                f"Keep-Alive: timeout={self.keep_alive}"]
        head += [f"{name}: {value}" for name, value in (headers or {}).items()]
        head.append(f"Content-Length: {len(body)}")
        self.wfile.write(("\r\n".join(head) + "\r\n\r\n").encode("latin-1", "replace") + body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A client that goes, or fails in its handshake, is nothing to tell of."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()


class Control(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None

    def log_message(self, *args):
        pass

    def _reply(self, status, text=""):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self):
        engine = self.engine
        url = urllib.parse.urlsplit(self.path)
        what = self.command, url.path
        given = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        if what == ("GET", "/running"):
            return self._reply(200, json.dumps(engine.views()))
        if what == ("GET", "/statements"):
            with open(engine.folder / "statements.jsonl") as log:
                log.seek(int(urllib.parse.parse_qs(url.query).get("since", ["0"])[0]))
                return self._reply(200, log.read())
        if what == ("PUT", "/users"):
            engine.change_users(given)
        elif what == ("PUT", "/hold"):
            engine.hold(**given)
        elif what == ("DELETE", "/hold"):
            engine.release()
        elif what == ("POST", "/stop"):
            self._reply(200)
            engine.close()
            os._exit(0)
        else:
            return self._reply(404)
        return self._reply(200)

    def do_GET(self):
        try:
            self._handle()
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            self._reply(400, f"{error}\n")

    do_PUT = do_POST = do_DELETE = do_GET


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder, made if needed")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--control", type=int, default=0)
    parser.add_argument("--cert", help="PEM; makes it TLS")
    parser.add_argument("--key")
    parser.add_argument("--users", help="JSON, as for the control port; else those of the last run")
    parser.add_argument("--keep-alive", type=int, default=10, help="seconds an idle connection is kept")
    parser.add_argument("--concurrency", type=int, default=32, help="queries in the engine at once")
    args = parser.parse_args()

    engine = Engine(args.data, json.loads(args.users) if args.users else None)
    Handler.engine = Control.engine = engine
    Handler.keep_alive = args.keep_alive
    Handler.slots = threading.BoundedSemaphore(args.concurrency)
    server = Server((args.host, args.port), Handler)
    if args.cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(args.cert, args.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    control = http.server.ThreadingHTTPServer(("127.0.0.1", args.control), Control)
    control.daemon_threads = True
    threading.Thread(target=control.serve_forever, args=(0.05,), daemon=True).start()

    def stop(*_):
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(json.dumps({"port": server.server_address[1], "control": control.server_address[1],
                      "version": engine.version}), flush=True)
    server.serve_forever(0.1)
    engine.close()
    os._exit(0)


if __name__ == "__main__":
    main()
