"""The README does what it says: its blocks run in order, on a server made from nothing.

A comment before a block says how it is run:
  <!-- not run: reason -->          it is not
  <!-- file: name -->               it is saved under that name
  <!-- background -->               the command goes on while the rest runs
  <!-- wait: SQL -->                the block waits until the query is true
  <!-- output of the background program -->   what it printed so far
  <!-- at ClickHouse -->             SQL of the other side
A `text` block behind an `sql` block is that block's output.
"""

import re
import shlex
import signal
import socket
import subprocess

import pytest
from harness import wait_until
from harness.clickhouse import ClickHouse
from harness.server import unprivileged

BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*?) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.S | re.M)
PORT = "8099"
CLICKHOUSE = "8123"


def blocks(path):
    return [(m["kind"], m["note"] or "", m["text"]) for m in BLOCK.finditer(path.read_text())]


def plain(text):
    return [line.rstrip() for line in text.strip("\n").splitlines() if line.strip()]


class Run:
    """A shell's memory: the database one is connected to, the program in the background."""

    def __init__(self, server):
        self.server = server
        self.db = "postgres"
        self.program = None
        self.port = self._free_port()
        self.ch = None

    @staticmethod
    def _free_port():
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return str(s.getsockname()[1])

    def text(self, text):
        if CLICKHOUSE in text:
            text = text.replace(CLICKHOUSE, str(self.clickhouse().port))
        return text.replace(PORT, self.port)

    def clickhouse(self):
        self.ch = self.ch or ClickHouse(proxy=False)
        return self.ch

    def sql(self, text):
        done = self.server.psql("\\set QUIET 1\n" + self.text(text), self.db)
        connected = re.findall(r"^\\connect (\w+)", text, re.M)
        self.db = connected[-1] if connected else self.db
        return done.stdout

    def start(self, command):
        self.output = open(self.server.base / "program.out", "w")
        self.program = subprocess.Popen(unprivileged(shlex.split(command)), cwd=self.server.base,
                                        stdout=self.output, stderr=subprocess.STDOUT)
        wait_until(self._listens, 20, "the program listens")

    def _listens(self):
        with socket.create_connection(("127.0.0.1", int(self.port)), 1):
            return True

    def printed(self):
        return (self.server.base / "program.out").read_text()

    def end(self):
        if self.ch:
            self.ch.close()
        if self.program:
            self.program.send_signal(signal.SIGTERM)
            self.program.wait(20)
            self.output.close()


@pytest.fixture
def run(fresh_server):
    server = fresh_server(conf={"shared_preload_libraries": None, "wal_level": None, "etl.max_workers": None,
                                "max_worker_processes": None, "max_replication_slots": None}, start=False)
    server.init()
    made = Run(server)
    yield made
    made.end()


def test_readme(run, top):
    server = run.server
    todo = blocks(top / "README.md")
    assert len(todo) > 15
    output = ""
    for kind, note, text in todo:
        what, _, argument = note.partition(": ")
        if what == "not run":
            assert len(argument) > 20, "a reason"
        elif what == "file":
            (server.base / argument).write_text(run.text(text))
        elif what == "background":
            run.start(run.text(text.strip()))
        elif what == "output of the background program":
            assert plain(run.printed()) == plain(text)
        elif kind == "conf":
            server.write_conf(**dict(line.split(" = ") for line in plain(text)))
            server.start()
        elif kind == "sql":
            if what == "wait":
                wait_until(lambda: server.value(argument, db=run.db), 30, argument)
                server.close()
            if note == "at ClickHouse":
                output = run.clickhouse().execute(text).body.decode()
            else:
                output = run.sql(text)
        elif kind == "text":
            assert plain(output) == plain(text)
        else:
            raise AssertionError(f"a block that nobody runs: {kind} {text}")


PREAMBLE = """
CREATE EXTENSION etl;
CREATE TABLE customers (id bigint PRIMARY KEY);
CREATE TABLE orders (id bigint PRIMARY KEY);
CREATE PUBLICATION orders_pub FOR TABLE orders;
"""


def test_blocks_of_the_pages(fresh_server, top):
    """SQL in doc/ is accepted; nothing else is there without a reason."""
    server = fresh_server()
    for number, page in enumerate(sorted((top / "doc").glob("*.md"))):
        todo = blocks(page)
        db = server.create_database(f"page{number}", extension=False)
        server.psql(PREAMBLE, db)
        if "CREATE SERVER hook" not in page.read_text():
            server.psql("CREATE SERVER hook FOREIGN DATA WRAPPER etl_webhook OPTIONS (url 'http://127.0.0.1:9/')", db)
            if "create_pipeline('orders'" not in page.read_text():
                server.psql("SELECT etl.create_pipeline('orders', 'orders_pub', 'hook')", db)
        for kind, note, text in todo:
            if note.startswith("not run: "):
                assert len(note) > 28, "a reason"
            elif kind == "sql":
                server.psql(text, db)
            else:
                assert kind not in ("sh", "python", "conf"), f"{page.name}: {text}"


def test_links_lead_somewhere(top):
    for page in [top / "README.md", *sorted((top / "doc").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
