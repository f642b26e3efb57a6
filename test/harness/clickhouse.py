"""Driving ClickHouse (engines/clickhouse.py) and the proxy in front of it, and comparing with it."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from .rowbinary import read_rows
from .sink import Sink
from .wait import wait_until

ENGINES = Path(__file__).resolve().parent.parent / "engines"


class ClickHouseError(Exception):
    """An answer that is an exception of ClickHouse."""

    def __init__(self, status, code, text):
        super().__init__(text.strip())
        self.status, self.code = status, code


@dataclass
class Answer:
    status: int
    headers: dict  # names in lower case
    body: bytes

    @property
    def summary(self):
        return {k: int(v) for k, v in json.loads(self.headers.get("x-clickhouse-summary", "{}")).items()}


def exception(code, name, status=500, text="made by the test", **fault):
    """A fault: an exception of ClickHouse, e.g. exception(252, "TOO_MANY_PARTS", contains="INSERT")."""
    return {"action": "status", "status": status, **fault,
            "headers": {"X-ClickHouse-Exception-Code": str(code), "Content-Type": "text/plain; charset=UTF-8"},
            "body": f"Code: {code}. DB::Exception: {text}. ({name}) (version 26.9.2.1 (official build))\n"}


def exception_in_body(code, name, text="made by the test", **fault):
    """A fault: the exception comes inside a body that began with 200, as since 25.11."""
    message = f"Code: {code}. DB::Exception: {text}. ({name}) (version 26.9.2.1 (official build))\n"
    tag = "abcdefghijklmnop"
    return {"action": "status", "status": 200, **fault, "headers": {"X-ClickHouse-Exception-Tag": tag},
            "body": f"\r\n__exception__\r\n{tag}\r\n{message}{len(message)} {tag}\r\n__exception__\r\n"}


def exception_without_tag(code, name, text="made by the test", **fault):
    """A fault: the same of servers before 25.11, whose body just ends with the exception."""
    return {"action": "status", "status": 200, **fault,
            "body": f"Code: {code}. DB::Exception: {text}. ({name}) (version 26.9.2.1 (official build))\n"}


class Proxy(Sink):
    """Starts a proxy before host:port; plan(), add(), down(), hang(), stats() as a Sink's."""

    def __init__(self, upstream, authority=None, port=0, bodies=False):
        command = [sys.executable, str(ENGINES / "proxy.py"), "--upstream", upstream, "--port", str(port)]
        if authority:
            command += ["--cert", str(authority.cert), "--key", str(authority.key)]
        if bodies:
            command.append("--bodies")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ports = json.loads(self.process.stdout.readline())
        self.port, self.control = ports["port"], ports["control"]
        self.host = "localhost" if authority else "127.0.0.1"
        self.url = f"{'https' if authority else 'http'}://{self.host}:{self.port}/"
        self._seen = []

    def requests(self):
        """All requests so far, oldest first, with .query (decoded), .parameters, .answer, .applied, .fault."""
        since = self._seen[-1].number if self._seen else 0
        for line in self._ask("GET", f"/requests?since={since}").splitlines():
            made = SimpleNamespace(**json.loads(line))
            made.parameters = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(made.path).query, keep_blank_values=True))
            made.query = made.parameters.get("query", "")
            self._seen.append(made)
        return list(self._seen)

    def release(self):
        """Send what "later" and "duplicate" have kept; the engine's statuses."""
        return json.loads(self._ask("POST", "/release"))


