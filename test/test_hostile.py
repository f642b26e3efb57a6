"""What users, settings and copies of files do to a pipeline that means well."""

import os
import signal
import subprocess
import threading

import psycopg
import pytest
from harness import State, Timeout, assert_equal, wait_until
from harness.pipeline import drop, webhook

QUICK = {"retry_delay": "50ms", "max_retry_delay": "300ms"}


def table(server, db, rows=200):
    server.psql("CREATE TABLE t (id int PRIMARY KEY, v text);"
                f"INSERT INTO t SELECT g, 'a' FROM generate_series(1, {rows}) g; CREATE PUBLICATION pub FOR TABLE t", db)


def errored(server, db, name="public.t"):
    wait_until(lambda: server.tables("p", db)[name]["state"] == "errored", 20, "parked")
    return server.tables("p", db)[name]


def sent(receiver, text):
    with receiver.lock:
        return any(text in r.body for r in receiver.requests)


# --- rights ---


def owned(server, db, receiver):
    """A pipeline of a role of its own, which may read t and nothing else."""
    role = f"owner_{db}"
    table(server, db)
    server.psql(f"""CREATE ROLE {role} LOGIN REPLICATION; GRANT SELECT ON t TO {role};
                GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO {role};
                CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url '{receiver.url}');
                GRANT USAGE ON FOREIGN SERVER s TO {role}; SET ROLE {role};
                SELECT etl.create_pipeline('p', 'pub', 's'); SELECT etl.start_pipeline('p')""", db)
    server.wait_for("p", db)
    return role


@pytest.mark.parametrize("take, give", [
    ("REVOKE SELECT ON t FROM {0}", "GRANT SELECT ON t TO {0}"),
    ("REVOKE SELECT ON t FROM {0}; GRANT SELECT (id) ON t TO {0}", "GRANT SELECT (v) ON t TO {0}"),
    ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "ALTER ROLE {0} BYPASSRLS"),
])
def test_owner_loses_a_right(server, db, receiver, take, give):
    """Nothing is sent from there on, the table is set aside, and comes back as a whole."""
    role = owned(server, db, receiver)
    server.sql("UPDATE t SET v = 'before'", db=db)
    server.wait_for("p", db)
    server.sql(take.format(role), db=db)
    server.sql("INSERT INTO t VALUES (1001, 'not for you')", db=db)
    row = errored(server, db)
    assert row["sqlstate"] == "42501" and row["hint"]
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert sent(receiver, b"before") and not sent(receiver, b"not for you")
    server.sql(give.format(role), db=db)
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    drop(server, db)
    server.psql(f"DROP OWNED BY {role}; DROP ROLE {role}", db)


def test_settings_of_the_database(server, db, receiver):
    """What ALTER DATABASE ... SET says of sessions does not count for workers."""
    table(server, db)
    server.psql("ALTER TABLE t ADD d date DEFAULT '2020-02-01', ADD i interval DEFAULT '1 day 02:00', ADD b bytea DEFAULT 'x',"
                " ADD f float8 DEFAULT 0.1, ADD z timestamptz DEFAULT '2020-01-01 00:00+00'", db)
    webhook(server, db, receiver, options_=QUICK, start=False)
    for setting in ("DateStyle TO SQL, DMY", "IntervalStyle TO sql_standard", "TimeZone TO 'Asia/Kolkata'",
                    "bytea_output TO escape", "extra_float_digits TO -15", "synchronous_commit TO off",
                    "default_transaction_read_only TO on", "default_transaction_isolation TO serializable",
                    "default_transaction_deferrable TO on", "search_path TO ''", "statement_timeout TO 1",
                    "lock_timeout TO 1", "idle_in_transaction_session_timeout TO 1",
                    "session_replication_role TO replica", "standard_conforming_strings TO off",
                    "role TO pg_monitor", "client_encoding TO SQL_ASCII", "quote_all_identifiers TO on"):
        server.sql(f"ALTER DATABASE {db} SET {setting}")
    server.close(db)
    mine = ("-c statement_timeout=0 -c lock_timeout=0 -c default_transaction_read_only=off -c role=none"
            " -c default_transaction_isolation=read\\ committed -c session_replication_role=origin"
            " -c search_path=public -c idle_in_transaction_session_timeout=0 -c client_encoding=UTF8")
    with psycopg.connect(server.dsn(db), autocommit=True, options=mine) as c:
        c.execute("SELECT etl.start_pipeline('p')")
        assert c.execute("SELECT etl.wait_for('p')").fetchone()[0]
        c.execute("UPDATE t SET v = 'b'")
        c.execute("SELECT etl.resync_table('p', 't')")
        assert c.execute("SELECT etl.wait_for('p')").fetchone()[0]
    server.sql(f"ALTER DATABASE {db} RESET ALL")
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_publication_is_gone_and_back(server, db, receiver):
    table(server, db)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    server.psql("DROP PUBLICATION pub; ALTER TABLE t ALTER v SET DEFAULT 'x'; INSERT INTO t VALUES (1001, 'gap')", db)
    status = server.status("p", db)
    assert not status["healthy"] and status["problem"] == "the publication does not exist any more"
    server.sql("DELETE FROM t WHERE id = 7", db=db)
    server.sql("CREATE PUBLICATION pub FOR TABLE t; INSERT INTO t VALUES (1002, 'after')", db=db)
    server.wait_for("p", db)
    assert server.status("p", db)["healthy"]
    assert_equal(server, db, receiver.state(), ["public.t"])


