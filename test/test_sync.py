"""Initial sync and hand-over: what is copied is what was there, and nothing after it is lost."""

import random
import threading

import pytest
from harness import assert_equal, wait_until, watch_memory
from harness.pipeline import drop, null, webhook
from harness.workload import NAMES, Workload

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms"}

TYPES = """
CREATE TABLE kinds (
    id int PRIMARY KEY, b bool, i8 int8, n numeric, f float8, t text, c char(5), ba bytea, d date,
    ts timestamp, tz timestamptz, iv interval, u uuid, j json, jb jsonb, a int[], r int4range, big text);
ALTER TABLE kinds ALTER big SET STORAGE EXTERNAL;
INSERT INTO kinds SELECT g, g % 2 = 0, g * 1e15::int8, g / 3.0, g / 7.0::float8, 'text ' || g, 'ab', '\\x00ff'::bytea,
    '2024-02-29'::date + g, '2024-02-29 12:34:56.789'::timestamp, '2024-02-29 12:34:56.789+02', '1 month 2 days'::interval,
    md5(g::text)::uuid, '{"a": 1 , "a":2}', '{"k": [1, null]}', ARRAY[g, NULL], int4range(g, g + 5),
    repeat(md5(g::text), 500) FROM generate_series(1, 50) g;
INSERT INTO kinds (id) VALUES (1000);
INSERT INTO kinds (id, n, f, d, ts) VALUES (1001, 'NaN', 'Infinity', 'infinity', '0044-03-15 BC');
"""


@pytest.fixture
def fail(server):
    """Sets etl.failpoint; cleared behind the test."""
    yield server.failpoint
    server.failpoint("")


def reached(server, name, since=0):
    wait_until(lambda: f'failpoint "{name}"' in server.log(since), 30, f"failpoint {name} reached")


def copies(receiver, table):
    """Copy attempts (generations) of which anything was delivered."""
    return sorted({e["copy"] for e in receiver.events() if "copy" in e and e["table"]["name"] == table})


def no_slots_left(server, db):
    wait_until(lambda: server.value(
        "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND temporary", (db,)) == 0,
        10, "temporary slots gone")


