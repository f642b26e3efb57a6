"""Options of tables and columns while a pipeline runs: etl.alter_column() and what it makes of tables."""

import threading
import uuid

import pytest

pytest.importorskip("chdb")

from harness.clickhouse import ClickHouse  # noqa: E402
from harness.clickhouse_equal import assert_current, assert_log  # noqa: E402
from harness.pipeline import clickhouse  # noqa: E402
from harness.wait import wait_until  # noqa: E402

FAST = {"max_batch_delay": "20ms", "retry_delay": "50ms", "max_retry_delay": "500ms", "auth_retry_delay": "200ms"}


@pytest.fixture(scope="module")
def ch():
    with ClickHouse(bodies=True) as made:
        yield made


@pytest.fixture
def lake(ch):
    name = "lake_" + uuid.uuid4().hex[:8]
    ch.create_database(name)
    yield name
    ch.proxy.plan()
    ch.release()
    ch.execute(f"DROP DATABASE {name}")


@pytest.fixture
def start(server, db, ch, lake):
    def make(tables, options=None, **kwargs):
        server.sql(f"CREATE PUBLICATION pub FOR TABLE {tables}", db=db)
        return clickhouse(server, db, ch, lake, options_={**FAST, **(options or {})}, **kwargs)

    return make


@pytest.fixture
def busy(server, db):
    """Somebody changes t all the time; a context whose end waits for the last change."""
    class Busy:
        def __enter__(self):
            self.stop, self.error, self.rounds = threading.Event(), None, 0
            self.thread = threading.Thread(target=self.run)
            self.thread.start()
            return self

        def run(self):
            try:
                with server.connect(db) as connection:
                    while not self.stop.is_set():
                        connection.execute("INSERT INTO t (n, d) SELECT g, '2020-01-01'::date + g FROM generate_series(1, 20) g")
                        connection.execute("UPDATE t SET n = n + 1 WHERE id % 17 = 0")
                        connection.execute("DELETE FROM t WHERE id % 23 = 0")
                        self.rounds += 1
            except Exception as error:
                self.error = error

        def __exit__(self, *exc):
            wait_until(lambda: self.rounds > 3 or self.error, 30, "some changes")
            self.stop.set()
            self.thread.join()
            assert self.error is None, self.error

    return Busy()


TABLE = ("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n numeric(12,2), d date, v text);"
         "INSERT INTO t (n, d, v) SELECT g, '2020-01-01'::date + g % 1000, 'row ' || g FROM generate_series(1, 3000) g")


def alter(server, db, column, options, table="t"):
    server.sql("SELECT etl.alter_column('p', %s, %s, %s)", (table, column, options), db)


def trouble(server, db):
    """Of tables; that of the endpoint is the test's own."""
    return server.sql("SELECT message FROM etl.error_log WHERE table_name IS NOT NULL", db=db)


def generation(server, db, table="public.t"):
    return server.tables("p", db)[table]["generation"]


def test_a_column_gets_another_name_and_type_while_it_changes(server, db, ch, lake, start, busy):
    server.sql(TABLE, db=db)
    start("t")
    server.wait_for("p", db)
    with busy:
        alter(server, db, "n", '{"destination_column": "amount", "destination_type": "Nullable(String)"}')
        server.wait_for("p", db)
        columns = {name: kind for name, kind, _ in ch.columns(lake, "public_t")}
        assert columns["amount"] == "Nullable(String)" and "n" not in columns, columns
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t", names={"n": "amount"})
    assert [c[0] for c in ch.columns(lake, "public_t_current")] == ["id", "amount", "d", "v"]
    assert generation(server, db) == 2
    # nobody was set aside on the way, and nothing of it is left
    assert trouble(server, db) == []
    assert sorted(ch.tables(lake)) == ["public_t", "public_t_current"]


