"""Keys, publications, partitions, DDL in the stream: the case's input, and the source's rows in the end.

case -> test
R05 R10 R11 R14 P01 P03 P06 P07 D09 D11 D13 D15 D22: test_<case>_... here
R01  test_webhook.py: test_unchanged_toast_is_named_not_made_up, test_writer.py, test_kinds.py
R07  test_clickhouse.py: test_order_by_needs_what_deletes_carry
R11  (further) test_filters.py: test_generated_columns_in_copy_and_stream
R14  (more of it) test_filters.py
R03  test_webhook.py: test_unchanged_toast_under_full_and_in_the_key
P01 P03 further: test_partitions.py
P06  (own tables, what is not replicable) test_rules.py: test_own_schema_is_not_replicated, test_unlogged_temporary_foreign
P10 D24  test_cases_values.py
D01 D20  test_cases_copy.py
"""

import pytest
from harness import assert_equal, wait_until

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms"}


def keys(state, table):
    return sorted(row["id"] for row in state.rows(table))


# --- keys ---


def test_r05_keys_that_move_and_meet(server, db, receiver, follow):
    """A key left by one row and taken by another in the same transaction."""
    run = follow("CREATE TABLE r05(a int, b int, v text, PRIMARY KEY (a, b)); CREATE PUBLICATION pub FOR TABLE r05")
    run("INSERT INTO r05 VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'z');"
        "UPDATE r05 SET a = a + 10 WHERE v = 'x';"
        "BEGIN; UPDATE r05 SET a = 100 WHERE v = 'y'; UPDATE r05 SET a = 2 WHERE v = 'z'; COMMIT;"
        "UPDATE r05 SET b = b WHERE v = 'x'")
    server.wait_for("p", db)
    rows = sorted((row["a"], row["b"], row["v"]) for row in receiver.state().rows("public.r05"))
    assert rows == [(2, 3, "z"), (11, 1, "x"), (100, 2, "y")]
    again = type(receiver.state())(receiver.events() + receiver.events())
    assert sorted(row["v"] for row in again.rows("public.r05")) == ["x", "y", "z"], "a replay changes nothing"


def test_r10_the_applications_updates_are_not_refused(server, db, receiver, follow):
    """We make no publication; one of the users' that would refuse is pointed out."""
    run = follow("CREATE TABLE r10_schema_version(version int NOT NULL); INSERT INTO r10_schema_version VALUES (1);"
                 "CREATE PUBLICATION pub FOR TABLE r10_schema_version WITH (publish = 'insert')")
    run("UPDATE r10_schema_version SET version = 2; INSERT INTO r10_schema_version VALUES (3);"
        "DELETE FROM r10_schema_version WHERE version = 2")
    server.wait_for("p", db)
    assert sorted(row["version"] for row in receiver.state().rows("public.r10_schema_version")) == [1, 3]
    assert not server.value("SELECT count(*) FROM pg_publication WHERE pubname <> 'pub'", db=db)
    run("ALTER PUBLICATION pub SET (publish = 'insert, update, delete')")
    found = server.sql("SELECT severity, check_name, hint FROM etl.validate_pipeline('p')"
                       " WHERE check_name = 'keyless_update_rejected'", db=db)
    assert len(found) == 1 and found[0][0] == "warning" and "REPLICA IDENTITY" in found[0][2]


def test_r11_updates_under_full_identity_with_a_generated_column(server, db, receiver, follow):
    """Not refused, and all columns arrive.  PostgreSQL 18 wants the column published for that."""
    published = " WITH (publish_generated_columns = stored)" if server.value("SHOW server_version_num") >= "180000" else ""
    run = follow("CREATE TABLE r11(id int PRIMARY KEY, title text, slug text GENERATED ALWAYS AS (lower(title)) STORED, views int);"
                 "ALTER TABLE r11 REPLICA IDENTITY FULL; INSERT INTO r11 (id, title, views) VALUES (1, 'Hello', 0);"
                 f"CREATE PUBLICATION pub FOR TABLE r11{published}")
    run("UPDATE r11 SET views = 1; INSERT INTO r11 (id, title, views) VALUES (2, 'World', 0); UPDATE r11 SET title = 'NEW' WHERE id = 2")
    server.wait_for("p", db)
    assert sorted((r["id"], r["title"], r["slug"], r["views"]) for r in receiver.state().rows("public.r11")) == [
        (1, "Hello", "hello", 1), (2, "NEW", "new", 0)]


