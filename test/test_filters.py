"""What a publication publishes of a table, by value against pgoutput and against a subscription of the server's own."""

import os
import random

import pytest
from harness import assert_equal, wait_until
from harness.clickhouse import ClickHouse
from harness.clickhouse_equal import assert_current
from harness.pgoutput import PgOutput, assert_same, from_events
from harness.pipeline import clickhouse, drop, webhook

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms"}


@pytest.fixture
def seed():
    value = int(os.environ.get("ETL_SEED") or random.randrange(1 << 30))
    print(f"ETL_SEED={value}")
    return value


# --- against pgoutput ---

TABLES = """
CREATE SCHEMA s;
CREATE TABLE full_row (id int PRIMARY KEY, region text, n int, big text);
ALTER TABLE full_row REPLICA IDENTITY FULL; ALTER TABLE full_row ALTER big SET STORAGE EXTERNAL;
CREATE TABLE by_key (id int PRIMARY KEY, region text, n int, big text);
ALTER TABLE by_key ALTER big SET STORAGE EXTERNAL;
CREATE TABLE by_index (id int PRIMARY KEY, region text NOT NULL, n int, big text);
CREATE UNIQUE INDEX by_index_i ON by_index (id, region); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_i;
CREATE TABLE listed (big text, id int PRIMARY KEY, region text, n int);
CREATE TABLE plain (id int PRIMARY KEY, region text, n int, big text);
CREATE TABLE s.whole (id int PRIMARY KEY, region text, n int, big text);
ALTER TABLE s.whole REPLICA IDENTITY FULL;
"""
FILL = "".join(f"INSERT INTO {name} (id, region, n, big) SELECT g, (ARRAY['us', 'eu', 'asia'])[g % 3 + 1], g,"
               f" repeat('f', g * 50) FROM generate_series(1, 99, 2) g;"
               for name in ("full_row", "by_key", "by_index", "listed", "plain", "s.whole"))
NAMES = ["full_row", "by_key", "by_index", "listed", "plain", "s.whole"]
# a column list and a schema do not go together
PUBLICATION = """
CREATE PUBLICATION pub FOR TABLE
    full_row WHERE ((region = 'us' OR n > 50) AND length(big) > 10), by_key WHERE (id % 3 <> 0),
    by_index WHERE (region IN ('us', 'eu') AND id < 60), listed {listed} WHERE (id % 2 = 0), plain,
    s.whole WHERE (false) {schema} WITH (publish = '{publish}')
"""
ALL = "insert, update, delete, truncate"


def publication(schema, publish=ALL):
    return PUBLICATION.format(publish=publish, listed="" if schema else "(id, region)",
                              schema=", TABLES IN SCHEMA s" if schema else "")


def where(name, schema):
    """The filter of a table in it."""
    return {"full_row": "(region = 'us' OR n > 50) AND length(big) > 10", "by_key": "id % 3 <> 0",
            "by_index": "region IN ('us', 'eu') AND id < 60", "listed": "id % 2 = 0", "plain": "true",
            "s.whole": "true" if schema else "false"}[name]


def change(r, table):
    """One random statement."""
    key, region = r.randrange(100), r.choice(("us", "eu", "asia"))
    value = {"id": str(r.randrange(100)), "region": f"'{region}'", "n": r.choice(("NULL", str(r.randrange(100)))),
             "big": r.choice(("NULL", "'x'", f"'{r.choice('abc') * 3000}'", "'medium medium'"))}
    if table == "by_index" and value["region"] == "NULL":
        value["region"] = "'us'"
    kind = r.choice(("insert", "insert", "update", "update", "update", "delete"))
    if kind == "insert":
        return (f"INSERT INTO {table} ({', '.join(value)}) VALUES ({', '.join(value.values())}) ON CONFLICT DO NOTHING")
    if kind == "update":
        column = r.choice(list(value))
        if column == "id":  # never onto a key that is taken
            return (f"UPDATE {table} SET id = {value['id']} WHERE id = {key}"
                    f" AND NOT EXISTS (SELECT FROM {table} o WHERE o.id = {value['id']})")
        return f"UPDATE {table} SET {column} = {value[column]} WHERE id = {key}"
    return f"DELETE FROM {table} WHERE id = {key}"


@pytest.mark.parametrize("schema, publish", [
    (True, ALL), (False, ALL), (False, "insert"), (True, "update"), (False, "insert, delete"), (True, "update, delete")])
