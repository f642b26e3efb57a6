"""The initial copy: what others lost, doubled or blocked meanwhile, with the case's input.

case -> test
C01 C04 C06 C07 C11 D01 D20 E13: test_<case>_... here
C01 (kills at named points)  test_sync.py: test_sync_dies, test_kills.py: test_server_killed
C04 (ALTER TABLE)  test_sync.py: test_copy_gives_way
C10  test_cases_slots.py
"""

import threading
import time

import pytest
from harness import Receiver, assert_equal, wait_until, watch_memory
from harness.pipeline import drop, null, webhook
from harness.process import cpu_seconds

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms"}


class Gate:
    """A receiver whose copies stop after some batches, until it is opened."""

    def __init__(self, receivers, batches=1):
        self.open = threading.Event()
        self.held = threading.Event()
        self.left = batches
        self.receiver = receivers(self.answer)

    def answer(self, request):
        events = request.events()
        if any(e["event"] == "insert" and "copy" in e for e in events) and not self.open.is_set():
            self.left -= 1
            if self.left < 0:
                self.held.set()
                self.open.wait(60)
        return 200


def keys(state, table):
    return sorted(row["id"] for row in state.rows(table))


def test_c01_a_copy_that_is_interrupted_starts_again_by_itself(fresh_server, receivers):
    """Its worker is ended, then the server stops at once, and meanwhile rows change."""
    gate = Gate(receivers, 3)
    server = fresh_server()
    db = server.create_database("c01")
    server.psql("CREATE TABLE c01(id int PRIMARY KEY, pad text);"
                "INSERT INTO c01 SELECT g, repeat('x', 500) FROM generate_series(1, 10000) g;"
                "CREATE PUBLICATION pub FOR TABLE c01", db)
    webhook(server, db, gate.receiver, options_=FAST)
    assert gate.held.wait(30)
    sync, = server.backends("etl sync", db)
    server.sql("SELECT pg_terminate_backend(%s)", (sync,))
    server.psql("UPDATE c01 SET pad = 'u' WHERE id % 1000 = 0", db)
    wait_until(lambda: server.backends("etl sync", db) not in ([], [sync]), 30, "another copy")
    server.stop("immediate")
    server.start()
    server.psql("DELETE FROM c01 WHERE id % 1001 = 0", db)
    gate.open.set()
    server.wait_for("p", db)
    assert_equal(server, db, gate.receiver.state(), ["public.c01"])
    assert len(gate.receiver.state().rows("public.c01")) == 10000 - 9


@pytest.mark.parametrize("command", ["DROP TABLE c04", "VACUUM FULL c04", "TRUNCATE c04"])
def test_c04_nobody_waits_for_the_end_of_a_copy(server, db, receivers, command):
    gate = Gate(receivers)
    server.psql("CREATE TABLE c04(id int PRIMARY KEY, pad text); CREATE TABLE other(id int PRIMARY KEY);"
                "INSERT INTO c04 SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g;"
                "INSERT INTO other VALUES (1); CREATE PUBLICATION pub FOR TABLE c04, other", db)
    webhook(server, db, gate.receiver, options_={**FAST, "copy_yield_timeout": "300ms"})
    assert gate.held.wait(30)
    with server.connect(db) as c:
        began = time.monotonic()
        c.execute("SET lock_timeout = '5s'")
        c.execute(command)
        assert time.monotonic() - began < 5
        if "DROP" not in command:
            assert c.execute("SELECT count(*) FROM c04 WHERE id = 1").fetchone() is not None
    gate.open.set()
    server.wait_for("p", db)
    assert_equal(server, db, gate.receiver.state(), ["public.other"] + (["public.c04"] if "DROP" not in command else []))
    drop(server, db)