def test_r14_updates_that_move_a_row_through_the_filter(server, db, receiver, follow):
    """After each statement, the copy included, the destination is what the filter says of the source."""
    run = follow("CREATE TABLE r14(id int PRIMARY KEY, region text NOT NULL, v int, big text);"
                 "ALTER TABLE r14 ALTER big SET STORAGE external; ALTER TABLE r14 REPLICA IDENTITY FULL;"
                 "INSERT INTO r14 VALUES (1, 'us', 1, repeat('a', 50000)), (2, 'eu', 1, repeat('b', 50000));"
                 "CREATE PUBLICATION pub FOR TABLE r14 WHERE (region = 'us')")
    assert_equal(server, db, receiver.state(), ["public.r14"], where="region = 'us'")
    assert keys(receiver.state(), "public.r14") == [1]
    for statement, kinds, wanted in (("UPDATE r14 SET region = 'eu' WHERE id = 1", ["delete"], []),
                                     ("UPDATE r14 SET region = 'us' WHERE id = 2", ["insert"], [2]),
                                     ("UPDATE r14 SET v = 2", ["update"], [2]),
                                     ("DELETE FROM r14 WHERE id = 1", [], [2]),
                                     ("DELETE FROM r14 WHERE id = 2", ["delete"], [])):
        seen = len(receiver.events())
        run(statement)
        server.wait_for("p", db)
        assert [e["event"] for e in receiver.events()[seen:] if e["event"] not in ("begin", "commit", "relation")] == kinds
        assert keys(receiver.state(), "public.r14") == wanted
        assert_equal(server, db, receiver.state(), ["public.r14"], where="region = 'us'")


def test_r14_operations_that_are_not_published(server, db, receiver, follow):
    """Without deletes, a row that leaves the filter still does: what an update turns into is published as an update."""
    run = follow("CREATE TABLE r14(id int PRIMARY KEY, region text NOT NULL); ALTER TABLE r14 REPLICA IDENTITY FULL;"
                 "INSERT INTO r14 VALUES (1, 'us'), (2, 'eu'), (3, 'us');"
                 "CREATE PUBLICATION pub FOR TABLE r14 WHERE (region = 'us') WITH (publish = 'update')")
    run("UPDATE r14 SET region = 'eu' WHERE id = 1; UPDATE r14 SET region = 'us' WHERE id = 2;"
        "DELETE FROM r14 WHERE id = 3; INSERT INTO r14 VALUES (4, 'us')")
    server.wait_for("p", db)
    assert keys(receiver.state(), "public.r14") == [2, 3]


# --- publications and partitions ---


@pytest.mark.parametrize("via_root", [True, False])
def test_p01_what_comes_and_goes_with_a_partition(server, db, receiver, follow, via_root):
    """At every step the destination is what a SELECT shows."""
    run = follow("CREATE TABLE p01(id int, d date, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);"
                 "CREATE TABLE p01_a PARTITION OF p01 FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');"
                 "CREATE TABLE p01_b(LIKE p01 INCLUDING ALL);"
                 "INSERT INTO p01 VALUES (1, '2024-01-05'), (2, '2024-01-06'); INSERT INTO p01_b VALUES (10, '2024-02-05'), (11, '2024-02-06');"
                 f"CREATE PUBLICATION pub FOR TABLE p01 WITH (publish_via_partition_root = {via_root})")
    leaves = ["public.p01_a"]

    def equal():
        server.wait_for("p", db)
        assert_equal(server, db, receiver.state(), ["public.p01"] if via_root else leaves)

    equal()
    run("ALTER TABLE p01 ATTACH PARTITION p01_b FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')")
    leaves.append("public.p01_b")
    equal()
    run("TRUNCATE p01_a")
    equal()
    run("INSERT INTO p01 VALUES (3, '2024-01-07')")
    equal()
    run("ALTER TABLE p01 DETACH PARTITION p01_b")
    leaves.remove("public.p01_b")
    equal()
    run("CREATE TABLE p01_c PARTITION OF p01 FOR VALUES FROM ('2025-01-01') TO ('2026-01-01'); INSERT INTO p01 VALUES (4, '2025-01-01');"
        "DROP TABLE p01_a")
    leaves[:] = ["public.p01_c"]
    equal()
    run("ALTER TABLE p01 ATTACH PARTITION p01_b FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')")
    run("ALTER TABLE p01 DETACH PARTITION p01_b CONCURRENTLY")
    equal()
    if via_root:
        assert {e["table"]["name"] for e in receiver.events() if "table" in e} == {"p01"}