def test_every_change_is_what_pgoutput_says(server, db, receiver, follow, seed, schema, publish):
    r = random.Random(seed)
    run = follow(TABLES + FILL + publication(schema, publish))
    server.sql("SELECT pg_switch_wal()", db=db)
    with PgOutput(server, db, "pub") as oracle:
        for _ in range(60):
            statements = [change(r, r.choice(NAMES)) for _ in range(r.choice((1, 1, 5, 20)))]
            if r.random() < 0.05:
                statements.append(f"TRUNCATE {', '.join(r.sample(NAMES, 2))}")
            run("BEGIN;" + ";".join(statements) + ";COMMIT")
        server.wait_for("p", db)
        wanted = oracle.changes()
    assert len(wanted) > 10
    assert_same(wanted, from_events(receiver.events()))


def test_every_change_while_the_rules_change(server, db, receiver, follow, seed):
    """Each transaction ends before the next begins: then pgoutput's catalogs and our positions are the same rules."""
    r = random.Random(seed)
    run = follow(TABLES + publication(False),
                 on_filter_change="ignore", on_column_published="null")
    rules = ["ALTER PUBLICATION pub SET TABLE full_row WHERE (n > 20), by_key, plain WHERE (id > 30), listed (id, n)",
             "ALTER PUBLICATION pub SET (publish = 'insert, update')",
             "ALTER PUBLICATION pub SET TABLE full_row, by_key WHERE (id < 50), plain (id, n), listed (id, region)"
             " WHERE (id % 2 = 1), by_index WHERE (region = 'us')",
             "ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')",
             "ALTER PUBLICATION pub ADD TABLE s.whole",
             "BEGIN; ALTER PUBLICATION pub RENAME TO pub2; ALTER PUBLICATION pub2 RENAME TO pub; COMMIT"]  # pgoutput goes by the name
    tables = ["full_row", "by_key", "plain", "listed"]  # never out of the publication
    with PgOutput(server, db, "pub") as oracle:
        for i in range(60):
            if i % 10 == 5:
                run(rules[i // 10])
            statements = [change(r, r.choice(tables)) for _ in range(r.choice((1, 5, 20)))]
            run("BEGIN;" + ";".join(statements) + ";COMMIT")
        server.wait_for("p", db)
        wanted = oracle.changes()
    assert len(wanted) > 50
    assert_same(wanted, from_events(receiver.events()))


@pytest.mark.parametrize("schema", [True, False])
def test_copy_and_stream_are_what_a_subscription_has(server, db, receiver, follow, seed, schema):
    """A subscriber beside us, from the first row on: the tables are equal in the end, by value."""
    r = random.Random(seed)
    server.psql(TABLES, db)
    other = server.create_database(f"{db}_sub", extension=False)
    server.psql(TABLES, other)
    for _ in range(400):
        server.sql(change(r, r.choice(NAMES)), db=db)
    server.psql(publication(schema), db)
    try:
        server.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (other,), db)
        server.sql(f"CREATE SUBSCRIPTION sub CONNECTION '{server.dsn(db)}' PUBLICATION pub"
                   f" WITH (create_slot = false, slot_name = '{other}')", db=other)
        webhook(server, db, receiver, options_=FAST)
        for _ in range(400):
            server.sql(change(r, r.choice(NAMES)), db=db)
        wait_until(lambda: server.value("SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel", db=other), 60,
                   "the subscription has copied")
        lsn = server.value("SELECT pg_current_wal_lsn()", db=db)
        server.wait_for("p", db)
        wait_until(lambda: server.value("SELECT latest_end_lsn >= %s FROM pg_stat_subscription WHERE relid IS NULL"
                                        " AND subname = 'sub'", (lsn,), other), 60, "the subscription is up to date")
        for name in NAMES:
            full = name if "." in name else f"public.{name}"
            # by_key: unchanged values out of line of an insert that was an update are not in the WAL
            columns = (["id", "region"] if name == "listed" and not schema else
                       ["id", "region", "n"] if name == "by_key" else None)
            for source in (db, other):
                assert_equal(server, source, receiver.state(), [full], columns, where(name, schema), ignore_others=name == "by_key")
            assert (server.value(f"SELECT count(*) FROM {full}", db=other) > 0) == (schema or name != "s.whole"), full
    finally:
        server.sql("ALTER SUBSCRIPTION sub DISABLE", db=other)
        server.sql("ALTER SUBSCRIPTION sub SET (slot_name = NONE)", db=other)
        server.sql("DROP SUBSCRIPTION sub", db=other)
        wait_until(lambda: server.value("SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s", (other,)), 30,
                   "the subscriber is gone")
        server.sql("SELECT pg_drop_replication_slot(%s)", (other,), db)
        server.drop_database(other)


# --- trouble ---

def test_a_filter_that_fails_parks_its_table_alone(server, db, receiver, follow):
    run = follow("CREATE TABLE bad (id int PRIMARY KEY, n int); ALTER TABLE bad REPLICA IDENTITY FULL;"
                 "CREATE TABLE good (id int PRIMARY KEY); INSERT INTO bad VALUES (1, 1); INSERT INTO good VALUES (1);"
                 "CREATE PUBLICATION pub FOR TABLE bad WHERE (10 / n > 0), good")
    run("INSERT INTO good VALUES (2); INSERT INTO bad VALUES (2, 0); INSERT INTO good VALUES (3); INSERT INTO bad VALUES (3, 3)")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    row = server.tables("p", db)["public.bad"]
    assert (row["state"], row["sqlstate"], row["recovery"]) == ("errored", "22012", "resync") and "zero" in row["error"]
    run("INSERT INTO good VALUES (4)")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert_equal(server, db, receiver.state(), ["public.good"])
    assert sorted(r["id"] for r in receiver.state().rows("public.bad")) == [1]
    # the copy meets it, too
    run("SELECT etl.retry_table('p')")
    wait_until(lambda: server.tables("p", db)["public.bad"]["state"] == "errored"
               and server.tables("p", db)["public.bad"]["recovery"] == "retry", 20, "the copy has failed")
    assert server.tables("p", db)["public.bad"]["sqlstate"] == "22012"
    run("DELETE FROM bad WHERE n = 0; SELECT etl.retry_table('p')")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.bad", "public.good"])


def test_a_filter_that_can_never_be_computed(server, db, receiver, follow):
    """Its constant part fails: the table is parked at its first change, DDL and truncates disturb nobody."""
    run = follow("CREATE TABLE bad (id int PRIMARY KEY, n int); CREATE TABLE good (id int PRIMARY KEY);"
                 "CREATE PUBLICATION pub FOR TABLE bad, good")
    run("SELECT etl.alter_table('p', 'bad', '{\"on_filter_change\": \"ignore\"}')")
    server.wait_for("p", db)
    run("ALTER PUBLICATION pub SET TABLE bad WHERE (id > 1 / 0), good; ALTER TABLE bad ADD COLUMN more int; TRUNCATE bad")
    server.wait_for("p", db)
    run("INSERT INTO bad VALUES (1); INSERT INTO good VALUES (1)")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert (server.tables("p", db)["public.bad"]["state"], server.tables("p", db)["public.bad"]["sqlstate"]) == ("errored", "22012")
    assert_equal(server, db, receiver.state(), ["public.good"])


def test_a_filters_columns_need_select(server, db, receiver):
    """Also those outside the list; with the right, the column's values stay at home."""
    owner = f"owner_{db}"
    server.psql(f"CREATE ROLE {owner} REPLICATION; CREATE TABLE t (id int PRIMARY KEY, tenant int); INSERT INTO t VALUES (1, 1), (2, 2);"
                "CREATE PUBLICATION pub FOR TABLE t (id) WHERE (tenant = 1) WITH (publish = 'insert');"
                f"GRANT SELECT (id) ON t TO {owner}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO {owner};"
                f"CREATE SERVER s_p FOREIGN DATA WRAPPER etl_webhook OPTIONS (url '{receiver.url}'); GRANT USAGE ON FOREIGN SERVER s_p TO {owner};"
                f"SET ROLE {owner}; SELECT etl.create_pipeline('p', 'pub', 's_p'); SELECT etl.start_pipeline('p')", db)
    try:
        wait_until(lambda: (server.tables("p", db).get("public.t") or {}).get("state") == "errored", 30, "the copy may not read it")
        assert server.tables("p", db)["public.t"]["sqlstate"] == "42501"
        found = server.sql("SELECT message, hint FROM etl.validate_pipeline('p') WHERE check_name = 'table_select'", db=db)
        assert len(found) == 1 and found[0][0].endswith("may not read: tenant") and "GRANT" in found[0][1]
        server.psql(f"GRANT SELECT (tenant) ON t TO {owner}; SELECT etl.retry_table('p')", db)
        server.wait_for("p", db)
        server.psql("INSERT INTO t VALUES (3, 1), (4, 2)", db)
        server.wait_for("p", db)
        assert sorted(r["id"] for r in receiver.state().rows("public.t")) == [1, 3]
        assert all(b"tenant" not in r.body for r in receiver.requests)
    finally:
        drop(server, db)
        server.psql(f"DROP SERVER s_p; DROP OWNED BY {owner}; DROP ROLE {owner}", db)


def test_a_filter_means_what_it_meant_where_it_was_made(server, db, receiver):
    """A search_path of the database that hides operators and functions changes nothing, in copy and stream."""
    server.psql("""
        CREATE SCHEMA evil;
        CREATE FUNCTION evil.no(int, int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT false';
        CREATE OPERATOR evil.> (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.no);
        CREATE FUNCTION evil.length(text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 0';
        CREATE TABLE t (id int PRIMARY KEY, "t" text, "Odd ""name"" %" int); ALTER TABLE t REPLICA IDENTITY FULL;
        INSERT INTO t VALUES (1, 'long', 1), (2, 'x', 2), (3, 'long', NULL);
        CREATE PUBLICATION pub FOR TABLE t WHERE (length("t") > 2 AND "Odd ""name"" %" IS NOT NULL);
        """, db)
    server.sql(f"ALTER DATABASE {db} SET search_path = evil, pg_catalog, public")
    server.close(db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    server.psql("""INSERT INTO t VALUES (4, 'long', 4), (5, 'y', 5), (6, NULL, 6); UPDATE t SET "t" = 'longer' WHERE id = 2""", db)
    server.wait_for("p", db)
    assert sorted(r["id"] for r in receiver.state().rows("public.t")) == [1, 2, 4]
    drop(server, db)


# --- changes ---

RULES = [  # (before, after, rows that are there in the end)
    ("FOR TABLE t", "SET TABLE t WHERE (id > 50)", "id > 50"),
    ("FOR TABLE t WHERE (id > 50)", "SET TABLE t", "true"),
    ("FOR TABLE t WHERE (id > 50)", "SET TABLE t WHERE (id < 40)", "id < 40"),
    ("FOR TABLE t WHERE (id > 50)", "ADD TABLES IN SCHEMA public", "true"),
    ("FOR TABLE t WHERE (id > 50), TABLES IN SCHEMA public", "DROP TABLES IN SCHEMA public", "id > 50"),
]


@pytest.mark.parametrize("before, after, where", RULES)
def test_old_rows_follow_a_filter(server, db, receiver, follow, before, after, where):
    run = follow("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE other (id int PRIMARY KEY);"
                 f"INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g; CREATE PUBLICATION pub {before}")
    pair = server.backends("etl apply", db) + server.backends("etl writer", db)
    run(f"ALTER PUBLICATION pub {after}; UPDATE t SET v = 'w' WHERE id % 10 = 0; DELETE FROM t WHERE id IN (20, 70);"
        "INSERT INTO t VALUES (0, 'low'), (200, 'high')")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], where=where)
    copies = [e["reason"] for e in receiver.events() if e["event"] == "copy_begin" and e["table"]["name"] == "t"]
    assert copies[0] == "initial" and set(copies[1:]) == {"filter_change"}
    assert server.backends("etl apply", db) + server.backends("etl writer", db) == pair