# --- truncates ---


def test_truncate_of_tables_that_different_processes_deliver(server, db, receivers):
    """One statement, several tables, one of which is being copied again: no table's part is lost."""
    server.psql("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
                "INSERT INTO a SELECT g, 'a' FROM generate_series(1, 3000) g;"
                "INSERT INTO b SELECT g, 'b' FROM generate_series(1, 3000) g;"
                "CREATE PUBLICATION pub FOR TABLE a, b", db)
    receiver = receivers()
    webhook(server, db, receiver, options_=dict(QUICK, max_batch_events=50))
    server.wait_for("p", db)
    for round_ in range(8):
        server.sql("SELECT etl.resync_table('p', 'a')", db=db)
        if round_ % 2:
            wait_until(lambda: server.tables("p", db)["public.a"]["generation"] > round_ + 1, 20, "the copy has begun")
        server.psql(f"TRUNCATE a, b; INSERT INTO a SELECT g, 'n{round_}' FROM generate_series(1, 2000) g;"
                    f"INSERT INTO b VALUES ({round_}, 'n')", db)
        server.wait_for("p", db)
        assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    truncates = [e for e in receiver.events() if e["event"] == "truncate"]
    assert len({e["id"] for e in truncates}) == len(truncates)
    b = [e for e in truncates if "b" in [t["name"] for t in e["truncated_tables"]]]
    assert len(b) == 8


# --- stops that are seen late ---


def test_stopped_started_and_waited_for(server, db, receiver):
    table(server, db)
    webhook(server, db, receiver, options_=QUICK)
    with server.connect(db) as c:
        for i in range(15):
            c.execute("SELECT etl.stop_pipeline('p')")
            c.execute("SELECT etl.start_pipeline('p')")
            assert c.execute("SELECT etl.wait_for('p')").fetchone()[0]
    assert_equal(server, db, receiver.state(), ["public.t"])


# --- copies of files ---


