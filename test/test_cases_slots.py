"""Slots, WAL, transactions: what was lost, doubled or never moved elsewhere, with the case's input.

case -> test
S02 S04 S05 S11 S13 S15 S18 S19 C10 X01 X13: test_<case>_... here
S08  test_processes.py: test_terminated_again_and_again, test_kills.py: test_terminated, test_killed_again_and_again
S09  test_memory.py: test_large_transaction, test_kills.py (in the middle of a transaction)
X15  test_events.py: test_deliveries_are_signed, test_webhook.py: test_two_secrets_sign,
     test_http.py: test_signatures_are_checked_by_the_receiver
S22 needs a function that drains a pipeline, which is not there yet.
"""

import re
import threading
import time

import psycopg
import pytest
from harness import assert_equal, wait_until, watch_memory
from harness.pipeline import drop, null, webhook

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms"}


def keys(state, table):
    return sorted(row["id"] for row in state.rows(table))


def table(server, db, name, columns="id int PRIMARY KEY"):
    server.psql(f"CREATE TABLE {name}({columns}); CREATE PUBLICATION pub FOR TABLE {name}", db)


def stopped(server, db):
    """Stop the pipeline; its slot is released."""
    slot = server.status("p", db)["slot_name"]
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped" and not server.value(
        "SELECT active FROM pg_replication_slots WHERE slot_name = %s", (slot,)), 20, "stopped, the slot released")
    return slot


def start(server, db):
    server.sql("SELECT etl.start_pipeline('p')", db=db)