@pytest.mark.parametrize("before, after, where", RULES[:3])
def test_old_rows_follow_a_filter_in_clickhouse(server, db, before, after, where):
    """Beside and swap; a reader of the view sees the old rows or the new ones, never none."""
    with ClickHouse(proxy=False) as ch:
        ch.create_database("lake")
        server.psql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g;"
                    f"CREATE PUBLICATION pub {before}", db)
        clickhouse(server, db, ch, "lake", options_={**FAST, "max_batch_delay": "0"})
        server.wait_for("p", db)
        server.psql(f"ALTER PUBLICATION pub {after}; UPDATE t SET v = 'w' WHERE id % 10 = 0; DELETE FROM t WHERE id IN (20, 70);"
                    "INSERT INTO t VALUES (0, 'low'), (200, 'high')", db)
        server.wait_for("p", db)
        assert_current(server, db, ch, "lake", "public.t", where=where)
        assert server.tables("p", db)["public.t"]["generation"] == 2
        drop(server, db)


def test_the_same_filter_again_is_no_change(server, db, receiver, follow):
    run = follow("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t WHERE (id > 5)")
    run("ALTER PUBLICATION pub SET TABLE      t   WHERE   (id > 5); ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')")
    run("BEGIN; ALTER PUBLICATION pub DROP TABLE t; ALTER PUBLICATION pub ADD TABLE t WHERE (id > 5); COMMIT; INSERT INTO t VALUES (1), (6)")
    server.wait_for("p", db)
    assert [r["id"] for r in receiver.state().rows("public.t")] == [6]
    assert [e["event"] for e in receiver.events()].count("copy_begin") == 1


