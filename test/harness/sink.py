"""Driving the receiver that fails as it is told (test/sink.py)."""

import base64
import http.client
import json
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from .receiver import Receiver, Request
from .wait import wait_until

PROGRAM = Path(__file__).resolve().parent.parent / "sink.py"
TOOLS = {"zstd": ["zstd", "-dcq"], "lz4": ["lz4", "-dcq"]}


@dataclass
class Delivery(Request):
    """A request as the sink recorded it.  `answer` is None when there was none."""

    raw: bytes = b""
    path: str = ""
    method: str = ""
    time: float = 0  # when the body was complete
    connection: int = 0
    client: str | None = None  # common name of the client's certificate
    fault: str | None = None
    taken: bool = False
    unsigned: str | None = None

    @classmethod
    def of(cls, record):
        raw = base64.b64decode(record["body"])
        encoding = record["headers"].get("content-encoding")
        return cls(number=record["number"], headers=record["headers"], body=_decoded(raw, encoding),
                   answer=record["answer"], raw=raw,
                   **{name: record[name] for name in ("path", "method", "time", "connection", "client", "fault",
                                                      "taken", "unsigned")})


def _decoded(raw, encoding):
    if not raw or not encoding:
        return raw
    if encoding == "gzip":
        return zlib.decompress(raw, 31)
    done = subprocess.run(TOOLS[encoding], input=raw, stdout=subprocess.PIPE)
    return done.stdout if done.returncode == 0 else raw


class Sink:
    """Starts a sink; with it as with a Receiver (url, delivered, events, state).

    with Sink(secrets=[...], authority=authority, client_ca=True) as sink:
        sink.plan({"action": "status", "status": 503, "count": 2})
    """

    def __init__(self, secrets=(), authority=None, client_ca=False, port=0, keep=True, path="/hook"):
        command = [sys.executable, str(PROGRAM), "--port", str(port)]
        for secret in secrets:
            command += ["--secret", secret]
        if authority:
            command += ["--cert", str(authority.cert), "--key", str(authority.key)]
            if client_ca:
                command += ["--client-ca", str(authority.ca)]
        if not keep:
            command.append("--count-only")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ports = json.loads(self.process.stdout.readline())
        self.port = ports["port"]
        self.control = ports["control"]
        self.host = "localhost" if authority else "127.0.0.1"
        self.url = f"{'https' if authority else 'http'}://{self.host}:{self.port}{path}"
        self._seen = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def _ask(self, method, path, given=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=30)
        try:
            connection.request(method, path, json.dumps(given) if given is not None else None)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"{method} {path}: {answer.status} {text}")
        return text

    # --- faults ---

    def plan(self, *faults):
        """Replace the plan; no argument: all well."""
        self._ask("PUT", "/plan", list(faults))

    def add(self, *faults):
        self._ask("POST", "/plan", list(faults))

    def left(self):
        """Faults not yet used up."""
        return json.loads(self._ask("GET", "/plan"))

    def down(self):
        """The port is closed, connections are dropped."""
        self.plan({"action": "refuse", "count": None})

    def hang(self):
        """Every request waits for an answer until the next plan."""
        self.plan({"action": "hang", "count": None})

    def options(self, **given):
        self._ask("PUT", "/options", given)

    # --- what came ---

    def stats(self):
        return json.loads(self._ask("GET", "/stats"))

    def requests(self):
        """All requests so far, as Delivery, oldest first."""
        since = self._seen[-1].number if self._seen else 0
        for line in self._ask("GET", f"/requests?since={since}").splitlines():
            self._seen.append(Delivery.of(json.loads(line)))
        return list(self._seen)

    def forget(self):
        self._ask("DELETE", "/requests")
        self._seen = []

    def delivered(self):
        """Requests that a receiver would have kept."""
        return [r for r in self.requests() if r.taken]

    events = Receiver.events
    state = Receiver.state

    def wait_stats(self, condition, timeout=30, what="the sink"):
        return wait_until(lambda: condition(self.stats()), timeout, what)