def test_copy_is_equal_by_value(server, db, receiver):
    """Every row, every value, also those stored out of line; phases and numbers as documented."""
    server.psql(TYPES + "CREATE PUBLICATION pub FOR TABLE kinds", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.kinds"])
    rows = [e for e in receiver.events() if e["event"] == "insert"]
    assert len(rows) == 52 and all(e["phase"] == "initial_sync" and e["copy"] == 1 for e in rows)
    kinds = [e["event"] for e in receiver.events() if e["event"] not in ("begin", "commit")]
    assert kinds[:2] == ["relation", "copy_begin"] and kinds[-1] == "copy_end"
    status = server.tables("p", db)["public.kinds"]
    assert (status["state"], status["rows_copied"], status["generation"]) == ("ready", 52, 1)
    assert status["owned_from"] is not None
    no_slots_left(server, db)


def test_only_published_columns_are_read(server, db, receiver):
    """The owner needs SELECT on the published columns alone."""
    server.psql("""
        CREATE ROLE owner_%(db)s SUPERUSER;
        CREATE TABLE t (id int PRIMARY KEY, secret text, gone int, shown text);
        ALTER TABLE t DROP gone;
        INSERT INTO t SELECT g, 'secret', 'shown' FROM generate_series(1, 10) g;
        CREATE PUBLICATION pub FOR TABLE t (id, shown);
        """ % {"db": db}, db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    server.psql("INSERT INTO t VALUES (11, 'secret', 'later')", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"], columns=["id", "shown"])
    assert "secret" not in "".join(str(r.body) for r in receiver.delivered())
    server.psql(f"DROP ROLE owner_{db}", db)


def test_changes_during_the_copy(server, db, receivers, fail):
    """A load that never pauses goes on through copy, catch-up and hand-over."""
    receiver = receivers()
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0);
        INSERT INTO t SELECT generate_series(1, 20000);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    done = threading.Event()
    trouble = []

    def load():
        try:
            with server.connect(db) as connection:
                n = 0
                while not done.is_set():
                    n += 1
                    connection.execute("UPDATE t SET n = n + 1 WHERE id %% 1000 = %s", (n % 1000,))
                    connection.execute("INSERT INTO t VALUES (%s)", (100000 + n,))
                    connection.execute("DELETE FROM t WHERE id = %s", (100000 + n - 5,))
        except Exception as error:  # noqa: BLE001 - shown by the test
            trouble.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        webhook(server, db, receiver, options_=FAST)
        wait_until(lambda: server.tables("p", db).get("public.t", {}).get("state") == "ready",
                   60, "ready under load")
    finally:
        done.set()
        thread.join()
    assert not trouble
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert copies(receiver, "t") == [1]
    keys = [e["sequence_key"] for r in receiver.delivered() for e in r.events()
            if e["phase"] == "ongoing_replication" and e["event"] in ("insert", "update", "delete")]
    assert keys == sorted(set(keys)), "changes arrive once and in order, across the hand-over"


@pytest.mark.parametrize("change", [
    "ALTER TABLE t ALTER n TYPE text",
    "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
    "ALTER TABLE t RENAME n TO m",
    "VACUUM FULL t",
    "TRUNCATE t",
    "ALTER TABLE t REPLICA IDENTITY FULL",
])
def test_change_between_snapshot_and_lock(server, db, receiver, fail, change):
    """What slips in before the copy's lock makes it start again, and loses no row."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, n int);
        INSERT INTO t SELECT g, g FROM generate_series(1, 500) g;
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    fail("sync_before_lock=wait:1")
    since = server.log_size()
    webhook(server, db, receiver, options_=FAST)
    reached(server, "sync_before_lock", since)
    server.sql(change, db=db)
    server.sql("INSERT INTO t (id) VALUES (1000)", db=db)
    fail("")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert "starts again" in server.log(since)


def test_transaction_older_than_the_table_in_the_publication(server, db, receiver):
    """It wrote before ADD TABLE and commits after it: seen once."""
    server.psql("""
        CREATE TABLE first (id int PRIMARY KEY);
        CREATE TABLE t (id int PRIMARY KEY);
        INSERT INTO t VALUES (1);
        CREATE PUBLICATION pub FOR TABLE first;
        """, db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    with server.connect(db, autocommit=False) as open_transaction:
        open_transaction.execute("INSERT INTO t VALUES (2)")
        server.sql("ALTER PUBLICATION pub ADD TABLE t", db=db)
        wait_until(lambda: server.status("p", db)["waiting_for"] == "running transactions",
                   30, "the sync worker says what it waits for")
        open_transaction.execute("INSERT INTO t VALUES (3)")
        open_transaction.commit()
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_empty_table_is_ready(server, db, receiver):
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    assert server.tables("p", db)["public.t"]["state"] == "ready"
    assert [e["rows"] for e in receiver.events() if e["event"] == "copy_end"] == [0]
    server.psql("INSERT INTO t VALUES (1)", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_copy_data_off(server, db, receiver):
    """Existing rows stay out, later changes are followed."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    webhook(server, db, receiver, options_={**FAST, "copy_data": False})
    server.wait_for("p", db)
    server.psql("INSERT INTO t VALUES (2)", db)
    server.wait_for("p", db)
    kinds = [e["event"] for e in receiver.events() if e["event"] not in ("begin", "commit", "relation")]
    assert kinds == ["insert"]
    assert receiver.state().rows("public.t") == [{"id": 2}]


def test_many_small_tables_in_one_group(server, db, receiver):
    """One slot and one snapshot for many tables."""
    server.psql("""
        DO $$BEGIN FOR i IN 1 .. 150 LOOP
            EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, v text)', i);
            EXECUTE format('INSERT INTO t%s SELECT g, %L FROM generate_series(1, %s) g', i, i, i % 7);
        END LOOP; END$$;
        CREATE PUBLICATION pub FOR ALL TABLES;
        """, db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db, timeout=120)
    assert_equal(server, db, receiver.state(), [f"public.t{i}" for i in range(1, 151)])
    snapshots = {e["commit_lsn"] for e in receiver.events() if e["event"] == "copy_end"}
    assert len(snapshots) <= 4


def test_one_bad_table_of_a_group(server, db, receiver):
    """An ERROR while reading one table parks it; the others of its group go on."""
    server.psql("""
        CREATE ROLE reader LOGIN REPLICATION;
        GRANT reader TO CURRENT_USER;
        CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);
        CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1);
        CREATE TABLE c (id int PRIMARY KEY); INSERT INTO c VALUES (1);
        CREATE TABLE d (id int PRIMARY KEY); INSERT INTO d VALUES (1);
        ALTER TABLE c ENABLE ROW LEVEL SECURITY;
        GRANT SELECT ON a, c, d TO reader;
        GRANT USAGE ON FOREIGN DATA WRAPPER etl_webhook TO reader;
        GRANT CREATE ON DATABASE "%s" TO reader;
        GRANT USAGE ON SCHEMA etl TO reader;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO reader;
        CREATE PUBLICATION pub FOR TABLE a, b, c, d;
        CREATE SERVER s_p FOREIGN DATA WRAPPER etl_webhook OPTIONS (url '%s');
        GRANT USAGE ON FOREIGN SERVER s_p TO reader;
        """ % (db, receiver.url), db)
    try:
        with server.connect(db, user="reader") as connection:
            connection.execute("SELECT etl.create_pipeline('p', publication => 'pub', destination => 's_p')")
            connection.execute("SELECT etl.start_pipeline('p')")
        assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
        tables = server.tables("p", db)
        assert tables["public.a"]["state"] == tables["public.d"]["state"] == "ready"
        assert (tables["public.b"]["state"], tables["public.b"]["sqlstate"]) == ("errored", "42501")
        assert (tables["public.c"]["state"], tables["public.c"]["sqlstate"]) == ("errored", "42501")
        assert "BYPASSRLS" in tables["public.c"]["hint"]
        assert tables["public.b"]["recovery"] == "retry"
        assert_equal(server, db, receiver.state(), ["public.a", "public.d"])

        server.psql("GRANT SELECT ON b TO reader; ALTER ROLE reader BYPASSRLS", db)
        assert server.value("SELECT etl.retry_table('p')", db=db) == 2
        server.wait_for("p", db)
        assert_equal(server, db, receiver.state(), ["public.a", "public.b", "public.c", "public.d"])
    finally:
        drop(server, db)
        server.psql("DROP SERVER s_p; DROP OWNED BY reader; DROP ROLE reader", db)


def test_resync_beside(server, db, receivers, fail):
    """While the new copy is made, the old generation goes on receiving changes."""
    receiver = receivers()
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    since = server.log_size()
    fail("sync_after_lock=wait:1")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    reached(server, "sync_after_lock", since)
    server.sql("INSERT INTO t VALUES (1000)", db=db)
    event = wait_until(lambda: next((e for e in receiver.events()
                                     if e["event"] == "insert" and e["table_row"]["id"] == 1000), None),
                       30, "a change delivered during the resync")
    assert event["table"]["generation"] == 1 and event["phase"] == "ongoing_replication"
    fail("")
    server.wait_for("p", db)
    assert copies(receiver, "t") == [1, 2]
    server.sql("INSERT INTO t VALUES (2000)", db=db)
    server.wait_for("p", db)
    last = [e for e in receiver.events() if e["event"] == "insert"][-1]
    assert last["table_row"]["id"] == 2000 and last["table"]["generation"] == 2
    assert_equal(server, db, receiver.state(), ["public.t"])
    reasons = [e["reason"] for e in receiver.events() if e["event"] == "copy_begin"]
    assert reasons == ["initial", "resync"]


@pytest.mark.parametrize("point", [
    "sync_before_lock", "sync_after_lock", "sync_copy_row", "sync_before_finish",
    "sync_before_handover", "sync_after_take",
])
@pytest.mark.parametrize("action", ["error", "fatal"])
def test_sync_dies(server, db, receiver, fail, point, action):
    """Whenever the sync worker dies: the table is copied again, nothing is lost or left behind."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0);
        INSERT INTO t SELECT generate_series(1, 2000);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    fail(f"{point}={action}:1")
    since = server.log_size()
    webhook(server, db, receiver, options_=FAST)
    reached(server, point, since)
    with server.connect(db) as connection:
        for n in range(50):
            connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", (n + 1,))
            connection.execute("INSERT INTO t VALUES (%s)", (10000 + n,))
    if point == "sync_copy_row" and action == "error":
        # an ERROR while a table is read is that table's own
        wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "errored", 30, "parked")
        server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    server.sql("UPDATE t SET n = -1 WHERE id < 10", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    no_slots_left(server, db)


def test_late_rows_of_an_older_attempt(server, db, receivers, fail):
    """Rows carry the generation of their attempt, so what comes late belongs nowhere."""
    receiver = receivers()
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 3000);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    fail("sync_before_finish=fatal:1")
    webhook(server, db, receiver, options_={**FAST, "max_batch_events": 100})
    server.wait_for("p", db)
    newest = copies(receiver, "t")[-1]
    assert newest > 1
    ends = [e["copy"] for e in receiver.events() if e["event"] == "copy_end"]
    assert newest in ends
    assert {e["table"]["generation"] for e in receiver.events() if e.get("copy") == 1} <= {1}
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_pair_restarts_during_catch_up(server, db, receiver, fail):
    """The copy is not lost: the sync worker makes its queue anew."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0);
        INSERT INTO t SELECT generate_series(1, 1000);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    fail("sync_before_handover=wait:1")
    since = server.log_size()
    webhook(server, db, receiver, options_=FAST)
    reached(server, "sync_before_handover", since)
    server.sql("UPDATE t SET n = 1", db=db)
    worker = server.backends("etl sync", db)
    writer = server.backends("etl writer", db)
    server.sql("SELECT pg_terminate_backend(%s)", (writer[0],))
    wait_until(lambda: server.backends("etl writer", db) not in ([], writer), 30, "a new writer")
    assert server.backends("etl sync", db) == worker
    fail("")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert copies(receiver, "t") == [1]


def test_copy_gives_way(server, db, receivers):
    """A session that waits for a stronger lock gets it, and the copy starts again."""
    go_on = threading.Event()

    def answer(request):
        if any(e["event"] == "insert" for e in request.events()) and not go_on.is_set():
            go_on.wait(30)
        return 200

    receiver = receivers(answer=answer)
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, v text);
        INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g;
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    webhook(server, db, receiver, options_=FAST)
    wait_until(lambda: server.value("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                                    " WHERE a.backend_type = 'etl sync' AND l.relation = 't'::regclass", db=db),
               30, "the copy holds its lock")
    with server.connect(db) as connection:
        connection.execute("SET lock_timeout = '20s'")
        connection.execute("ALTER TABLE t ADD COLUMN more int")
    go_on.set()
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_versions_count_on_while_copies_fail(server, db, receiver, fail):
    """However many attempts at a new copy there are, the shapes of the one that is delivered to keep their numbers."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver, options_={"retry_delay": "10ms", "max_retry_delay": "20ms"})
    server.wait_for("p", db)
    server.psql("ALTER TABLE t ADD COLUMN a int; INSERT INTO t VALUES (1, 1)", db)
    server.wait_for("p", db)
    fail("sync_after_lock=fatal")
    server.psql("SELECT etl.resync_table('p', 't')", db)
    for i, column in enumerate("bcd"):
        wait_until(lambda: server.tables("p", db)["public.t"]["generation"] > 5 * (i + 1), 60, "attempts")
        server.psql(f"ALTER TABLE t ADD COLUMN {column} int; INSERT INTO t (id, {column}) VALUES ({i + 2}, 2)", db)
        wait_until(lambda: [e for e in receiver.events() if e["event"] == "insert" and e["table_row"].get(column) == 2], 30, "row")
    fail("")
    server.wait_for("p", db)
    shapes = {e["table"]["version"]: [c["name"] for c in e["replicated_table_schema"]["columns"]]
              for e in receiver.events() if e["event"] == "relation" and e["table"]["generation"] == 1}
    assert shapes == {n: ["id", "a", "b", "c", "d"][:n] for n in range(1, 6)}
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_unreadable_row_parks(server, db):
    """A value whose output function fails parks its table with its SQLSTATE."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, n numeric); CREATE TABLE u (id int PRIMARY KEY);
        INSERT INTO t VALUES (1, 1); INSERT INTO u VALUES (1);
        CREATE PUBLICATION pub FOR TABLE t, u;
        """, db)
    server.failpoint("sync_copy_row=error:1")
    try:
        null(server, db)
        assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
        states = sorted(t["state"] for t in server.tables("p", db).values())
        assert states == ["errored", "ready"]
    finally:
        server.failpoint("")
    assert server.value("SELECT etl.wait_for('p', timeout => '5s')", db=db) is False
    assert server.value("SELECT etl.retry_table('p')", db=db) == 1
    server.wait_for("p", db)


def test_hand_over_under_load_to_a_slow_destination(server, db, receivers):
    """Apply is always ahead of what is durable; the hand-over comes all the same."""
    pause = threading.Event()
    receiver = receivers(answer=lambda request: pause.wait(0.05) or 200)
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0);
        INSERT INTO t SELECT generate_series(1, 1000);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    done = threading.Event()
    counts = [0, 0]

    def load(which):
        with server.connect(db) as connection:
            # not more than the destination can take: what it cannot take piles up for ever
            while not done.wait(0.001):
                counts[which] += 1
                connection.execute("UPDATE t SET n = n + 1 WHERE id = %s", (counts[which] % 500 + 500 * which,))

    threads = [threading.Thread(target=load, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        webhook(server, db, receiver, options_=FAST)
        wait_until(lambda: server.tables("p", db).get("public.t", {}).get("state") in ("sync_done", "ready"),
                   60, "handed over under load")
        before = sum(counts)
        wait_until(lambda: sum(counts) > before + 100, 30, "the load goes on")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert copies(receiver, "t") == [1]


@pytest.mark.parametrize("point", ["sync_before_lock", "sync_after_lock", "sync_before_handover"])
def test_table_dropped_meanwhile(server, db, receiver, fail, point):
    """It leaves its group; the others go on."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);
        CREATE TABLE gone (id int PRIMARY KEY); INSERT INTO gone VALUES (1);
        CREATE PUBLICATION pub FOR TABLE t, gone;
        """, db)
    fail(f"{point}=wait:1")
    since = server.log_size()
    webhook(server, db, receiver, options_={**FAST})
    reached(server, point, since)
    # the copy holds its locks for as long as it takes; here it gives way
    with server.connect(db) as connection:
        dropping = threading.Thread(target=lambda: connection.execute("DROP TABLE gone"))
        dropping.start()
        if point == "sync_after_lock":
            wait_until(lambda: server.value(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DROP TABLE%%'"
            ) or not dropping.is_alive(), 10, "the drop waits")
        else:
            dropping.join()
        fail("")
        dropping.join()
    server.wait_for("p", db)
    assert "public.gone" not in server.tables("p", db) or \
        server.tables("p", db)["public.gone"]["state"] == "dropped"
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_alter_during_catch_up(server, db, receiver, fail):
    """A new shape between copy and hand-over, with rows of both shapes."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a');
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    fail("sync_before_handover=wait:1")
    since = server.log_size()
    webhook(server, db, receiver, options_=FAST)
    reached(server, "sync_before_handover", since)
    server.psql("""
        INSERT INTO t VALUES (2, 'old');
        ALTER TABLE t ADD COLUMN n int;
        INSERT INTO t VALUES (3, 'new', 3);
        """, db)
    fail("")
    server.wait_for("p", db)
    server.psql("UPDATE t SET n = 0; INSERT INTO t VALUES (4, 'later', 4)", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    versions = [e["table"]["version"] for e in receiver.events() if e["event"] in ("insert", "update")]
    assert versions == sorted(versions) and versions[-1] == 2


def test_resync_asked_for_during_the_copy(server, db, receiver, fail):
    """A request made while a copy runs is for a copy after it."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    fail("sync_after_lock=wait:1")
    since = server.log_size()
    webhook(server, db, receiver, options_=FAST)
    reached(server, "sync_after_lock", since)
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    fail("")
    server.wait_for("p", db)
    assert copies(receiver, "t") == [1, 2]
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_no_replication_slot_is_free(fresh_server, receiver):
    """The pipeline names the limit and goes on by itself when a slot is there."""
    server = fresh_server({"max_replication_slots": "2"})
    server.create_database("d")
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);
        CREATE PUBLICATION pub FOR TABLE t;
        SELECT pg_create_physical_replication_slot('taken');
        """, "d")
    webhook(server, "d", receiver, options_=FAST)
    wait_until(lambda: server.status("p", "d")["waiting_for"] == "max_replication_slots", 30, "the limit is named")
    server.sql("SELECT pg_drop_replication_slot('taken')", db="d")
    server.wait_for("p", "d")
    assert server.status("p", "d")["waiting_for"] is None
    assert_equal(server, "d", receiver.state(), ["public.t"])


def test_initial_sync_of_a_table_larger_than_what_may_be_in_flight(server, db, receivers):
    """Back-pressure: the sync worker's memory does not grow with the table."""
    slow = threading.Event()
    receiver = receivers(answer=lambda request: slow.wait(0.02) or 200, keep=False)
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, v text);
        INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 60000) g;
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    webhook(server, db, receiver, options_={**FAST, "max_batch_size": "1MB"})
    pid = wait_until(lambda: server.backends("etl sync", db), 30, "a sync worker")[0]
    with watch_memory(sync=pid) as peak:
        server.wait_for("p", db)
    assert peak["sync"] - peak.base["sync"] < 24 * 1024 * 1024


