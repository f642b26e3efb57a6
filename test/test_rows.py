"""Rows: images under each replica identity, values out of line, keys, transactions, sizes.

Every test compares values at both ends: tables rebuilt from a webhook's
events, and views or logs of ClickHouse's engine.
"""

import uuid

import pytest

from harness import assert_equal, wait_until
from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import clickhouse, drop, webhook

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms", "max_batch_delay": "0"}


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


def test_a_column_set_to_plain_keeps_old_values_out_of_line(flow):
    flow.start(BIG + ROWS, kinds="pc")
    flow.behind("ALTER TABLE t ALTER big SET STORAGE plain; UPDATE t SET n = 1; DELETE FROM t WHERE id = 1;"
                "UPDATE t SET big = 'later', n = 2 WHERE id = 2; VACUUM t")
    flow.equal()
    assert [e["missing_columns"] for e in flow.changes("update")] == [["big", "j", "b"], ["big"], [], []]


def test_r01_a_key_change_takes_its_values_along(flow):
    """Nothing on its way, the live row moved on: the row of the old key is asked for; a log has it only under that key."""
    flow.start(BIG + ROWS, kinds="pc")
    flow.behind("UPDATE t SET id = id + 100; UPDATE t SET big = 'later', j = '1', b = NULL WHERE id = 101")
    flow.equal()
    assert [e["missing_columns"] for e in flow.changes("update")[:3]] == [["big", "j", "b"], [], []]


def test_r01_a_chain_of_key_changes_in_one_batch(flow):
    """Each row is asked for under the key of the one before, which must be there by then."""
    flow.start(BIG + ROWS, kinds="pc")
    flow.behind("BEGIN; UPDATE t SET id = id + 100; UPDATE t SET n = 1; UPDATE t SET id = id + 100, n = 2; UPDATE t SET n = 3;"
                "UPDATE t SET id = 1, n = 4 WHERE id = 202; UPDATE t SET id = 202 WHERE id = 201; UPDATE t SET id = 201 WHERE id = 1;"
                "COMMIT; UPDATE t SET big = 'later'; UPDATE t SET j = '1', b = NULL WHERE id = 201")
    flow.equal()


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


# --- images ---


def test_images_under_each_replica_identity(flow):
    """What the events have of old and new rows, and what follows when the identity changes while the pipeline runs."""
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, u int NOT NULL UNIQUE, n int, big text); ALTER TABLE t ALTER big SET STORAGE external;"
                     "INSERT INTO t SELECT i, i * 10, 0, repeat('x', 9000) || i FROM generate_series(1, 4) i", kinds="pc")

    def images(sql):
        """[(event, key, old row, kind of old row, missing)] of what the statement makes; values are right at both ends."""
        since = len(flow.changes())
        run(sql)
        flow.equal()
        return [(e["event"], e["key"], e.get("old_table_row"), e.get("old_table_row_kind"), e.get("missing_columns"))
                for e in flow.changes()[since:]]

    x = lambda i: "x" * 9000 + str(i)
    assert images("UPDATE t SET n = 1 WHERE id = 1") == [("update", {"id": 1}, None, None, [])]
    assert images("UPDATE t SET id = 11 WHERE id = 1") == [("update", {"id": 1}, {"id": 1}, "key", [])]
    assert images("UPDATE t SET u = 11 WHERE id = 11") == [("update", {"id": 11}, None, None, [])]
    assert images("DELETE FROM t WHERE id = 11") == [("delete", {"id": 11}, {"id": 11}, "key", None)]

    run("ALTER TABLE t REPLICA IDENTITY USING INDEX t_u_key")
    assert images("UPDATE t SET n = 2 WHERE id = 2") == [("update", {"u": 20}, None, None, [])]
    assert images("UPDATE t SET id = 22 WHERE id = 2") == [("update", {"u": 20}, None, None, [])]
    assert images("UPDATE t SET u = 21 WHERE u = 20") == [("update", {"u": 20}, {"u": 20}, "key", [])]
    assert images("DELETE FROM t WHERE u = 21") == [("delete", {"u": 21}, {"u": 21}, "key", None)]

    run("ALTER TABLE t REPLICA IDENTITY FULL")
    old = {"id": 3, "u": 30, "n": 0, "big": x(3)}
    assert images("UPDATE t SET n = 3 WHERE id = 3") == [("update", {"id": 3}, old, "full", [])]
    assert images("UPDATE t SET id = 33 WHERE id = 3") == [("update", {"id": 3}, {**old, "n": 3}, "full", [])]
    assert images("DELETE FROM t WHERE id = 33") == [("delete", {"id": 33}, {**old, "id": 33, "n": 3}, "full", None)]

    run("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    assert images("UPDATE t SET n = 4 WHERE id = 4") == [("update", {"id": 4}, None, None, [])]
    assert images("INSERT INTO t VALUES (5, 50, 5, 'e')") == [("insert", {"id": 5}, None, None, [])]


def test_identity_nothing_has_no_key(flow):
    """Only inserts can be published then; an update at the source is not."""
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY NOTHING; INSERT INTO t VALUES (1, 'a')",
                     publication="WITH (publish = 'insert')", kinds="pl")
    run("INSERT INTO t VALUES (2, 'b'); UPDATE t SET v = 'unseen' WHERE id = 1; DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (2, 'c')")
    flow.wait()
    assert [(e["key"], e["table_row"]) for e in flow.changes()] == [(None, {"id": 2, "v": "b"}), (None, {"id": 2, "v": "c"})]
    assert flow.log("id, v, cdc_operation") == [(2, "b", "INSERT"), (2, "c", "INSERT")]


