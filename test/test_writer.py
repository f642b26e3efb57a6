"""The writer: batches taken apart, retries, positions, users' locks, changes of the definition while it runs."""

import json
import re
import statistics
import threading
import time
from collections import defaultdict

import pytest
from harness import assert_equal, wait_until
from harness.pipeline import drop, null, webhook
from harness.workload import NAMES, Workload

QUICK = {"retry_delay": "20ms", "max_retry_delay": "100ms", "auth_retry_delay": "100ms"}


def two_tables(server, db):
    server.psql("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
                "CREATE PUBLICATION pub FOR TABLE a, b", db)


def stream(receiver):
    """Delivered events of ongoing replication, in order of arrival, as often as they came."""
    return [e for r in receiver.delivered() for e in r.events() if e["phase"] == "ongoing_replication"]


def in_transactions(events):
    """Every delivered begin has events and its commit behind it, in order of position."""
    open_, numbers = None, []
    for e in events:
        if e["event"] == "relation":
            continue
        if e["event"] == "begin":
            assert open_ is None, f"begin {e['id']} within {open_}"
            open_, numbers = e["commit_lsn"], [0]
        elif e["event"] == "commit":
            assert e["commit_lsn"] == open_ and len(numbers) > 1, f"commit {e['id']} without events"
            open_ = None
        else:
            assert e["commit_lsn"] == open_, f"{e['id']} outside its transaction"
            assert e["tx_ordinal"] > numbers[-1]
            numbers.append(e["tx_ordinal"])
    assert open_ is None


# --- refused batches ---