@pytest.mark.long
def test_resyncs_under_load_with_kills(server, db, receivers):
    """Random changes, resyncs of random tables, deaths of random workers: equal at the end."""
    receiver = receivers()
    Workload.create(server, db)
    chosen = random.Random(Workload(server, db).seed)
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_={**FAST, "max_batch_events": 100})
        wait_until(lambda: len(server.tables("p", db)) == len(NAMES), 30, "all tables known")
        for _ in range(40):
            done = load.transactions
            server.sql("SELECT etl.resync_table('p', %s::regclass)", (chosen.choice(NAMES),), db)
            wait_until(lambda: load.transactions > done + chosen.randint(1, 60), 60, "the load goes on")
            victims = server.backends(chosen.choice(["etl sync", "etl apply", "etl writer", "none", "none"]), db)
            for pid in victims[:1]:
                server.sql("SELECT pg_terminate_backend(%s)", (pid,))
        if server.tables("p", db):
            server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db, timeout=120)
    assert_equal(server, db, receiver.state(), NAMES)
    no_slots_left(server, db)


def test_a_truncate_of_a_ready_and_a_catching_up_table(server, db, receiver, fail):
    """Apply and sync deliver their parts of one TRUNCATE under ids of their own; none is taken for the other's repeat."""
    server.psql("""
        CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY);
        INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO c VALUES (1);
        CREATE PUBLICATION pub FOR TABLE a""", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    since = server.log_size()
    fail("sync_before_handover=wait:1")
    server.psql("ALTER PUBLICATION pub ADD TABLE b, c", db)
    reached(server, "sync_before_handover", since)
    server.psql("TRUNCATE a, b, c; INSERT INTO a VALUES (2); INSERT INTO b VALUES (2); INSERT INTO c VALUES (2)", db)
    fail("")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b", "public.c"])
    truncates = [e for e in receiver.events() if e["event"] == "truncate"]
    assert len({e["id"] for e in truncates}) == len(truncates)
    assert sorted(t["name"] for e in truncates for t in e["truncated_tables"]) == ["a", "b", "c"]
    for event in truncates:
        oid = event["truncated_tables"][0]["oid"]
        of_table = "" if event["truncated_tables"][0]["name"] == "a" else f"/{oid}"
        assert event["id"] == f"0/{event['sequence_key']}{of_table}"


def test_pair_restarts_while_the_queue_of_a_catch_up_is_full(server, db, receivers, fail):
    """In the middle of a large transaction, with savepoints and values stored out of line."""
    blocked, go_on = threading.Event(), threading.Event()

    def answer(request):
        if blocked.is_set() and not go_on.is_set():
            return 503
        return 200

    receiver = receivers(answer=answer)
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY, v text, big text);
        ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
        INSERT INTO t SELECT g FROM generate_series(1, 10) g;
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    fail("sync_before_handover=wait:1")
    since = server.log_size()
    webhook(server, db, receiver, options_=FAST)
    reached(server, "sync_before_handover", since)
    blocked.set()
    server.psql("""
        BEGIN;
        INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(100, 15000) g;
        SAVEPOINT a;
        INSERT INTO t SELECT g, 'a', repeat(md5(g::text), 400) FROM generate_series(20000, 20500) g;
        ROLLBACK TO a;
        SAVEPOINT b;
        INSERT INTO t SELECT g, 'b', repeat(md5(g::text), 400) FROM generate_series(30000, 31000) g;
        COMMIT;
        """, db)
    fail("")
    worker = server.backends("etl sync", db)
    wait_until(lambda: server.status("p", db)["state"] == "retrying", 30, "the destination refuses")
    writer = server.backends("etl writer", db)
    server.sql("SELECT pg_terminate_backend(%s)", (writer[0],))
    wait_until(lambda: server.backends("etl writer", db) not in ([], writer), 30, "a new writer")
    go_on.set()
    server.wait_for("p", db)
    assert server.backends("etl sync", db) in ([], worker)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert copies(receiver, "t") == [1]