def test_r03_the_old_row_of_full_has_the_value_and_that_of_an_index_has_fillers(flow):
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, n int, big text, u int NOT NULL UNIQUE);"
                     "ALTER TABLE t ALTER big SET STORAGE external, REPLICA IDENTITY FULL;"
                     "INSERT INTO t VALUES (1, 0, repeat('z', 50000), 7)")
    run("UPDATE t SET n = 1")
    flow.equal()
    run("ALTER TABLE t REPLICA IDENTITY USING INDEX t_u_key")
    flow.behind("UPDATE t SET u = 8, n = 2; UPDATE t SET u = 9, n = 3")
    flow.equal()
    # the live row of 8 is that of 9 by now, and a filler of the old row is no value
    assert [e["missing_columns"] for e in flow.changes("update")] == [[], ["big"], []]


# --- keys ---


def test_r05_keys_that_move_and_meet(flow):
    """Left by one row and taken by another in the same transaction, in chains and in rings; the order of the rows is the source's."""
    run = flow.start("CREATE TABLE t (a int, b int, v text, PRIMARY KEY (a, b));"
                     "INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'z')")
    run("UPDATE t SET a = a + 10 WHERE v = 'x'; BEGIN; UPDATE t SET a = 100 WHERE v = 'y'; UPDATE t SET a = 2 WHERE v = 'z'; COMMIT;"
        "UPDATE t SET b = b WHERE v = 'x'")
    flow.equal()
    run("BEGIN; INSERT INTO t SELECT i, 0, 'row ' || i FROM generate_series(1000, 1, -1) i; UPDATE t SET a = a + 1 WHERE b = 0; COMMIT")
    flow.equal()
    run("UPDATE t SET a = a + 1 WHERE b = 0")
    for _ in range(3):
        run("BEGIN; UPDATE t SET a = -1 WHERE a = 500 AND b = 0; UPDATE t SET a = 500 WHERE a = 501 AND b = 0;"
            "UPDATE t SET a = 501 WHERE a = -1 AND b = 0; COMMIT")
    run("BEGIN; UPDATE t SET a = 7, b = 7 WHERE v = 'z'; DELETE FROM t WHERE a = 7 AND b = 7; INSERT INTO t VALUES (7, 7, 'new');"
        "UPDATE t SET a = 8 WHERE b = 7; UPDATE t SET a = 7 WHERE b = 7; COMMIT")
    flow.equal()


