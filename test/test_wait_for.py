"""etl.wait_for(): when it says yes, no, and why not."""

import threading
import time

import psycopg
import pytest
from harness import wait_until
from harness.pipeline import drop, null, webhook


def setup(server, db):
    server.psql("""CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);
                CREATE PUBLICATION pub FOR TABLE a, b""", db)


def asked(server, db, query):
    """Answer of a query, the notices that came with it, and how long it took."""
    with server.connect(db) as c:
        notices = []
        c.add_notice_handler(lambda n: notices.append((n.severity, n.message_primary)))
        start = time.monotonic()
        answer = c.execute(query).fetchone()[0]
        return answer, notices, time.monotonic() - start


def someone_waits(server, db):
    wait_until(lambda: server.value("SELECT count(*) FROM pg_stat_activity WHERE query ~ '^SELECT etl.wait_for'"
                                    " AND state = 'active'", db=db) == 1, what="a session that waits")


def poison(request):
    return 422 if b"poison" in request.body else 200


def test_an_idle_server_answers_every_time(server, db):
    """The insert position lies behind the last record at a page boundary: nobody may wait for that."""
    setup(server, db)
    null(server, db)
    server.wait_for("p", db)
    slow = 0
    with server.connect(db) as c:
        for _ in range(300):
            start = time.monotonic()
            assert c.execute("SELECT etl.wait_for('p', timeout => '20 s')").fetchone()[0]
            slow += time.monotonic() - start > 2
    assert slow == 0
    drop(server, db)


def test_waiting_for_what_no_wal_has_yet_hurries_nobody(server, db, receiver):
    setup(server, db)
    webhook(server, db, receiver, options_={"max_batch_delay": "1h"})
    server.wait_for("p", db)
    assert asked(server, db, "SELECT etl.wait_for('p', 'FFFFFFFF/FFFFFFFF', '300ms')")[0] is False
    server.wait_for("p", db)
    server.sql("INSERT INTO a VALUES (1, 'x')", db=db)
    # it waits for the age of its batch, as it should
    wait_until(lambda: server.value("SELECT oldest_undelivered IS NOT NULL FROM etl.shared_pipelines()", db=db), what="the writer has it")
    assert [e for e in receiver.events() if e["event"] == "insert"] == []
    server.wait_for("p", db)
    assert [e["key"] for e in receiver.events() if e["event"] == "insert"] == [{"id": 1}]
    drop(server, db)


def test_a_row_is_there_when_it_says_yes(server, db, receiver):
    setup(server, db)
    webhook(server, db, receiver, options_={"max_batch_delay": "1h"})
    server.wait_for("p", db)
    for i in range(50):
        server.sql(f"INSERT INTO a VALUES ({i}, 'x')", db=db)
        server.wait_for("p", db)
        assert {"id": i} in [e.get("key") for e in receiver.events()]
    drop(server, db)


def test_parked_tables_are_named(server, db, receivers):
    setup(server, db)
    receiver = receivers(poison)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.sql("INSERT INTO a VALUES (1, 'poison')", db=db)
    wait_until(lambda: server.tables("p", db)["public.a"]["state"] == "errored", what="parked")
    answer, notices, took = asked(server, db, "SELECT etl.wait_for('p')")
    assert answer is False and took < 5
    assert notices == [("WARNING", 'pipeline "p" has parked tables: public.a')]
    answer, notices, took = asked(server, db, "SELECT etl.wait_for('p', allow_parked => true)")
    assert (answer, notices) == (True, [])

    # the retry counts at once: no answer about the state before it
    server.psql("UPDATE a SET v = 'well'; SELECT etl.retry_table('p', 'a')", db)
    answer, notices, took = asked(server, db, "SELECT etl.wait_for('p')")
    assert (answer, notices) == (True, [])
    assert server.tables("p", db)["public.a"]["state"] == "ready"
    drop(server, db)


