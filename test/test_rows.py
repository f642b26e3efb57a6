"""Rows: images under each replica identity, values out of line, keys, transactions, sizes.

Every test compares values at both ends: tables rebuilt from a webhook's
events, and views or logs of ClickHouse's engine.
"""

import uuid

import pytest

pytest.importorskip("chdb")

from harness import assert_equal, wait_until  # noqa: E402
from harness.clickhouse import ClickHouse  # noqa: E402
from harness.clickhouse_equal import assert_current, assert_log  # noqa: E402
from harness.pipeline import clickhouse, drop, webhook  # noqa: E402

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms", "max_batch_delay": "0"}


@pytest.fixture(scope="module")
def ch():
    with ClickHouse() as made:
        yield made


class Pipelines:
    """The same tables to a webhook (p), to current rows (c) and to an event log (l) at ClickHouse."""

    def __init__(self, server, db, receiver, ch):
        self.server, self.db, self.receiver, self.ch = server, db, receiver, ch
        self.names, self.lakes = [], {}

    def start(self, sql, publish="t", kinds="pcl", publication="", **options):
        self.server.psql(f"{sql}; CREATE PUBLICATION pub FOR TABLE {publish} {publication}", self.db)
        for kind in kinds:
            self.names.append(kind)
            if kind == "p":
                webhook(self.server, self.db, self.receiver, options_={**FAST, **options})
                continue
            self.lakes[kind] = "lake_" + uuid.uuid4().hex[:8]
            self.ch.create_database(self.lakes[kind])
            clickhouse(self.server, self.db, self.ch, self.lakes[kind], kind, options_={
                **FAST, **options, "engine": "merge_tree" if kind == "l" else "replacing_merge_tree"})
        self.wait()
        return self.run

    def run(self, sql):
        self.server.psql(sql, self.db)

    def behind(self, sql):
        """Statements (autocommitted) that the pipelines see only when all of them are made."""
        for name in self.names:
            self.server.sql("SELECT etl.stop_pipeline(%s)", (name,), self.db)
        wait_until(lambda: not self.server.backends("etl writer", self.db), 20, "stopped")
        self.server.psql(sql, self.db)
        for name in self.names:
            self.server.sql("SELECT etl.start_pipeline(%s)", (name,), self.db)

    def wait(self):
        for name in self.names:
            self.server.wait_for(name, self.db)

    def equal(self, *tables):
        """Everything has arrived, and all destinations have the rows of the source."""
        self.wait()
        tables = [f"public.{t}" for t in tables or ("t",)]
        for name in self.names:
            if name == "p":
                assert_equal(self.server, self.db, self.receiver.state(), tables)
            else:
                (assert_log if name == "l" else assert_current)(
                    self.server, self.db, self.ch, self.lakes[name], tables)

    def changes(self, *kinds):
        """Row events of the stream, in order."""
        return [e for e in self.receiver.events() if e["event"] in (kinds or ("insert", "update", "delete"))
                and e["phase"] == "ongoing_replication"]

    def log(self, columns, table="public_t", order="cdc_epoch, cdc_lsn, cdc_ordinal"):
        """Rows of the event log, as tuples of text and numbers."""
        return [tuple(row) for row in self.ch.table(
            f"SELECT {columns} FROM {self.lakes['l']}.{table} WHERE cdc_ordinal > 0 ORDER BY {order}")[2]]

    def parked(self, name, table="public.t"):
        return wait_until(lambda: self.server.tables(name, self.db)[table]["state"] == "errored"
                          and self.server.tables(name, self.db)[table], 30, f"{table} is parked")

    def close(self):
        for name in self.names:
            drop(self.server, self.db, name)
        for lake in self.lakes.values():
            self.ch.execute(f"DROP DATABASE {lake}")


@pytest.fixture
def flow(server, db, receiver, ch):
    made = Pipelines(server, db, receiver, ch)
    yield made
    made.close()


# --- values out of line ---


BIG = ("CREATE TABLE t (id int PRIMARY KEY, n int, big text, j jsonb, b bytea);"
       "ALTER TABLE t ALTER big SET STORAGE external, ALTER b SET STORAGE external, ALTER j SET STORAGE external;")
