"""Options of tables and columns while a pipeline runs: etl.alter_column() and what it makes of tables."""

import json
import threading

import psycopg
import pytest

from harness.clickhouse import ClickHouse
from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import FAST, clickhouse
from harness.wait import wait_until


@pytest.fixture(scope="module")
def ch():
    with ClickHouse(bodies=True) as made:
        yield made


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
    alter(server, db, "n", '{"value_policy": "clamp"}')
    # named as it is named anyway
    alter(server, db, "d", '{"value_policy": "error"}')
    server.sql("SELECT etl.alter_table('p', 't', '{\"on_error\": \"stop\", \"table_settings\": \"index_granularity = 1024\"}')", db=db)
    server.sql("INSERT INTO t (n) VALUES (1)", db=db)
    server.wait_for("p", db)
    assert generation(server, db) == 1
    assert_current(server, db, ch, lake, "public.t")


def test_options_of_a_table_that_is_published_later(server, db, ch, lake, start):
    """They hold from its first row on, in the copy and in what comes after it."""
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY, d date); INSERT INTO u VALUES (1, 'infinity')",
               db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("SELECT etl.alter_table('p', 'u', '{\"value_policy\": \"text\", \"destination_table\": \"later\"}')", db=db)
    server.sql("ALTER PUBLICATION pub ADD TABLE u", db=db)
    server.sql("INSERT INTO u VALUES (2, '0044-03-15 BC')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO u VALUES (3, '2020-01-01')", db=db)
    server.wait_for("p", db)
    assert ch.query(f"SELECT * FROM {lake}.later_current ORDER BY id") == [
        (1, "infinity"), (2, "0044-03-15 BC"), (3, "2020-01-01")]


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


MANY = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN positive AS numeric(10,3) CHECK (VALUE > 0);
CREATE TABLE many (id bigint PRIMARY KEY, a smallint NOT NULL, b numeric, c numeric(12,2) NOT NULL, d date, e timestamptz NOT NULL,
  f mood, g uuid, h jsonb, i bytea, j int[], k positive, l text NOT NULL, m interval, n boolean, o oid,
  twice bigint GENERATED ALWAYS AS (id * 2) STORED, "Odd `na\\me'" char(5));