@pytest.mark.parametrize("via_root", [True, False])
def test_p03_partitions_of_later_are_followed(server, db, receiver, follow, via_root):
    run = follow("CREATE TABLE p03(id int, m int, PRIMARY KEY (id, m)) PARTITION BY LIST (m);"
                 "CREATE TABLE p03_1 PARTITION OF p03 FOR VALUES IN (1); INSERT INTO p03 VALUES (1, 1);"
                 f"CREATE PUBLICATION pub FOR TABLE p03 WITH (publish_via_partition_root = {via_root})")
    run("CREATE TABLE p03_2 PARTITION OF p03 FOR VALUES IN (2)")
    run("INSERT INTO p03 VALUES (2, 2)")
    run("BEGIN; CREATE TABLE p03_3 PARTITION OF p03 FOR VALUES IN (3); INSERT INTO p03 VALUES (3, 3); COMMIT")
    run("CREATE TABLE p03_d PARTITION OF p03 DEFAULT; INSERT INTO p03 VALUES (9, 99)")
    run("CREATE TABLE p03_sub PARTITION OF p03 FOR VALUES IN (4) PARTITION BY LIST (id);"
        "CREATE TABLE p03_sub1 PARTITION OF p03_sub DEFAULT; INSERT INTO p03 VALUES (4, 4)")
    server.wait_for("p", db)
    tables = ["public.p03"] if via_root else \
        ["public.p03_1", "public.p03_2", "public.p03_3", "public.p03_d", "public.p03_sub1"]
    assert_equal(server, db, receiver.state(), tables)
    assert sorted(key for table in tables for key in keys(receiver.state(), table)) == [1, 2, 3, 4, 9]
    if via_root:
        assert [e["copy"] for e in receiver.events() if e["event"] == "copy_begin"] == [1], "nothing was copied again"


def test_p06_all_tables_take_in_what_is_new_and_nothing_else(server, db, receiver, follow):
    run = follow("CREATE PUBLICATION pub FOR ALL TABLES")
    run("CREATE TABLE p06_new(id int PRIMARY KEY, v text); INSERT INTO p06_new VALUES (1, 'x')")
    run("CREATE UNLOGGED TABLE p06_u(id int PRIMARY KEY); INSERT INTO p06_u VALUES (1);"
        "CREATE TEMP TABLE p06_t(id int); INSERT INTO p06_t VALUES (1);"
        "CREATE EXTENSION citext; CREATE TABLE p06_last(id int PRIMARY KEY); INSERT INTO p06_last VALUES (1)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.p06_new", "public.p06_last"])
    names = {e["table"]["name"] for e in receiver.events() if "table" in e}
    assert names == {"p06_new", "p06_last"}
    status = server.status("p", db)
    assert status["healthy"] and status["tables_parked"] == 0
    wal = server.value("SELECT pg_current_wal_insert_lsn()", db=db)
    server.wait_for("p", db)
    assert server.value("SELECT pg_current_wal_insert_lsn() - %s < 100000", (wal,), db), "no echo of our own writes"


def test_p07_a_table_that_left_by_being_made_anew_is_told(server, db, receiver, follow):
    run = follow("CREATE TABLE p07(id int PRIMARY KEY, v text); CREATE TABLE stays(id int PRIMARY KEY);"
                 "CREATE PUBLICATION pub FOR TABLE p07, stays; INSERT INTO p07 VALUES (0, 'old')")
    run("DROP TABLE p07; CREATE TABLE p07(id int PRIMARY KEY, v text); INSERT INTO p07 VALUES (1, 'lost?')")
    server.wait_for("p", db)
    states = server.sql("SELECT state FROM etl.table_status WHERE table_name = 'p07'", db=db)
    assert states == [("dropped",)]
    assert 1 not in keys(receiver.state(), "public.p07")
    assert server.status("p", db)["healthy"], "another table is there"
    run("ALTER PUBLICATION pub DROP TABLE stays")
    wait_until(lambda: server.value("SELECT count(*) FROM etl.validate_pipeline('p')"
                                    " WHERE check_name = 'publication_empty'", db=db) == 1, 20, "an empty publication is told")
    wait_until(lambda: not server.status("p", db)["healthy"], 20, "nothing is replicated any more")
    assert "dropped" in server.status("p", db)["problem"]
    run("ALTER PUBLICATION pub ADD TABLE p07")
    server.wait_for("p", db)
    assert server.status("p", db)["healthy"]
    assert receiver.state().rows("public.p07") == [{"id": 1, "v": "lost?"}]


# --- DDL ---


def test_d09_a_table_of_the_same_name_is_another_one(server, db, receiver, follow):
    run = follow("CREATE SCHEMA d; CREATE TABLE d.d09(id int PRIMARY KEY, v text);"
                 "INSERT INTO d.d09 SELECT g, 'a' FROM generate_series(1, 100) g;"
                 "CREATE PUBLICATION pub FOR TABLES IN SCHEMA d")
    run("DROP TABLE d.d09; CREATE TABLE d.d09(id bigint PRIMARY KEY, v text, extra jsonb);"
        "INSERT INTO d.d09 VALUES (1, 'b', '{}')")
    server.wait_for("p", db)
    assert receiver.state().rows("d.d09") == [{"id": 1, "v": "b", "extra": {}}]
    oids = {e["table"]["oid"] for e in receiver.events() if e.get("table", {}).get("name") == "d09"}
    assert len(oids) == 2