@pytest.mark.parametrize("resync", [True, False])
def test_an_operation_published_again(server, db, receiver, follow, resync):
    run = follow("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'a');"
                 "CREATE PUBLICATION pub FOR TABLE t WITH (publish = 'insert')",
                 on_filter_change="resync" if resync else "ignore")
    run("UPDATE t SET v = 'unseen'; DELETE FROM t WHERE id = 2; ALTER PUBLICATION pub SET (publish = 'insert, update, delete')")
    run("INSERT INTO t VALUES (3, 'b'); UPDATE t SET v = 'seen' WHERE id = 3")
    server.wait_for("p", db)
    if resync:
        assert_equal(server, db, receiver.state(), ["public.t"])
    else:
        assert sorted((r["id"], r["v"]) for r in receiver.state().rows("public.t")) == [(1, "a"), (2, "a"), (3, "seen")]


@pytest.mark.parametrize("resync", [True, False])
def test_a_column_that_enters_the_list(server, db, receiver, follow, resync):
    """No change of the table is needed for it; a column that is new altogether is another thing."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY, a text, b text); INSERT INTO t VALUES (1, 'a', 'b');"
                 "CREATE PUBLICATION pub FOR TABLE t (id, a)", on_column_published="resync" if resync else "null")
    run("ALTER PUBLICATION pub SET TABLE t (id, a, b)")
    server.wait_for("p", db)
    rows = receiver.state().rows("public.t")
    if resync:
        assert rows == [{"id": 1, "a": "a", "b": "b"}]
    else:
        assert rows == [{"id": 1, "a": "a"}]
        run("INSERT INTO t VALUES (2, 'a', 'b')")
        server.wait_for("p", db)
        assert sorted(receiver.state().rows("public.t"), key=lambda r: r["id"]) == [
            {"id": 1, "a": "a", "b": None}, {"id": 2, "a": "a", "b": "b"}]
    copies = [e["event"] for e in receiver.events()].count("copy_begin")
    run("ALTER PUBLICATION pub SET TABLE t; ALTER TABLE t ADD COLUMN c int; UPDATE t SET c = 7 WHERE id = 1")
    server.wait_for("p", db)
    assert next(r for r in receiver.state().rows("public.t") if r["id"] == 1)["c"] == 7
    run("ALTER PUBLICATION pub SET TABLE t (id); INSERT INTO t VALUES (3)")
    server.wait_for("p", db)
    assert {frozenset(r) for r in receiver.state().rows("public.t")} == {frozenset({"id"})}
    assert [e["event"] for e in receiver.events()].count("copy_begin") == copies


def test_transactions_from_before_a_filter(server, db, receiver, follow):
    """Writers that began before ALTER PUBLICATION and commit after it: nothing is lost, nothing is too much."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY, region text, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
                 "INSERT INTO t SELECT g, 'eu', repeat('x', 5000) FROM generate_series(1, 40) g;"
                 "CREATE PUBLICATION pub FOR TABLE t")
    for turn, where in enumerate(("id % 2 = 0", "id > 10", "id < 1000", "id % 3 <> 1")):
        with server.connect(db, autocommit=False) as early:
            early.execute("INSERT INTO t SELECT g, 'us', repeat('y', 5000) FROM generate_series(%s::int, %s::int) g",
                          (100 * (turn + 1), 100 * (turn + 1) + 20))
            early.execute("UPDATE t SET region = 'asia' WHERE id = %s", (turn + 1,))
            run(f"ALTER PUBLICATION pub SET TABLE t WHERE ({where})")
            early.execute("DELETE FROM t WHERE id = %s", (turn + 20,))
            early.execute("UPDATE t SET id = id + 2000 WHERE id = %s", (turn + 30,))
            early.commit()
        server.wait_for("p", db)
        assert_equal(server, db, receiver.state(), ["public.t"], where=where)