CREATE TABLE "Upper Case" ("Id" int, "part" text, x float8, PRIMARY KEY ("part", "Id"));
CREATE TABLE listed (id int PRIMARY KEY, hidden int, v text);
INSERT INTO many (id, a, c, e, l) VALUES (1, 1, 1, now(), '');
"""


def planned(server, db):
    """{table at the destination: [(column, type)]} and {...: ddl} of etl.plan()."""
    columns, ddl = {}, {}
    for table, column, kind, statement in server.sql(
            "SELECT destination_table, destination_column, destination_type, ddl FROM etl.plan('p')", db=db):
        if statement:
            ddl[table] = statement
        else:
            columns.setdefault(table, []).append((column, kind))
    return columns, ddl


def described(server, db):
    """The same of etl.column_status, without the columns that are ours."""
    columns = {}
    for table, column, kind in server.sql(
            "SELECT t.destination_table, c.destination_column, c.destination_type FROM etl.column_status c"
            " JOIN etl.table_status t USING (pipeline, source) ORDER BY c.source, c.attnum", db=db):
        columns.setdefault(table, []).append((column, kind))
    return columns


def ours(columns):
    return [(c, k) for c, k in columns if not c.startswith(("_etl_", "cdc_")) and not c.endswith("__is_null")]


@pytest.mark.parametrize("options", [{}, {"engine": "merge_tree"}, {"metadata_columns": ["committed_at"], "generated_columns": False}])
def test_the_plan_is_what_is_made(server, db, ch, lake, start, options):
    server.psql(MANY, db)
    start('many, "Upper Case", listed (id, v)', options, start=False)
    server.sql("SELECT etl.alter_table('p', 'many', '{\"destination_table\": \"lots\"}')", db=db)
    alter(server, db, "b", '{"destination_column": "amount", "destination_type": "Nullable(Decimal(38, 9))"}', table="many")
    alter(server, db, "l", '{"destination_type": "LowCardinality(String)"}', table="many")
    before = len(ch.proxy.requests())
    columns, ddl = planned(server, db)
    assert sorted(columns) == sorted(ddl) == ["lots", "public_Upper Case", "public_listed"]

    # it touches nothing, here and there
    assert ch.tables(lake) == {} and len(ch.proxy.requests()) == before
    assert server.value("SELECT count(*) FROM etl.table_state", db=db) == 0

    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    made = {table: [(name, kind) for name, kind, _ in ch.columns(lake, table)] for table in columns}
    assert made == columns
    assert {table: ours(made[table]) for table in made} == described(server, db)
    # a running pipeline is planned alike, and its statements make the same again
    assert planned(server, db) == (columns, ddl)
    ch.create_database(lake + "_2")
    try:
        for statements in ddl.values():
            for statement in statements.replace(f"`{lake}`", f"`{lake}_2`").split(";\n"):
                ch.execute(statement)
        assert sorted(ch.tables(lake)) == sorted(ch.tables(lake + "_2"))
        for table in ch.tables(lake):
            assert [c[:2] for c in ch.columns(lake, table)] == [c[:2] for c in ch.columns(lake + "_2", table)]
    finally:
        ch.execute(f"DROP DATABASE {lake}_2")


CHOSEN = ("CREATE TABLE t (k int, kt text, kj jsonb, ka int[], n bigint, v text, a int[], j json, PRIMARY KEY (k, kt, kj, ka));"
          "INSERT INTO t VALUES (1, 'ab', '{\"x\":1}', '{1}', 2, 'v', '{3,NULL}', '{\"y\":1}')")


@pytest.mark.parametrize("column, kind, reason", [
    ("v", "Nullable(LowCardinality(String))", ""), ("v", "LowCardinality(LowCardinality(String))", ""),
    ("v", "Array(LowCardinality(String))", ""), ("n", "Nullable(Nullable(Int64))", ""), ("n", "LowCardinality(Int64)", ""),
    ("n", "LowCardinality(Decimal(9, 2))", ""), ("a", "Nullable(Array(Int32))", ""), ("a", "LowCardinality(Array(Int32))", ""),
    ("a", "Array(Nullable(Array(Int32)))", ""), ("n", "Nullable(Int64", ""), ("k", "Nullable(Int64x", ""), ("j", "LowCardinality(JSON)", ""),
    ("kj", "JSON", ": ClickHouse does not sort by it"), ("kj", "Nullable(JSON)", ": ClickHouse does not sort by it"),
    ("ka", "Array(Nullable(Int32))", ": ClickHouse does not sort by it"),
])
def test_types_that_clickhouse_would_refuse_are_refused_at_once(server, db, ch, lake, start, column, kind, reason):
    server.sql(CHOSEN, db=db)
    start("t", start=False)
    source = dict(server.sql("SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass", db=db))
    with pytest.raises(psycopg.Error) as caught:
        alter(server, db, column, json.dumps({"destination_type": kind}))
    assert (caught.value.sqlstate, caught.value.diag.message_primary) == (
        "22023", f'column "{column}" of type {source[column]} cannot be written as {kind}{reason}')


def test_blanks_in_a_type_do_not_matter_and_keys_are_never_nullable(server, db, ch, lake, start):
    server.sql(CHOSEN, db=db)
    start("t", start=False)
    for column, kind in {"k": " Nullable( Int64 ) ", "kt": "LowCardinality(Nullable(FixedString (2)))", "ka": "Array( Int64)",
                         "n": "Nullable ( Decimal(20 , 2))", "v": " LowCardinality ( String)", "a": " Array(Nullable( Int64 ) )",
                         "j": " JSON "}.items():
        alter(server, db, column, json.dumps({"destination_type": kind}))
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    made = {name: kind for name, kind, _ in ch.columns(lake, "public_t") if not name.startswith("_etl_")}
    assert made == {"k": "Int64", "kt": "LowCardinality(FixedString(2))", "kj": "String", "ka": "Array(Int64)",
                    "n": "Nullable(Decimal(20, 2))", "v": "LowCardinality(Nullable(String))", "a": "Array(Nullable(Int64))",
                    "a__is_null": "UInt8", "j": "Nullable(JSON)"}
    assert described(server, db)["public_t"] == ours(list(made.items()))
    server.sql("INSERT INTO t VALUES (2, 'cd', '1', '{}')", db=db)
    server.wait_for("p", db)
    assert ch.query(f"SELECT k, kt, kj, ka, n, v, a, a__is_null, toString(j) FROM {lake}.public_t_current ORDER BY k") == [
        (1, "ab", '{"x": 1}', [1], 2, "v", [3, None], 0, '{"y":1}'), (2, "cd", "1", [], None, None, [], 1, None)]


def test_a_log_takes_a_key_of_any_type(server, db, ch, lake, start):
    server.sql(CHOSEN, db=db)
    start("t", {"engine": "merge_tree"}, start=False)
    for column, kind in {"kj": "JSON", "ka": "Array(Nullable(Int32))", "k": "Int64"}.items():
        alter(server, db, column, json.dumps({"destination_type": kind}))
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    made = {name: kind for name, kind, _ in ch.columns(lake, "public_t")}
    assert (made["kj"], made["ka"], made["k"]) == ("Nullable(JSON)", "Array(Nullable(Int32))", "Nullable(Int64)")


def test_column_status_says_what_is_there(server, db, ch, lake, start):
    """Also while another copy is made, and after each change of the table."""
    server.sql(TABLE, db=db)
    start("t")

    def is_true():
        server.wait_for("p", db)
        want = ours([(name, kind) for name, kind, _ in ch.columns(lake, "public_t")])
        assert described(server, db) == {"public_t": want}
        return want

    assert [c for c, _ in is_true()] == ["id", "n", "d", "v"]
    assert server.sql("SELECT attnum, column_name, source_type, value_policy, adjusted FROM etl.column_status WHERE column_name = 'n'",
                      db=db) == [(2, "n", "numeric(12,2)", "error", 0)]
    ch.proxy.plan({"action": "hang", "contains": "INSERT INTO `%s`.`_etl_sync" % lake})
    alter(server, db, "n", '{"destination_column": "amount", "destination_type": "Nullable(String)"}')
    wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "data_sync", 30, "a copy")
    assert ("n", "Nullable(Decimal(12, 2))") in described(server, db)["public_t"]
    ch.proxy.plan()
    ch.release()
    assert ("amount", "Nullable(String)") in is_true()
    server.sql("ALTER TABLE t DROP COLUMN d; ALTER TABLE t ADD COLUMN \"new one\" int NOT NULL DEFAULT 7; ALTER TABLE t ALTER v TYPE varchar(20)", db=db)
    assert is_true()[2:] == [("v", "Nullable(String)"), ("new one", "Int32")]
    assert server.sql("SELECT source_type FROM etl.column_status WHERE column_name = 'v'", db=db) == [("character varying(20)",)]
    # also of a stopped pipeline
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    before = described(server, db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 30, "stopped")
    assert described(server, db) == before


def test_column_status_waits_for_nobody(server, db, ch, lake, start):
    """A table whose first copy has not begun is looked at as it is; one that is locked is left out."""
    server.sql(TABLE, db=db)
    start("t", start=False)
    server.sql("INSERT INTO etl.table_state (pipeline_id, relid, schema_name, table_name, state)"
               " SELECT id, 't'::regclass, 'public', 't', 'init' FROM etl.pipeline", db=db)
    assert [r[0] for r in server.sql("SELECT column_name FROM etl.column_status", db=db)] == ["id", "n", "d", "v"]
    with server.connect(db, autocommit=False) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        assert server.sql("SELECT column_name FROM etl.column_status", db=db) == []
        other.rollback()


FAR = "'3000-01-01'"  # a date beyond what Date32 holds


def adjusted(server, db, pipeline="p"):
    return dict(server.sql("SELECT column_name, adjusted FROM etl.column_status WHERE pipeline = %s AND adjusted > 0", (pipeline,), db))


def dates(ch, lake, where="true", column="d"):
    return [str(r[0]) if r[0] is not None else None
            for r in ch.query(f"SELECT toString({column}) FROM {lake}.public_t_current WHERE {where} ORDER BY id")]


def test_a_policy_is_in_force_at_once_unless_it_makes_another_type(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, d date NOT NULL, e date); INSERT INTO t VALUES (1, '2020-01-01', '2020-01-01')", db=db)
    start("t")
    server.wait_for("p", db)
    alter(server, db, "d", '{"value_policy": "clamp"}')
    alter(server, db, "e", '{"value_policy": "null"}')
    server.wait_for("p", db)
    server.sql(f"INSERT INTO t VALUES (2, {FAR}, {FAR})", db=db)
    server.wait_for("p", db)
    assert generation(server, db) == 1
    assert dates(ch, lake) == ["2020-01-01", "2299-12-31"] and dates(ch, lake, column="e") == ["2020-01-01", None]
    assert adjusted(server, db) == {"d": 1, "e": 1}
    # null needs a column that may be null
    alter(server, db, "d", '{"value_policy": "null"}')
    server.wait_for("p", db)
    assert generation(server, db) == 2
    assert dates(ch, lake) == ["2020-01-01", None]
    # text is another type
    alter(server, db, "e", '{"value_policy": "text"}')
    server.wait_for("p", db)
    assert generation(server, db) == 3
    assert dates(ch, lake, column="e") == ["2020-01-01", "3000-01-01"]
    assert server.sql("SELECT column_name, destination_type, value_policy FROM etl.column_status WHERE attnum > 1 ORDER BY attnum", db=db) \
        == [("d", "Nullable(Date32)", "null"), ("e", "Nullable(String)", None)]
    # one of the pipeline is a new copy only of tables that it makes look different
    server.sql("CREATE TABLE u (id int PRIMARY KEY, v text); ALTER PUBLICATION pub ADD TABLE u", db=db)
    server.wait_for("p", db)
    server.sql("SELECT etl.alter_pipeline('p', '{\"value_policy\": \"text\"}')", db=db)
    server.wait_for("p", db)
    assert generation(server, db, "public.u") == 1 and generation(server, db) == 3
    assert trouble(server, db) == []


def test_a_stopped_pipeline_goes_on_with_the_type_that_holds_all(server, db, ch, lake, start):
    """on_error = stop: the change that stopped it is not sent to the old copy again."""
    server.sql("CREATE TABLE t (id int PRIMARY KEY, d date); INSERT INTO t VALUES (1, '2020-01-01')", db=db)
    start("t", {"on_error": "stop"})
    server.wait_for("p", db)
    server.sql(f"INSERT INTO t VALUES (2, {FAR})", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 30, "stopped at the change")
    alter(server, db, "d", '{"value_policy": "text"}')
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert dates(ch, lake) == ["2020-01-01", "3000-01-01"]


def test_adjusted_values_are_counted(fresh_server, ch, lake):
    """In copy and stream alike, over restarts of pair and server; of each column; shown when stopped."""
    server = fresh_server()
    db = server.create_database("counted")
    server.sql("CREATE TABLE t (id int PRIMARY KEY, d date, e date, n int);"
               f"INSERT INTO t SELECT g, {FAR}, '2020-01-01' FROM generate_series(1, 10) g; CREATE PUBLICATION pub FOR TABLE t", db=db)
    clickhouse(server, db, ch, lake, options_={**FAST, "value_policy": "clamp"})
    server.wait_for("p", db)
    assert adjusted(server, db) == {"d": 10}
    server.sql(f"INSERT INTO t VALUES (11, 'infinity', {FAR}); UPDATE t SET n = 1 WHERE id = 1; UPDATE t SET d = '2021-01-01' WHERE id = 2;"
               "DELETE FROM t WHERE id = 3", db=db)
    server.wait_for("p", db)
    # two in d (the insert, the first update), one in e
    assert adjusted(server, db) == {"d": 12, "e": 1}
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 30, "stopped")
    assert adjusted(server, db) == {"d": 12, "e": 1}
    server.restart()
    assert adjusted(server, db) == {"d": 12, "e": 1}
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.sql(f"INSERT INTO t VALUES (12, {FAR})", db=db)
    server.wait_for("p", db)
    assert adjusted(server, db) == {"d": 13, "e": 1}
    # a table that comes back begins anew
    server.sql("ALTER PUBLICATION pub DROP TABLE t", db=db)
    server.wait_for("p", db)
    assert adjusted(server, db) == {} and server.value("SELECT count(*) FROM etl.column_state", db=db) == 0