def test_d11_nothing_depends_on_triggers(server, db, receiver, follow):
    """session_replication_role = replica switches triggers off, ours are none."""
    run = follow("CREATE TABLE d11(id int PRIMARY KEY, v text); INSERT INTO d11 VALUES (1, 'a');"
                 "CREATE PUBLICATION pub FOR TABLE d11")
    run("SET session_replication_role = replica; TRUNCATE d11; INSERT INTO d11 VALUES (2, 'b');"
        "ALTER TABLE d11 ADD COLUMN w int DEFAULT 3; RESET session_replication_role; INSERT INTO d11 VALUES (3, 'c', 4)")
    server.wait_for("p", db)
    rows = sorted(receiver.state().rows("public.d11"), key=lambda row: row["id"])
    assert rows == [{"id": 2, "v": "b", "w": 3}, {"id": 3, "v": "c", "w": 4}]


def test_d13_ddl_while_nobody_runs_concerns_its_table(server, db, receiver, follow):
    run = follow("CREATE TABLE d13_a(id int PRIMARY KEY, v text); CREATE TABLE d13_b(id int PRIMARY KEY, v text);"
                 "INSERT INTO d13_a VALUES (1, 'a'); INSERT INTO d13_b VALUES (1, 'b');"
                 "CREATE PUBLICATION pub FOR TABLE d13_a, d13_b")
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 20, "stopped")
    run("ALTER TABLE d13_a ADD COLUMN c1 int, ADD COLUMN c2 int;"
        "INSERT INTO d13_a VALUES (2, 'a', 1, 2); INSERT INTO d13_b VALUES (2, 'b')")
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.d13_a", "public.d13_b"])
    assert {"id": 2, "v": "a", "c1": 1, "c2": 2} in receiver.state().rows("public.d13_a")
    assert {"id": 1, "v": "a", "c1": None, "c2": None} in receiver.state().rows("public.d13_a")


def test_d15_ddl_is_seen_however_it_is_made(server, db, receiver, follow):
    """In functions, several in a transaction, concurrently built indexes: and none of it waits for us."""
    run = follow("CREATE TABLE d15(id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE d15")
    run("DO $$ BEGIN EXECUTE 'ALTER TABLE d15 ADD COLUMN a int'; EXECUTE 'ALTER TABLE d15 DROP COLUMN a';"
        " EXECUTE 'ALTER TABLE d15 ADD COLUMN a text'; END $$;"
        "ALTER TABLE d15 ADD COLUMN b int UNIQUE; ALTER TABLE d15 ADD COLUMN c int; INSERT INTO d15 VALUES (1, 'x', 2, 3);")
    with server.connect(db) as c:
        c.execute("SET lock_timeout = '10s'; SET statement_timeout = '20s'")
        c.execute("CREATE INDEX CONCURRENTLY d15_i ON d15(c)")
        c.execute("DROP INDEX CONCURRENTLY d15_i")
    server.wait_for("p", db)
    assert receiver.state().rows("public.d15") == [{"id": 1, "a": "x", "b": 2, "c": 3}]
    assert server.value("SELECT count(*) FROM pg_event_trigger", db=db) == 0
    assert server.value("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'd15'::regclass AND NOT tgisinternal", db=db) == 0


def test_d22_tables_come_go_and_come_back(server, db, receiver, follow):
    run = follow("CREATE TABLE d22_a(id int PRIMARY KEY); INSERT INTO d22_a VALUES (1); CREATE PUBLICATION pub FOR TABLE d22_a")
    pair = server.backends("etl apply", db) + server.backends("etl writer", db)
    run("CREATE TABLE d22_b(id int PRIMARY KEY); INSERT INTO d22_b VALUES (1); ALTER PUBLICATION pub ADD TABLE d22_b;"
        "INSERT INTO d22_b VALUES (2); INSERT INTO d22_a VALUES (2)")
    server.wait_for("p", db)
    run("ALTER PUBLICATION pub DROP TABLE d22_a")
    run("ALTER PUBLICATION pub ADD TABLE d22_a; INSERT INTO d22_a VALUES (3)")
    server.wait_for("p", db)
    assert keys(receiver.state(), "public.d22_b") == [1, 2]
    assert keys(receiver.state(), "public.d22_a") == [1, 2, 3]
    assert_equal(server, db, receiver.state(), ["public.d22_a", "public.d22_b"])
    assert server.backends("etl apply", db) + server.backends("etl writer", db) == pair