@pytest.mark.parametrize("size", [2, 3, 500])
@pytest.mark.parametrize("where", ["first", "middle", "last", "alone"])
def test_refused_row_in_any_place_of_its_transaction(server, db, receivers, where, size):
    """What is before it and the other table's rows are delivered, in whole transactions."""
    two_tables(server, db)
    receiver = receivers(lambda r: 400 if b"poison" in r.body else None)
    webhook(server, db, receiver, options_={**QUICK, "max_batch_events": str(size)})
    server.wait_for("p", db)
    poison = "INSERT INTO a VALUES (1000, 'poison');"
    server.psql({
        "first": f"BEGIN; {poison} INSERT INTO b SELECT g, 'v' FROM generate_series(1, 5) g; COMMIT;",
        "middle": f"BEGIN; INSERT INTO b SELECT g, 'v' FROM generate_series(1, 3) g; {poison}"
                  " INSERT INTO b VALUES (4, 'v'), (5, 'v'); COMMIT;",
        "last": f"BEGIN; INSERT INTO b SELECT g, 'v' FROM generate_series(1, 5) g; {poison} COMMIT;",
        "alone": f"{poison} INSERT INTO b SELECT g, 'v' FROM generate_series(1, 5) g;",
    }[where] + "INSERT INTO a VALUES (1, 'later'); INSERT INTO b VALUES (6, 'w');", db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert server.tables("p", db)["public.a"]["state"] == "errored"
    assert server.tables("p", db)["public.b"]["state"] == "ready"
    assert_equal(server, db, receiver.state(), ["public.b"])
    events = stream(receiver)
    in_transactions(events)
    assert not [e for e in events if e["event"] == "insert" and e["table"]["name"] == "a"]
    # a transaction of which nothing is left does not show up
    assert len([e for e in events if e["event"] == "begin"]) == 2
    drop(server, db)


def test_many_refused_rows_among_many(server, db, receivers):
    """A few rows refused of many tables' rows: each parks its own table, at the cost of few requests."""
    names = [f"t{i}" for i in range(20)]
    server.psql("".join(f"CREATE TABLE {n} (id int PRIMARY KEY, v text);" for n in names)
                + f"CREATE PUBLICATION pub FOR TABLE {', '.join(names)}", db)
    receiver = receivers(lambda r: 422 if b"poison" in r.body else None)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    before = receiver.count
    bad = names[3::6]
    script = []
    for i in range(20):
        script += [f"INSERT INTO {n} VALUES ({i}, '{'poison' if n in bad and i == 7 else 'v'}');" for n in names]
    server.psql("BEGIN;" + "".join(script) + "COMMIT;", db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    states = {n: t["state"] for n, t in server.tables("p", db).items()}
    assert {n for n, s in states.items() if s == "errored"} == {f"public.{n}" for n in bad}
    assert_equal(server, db, receiver.state(), [f"public.{n}" for n in names if n not in bad])
    in_transactions(stream(receiver))
    assert receiver.count - before < 20 * len(bad)
    drop(server, db)


def test_too_large_is_halved_until_it_fits(server, db, receivers):
    """413: fewer events at once, in order, and no table parked."""
    two_tables(server, db)
    receiver = receivers(lambda r: 413 if len(r.events()) > 7 else None)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    server.psql("INSERT INTO a SELECT g, 'v' FROM generate_series(1, 200) g;"
                "INSERT INTO b SELECT g, 'v' FROM generate_series(1, 200) g; UPDATE a SET v = 'w'", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    events = stream(receiver)
    in_transactions(events)
    ids = [e["id"] for e in events]
    assert len(ids) == len(set(ids)), "nothing is delivered twice"
    drop(server, db)


@pytest.mark.parametrize("size", [2, 500])
def test_refused_truncate_parks_all_its_tables(server, db, receivers, size):
    server.psql("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
                "CREATE TABLE c (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE a, b, c", db)
    receiver = receivers(lambda r: 400 if b'"event":"truncate"' in r.body else None)
    webhook(server, db, receiver, options_={**QUICK, "max_batch_events": str(size)})
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (1, 'v'); INSERT INTO c VALUES (1, 'v'); TRUNCATE a, b;"
                "INSERT INTO c VALUES (2, 'v')", db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    states = {n: t["state"] for n, t in server.tables("p", db).items()}
    assert states == {"public.a": "errored", "public.b": "errored", "public.c": "ready"}
    assert_equal(server, db, receiver.state(), ["public.c"])
    in_transactions(stream(receiver))
    drop(server, db)


def test_on_error_stop_goes_on_in_place(server, db, receivers):
    """The pipeline fails at the refused row; when the receiver takes it, nothing was lost or copied again."""
    refuse = {"on": True}
    two_tables(server, db)
    receiver = receivers(lambda r: 400 if refuse["on"] and b"poison" in r.body else None)
    webhook(server, db, receiver, options_={**QUICK, "on_error": "stop"})
    server.wait_for("p", db)
    server.psql("INSERT INTO b VALUES (1, 'v'); INSERT INTO a VALUES (1, 'poison'); INSERT INTO b VALUES (2, 'w')", db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 20, "failed")
    table = server.tables("p", db)["public.a"]
    assert (table["state"], table["recovery"]) == ("errored", "resume")
    wait_until(lambda: not server.backends("etl writer", db), 20, "no writer")
    assert [e["key"]["id"] for e in stream(receiver) if e["event"] == "insert"] == [1], "nothing behind it"
    refuse["on"] = False
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    tables = server.tables("p", db)
    assert {t["generation"] for t in tables.values()} == {1}
    assert tables["public.a"]["error"] is None
    drop(server, db)


def test_parked_rows_are_skipped_and_a_resync_brings_them(server, db, receivers):
    """Changes of a parked table go nowhere, others go on; resync_table() makes it whole."""
    refuse = {"on": True}
    two_tables(server, db)
    receiver = receivers(lambda r: 400 if refuse["on"] and b"poison" in r.body else None)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (0, 'poison')", db)
    wait_until(lambda: server.tables("p", db)["public.a"]["state"] == "errored", 20, "parked")
    server.psql("INSERT INTO a SELECT g, 'x' FROM generate_series(1, 50) g;"
                "INSERT INTO b SELECT g, 'x' FROM generate_series(1, 50) g", db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert not [e for e in stream(receiver) if e["event"] == "insert" and e["table"]["name"] == "a"]
    refuse["on"] = False
    server.sql("SELECT etl.resync_table('p', 'a')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    assert server.tables("p", db)["public.a"]["generation"] == 2
    drop(server, db)


# --- retries ---


def test_bodies_of_retries_are_the_same(server, db, receivers):
    """However often and with whatever answers: one id, one body; all others wait in order behind it."""
    answers = [503, 429, 500, 408, 502, 503]
    seen = defaultdict(list)
    left = defaultdict(lambda: list(answers))

    def answer(request):
        if b'"ongoing_replication"' not in request.body:
            return None
        key = request.headers["webhook-id"]
        seen[key].append(request.body)
        return left[key].pop(0) if left[key] else None

    two_tables(server, db)
    receiver = receivers(answer)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    for i in range(3):
        server.psql(f"INSERT INTO a SELECT g, 'v' FROM generate_series({i * 100}, {i * 100 + 20}) g", db)
    server.wait_for("p", db)
    assert all(len(bodies) == len(answers) + 1 and len(set(bodies)) == 1 for bodies in seen.values())
    in_transactions(stream(receiver))
    assert_equal(server, db, receiver.state(), ["public.a"])
    status = server.status("p", db)
    assert status["retries"] >= len(answers) and status["healthy"] and status["state"] == "replicating"
    drop(server, db)


def test_a_receiver_that_is_away_for_a_while(server, db, receivers):
    """Nothing is lost, nobody is parked, and the status says what is going on."""
    away = {"on": False}
    Workload.create(server, db, rows=400)
    receiver = receivers(lambda r: 503 if away["on"] else None)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    with Workload(server, db) as load:
        away["on"] = True
        wait_until(lambda: server.status("p", db)["state"] == "retrying", 20, "retrying")
        status = server.status("p", db)
        assert "503" in status["last_error"] and status["next_retry_time"] is not None
        done = load.transactions
        wait_until(lambda: load.transactions > done + 100, 60, "the load goes on")
        away["on"] = False
        wait_until(lambda: server.status("p", db)["state"] == "replicating", 20, "replicating")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), NAMES)
    assert {t["state"] for t in server.tables("p", db).values()} == {"ready"}
    drop(server, db)


# --- batches ---


def test_batches_close_by_number_and_by_size(server, db, receivers):
    two_tables(server, db)
    receiver = receivers()
    webhook(server, db, receiver, options_={"max_batch_events": 20, "max_batch_size": "32kB"})
    server.wait_for("p", db)
    server.psql("INSERT INTO a SELECT g, 'v' FROM generate_series(1, 300) g", db)
    server.psql("INSERT INTO b SELECT g, repeat('x', 5000) FROM generate_series(1, 60) g", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    assert max(len(r.events()) for r in receiver.delivered()) <= 20
    assert max(len(r.body) for r in receiver.delivered()) < 40 * 1024
    in_transactions(stream(receiver))
    drop(server, db)


def test_a_batch_is_held_for_its_age_and_not_for_wait_for(server, db, receivers):
    """max_batch_delay collects; wait_for() does not wait for it."""
    two_tables(server, db)
    receiver = receivers()
    webhook(server, db, receiver, options_={"max_batch_delay": "30s"})
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (1, 'v'); INSERT INTO a VALUES (2, 'v'); INSERT INTO b VALUES (1, 'v')", db)
    start = time.monotonic()
    server.wait_for("p", db)
    assert time.monotonic() - start < 10
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    server.sql("SELECT etl.alter_pipeline('p', '{\"max_batch_delay\": \"300ms\"}')", db=db)
    server.wait_for("p", db)
    before = receiver.count
    for i in range(10, 16):
        server.psql(f"INSERT INTO a VALUES ({i}, 'v')", db)
    wait_until(lambda: len([e for e in stream(receiver) if e["event"] == "insert"]) == 9, 10, "delivered by age")
    assert receiver.count - before < 6
    drop(server, db)


def test_a_commit_is_delivered_at_once(server, db, receivers):
    """Commit to complete request: 10 ms for half of them (a generous bound for the rest)."""
    two_tables(server, db)
    times = {}
    arrived = threading.Event()

    def answer(request):
        now = time.monotonic()
        for n in re.findall(rb'"key":\{"id":(\d+)\}', request.body):
            times[int(n)] = now
        arrived.set()

    receiver = receivers(answer)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    waits = []
    with server.connect(db) as c:
        for i in range(100):
            arrived.clear()
            start = time.monotonic()
            c.execute("INSERT INTO a VALUES (%s, 'v')", (i,))
            wait_until(lambda: i in times, 10, "delivered", interval=0.001)
            waits.append(times[i] - start)
    print(f"median {statistics.median(waits) * 1000:.1f} ms, worst {max(waits) * 1000:.1f} ms")
    assert statistics.median(waits) < 0.05
    drop(server, db)


def test_a_row_larger_than_the_queue(server, db, receivers):
    """It travels in pieces; what is around it keeps its order."""
    two_tables(server, db)
    receiver = receivers()
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("BEGIN; INSERT INTO b VALUES (1, 'before'); INSERT INTO a SELECT 1, repeat(md5('x'), 1000000);"
                "INSERT INTO b VALUES (2, 'after'); COMMIT; INSERT INTO a VALUES (2, 'small')", db)
    server.wait_for("p", db, timeout=120)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    in_transactions(stream(receiver))
    drop(server, db)


def test_unchanged_toast_from_an_earlier_row_on_its_way(server, db, receivers):
    """While earlier rows of the same key wait, later ones are whole; a value that nobody has any more is absent."""
    hold = threading.Event()
    hold.set()

    def answer(request):
        if b'"ongoing_replication"' in request.body:
            hold.wait(30)

    server.psql("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
                "CREATE PUBLICATION pub FOR TABLE t; INSERT INTO t VALUES (2, 0, repeat('old', 2000))", db)
    receiver = receivers(answer)
    webhook(server, db, receiver)
    server.wait_for("p", db)

    def story(id):
        """True when the later rows came while the first one was under way: a matter of milliseconds."""
        seen = len(stream(receiver))
        hold.clear()
        server.psql(f"INSERT INTO t VALUES ({id}, 0, repeat('new', 2000))", db)
        for n in range(1, 4):
            server.psql(f"UPDATE t SET n = {n} WHERE id = {id}; UPDATE t SET n = n + 1 WHERE id = 2", db)
        server.psql(f"DELETE FROM t WHERE id = {id}; INSERT INTO t VALUES ({id}, 9, 'short');"
                    f"UPDATE t SET n = 10 WHERE id = {id}", db)
        end = server.value("SELECT pg_current_wal_lsn()", db=db)
        wait_until(lambda: server.value("SELECT decoded_lsn >= %s FROM etl.pipeline_status", (end,), db), 30, "decoded")
        hold.set()
        server.wait_for("p", db)
        assert_equal(server, db, receiver.state(), ["public.t"])
        updates = [e for e in stream(receiver)[seen:] if e["event"] == "update"]
        first = [e for e in updates if e["key"]["id"] == id]
        assert [e["updated_table_row"]["n"] for e in first] == [1, 2, 3, 10]
        assert first[3]["updated_table_row"]["big"] == "short"
        for e in updates:
            whole = "big" in e["updated_table_row"]
            assert e["missing_columns"] == ([] if whole else ["big"])
            assert e["updated_table_row_kind"] == ("full" if whole else "partial")
            if e["key"]["id"] == 2:
                assert e["updated_table_row"]["big"] == "old" * 2000
            else:
                assert not whole or e["updated_table_row"]["big"] in ("new" * 2000, "short")
        return all("big" in e["updated_table_row"] for e in first)

    ids = iter(range(10, 40))
    wait_until(lambda: story(next(ids)), 60, "rows completed")
    drop(server, db)


# --- users' locks ---


LOCKS = [
    "SELECT etl.resync_table('p', 'a')",
    "SELECT etl.stop_pipeline('p')",
    "SELECT etl.alter_pipeline('p', '{\"max_batch_events\": 7}')",
    "LOCK TABLE etl.table_state",
    "LOCK TABLE etl.pipeline_state",
    "LOCK TABLE etl.schema_history, etl.rule_history, etl.error_entry, etl.table_intent",
    "LOCK TABLE etl.pipeline, etl.pipeline_intent, etl.table_option",
    "SELECT 1 FROM etl.table_state FOR UPDATE",
]


@pytest.mark.parametrize("statement", LOCKS)
def test_an_open_transaction_of_a_user_stops_nothing(server, db, receivers, statement):
    """Whatever a session holds of our tables: changes go on, also past a table that is parked meanwhile."""
    server.psql("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
                "CREATE TABLE c (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE a, b, c", db)
    receiver = receivers(lambda r: 400 if b"poison" in r.body else None)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    pids = server.backends("etl writer", db) + server.backends("etl apply", db)
    with server.connect(db, autocommit=False) as c:
        c.execute(statement)
        server.psql("INSERT INTO a VALUES (1, 'v'); INSERT INTO c VALUES (1, 'poison');", db)
        for i in range(5):
            server.psql(f"INSERT INTO b VALUES ({i}, 'v'); ALTER TABLE b ADD COLUMN c{i} int", db)
        got = lambda: sorted(e["key"]["id"] for e in stream(receiver)
                             if e["event"] == "insert" and e["table"]["name"] == "b")
        wait_until(lambda: got() == [0, 1, 2, 3, 4], 20, "delivered while the lock is held")
        c.rollback()
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert server.backends("etl writer", db) + server.backends("etl apply", db) == pids, "nobody died"
    states = {n: t["state"] for n, t in server.tables("p", db).items()}
    assert states == {"public.a": "ready", "public.b": "ready", "public.c": "errored"}
    wait_until(lambda: server.status("p", db)["waiting_for"] is None, 10, "waits for nothing")
    drop(server, db)


# --- changes of the definition ---


def test_options_change_while_it_runs(server, db, receivers):
    """Batch sizes, delays, names, formats of values: taken while a load goes on, and nothing is lost."""
    Workload.create(server, db, rows=400)
    receiver = receivers()
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    changes = [
        {"max_batch_events": 3}, {"max_batch_size": "64kB"}, {"max_batch_delay": "50ms"},
        {"max_batch_events": None, "max_batch_delay": None}, {"queue_size": "32MB"},
        {"retry_delay": "10ms"}, {"max_sync_workers": 1},
    ]
    with Workload(server, db) as load:
        for change in changes:
            done = load.transactions
            server.sql("SELECT etl.alter_pipeline('p', %s::jsonb)", (json.dumps(change),), db)
            server.value("SELECT etl.wait_for('p', allow_parked => true, timeout => '30s')", db=db)
            wait_until(lambda: load.transactions > done + 20, 30, "the load goes on")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), NAMES)
    drop(server, db)


def test_renamed_while_it_runs(server, db, receivers):
    two_tables(server, db)
    receiver = receivers()
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (1, 'v')", db)
    server.wait_for("p", db)
    server.sql("SELECT etl.rename_pipeline('p', 'q')", db=db)
    server.wait_for("q", db)
    server.psql("INSERT INTO a VALUES (2, 'v')", db)
    server.wait_for("q", db)
    names = {e["key"]["id"]: e["pipeline"] for e in receiver.events() if e["event"] == "insert"}
    assert names == {1: "p", 2: "q"}
    assert len({e["source"] for e in receiver.events()}) == 1
    drop(server, db, "q")


def test_resync_of_everything_under_load(server, db, receivers):
    """resync_pipeline(): new generations beside the old ones, which go on until then."""
    Workload.create(server, db, rows=400)
    receiver = receivers()
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    with Workload(server, db) as load:
        for _ in range(2):
            server.sql("SELECT etl.resync_pipeline('p')", db=db)
            server.wait_for("p", db, timeout=120)
            done = load.transactions
            wait_until(lambda: load.transactions > done + 20, 30, "the load goes on")
    server.wait_for("p", db)
    # a generation is an attempt, and one that meets a TRUNCATE begins again: what counts is the copies that were finished
    tables = server.tables("p", db).values()
    assert all(t["generation"] >= 3 for t in tables)
    events = receiver.events()
    ended = {(e["table"]["oid"], e["copy"]) for e in events if e["event"] == "copy_end"}
    finished = {(e["table"]["name"], e["copy"], e["reason"]) for e in events
                if e["event"] == "copy_begin" and (e["table"]["oid"], e["copy"]) in ended}
    for t in tables:
        assert sorted(reason for name, _, reason in finished if name == t["table_name"]) == ["initial", "resync", "resync"]
    assert_equal(server, db, receiver.state(), NAMES)
    drop(server, db)


def test_a_request_during_a_copy_makes_another_one(server, db, receivers):
    """The counter that a copy was started for counts, not the newest one."""
    hold = threading.Event()
    hold.set()
    two_tables(server, db)
    server.psql("INSERT INTO a SELECT g, 'v' FROM generate_series(1, 10) g", db)
    receiver = receivers(lambda r: hold.wait(30) and None)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    hold.clear()
    server.sql("SELECT etl.resync_table('p', 'a')", db=db)
    wait_until(lambda: server.tables("p", db)["public.a"]["generation"] == 2, 20, "the copy runs")
    server.sql("SELECT etl.resync_table('p', 'a')", db=db)
    hold.set()
    server.wait_for("p", db)
    assert server.tables("p", db)["public.a"]["generation"] == 3
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    drop(server, db)


# --- the slot ---


@pytest.mark.parametrize("answer", ["error", "resync"])
def test_a_lost_slot(server, db, receivers, answer):
    """Never a silent restart from now: failed, or everything again under a higher epoch."""
    two_tables(server, db)
    receiver = receivers()
    webhook(server, db, receiver, options_={**QUICK, "on_slot_loss": answer})
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (1, 'v')", db)
    server.wait_for("p", db)
    slot = server.status("p", db)["slot_name"]
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 20, "stopped")
    wait_until(lambda: server.value("SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s", (slot,)),
               20, "slot released")
    server.psql("INSERT INTO a VALUES (2, 'v'); DELETE FROM a WHERE id = 1", db)
    server.sql("SELECT pg_drop_replication_slot(%s)", (slot,))
    server.psql("INSERT INTO a VALUES (3, 'v')", db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    if answer == "error":
        wait_until(lambda: server.status("p", db)["state"] == "failed", 20, "failed")
        assert "slot" in server.status("p", db)["problem"]
        server.sql("SELECT etl.resync_pipeline('p')", db=db)
        server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    server.psql("UPDATE a SET v = 'w'", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    assert {e["epoch"] for e in receiver.events()} == {0, 1}
    assert {e["copy"] for e in receiver.events() if e["event"] == "copy_begin" and e["epoch"] == 1} == {2}
    drop(server, db)


# --- deaths ---


@pytest.fixture
def fail(server):
    """Sets etl.failpoint; cleared behind the test."""
    yield server.failpoint
    server.failpoint("")


@pytest.mark.parametrize("point", [
    "apply_slot_made", "writer_slot_created", "writer_before_store", "writer_stored", "batch_send", "batch_durable",
])
@pytest.mark.parametrize("action", ["error:3", "fatal:2"])
def test_the_pair_dies(server, db, receivers, fail, point, action):
    """At any of these points, also several times in a row: nothing is lost, and it goes on by itself."""
    # one batch holds them all: an ERROR while a batch is sent in the middle of a copy would park that table
    Workload.create(server, db, rows=200)
    receiver = receivers()
    since = server.log_size()
    fail(f"{point}={action}")
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=QUICK)
        wait_until(lambda: f'failpoint "{point}"' in server.log(since), 30, "failpoint reached")
        done = load.transactions
        wait_until(lambda: load.transactions > done + 100, 60, "the load goes on")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), NAMES)
    assert {t["state"] for t in server.tables("p", db).values()} == {"ready"}
    drop(server, db)