def test_s02_unrelated_wal_is_walked_through_and_seen(server, db, receiver):
    """A backlog of others' changes is progress, not silence."""
    table(server, db, "s02_t")
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    stopped(server, db)
    server.psql("CREATE TABLE s02_noise(id int, pad text);"
                "INSERT INTO s02_noise SELECT g, repeat('x', 900) FROM generate_series(1, 60000) g;"
                "INSERT INTO s02_t VALUES (1)", db)
    end = server.value("SELECT pg_current_wal_lsn()", db=db)
    assert server.status("p", db)["retained_wal_bytes"] > 50_000_000
    start(server, db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.s02_t"])
    assert keys(receiver.state(), "public.s02_t") == [1]
    assert server.value("SELECT decoded_lsn >= %s FROM etl.pipeline_status", (end,), db)
    assert not [e for e in receiver.events() if e.get("table", {}).get("name") == "s02_noise"]
    wait_until(lambda: server.status("p", db)["retained_wal_bytes"] < 50_000_000 or server.sql("CHECKPOINT"), 30,
               "the backlog is given back")


@pytest.mark.parametrize("how", ["recreated", "advanced"])
def test_s04_a_gap_is_noticed(server, db, receiver, how):
    """A slot of the same name that does not lead on from where we were is not taken for ours."""
    table(server, db, "s04")
    webhook(server, db, receiver, options_=FAST)
    server.psql("INSERT INTO s04 VALUES (1)", db)
    server.wait_for("p", db)
    slot = stopped(server, db)
    server.psql("INSERT INTO s04 VALUES (2)", db)
    if how == "recreated":
        server.sql("SELECT pg_drop_replication_slot(%s)", (slot,), db)
        with pytest.raises(psycopg.Error, match="output plugin"):
            server.sql("SELECT pg_create_logical_replication_slot(%s, 'etl')", (slot,), db)
        server.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,), db)
    else:
        server.sql("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,), db)
    server.psql("INSERT INTO s04 VALUES (3)", db)
    start(server, db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 20, "failed: nobody says that all is well")
    status = server.status("p", db)
    assert not status["healthy"] and "slot" in status["problem"]
    start(server, db)
    wait_until(lambda: server.value("SELECT count(*) FROM etl.error_log WHERE message LIKE '%%slot%%'", db=db) == 2, 20,
               "to start again is no answer")
    server.sql("SELECT etl.resync_pipeline('p')", db=db)
    start(server, db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.s04"])
    assert keys(receiver.state(), "public.s04") == [1, 2, 3]
    drop(server, db)


def test_s04_a_resync_is_seen_before_the_gap(server, db, receiver):
    """The order in which the new pair sees the user's answer and the gap does not matter."""
    table(server, db, "s04")
    webhook(server, db, receiver, options_=FAST)
    server.psql("INSERT INTO s04 VALUES (1)", db)
    server.wait_for("p", db)
    slot = stopped(server, db)
    server.psql("INSERT INTO s04 VALUES (2)", db)
    server.sql("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,), db)
    start(server, db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 20, "failed")
    since = server.log_size()
    server.failpoint("apply_before_slot=wait:1")
    try:
        server.sql("SELECT etl.resync_pipeline('p')", db=db)
        wait_until(lambda: 'failpoint "apply_before_slot"' in server.log(since), 20, "apply waits")
        start(server, db)
        wait_until(lambda: server.value("SELECT resync_done = 1 FROM etl.pipeline_state", db=db), 20, "the writer has seen it")
    finally:
        server.failpoint("")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.s04"])
    assert keys(receiver.state(), "public.s04") == [1, 2]
    drop(server, db)


def test_c10_deletes_in_the_gap_of_a_lost_slot_arrive(server, db, receiver):
    table(server, db, "c10", "id int PRIMARY KEY, v text")
    server.psql("INSERT INTO c10 VALUES (1, 'a'), (2, 'b'), (3, 'c')", db)
    webhook(server, db, receiver, options_={**FAST, "on_slot_loss": "resync"})
    server.wait_for("p", db)
    slot = stopped(server, db)
    server.sql("SELECT pg_drop_replication_slot(%s)", (slot,))
    server.psql("DELETE FROM c10 WHERE id = 1; UPDATE c10 SET v = 'B' WHERE id = 2; INSERT INTO c10 VALUES (4, 'd')", db)
    start(server, db)
    server.wait_for("p", db)
    rows = sorted((row["id"], row["v"]) for row in receiver.state().rows("public.c10"))
    assert rows == [(2, "B"), (3, "c"), (4, "d")]
    drop(server, db)


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_s05_a_publication_made_anew_loses_nothing(server, db, receiver, running):
    table(server, db, "s05")
    server.psql("INSERT INTO s05 VALUES (1)", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    if not running:
        stopped(server, db)
    server.psql("DROP PUBLICATION pub; INSERT INTO s05 VALUES (2)", db)
    if running:
        wait_until(lambda: server.status("p", db)["healthy"] is False, 20, "its absence is told")
        assert "publication" in server.status("p", db)["problem"]
    server.psql("CREATE PUBLICATION pub FOR TABLE s05; INSERT INTO s05 VALUES (3)", db)
    start(server, db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.s05"])
    assert keys(receiver.state(), "public.s05") == [1, 2, 3]
    drop(server, db)


def test_s11_catalog_heavy_transactions_are_decoded_in_bounded_time(server, db, receiver):
    table(server, db, "s11", "id int PRIMARY KEY, v int")
    server.psql("INSERT INTO s11 SELECT g, 0 FROM generate_series(1, 1000) g", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    temporary = ("DO $$ BEGIN FOR i IN 1..300 LOOP"
                 " EXECUTE format('CREATE TEMP TABLE s11_tmp%s(a int PRIMARY KEY, b text) ON COMMIT DROP', i);"
                 " END LOOP; END $$")
    subtransactions = ("DO $$ BEGIN FOR i IN 1..1000 LOOP BEGIN UPDATE s11 SET v = v + 1 WHERE id = 1 + i % 100;"
                       " EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$")
    with server.connect(db, autocommit=False) as open_:
        open_.execute("UPDATE s11 SET v = v + 1 WHERE id > 900")
        began = time.monotonic()
        threads = [threading.Thread(target=lambda: server.connect(db).execute(temporary)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        open_.execute(subtransactions)
        open_.commit()
    server.psql("UPDATE s11 SET v = v + 1", db)
    made = time.monotonic() - began
    server.wait_for("p", db, timeout=max(30, int(10 * made)))
    assert_equal(server, db, receiver.state(), ["public.s11"])


def test_s13_many_subtransactions_at_the_start(server, db, receiver):
    """The start waits for them, says so, and comes when they end."""
    table(server, db, "s13")
    many = ("DO $$ BEGIN FOR i IN 1..1500 LOOP BEGIN INSERT INTO s13 VALUES (%s + i);"
            " EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$")
    sessions = [server.connect(db, autocommit=False) for _ in range(4)]
    for i, session in enumerate(sessions):
        session.execute(many % (i * 10000))
    webhook(server, db, receiver, options_=FAST)
    wait_until(lambda: server.status("p", db)["waiting_for"] == "running transactions", 30, "the reason is shown")
    for i, session in enumerate(sessions):
        session.rollback() if i else session.commit()
        session.close()
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.s13"])
    assert len(receiver.state().rows("public.s13")) == 1500


@pytest.mark.parametrize("interrupted", [False, True])
def test_s15_the_order_of_commits_counts(server, db, receiver, interrupted):
    """A transaction that began first and commits last is not behind any position."""
    table(server, db, "s15", "id int PRIMARY KEY, v text")
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    with server.connect(db, autocommit=False) as first:
        first.execute("INSERT INTO s15 VALUES (1, 'began first')")
        server.psql("BEGIN; INSERT INTO s15 VALUES (2, 'began second'); COMMIT", db)
        server.wait_for("p", db)
        if interrupted:
            apply, = server.backends("etl apply", db)
            server.sql("SELECT pg_terminate_backend(%s)", (apply,))
            wait_until(lambda: server.backends("etl apply", db) not in ([], [apply]), 20, "another worker")
        first.commit()
    server.psql("INSERT INTO s15 VALUES (3, 'after')", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.s15"])
    changes = [e["table_row"]["id"] for e in receiver.events() if e["event"] == "insert"]
    assert changes == [2, 1, 3]


def test_s18_what_a_stopped_pipeline_holds_is_shown(server, db):
    """And once it runs again, neither catalogs nor WAL are held."""
    table(server, db, "s18", "id int PRIMARY KEY, v int")
    server.psql("INSERT INTO s18 SELECT g, 0 FROM generate_series(1, 5000) g", db)
    null(server, db)
    server.wait_for("p", db)
    slot = stopped(server, db)
    before = server.status("p", db)["retained_wal_bytes"]
    server.psql("UPDATE s18 SET v = v + 1;"
                "DO $$ BEGIN FOR i IN 1..200 LOOP EXECUTE 'CREATE TEMP TABLE x(a int, b text)';"
                " EXECUTE 'DROP TABLE x'; END LOOP; END $$", db)
    assert server.status("p", db)["retained_wal_bytes"] > before
    held = "SELECT age(catalog_xmin) FROM pg_replication_slots WHERE slot_name = %s"
    xmin = "SELECT xmin FROM pg_replication_slots WHERE slot_name = %s"
    assert server.value(xmin, (slot,)) is None, "users' rows are nobody's hostages"
    start(server, db)
    server.wait_for("p", db)
    age = server.value(held, (slot,))
    server.psql("INSERT INTO s18 VALUES (-1)", db)
    server.wait_for("p", db)

    def moved():
        server.sql("SELECT pg_log_standby_snapshot()" if server.value("SHOW server_version_num") >= "160000" else "CHECKPOINT")
        return server.value(held, (slot,)) <= max(age, 5)

    wait_until(moved, 30, "the catalogs' horizon moves")


def test_s19_toast_that_is_gone_is_not_followed(server, db, receiver):
    table(server, db, "s19", "id int PRIMARY KEY, n int, big text")
    server.psql("ALTER TABLE s19 ALTER big SET STORAGE external;"
                "INSERT INTO s19 SELECT g, 0, repeat(md5(g::text), 400) FROM generate_series(1, 50) g", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    stopped(server, db)
    server.psql("UPDATE s19 SET n = 1; UPDATE s19 SET big = 'gone'; DELETE FROM s19 WHERE id > 25", db)
    server.psql("VACUUM FULL s19", db)
    start(server, db)
    server.wait_for("p", db)
    rows = sorted(receiver.state().rows("public.s19"), key=lambda row: row["id"])
    assert rows == [{"id": g, "n": 1, "big": "gone"} for g in range(1, 26)]
    first = [e for e in receiver.events() if e["event"] == "update"][:50]
    assert all(e["missing_columns"] == ["big"] for e in first)


def test_x01_the_position_waits_for_the_answer(server, db, receivers):
    """Taken and not answered, answered and lost: confirmed is what was answered, and the rest comes again, the same."""
    doing = {"what": None}
    go_on = threading.Event()

    def answer(request):
        if doing["what"] == "hold":
            go_on.wait(30)
            raise ConnectionResetError  # the answer is lost
        return 200

    receiver = receivers(answer)
    table(server, db, "x01", "id int PRIMARY KEY, v text")
    webhook(server, db, receiver, options_={**FAST, "max_batch_events": 100})
    server.wait_for("p", db)
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    slot = server.status("p", db)["slot_name"]
    doing["what"] = "hold"
    before = server.value("SELECT pg_current_wal_lsn()", db=db)
    taken = receiver.count
    server.psql("INSERT INTO x01 SELECT g, 'v' FROM generate_series(1, 1000) g", db)
    end = server.value("SELECT pg_current_wal_lsn()", db=db)
    wait_until(lambda: receiver.count > taken, 20, "the receiver has the first batch")
    assert server.value("SELECT etl.wait_for('p', timeout => '300ms')", db=db) is False
    assert server.value(f"SELECT ({confirmed}) < %s", (slot, end))
    assert server.status("p", db)["delivered_lsn"] is None or server.value(
        "SELECT delivered_lsn < %s FROM etl.pipeline_status", (end,), db), before
    doing["what"] = None
    go_on.set()
    server.psql("INSERT INTO x01 VALUES (1001, 'after')", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.x01"])
    assert keys(receiver.state(), "public.x01") == list(range(1, 1002))
    wait_until(lambda: server.value(f"SELECT ({confirmed}) >= %s", (slot, end)), 20, "confirmed")


def test_x13_a_backlog_stays_in_the_wal(fresh_server, receivers):
    """Down while much is written, the server restarted, then up: memory is bounded, order is kept."""
    up = threading.Event()
    receiver = receivers(lambda request: 200 if up.is_set() else 503)
    server = fresh_server()
    db = server.create_database("x13")
    table(server, db, "x13", "id int PRIMARY KEY, j jsonb")
    up.set()
    webhook(server, db, receiver, options_={**FAST, "queue_size": "16MB"})
    server.wait_for("p", db)
    up.clear()
    server.psql("INSERT INTO x13 SELECT g, jsonb_build_object('p', repeat(md5(g::text), 560))"
                " FROM generate_series(1, 4000) g", db)
    server.restart()
    apply = wait_until(lambda: server.backends("etl apply", db), 30, "apply is back")[0]
    writer = wait_until(lambda: server.backends("etl writer", db), 30, "writer is back")[0]
    with watch_memory(apply=apply, writer=writer) as peak:
        wait_until(lambda: server.status("p", db)["state"] == "retrying", 30, "it tries")
        assert server.status("p", db)["retained_wal_bytes"] > 1_000_000
        up.set()
        server.wait_for("p", db)
    assert peak["apply"] < 100 << 20 and peak["writer"] < 100 << 20, peak.peak
    assert keys(receiver.state(), "public.x13") == list(range(1, 4001))
    assert [e["table_row"]["id"] for e in receiver.events() if e["event"] == "insert"] == list(range(1, 4001))
    assert not re.search("out of memory", server.log())