ROWS = ("INSERT INTO t SELECT i, 0, repeat('x', 20000) || i, jsonb_build_object('k', repeat('y', 20000)),"
        "decode(repeat('ab', 10000), 'hex') FROM generate_series(1, 3) i;")


def test_r01_unchanged_values_come_from_the_live_row(flow):
    """Nothing of the row is on its way, and a receiver cannot be asked: the source has it."""
    run = flow.start(BIG + ROWS)
    run("UPDATE t SET n = 1 WHERE id = 1")
    flow.equal()
    run("UPDATE t SET n = n + 1 WHERE id < 3; UPDATE t SET n = n + 1")
    flow.equal()
    run("UPDATE t SET id = id + 10, n = 5 WHERE id = 2")
    flow.equal()
    assert {e["updated_table_row_kind"] for e in flow.changes("update")} == {"full"}
    assert all(e["missing_columns"] == [] for e in flow.changes("update"))
    run("UPDATE t SET big = 'short', n = 3 WHERE id = 1; UPDATE t SET n = 4 WHERE id = 1")
    flow.equal()


def test_r01_unchanged_values_are_never_newer(flow):
    """The live row has moved on: ClickHouse is asked, a webhook gets what is known, and nobody a later value."""
    flow.start(BIG + ROWS)
    flow.behind("UPDATE t SET n = 1; UPDATE t SET big = 'later' WHERE id = 1; DELETE FROM t WHERE id = 2;"
                "INSERT INTO t VALUES (2, 9, repeat('z', 20000), NULL, NULL); UPDATE t SET n = 10 WHERE id = 2")
    flow.equal()
    first = {e["key"]["id"]: e for e in flow.changes("update")[:3]}
    assert first[1]["missing_columns"] == ["big"] and first[1]["updated_table_row_kind"] == "partial"
    assert first[1]["updated_table_row"]["j"] == {"k": "y" * 20000}, "the others of the row are the same ones"
    assert first[2]["missing_columns"] == ["big", "j", "b"]
    assert first[3]["missing_columns"] == [] and first[3]["updated_table_row"]["big"] == "x" * 20000 + "3"
    seen = flow.log("id, n, substring(big, 1, 1), length(big), length(j), length(b)")
    assert seen == [(i, 1, "x", 20001, 20009, 10000) for i in (1, 2, 3)] + [
        (1, 1, "l", 5, 20009, 10000), (2, None, None, None, None, None), (2, 9, "z", 20000, None, None),
        (2, 10, "z", 20000, None, None)]


def test_r01_a_key_change_takes_its_values_along(flow):
    """Nothing on its way, the live row moved on: the row of the old key is asked for; a log has it only under that key."""
    flow.start(BIG + ROWS, kinds="pc")
    flow.behind("UPDATE t SET id = id + 100; UPDATE t SET big = 'later', j = '1', b = NULL WHERE id = 101")
    flow.equal()
    assert [e["missing_columns"] for e in flow.changes("update")[:3]] == [["big", "j", "b"], [], []]


def test_r01_a_log_that_cannot_know_is_parked_with_a_hint(flow):
    flow.start(BIG + ROWS, kinds="l")
    flow.behind("UPDATE t SET id = 10 WHERE id = 1; UPDATE t SET big = 'later' WHERE id = 10")
    assert "REPLICA IDENTITY FULL" in flow.parked("l")["hint"]
    flow.run("ALTER TABLE t REPLICA IDENTITY FULL; SELECT etl.retry_table('l')")
    flow.wait()
    flow.behind("UPDATE t SET id = 11 WHERE id = 10; UPDATE t SET big = 'latest' WHERE id = 11")
    flow.equal()


