"""A receiver of webhooks in the test's own process."""

import gzip
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Request:
    """One delivery as it came."""

    number: int
    headers: dict  # names in lower case
    body: bytes  # uncompressed
    answer: int = 200

    @property
    def kind(self):
        return self.headers.get("content-type", "").split(";")[0].strip()

    def texts(self):
        """The JSON text of every event, as bytes, in order."""
        if self.kind == "application/x-ndjson":
            return self.body.split(b"\n")[:-1]
        return [json.dumps(e).encode() for e in self.events()]

    def events(self):
        """Event objects in order, whatever the wrapping.  Floats stay text."""
        load = lambda text: json.loads(text, parse_float=str, parse_constant=str)
        if self.kind == "application/x-ndjson":
            return [load(line) for line in self.body.splitlines()]
        body = load(self.body)
        if self.kind == "application/cloudevents-batch+json":
            return [e["data"] for e in body]
        return body["data"]["events"]


class Receiver:
    """Takes deliveries and keeps them.

    `answer`: a function (Request) -> status, (status, headers) or None (200),
    called before the request is kept; may block.  `keep=False` counts bytes
    and requests only (for large loads).
    """

    def __init__(self, answer=None, keep=True):
        self.answer = answer
        self.keep = keep
        self.requests = []
        self.bytes = 0
        self.count = 0
        self.lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_POST(self):
                receiver._take(self)

            def log_message(self, *args):
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self.httpd = Listener(("127.0.0.1", 0), Handler)
        self.port = self.httpd.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def _take(self, handler):
        body = self._read(handler)
        if body is None:
            handler.close_connection = True
            return
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        headers = {k.lower(): v for k, v in handler.headers.items()}
        with self.lock:
            self.count += 1
            self.bytes += len(body)
            request = Request(self.count, headers, body)
        result = self.answer(request) if self.answer else None
        status, more = result if isinstance(result, tuple) else (result or 200, {})
        request.answer = status
        if self.keep:
            with self.lock:
                self.requests.append(request)
        try:
            handler.send_response(status)
            for name, value in more.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        except OSError:
            handler.close_connection = True

    @staticmethod
    def _read(handler):
        if handler.headers.get("Expect", "").lower() == "100-continue":
            pass  # answered by BaseHTTPRequestHandler
        if handler.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while True:
                size = int(handler.rfile.readline().split(b";")[0] or b"0", 16)
                part = handler.rfile.read(size)
                handler.rfile.readline()
                if size == 0:
                    return b"".join(parts)
                parts.append(part)
        length = int(handler.headers.get("Content-Length", 0))
        body = handler.rfile.read(length)
        return body if len(body) == length else None

    def delivered(self):
        """Requests that were answered 2xx."""
        with self.lock:
            return [r for r in self.requests if 200 <= r.answer < 300]

    def events(self):
        """Delivered events in order of arrival, the first of each (source, id)."""
        seen, out = set(), []
        for request in self.delivered():
            for event in request.events():
                key = (event["source"], event["id"])
                if key not in seen:
                    seen.add(key)
                    out.append(event)
        return out

    def state(self):
        from .state import State

        return State(self.events())

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()