def test_keys_swapped_under_a_deferrable_constraint(flow):
    """Its rows have one key at a time, for a moment: so it is no key, and rows are told by all their values."""
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text); ALTER TABLE t REPLICA IDENTITY FULL;"
                     "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c');"
                     "CREATE TABLE u (id int PRIMARY KEY, d int UNIQUE DEFERRABLE INITIALLY DEFERRED, v text); INSERT INTO u VALUES (1, 1, 'a'), (2, 2, 'b')",
                     publish="t, u", kinds="pl")
    run("UPDATE t SET id = 4 - id; UPDATE t SET id = id % 3 + 1; BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE t SET id = 2 WHERE v = 'a';"
        "UPDATE t SET v = v || '2' WHERE id = 2; UPDATE t SET id = 1 WHERE v = 'c2'; COMMIT")
    run("UPDATE u SET d = 3 - d")
    flow.wait()
    assert {e["key"] is None for e in flow.changes("update") if e["table"]["name"] == "t"} == {True}
    flow.equal("t", "u")


def test_a_deferrable_key_is_none_at_clickhouse(flow):
    flow.start("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text); ALTER TABLE t REPLICA IDENTITY FULL", kinds="")
    flow.lakes["c"] = "lake_" + uuid.uuid4().hex[:8]
    flow.ch.create_database(flow.lakes["c"])
    clickhouse(flow.server, flow.db, flow.ch, flow.lakes["c"], "c", options_=FAST)
    flow.names.append("c")
    assert "needs a key" in flow.parked("c")["error"]


def test_keys_stored_out_of_line(flow):
    """Logged with every update; changed, unchanged, and with other large values that are not."""
    run = flow.start("CREATE TABLE t (part int, id text, n int, big text, PRIMARY KEY (part, id));"
                     "ALTER TABLE t ALTER id SET STORAGE external, ALTER big SET STORAGE external;"
                     "INSERT INTO t SELECT i, repeat('k', 2200) || i, 0, repeat('x', 9000) || i FROM generate_series(1, 3) i")
    run("UPDATE t SET n = 1")
    run("UPDATE t SET part = 10 WHERE part = 1; UPDATE t SET id = repeat('m', 2300) WHERE part = 2")
    flow.equal()
    flow.behind("UPDATE t SET n = 2; UPDATE t SET n = 3, big = 'later' WHERE part = 2")
    flow.equal()
    run("UPDATE t SET n = 2; UPDATE t SET id = id || '+'")
    flow.equal()
    run("DELETE FROM t WHERE part = 3")
    flow.equal()


EQUAL_AT_THE_SOURCE = {
    "numeric": ["1.0", "1.00", "1", "NaN"],
    "float8": ["0", "-0", "NaN", "Infinity"],
    "citext": ["Ab", "aB", "AB", "x"],
    "char(6)": ["a", "a ", "a  ", "b"],
    "text COLLATE anycase": ["Ab", "aB", "AB", "x"],
    "interval": ["24:00:00", "1 day", "1440 minutes", "1 mon"],
    "jsonb": ["1.0", "1.00", "1", "[1.0]"],
    "timetz": ["12:00:00+00", "12:00:00+00", "13:00:00+01", "14:00:00+00"],
    "inet": ["10.0.0.1", "10.0.0.1/32", "10.0.0.1", "10.0.0.2"],
}


