"""Memory stays bounded, whatever the size of a transaction."""

import pytest
from harness import Receiver, watch_memory
from harness.pipeline import null, webhook

LIMIT = 48 * 1024 * 1024
ROWS = 1_000_000


def prepare(server, kind, receiver):
    db = server.create_database(f"memory_{kind}")
    server.psql("CREATE TABLE t (id bigint PRIMARY KEY, v text, n int); CREATE PUBLICATION pub FOR TABLE t", db)
    if kind == "null":
        null(server, db)
    else:
        webhook(server, db, receiver)
    server.wait_for("p", db)
    apply, = server.backends("etl apply", db)
    writer, = server.backends("etl writer", db)
    return db, apply, writer


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["null", "webhook"])
def test_large_transaction(fresh_server, kind):
    """One transaction of a million rows: apply and writer stay small."""
    receiver = Receiver(keep=False)
    server = fresh_server(conf={"logical_decoding_work_mem": "'16MB'", "max_wal_size": "'4GB'"})
    db, apply, writer = prepare(server, kind, receiver)
    with watch_memory(apply=apply, writer=writer) as peak:
        server.sql("INSERT INTO t SELECT g, md5(g::text), g FROM generate_series(1, %s) g", (ROWS,), db=db)
        server.wait_for("p", db, timeout=400)
    assert server.backends("etl apply", db) == [apply] and server.backends("etl writer", db) == [writer]
    assert server.tables("p", db)["public.t"]["inserts"] == ROWS
    # the reorder buffer's own memory is bounded by a setting of the server
    assert peak["apply"] - 16 * 1024 * 1024 <= LIMIT, f"apply: {peak['apply'] >> 20} MB"
    assert peak["writer"] <= LIMIT, f"writer: {peak['writer'] >> 20} MB"
    receiver.close()


@pytest.mark.timeout(600)
def test_copy_of_a_large_table(fresh_server):
    """The copy of a million rows: the sync worker stays small."""
    from harness import wait_until

    server = fresh_server(conf={"max_wal_size": "'4GB'"})
    db = server.create_database("d")
    server.psql("CREATE TABLE t (id bigint PRIMARY KEY, v text, n int); CREATE PUBLICATION pub FOR TABLE t;"
                f"INSERT INTO t SELECT g, md5(g::text), g FROM generate_series(1, {ROWS}) g", db)
    receiver = Receiver(keep=False)
    webhook(server, db, receiver)
    sync = wait_until(lambda: server.backends("etl sync", db), 30, "a sync worker", interval=0.005)[0]
    writer = wait_until(lambda: server.backends("etl writer", db), 30, "a writer")[0]
    with watch_memory(sync=sync, writer=writer) as peak:
        server.wait_for("p", db, timeout=400)
    assert server.tables("p", db)["public.t"]["rows_copied"] == ROWS
    assert peak["sync"] <= LIMIT, f"sync: {peak['sync'] >> 20} MB"
    assert peak["writer"] <= LIMIT, f"writer: {peak['writer'] >> 20} MB"
    receiver.close()


@pytest.mark.timeout(300)
def test_no_growth_over_time(fresh_server):
    """Ten rounds of the same work: memory does not climb."""
    from harness import rss_anon

    receiver = Receiver(keep=False)
    server = fresh_server()
    db, apply, writer = prepare(server, "webhook", receiver)
    sizes = []
    for _ in range(12):
        server.sql("INSERT INTO t SELECT g, md5(g::text), g FROM generate_series(1, 5000) g", db=db)
        server.sql("UPDATE t SET n = n + 1", db=db)
        server.sql("DELETE FROM t", db=db)
        server.wait_for("p", db)
        sizes.append((rss_anon(apply), rss_anon(writer)))
    # rounds 3 to 12: less than 100 kB a round
    for i, name in enumerate(("apply", "writer")):
        grown = sizes[-1][i] - sizes[2][i]
        assert grown <= 9 * 100 * 1024, f"{name}: {[s[i] >> 10 for s in sizes]} kB"
    receiver.close()