def test_c06_a_table_rewritten_while_it_is_copied(server, db, receivers):
    gate = Gate(receivers, 2)
    server.psql("CREATE TABLE c06(id int PRIMARY KEY, v int) WITH (fillfactor = 50);"
                "INSERT INTO c06 SELECT g, 0 FROM generate_series(1, 15000) g;"
                "CREATE PUBLICATION pub FOR TABLE c06", db)
    webhook(server, db, gate.receiver, options_={**FAST, "copy_yield_timeout": "200ms"})
    assert gate.held.wait(30)
    for command in ("VACUUM FULL c06", "UPDATE c06 SET v = 1", "CLUSTER c06 USING c06_pkey",
                    "ALTER TABLE c06 SET TABLESPACE pg_default"):
        server.sql(command, db=db)
    gate.open.set()
    server.wait_for("p", db)
    rows = gate.receiver.state().rows("public.c06")
    assert sorted((row["id"], row["v"]) for row in rows) == [(g, 1) for g in range(1, 15001)]
    drop(server, db)


def test_c07_wide_rows_among_many_narrow_ones(server, db):
    """Memory goes by bytes: a few wide rows cost what one of them costs."""
    wide = 8 << 20
    server.psql(f"""
        CREATE TABLE c07(id int PRIMARY KEY, j jsonb);
        INSERT INTO c07 SELECT g, '{{}}' FROM generate_series(1, 5000) g;
        INSERT INTO c07 SELECT 100000 + g, jsonb_build_object('x', repeat('y', {wide})) FROM generate_series(1, 12) g;
        INSERT INTO c07 SELECT 200000 + g, '{{}}' FROM generate_series(1, 5000) g;
        CREATE PUBLICATION pub FOR TABLE c07""", db)
    receiver = Receiver(keep=False)
    try:
        webhook(server, db, receiver, start=False, options_={"queue_size": "16MB"})
        server.sql("SELECT etl.start_pipeline('p')", db=db)
        sync = wait_until(lambda: server.backends("etl sync", db), 30, "the copy")[0]
        with watch_memory(sync=sync) as peak:
            server.wait_for("p", db)
        assert server.tables("p", db)["public.c07"]["rows_copied"] == 10012
        assert receiver.bytes > 12 * wide
        assert peak["sync"] < 8 * wide, f"{peak['sync'] >> 20} MB"
        drop(server, db)
    finally:
        receiver.close()


def test_c11_ready_only_when_all_is_answered(server, db, receivers):
    """What the receiver has not answered does not count as copied, whoever dies."""
    gate = Gate(receivers, 2)
    server.psql("CREATE TABLE c11(id int PRIMARY KEY); INSERT INTO c11 SELECT generate_series(1, 3000);"
                "CREATE PUBLICATION pub FOR TABLE c11", db)
    webhook(server, db, gate.receiver, options_=FAST)
    assert gate.held.wait(30)
    assert server.value("SELECT etl.wait_for('p', timeout => '200ms')", db=db) is False
    assert server.tables("p", db)["public.c11"]["state"] == "data_sync"
    for kind in ("etl sync", "etl writer"):
        for pid in server.backends(kind, db):
            server.sql("SELECT pg_terminate_backend(%s)", (pid,))
    server.psql("INSERT INTO c11 VALUES (100001)", db)
    assert server.tables("p", db)["public.c11"]["state"] != "ready"
    gate.open.set()
    server.wait_for("p", db)
    assert keys(gate.receiver.state(), "public.c11") == [*range(1, 3001), 100001]
    drop(server, db)


