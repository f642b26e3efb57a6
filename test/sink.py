#!/usr/bin/env python3
"""A receiver of HTTP requests that records them and fails as it is told.

Runs as a process of its own, for tests and by hand:

    python3 test/sink.py --port 8080 --control 8081
    curl localhost:8081/requests
    curl -X PUT localhost:8081/plan -d '[{"action": "status", "status": 500, "count": 3}]'

The first line it prints is JSON: {"port": ..., "control": ...}.  What can be
planned is in faults.py; harness/sink.py drives it from Python.  The
control port, loopback only:

    GET    /stats
    GET    /requests?since=N    JSON lines, bodies in base64
    DELETE /requests            forget them
    GET    /plan, PUT /plan, POST /plan (append), DELETE /plan
    PUT    /options             {"keep": false}: count only; {"secrets": [...]}
    POST   /stop

With secrets, a request without a valid Standard Webhooks signature is
answered 401.
"""

import argparse
import base64
import hashlib
import hmac
import http.client
import http.server
import json
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import traceback
import urllib.parse
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from faults import FaultPlan  # noqa: E402

TOLERANCE = 300  # seconds a signature's time may be off
TOOLS = {"zstd": ["zstd", "-dcq"], "lz4": ["lz4", "-dcq"]}


class Gone(Exception):
    """The peer closed, or the fault wants the connection closed."""


def decode(body, encoding):
    """The body without its content encoding."""
    if not encoding or encoding == "identity":
        return body
    if encoding == "gzip":
        return zlib.decompress(body, 31)
    return subprocess.run(TOOLS[encoding], input=body, stdout=subprocess.PIPE, check=True).stdout


def signature_fault(secrets, headers, body, now):
    """None when signed by one of the secrets, else what is wrong."""
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    message, stamp, given = (headers.get(name) for name in names)
    if not (message and stamp and given):
        return "not signed"
    if not stamp.isdigit() or abs(now - int(stamp)) > TOLERANCE:
        return "time is off"
    content = f"{message}.{stamp}.".encode() + body
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        want = "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        if any(hmac.compare_digest(want, one) for one in given.split(" ")):
            return None
    return "no signature fits"


class Sink:
    """State of the process: listener, plan, record."""

    def __init__(self, args):
        self.args = args
        self.plan = FaultPlan()
        self.lock = threading.Lock()
        self.keep = not args.count_only
        self.secrets = list(args.secret or [])
        self.requests = []
        self.stats = dict(connections=0, open=0, requests=0, taken=0, refused=0, hanging=0, bytes=0, unsigned=0)
        self.record = open(args.record, "a") if args.record else None
        self.context = self._tls() if args.cert else None
        self.listener = None
        self.port = args.port
        self.fillers = []
        self.peers = set()
        self.mode = None
        self.mode_changed = threading.Condition()
        self._listen()
        self.port = self.listener.getsockname()[1]

    def _tls(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.args.cert, self.args.key)
        if self.args.client_ca:
            context.load_verify_locations(self.args.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    # --- listening ---

    def _listen(self, backlog=128):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.args.host, self.port))
        listener.listen(backlog)
        listener.setblocking(False)
        self.listener = listener

    def _close_listener(self):
        if self.listener:
            self.listener.close()
            self.listener = None
        for filler in self.fillers:
            filler.close()
        self.fillers = []

    def _follow(self, mode, fault):
        """Bring the listener to what the plan says; who is down has no connections."""
        self._close_listener()
        with self.lock:
            peers = list(self.peers)
        for peer in peers:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if mode == "refuse":
            return
        self._listen(0 if fault and fault.full else 128)
        if fault and fault.full:
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex((self.args.host, self.port))
                self.fillers.append(filler)

    def settle(self):
        """Wait until the listener does what the plan says."""
        with self.mode_changed:
            self.mode_changed.wait_for(lambda: self.mode == self._wanted(), 5)

    def _wanted(self):
        fault = self.plan.listening()
        return fault.action if fault else None

    def serve(self):
        while True:
            changed = self.plan.changed
            wanted = self._wanted()
            if wanted != self.mode:
                self._follow(wanted, self.plan.listening())
                with self.mode_changed:
                    self.mode = wanted
                    self.mode_changed.notify_all()
            if self.mode is not None:
                changed.wait()
                continue
            if not select.select([self.listener], [], [], 0.1)[0]:
                continue
            try:
                peer, _ = self.listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._connection, args=(peer,), daemon=True).start()

    # --- one connection ---

    def _connection(self, peer):
        with self.lock:
            self.stats["connections"] += 1
            self.stats["open"] += 1
            self.peers.add(peer)
            number = self.stats["connections"]
        connection = self.make_connection(peer, number)
        try:
            connection.run()
        except (Gone, OSError):
            pass
        except Exception:
            traceback.print_exc()
        finally:
            connection.close()
            with self.lock:
                self.stats["open"] -= 1
                self.peers.discard(peer)

    def make_connection(self, peer, number):
        return Connection(self, peer, number)

    def note(self, request, answer):
        """Record a request; `answer` is the status, None if there is none."""
        request["answer"] = answer
        with self.lock:
            self.stats["requests"] += 1
            request["number"] = self.stats["requests"]
            self.stats["bytes"] += len(request["body"])
            taken = request["taken"] or (answer is not None and 200 <= answer < 300)
            request["taken"] = taken
            self.stats["taken" if taken else "refused"] += 1
            if self.keep:
                self.requests.append(request)
            if self.record:
                self.record.write(as_json(request) + "\n")
                self.record.flush()


