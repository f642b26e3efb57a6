"""Tables at ClickHouse are equal to the source's, value by value."""

import os
import signal

import psycopg
import pytest
from psycopg.types.json import Jsonb

from harness.clickhouse import exception, exception_in_body, exception_without_tag
from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import FAST, clickhouse, drop
from harness.wait import wait_until
from harness.workload import Workload

MIXED = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE mixed (
  id bigint PRIMARY KEY, flag bool, small int2, n int4 NOT NULL, big int8, r float4, d float8,
  price numeric(12,2), wide numeric(60,20), free numeric, money_ money, name text NOT NULL, code varchar(20), padded char(5),
  raw bytea, born date, at timestamp, tz timestamptz, t time, span interval, uid uuid, m mood, need mood NOT NULL DEFAULT 'ok',
  doc json, docb jsonb, o oid, address inet, list int[], "Odd `na\\me'" text);
INSERT INTO mixed
SELECT g, g % 3 = 0, g, g, g * 10000000000, g / 3.0, g / 7.0, g / 3.0, g / 9.0, g / 11.0, (g / 4.0)::numeric::money, 'row ' || g, 'c' || g, 'p',
       decode(md5(g::text), 'hex'), date '1950-01-01' + g, timestamp '1960-01-01' + g * interval '1 hour',
       timestamptz '2020-01-01' + g * interval '1 second', time '01:02:03' + g * interval '1 second', g * interval '1 hour',
       md5(g::text)::uuid, (ARRAY['sad', 'ok', 'happy', NULL])[1 + g % 4]::mood, 'sad', json_build_object('a', g), jsonb_build_object('a', g),
       g, '10.0.0.1', ARRAY[g, NULL], 'é' || g
  FROM generate_series(1, 500) g;
