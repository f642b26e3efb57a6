"""Sizes: large rows, many columns, long names, catalogs that churn; memory stays within what is promised."""

import os
import threading
import time

import pytest
from harness import Receiver, assert_equal, rss_anon, wait_until, watch_memory
from harness.pipeline import drop, webhook

MB = 1024 * 1024
LONG = bool(os.environ.get("ETL_LONG"))


def workers(server, db):
    return {role: server.backends(f"etl {role}", db)[0] for role in ("apply", "writer")}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [32, 200])
def test_a_large_row(fresh_server, size):
    """Delivered, byte by byte; apply and writer keep within three times its size."""
    server = fresh_server(conf={"max_wal_size": "'2GB'"})
    db = server.create_database("large")
    server.psql("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE external; CREATE PUBLICATION pub FOR TABLE t", db)
    receiver = Receiver()
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (0, 0, 'small')", db=db)
    server.wait_for("p", db)
    with watch_memory(**workers(server, db)) as peak:
        server.sql("INSERT INTO t SELECT 1, 0, repeat(md5('x'), %s)", (size * MB // 32,), db=db)
        server.wait_for("p", db, timeout=400)
    assert_equal(server, db, receiver.state(), ["public.t"])
    print({k: peak[k] // MB for k in ("apply", "writer")})
    for who in ("apply", "writer"):
        assert peak[who] <= 3 * size * MB + 64 * MB, f"{who}: {peak[who] // MB} MB"
    after = {who: rss_anon(pid) for who, pid in workers(server, db).items()}
    assert all(left <= size * MB + 64 * MB for left in after.values()), f"most memory is given back: {after}"
    with watch_memory(**workers(server, db)) as peak:
        server.sql("UPDATE t SET n = 1", db=db)
        server.wait_for("p", db, timeout=400)
    print({k: peak[k] // MB for k in ("apply", "writer")})
    assert_equal(server, db, receiver.state(), ["public.t"])
    for who in ("apply", "writer"):
        assert peak[who] <= 3 * size * MB + 64 * MB, f"{who}: {peak[who] // MB} MB"
    receiver.close()


@pytest.mark.timeout(300)
def test_a_row_that_the_receiver_does_not_take(server, db, receivers):
    """The limit is the receiver's: its table is parked with what it said, the others go on, and so does that table later."""
    receiver = receivers(lambda request: 413 if len(request.body) > 8 * MB else None)
    server.psql("CREATE TABLE t (id int PRIMARY KEY, big text); CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t, u", db)
    webhook(server, db, receiver, options_={"retry_delay": "50ms"})
    server.wait_for("p", db)
    server.psql("INSERT INTO t SELECT 1, repeat(md5('x'), 1000000); INSERT INTO u VALUES (1)", db)
    wait_until(lambda: server.tables("p", db)["public.t"]["error"], 60, "parked")
    assert "413" in server.tables("p", db)["public.t"]["error"]
    wait_until(lambda: receiver.state().rows("public.u"), 20, "the other table goes on")
    server.psql("DELETE FROM t; SELECT etl.retry_table('p'); INSERT INTO t VALUES (2, 'small')", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t", "public.u"])
    drop(server, db)


@pytest.mark.timeout(600)
def test_rows_filled_in_stay_bounded(fresh_server):
    """Thousands of small updates of rows with large unchanged values: no more of them in memory than of whole rows."""
    server = fresh_server(conf={"max_wal_size": "'4GB'"})
    db = server.create_database("filled")
    rows = 5000 if LONG else 1500
    server.psql("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE external;"
                f"INSERT INTO t SELECT i, 0, repeat('x', 200000) FROM generate_series(1, {rows}) i; CREATE PUBLICATION pub FOR TABLE t", db)
    pause = threading.Event()  # the receiver is no faster than that
    slow = Receiver(lambda request: pause.wait(0.02), keep=False)
    webhook(server, db, slow)
    server.wait_for("p", db, timeout=300)
    with watch_memory(**workers(server, db)) as peak:
        server.sql("UPDATE t SET n = 1", db=db)
        server.wait_for("p", db, timeout=300)
    assert server.tables("p", db)["public.t"]["updates"] == rows
    # two rings of 16 MB, and a batch that is compressed or sent
    assert peak["writer"] <= 96 * MB, f"writer: {peak['writer'] // MB} MB for {rows * 200000 // MB} MB of values"
    assert peak["apply"] <= 96 * MB, f"apply: {peak['apply'] // MB} MB"
    slow.close()


@pytest.mark.timeout(900)
def test_catalog_churn(fresh_server):
    """Many sessions that make temporary tables and subtransactions: decoded in a fraction of ten times their time, in little memory."""
    sessions, tables, subtransactions = (20, 500, 50) if LONG else (8, 60, 25)
    server = fresh_server(conf={"max_wal_size": "'4GB'", "max_connections": "60"})
    db = server.create_database("churn")
    receiver = Receiver()
    server.psql("CREATE TABLE t (id serial PRIMARY KEY, n int); CREATE PUBLICATION pub FOR ALL TABLES", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)

    def work(number):
        with server.connect(db, autocommit=False) as c:
            for i in range(tables):
                c.execute(f"CREATE TEMP TABLE tmp_{i} (a int PRIMARY KEY, b text, c text DEFAULT 'x')")
                c.execute(f"INSERT INTO tmp_{i} SELECT g, g::text FROM generate_series(1, 5) g")
                if i % (tables // subtransactions) == 0:
                    c.execute("SAVEPOINT s")
                    c.execute("INSERT INTO t (n) VALUES (%s)", (number,))
                    c.execute(f"ALTER TABLE tmp_{i} ADD COLUMN d int")
                    c.execute("ROLLBACK TO s" if i % 3 == 0 else "RELEASE s")
                if i % 7 == 0:
                    c.execute(f"DROP TABLE tmp_{i}")
                if i % 20 == 0:
                    c.commit()
            c.commit()

    started = time.monotonic()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(sessions)]
    with watch_memory(**workers(server, db)) as peak:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - started
        server.wait_for("p", db, timeout=600)
    delivered = time.monotonic() - started - took
    print(f"{sessions * tables} temporary tables in {took:.1f} s, decoded {delivered:.1f} s later; "
          f"apply {peak['apply'] // MB} MB, writer {peak['writer'] // MB} MB")
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert delivered <= 10 * took
    assert peak["apply"] <= 256 * MB and peak["writer"] <= 256 * MB
    receiver.close()