def test_d01_columns_change_while_the_table_is_copied(server, db, receivers):
    gate = Gate(receivers, 2)
    server.psql("CREATE TABLE d01(id int PRIMARY KEY, v text, w text);"
                "INSERT INTO d01 SELECT g, 'v' || g, 'w' || g FROM generate_series(1, 5000) g;"
                "CREATE PUBLICATION pub FOR TABLE d01", db)
    webhook(server, db, gate.receiver, options_={**FAST, "copy_yield_timeout": "200ms"})
    assert gate.held.wait(30)
    for command in ("ALTER TABLE d01 ADD COLUMN x int DEFAULT 7", "INSERT INTO d01 VALUES (200001, 'v', 'w', 8)",
                    "ALTER TABLE d01 DROP COLUMN w", "UPDATE d01 SET v = 'changed' WHERE id <= 10",
                    "ALTER TABLE d01 RENAME COLUMN v TO vv", "INSERT INTO d01 VALUES (200002, 'after rename', 9)"):
        server.sql(command, db=db)
    gate.open.set()
    server.wait_for("p", db)
    rows = {row["id"]: row for row in gate.receiver.state().rows("public.d01")}
    assert len(rows) == 5002
    assert rows[1] == {"id": 1, "vv": "changed", "x": 7}
    assert rows[11] == {"id": 11, "vv": "v11", "x": 7}
    assert rows[200001] == {"id": 200001, "vv": "v", "x": 8}
    assert rows[200002] == {"id": 200002, "vv": "after rename", "x": 9}
    assert_equal(server, db, gate.receiver.state(), ["public.d01"])
    drop(server, db)


@pytest.mark.parametrize("point", ["sync_after_take", "sync_before_lock", "sync_before_handover"])
def test_d20_a_shape_from_before_the_snapshot_is_not_seen_again(server, db, receiver, point):
    """The slot is older than the ALTER, the copy newer, and the pair dies in between."""
    server.psql("CREATE TABLE first(id int PRIMARY KEY); CREATE TABLE d20(id int PRIMARY KEY, a text);"
                "INSERT INTO d20 VALUES (1, 'a'); CREATE PUBLICATION pub FOR TABLE first", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    since = server.log_size()
    server.failpoint(f"{point}=wait:1")
    try:
        wait_until(lambda: server.value("SHOW etl.failpoint", db=db), 10, "the failpoint is set")
        server.psql("ALTER PUBLICATION pub ADD TABLE d20; INSERT INTO d20 VALUES (2, 'a2')", db)
        wait_until(lambda: f'failpoint "{point}"' in server.log(since), 30, "the copy has come there")
        server.psql("ALTER TABLE d20 ADD COLUMN b text; UPDATE d20 SET b = 'b' || id", db)
        server.failpoint("")
        for pid in server.backends("etl apply", db):
            server.sql("SELECT pg_terminate_backend(%s)", (pid,))
        server.psql("INSERT INTO d20 VALUES (3, 'a3', 'b3')", db)
        server.wait_for("p", db)
    finally:
        server.failpoint("")
    rows = sorted(receiver.state().rows("public.d20"), key=lambda row: row["id"])
    assert rows == [{"id": g, "a": "a" if g == 1 else f"a{g}", "b": f"b{g}"} for g in (1, 2, 3)]
    drop(server, db)


def test_e13_cancelled_work_costs_nothing_afterwards(server, db):
    server.psql("CREATE TABLE e13(id int PRIMARY KEY, pad text); CREATE PUBLICATION pub FOR TABLE e13", db)
    null(server, db)
    server.wait_for("p", db)
    for _ in range(3):
        with server.connect(db) as c:
            big = threading.Thread(target=lambda: _quiet(c, "INSERT INTO e13 SELECT g, repeat('x', 1000)"
                                                            " FROM generate_series(1, 5000000) g"))
            size = server.value("SELECT pg_current_wal_insert_lsn()", db=db)
            big.start()
            wait_until(lambda: server.value("SELECT pg_current_wal_insert_lsn() - %s > 2000000", (size,), db), 30, "work")
            c.cancel()
            big.join()
    server.psql("INSERT INTO e13 VALUES (-1, 'ok')", db)
    server.wait_for("p", db)
    assert server.tables("p", db)["public.e13"]["inserts"] == 1
    apply, = server.backends("etl apply", db)
    before = cpu_seconds(apply)
    server.psql("INSERT INTO e13 VALUES (-2, 'ok')", db)
    server.wait_for("p", db)
    assert cpu_seconds(apply) - before < 0.5
    drop(server, db)


def _quiet(connection, query):
    try:
        connection.execute(query)
    except Exception as error:  # noqa: BLE001 - it is cancelled
        assert "cancel" in str(error)