def test_a_filter_and_its_column_change_together(server, db, receiver, follow):
    """In the transaction that changes both, rows are filtered as the catalogs have it at each of them."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY, kind int); ALTER TABLE t REPLICA IDENTITY FULL;"
                 "INSERT INTO t VALUES (1, 1), (2, 2); CREATE PUBLICATION pub FOR TABLE t WHERE (kind = 1)")
    run("BEGIN; ALTER PUBLICATION pub SET TABLE t; ALTER TABLE t ALTER kind TYPE text USING 'k' || kind;"
        "ALTER PUBLICATION pub SET TABLE t WHERE (kind = 'k2'); INSERT INTO t VALUES (3, 'k1'), (4, 'k2'); COMMIT;"
        "INSERT INTO t VALUES (5, 'k2'), (6, 'k3')")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], where="kind = 'k2'")
    run("BEGIN; ALTER PUBLICATION pub SET TABLE t; ALTER TABLE t DROP COLUMN kind; INSERT INTO t VALUES (7); COMMIT")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


# --- the publication itself ---

def test_a_publication_is_renamed(server, db, receiver, follow):
    """Followed while running, also when another one takes its name, and into the definition."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1);"
                 "CREATE PUBLICATION pub FOR TABLE t")
    pair = server.backends("etl apply", db) + server.backends("etl writer", db)
    run("ALTER PUBLICATION pub RENAME TO renamed; INSERT INTO t VALUES (1)")
    run("CREATE PUBLICATION pub FOR ALL TABLES; ALTER PUBLICATION renamed SET TABLE t WHERE (id < 10); INSERT INTO t VALUES (2), (20)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], where="id < 10")
    assert set(server.tables("p", db)) == {"public.t"}
    wait_until(lambda: server.status("p", db)["publication"] == "renamed", 20, "the definition has the new name")
    assert server.status("p", db)["healthy"]
    run("ALTER PUBLICATION renamed ADD TABLE u")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.u"])
    assert server.backends("etl apply", db) + server.backends("etl writer", db) == pair


def test_a_publication_is_renamed_while_nobody_runs(server, db, receiver, follow):
    run = follow("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    run("SELECT etl.stop_pipeline('p')")
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 20, "stopped")
    run("INSERT INTO t VALUES (1); ALTER PUBLICATION pub SET TABLE t WHERE (id < 10); INSERT INTO t VALUES (2), (20);"
        "ALTER PUBLICATION pub RENAME TO renamed; INSERT INTO t VALUES (3); ALTER PUBLICATION renamed ADD TABLE u;"
        "CREATE PUBLICATION pub FOR ALL TABLES; INSERT INTO u VALUES (1)")
    assert not server.sql("SELECT * FROM etl.validate_pipeline('p') WHERE severity = 'error'", db=db)
    run("SELECT etl.start_pipeline('p')")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t", "public.u"], where="id < 10")
    assert server.status("p", db)["publication"] == "renamed"


def test_a_publication_is_dropped_and_made_anew(server, db, receiver, follow):
    """Without it the tables stay as they were, and it is told; with the new one everything is compared."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE v (id int PRIMARY KEY);"
                 "INSERT INTO v VALUES (7); CREATE PUBLICATION pub FOR TABLE t, u")
    pair = server.backends("etl apply", db) + server.backends("etl writer", db)
    run("DROP PUBLICATION pub; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t", "public.u"])
    status = server.status("p", db)
    assert not status["healthy"] and "publication" in status["problem"]
    run("CREATE PUBLICATION pub FOR TABLE t WHERE (id > 1), v; INSERT INTO t VALUES (0), (2); INSERT INTO u VALUES (2); INSERT INTO v VALUES (8)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], where="id > 1")
    assert_equal(server, db, receiver.state(), ["public.v"])
    assert [r["id"] for r in receiver.state().rows("public.u")] == [1], "what has left stays as it was"
    assert set(server.tables("p", db)) == {"public.t", "public.v"} and server.status("p", db)["healthy"]
    # one command later: the new one is the one that is followed
    run("ALTER PUBLICATION pub RENAME TO other; INSERT INTO v VALUES (9); ALTER PUBLICATION other ADD TABLE u")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.u", "public.v"])
    assert server.backends("etl apply", db) + server.backends("etl writer", db) == pair


def test_a_publication_changes_hands(server, db, receiver, follow):
    run = follow("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    name = f"heir_{db}"
    run(f"CREATE ROLE {name}; GRANT CREATE ON DATABASE {db} TO {name}; ALTER PUBLICATION pub OWNER TO {name}; INSERT INTO t VALUES (1)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert [e["event"] for e in receiver.events()].count("copy_begin") == 1
    run(f"ALTER PUBLICATION pub OWNER TO CURRENT_USER; REVOKE CREATE ON DATABASE {db} FROM {name}; DROP ROLE {name}")


# --- generated columns ---

GENERATED = ("CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);"
             "ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t (id, a) VALUES (1, 1); CREATE PUBLICATION pub FOR TABLE t")
CHANGES = "INSERT INTO t (id, a) VALUES (2, 2), (3, 3); UPDATE t SET a = 10 WHERE id = 2; DELETE FROM t WHERE id = 3"


def test_generated_columns_in_copy_and_stream(server, db, receiver, follow):
    run = follow(GENERATED)
    assert server.value("SELECT options->'generated_columns' FROM etl.pipeline", db=db) is True, "recorded"
    run(CHANGES)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert receiver.state().rows("public.t")[0].keys() == {"id", "a", "twice"}


def test_generated_columns_left_out(server, db, receiver, follow):
    run = follow(GENERATED + "; CREATE TABLE u (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED);"
                 "ALTER PUBLICATION pub ADD TABLE u; INSERT INTO u VALUES (1)", generated_columns=False)
    assert server.value("SELECT options->'generated_columns' FROM etl.pipeline", db=db) is False
    run(CHANGES)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], columns=["id", "a"])
    assert all(b'"twice"' not in r.body for r in receiver.requests)
    # for one table otherwise: its older rows get the values by a new copy
    run("SELECT etl.alter_table('p', 'u', '{\"generated_columns\": true}')")
    server.wait_for("p", db)
    run("INSERT INTO u VALUES (2)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.u"])
    assert_equal(server, db, receiver.state(), ["public.t"], columns=["id", "a"])


def test_generated_columns_of_a_key_and_of_a_filter(server, db, receiver, follow):
    run = follow("CREATE TABLE t (id int, g int GENERATED ALWAYS AS (id % 10) STORED PRIMARY KEY); INSERT INTO t VALUES (11), (12);"
                 "CREATE PUBLICATION pub FOR TABLE t WHERE (g <> 2)", generated_columns=False)
    run("INSERT INTO t VALUES (13), (14); UPDATE t SET id = 22 WHERE id = 12; UPDATE t SET id = 15 WHERE id = 22; DELETE FROM t WHERE id = 14")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], where="g <> 2")
    assert sorted(r["g"] for r in receiver.state().rows("public.t")) == [1, 3, 5]


# --- keys and lists ---

def test_a_list_without_the_key(server, db, receiver, follow):
    """Where inserts alone are published, PostgreSQL allows it: rows without a key.  A kind that needs one parks the table."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY, a text, b text); INSERT INTO t VALUES (1, 'x', 'y');"
                 "CREATE PUBLICATION pub FOR TABLE t (a) WITH (publish = 'insert')")
    run("INSERT INTO t VALUES (2, 'x', 'y'); UPDATE t SET a = 'z'; DELETE FROM t WHERE id = 1")
    server.wait_for("p", db)
    assert sorted(r["a"] for r in receiver.state().rows("public.t")) == ["x", "x"]
    assert all(e["key"] is None for e in receiver.events() if e["event"] == "insert")
    with ClickHouse(proxy=False) as ch:
        ch.create_database("lake")
        clickhouse(server, db, ch, "lake", name="ch", options_=FAST)
        wait_until(lambda: (server.tables("ch", db).get("public.t") or {}).get("state") == "errored", 30, "parked")
        row = server.tables("ch", db)["public.t"]
        assert "key" in row["error"] and row["hint"]
        assert "key_columns_published" in [r[0] for r in server.sql("SELECT check_name FROM etl.validate_pipeline('ch')", db=db)]
        drop(server, db, "ch")


