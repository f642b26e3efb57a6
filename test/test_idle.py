"""What a pipeline costs when there is nothing to do."""

import threading
from concurrent.futures import ThreadPoolExecutor

from harness import ProcessSample, wait_until
from harness.pipeline import null, webhook

SECONDS = 10
# a second: apply looks for WAL five times, the writer is woken when there is something
WAKEUPS = {"etl apply": 10, "etl writer": 4, "etl launcher": 10}


def test_idle_processes_sleep(server, db, receiver):
    """No change: hardly any CPU, hardly any wake-up."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    pids = {kind: server.backends(kind, None if kind == "etl launcher" else db)[0]
            for kind in WAKEUPS}
    for kind, pid in pids.items():
        sample = ProcessSample.over(pid, SECONDS)
        assert sample.cpu <= 0.005, f"{kind}: {sample}"
        assert sample.wakeups <= WAKEUPS[kind], f"{kind}: {sample}"


def test_the_wal_of_others_wakes_seldom(fresh_server, receiver):
    """Another database commits all the time: nothing of ours, so hardly a wake-up."""
    server = fresh_server()
    db = server.create_database("d")
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver)
    other = server.create_database("busy", extension=False)
    server.psql("CREATE TABLE load (id int)", other)
    server.wait_for("p", db)
    pids = {kind: server.backends(kind, db)[0] for kind in ("etl apply", "etl writer")}
    done = threading.Event()

    def commits():
        with server.connect(other) as c:
            while not done.wait(0.005):
                c.execute("INSERT INTO load VALUES (1)")

    with ThreadPoolExecutor() as pool:
        load = pool.submit(commits)
        try:
            with ThreadPoolExecutor() as samplers:
                samples = {kind: samplers.submit(ProcessSample.over, pid, SECONDS) for kind, pid in pids.items()}
        finally:
            done.set()
        load.result()
    for kind, sample in samples.items():
        assert sample.result().wakeups <= WAKEUPS[kind], f"{kind}: {sample.result()}"
    assert server.value("SELECT count(*) > 500 FROM load", db=other)


def test_idle_with_the_destination_down(fresh_server, receivers):
    """Changes wait, the destination refuses: retried with backoff, quietly."""
    refuse = []
    receiver = receivers(answer=lambda r: 503 if refuse else 200)
    server = fresh_server()
    db = server.create_database("d")
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    refuse.append(True)
    server.sql("INSERT INTO t VALUES (1)", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "retrying", 20, "retrying")
    apply, = server.backends("etl apply", db)
    writer, = server.backends("etl writer", db)
    size = server.log_size()
    for pid in (apply, writer):
        sample = ProcessSample.over(pid, SECONDS)
        assert sample.cpu <= 0.005, sample
        assert sample.wakeups <= 10, sample
    lines = [line for line in server.log(size).splitlines() if "etl" in line]
    assert len(lines) <= 2, lines
    status = server.status("p", db)
    assert status["last_error"] and status["next_retry_time"]
    refuse.clear()
    server.wait_for("p", db)


def test_idle_slot_advances(server, db):
    """Another database is busy: the slot of an idle pipeline lets its WAL go, without writing any."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    null(server, db)
    server.wait_for("p", db)
    other = server.create_database("busy", extension=False)
    try:
        server.psql("CREATE TABLE load AS SELECT g, repeat('x', 100) FROM generate_series(1, 50000) g;"
                    "CHECKPOINT;", other)
        end = server.value("SELECT pg_current_wal_lsn()")
        confirmed = lambda: server.value(
            "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE database = %s", (end, db))
        wait_until(confirmed, 30, "the idle slot is confirmed past the other database's WAL")
        # restart_lsn follows at the next running-xacts record
        server.sql("CHECKPOINT", db=other)
        wait_until(lambda: server.value(
            "SELECT restart_lsn >= %s FROM pg_replication_slots WHERE database = %s", (end, db)),
            60, "restart_lsn moves")
    finally:
        server.drop_database(other)


def test_idle_pipeline_writes_no_wal(fresh_server):
    """Nothing happens for a while: the WAL stays where it is."""
    server = fresh_server(conf={"autovacuum": "off", "bgwriter_delay": "10s", "checkpoint_timeout": "1h"})
    db = server.create_database("d")
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    null(server, db)
    server.wait_for("p", db)
    pid, = server.backends("etl apply", db)
    before = server.value("SELECT pg_current_wal_insert_lsn()", db=db)
    ProcessSample.over(pid, SECONDS)
    written = server.value("SELECT pg_current_wal_insert_lsn() - %s", (before,), db)
    assert written <= 8192, f"{written} bytes"
