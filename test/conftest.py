"""Fixtures: one server for the session, fresh ones for those who kill them."""

import itertools
import os
import sys
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import Receiver, Server  # noqa: E402
from harness.clickhouse import ClickHouse  # noqa: E402
from harness.pipeline import FAST, clickhouse, drop, webhook  # noqa: E402

_numbers = itertools.count(1)
_alive = []
_log_starts = {}


def pytest_collection_modifyitems(config, items):
    if os.environ.get("ETL_LONG"):
        return
    long_ones = [item for item in items if item.get_closest_marker("long")]
    if long_ones:
        config.hook.pytest_deselected(items=long_ones)
        items[:] = [item for item in items if item not in long_ones]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Show the end of each server's log, and keep it, when a test fails."""
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    for s in _alive:
        text = s.log(_log_starts.get(id(s), 0))
        if not text:
            continue
        report.sections.append((f"log of {s.base.name}", text[-4000:]))
        if os.environ.get("ETL_TMP"):
            name = "".join(c if c.isalnum() else "_" for c in f"{item.name}_{report.when}")
            Path(os.environ["ETL_TMP"], f"{name[:80]}_{s.base.name}.log").write_text(text)


@pytest.fixture(scope="session")
def top():
    """The source tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def server():
    """The session's server: etl preloaded, many workers and slots."""
    with _server("shared") as made:
        yield made


@pytest.fixture
def fresh_server():
    """Makes servers of a test's own: fresh_server(conf={...}, start=True)."""
    made = []

    def make(conf=None, start=True):
        s = Server(conf, name="fresh")
        made.append(s)
        _alive.append(s)
        return s.start() if start else s

    yield make
    for s in made:
        _gone(s)


@pytest.fixture
def db(server):
    """A database of the test's own on the session's server, etl installed."""
    name = f"db{next(_numbers)}"
    server.create_database(name)
    yield name
    if server.running:
        server.drop_database(name)


@pytest.fixture
def receiver():
    """A receiver of webhooks that answers 200."""
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def receivers():
    """Makes receivers: receivers(answer=...)."""
    made = []

    def make(*args, **kwargs):
        made.append(Receiver(*args, **kwargs))
        return made[-1]

    yield make
    for r in made:
        r.close()


@pytest.fixture
def follow(server, db, receiver):
    """follow(sql): make what it says, then a pipeline to a receiver; returns psql of the database."""
    def make(sql, **options):
        server.psql(sql, db)
        webhook(server, db, receiver, options_={"retry_delay": "50ms", "max_retry_delay": "200ms", **options})
        server.wait_for("p", db)
        return lambda text: server.psql(text, db)

    yield make
    if server.status("p", db):
        drop(server, db)


# --- ClickHouse ---


@pytest.fixture(scope="module")
def ch():
    """An engine behind the fault proxy."""
    with ClickHouse() as made:
        yield made


@pytest.fixture
def lake(ch):
    """A database of the test's own at ClickHouse."""
    name = "lake_" + uuid.uuid4().hex[:8]
    ch.create_database(name)
    yield name
    if ch.proxy:
        ch.proxy.plan()
        ch.release()
    ch.execute(f"DROP DATABASE {name}")


@pytest.fixture
def start(server, db, ch, lake):
    """start("t, u", {options}) makes publication and pipeline."""
    def make(tables, options=None, **kwargs):
        server.sql(f"CREATE PUBLICATION pub FOR TABLE {tables}", db=db)
        return clickhouse(server, db, ch, lake, options_={**FAST, **(options or {})}, **kwargs)

    return make


@pytest.fixture(autouse=True)
def no_crash(request):
    """No PANIC, failed assertion or killed server process, unless marked "crashes"."""
    _log_starts.clear()
    _log_starts.update({id(s): s.log_size() for s in _alive})
    yield
    lines = [line for s in _alive for line in s.crashes(_log_starts.get(id(s), 0))]
    _alive[:] = [s for s in _alive if s.base.exists()]
    if not request.node.get_closest_marker("crashes"):
        assert not lines, f"the server's log says: {lines[:5]}"


class _server:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.server = Server(name=self.name)
        _alive.append(self.server)
        return self.server.start()

    def __exit__(self, *exc):
        _gone(self.server)


def _gone(s):
    s.destroy()