def test_new_tables_of_a_schema_with_writers_that_were_there_first(server, db, receiver, follow):
    run = follow("CREATE SCHEMA s; CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.moves (id int PRIMARY KEY);"
                 "CREATE PUBLICATION pub FOR TABLES IN SCHEMA s")
    for i in range(5):
        with server.connect(db, autocommit=False) as early:
            early.execute(f"CREATE TABLE s.t{i} (id int PRIMARY KEY, v text); INSERT INTO s.t{i} VALUES (1, 'early')")
            run(f"CREATE TABLE s.u{i} (id int PRIMARY KEY); INSERT INTO s.u{i} VALUES (1)")
            early.execute(f"INSERT INTO s.t{i} VALUES (2, 'late'); UPDATE s.t{i} SET v = v || '!'")
            early.commit()
    run("INSERT INTO elsewhere.moves VALUES (1); ALTER TABLE elsewhere.moves SET SCHEMA s; INSERT INTO s.moves VALUES (2);"
        "ALTER SCHEMA s RENAME TO s2; INSERT INTO s2.moves VALUES (3); CREATE TABLE s2.last (id int PRIMARY KEY); INSERT INTO s2.last VALUES (1)")
    server.wait_for("p", db)
    state = receiver.state()
    for name in ["moves", "last", *(f"t{i}" for i in range(5)), *(f"u{i}" for i in range(5))]:
        found = [t for t in ("s2." + name, "s." + name) if state.rows(t)]
        assert found, name
        have = sorted(str(sorted(r.items())) for r in state.rows(found[0]))
        want = sorted(str(sorted(dict(zip(("id", "v"), row)).items())) for row in server.sql(f"SELECT * FROM s2.{name}", db=db))
        assert have == want, name