@pytest.mark.parametrize("point", ["batch_send", "batch_durable"])
def test_an_error_while_rows_are_sent_parks_no_table(server, db, receivers, fail, point):
    """The sender works inside the copy's query; its ERROR is nothing about the table."""
    server.psql("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE a;"
                "INSERT INTO a SELECT g, repeat('v', 300) FROM generate_series(1, 3000) g", db)
    receiver = receivers()
    fail(f"{point}=error:3")
    webhook(server, db, receiver, options_={**QUICK, "max_batch_events": "10"})
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a"])
    assert server.value("SELECT count(*) FROM etl.error_log WHERE message LIKE 'failpoint%'", db=db) == 3
    drop(server, db)


@pytest.mark.parametrize("rows", [
    "BEGIN; INSERT INTO b VALUES (1, 'v'); INSERT INTO a VALUES (1, 'poison'); INSERT INTO b VALUES (2, 'v'); COMMIT; INSERT INTO b VALUES (3, 'w')",
    "INSERT INTO a VALUES (1, 'poison')"])
def test_the_pair_dies_while_a_table_is_parked(server, db, receivers, fail, rows):
    """Parking that was not stored yet is found out again, and costs no other table anything."""
    two_tables(server, db)
    receiver = receivers(lambda r: 400 if b"poison" in r.body else None)
    # no event of its transaction is under way when the row has been refused
    webhook(server, db, receiver, options_={**QUICK, "events": ["insert"]})
    server.wait_for("p", db)
    # nothing else is to be stored any more, states and shapes
    server.psql("INSERT INTO a VALUES (0, 'v'); INSERT INTO b VALUES (0, 'v')", db)
    server.wait_for("p", db)
    wait_until(lambda: server.value("SELECT count(*) FROM etl.table_state WHERE state = 'ready'", db=db) == 2, what="both are stored")
    fail("writer_before_store=error:1")
    writer = server.status("p", db)["writer_pid"]
    server.psql(rows, db)
    wait_until(lambda: server.status("p", db)["writer_pid"] not in (None, writer), 20, "a new writer")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert {n: t["state"] for n, t in server.tables("p", db).items()} == {"public.a": "errored", "public.b": "ready"}
    assert_equal(server, db, receiver.state(), ["public.b"])
    drop(server, db)


