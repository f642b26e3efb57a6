"""A copy takes the place of another: nothing of the old one gets into it, and nothing that is left behind holds it up."""

import pytest

from harness.clickhouse import exception
from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import FAST, clickhouse
from harness.wait import wait_until

ENGINES = {"replacing_merge_tree": assert_current, "merge_tree": assert_log}


@pytest.fixture
def start(server, db, ch, lake):
    """start("t") makes table t (id, v) with rows, publication and pipeline."""
    def make(*tables, on=server, db_=db, options=None, **kwargs):
        for name in tables:
            on.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} SELECT g, 'x' FROM generate_series(1, 20) g", db=db_)
        on.sql(f"CREATE PUBLICATION pub FOR TABLE {', '.join(tables)}", db=db_)
        return clickhouse(on, db_, ch, lake, options_={**FAST, **(options or {})}, **kwargs)

    return make


def parked(server, db, table):
    return wait_until(lambda: (t := server.tables("p", db).get(table)) and t["state"] == "errored" and t["error"] and t, 30, f"{table} is parked")


def ours(ch, lake):
    return [name for name in ch.tables(lake) if name.startswith("_etl_")]


def wait_published(ch, lake, generation):
    wait_until(lambda: f"/{generation} " in ch.tables(lake)["public_t"], 30, f"generation {generation} has the name")


def faulty(ch, action, since):
    """Requests with this fault after so many others."""
    return [r for r in ch.proxy.requests()[since:] if r.fault == action]


def into(lake):
    return f"INSERT INTO `{lake}`.`public_t` "


# -- rows of the old one ---------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_wait_for_another_try_do_not_meet_the_new_copy(server, db, ch, lake, start, engine):
    """The INSERT of a row is put off, its deletion is behind it; the copy has neither, and both are gone with the old one."""
    start("t", options={"engine": engine})
    server.wait_for("p", db)
    since = len(ch.proxy.requests())
    later = exception(252, "TOO_MANY_PARTS", contains=into(lake))
    later["headers"]["Retry-After"] = "3"
    ch.proxy.plan(later)
    server.sql("INSERT INTO t VALUES (100, 'gone')", db=db)
    wait_until(lambda: faulty(ch, "status", since), 10, "it is put off")
    server.sql("DELETE FROM t WHERE id = 100; SELECT etl.resync_table('p', 't')", db=db)
    wait_published(ch, lake, 2)
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (101, 'new')", db=db)
    server.wait_for("p", db)
    ENGINES[engine](server, db, ch, lake, "public.t")
    assert server.tables("p", db)["public.t"]["state"] == "ready" and ours(ch, lake) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_do_not_meet_a_copy_that_is_about_to_take_the_place(server, db, ch, lake, start, engine):
    """The tables were exchanged, but nobody knows it yet: who has a row for the old one looks where that is."""
    start("t", options={"engine": engine})
    server.wait_for("p", db)
    since = len(ch.proxy.requests())
    later = exception(241, "MEMORY_LIMIT_EXCEEDED", contains=into(lake))
    later["headers"]["Retry-After"] = "1"
    never = exception(241, "MEMORY_LIMIT_EXCEEDED", contains=into(lake), skip=1)
    never["headers"]["Retry-After"] = "5"
    # the fifth look is that of the writer behind the exchange
    ch.proxy.plan(later, never, {"action": "status", "status": 504, "contains": "EXCHANGE", "apply": True}, exception(210, "NETWORK_ERROR", contains="startsWith", skip=4, count=None))
    server.sql("INSERT INTO t VALUES (100, 'gone')", db=db)
    wait_until(lambda: faulty(ch, "status", since), 10, "it is put off")
    server.sql("DELETE FROM t WHERE id = 100", db=db)
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    wait_until(lambda: [r for r in faulty(ch, "status", since) if r.applied], 30, "exchanged")
    wait_until(lambda: len([r for r in faulty(ch, "status", since) if r.query]) > 1 or len(faulty(ch, "status", since)) > 40, 30, "it was sent, or looked for")
    ch.proxy.plan()
    server.wait_for("p", db)
    ENGINES[engine](server, db, ch, lake, "public.t")
    assert server.tables("p", db)["public.t"]["state"] == "ready" and ours(ch, lake) == []


def test_rows_under_way_are_waited_for_but_not_by_all(server, db, ch, lake, start):
    """The new copy waits for an INSERT into the old one; other tables go on, and a stop is a stop."""
    start("t", "u")
    server.wait_for("p", db)
    ch.hold(into(lake).strip())
    server.sql("INSERT INTO t VALUES (100, 'a')", db=db)
    ch.wait_held()
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "sync_done", 30, "handed over")
    server.sql("INSERT INTO u VALUES (100, 'a')", db=db)
    wait_until(lambda: ch.value(f"SELECT count() FROM {lake}.public_u") == 21, 25, "another table goes on")
    assert [r["query"] for r in ch.running() if r["held"]] == [into(lake).strip()]
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: not server.backends("etl writer", db), 20, "the writer has stopped")
    ch.release()
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])


