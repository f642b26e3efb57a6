"""Kinds of destinations of other extensions, written against the installed header alone."""

import json
import os
from pathlib import Path

import pytest

from harness.wait import wait_until


class Folder:
    """What the kind etl_test_file keeps in its folder."""

    def __init__(self, path):
        self.path = Path(path)

    def calls(self, prefix=""):
        path = self.path / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(prefix)]

    def fault(self, text):
        path = self.path / "fault"
        path.with_suffix(".new").write_text(text + "\n")
        os.replace(path.with_suffix(".new"), path)

    def generation(self, relid):
        path = self.path / f"{relid}.current"
        return int(path.read_text()) if path.exists() else None

    def columns(self, relid):
        text = (self.path / f"{relid}.{self.generation(relid)}" / "columns").read_text()
        return [tuple(line.split("\t")[2:]) for line in text.splitlines()]

    def log(self, relid):
        text = (self.path / f"{relid}.{self.generation(relid)}" / "rows").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def forget(self, relid):
        """read_back() finds nothing any more."""
        (self.path / f"{relid}.{self.generation(relid)}" / "encoded").write_bytes(b"")

    def rows(self, relid, key="id"):
        """The rows that the log adds up to: the greatest position of each key wins."""
        state = {}
        for entry in self.log(relid):
            if entry["op"] == "truncate":
                state = {}
                continue
            order = (entry["epoch"], entry["lsn"], entry["ordinal"], entry["sub"])
            known = state.get(entry["row"][key])
            if known is None or known[0] <= order:
                state[entry["row"][key]] = (order, entry["op"], entry["row"])
        return {k: row for k, (_, op, row) in state.items() if op != "delete"}


@pytest.fixture
def folder(server, db, tmp_path_factory):
    path = Path(server.base) / f"folder_{db}"
    server.sql(f"COPY (SELECT 1) TO PROGRAM 'cat >/dev/null; mkdir -m 777 {path}'")
    server.sql("CREATE EXTENSION etl_test", db=db)
    server.sql(f"CREATE SERVER folder FOREIGN DATA WRAPPER etl_test_file OPTIONS (directory '{path}')", db=db)
    return Folder(path)


def relid(server, db, table):
    return server.value(f"SELECT '{table}'::regclass::oid", db=db)


def source(server, db, table, key="id"):
    rows = server.sql(f"SELECT jsonb_object_agg(key, value)::text FROM {table} t,"
                      f" LATERAL jsonb_each_text(to_jsonb(t)) GROUP BY t.{key}", db=db)
    return {row[key]: row for row in (json.loads(r[0]) for r in rows)}


def start(server, db, destination, tables):
    server.sql(f"CREATE PUBLICATION pub FOR TABLE {tables}", db=db)
    server.sql(f"SELECT etl.create_pipeline('p', publication => 'pub', destination => '{destination}')", db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)


def test_a_kind_with_tables_is_copied_to_and_follows(server, db, folder):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 100) i", db=db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    oid = relid(server, db, "t")
    assert folder.columns(oid) == [("id", "integer"), ("v", "maybe text")]
    assert folder.rows(oid) == source(server, db, "t")

    server.sql("INSERT INTO t VALUES (101, NULL); UPDATE t SET v = 'changed' WHERE id < 10; DELETE FROM t WHERE id = 20;"
               "UPDATE t SET id = 1000 WHERE id = 30", db=db)
    server.wait_for("p", db)
    assert folder.rows(oid) == source(server, db, "t")

    server.sql("BEGIN; INSERT INTO t VALUES (5000, 'gone'); TRUNCATE t; INSERT INTO t VALUES (1, 'after'); COMMIT", db=db)
    server.wait_for("p", db)
    assert folder.rows(oid) == source(server, db, "t") == {"1": {"id": "1", "v": "after"}}


def test_the_life_of_a_generation_is_in_order(server, db, folder):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')", db=db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    oid = relid(server, db, "t")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    assert folder.generation(oid) == 2
    for generation in (1, 2):
        calls = [line.split(" ")[0] for line in folder.calls() if f"public.t {generation}" in line]
        order = ["begin_generation", "read_columns", "send", "end_copy", "publish_generation"]
        places = [calls.index(call) for call in order]
        assert places == sorted(places), calls
    assert folder.rows(oid) == source(server, db, "t")


