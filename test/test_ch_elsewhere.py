"""A destination that is not the one that we left: nothing is split between two places, and going back goes on."""

import uuid

import pytest

from harness.clickhouse import ClickHouse
from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import FAST, clickhouse
from harness.wait import wait_until

NONE = "the destination has none of the tables that were copied to it"
ENGINES = {"replacing_merge_tree": assert_current, "merge_tree": assert_log}


@pytest.fixture
def places(ch):
    """Two databases at ClickHouse."""
    names = ["lake_" + uuid.uuid4().hex[:8], "pond_" + uuid.uuid4().hex[:8]]
    for name in names:
        ch.create_database(name)
    yield names
    ch.proxy.plan()
    ch.release()
    for name in names:
        ch.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture(params=ENGINES)
def equal(request):
    """Of both engines; equal(...) compares."""
    compare = ENGINES[request.param]
    compare.engine = request.param
    return compare


def make(server, db, ch, database, engine, tables=("t", "u")):
    for name in tables:
        server.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} SELECT g, 'x' FROM generate_series(1, 20) g", db=db)
    server.sql(f"CREATE PUBLICATION pub FOR TABLE {', '.join(tables)}", db=db)
    clickhouse(server, db, ch, database, options_={**FAST, "engine": engine})
    server.wait_for("p", db)


def failed(server, db, times=1):
    told = "SELECT count(*) FROM etl.error_log WHERE message LIKE '%none of the tables%'"
    wait_until(lambda: server.value(told, db=db) == times and server.status("p", db)["state"] == "failed", 30, "failed")
    wait_until(lambda: not server.backends("etl writer", db) and not server.backends("etl apply", db), 10, "its workers are gone")
    status = server.status("p", db)
    assert NONE in status["last_error"] and not status["healthy"], status
    hint = server.value("SELECT hint FROM etl.error_log WHERE message LIKE '%%none of the tables%%' LIMIT 1", db=db)
    assert '"s_p"' in hint and "etl.resync_pipeline()" in hint, hint
    assert all(t["state"] == "ready" for t in server.tables("p", db).values())
    return status


def stop(server, db):
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped" and not server.backends("etl writer", db), 10, "stopped")