def test_until_the_new_copy_is_there_the_old_one_goes_on(server, db, ch, lake, start):
    server.sql(TABLE, db=db)
    start("t")
    server.wait_for("p", db)
    # the new generation's rows do not get there for the moment
    ch.proxy.plan({"action": "hang", "contains": "INSERT INTO `%s`.`_etl_sync" % lake})
    alter(server, db, "n", '{"destination_column": "amount"}')
    wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "data_sync", 30, "a copy")
    server.sql("UPDATE t SET n = 77 WHERE id = 5; INSERT INTO t (n, v) VALUES (78, 'meanwhile')", db=db)
    wait_until(lambda: ch.query(f"SELECT n FROM {lake}.public_t_current WHERE v IN ('row 5', 'meanwhile') ORDER BY n")
               == [(77,), (78,)], 30, "changes in the old copy, under the old name")
    assert server.value("SELECT NOT etl.wait_for('p', timeout => '10ms')", db=db)
    # also a restart of the pair in between knows how each copy was made
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 30, "stopped")
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.sql("UPDATE t SET n = 79 WHERE id = 6", db=db)
    wait_until(lambda: ch.query(f"SELECT n FROM {lake}.public_t_current WHERE v = 'row 6'") == [(79,)], 30, "the same again")
    ch.proxy.plan()
    ch.release()
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t", names={"n": "amount"})
    assert trouble(server, db) == []


@pytest.mark.parametrize("options, check", [
    ({"engine": "merge_tree"}, "log"),
    ({"destination_table": "elsewhere"}, "elsewhere_current"),
    ({"nullable": False}, "nullable"),
])
def test_options_of_a_table_that_decide_its_looks(server, db, ch, lake, start, options, check):
    import json

    server.sql(TABLE, db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("SELECT etl.alter_table('p', 't', %s)", (json.dumps(options),), db)
    server.sql("UPDATE t SET n = 7 WHERE id = 1; DELETE FROM t WHERE id = 2", db=db)
    server.wait_for("p", db)
    if check == "log":
        assert list(ch.tables(lake)) == ["public_t"]
        assert_log(server, db, ch, lake, "public.t")
    elif check == "nullable":
        assert not [kind for _, kind, _ in ch.columns(lake, "public_t") if "Nullable" in kind]
    else:
        assert sorted(ch.tables(lake)) == ["elsewhere", "elsewhere_current"]
        assert_current(server, db, ch, lake, "public.t", target=check)
        assert server.tables("p", db)["public.t"]["destination_table"] == "elsewhere"
    # and back
    server.sql("SELECT etl.alter_table('p', 't', %s)", (json.dumps({k: None for k in options}),), db)
    server.wait_for("p", db)
    assert sorted(ch.tables(lake)) == ["public_t", "public_t_current"]
    assert_current(server, db, ch, lake, "public.t")
    assert trouble(server, db) == []


def test_what_does_not_change_the_looks_copies_nothing(server, db, ch, lake, start):
    server.sql(TABLE, db=db)
    start("t")
    server.wait_for("p", db)
    alter(server, db, "n", '{"value_policy": "null"}')
    alter(server, db, "n", '{"value_policy": "clamp"}')
    # named as it is named anyway
    alter(server, db, "d", '{"value_policy": "error"}')
    server.sql("SELECT etl.alter_table('p', 't', '{\"on_error\": \"stop\", \"table_settings\": \"index_granularity = 1024\"}')", db=db)
    server.sql("INSERT INTO t (n) VALUES (1)", db=db)
    server.wait_for("p", db)
    assert generation(server, db) == 1
    assert_current(server, db, ch, lake, "public.t")


def test_options_changed_while_stopped(server, db, ch, lake, start):
    server.sql(TABLE, db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 30, "stopped")
    alter(server, db, "v", '{"destination_column": "words"}')
    server.sql("INSERT INTO t (n, v) VALUES (5, 'while it was stopped'); SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t", names={"v": "words"})
    # changed and changed back: nothing is to be done
    before = generation(server, db)
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 30, "stopped")
    alter(server, db, "v", '{"destination_column": null}')
    alter(server, db, "v", '{"destination_column": "words"}')
    server.sql("SELECT etl.start_pipeline('p'); INSERT INTO t (n) VALUES (6)", db=db)
    server.wait_for("p", db)
    assert generation(server, db) == before
    assert_current(server, db, ch, lake, "public.t", names={"v": "words"})