def test_keys_that_are_equal_and_look_different(flow):
    """A key that changes its look stays the row's key at the source; no destination keeps a row under the old look."""
    sql = ("CREATE EXTENSION citext;"
           "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);")
    for n, (kind, values) in enumerate(EQUAL_AT_THE_SOURCE.items()):
        sql += (f"CREATE TABLE k{n} (id {kind} PRIMARY KEY, n int, v text); ALTER TABLE k{n} ALTER v SET STORAGE external;"
                f"INSERT INTO k{n} VALUES ('{values[0]}', 0, repeat('v', 5000)), ('{values[3]}', 0, 'other');")
    tables = [f"k{n}" for n in range(len(EQUAL_AT_THE_SOURCE))]
    run = flow.start(sql, publish=", ".join(tables), kinds="pc")
    run(";".join(f"UPDATE k{n} SET id = '{v}', n = n + 1 WHERE v <> 'other'; UPDATE k{n} SET n = n + 1"
                 for n, values in enumerate(EQUAL_AT_THE_SOURCE.values()) for v in values[1:3]))
    flow.equal(*tables)
    run(";".join(f"BEGIN; UPDATE k{n} SET id = '{values[0]}' WHERE v <> 'other'; DELETE FROM k{n} WHERE v <> 'other';"
                 f"INSERT INTO k{n} VALUES ('{values[1]}', 9, 'new'); UPDATE k{n} SET id = '{values[2]}' WHERE v = 'new'; COMMIT"
                 for n, values in enumerate(EQUAL_AT_THE_SOURCE.values())))
    flow.equal(*tables)


# --- transactions ---


def test_subtransactions_and_what_was_rolled_back(flow):
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'old' FROM generate_series(1, 20) i", kinds="pc")
    run("""BEGIN; UPDATE t SET v = 'a' WHERE id = 1; SAVEPOINT one; DELETE FROM t WHERE id < 5; SAVEPOINT two; INSERT INTO t VALUES (100, 'gone');
           ROLLBACK TO two; INSERT INTO t VALUES (101, 'kept'); RELEASE one; SAVEPOINT three; UPDATE t SET id = id + 1000; ROLLBACK TO three;
           UPDATE t SET v = 'last' WHERE id = 20; COMMIT;
           BEGIN; DELETE FROM t; ROLLBACK; BEGIN; SAVEPOINT a; TRUNCATE t; ROLLBACK TO a; COMMIT""")
    run("""DO $$ BEGIN FOR i IN 1 .. 300 LOOP BEGIN INSERT INTO t VALUES (200 + i % 250, 'sub');
           EXCEPTION WHEN unique_violation THEN UPDATE t SET v = v || '+' WHERE id = 200 + i % 250; END; END LOOP; END $$""")
    flow.equal()
    events = [e for e in flow.receiver.events() if e["phase"] == "ongoing_replication" and e["event"] != "relation"]
    assert [e["event"] for e in events].count("begin") == 2
    assert not any("gone" in str(e) for e in events)
    for a, b in zip(events, events[1:]):
        assert a["event"] == "commit" or a["commit_lsn"] == b["commit_lsn"]


def test_rows_that_are_only_tried_locked_or_merged(flow):
    """Speculative inserts, row locks, COPY FREEZE, MERGE, and transactions that change nothing that is published."""
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE); INSERT INTO t VALUES (1, 'a'), (2, 'b');"
                     "CREATE TABLE other (id int); CREATE TABLE source (id int, v text); INSERT INTO source VALUES (2, 'B'), (3, 'c'), (9, NULL)")
    run("BEGIN; COMMIT; INSERT INTO other VALUES (1); BEGIN; INSERT INTO other VALUES (2); UPDATE other SET id = 3; COMMIT;"
        "SELECT pg_logical_emit_message(true, 'x', 'y'); CREATE TEMP TABLE tmp AS SELECT * FROM t; UPDATE tmp SET v = 'z';"
        "BEGIN; SELECT * FROM t FOR UPDATE; COMMIT; BEGIN; SELECT * FROM t FOR KEY SHARE; SELECT * FROM t FOR NO KEY UPDATE; COMMIT; NOTIFY x")
    flow.wait()
    assert [e for e in flow.receiver.events() if e["phase"] == "ongoing_replication"] == []
    run("INSERT INTO t VALUES (1, 'x') ON CONFLICT DO NOTHING; INSERT INTO t VALUES (4, 'a') ON CONFLICT (v) DO UPDATE SET id = 14;"
        "INSERT INTO t SELECT i % 3 + 20, i::text FROM generate_series(1, 3) i ON CONFLICT (id) DO UPDATE SET v = excluded.v || t.v;"
        "MERGE INTO t USING source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED AND s.v IS NULL THEN DO NOTHING"
        "  WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v);"
        "BEGIN; SELECT * FROM t WHERE id = 2 FOR UPDATE; UPDATE t SET v = 'locked' WHERE id = 2; COMMIT")
    run("BEGIN; TRUNCATE t; COPY t FROM PROGRAM 'printf \"1\\tfrozen\\n2\\ttoo\\n\"' WITH (FREEZE); COMMIT; UPDATE t SET v = v || '!'")
    flow.equal()