def test_an_empty_table_exists_when_it_is_ready(server, db, folder):
    server.sql("CREATE TABLE t (id int PRIMARY KEY)", db=db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    assert folder.columns(relid(server, db, "t")) == [("id", "integer")]


def test_a_destination_that_is_away_is_retried_until_it_is_back(server, db, folder):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", db=db)
    folder.fault("connect retry")
    start(server, db, "folder", "t")
    wait_until(lambda: folder.calls("connect"), what="a try to connect")
    folder.fault("begin_generation retry")
    wait_until(lambda: folder.calls("begin_generation"), what="a try to make the table")
    folder.fault("send retry")
    wait_until(lambda: folder.calls("send"), what="a try to send")
    folder.fault("publish_generation retry")
    wait_until(lambda: folder.calls("publish_generation"), what="a try to publish")
    folder.fault("")
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (2)", db=db)
    folder.fault("send retry")
    server.sql("INSERT INTO t VALUES (3)", db=db)
    folder.fault("")
    server.wait_for("p", db)
    assert folder.rows(relid(server, db, "t")) == source(server, db, "t")


@pytest.mark.parametrize("how", ["reject", "refuse"])
def test_a_refused_row_parks_its_table_and_no_other(server, db, folder, how):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY, v text)", db=db)
    start(server, db, "folder", "t, other")
    server.wait_for("p", db)
    folder.fault(f"send {how} poison")
    server.sql("BEGIN; INSERT INTO t SELECT i, 'fine' FROM generate_series(1, 20) i; INSERT INTO t VALUES (21, 'poison');"
               "INSERT INTO t VALUES (22, 'later'); INSERT INTO other VALUES (1, 'fine'); COMMIT", db=db)
    wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "errored", what="the table is parked")
    server.sql("INSERT INTO other VALUES (2, 'fine')", db=db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    parked = server.tables("p", db)["public.t"]
    assert (parked["sqlstate"], parked["recovery"]) == ("22000", "resync")
    assert server.tables("p", db)["public.other"]["state"] == "ready"
    assert set(folder.rows(relid(server, db, "t"))) == {str(i) for i in range(1, 21)}
    assert folder.rows(relid(server, db, "other")) == source(server, db, "other")
    folder.fault("")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    assert folder.rows(relid(server, db, "t")) == source(server, db, "t")


@pytest.fixture
def local(server, db):
    server.sql("CREATE EXTENSION etl_test; CREATE SERVER here FOREIGN DATA WRAPPER etl_test_local", db=db)


def local_rows(server, db, table):
    rows = server.sql(f"SELECT \"row\"::text FROM etl_test.local_row WHERE relid = '{table}'::regclass", db=db)
    return {row["id"]: row for row in (json.loads(r[0]) for r in rows)}


def test_a_kind_inside_this_database_applies_in_the_writers_transaction(server, db, local):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 50) i", db=db)
    start(server, db, "here", "t")
    server.wait_for("p", db)
    assert local_rows(server, db, "t") == source(server, db, "t")
    server.sql("INSERT INTO t VALUES (51, NULL); UPDATE t SET v = 'changed' WHERE id < 10; DELETE FROM t WHERE id = 20;"
               "UPDATE t SET id = 1000 WHERE id = 30", db=db)
    server.wait_for("p", db)
    assert local_rows(server, db, "t") == source(server, db, "t")
    server.sql("BEGIN; INSERT INTO t VALUES (5000, 'gone'); TRUNCATE t; INSERT INTO t VALUES (1, 'after'); COMMIT", db=db)
    server.wait_for("p", db)
    assert local_rows(server, db, "t") == source(server, db, "t")


def test_a_local_kind_applies_each_change_once_although_the_writer_is_ended(server, db, local):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", db=db)
    start(server, db, "here", "t")
    server.wait_for("p", db)
    for round in range(5):
        server.sql(f"INSERT INTO t SELECT i, 'x' FROM generate_series({round * 1000}, {round * 1000 + 999}) i", db=db)
        for pid in server.backends("etl writer", db):
            server.sql(f"SELECT pg_terminate_backend({pid})")
    server.wait_for("p", db)
    assert local_rows(server, db, "t") == source(server, db, "t")
    twice = server.sql("SELECT lsn, ordinal, sub, count(*) FROM etl_test.local_change WHERE NOT copied"
                       " GROUP BY 1, 2, 3 HAVING count(*) > 1", db=db)
    assert twice == []


def test_a_kind_that_needs_keys_does_not_take_a_table_without(server, db, local):
    server.sql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE keyless (v text); INSERT INTO keyless VALUES ('a')", db=db)
    start(server, db, "here", "t, keyless")
    wait_until(lambda: server.tables("p", db).get("public.keyless", {}).get("state") in ("errored", "excluded"),
               what="the table without key is set aside")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert server.tables("p", db)["public.t"]["state"] == "ready"
    assert local_rows(server, db, "keyless") == {}


