"""More than one pipeline: on the same tables, in several databases."""

from harness import assert_equal, wait_until
from harness.pipeline import drop, null, webhook
from harness.workload import NAMES, Workload


def test_two_pipelines_on_the_same_tables(server, db, receivers):
    """Each gets everything, under ids of its own; one's trouble is not the other's."""
    refuse = []
    first, second = receivers(), receivers(answer=lambda r: 503 if refuse else 200)
    Workload.create(server, db, rows=1000)
    with Workload(server, db) as load:
        webhook(server, db, first, "one")
        webhook(server, db, second, "two", options_={"retry_delay": "50ms", "max_retry_delay": "200ms"})
        server.wait_for("one", db)
        server.wait_for("two", db)
        refuse.append(True)
        done = load.transactions
        wait_until(lambda: load.transactions > done + 30, 30, "the load goes on")
    # the first is up to date although the second gets nothing through
    server.wait_for("one", db)
    assert_equal(server, db, first.state(), NAMES)
    refuse.clear()
    server.wait_for("two", db)
    assert_equal(server, db, second.state(), NAMES)
    sources = [{e["source"] for e in r.events()} for r in (first, second)]
    assert len(sources[0]) == len(sources[1]) == 1 and sources[0] != sources[1]


def test_dropping_one_leaves_the_other(server, db, receivers):
    first, second = receivers(), receivers()
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, first, "one")
    webhook(server, db, second, "two")
    server.wait_for("one", db)
    server.wait_for("two", db)
    slots = lambda: server.value("SELECT count(*) FROM pg_replication_slots WHERE database = %s AND NOT temporary", (db,))
    assert slots() == 2
    drop(server, db, "one")
    assert slots() == 1
    server.sql("INSERT INTO t VALUES (1)", db=db)
    server.wait_for("two", db)
    assert_equal(server, db, second.state(), ["public.t"])
    assert first.state().rows("public.t") == []


def test_pipelines_in_two_databases(server, receivers):
    """The same table name, the same pipeline name: nothing is mixed up."""
    names = ["two_a", "two_b"]
    got = {}
    try:
        for name in names:
            server.create_database(name)
            server.psql("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t", name)
            got[name] = receivers()
            webhook(server, name, got[name])
        for name in names:
            server.sql("INSERT INTO t SELECT g, %s FROM generate_series(1, 500) g", (name,), db=name)
        for name in names:
            server.wait_for("p", name)
            assert_equal(server, name, got[name].state(), ["public.t"])
            assert {row["v"] for row in got[name].state().rows("public.t")} == {name}
        pids = [set(server.backends("etl apply", name)) for name in names]
        assert len(pids[0]) == len(pids[1]) == 1 and not pids[0] & pids[1]
    finally:
        for name in names:
            server.drop_database(name)


def test_same_numbers_in_both(server, db, receivers):
    """Position and ordinal of a change are those of the source, whoever reads it."""
    first, second = receivers(), receivers()
    server.psql("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
                "CREATE PUBLICATION pub FOR TABLE a, b; CREATE PUBLICATION only_b FOR TABLE b", db)
    webhook(server, db, first, "both")
    webhook(server, db, second, "less", publication="only_b")
    server.wait_for("both", db)
    server.wait_for("less", db)
    server.psql("BEGIN; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); DELETE FROM a; UPDATE b SET id = 2; COMMIT", db)
    server.wait_for("both", db)
    server.wait_for("less", db)
    changes = [{e["id"]: e["table"]["name"] for e in r.events()
                if e["phase"] == "ongoing_replication" and "table" in e and e["sequence_key"]}
               for r in (first, second)]
    assert changes[1] == {i: name for i, name in changes[0].items() if name == "b"}
    assert len(changes[0]) == 4 and len(changes[1]) == 2


def test_null_beside_webhook(server, db, receiver):
    server.psql("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t;"
                "INSERT INTO t SELECT g, g FROM generate_series(1, 1000) g", db)
    null(server, db, "nothing")
    webhook(server, db, receiver, "hook")
    server.sql("UPDATE t SET v = v || '!'", db=db)
    for name in ("nothing", "hook"):
        server.wait_for(name, db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    for name in ("nothing", "hook"):
        row = server.tables(name, db)["public.t"]
        assert row["rows_copied"] + row["updates"] >= 1000