# --- figures ---


def test_figures_survive(server, db, receivers):
    """Counters of table_status and pipeline_status: right, and still there after a restart of the pair."""
    two_tables(server, db)
    server.psql("INSERT INTO a SELECT g, 'v' FROM generate_series(1, 10) g", db)
    receiver = receivers()
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    server.psql("INSERT INTO a SELECT g, 'v' FROM generate_series(11, 15) g; UPDATE a SET v = 'w' WHERE id < 4;"
                "UPDATE a SET id = 100 WHERE id = 1; DELETE FROM a WHERE id = 2; TRUNCATE b", db)
    server.wait_for("p", db)
    figures = lambda: {n: [t[k] for k in ("rows_copied", "inserts", "updates", "deletes", "truncates")]
                       for n, t in server.tables("p", db).items()}
    expected = {"public.a": [10, 5, 4, 1, 0], "public.b": [0, 0, 0, 0, 1]}
    assert figures() == expected
    before = server.status("p", db)
    for pid in server.backends("etl writer", db):
        server.sql("SELECT pg_terminate_backend(%s)", (pid,))
    wait_until(lambda: server.status("p", db)["writer_pid"] not in (None, before["writer_pid"]), 20, "a new writer")
    server.wait_for("p", db)
    assert figures() == expected
    assert server.status("p", db)["rows_copied"] == before["rows_copied"] == 10
    assert server.status("p", db)["transactions"] >= before["transactions"] == 5
    drop(server, db)


def test_many_tables_of_a_kind_without_events(server, db):
    """One lane a table: all of them move, more than may be under way at once."""
    names = [f"t{i}" for i in range(60)]
    server.psql("".join(f"CREATE TABLE {n} (id int PRIMARY KEY);" for n in names)
                + f"CREATE PUBLICATION pub FOR TABLE {', '.join(names)}", db)
    null(server, db)
    server.wait_for("p", db)
    server.psql("BEGIN;" + "".join(f"INSERT INTO {n} SELECT generate_series(1, 50);" for n in names) + "COMMIT;", db)
    server.wait_for("p", db)
    tables = server.tables("p", db)
    assert {t["inserts"] for t in tables.values()} == {50} and len(tables) == 60
    drop(server, db)