def test_drop_with_tables(server, db, folder):
    """drop_pipeline() with drop_tables: trouble is shown and tried again, nothing is forgotten."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    table = relid(server, db, "t")
    folder.fault("drop_table retry")
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: len(folder.calls("drop_table")) >= 2, 10, "tried again")
    status = server.status("p", db)
    assert status["state"] == "dropping" and status["last_error"] and status["next_retry_time"]
    assert folder.generation(table) == 1
    folder.fault("")
    wait_until(lambda: server.status("p", db) is None, 10, "the pipeline is gone")
    assert folder.generation(table) is None


def test_drop_by_force(server, db, folder):
    """force => true goes on without the destination, also when a drop is waiting for it."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    folder.fault("drop_table endpoint")
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: folder.calls("drop_table"), 10, "tried")
    server.sql("SELECT etl.drop_pipeline('p', force => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 5, "the pipeline is gone")
    assert folder.generation(relid(server, db, "t")) == 1


def test_drop_without_the_server(server, db, folder):
    """The destination's definition goes while the drop waits: dropped without its tables."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    folder.fault("drop_table retry")
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: folder.calls("drop_table"), 10, "tried")
    server.sql("DROP SERVER folder", db=db)
    wait_until(lambda: server.status("p", db) is None, 20, "the pipeline is gone")


def behind(server, db, sql):
    """Changes that the pipeline sees only when all of them are made: live rows tell nothing of the earlier ones."""
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: not server.backends("etl writer", db), what="stopped")
    for statement in sql.split(";"):
        server.sql(statement, db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)


def test_an_unchanged_toast_value_comes_from_an_earlier_row_of_the_batch(server, db, folder):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE external", db=db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    server.sql("BEGIN; INSERT INTO t SELECT i, 0, repeat(i::text, 5000) FROM generate_series(1, 3) i;"
               "UPDATE t SET n = 1; UPDATE t SET n = 2 WHERE id = 2; COMMIT", db=db)
    server.wait_for("p", db)
    assert folder.rows(relid(server, db, "t")) == source(server, db, "t")


def test_a_toast_value_is_asked_back_from_the_destination(server, db, folder):
    """Of copied rows and of rows of an earlier batch; also when the first answer is late."""
    server.sql("ALTER SERVER folder OPTIONS (ADD read_back 'on')", db=db)
    server.sql("CREATE TABLE t (id int PRIMARY KEY, n int, big text, other text); ALTER TABLE t ALTER big SET STORAGE external;"
               "INSERT INTO t SELECT i, 0, repeat(i::text, 5000), NULL FROM generate_series(1, 3) i", db=db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    behind(server, db, "UPDATE t SET n = 1 WHERE id < 3; UPDATE t SET big = 'later' WHERE id = 1")
    server.wait_for("p", db)
    assert folder.rows(relid(server, db, "t")) == source(server, db, "t")
    assert folder.calls("read_back")
    folder.fault("read_back retry")
    asked = len(folder.calls("read_back"))
    behind(server, db, "UPDATE t SET n = 2, other = 'x'; UPDATE t SET big = 'later' WHERE id = 2")
    wait_until(lambda: len(folder.calls("read_back")) > asked, 20, "asked while nobody answers")
    folder.fault("")
    server.wait_for("p", db)
    assert folder.rows(relid(server, db, "t")) == source(server, db, "t")
    assert server.tables("p", db)["public.t"]["state"] == "ready"


def test_a_toast_value_that_the_destination_has_not_parks_the_table(server, db, folder):
    server.sql("ALTER SERVER folder OPTIONS (ADD read_back 'on')", db=db)
    server.sql("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE external;"
               "INSERT INTO t SELECT 1, 0, repeat('x', 5000); CREATE TABLE u (id int PRIMARY KEY)", db=db)
    start(server, db, "folder", "t, u")
    server.wait_for("p", db)
    folder.forget(relid(server, db, "t"))
    behind(server, db, "UPDATE t SET n = 1; UPDATE t SET big = 'later'; INSERT INTO u VALUES (1)")
    wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "errored", what="the table is parked")
    wait_until(lambda: "REPLICA IDENTITY FULL" in server.tables("p", db)["public.t"]["hint"], what="the hint is stored")
    wait_until(lambda: folder.rows(relid(server, db, "u")) == source(server, db, "u"), what="the other goes on")


def test_a_toast_value_that_nobody_has_parks_the_table_with_a_hint(server, db, folder):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE external;"
               "INSERT INTO t SELECT 1, 0, repeat('x', 5000)", db=db)
    start(server, db, "folder", "t")
    server.wait_for("p", db)
    behind(server, db, "UPDATE t SET n = 1; DELETE FROM t; INSERT INTO t SELECT 1, 1, repeat('y', 5000)")
    wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "errored", what="the table is parked")
    wait_until(lambda: "REPLICA IDENTITY FULL" in server.tables("p", db)["public.t"]["hint"], what="the hint is stored")
    server.sql("ALTER TABLE t REPLICA IDENTITY FULL; SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    server.sql("UPDATE t SET n = 2", db=db)
    server.wait_for("p", db)
    assert folder.rows(relid(server, db, "t")) == source(server, db, "t")