def test_values_are_asked_for_by_keys_of_any_type(flow):
    """Keys of each form that a question to ClickHouse can have, and of two columns."""
    keys = {"text": "'a''b\\c' || i", "bigint": "i - 2", "numeric(12,2)": "i / 3.0", "numeric": "i / 3.0", "uuid": "md5(i::text)::uuid",
            "date": "date '1950-01-01' + i", "timestamptz": "timestamptz '1960-01-01 00:00+00' + i * interval '1.000001 s'",
            "float8": "i / 3.0", "bool": "i = 2", "bytea": "decode('00ff0' || i, 'hex')", "char(5)": "i::text",
            "numeric(50,10)": "i / 3.0", "int2": "-i", "oid": "4000000000 + i", "time": "time '01:02:03' + i * interval '1 s'"}
    sql, tables = "", []
    for n, (kind, value) in enumerate(keys.items()):
        last = 2 if kind == "bool" else 3
        sql += (f"CREATE TABLE k{n} (id {kind}, part int, n int, big text, PRIMARY KEY (part, id)); ALTER TABLE k{n} ALTER big SET STORAGE external;"
                f"INSERT INTO k{n} SELECT {value}, i / 3, 0, repeat('x', 5000) || i FROM generate_series(1, {last}) i;")
        tables.append(f"k{n}")
    flow.start(sql, publish=", ".join(tables), kinds="cl")
    flow.behind(";".join(f"UPDATE {t} SET n = 1; UPDATE {t} SET big = 'later ' || n" for t in tables))
    flow.equal(*tables)
    for n, kind in enumerate(keys):
        assert flow.log("n, length(big), substring(big, 1, 1)", f"public_k{n}")[:2] == [(1, 5001, "x")] * 2, kind


def test_large_answers_are_asked_for_in_parts(flow):
    """More rows than one question has, mixed with whole ones."""
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE external;"
                     "INSERT INTO t SELECT i, 0, CASE WHEN i % 3 > 0 THEN repeat('x', 3000) || i ELSE 'short' END"
                     "  FROM generate_series(1, 500) i", kinds="cl")
    flow.behind("UPDATE t SET n = 1; BEGIN; UPDATE t SET n = 2; UPDATE t SET big = big || 'y'; COMMIT")
    flow.equal()
    run("DELETE FROM t WHERE id % 2 = 0; UPDATE t SET n = 7")
    flow.equal()
    seen = flow.log("id, big", order="cdc_ordinal, id")
    assert {len(big) for id, big in seen if id is not None and big is not None and id % 3 == 0} == {5, 6}


def test_unchanged_arrays_come_with_what_says_whether_they_are_null(flow):
    """An array and its companion at ClickHouse are one value: from an earlier row, the live one, ClickHouse itself."""
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, n int, a int[], m date[], j int[]);"
                     "ALTER TABLE t ALTER a SET STORAGE external, ALTER m SET STORAGE external;"
                     "INSERT INTO t SELECT i, 0, array_fill(i, ARRAY[2000]), CASE WHEN i % 2 = 0 THEN array_fill('2020-01-01'::date, ARRAY[2000]) END, '{}'"
                     " FROM generate_series(1, 6) i")
    run("UPDATE t SET n = 1; UPDATE t SET n = 2; UPDATE t SET j = NULL, n = 3 WHERE id = 2")
    flow.equal()
    flow.behind("UPDATE t SET n = 4; UPDATE t SET a = NULL WHERE id = 1; UPDATE t SET m = '{}' WHERE id = 2; UPDATE t SET n = 5")
    flow.equal()
    seen = flow.log("id, n, length(a), a__is_null, length(m), m__is_null")
    assert sorted(row for row in seen if row[0] > 2 and row[1] == 5) == [
        (3, 5, 2000, 0, 0, 1), (4, 5, 2000, 0, 2000, 0), (5, 5, 2000, 0, 0, 1), (6, 5, 2000, 0, 2000, 0)]


def test_unchanged_documents_of_type_json(flow):
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, n int, j jsonb); ALTER TABLE t ALTER j SET STORAGE external;"
                     "INSERT INTO t SELECT i, 0, jsonb_build_object('k', repeat('y', 20000), 'i', i) FROM generate_series(1, 3) i", kinds="c")
    run("SELECT etl.alter_column('c', 't', 'j', '{\"destination_type\": \"JSON\"}')")
    flow.wait()
    run("UPDATE t SET n = 1")
    flow.wait()
    flow.behind("UPDATE t SET n = 2; UPDATE t SET j = '{\"later\": true}' WHERE id = 1; UPDATE t SET j = NULL WHERE id = 2")
    flow.wait()
    found = flow.ch.query(f"SELECT id, n, toString(j) FROM {flow.lakes['c']}.public_t_current ORDER BY id")
    assert [(i, n, j if j is None or len(j) < 100 else len(j)) for i, n, j in found] == [(1, 2, '{"later":true}'), (2, 2, None), (3, 2, 20014)]