def test_how_soon_an_added_table_is_copied(server, db, receiver, follow):
    """ADD TABLE to the first copied row at the receiver: at most 2 s, the median of 5."""
    import time
    run = follow("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    times = []
    for i in range(5):
        run(f"CREATE TABLE n{i} (id int PRIMARY KEY); INSERT INTO n{i} VALUES (1)")
        server.sql(f"ALTER PUBLICATION pub ADD TABLE n{i}", db=db)
        began = time.monotonic()
        wait_until(lambda: any(e["event"] == "insert" and e["table"]["name"] == f"n{i}" for e in receiver.events()), 20, "copied")
        times.append(time.monotonic() - began)
    print("ADD TABLE to the first copied row:", [round(t, 2) for t in times])
    assert sorted(times)[2] <= 2


# --- unchanged values out of line ---

MOVED_IN = ("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
            "INSERT INTO t SELECT g, g, repeat(g::text, 4000) FROM generate_series(1, 20) g; CREATE PUBLICATION pub FOR TABLE t WHERE (id > 100)")


def test_a_row_that_moves_in_is_whole(server, db, receiver, follow):
    """The value is not in the WAL, and the destination never had the row: the source's live row has it."""
    run = follow(MOVED_IN)
    run("UPDATE t SET id = id + 100 WHERE id <= 5; UPDATE t SET id = id + 100, big = 'new' WHERE id = 6")
    server.wait_for("p", db)
    run("UPDATE t SET n = 0 WHERE id > 100; UPDATE t SET id = 1 WHERE id = 101; UPDATE t SET id = 101 WHERE id = 1")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], where="id > 100")
    assert all(e["missing_columns"] == [] for e in receiver.events() if e["event"] == "insert")