def test_a_table_of_a_moment_ago_counts(server, db, receiver):
    setup(server, db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    for i in range(10):
        server.psql(f"""CREATE TABLE c{i} (id int PRIMARY KEY); INSERT INTO c{i} VALUES ({i});
                    ALTER PUBLICATION pub ADD TABLE c{i}""", db)
        server.wait_for("p", db)
        assert server.tables("p", db)[f"public.c{i}"]["state"] == "ready"
        server.sql(f"SELECT etl.resync_table('p', 'c{i}')", db=db)
        server.wait_for("p", db)
        assert server.tables("p", db)[f"public.c{i}"]["generation"] == 2
    drop(server, db)


def test_a_destination_that_is_down_is_a_no_at_the_timeout(server, db):
    setup(server, db)
    webhook(server, db, "http://127.0.0.1:1/", options_={"stall_timeout": "1s"})
    answer, notices, took = asked(server, db, "SELECT etl.wait_for('p', timeout => '1500 ms')")
    assert answer is False and 1.4 < took < 3
    assert notices == [("NOTICE", 'pipeline "p" is retrying: could not connect to "127.0.0.1:1": Connection refused')]
    status = server.status("p", db)
    assert (status["state"], status["healthy"]) == ("retrying", False)
    assert "Connection refused" in status["problem"] and status["next_retry_time"] is not None
    assert status["lag"].total_seconds() > 1
    drop(server, db)


def test_a_corrected_address_is_taken_while_retrying(server, db, receiver):
    setup(server, db)
    server.sql("INSERT INTO a VALUES (1, 'x')", db=db)
    webhook(server, db, "http://127.0.0.1:1/", options_={"retry_delay": "10min", "max_retry_delay": "10min"})
    wait_until(lambda: server.status("p", db)["state"] == "retrying", what="retrying")
    server.sql(f"ALTER SERVER s_p OPTIONS (SET url '{receiver.url}')", db=db)
    server.wait_for("p", db, timeout=20)
    assert [e["table_row"] for e in receiver.events() if e["event"] == "insert"] == [{"id": 1, "v": "x"}]
    drop(server, db)


def test_a_pipeline_that_failed_is_a_no_with_its_reason(server, db):
    setup(server, db)
    server.psql("""CREATE ROLE wait_owner REPLICATION; CREATE SERVER s FOREIGN DATA WRAPPER etl_null;
                GRANT USAGE ON FOREIGN SERVER s TO wait_owner;
                GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO wait_owner; GRANT SELECT ON a, b TO wait_owner;
                SET ROLE wait_owner; SELECT etl.create_pipeline('p', 'pub', 's'); SELECT etl.start_pipeline('p')""", db)
    server.wait_for("p", db)
    server.psql("REVOKE USAGE ON FOREIGN SERVER s FROM wait_owner; SELECT etl.alter_pipeline('p', '{}')", db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", what="failed")
    answer, notices, took = asked(server, db, "SELECT etl.wait_for('p')")
    assert answer is False and took < 5
    assert notices == [("WARNING", 'pipeline "p" has failed: permission denied for foreign server s')]
    # altering a pipeline that has failed makes it look again
    assert server.value("SELECT count(*) FROM etl.error_log", db=db) in (1, 2)
    # who repairs it and starts it needs not wait for it to be seen
    server.psql("GRANT USAGE ON FOREIGN SERVER s TO wait_owner; SELECT etl.start_pipeline('p')", db)
    answer, notices, took = asked(server, db, "SELECT etl.wait_for('p')")
    assert (answer, notices) == (True, [])
    drop(server, db)
    server.psql("DROP OWNED BY wait_owner; DROP ROLE wait_owner", db)


def test_stopping_ends_the_wait(server, db):
    setup(server, db)
    webhook(server, db, "http://127.0.0.1:1/")
    wait_until(lambda: server.status("p", db)["state"] == "retrying", what="retrying")
    caught = []

    def waiting():
        with server.connect(db) as c:
            try:
                c.execute("SELECT etl.wait_for('p')")
            except psycopg.Error as e:
                caught.append(e.sqlstate)

    thread = threading.Thread(target=waiting)
    thread.start()
    someone_waits(server, db)
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    thread.join(10)
    assert caught == ["55000"]
    drop(server, db)


@pytest.mark.parametrize("how", ["pg_cancel_backend", "statement_timeout"])
def test_waiting_can_be_cancelled(server, db, how):
    setup(server, db)
    webhook(server, db, "http://127.0.0.1:1/")
    with server.connect(db) as c:
        pid = c.info.backend_pid
        if how == "statement_timeout":
            c.execute("SET statement_timeout = '300ms'")
        else:
            def cancel():
                someone_waits(server, db)
                server.sql(f"SELECT pg_cancel_backend({pid})", db=db)
            threading.Thread(target=cancel).start()
        start = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled):
            c.execute("SELECT etl.wait_for('p', timeout => '1 hour')")
        assert time.monotonic() - start < 3
    drop(server, db)