INSERT INTO mixed (id, n, name) VALUES (-1, 0, '');
"""


def test_copy_and_stream_are_equal_by_value(server, db, ch, lake, start):
    server.psql(MIXED, db)
    start("mixed")
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.mixed")
    server.sql("INSERT INTO mixed SELECT id + 1000, flag, small, n, big, r, d, price, wide, free, money_, name, code, padded, raw, born,"
               " at, tz, t, span, uid, m, need, doc, docb, o, address, list, name FROM mixed WHERE id BETWEEN 10 AND 60;"
               "UPDATE mixed SET n = n + 1, price = NULL, name = name || 'x' WHERE id % 5 = 0;"
               "DELETE FROM mixed WHERE id % 7 = 0; UPDATE mixed SET id = id + 5000 WHERE id % 11 = 0", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.mixed")


def test_the_event_log_has_every_change(server, db, ch, lake, start):
    server.psql(MIXED, db)
    start("mixed", {"engine": "merge_tree"})
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.mixed")
    server.sql("INSERT INTO mixed (id, n, name) SELECT g, g, 'new' FROM generate_series(2000, 2100) g;"
               "UPDATE mixed SET n = n + 1, price = NULL, name = name || 'x' WHERE id % 5 = 0;"
               "DELETE FROM mixed WHERE id % 7 = 0; UPDATE mixed SET id = id + 5000 WHERE id % 11 = 0", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.mixed")
    server.sql("TRUNCATE mixed; INSERT INTO mixed (id, n, name) VALUES (1, 1, 'after')", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.mixed")
    assert ch.value(f"SELECT count() FROM {lake}.public_mixed WHERE cdc_operation = 'TRUNCATE'") == 1


def parked(server, db, table):
    return wait_until(lambda: (t := server.tables("p", db).get(table)) and t["state"] == "errored" and t["error"] and t,
                      30, f"{table} is parked")


def wait_others(server, db):
    """Everything is delivered, but for what is parked."""
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)


def test_what_is_made_carries_marks(server, db, ch, lake, start):
    server.sql("CREATE TABLE t_x (id int PRIMARY KEY, v text, w numeric(10,2) NOT NULL)", db=db)
    start("t_x")
    server.wait_for("p", db)
    relid = server.value("SELECT 't_x'::regclass::oid", db=db)
    tables = ch.tables(lake)
    assert sorted(tables) == ["public_t__x", "public_t__x_current"]
    assert all(c.startswith("etl 1 ") and f"/{relid}/1 0/" in c for c in tables.values()), tables
    assert ch.columns(lake, "public_t__x") == [
        ("id", "Int32", "etl:1:1"), ("v", "Nullable(String)", "etl:2:1"), ("w", "Decimal(10, 2)", "etl:3:1"),
        ("_etl_version", "UInt128", ""), ("_etl_deleted", "UInt8", "")]
    made = ch.value(f"SELECT create_table_query FROM system.tables WHERE database = '{lake}' AND name = 'public_t__x'")
    assert "ReplacingMergeTree(_etl_version, _etl_deleted)" in made and "ORDER BY (id)" in made.replace("`", "")
    assert "non_replicated_deduplication_window = 1000" in made
    assert server.tables("p", db)["public.t_x"]["destination_table"] == "public_t__x"


@pytest.mark.parametrize("engine", ["replacing_merge_tree", "merge_tree"])
def test_truncate(server, db, ch, lake, start, engine):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'same'), (2, 'b')", db=db)
    start("t", {"engine": engine})
    server.wait_for("p", db)
    equal = assert_log if engine == "merge_tree" else assert_current
    equal(server, db, ch, lake, "public.t")
    for statement in ("TRUNCATE t", "INSERT INTO t VALUES (1, 'same')",
                      "BEGIN; INSERT INTO t VALUES (5, 'gone'); TRUNCATE t; INSERT INTO t VALUES (1, 'same'); COMMIT",
                      "DELETE FROM t; INSERT INTO t VALUES (1, 'same')", "TRUNCATE t"):
        server.sql(statement, db=db)
        server.wait_for("p", db)
        equal(server, db, ch, lake, "public.t")
    assert server.tables("p", db)["public.t"]["truncates"] == 3
    assert [name for name in ch.tables(lake) if name.startswith("_etl_")] == []


def test_truncate_applied_to_a_log_and_ignored(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE k (id int PRIMARY KEY);"
               "INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); INSERT INTO k VALUES (1)", db=db)
    start("t, u, k", {"engine": "merge_tree", "on_truncate": "ignore"}, start=False)
    server.sql("SELECT etl.alter_table('p', 't', '{\"on_truncate\": \"apply\"}');"
               "SELECT etl.alter_table('p', 'k', '{\"engine\": \"replacing_merge_tree\"}');"
               "SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    server.sql("TRUNCATE t, u, k; INSERT INTO t VALUES (2); INSERT INTO u VALUES (2); INSERT INTO k VALUES (2)", db=db)
    server.wait_for("p", db)
    ids = lambda table: [r[0] for r in ch.query(f"SELECT id FROM {lake}.{table} ORDER BY id")]
    assert ids("public_t") == [2]
    assert ids("public_u") == [1, 2]
    assert ids("public_k_current") == [1, 2]


def test_resync_exchanges_and_leaves_nothing(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g", db=db)
    start("t")
    server.wait_for("p", db)
    ch.execute(f"ALTER TABLE {lake}.public_t DELETE WHERE id > 50", mutations_sync=1)
    server.sql("SELECT etl.resync_table('p', 't'); INSERT INTO t VALUES (101, 'x')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert sorted(ch.tables(lake)) == ["public_t", "public_t_current"]
    assert "/2 0/" in ch.tables(lake)["public_t"]


def test_a_changed_table_is_copied_again(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("ALTER TABLE t ADD COLUMN w int DEFAULT 7; UPDATE t SET v = 'c' WHERE id = 1; ALTER TABLE t DROP COLUMN v;"
               "ALTER TABLE t RENAME COLUMN w TO z; INSERT INTO t VALUES (3, 3)", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert [c[0] for c in ch.columns(lake, "public_t_current")] == ["id", "z"]


@pytest.mark.parametrize("what", ["TABLE", "VIEW"])
def test_a_strangers_table_is_not_touched(server, db, ch, lake, start, what):
    name = "public_t" if what == "TABLE" else "public_t_current"
    ch.execute(f"CREATE TABLE {lake}.{name} (a Int32) ENGINE = MergeTree ORDER BY a")
    ch.execute(f"INSERT INTO {lake}.{name} VALUES (1)")
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY); INSERT INTO t VALUES (5);"
               "INSERT INTO other VALUES (1)", db=db)
    start("t, other")
    table = parked(server, db, "public.t")
    assert "if_exists" in table["hint"] and name in table["error"], table
    wait_others(server, db)
    assert_current(server, db, ch, lake, "public.other")
    assert ch.query(f"SELECT * FROM {lake}.{name}") == [(1,)]
    server.sql("SELECT etl.alter_table('p', 't', '{\"if_exists\": \"replace\"}')", db=db)
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert sorted(ch.tables(lake)) == ["public_other", "public_other_current", "public_t", "public_t_current"]


def test_tables_without_key(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (a int, v text); ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1, 'a'), (1, 'a');"
               "CREATE TABLE u (a int, v text); ALTER TABLE u REPLICA IDENTITY FULL; INSERT INTO u VALUES (1, 'a'), (1, 'a')", db=db)
    start("t, u", start=False)
    server.sql("SELECT etl.alter_table('p', 'u', '{\"engine\": \"merge_tree\"}'); SELECT etl.start_pipeline('p')", db=db)
    assert "primary key" in parked(server, db, "public.t")["hint"]
    wait_others(server, db)
    server.sql("UPDATE u SET v = 'b'; INSERT INTO u VALUES (2, NULL); DELETE FROM u WHERE a = 1; INSERT INTO u VALUES (3, 'z')", db=db)
    wait_others(server, db)
    assert_log(server, db, ch, lake, "public.u")
    server.sql("ALTER TABLE t ADD COLUMN id serial PRIMARY KEY", db=db)
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_a_key_that_goes_away_parks_the_table(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (5)", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (6)", db=db)
    assert "key" in parked(server, db, "public.t")["error"]


NAMES = ['T', 't', 'with space', 'quo"te', "apo'strophe", 'back\\slash', 'tick`', 'a_b', 'a__b', 'größe', '表', '_x', 'x_current',
         'x' * 63, 'ü' * 31, '表' * 21]


def test_names(server, db, ch, lake, start):
    quoted = ['"' + n.replace('"', '""') + '"' for n in NAMES]
    for n in quoted:
        server.sql(f"CREATE TABLE {n} (id int PRIMARY KEY, {n if n != 'id' else 'x'} text); INSERT INTO {n} VALUES (1, 'a')", db=db)
    start(", ".join(quoted))
    server.wait_for("p", db)
    for n in quoted:
        server.sql(f"INSERT INTO {n} VALUES (2, 'b'); UPDATE {n} SET id = 3 WHERE id = 1", db=db)
    server.wait_for("p", db)
    tables = server.tables("p", db)
    assert len({t["destination_table"] for t in tables.values()}) == len(NAMES)
    for n in NAMES:
        name = next(t["destination_table"] for t in tables.values() if t["table_name"] == n)
        assert_current(server, db, ch, lake, 'public."' + n.replace('"', '""') + '"', target=name + "_current")
    long = [t["destination_table"] for t in tables.values() if t["table_name"] in ("ü" * 31, "表" * 21)]
    assert all(len(n.encode()) < 213 and "_h" in n for n in long), long


def test_names_of_a_database_in_latin1(server, ch, lake):
    """What ClickHouse would not read as UTF-8 has no name there, unless one is chosen."""
    server.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        server.sql("CREATE EXTENSION etl", db="latin")
        server.sql('CREATE TABLE "größe" (id int PRIMARY KEY, v text); INSERT INTO "größe" VALUES (1, chr(233)); CREATE TABLE t (id int PRIMARY KEY)', db="latin")
        server.sql('CREATE PUBLICATION pub FOR TABLE "größe", t', db="latin")
        clickhouse(server, "latin", ch, lake, options_=FAST)
        table = parked(server, "latin", "public.größe")
        assert "the table's name cannot be converted to UTF-8" == table["error"] and "destination_table" in table["hint"], table
        server.sql("""SELECT etl.alter_table('p', '"größe"', '{"destination_table": "size"}'); SELECT etl.alter_table('p', 't', '{"destination_table": "länge"}');
                      SELECT etl.retry_table('p')""", db="latin")
        assert "option destination_table" in parked(server, "latin", "public.t")["error"]
        wait_others(server, "latin")
        server.sql('UPDATE "größe" SET v = v || v', db="latin")
        wait_others(server, "latin")
        assert ch.query(f"SELECT id, v FROM {lake}.size_current") == [(1, "éé")]
        drop(server, "latin", "p")
    finally:
        server.drop_database("latin")


def test_names_that_collide(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO t VALUES (1); INSERT INTO u VALUES (2)", db=db)
    start("t", options={"on_new_table": "sync"})
    server.wait_for("p", db)
    server.sql("SELECT etl.alter_table('p', 'u', '{\"destination_table\": \"public_t\"}'); ALTER PUBLICATION pub ADD TABLE u", db=db)
    assert "destination_table" in parked(server, db, "public.u")["hint"]
    assert_current(server, db, ch, lake, "public.t")
    server.sql("SELECT etl.alter_table('p', 'u', '{\"destination_table\": \"une autre\"}'); SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.u", target="une autre_current")


def test_a_table_made_again_takes_its_place(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (2, 'new'); ALTER PUBLICATION pub ADD TABLE t", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_reserved_column_names(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, _etl_version int); CREATE TABLE u (id int PRIMARY KEY, cdc_lsn text)", db=db)
    start("t, u")
    assert "destination_column" in parked(server, db, "public.t")["hint"]
    assert "cdc_lsn" in parked(server, db, "public.u")["error"]


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_compression(server, db, ch, lake, start, compression):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g", db=db)
    start("t", {"compression": compression})
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_an_answer_that_is_lost_makes_no_row_twice(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", db=db)
    start("t", {"engine": "merge_tree"})
    server.wait_for("p", db)
    ch.proxy.plan({"action": "lost", "contains": "INSERT", "count": 2})
    server.sql("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 1000) g", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.t")
    assert server.status("p", db)["retries"] > 0


@pytest.mark.parametrize("code, name", [(252, "TOO_MANY_PARTS"), (241, "MEMORY_LIMIT_EXCEEDED"), (242, "TABLE_IS_READ_ONLY"),
                                        (394, "QUERY_WAS_CANCELLED"), (319, "UNKNOWN_STATUS_OF_INSERT")])
def test_errors_that_pass(server, db, ch, lake, start, code, name):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", db=db)
    start("t")
    server.wait_for("p", db)
    ch.proxy.plan(exception(code, name, contains="INSERT", count=1))
    server.sql("INSERT INTO t VALUES (1, 'a')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert server.tables("p", db)["public.t"]["state"] == "ready"
    assert any(f"error {code}" in (r[0] or "") for r in server.sql("SELECT message FROM etl.error_log", db=db)) or server.status("p", db)["retries"] > 0


@pytest.mark.parametrize("code, name, status", [(516, "AUTHENTICATION_FAILED", 403), (497, "ACCESS_DENIED", 403), (81, "UNKNOWN_DATABASE", 404)])
def test_errors_of_the_endpoint_park_nothing(server, db, ch, lake, start, code, name, status):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", db=db)
    start("t")
    server.wait_for("p", db)
    ch.proxy.plan(exception(code, name, status, contains="INSERT"))
    server.sql("INSERT INTO t VALUES (1, 'a')", db=db)
    wait_until(lambda: f"error {code}" in (server.status("p", db)["problem"] or ""), 30, "the trouble shows")
    assert not server.status("p", db)["healthy"]
    assert server.tables("p", db)["public.t"]["state"] == "ready"
    ch.proxy.plan()
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_a_table_dropped_there_is_parked_and_comes_back(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (2, 'a')", db=db)
    server.wait_for("p", db)
    ch.execute(f"DROP TABLE {lake}.public_t")
    server.sql("INSERT INTO t VALUES (3, 'a')", db=db)
    table = parked(server, db, "public.t")
    assert table["sqlstate"] == "42P01" and "retry_table" in table["hint"], table
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_a_table_altered_there_is_parked_and_comes_back(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')", db=db)
    start("t")
    server.wait_for("p", db)
    ch.execute(f"ALTER TABLE {lake}.public_t DROP COLUMN v")
    server.sql("INSERT INTO t VALUES (2, 'secret')", db=db)
    table = parked(server, db, "public.t")
    assert "secret" not in table["error"]
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_several_tables_are_under_way_at_a_time(server, db, ch, lake, start):
    tables = [f"t{i}" for i in range(4)]
    for t in tables:
        server.sql(f"CREATE TABLE {t} (id int PRIMARY KEY)", db=db)
    start(", ".join(tables))
    server.wait_for("p", db)
    server.sql("BEGIN;" + "".join(f"INSERT INTO {t} VALUES (0);" for t in tables) + "COMMIT", db=db)
    server.wait_for("p", db)
    ch.hold("INSERT", count=3)
    server.sql("BEGIN;" + "".join(f"INSERT INTO {t} VALUES (1);" for t in tables) + "COMMIT", db=db)
    ch.wait_held(3)
    ch.release()
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, [f"public.{t}" for t in tables])


def test_unchanged_toast_is_completed_or_parked(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, n int, big text, other text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
               "ALTER TABLE t ALTER other SET STORAGE EXTERNAL", db=db)
    for engine in ("replacing_merge_tree", "merge_tree"):
        if engine == "replacing_merge_tree":
            start("t")
        else:
            server.sql("SELECT etl.alter_pipeline('p', '{\"engine\": \"merge_tree\"}')", db=db)
            server.sql("TRUNCATE t", db=db)
        server.wait_for("p", db)
        server.sql("BEGIN; INSERT INTO t VALUES (1, 0, repeat('b', 9000), repeat('o', 9000)); UPDATE t SET n = 1; UPDATE t SET other = 'x';"
                   "UPDATE t SET n = 2; UPDATE t SET id = 2; UPDATE t SET n = 3, big = repeat('c', 5000); UPDATE t SET n = 4; COMMIT", db=db)
        server.wait_for("p", db)
        (assert_current if engine == "replacing_merge_tree" else assert_log)(server, db, ch, lake, "public.t")
    server.sql("UPDATE t SET n = 5", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.t")
    server.sql("BEGIN; UPDATE t SET n = 6; UPDATE t SET big = 'short'; UPDATE t SET other = repeat('o', 9000); COMMIT", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.t")
    server.sql("BEGIN; UPDATE t SET id = 9; UPDATE t SET other = 'short'; COMMIT", db=db)
    assert "REPLICA IDENTITY FULL" in parked(server, db, "public.t")["hint"]


def test_order_by_needs_what_deletes_carry(server, db, ch, lake, start):
    """R07: what is not logged of a deleted row cannot find it; who asks for it is told what would allow it."""
    server.sql("CREATE TABLE t (id bigint PRIMARY KEY, account_id int NOT NULL, v text);"
               "INSERT INTO t VALUES (1, 42, 'a'), (2, 43, 'b'), (3, 44, 'c')", db=db)
    start("t", start=False)
    order = "SELECT etl.alter_table('p', 't', '{\"order_by\": \"account_id, id\"}')"
    with pytest.raises(psycopg.Error, match="not in the replica identity") as refused:
        server.sql(order, db=db)
    assert "REPLICA IDENTITY FULL" in refused.value.diag.message_hint
    # the identity may change later, too
    server.sql("ALTER TABLE t REPLICA IDENTITY FULL", db=db)
    server.sql(order, db=db)
    server.sql("ALTER TABLE t REPLICA IDENTITY DEFAULT; SELECT etl.start_pipeline('p')", db=db)
    assert "REPLICA IDENTITY FULL" in parked(server, db, "public.t")["hint"]
    server.sql("ALTER TABLE t REPLICA IDENTITY FULL", db=db)
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    server.sql("DELETE FROM t WHERE id = 1; UPDATE t SET account_id = 44 WHERE id = 2; UPDATE t SET id = 7 WHERE id = 3; UPDATE t SET v = 'z' WHERE id = 7", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert ch.query(f"SELECT * FROM {lake}.public_t_current ORDER BY id") == [(2, 44, "b"), (7, 44, "z")]


def test_options_of_a_table(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz NOT NULL, v text, n int);"
               "INSERT INTO t VALUES (1, now(), NULL, NULL)", db=db)
    start("t", start=False, options={"metadata_columns": ["committed_at"]}, view_suffix="")
    server.sql("SELECT etl.alter_table('p', 't', '{\"nullable\": false, \"partition_by\": \"id % 4\", \"destination_table\": \"flat\","
               " \"table_settings\": \"index_granularity = 1024\"}'); SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t SELECT g, now(), 'x', g FROM generate_series(2, 50) g", db=db)
    server.wait_for("p", db)
    assert list(ch.tables(lake)) == ["flat"]
    assert ch.query(f"SELECT v, n FROM {lake}.flat FINAL WHERE id = 1") == [("", 0)]
    assert ch.value(f"SELECT uniqExact(_partition_id) FROM {lake}.flat") == 4
    assert ch.value(f"SELECT min(_etl_committed_at) > now() - 3600 AND max(_etl_committed_at) < now() + 60 FROM {lake}.flat") == 1


def test_drop_pipeline_drops_what_is_ours(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)", db=db)
    start("t, u")
    server.wait_for("p", db)
    ch.execute(f"CREATE TABLE {lake}.mine (a Int32) ENGINE = MergeTree ORDER BY a")
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 30, "the pipeline is gone")
    assert list(ch.tables(lake)) == ["mine"]


def test_credentials(server, db, ch, lake, start, tmp_path):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", db=db)
    ch.set_users(default={}, w={"password": "geheim ü:", "grants": [f"SELECT, INSERT, ALTER, CREATE TABLE, CREATE VIEW, DROP ON {lake}.*"]})
    start("t", mapping={"user": "w", "password": "wrong"})
    wait_until(lambda: "516" in (server.status("p", db)["problem"] or ""), 30, "refused")
    assert server.status("p", db)["tables_parked"] == 0
    server.sql("ALTER USER MAPPING FOR CURRENT_USER SERVER s_p OPTIONS (SET password 'geheim ü:')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert "geheim" not in server.log()


@pytest.mark.parametrize("fault", [exception_in_body, exception_without_tag])
def test_an_exception_inside_an_answer_of_200_is_no_success(server, db, ch, lake, start, fault):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", db=db)
    start("t")
    server.wait_for("p", db)
    ch.proxy.plan(fault(241, "MEMORY_LIMIT_EXCEEDED", contains="INSERT", count=2))
    server.sql("INSERT INTO t VALUES (1, 'a')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_keys_with_arrays(server, db, ch, lake, start):
    """ClickHouse does not sort by arrays of nullable elements: such a column is text."""
    server.sql("CREATE TABLE t (id int[], tag text, PRIMARY KEY (id, tag)); INSERT INTO t VALUES ('{1,2}', 'a'), ('{1}', 'a'), ('{}', 'b')", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("UPDATE t SET id = '{1,2,3}' WHERE id = '{1}'; DELETE FROM t WHERE id = '{}'; INSERT INTO t VALUES ('{4}', 'c')", db=db)
    server.wait_for("p", db)
    assert sorted(ch.query(f"SELECT id, tag FROM {lake}.public_t_current")) == [
        ("[1,2,3]", "a"), ("[1,2]", "a"), ("[4]", "c")]


def test_arrays_whose_names_have_dots(server, db, ch, lake, start):
    """ClickHouse takes them for members of one Nested, which have one size in each row: such columns are text."""
    server.sql("CREATE TABLE t (id int PRIMARY KEY, \"a.b\" int[] NOT NULL, \"a.c\" text[], \"a.d\" text, e int[]);"
               "INSERT INTO t VALUES (1, '{1,2}', '{x}', 'd', '{5}'), (2, '{}', NULL, NULL, NULL)", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (3, '{7}', '{x,y,NULL}', 'd', '{}'); UPDATE t SET \"a.c\" = '{1,2,3}' WHERE id = 1", db=db)
    server.wait_for("p", db)
    assert ch.query(f"SELECT * FROM {lake}.public_t_current ORDER BY id") == [
        (1, "[1,2]", '["1","2","3"]', "d", [5], 0), (2, "[]", None, None, [], 1), (3, "[7]", '["x","y",null]', "d", [], 0)]
    assert_current(server, db, ch, lake, "public.t")
    for column, options in (("a.b", {"destination_type": "Array(Nullable(Int32))"}),):
        with pytest.raises(psycopg.Error, match="cannot be written as Array"):
            server.sql("SELECT etl.alter_column('p', 't', %s, %s)", (column, Jsonb(options)), db)


def test_a_refused_row_parks_its_table_alone(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY)", db=db)
    start("t, other")
    server.wait_for("p", db)
    ch.proxy.plan(exception(117, "INCORRECT_DATA", 400, text="cannot read geheim", contains="public_t"))
    server.sql("BEGIN; INSERT INTO t SELECT g, 'geheim' FROM generate_series(1, 20) g; INSERT INTO other VALUES (1); COMMIT", db=db)
    table = parked(server, db, "public.t")
    assert "117" in table["error"] and "geheim" not in table["error"] and table["error_ordinal"] == 1
    wait_others(server, db)
    assert_current(server, db, ch, lake, "public.other")


def test_a_server_that_is_no_clickhouse_is_trouble_of_the_endpoint(server, db, lake, receiver):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db=db)
    clickhouse(server, db, receiver.url, lake, options_=FAST)
    wait_until(lambda: "does not answer as ClickHouse does" in (server.status("p", db)["last_error"] or ""), 30, "told")
    assert server.tables("p", db) == {} or server.tables("p", db)["public.t"]["state"] == "init"


@pytest.mark.parametrize("options, error", [
    ("url 'http://h/'", 'option "database" is required'),
    ("url 'http://u:p@h/', database 'd'", "user"),
    ("url 'http://h/', database 'd', engine 'log'", "Valid values: replacing_merge_tree, merge_tree"),
    ("url 'http://h/', database 'd', colour 'red'", "Valid options"),
    ("url 'http://h/', database 'd', password 'x'", "Valid options"),
])
def test_bad_options_of_a_server(server, db, options, error):
    with pytest.raises(Exception, match=".") as caught:
        server.sql(f"CREATE SERVER s FOREIGN DATA WRAPPER etl_clickhouse OPTIONS ({options})", db=db)
    assert error in str(caught.value), str(caught.value)


@pytest.mark.parametrize("options, error", [
    ('{"metadata_columns": ["mood"]}', "Valid columns are: committed_at"),
    ('{"engine": "merge_tree", "order_by": "id"}', "not for engine merge_tree"),
    ('{"on_truncate": "log"}', "needs engine merge_tree"),
    ('{"if_exists": "append"}', "Valid values: error, replace"),
])
def test_bad_options_of_a_table(server, db, options, error):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db=db)
    clickhouse(server, db, "http://127.0.0.1:1/", "d", start=False)
    with pytest.raises(Exception, match=".") as caught:
        server.sql("SELECT etl.alter_table('p', 't', %s)", (options,), db)
    assert error in str(caught.value), str(caught.value)


# --- kills ---

TABLES = {"replacing_merge_tree": ["public.keyed", "public.toasty", "public.pair", "public.cleared"],
          "merge_tree": ["public.keyed", "public.toasty", "public.pair", "public.cleared", "public.bag"]}


def prepare(server, db, engine):
    Workload.create(server, db, rows=2000)
    if engine == "replacing_merge_tree":
        server.sql("ALTER PUBLICATION pub DROP TABLE bag", db=db)


def settle(server, db, ch, lake, engine):
    server.wait_ready()
    server.wait_for("p", db, timeout=120)
    states = {name: (t["state"], t["generation"], t["error"]) for name, t in server.tables("p", db).items()}
    assert sorted(states) == sorted(TABLES[engine]) and all(s[0] == "ready" for s in states.values()), states
    (assert_log if engine == "merge_tree" else assert_current)(server, db, ch, lake, TABLES[engine])
    assert [name for name in ch.tables(lake) if name.startswith("_etl_")] == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("engine", TABLES)
@pytest.mark.parametrize("victim", ["etl apply", "etl writer", "etl sync"])
def test_ends_with_an_insert_under_way(server, db, ch, lake, victim, engine, when):
    prepare(server, db, engine)
    if victim == "etl sync":
        ch.hold("INSERT", when=when, skip=1)
    with Workload(server, db) as load:
        clickhouse(server, db, ch, lake, options_={**FAST, "engine": engine})
        if victim != "etl sync":
            server.sql("SELECT etl.wait_for('p')", db=db)
            ch.hold("INSERT", when=when, skip=4)
        ch.wait_held()
        for pid in server.backends(victim, db):
            server.value("SELECT pg_terminate_backend(%s)", (pid,))
        done = load.transactions
        wait_until(lambda: load.transactions > done + 30, 60, "the load goes on")
        ch.release()
    settle(server, db, ch, lake, engine)


@pytest.mark.crashes
@pytest.mark.parametrize("engine", TABLES)
@pytest.mark.parametrize("victim", ["etl writer", "postmaster"])
def test_crashes_with_an_insert_under_way(fresh_server, ch, lake, victim, engine):
    server = fresh_server({"fsync": "on"})
    server.create_database("d")
    prepare(server, "d", engine)
    with Workload(server, "d"):
        clickhouse(server, "d", ch, lake, options_={**FAST, "engine": engine})
        server.wait_for("p", "d")
        for when in ("before", "after"):
            ch.hold("INSERT", when=when, skip=3)
            ch.wait_held()
            if victim == "postmaster":
                server.kill9()
                server.start()
            else:
                server.kill_worker(victim)
                server.wait_ready()
            ch.release()
    settle(server, "d", ch, lake, engine)


@pytest.mark.parametrize("engine", TABLES)
def test_resyncs_under_load(server, db, ch, lake, engine):
    prepare(server, db, engine)
    with Workload(server, db):
        clickhouse(server, db, ch, lake, options_={**FAST, "engine": engine})
        server.wait_for("p", db)
        for table in TABLES[engine][:3]:
            server.sql(f"SELECT etl.resync_table('p', '{table}')", db=db)
        server.wait_for("p", db)
        server.sql("SELECT etl.resync_pipeline('p')", db=db)
        server.wait_for("p", db)
    settle(server, db, ch, lake, engine)


@pytest.mark.parametrize("engine", TABLES)
def test_the_engine_dies_under_load(server, db, lake, ch, engine):
    prepare(server, db, engine)
    with Workload(server, db) as load:
        clickhouse(server, db, ch, lake, options_={**FAST, "engine": engine})
        server.wait_for("p", db)
        ch.kill9()
        done = load.transactions
        wait_until(lambda: load.transactions > done + 50, 60, "the load goes on")
        ch.start()
    settle(server, db, ch, lake, engine)


def test_a_new_pair_leaves_the_queue_of_the_old_one_alone(server, db, ch, lake, start):
    """A sync worker has put rows into its queue, and the old writer took some: the new one waits for the queue that
    is made for it, and no change is lost, doubled or in another order."""
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'a' FROM generate_series(1, 5) g", db=db)
    ch.hold(contains="INSERT INTO")
    start("t", {"engine": "merge_tree", "max_batch_events": 5})
    ch.wait_held()
    for text in "bcd":
        server.sql("UPDATE t SET v = v || %s", (text,), db)
    ch.proxy.plan(exception(252, "TOO_MANY_PARTS", contains="INSERT", skip=1, count=None))
    ch.release()
    wait_until(lambda: [r for r in ch.proxy.requests() if r.fault], 30, "the writer tries to send what the queue has")
    [sync] = server.backends("etl sync", db)
    [old] = server.backends("etl apply", db)
    os.kill(sync, signal.SIGSTOP)  # it does not see that the pair changes
    try:
        server.sql("SELECT pg_terminate_backend(%s)", (old,))
        wait_until(lambda: server.value("SELECT active_pid FROM pg_replication_slots WHERE NOT temporary AND database = %s",
                                        (db,)) not in (None, old), 30, "a new pair works")
        server.sql("UPDATE t SET v = v || 'e'", db=db)
        ch.proxy.plan()
    finally:
        os.kill(sync, signal.SIGCONT)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.t")