def as_json(request):
    return json.dumps(dict(request, body=base64.b64encode(request["body"]).decode()))


class Connection:
    def __init__(self, sink, peer, number):
        self.sink = sink
        self.socket = peer
        self.number = number
        self.buffer = b""
        self.client = None
        self.reset = False

    def close(self):
        try:
            if self.reset:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.socket.shutdown(socket.SHUT_WR)
                self._drain()
        except OSError:
            pass
        self.socket.close()

    def _drain(self):
        """Take what the peer still sends, so that closing is no reset."""
        self.socket.settimeout(1)
        end = time.monotonic() + 1
        while time.monotonic() < end and self.socket.recv(65536):
            pass

    def run(self):
        fault = self.sink.plan.take("accepting")
        if fault:
            if fault.action == "hang_accept":
                self._hang()
            self.reset = fault.action == "reset_accept"
            return
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.sink.context:
            self.socket.settimeout(30)
            self.socket = self.sink.context.wrap_socket(self.socket, server_side=True)
            self.socket.settimeout(None)
            subject = (self.socket.getpeercert() or {}).get("subject", ())
            self.client = dict(pair for part in subject for pair in part).get("commonName")
        while self._request():
            pass

    # --- reading ---

    def _more(self):
        data = self.socket.recv(262144)
        if not data:
            raise Gone
        self.buffer += data

    def _line(self):
        while b"\n" not in self.buffer:
            self._more()
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.rstrip(b"\r")

    def _bytes(self, count):
        parts = [self.buffer[:count]]
        have = len(parts[0])
        self.buffer = self.buffer[count:]
        while have < count:
            data = self.socket.recv(min(count - have, 262144))
            if not data:
                raise Gone
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def _body(self, headers):
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self._bytes(int(headers.get("content-length", 0)))
        parts = []
        while True:
            size = int(self._line().split(b";")[0], 16)
            parts.append(self._bytes(size))
            self._line()
            if size == 0:
                return b"".join(parts)

    # --- one request ---

    def _request(self):
        """Serve one request; false when the connection is to be closed."""
        line = self._line()
        if not line:
            return True
        words = line.decode("latin-1").split(" ", 2)
        if len(words) != 3:
            raise Gone
        method, path, _ = words
        headers = {}
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        started = time.time()
        request = dict(method=method, path=path, headers=headers, body=b"", started=started, time=None,
                       connection=self.number, client=self.client, fault=None, taken=False, unsigned=None)
        length = int(headers.get("content-length", 0))

        fault = self.sink.plan.take("headers", path, length)
        if fault:
            return self._fail_early(request, fault)
        if headers.get("expect", "").lower() == "100-continue":
            self.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        request["body"] = self._body(headers)
        request["time"] = time.time()
        return self._respond(request)

    def _respond(self, request):
        """Answer a request that was read; false when the connection is to be closed."""
        headers = request["headers"]
        body = decode(request["body"], headers.get("content-encoding"))
        fault = self.sink.plan.take("answering", request["path"], len(body), body)
        if self.sink.secrets:
            request["unsigned"] = signature_fault(self.sink.secrets, headers, body, request["time"])
        if fault:
            return self._fail(request, fault)
        if request["unsigned"]:
            with self.sink.lock:
                self.sink.stats["unsigned"] += 1
            return self._answer(request, 401, {}, request["unsigned"].encode())
        return self._answer(request, 200, {}, b"") and headers.get("connection", "").lower() != "close"

    def _answer(self, request, status, headers, body):
        # the record first: what the peer knows to be delivered is there
        self.sink.note(request, status)
        self.socket.sendall(self._head(status, headers, len(body)) + body)
        return True

    @staticmethod
    def _head(status, headers, length):
        reason = http.client.responses.get(status, "Unknown")
        lines = [f"HTTP/1.1 {status} {reason}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    # --- faults ---

    def _fail_early(self, request, fault):
        request["fault"] = fault.action
        if fault.action == "cut":
            request["body"] = self._bytes(fault.bytes)
            self.sink.note(request, None)
            self.reset = True
            return False
        self._answer(request, fault.status, dict(fault.headers, Connection="close"), fault.body.encode())
        return False

    def _fail(self, request, fault):
        request["fault"] = fault.action
        action = fault.action
        body = fault.body.encode()
        if action == "status":
            return self._answer(request, fault.status, fault.headers, body)
        if action == "slow":
            return self._slow(request, fault)
        request["taken"] = action == "lost"
        self.sink.note(request, 200 if action == "endless" else None)
        if action == "hang":
            self._hang()
        elif action == "hang_headers":
            self.socket.sendall(self._head(200, {}, 100))
            self._hang()
        elif action == "hang_body":
            self.socket.sendall(self._head(200, {}, 100) + b"x" * 50)
            self._hang()
        elif action == "half":
            self.socket.sendall(self._head(200, {}, 100) + b"x" * 50)
        elif action == "garbage":
            self.socket.sendall(body or bytes(range(256)) * 4)
        elif action == "reset":
            self.reset = True
        elif action == "endless":
            self.socket.sendall(self._head(200, {"Connection": "close"}, None))
            self._pour(b"x" * 65536)
        elif action == "endless_headers":
            self.socket.sendall(b"HTTP/1.1 200 OK\r\n")
            self._pour(b"X-Header: " + b"x" * 1000 + b"\r\n")
        return False

    def _slow(self, request, fault):
        text = self._head(200, {}, len(fault.body)) + fault.body.encode()
        if fault.seconds:
            self.sink.plan.changed.wait(fault.seconds)
        self.sink.note(request, 200)
        if not fault.pause:
            self.socket.sendall(text)
            return True
        for i in range(len(text)):
            self.sink.plan.changed.wait(fault.pause)
            self.socket.sendall(text[i:i + 1])
        return True

    def _pour(self, data):
        while True:
            self.socket.sendall(data)

    def _hang(self):
        """Until the plan changes or the peer goes."""
        changed = self.sink.plan.changed
        with self.sink.lock:
            self.sink.stats["hanging"] += 1
        try:
            while not changed.wait(0.05):
                if select.select([self.socket], [], [], 0)[0] and not self.socket.recv(65536):
                    break
        finally:
            with self.sink.lock:
                self.sink.stats["hanging"] -= 1


class Control(http.server.BaseHTTPRequestHandler):
    """The control port."""

    protocol_version = "HTTP/1.1"
    sink = None

    def log_message(self, *args):
        pass

    def _reply(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _input(self):
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")

    def do_GET(self):
        sink = self.sink
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/stats":
            with sink.lock:
                self._reply(200, json.dumps(sink.stats) + "\n")
        elif url.path == "/plan":
            self._reply(200, json.dumps(sink.plan.left()) + "\n")
        elif url.path == "/requests":
            since = int(urllib.parse.parse_qs(url.query).get("since", ["0"])[0])
            with sink.lock:
                found = [r for r in sink.requests if r["number"] > since]
            self._reply(200, "".join(as_json(r) + "\n" for r in found))
        else:
            self._reply(404, "")

    def _change(self):
        sink = self.sink
        given = self._input()
        if self.path == "/plan":
            {"PUT": sink.plan.replace, "POST": sink.plan.add, "DELETE": lambda _: sink.plan.replace([])}[self.command](given)
            sink.settle()
        elif self.path == "/requests" and self.command == "DELETE":
            with sink.lock:
                sink.requests.clear()
        elif self.path == "/options":
            with sink.lock:
                sink.keep = given.get("keep", sink.keep)
                sink.secrets = given.get("secrets", sink.secrets)
        elif self.path == "/stop":
            self._reply(200, "")
            os._exit(0)
        else:
            return self._reply(404, "")
        self._reply(200, "")

    def do_PUT(self):
        try:
            self._change()
        except (ValueError, KeyError, TypeError) as e:
            self._reply(400, f"{e}\n")

    do_POST = do_DELETE = do_PUT


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--control", type=int, default=0)
    parser.add_argument("--cert", help="PEM; makes it TLS")
    parser.add_argument("--key")
    parser.add_argument("--client-ca", help="clients must show a certificate of it")
    parser.add_argument("--secret", action="append", help="whsec_...; signatures are checked")
    parser.add_argument("--record", help="append requests to this file, as JSON lines")
    parser.add_argument("--count-only", action="store_true", help="do not keep requests")
    return parser


def serve(sink, control_class):
    """Print the ports and serve until told to stop."""
    control_class.sink = sink
    control = http.server.ThreadingHTTPServer(("127.0.0.1", sink.args.control), control_class)
    control.daemon_threads = True
    threading.Thread(target=control.serve_forever, args=(0.05,), daemon=True).start()
    print(json.dumps({"port": sink.port, "control": control.server_address[1]}), flush=True)
    try:
        sink.serve()
    except KeyboardInterrupt:
        pass


def main():
    serve(Sink(arguments(__doc__.splitlines()[0]).parse_args()), Control)


if __name__ == "__main__":
    main()
