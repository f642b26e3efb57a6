"""What a publication publishes is what is delivered, also while it changes."""

import psycopg
import pytest
from harness import assert_equal, wait_until
from harness.pipeline import webhook

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms"}


def names(receiver, phase=None):
    """Tables of which rows were delivered."""
    return {e["table"]["name"] for e in receiver.events()
            if e["event"] in ("insert", "update", "delete") and phase in (None, e["phase"])}


@pytest.fixture
def running(server, db, receiver):
    """Table t (10 rows) published and followed; u (5 rows) not published."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, a text, b text);
        CREATE TABLE u (id int PRIMARY KEY, a text, b text);
        INSERT INTO t SELECT g, 'a', 'b' FROM generate_series(1, 10) g;
        INSERT INTO u SELECT g, 'a', 'b' FROM generate_series(1, 5) g;
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    return lambda sql: server.psql(sql, db)


def test_add_table(server, db, receiver, running):
    """A table that enters the publication is copied and followed, without a restart."""
    apply = server.backends("etl apply", db)
    running("ALTER PUBLICATION pub ADD TABLE u")
    running("UPDATE u SET a = 'changed' WHERE id = 1")
    server.wait_for("p", db)
    running("INSERT INTO u VALUES (100, 'late', NULL)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t", "public.u"])
    assert server.backends("etl apply", db) == apply
    assert server.tables("p", db)["public.u"]["state"] == "ready"


def test_drop_table_from_the_publication(server, db, receiver, running):
    """What comes after is not delivered; what was delivered stays."""
    running("ALTER PUBLICATION pub ADD TABLE u")
    server.wait_for("p", db)
    running("INSERT INTO u VALUES (50, 'before', NULL)")
    running("ALTER PUBLICATION pub DROP TABLE u")
    running("INSERT INTO u VALUES (51, 'after', NULL); INSERT INTO t VALUES (51, 'after', NULL)")
    server.wait_for("p", db)
    ids = {row["id"] for row in receiver.state().rows("public.u")}
    assert 50 in ids and 51 not in ids
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_back_in_the_publication(server, db, receiver, running):
    """Out and in again: a new copy, equal at the end."""
    running("ALTER PUBLICATION pub DROP TABLE t")
    running("UPDATE t SET a = 'unseen'; DELETE FROM t WHERE id = 3")
    server.wait_for("p", db)
    running("ALTER PUBLICATION pub ADD TABLE t")
    server.wait_for("p", db)
    running("UPDATE t SET b = 'seen' WHERE id = 4")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_set_table(server, db, receiver, running):
    running("ALTER PUBLICATION pub SET TABLE u")
    running("INSERT INTO t VALUES (60, 'not published', NULL); INSERT INTO u VALUES (60, 'published', NULL)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.u"])
    assert 60 not in {row["id"] for row in receiver.state().rows("public.t")}


def test_column_list(server, db, receiver):
    """Only the columns of the list, in the copy and afterwards."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, a text, secret text);
        INSERT INTO t VALUES (1, 'a', 'hidden');
        CREATE PUBLICATION pub FOR TABLE t (id, a);
        """, db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("INSERT INTO t VALUES (2, 'b', 'hidden'); UPDATE t SET a = 'c' WHERE id = 1;"
                "UPDATE t SET id = 5 WHERE id = 2; DELETE FROM t WHERE id = 1", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], columns=["id", "a"])
    assert all(b"secret" not in r.body and b"hidden" not in r.body for r in receiver.requests)


def test_column_list_changes(server, db, receiver, running):
    """A list set while running holds from its transaction on."""
    running("ALTER PUBLICATION pub SET TABLE t (id, a)")
    running("INSERT INTO t VALUES (70, 'a', 'hidden')")
    server.wait_for("p", db)
    rows = {row["id"]: row for row in receiver.state().rows("public.t")}
    assert rows[70] == {"id": 70, "a": "a"}
    running("ALTER PUBLICATION pub SET TABLE t")
    running("INSERT INTO t VALUES (71, 'a', 'shown')")
    server.wait_for("p", db)
    rows = {row["id"]: row for row in receiver.state().rows("public.t")}
    assert rows[71] == {"id": 71, "a": "a", "b": "shown"}


def test_operations(server, db, receiver, running):
    """Only published operations are delivered."""
    running("ALTER PUBLICATION pub SET (publish = 'insert, delete')")
    running("UPDATE t SET a = 'not published'")
    running("INSERT INTO t VALUES (80, 'x', 'y'); DELETE FROM t WHERE id = 1; TRUNCATE t")
    server.wait_for("p", db)
    kinds = [e["event"] for e in receiver.events() if e["phase"] == "ongoing_replication" and e["xid"]
             and e["event"] not in ("begin", "commit")]
    assert kinds == ["insert", "delete"]
    running("ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')")
    running("TRUNCATE t; INSERT INTO t VALUES (81, 'x', 'y'); UPDATE t SET a = 'z'")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_changed_and_written_in_one_transaction(server, db, receiver, running):
    """The transaction that adds a table writes to it, before and after."""
    running("BEGIN; INSERT INTO u VALUES (90, 'before', NULL); ALTER PUBLICATION pub ADD TABLE u;"
            "INSERT INTO u VALUES (91, 'after', NULL); COMMIT")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.u"])


@pytest.mark.parametrize("trials", [25, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_transaction_from_before_add_table(server, db, receiver, running, trials):
    """A transaction that wrote before ADD TABLE and commits after it loses nothing."""
    for i in range(trials):
        table = f"n{i}"
        running(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        with server.connect(db, autocommit=False) as early:
            early.execute(f"INSERT INTO {table} SELECT g, 'early' FROM generate_series(1, 20) g")
            with server.connect(db) as other:
                # ADD TABLE waits for no writer
                other.execute("SET lock_timeout = '5s'")
                other.execute(f"ALTER PUBLICATION pub ADD TABLE {table}")
                other.execute(f"INSERT INTO {table} VALUES (1000, 'between')")
            early.execute(f"INSERT INTO {table} VALUES (2000, 'late')")
            early.execute(f"UPDATE {table} SET v = v || '!' WHERE id = 1")
            early.commit()
        running(f"DELETE FROM {table} WHERE id = 2")
    server.wait_for("p", db, timeout=300)
    assert_equal(server, db, receiver.state(), [f"public.n{i}" for i in range(trials)])


def test_own_schema_is_not_replicated(server, db, receiver):
    """FOR ALL TABLES: our own tables never travel."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR ALL TABLES", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("INSERT INTO t VALUES (2); SELECT etl.alter_pipeline('p', '{\"max_batch_events\": 100}')", db)
    server.psql("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (7)", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t", "public.later"])
    assert {e["table"]["schema"] for e in receiver.events() if "table" in e} == {"public"}
    for name, row in server.tables("p", db).items():
        if name.startswith("etl."):
            assert (row["state"], row["excluded_reason"]) == ("excluded", "ours")


def test_a_schemas_tables(server, db, receiver):
    """FOR TABLES IN SCHEMA: a new table of the schema is found; one that moves out is let go."""
    server.psql("CREATE SCHEMA s; CREATE TABLE s.one (id int PRIMARY KEY); INSERT INTO s.one VALUES (1);"
                "CREATE PUBLICATION pub FOR TABLES IN SCHEMA s", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("CREATE TABLE s.two (id int PRIMARY KEY); INSERT INTO s.two VALUES (2); INSERT INTO s.one VALUES (3)", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["s.one", "s.two"])
    server.psql("CREATE TABLE moved (id int PRIMARY KEY); INSERT INTO moved VALUES (4); ALTER TABLE moved SET SCHEMA s", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["s.one", "s.two", "s.moved"])


def test_unlogged_temporary_foreign(server, db, receiver):
    """What cannot be decoded is left out, and disturbs nobody."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY);
        CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY);
        CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER elsewhere;
        CREATE FOREIGN TABLE far (id int) SERVER nowhere;
        CREATE PUBLICATION pub FOR ALL TABLES;
        """, db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("CREATE TEMP TABLE own (id int PRIMARY KEY); INSERT INTO own VALUES (1);"
                "INSERT INTO fleeting VALUES (1); INSERT INTO t VALUES (1)", db)
    server.wait_for("p", db)
    assert names(receiver) == {"t"}
    for name, row in server.tables("p", db).items():
        if name != "public.t":
            assert row["state"] == "excluded", (name, row["state"])
    # temporary tables leave nothing behind
    assert {t for t in server.tables("p", db) if not t.startswith("etl.")} == {"public.t", "public.fleeting", "public.far"}
    assert server.value("SELECT count(*) FROM etl.rule_history WHERE relid NOT IN (SELECT oid FROM pg_class)", db=db) == 0


def test_truncate(server, db, receiver, running):
    """At its place between the rows before and after it."""
    running("BEGIN; INSERT INTO t VALUES (100, 'gone', NULL); TRUNCATE t; INSERT INTO t VALUES (101, 'stays', NULL);"
            "COMMIT; UPDATE t SET b = 'x'")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert len(receiver.state().rows("public.t")) == 1


@pytest.mark.parametrize("ddl", [
    "ALTER TABLE t ADD COLUMN c int DEFAULT 7",
    "ALTER TABLE t DROP COLUMN b",
    "ALTER TABLE t RENAME COLUMN a TO z",
    "ALTER TABLE t ALTER COLUMN id TYPE bigint",
    "ALTER TABLE t ALTER COLUMN b TYPE int USING length(b)",
    "ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS (id * 2) STORED",
    "ALTER TABLE t ADD COLUMN c int; UPDATE t SET c = id; ALTER TABLE t DROP COLUMN c; ALTER TABLE t ADD COLUMN c text",
    "ALTER TABLE t RENAME TO renamed; ALTER TABLE renamed RENAME TO t",
    "BEGIN; UPDATE t SET a = 'in between'; ALTER TABLE t ALTER a TYPE varchar(30); UPDATE t SET b = 'y'; COMMIT",
    "ALTER TABLE t ADD COLUMN at timestamptz DEFAULT clock_timestamp()",
    "CREATE TABLE t2 (LIKE t INCLUDING ALL); INSERT INTO t2 SELECT * FROM t WHERE id < 5;"
    "DROP TABLE t; ALTER TABLE t2 RENAME TO t; ALTER PUBLICATION pub SET TABLE t",
])
def test_a_table_changes_its_shape(server, db, receiver, running, ddl):
    """Never silent: the tables are equal at the end, old rows and new ones."""
    running("INSERT INTO t VALUES (110, 'before', 'x')")
    running(ddl)
    running("INSERT INTO t (id) VALUES (111)")
    running("UPDATE t SET id = 112 WHERE id = 2")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_dropped_table(server, db, receiver, running):
    """The others go on."""
    running("ALTER PUBLICATION pub ADD TABLE u")
    server.wait_for("p", db)
    running("INSERT INTO u VALUES (120, 'last', NULL); DROP TABLE u; INSERT INTO t VALUES (120, 'x', NULL)")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert 120 in {row["id"] for row in receiver.state().rows("public.u")}


def test_lag_and_rewritten_catalogs(server, db, receivers):
    """The first law.  Changes wait; meanwhile tables, our own ones and catalogs are rewritten and altered, and the
    workers look at their configuration; then everything is decoded.  Nothing may be lost or misread."""
    refuse = []
    receiver = receivers(answer=lambda r: 503 if refuse else 200)
    server.psql("CREATE TABLE t (id int PRIMARY KEY, a text, b int); CREATE TABLE w (id int PRIMARY KEY, v text);"
                "CREATE PUBLICATION pub FOR TABLE t, w", db)
    webhook(server, db, receiver, options_={**FAST, "max_batch_events": 20})
    server.wait_for("p", db)
    for turn in range(3):
        refuse.append(True)
        base = turn * 1000
        server.sql("INSERT INTO t (id, a) SELECT g, 'one' FROM generate_series(%s::int, %s::int) g", (base, base + 200), db)
        server.sql("INSERT INTO w SELECT g, 'w' FROM generate_series(%s::int, %s::int) g", (base, base + 200), db)
        for command in (
                "VACUUM FULL w", "VACUUM FULL t", f"ALTER TABLE t ADD COLUMN c{turn} int DEFAULT {turn}",
                "VACUUM FULL etl.table_state", "VACUUM FULL etl.pipeline", "VACUUM FULL etl.pipeline_state",
                "VACUUM FULL pg_class", "VACUUM FULL pg_attribute", "VACUUM FULL pg_type",
                "ALTER TABLE w ALTER v TYPE varchar", "ALTER TABLE w ALTER v TYPE text",
                f"UPDATE w SET v = v || '{turn}'"):
            server.sql(command, db=db)
            server.sql("SELECT etl.alter_pipeline('p', '{\"max_batch_events\": 20}')", db=db)
        server.sql("UPDATE t SET b = id WHERE id %% 2 = %s", (turn % 2,), db)
        refuse.clear()
        server.wait_for("p", db, timeout=120)
        assert_equal(server, db, receiver.state(), ["public.t", "public.w"])


def test_open_transaction_stops_nothing(server, db, receiver, running):
    """A user who sits in a transaction, having written to everything, does not hold up delivery."""
    with server.connect(db, autocommit=False) as sitting:
        sitting.execute("UPDATE t SET a = 'open' WHERE id = 1")
        sitting.execute("SELECT * FROM etl.status")
        running("INSERT INTO t VALUES (130, 'x', NULL)")
        server.wait_for("p", db)
        assert 130 in {row["id"] for row in receiver.state().rows("public.t")}
        sitting.rollback()


# -- etl.wait_for ----------------------------------------------------------

def test_wait_for_at_a_page_boundary(server, db, running):
    """The insert position lies past the last record: nothing to wait for there."""
    for _ in range(5):
        running("INSERT INTO t SELECT max(id) + 1, 'x', NULL FROM t")
        server.sql("SELECT pg_switch_wal()", db=db)
        assert server.value("SELECT etl.wait_for('p', timeout => '10s')", db=db)


def test_wait_for_a_position(server, db, receiver, running):
    running("INSERT INTO t VALUES (140, 'x', NULL)")
    lsn = server.value("SELECT pg_current_wal_lsn()", db=db)
    assert server.value("SELECT etl.wait_for('p', %s, '10s')", (lsn,), db)
    assert 140 in {row["id"] for row in receiver.state().rows("public.t")}


def sqlstate(server, db, *statements):
    with server.connect(db, autocommit=False) as c:
        with pytest.raises(psycopg.Error) as error:
            for statement in statements:
                c.execute(statement)
        return error.value.sqlstate


def test_wait_for_after_a_write_is_refused(server, db, running):
    """It would wait for a slot that waits for this very transaction."""
    assert sqlstate(server, db, "INSERT INTO t VALUES (150, 'x', NULL)", "SELECT etl.wait_for('p')") == "25001"


def test_wait_for_a_stopped_pipeline_is_refused(server, db, running):
    running("SELECT etl.stop_pipeline('p')")
    wait_until(lambda: not server.backends("etl apply", db), 10, "stopped")
    assert sqlstate(server, db, "SELECT etl.wait_for('p')") == "55000"


def test_wait_for_nobody(server, db):
    assert sqlstate(server, db, "SELECT etl.wait_for('nobody')") == "42704"


def test_wait_for_in_vain(server, db, receivers):
    """The destination is down: false when the time is over, and prompt to cancel."""
    receiver = receivers(answer=lambda r: 503)
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver, options_=FAST)
    assert server.value("SELECT etl.wait_for('p', timeout => '300ms')", db=db) is False
    with server.connect(db) as c:
        c.execute("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            c.execute("SELECT etl.wait_for('p', timeout => '1 minute')")


def test_wait_for_knows_of_requests(server, db, receiver, running):
    """A table that was just asked to resync is waited for."""
    for _ in range(3):
        before = len([e for e in receiver.events() if e["event"] == "copy_end"])
        running("SELECT etl.resync_table('p', 't')")
        server.wait_for("p", db)
        assert len([e for e in receiver.events() if e["event"] == "copy_end"]) > before
    assert_equal(server, db, receiver.state(), ["public.t"])