# -- two exchanges undo each other -----------------------------------------------------


def test_an_exchange_that_ends_between_a_look_and_the_next_try(server, db, ch, lake, start):
    """It was given up, and is still waiting at ClickHouse: who looks before that has ended sees what is no more."""
    start("t", request_timeout="2s")
    server.wait_for("p", db)
    ch.hold("EXCHANGE")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    ch.wait_held()
    at = len(ch.statements())
    ch.proxy.plan({"action": "slow", "contains": "SELECT name, engine", "apply": True, "seconds": 1.5})
    wait_until(lambda: [s for s in ch.statements()[at:] if "SELECT name, engine" in s["query"] or "TEST FORMAT" in s["query"]],
               20, "looked, or asked whether it has ended")
    ch.release()
    wait_until(lambda: [s for s in ch.statements("EXCHANGE") if not s["code"]], 10, "exchanged")
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (100, 'a')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    table = server.tables("p", db)["public.t"]
    assert (table["state"], table["generation"], ours(ch, lake)) == ("ready", 2, [])
    assert len([s for s in ch.statements()[at:] if "EXCHANGE" in s["query"]]) == 1


def test_a_writer_ends_the_statements_of_the_one_before_it(server, db, ch, lake, start):
    """Of which one would exchange the tables when the new writer has done so."""
    start("t")
    server.wait_for("p", db)
    ch.hold("EXCHANGE")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    ch.wait_held()
    writer, = server.backends("etl writer", db)
    server.value("SELECT pg_terminate_backend(%s)", (writer,))
    wait_until(lambda: server.backends("etl writer", db) not in ([], [writer]), 20, "another writer")
    server.wait_for("p", db)
    assert [r["query"] for r in ch.running() if r["held"]] == []
    assert [s["code"] for s in ch.statements("EXCHANGE")][-2:] == [394, 0]
    assert_current(server, db, ch, lake, "public.t")
    assert ours(ch, lake) == []


@pytest.mark.parametrize("status", [502, 504])
def test_an_answer_of_something_in_between_tells_nothing(server, db, ch, lake, start, status):
    """A proxy gave up; ClickHouse is asked before anything is done again."""
    start("t")
    server.wait_for("p", db)
    at = len(ch.statements())
    ch.proxy.plan({"action": "status", "status": status, "body": "<html>bad gateway</html>", "contains": "EXCHANGE", "apply": True})
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    asked = [s["query"] for s in ch.statements()[at:] if "TEST FORMAT" in s["query"]]
    exchange, = [s["query_id"] for s in ch.statements()[at:] if "EXCHANGE" in s["query"]]
    assert [exchange in query for query in asked] == [True], asked
    assert_current(server, db, ch, lake, "public.t")


def test_a_statement_whose_answer_is_lost_is_sent_once(server, db, ch, lake, start):
    """The connection was used before, so the client might take it for an old one and send the request again."""
    start("t")
    server.wait_for("p", db)
    at = len(ch.statements())
    ch.proxy.plan({"action": "lost", "contains": "EXCHANGE"})
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (100, 'a')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert len([s for s in ch.statements()[at:] if "EXCHANGE" in s["query"]]) == 1 and ours(ch, lake) == []


# -- what is left behind ---------------------------------------------------------------


def test_large_tables_are_dropped(server, db, ch, lake, start):
    """Those above max_table_size_to_drop, which protects from people who do not mean it."""
    ch.set_users(default={"settings": {"max_table_size_to_drop": "1"}})
    try:
        start("t")
        server.wait_for("p", db)
        server.sql("SELECT etl.resync_table('p', 't')", db=db)
        server.wait_for("p", db)
        server.sql("TRUNCATE t; INSERT INTO t VALUES (1, 'a')", db=db)
        server.wait_for("p", db)
        assert_current(server, db, ch, lake, "public.t")
        assert ours(ch, lake) == []
        server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
        wait_until(lambda: server.status("p", db) is None, 20, "gone")
        assert ch.tables(lake) == {}
    finally:
        ch.set_users(default={})