def test_a_row_that_moves_in_is_whole_in_clickhouse(server, db):
    with ClickHouse(proxy=False) as ch:
        ch.create_database("lake")
        server.psql(MOVED_IN, db)
        clickhouse(server, db, ch, "lake", options_={**FAST, "max_batch_delay": "0"})
        server.wait_for("p", db)
        server.psql("UPDATE t SET id = id + 100 WHERE id <= 5; UPDATE t SET id = id + 100, big = 'new' WHERE id = 6", db)
        server.wait_for("p", db)
        server.psql("UPDATE t SET n = 0 WHERE id > 100; UPDATE t SET id = 1 WHERE id = 101; UPDATE t SET id = 101 WHERE id = 1", db)
        server.wait_for("p", db)
        assert_current(server, db, ch, "lake", "public.t", where="id > 100")
        drop(server, db)


# --- crashes ---

@pytest.mark.parametrize("point, action", [
    ("writer_before_store", "fatal"), ("writer_stored", "fatal"), ("sync_before_finish", "fatal"),
    ("sync_before_handover", "error"), ("batch_durable", "fatal")])
def test_a_filter_change_survives_the_death_of_workers(server, db, receiver, follow, point, action):
    """Whatever of it was stored when they died, the new copy is made, and rows obey the filter in the end."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v' FROM generate_series(1, 300) g;"
                 "CREATE PUBLICATION pub FOR TABLE t WHERE (id > 200)")
    server.failpoint(f"{point}={action}:2")
    try:
        wait_until(lambda: server.value("SHOW etl.failpoint", db=db), 10, "the failpoint is set")
        for where in ("id < 100", "id > 50 AND id < 250"):
            run(f"ALTER PUBLICATION pub SET TABLE t WHERE ({where}); UPDATE t SET v = v || 'w' WHERE id % 7 = 0;"
                "DELETE FROM t WHERE id % 31 = 0; INSERT INTO t SELECT max(id) + 1, 'new' FROM t")
            server.wait_for("p", db)
            assert_equal(server, db, receiver.state(), ["public.t"], where=where)
    finally:
        server.failpoint("")


@pytest.mark.parametrize("point", ["sync_after_lock", "sync_before_handover"])
def test_a_filter_changes_during_a_copy_and_the_pair_dies(server, db, receiver, follow, point):
    """The copy was made by the old rule; its catch-up must not forget that when the pair is started again."""
    run = follow("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v' FROM generate_series(1, 100) g;"
                 "CREATE PUBLICATION pub FOR TABLE t WHERE (id > 50)")
    since = server.log_size()
    server.failpoint(f"{point}=wait:1")
    try:
        wait_until(lambda: server.value("SHOW etl.failpoint", db=db), 10, "the failpoint is set")
        run("SELECT etl.resync_table('p', 't')")
        wait_until(lambda: f'failpoint "{point}"' in server.log(since), 30, "the copy has come there")
        run("ALTER PUBLICATION pub SET TABLE t WHERE (id <= 70); UPDATE t SET v = 'w' WHERE id % 10 = 0; INSERT INTO t VALUES (0, 'new')")
        seen = server.value("SELECT pg_current_wal_lsn()", db=db)
        wait_until(lambda: server.value("SELECT decoded_lsn >= %s FROM etl.pipeline_status", (seen,), db), 20, "apply has seen it")
        pids = server.backends("etl apply", db)
        server.sql("SELECT pg_terminate_backend(%s)", (pids[0],))
        wait_until(lambda: server.backends("etl apply", db) not in ([], pids), 20, "another pair")
    finally:
        server.failpoint("")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], where="id <= 70")