def test_copy_of_the_servers_files(fresh_server, receiver):
    """Started beside the original it delivers nothing, until a user lets it take over."""
    server = fresh_server()
    db = server.create_database("d")
    table(server, db)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    server.stop()
    clone = fresh_server(conf=server.conf, start=False)
    subprocess.run(["cp", "-a", str(server.data), str(clone.data)], check=True)
    server.start()
    clone.start()
    clone.sql("INSERT INTO t VALUES (7777, 'of the clone')", db=db)
    wait_until(lambda: clone.status("p", db)["state"] == "failed", 20, "the clone knows what it is")
    server.sql("INSERT INTO t VALUES (1001, 'of the original')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert not sent(receiver, b"of the clone")
    clone.sql("SELECT etl.resync_pipeline('p')", db=db)
    clone.sql("SELECT etl.start_pipeline('p')", db=db)
    clone.wait_for("p", db)
    assert sent(receiver, b"of the clone")
    wait_until(lambda: clone.value("SELECT count(*) FROM pg_replication_slots") == 1, 20, "one slot")


# --- odd tables ---


@pytest.mark.parametrize("ddl, changes", [
    ("CREATE TABLE o (); ALTER TABLE o REPLICA IDENTITY FULL; INSERT INTO o DEFAULT VALUES",
     ["INSERT INTO o DEFAULT VALUES", "DELETE FROM o WHERE ctid = (SELECT min(ctid) FROM o)"]),
    ("CREATE TABLE o (a int GENERATED ALWAYS AS (1) STORED); ALTER TABLE o REPLICA IDENTITY FULL;"
     "INSERT INTO o DEFAULT VALUES", ["INSERT INTO o DEFAULT VALUES", "UPDATE o SET a = DEFAULT"]),
    ("CREATE TABLE o (id int PRIMARY KEY, gone int, v text); INSERT INTO o VALUES (1, 2, 'x'); ALTER TABLE o DROP gone",
     ["UPDATE o SET v = 'y'", "ALTER TABLE o DROP v", "INSERT INTO o VALUES (2)", "ALTER TABLE o ADD v int DEFAULT 7"]),
    ("CREATE TYPE c AS (a int, b text[]); CREATE DOMAIN dc AS c; CREATE DOMAIN da AS dc[];"
     "CREATE TABLE o (id int PRIMARY KEY, v da); INSERT INTO o VALUES (1, ARRAY[NULL, ROW(1, '{a,NULL}')::c::dc]::dc[]::da)",
     ["UPDATE o SET id = 2", "DROP TYPE c CASCADE", "INSERT INTO o VALUES (3)"]),
    ("CREATE TABLE o (k text PRIMARY KEY, n int, big text); ALTER TABLE o ALTER k SET STORAGE EXTERNAL,"
     " ALTER big SET STORAGE EXTERNAL; INSERT INTO o VALUES (repeat('k', 2500), 1, repeat('b', 90000))",
     ["UPDATE o SET n = 2", "UPDATE o SET k = k || 'z'", "UPDATE o SET n = 3", "DELETE FROM o"]),
    ("CREATE TABLE o (a int PRIMARY KEY, b text NOT NULL, c int); CREATE UNIQUE INDEX ob ON o (b);"
     "ALTER TABLE o REPLICA IDENTITY USING INDEX ob; INSERT INTO o VALUES (1, 'x', 1), (2, 'y', 1)",
     ["UPDATE o SET b = b || '1'", "UPDATE o SET a = a + 5", "ALTER TABLE o REPLICA IDENTITY DEFAULT", "UPDATE o SET c = 2",
      "ALTER TABLE o REPLICA IDENTITY FULL", "DELETE FROM o WHERE a = 6", "UPDATE o SET a = 9"]),
])
def test_odd_tables(server, db, receiver, ddl, changes):
    server.psql(ddl + "; CREATE PUBLICATION pub FOR TABLE o", db)
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.o"])
    for change in changes:
        server.sql(change, db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.o"])


def test_dropped_and_made_again_during_copies(server, db, receiver):
    server.psql("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a SELECT generate_series(1, 1000);"
                "CREATE PUBLICATION pub FOR ALL TABLES", db)
    webhook(server, db, receiver, options_=QUICK)
    for i in range(12):
        server.psql(f"DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY, c{i} text);"
                    f"INSERT INTO a SELECT g, 'x' FROM generate_series(1, {i * 40}) g; UPDATE a SET c{i} = 'y'", db)
    server.wait_for("p", db)
    oid = server.value("SELECT 'a'::regclass::oid::int", db=db)
    rows = receiver.state().tables[oid].rows()
    assert len(rows) == 440 and all(r["c11"] == "y" for r in rows)


def test_extension_dropped_in_the_middle(server, db, receiver):
    table(server, db, 5000)
    for i in range(4):
        webhook(server, db, receiver, options_=QUICK)
        if i % 2:
            server.wait_for("p", db)
        server.psql(f"UPDATE t SET v = 'r{i}'; DROP EXTENSION etl CASCADE; CREATE EXTENSION etl", db)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = %s"
    wait_until(lambda: server.value(slots, (db,)) == 0, 20, "no slot is left")
    webhook(server, db, receiver, options_=QUICK)
    server.wait_for("p", db)
    # each life is a source of its own: nobody takes a new row for one that was seen
    events = receiver.events()
    last = [e for e in events if e["source"] == events[-1]["source"]]
    assert_equal(server, db, State(last), ["public.t"])


# --- everything dies, again and again ---


def test_terminated_all_the_time(server, db, receiver):
    table(server, db)
    webhook(server, db, receiver, options_=QUICK)
    for i in range(40):
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                   " WHERE backend_type LIKE 'etl%%' AND datname = %s", (db,))
        server.sql("INSERT INTO t VALUES (%s, 'w')", (1000 + i,), db)
    server.wait_for("p", db)
    for i in range(40):
        server.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'etl%'")
        server.reload()
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_secrets_are_not_logged(fresh_server, receiver):
    server = fresh_server(conf={"log_min_messages": "debug5", "log_min_error_statement": "panic"})
    db = server.create_database("d")
    table(server, db)
    key = "VEhJU0lTQVZFUllTRUNSRVRLRVlYWVpYWVpYWVo="
    webhook(server, db, receiver, options_=QUICK, mapping={
        "secret": f"whsec_{key}", "user": "joe", "password": "hunter-2-hunter",
        "headers": '{"x-token": "bearer-of-secrets"}'})
    server.wait_for("p", db)
    receiver.answer = lambda r: 400 if b"VALUE-OF-A-ROW" in r.body else 200
    server.sql("INSERT INTO t VALUES (1001, 'VALUE-OF-A-ROW')", db=db)
    errored(server, db)
    log = [line for line in server.log().splitlines() if "] client backend " not in line]
    assert len(log) > 100
    for text in (key, "THISISAVERYSECRET", "hunter-2", "bearer-of", "VALUE-OF-A-ROW"):
        assert not [line for line in log if text in line], text


def test_generated_key_without_generated_columns(server, db, receiver):
    """The key's columns are replicated in any case: else nothing says which row it is."""
    server.psql("CREATE TABLE h (id int, k int GENERATED ALWAYS AS (id + 1) STORED PRIMARY KEY,"
                " g int GENERATED ALWAYS AS (id + 2) STORED, v int);"
                "INSERT INTO h (id, v) VALUES (1, 1), (2, 2); CREATE PUBLICATION pub FOR TABLE h", db)
    webhook(server, db, receiver, options_=dict(QUICK, generated_columns=False))
    server.wait_for("p", db)
    server.psql("UPDATE h SET v = 3; UPDATE h SET id = 7 WHERE id = 1; DELETE FROM h WHERE id = 2", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.h"], columns=["id", "k", "v"])
    assert [e["key"] for e in receiver.events() if e["event"] == "delete"] == [{"k": 3}]


def test_truncate_that_is_sent_before_and_after_a_hand_over(server, db, receivers):
    """Sent for one table and not acknowledged, then sent again, when the other table is apply's, too."""
    server.psql("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
                "CREATE TABLE noise (v text); INSERT INTO a VALUES (1, 'old'); INSERT INTO b VALUES (1, 'old'), (2, 'old');"
                "CREATE PUBLICATION pub FOR TABLE a", db)
    taken, answer = threading.Event(), threading.Event()

    def hold(request):
        if b'"event":"truncate"' in request.body and not taken.is_set():
            taken.set()
            answer.wait(30)
        return 200

    receiver = receivers(hold)
    webhook(server, db, receiver, options_=dict(QUICK, max_batch_delay="4s"))
    server.wait_for("p", db)
    since = server.log_size()
    server.failpoint("sync_before_handover=wait:1")
    try:
        server.sql("ALTER PUBLICATION pub ADD TABLE b", db=db)
        wait_until(lambda: 'failpoint "sync_before_handover"' in server.log(since), 30, "b is copied")
        server.psql("INSERT INTO a VALUES (2, 'old'); INSERT INTO noise SELECT repeat('x', 500) FROM generate_series(1, 100000);"
                    "TRUNCATE a, b; INSERT INTO b VALUES (3, 'new')", db)
        assert taken.wait(30)
        old = server.backends("etl apply", db)
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'etl writer'")
        reading = ("SELECT active_pid FROM pg_replication_slots WHERE NOT temporary AND database = %s"
                   " AND active_pid <> ALL (%s)")
        answer.set()
        new = wait_until(lambda: server.value(reading, (db, old), db), 20, "another apply reads")
        wait_until(lambda: any(f"[{new}]" in line and "logical decoding" in line
                               for line in server.log(since).splitlines()), 10, "it decodes")
        os.kill(new, signal.SIGSTOP)
        server.failpoint("")
        try:
            wait_until(lambda: server.tables("p", db)["public.b"]["owned_from"], 5, "b is handed over")
        except Timeout:
            pass  # apply has come by the truncate before it was stopped
        finally:
            os.kill(new, signal.SIGCONT)
    finally:
        server.failpoint("")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