@pytest.mark.parametrize("code, name", [(359, "TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT"), (630, "HAVE_DEPENDENT_OBJECTS"), (305, "TABLE_WAS_NOT_DROPPED")])
def test_what_cannot_be_dropped_holds_nobody_up(server, db, ch, lake, start, code, name):
    """It stays until the next copy; that is noted, and the table is as it should be."""
    start("t")
    server.wait_for("p", db)
    since = server.log_size()
    ch.proxy.plan(exception(code, name, contains="DROP TABLE", count=None))
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    left, = ours(ch, lake)
    assert f'could not drop table "{left}" at the destination, which nothing needs any more: ClickHouse reports error {code}' in server.log(since)
    server.sql("TRUNCATE t; INSERT INTO t VALUES (1, 'a')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert server.status("p", db)["tables_parked"] == 0
    ch.proxy.plan()
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert ours(ch, lake) == []


@pytest.mark.parametrize("killed", ["EXCHANGE", "CREATE OR REPLACE VIEW", "DROP TABLE"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stranger_that_was_replaced_is_dropped_after_all(server, db, ch, lake, start, killed, when):
    """if_exists = replace, and the writer dies between two statements; it has no mark, but a name of ours."""
    ch.execute(f"CREATE TABLE {lake}.public_t (a Int32) ENGINE = MergeTree ORDER BY a")
    ch.hold(killed, when=when)
    start("t", options={"if_exists": "replace"})
    ch.wait_held()
    writer, = server.backends("etl writer", db)
    server.value("SELECT pg_terminate_backend(%s)", (writer,))
    wait_until(lambda: server.backends("etl writer", db) not in ([], [writer]), 20, "another writer")
    ch.release()
    server.wait_for("p", db)
    assert ours(ch, lake) == []
    server.sql("TRUNCATE t; INSERT INTO t VALUES (1, 'a')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert ours(ch, lake) == []


@pytest.mark.crashes
@pytest.mark.parametrize("engine", ENGINES)
def test_the_server_dies_before_it_has_noted_the_new_copy(fresh_server, ch, lake, start, engine):
    """The old one is gone: that is no sign of another destination."""
    server = fresh_server({"fsync": "on"})
    server.create_database("d")
    start("t", on=server, db_="d", options={"engine": engine})
    server.wait_for("p", "d")
    ch.hold("DROP TABLE", when="after")
    server.sql("SELECT etl.resync_table('p', 't')", db="d")
    ch.wait_held()
    server.kill9()
    ch.release()
    server.start()
    server.wait_for("p", "d")
    assert server.value("SELECT count(*) FROM etl.error_log WHERE message LIKE '%none of the tables%'", db="d") == 0
    ENGINES[engine](server, "d", ch, lake, "public.t")
    assert server.tables("p", "d")["public.t"]["state"] == "ready" and ours(ch, lake) == []


# -- whose name ------------------------------------------------------------------------


def test_what_a_table_left_that_is_not_published_any_more_is_kept(server, db, ch, lake, start):
    """Another table comes under its old name: it does not get what is there, unless that is asked for."""
    start("t", "u")
    server.wait_for("p", db)
    server.sql("ALTER PUBLICATION pub DROP TABLE t; INSERT INTO u VALUES (100, 'a')", db=db)
    server.wait_for("p", db)
    server.sql("ALTER TABLE t RENAME TO kept; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'other'); ALTER PUBLICATION pub ADD TABLE t", db=db)
    table = parked(server, db, "public.t")
    assert "has left the publication" in table["error"], table
    assert "destination_table" in table["hint"] and "if_exists" in table["hint"], table
    assert ch.value(f"SELECT count() FROM {lake}.public_t_current") == 20
    server.sql("SELECT etl.alter_table('p', 't', '{\"destination_table\": \"other\"}'); SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t", target="other_current")
    assert ch.value(f"SELECT count() FROM {lake}.public_t_current") == 20
    server.sql("SELECT etl.alter_table('p', 't', '{\"destination_table\": null, \"if_exists\": \"replace\"}')", db=db)
    server.wait_for("p", db)
    wait_until(lambda: "other" not in ch.tables(lake), 30, "under its own name")
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])
    assert sorted(ch.tables(lake)) == ["public_t", "public_t_current", "public_u", "public_u_current"]


def test_rows_of_a_dropped_table_do_not_meet_the_one_made_again(server, db, ch, lake, start):
    """They wait for another try when the new one takes the name."""
    start("t", "u")
    server.wait_for("p", db)
    since = len(ch.proxy.requests())
    later = exception(252, "TOO_MANY_PARTS", contains=into(lake))
    later["headers"]["Retry-After"] = "3"
    ch.proxy.plan(later)
    server.sql("INSERT INTO t VALUES (100, 'gone')", db=db)
    wait_until(lambda: faulty(ch, "status", since), 10, "it is put off")
    server.sql("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'new'); ALTER PUBLICATION pub ADD TABLE t", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])
    assert server.status("p", db)["tables_parked"] == 0 and ours(ch, lake) == []