def test_inserts_that_lose_a_race(flow):
    """Speculative insertions that are taken back leave nothing, large values included."""
    import threading

    flow.start("CREATE TABLE t (id int PRIMARY KEY, n int, v text); ALTER TABLE t ALTER v SET STORAGE external", kinds="pc")

    def write(seed):
        with flow.server.connect(flow.db) as c:
            for i in range(150):
                c.execute("INSERT INTO t VALUES (%s, 1, repeat(%s, 3000)) ON CONFLICT (id) DO UPDATE SET n = t.n + 1", (i // 2, str(seed)))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flow.server.value("SELECT sum(n) FROM t", db=flow.db) == 600
    flow.equal()


def test_prepared_transactions(fresh_server, receiver, ch):
    """Seen when they are committed, with that position, also when the server restarts in between."""
    server = fresh_server(conf={"max_prepared_transactions": "10"})
    server.create_database("d")
    flow = Pipelines(server, "d", receiver, ch)
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, v text)", kinds="pc")
    run("BEGIN; INSERT INTO t VALUES (1, 'one'); PREPARE TRANSACTION 'one'; BEGIN; INSERT INTO t VALUES (2, 'two'); SAVEPOINT s;"
        "INSERT INTO t VALUES (22, 'two'); PREPARE TRANSACTION 'two'; BEGIN; INSERT INTO t VALUES (3, 'three'); PREPARE TRANSACTION 'three';"
        "INSERT INTO t VALUES (10, 'plain')")
    flow.wait()
    assert [e["key"]["id"] for e in flow.changes()] == [10]
    run("COMMIT PREPARED 'one'; UPDATE t SET v = v || '+' WHERE id = 1")
    flow.equal()
    server.restart()
    wait_until(lambda: server.backends("etl writer", "d"), 20, "running again")
    run("INSERT INTO t VALUES (11, 'after')")
    flow.equal()
    run("COMMIT PREPARED 'two'; ROLLBACK PREPARED 'three'; UPDATE t SET v = v || '!' WHERE id = 22")
    flow.equal()
    assert sorted(row["id"] for row in receiver.state().rows("public.t")) == [1, 2, 10, 11, 22]
    flow.close()


def test_a_transaction_over_many_batches(flow):
    """Rows of one transaction in hundreds of batches, with keys that meet again in later ones."""
    run = flow.start("CREATE TABLE t (id int PRIMARY KEY, n int, v text)", kinds="pc", max_batch_size="64kB")
    run("BEGIN; INSERT INTO t SELECT i, 0, 'row ' || i FROM generate_series(1, 20000) i; UPDATE t SET n = 1 WHERE id % 2 = 0;"
        "DELETE FROM t WHERE id % 3 = 0; INSERT INTO t SELECT i, 2, 'again' FROM generate_series(3, 20000, 3) i;"
        "UPDATE t SET id = id + 100000 WHERE id % 5 = 0; COMMIT")
    flow.equal()
    begins = [e for e in flow.receiver.events() if e["event"] in ("begin", "commit")]
    assert [e["event"] for e in begins] == ["begin", "commit"]
    assert begins[1]["tx_ordinal"] > 20000