@pytest.mark.parametrize("who", ["etl apply", "etl sync"])
@pytest.mark.parametrize("change", ["TRUNCATE t", "ALTER TABLE t ADD COLUMN more int DEFAULT 7"])
def test_catalogs_change_while_a_slot_is_made(server, db, receiver, who, change):
    """A change from between the two waits of slot making is seen by what is decoded next."""
    server.psql("""
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);
        CREATE TABLE other (id int PRIMARY KEY);
        CREATE PUBLICATION pub FOR TABLE t;
        """, db)
    if who == "etl sync":
        webhook(server, db, receiver, options_=FAST)
        server.wait_for("p", db)
    since = server.log_size()

    def logged(text):
        wait_until(lambda: any(who in line and text in line for line in server.log(since).splitlines()), 30, text)

    with server.connect(db, autocommit=False) as oldest, server.connect(db, autocommit=False) as changer:
        oldest.execute("INSERT INTO other VALUES (1)")
        if who == "etl apply":
            webhook(server, db, receiver, options_=FAST)
        else:
            server.sql("SELECT etl.resync_table('p', 't')", db=db)
        logged("found initial starting point")
        changer.execute(change)
        oldest.commit()
        logged("found initial consistent point")
        server.sql("INSERT INTO other VALUES (2)", db=db)
        changer.commit()
    server.sql("INSERT INTO t VALUES (2)", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (3)", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert "could not map filenode" not in server.log(since)