def generations(server, db):
    return {name: t["generation"] for name, t in server.tables("p", db).items()}


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_another_database_fails_and_going_back_goes_on(server, db, ch, places, equal, running):
    here, there = places
    make(server, db, ch, here, equal.engine)
    if not running:
        stop(server, db)
    server.sql(f"ALTER SERVER s_p OPTIONS (SET database '{there}')", db=db)
    if not running:
        server.sql("SELECT etl.start_pipeline('p')", db=db)
    failed(server, db)
    server.sql("INSERT INTO t VALUES (100, 'while it had failed'); DELETE FROM u WHERE id = 1", db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    failed(server, db, 2)
    assert ch.tables(there) == {}

    server.sql(f"ALTER SERVER s_p OPTIONS (SET database '{here}')", db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    equal(server, db, ch, here, ["public.t", "public.u"])
    assert set(generations(server, db).values()) == {1}


def test_another_url_fails_and_a_resync_takes_it(server, db, ch, places, equal):
    here = places[0]
    make(server, db, ch, here, equal.engine)
    with ClickHouse() as other:
        other.create_database(here)
        server.sql(f"ALTER SERVER s_p OPTIONS (SET url '{other.url}')", db=db)
        failed(server, db)
        server.sql("INSERT INTO t VALUES (100, 'while it had failed')", db=db)
        server.sql("SELECT etl.resync_pipeline('p'); SELECT etl.start_pipeline('p')", db=db)
        server.wait_for("p", db)
        equal(server, db, other, here, ["public.t", "public.u"])
        assert set(generations(server, db).values()) == {2}
        before = ch.query(f"SELECT count() FROM {here}.public_t")
        server.sql("INSERT INTO t VALUES (101, 'there')", db=db)
        server.wait_for("p", db)
        equal(server, db, other, here, ["public.t", "public.u"])
        assert ch.query(f"SELECT count() FROM {here}.public_t") == before

        # what the first place has is of an older generation: not ours any more
        server.sql(f"ALTER SERVER s_p OPTIONS (SET url '{ch.url}')", db=db)
        failed(server, db, 2)
        server.sql("SELECT etl.resync_pipeline('p'); SELECT etl.start_pipeline('p')", db=db)
        server.wait_for("p", db)
        equal(server, db, ch, here, ["public.t", "public.u"])
    assert [name for name in ch.tables(here) if name.startswith("_etl_")] == []


def test_moved_while_running_with_a_resync_in_one_transaction(server, db, ch, places):
    here, there = places
    make(server, db, ch, here, "replacing_merge_tree")
    server.psql(f"BEGIN; ALTER SERVER s_p OPTIONS (SET database '{there}'); SELECT etl.resync_pipeline('p'); COMMIT;"
                "INSERT INTO t VALUES (100, 'moved')", db)
    server.wait_for("p", db)
    assert_current(server, db, ch, there, ["public.t", "public.u"])


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_database_made_again_empty(server, db, ch, places, equal, running):
    here = places[0]
    make(server, db, ch, here, equal.engine)
    if not running:
        stop(server, db)
    ch.execute(f"DROP DATABASE {here}")
    ch.create_database(here)
    server.sql("BEGIN; INSERT INTO t VALUES (100, 'a'); INSERT INTO u VALUES (100, 'a'); COMMIT", db=db)
    if not running:
        server.sql("SELECT etl.start_pipeline('p')", db=db)
    failed(server, db)
    assert ch.tables(here) == {}
    server.sql("SELECT etl.resync_pipeline('p'); SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    equal(server, db, ch, here, ["public.t", "public.u"])


def test_a_resync_of_a_database_made_again_empty_needs_no_stop(server, db, ch, places):
    """Told before anything was missed: changes of the meantime have nowhere to go, and need not."""
    here = places[0]
    make(server, db, ch, here, "replacing_merge_tree")
    ch.execute(f"DROP DATABASE {here}")
    ch.create_database(here)
    server.sql("SELECT etl.resync_pipeline('p'); INSERT INTO t VALUES (100, 'a'); INSERT INTO u VALUES (100, 'a')", db=db)
    server.sql("INSERT INTO t VALUES (101, 'a'); TRUNCATE u", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, here, ["public.t", "public.u"])
    assert set(generations(server, db).values()) == {2}


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_one_table_dropped_by_a_stranger_is_its_own_trouble(server, db, ch, places, equal, running):
    here = places[0]
    make(server, db, ch, here, equal.engine)
    if not running:
        stop(server, db)
    ch.execute(f"DROP TABLE {here}.public_t")
    server.sql("INSERT INTO u VALUES (100, 'a')" + ("; INSERT INTO t VALUES (100, 'a')" if running else ""), db=db)
    if not running:
        server.sql("SELECT etl.start_pipeline('p')", db=db)
    table = wait_until(lambda: (t := server.tables("p", db)["public.t"])["state"] == "errored" and t["error"] and t, 30, "parked")
    assert table["sqlstate"] == "42P01" and "etl.resync_table()" in table["hint"] and table["recovery"] == "resync", table
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    equal(server, db, ch, here, "public.u")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    equal(server, db, ch, here, ["public.t", "public.u"])


def test_a_dropped_table_is_resynced_before_a_change_has_missed_it(server, db, ch, places, equal):
    """The user has dropped it to have it made again: changes that come before the new copy park nothing."""
    here = places[0]
    make(server, db, ch, here, equal.engine)
    ch.execute(f"DROP TABLE {here}.public_t")
    ch.hold("CREATE TABLE")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    ch.wait_held()
    server.sql("INSERT INTO t VALUES (100, 'a'); INSERT INTO u VALUES (100, 'a')", db=db)
    sent = lambda: server.tables("p", db)["public.u"]["inserts"]
    wait_until(lambda: sent() == 1, 20, "the other table goes on")
    ch.release()
    server.wait_for("p", db)
    equal(server, db, ch, here, ["public.t", "public.u"])


def test_on_error_stop_stops_for_a_missing_table(server, db, ch, places):
    here = places[0]
    make(server, db, ch, here, "replacing_merge_tree")
    stop(server, db)
    server.sql("SELECT etl.alter_pipeline('p', '{\"on_error\": \"stop\"}')", db=db)
    ch.execute(f"DROP TABLE {here}.public_t")
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 30, "failed")
    assert "public.t" in server.status("p", db)["last_error"]


def test_asking_is_tried_again(server, db, ch, places):
    """The look itself meets trouble: as with any connect."""
    here = places[0]
    make(server, db, ch, here, "replacing_merge_tree")
    stop(server, db)
    ch.proxy.plan({"action": "status", "status": 503, "contains": "startsWith", "count": 3})
    server.sql("SELECT etl.start_pipeline('p'); INSERT INTO t VALUES (100, 'a')", db=db)
    server.wait_for("p", db)
    assert server.status("p", db)["retries"] >= 3
    assert_current(server, db, ch, here, ["public.t", "public.u"])