class ClickHouse:
    """An engine with a folder of its own and (unless proxy=False) a proxy before it.

    with ClickHouse() as ch:
        ch.create_database("lake")
        ch.rows("SELECT * FROM lake.t")
        ch.proxy.plan({"action": "lost", "contains": "INSERT"})

    `url` leads through the proxy, for pipelines; the methods here go past it.
    """

    def __init__(self, folder=None, users=None, authority=None, proxy=True, bodies=False, keep_alive=10, port=0):
        self._own = None
        if folder is None:
            self._own = tempfile.TemporaryDirectory(
                prefix="clickhouse.", dir=os.environ.get("ETL_TMP") or "/tmp", ignore_cleanup_errors=True)
        self.folder = Path(folder or self._own.name)
        self.users = users
        self.keep_alive = keep_alive
        # the engine speaks TLS itself only where no proxy does
        self.authority = None if proxy else authority
        self.port, self.control, self.process, self.version = port, 0, None, None
        self.proxy = None
        self.start()
        if proxy:
            self.proxy = Proxy(f"127.0.0.1:{self.port}", authority, bodies=bodies)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # --- life ---

    @property
    def direct_url(self):
        scheme, host = ("https", "localhost") if self.authority else ("http", "127.0.0.1")
        return f"{scheme}://{host}:{self.port}/"

    @property
    def url(self):
        return self.proxy.url if self.proxy else self.direct_url

    def start(self):
        """At the same port as before."""
        command = [sys.executable, str(ENGINES / "clickhouse.py"), "--data", str(self.folder),
                   "--port", str(self.port), "--control", str(self.control), "--keep-alive", str(self.keep_alive)]
        if self.users is not None:
            command += ["--users", json.dumps(self.users)]
        if self.authority:
            command += ["--cert", str(self.authority.cert), "--key", str(self.authority.key)]
        with open(f"{self.folder}.log", "a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the engine does not start: {Path(f'{self.folder}.log').read_text()[-3000:]}")
        told = json.loads(line)
        self.port, self.control, self.version = told["port"], told["control"], told["version"]
        return self

    def stop(self):
        if self.process:
            self.process.terminate()
            self._gone()

    def kill9(self):
        self.process.kill()
        self._gone()

    def _gone(self):
        self.process.wait(30)
        self.process.stdout.close()
        self.process = None

    def restart(self):
        self.stop()
        return self.start()

    def close(self):
        if self.proxy:
            self.proxy.close()
        if self.process:
            self.kill9()
        Path(f"{self.folder}.log").unlink(missing_ok=True)
        if self._own:
            self._own.cleanup()

    # --- asking ---

    def ask(self, query=None, body=b"", headers=None, method="POST", path="/", **parameters):
        """One request as it is; an Answer, whatever its status."""
        if query is not None:
            parameters["query"] = query
        if self.authority:
            import ssl

            context = ssl.create_default_context(cafile=str(self.authority.ca))
            connection = http.client.HTTPSConnection("localhost", self.port, timeout=120, context=context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            target = path + ("?" + urllib.parse.urlencode(parameters) if parameters else "")
            connection.request(method, target, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def execute(self, sql, **parameters):
        """Run a statement; the Answer, or ClickHouseError."""
        answer = self.ask(None, sql if isinstance(sql, bytes) else sql.encode(), **parameters)
        if answer.status != 200:
            raise ClickHouseError(answer.status, int(answer.headers.get("x-clickhouse-exception-code", 0)),
                                  answer.body.decode(errors="replace"))
        return answer

    def table(self, sql, text=True, **parameters):
        """(names, types, rows) of a query, values typed; Strings are bytes with text=False."""
        return read_rows(self.execute(sql, default_format="RowBinaryWithNamesAndTypes", **parameters).body, text)

    def query(self, sql, **parameters):
        """Rows of a query as tuples: int, Decimal, float, date, datetime, UUID, str (bytes if no UTF-8), list, None."""
        return self.table(sql, **parameters)[2]

    def rows(self, sql, **parameters):
        """The same as dictionaries."""
        names, _, rows = self.table(sql, **parameters)
        return [dict(zip(names, row)) for row in rows]

    def value(self, sql, **parameters):
        rows = self.query(sql, **parameters)
        return rows[0][0] if rows else None

    def create_database(self, name):
        self.execute(f"CREATE DATABASE IF NOT EXISTS `{name}`")
        return name

    def tables(self, database):
        """Names of its tables and views, with their comments."""
        return dict(self.query("SELECT name, comment FROM system.tables WHERE database = {d:String} ORDER BY name",
                               param_d=database))

    def columns(self, database, table):
        """[(name, type, comment)] in order."""
        return self.query("SELECT name, type, comment FROM system.columns WHERE database = {d:String}"
                          " AND table = {t:String} ORDER BY position", param_d=database, param_t=table)

    # --- control ---

    def _control(self, method, path, given=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=60)
        try:
            connection.request(method, path, json.dumps(given) if given is not None else None)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"{method} {path}: {answer.status} {text}")
        return text

    def set_users(self, **users):
        """set_users(default={}, w={"password": "x", "grants": ["SELECT ON lake.*"]}), kept over restarts."""
        if self.users is not None:
            self.users = users
        self._control("PUT", "/users", users)

    def hold(self, contains="", when="before", count=1, skip=0):
        """Let queries that contain this text wait in the engine, before or after they run."""
        self._control("PUT", "/hold", dict(contains=contains, when=when, count=count, skip=skip))

    def release(self):
        self._control("DELETE", "/hold")

    def running(self):
        return json.loads(self._control("GET", "/running"))

    def wait_held(self, count=1, timeout=30):
        """Until this many queries are held; their descriptions."""
        def held():
            found = [r for r in self.running() if r["held"]]
            return found if len(found) >= count else None

        return wait_until(held, timeout, f"{count} queries held")

    def statements(self, contains="", since=0):
        """What was run (query_id, user, query, code, written_rows), also before restarts.

        The query of an INSERT has neither its FORMAT nor its data.
        """
        found = map(json.loads, self._control("GET", f"/statements?since={since}").splitlines())
        return [s for s in found if contains in s["query"]]
