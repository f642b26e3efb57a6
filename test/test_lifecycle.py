"""Beginnings and ends: what is left behind by drops, restarts, lost slots and copies, and who delivers.

Further ones: test_processes.py (DROP and RENAME of databases, templates, DROP EXTENSION), test_kinds.py
(drop_tables), test_writer.py (a slot dropped by hand), test_dump.py (dump and restore).
"""

import subprocess
import threading

import psycopg
import pytest
from harness import assert_equal, wait_until
from harness.pipeline import create, null, options, webhook

QUICK = {"retry_delay": "50ms", "max_retry_delay": "200ms"}


def table(server, db, rows=10):
    server.psql(f"CREATE TABLE t (id int PRIMARY KEY, v text);"
                f"INSERT INTO t SELECT g, 'x' FROM generate_series(1, {rows}) g;"
                f"CREATE PUBLICATION pub FOR TABLE t", db)


def workers(server, db):
    return server.sql("SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type LIKE 'etl %%' AND datname = %s", (db,))


def slots(server, db):
    return [row[0] for row in server.sql("SELECT slot_name FROM pg_replication_slots WHERE database = %s", (db,))]


def locks(server, db):
    """Locks of processes of ours on anything of the database."""
    return server.value("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                        " WHERE a.backend_type LIKE 'etl %%' AND a.datname = %s", (db,))


def nothing_left(server, db, timeout=6):
    """No slot (temporary ones included), no process, no lock."""
    wait_until(lambda: not slots(server, db) and not workers(server, db) and not locks(server, db), timeout,
               "no slot, process or lock is left")


def gone(server, db, name="p", timeout=6):
    wait_until(lambda: server.status(name, db) is None, timeout, "the pipeline is gone")
    nothing_left(server, db)


def failed(server, db, name="p", timeout=20):
    wait_until(lambda: server.status(name, db)["state"] == "failed", timeout, "failed")
    wait_until(lambda: not workers(server, db), 10, "no process is left")
    return server.status(name, db)


@pytest.fixture
def hanging(receivers):
    """A receiver that answers when the test is over."""
    end = threading.Event()
    yield receivers(answer=lambda r: end.wait(60) and None)
    end.set()


# -- dropping a pipeline -------------------------------------------------------


@pytest.mark.parametrize("how", ["", ", drop_tables => true", ", force => true"])
def test_dropped_while_the_destination_hangs(server, db, hanging, how):
    """In the middle of a copy: its workers end, and its slots go with them."""
    table(server, db)
    webhook(server, db, hanging)
    wait_until(lambda: hanging.count > 0, 20, "a request that hangs")
    server.sql(f"SELECT etl.drop_pipeline('p'{how})", db=db)
    gone(server, db)
    server.sql("DROP SERVER s_p", db=db)


def test_dropped_with_tables_of_a_destination_that_was_never_there(server, db):
    """It never had tables: nobody is asked."""
    table(server, db)
    server.sql("CREATE SERVER w FOREIGN DATA WRAPPER etl_clickhouse OPTIONS (url 'http://127.0.0.1:1/', database 'd')", db=db)
    create(server, db, "p", "pub", "w", QUICK)
    wait_until(lambda: server.status("p", db)["state"] == "retrying", 20, "retrying")
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    gone(server, db)


def test_the_name_is_free_again(server, db, receiver):
    """A new pipeline of the same name is another one: another id, another slot, everything copied."""
    table(server, db)
    first = webhook(server, db, receiver)
    server.wait_for("p", db)
    slot = server.status("p", db)["slot_name"]
    server.sql("SELECT etl.drop_pipeline('p')", db=db)
    gone(server, db)
    second = create(server, db, "p", "pub", "s_p")
    server.wait_for("p", db)
    assert second != first and server.status("p", db)["slot_name"] != slot
    assert len([e for e in receiver.events() if e["event"] == "copy_begin"]) == 2


# -- dropping other things -------------------------------------------------------


def test_extension_dropped_in_the_middle_of_a_copy(server, db, hanging):
    table(server, db)
    webhook(server, db, hanging)
    wait_until(lambda: hanging.count > 0, 20, "a request that hangs")
    server.sql("DROP EXTENSION etl CASCADE", db=db)
    nothing_left(server, db)
    # and a new life in the same session
    server.sql("CREATE EXTENSION etl", db=db)
    null(server, db)
    server.wait_for("p", db)
    wait_until(lambda: len(slots(server, db)) == 1, 5, "one slot is left")


def test_extension_moves_out_while_its_pipelines_wait(server, db):
    """Pipelines that retry, failed ones and stopped ones leave nothing either."""
    table(server, db)
    webhook(server, db, "http://127.0.0.1:1/", "retrying", options_=QUICK)
    null(server, db, "stopped")
    server.wait_for("stopped", db)
    server.sql("SELECT etl.stop_pipeline('stopped')", db=db)
    wait_until(lambda: server.status("stopped", db)["state"] == "stopped", 10, "stopped")
    assert slots(server, db)
    server.sql("DROP EXTENSION etl CASCADE", db=db)
    nothing_left(server, db)


def test_database_dropped_by_force_during_a_connection_test(server, hanging):
    """A check worker that waits for a destination does not keep the database."""
    import socket

    silent = socket.create_server(("127.0.0.1", 0))
    db = server.create_database("forced")
    server.sql("CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook "
               + options({"url": f"https://127.0.0.1:{silent.getsockname()[1]}/", "connect_timeout": "1min"}), db=db)

    def ask():
        try:
            with server.connect(db) as c:
                c.execute("SELECT * FROM etl.test_destination('s')")
        except psycopg.Error:
            pass

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: server.backends("etl check", db), 10, "a check worker")
    server.close(db)
    server.sql("DROP DATABASE forced WITH (FORCE)")
    thread.join(5)
    silent.close()
    assert not thread.is_alive() and not server.backends("etl check", db)


def test_database_changes_its_tablespace(server):
    db = server.create_database("moving")
    table(server, db)
    null(server, db)
    server.wait_for("p", db)
    server.close(db)
    server.sql(f"COPY (SELECT 1) TO PROGRAM 'cat >/dev/null; mkdir {server.base}/space'")
    server.sql(f"CREATE TABLESPACE space LOCATION '{server.base}/space'")
    try:
        server.sql("ALTER DATABASE moving SET TABLESPACE space")
        server.wait_for("p", db)
        assert server.tables("p", db)["public.t"]["generation"] == 1
    finally:
        server.drop_database("moving")
        server.sql("DROP TABLESPACE space")


def test_publication_dropped_and_made_again(server, db, receiver):
    """Nobody refuses it.  Without it nothing says what should be sent: all stays as it was, and is complained of."""
    table(server, db)
    server.sql("CREATE TABLE other (id int PRIMARY KEY)", db=db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("DROP PUBLICATION pub; INSERT INTO t VALUES (100, 'without')", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert 'publication "pub" does not exist' in server.status("p", db)["last_error"]
    assert server.value("SELECT check_name FROM etl.validate_pipeline('p') WHERE severity = 'error'", db=db) == "publication_exists"
    server.psql("CREATE PUBLICATION pub FOR TABLE other; INSERT INTO t VALUES (101, 'left'); INSERT INTO other VALUES (1)", db)
    server.wait_for("p", db)
    assert list(server.tables("p", db)) == ["public.other"]
    assert_equal(server, db, receiver.state(), ["public.other"])
    assert 101 not in [row["id"] for row in receiver.state().rows("public.t")]


def test_owner_dropped(server, db, receiver):
    """The pipeline fails at its next start, and says so; a superuser can drop it."""
    table(server, db)
    server.sql("CREATE ROLE owner_gone REPLICATION LOGIN")
    server.sql("GRANT SELECT ON t TO owner_gone; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO owner_gone", db=db)
    server.sql("CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook " + options({"url": receiver.url}), db=db)
    server.sql("GRANT USAGE ON FOREIGN SERVER s TO owner_gone", db=db)
    with server.connect(db, "owner_gone") as c:
        c.execute("SELECT etl.create_pipeline('p', publication => 'pub', destination => 's')")
        c.execute("SELECT etl.start_pipeline('p')")
    server.wait_for("p", db)
    server.sql("DROP OWNED BY owner_gone", db=db)
    server.sql("DROP ROLE owner_gone")
    server.sql("SELECT pg_terminate_backend(%s)", (server.backends("etl apply", db)[0],))
    assert "owner" in failed(server, db)["problem"]
    server.sql("SELECT etl.drop_pipeline('p')", db=db)
    gone(server, db)


def test_owner_loses_replication(server, db, receiver):
    """Noticed while changes flow, within ten seconds; the right given back, a start goes on."""
    table(server, db)
    role = f"lost_{db}"
    server.sql(f"CREATE ROLE {role} REPLICATION LOGIN")
    server.sql(f"GRANT SELECT ON t TO {role}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO {role}", db=db)
    server.sql("CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook " + options({"url": receiver.url}), db=db)
    server.sql(f"GRANT USAGE ON FOREIGN SERVER s TO {role}", db=db)
    with server.connect(db, role) as c:
        c.execute("SELECT etl.create_pipeline('p', publication => 'pub', destination => 's')")
        c.execute("SELECT etl.start_pipeline('p')")
    server.wait_for("p", db)
    server.sql(f"ALTER ROLE {role} NOREPLICATION")
    server.sql("INSERT INTO t SELECT max(id) + 1 FROM t", db=db)
    assert "REPLICATION" in failed(server, db)["problem"]
    server.sql(f"ALTER ROLE {role} REPLICATION")
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_resync_of_a_stopped_pipeline(server, db, receiver):
    """Acted on at the next start, and waited for."""
    table(server, db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: not workers(server, db), 10, "stopped")
    server.sql("SELECT etl.resync_pipeline('p')", db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert server.tables("p", db)["public.t"]["generation"] == 2
    assert_equal(server, db, receiver.state(), ["public.t"])


# -- slots -------------------------------------------------------------------------


def lose_slot(server, db):
    """Write so much WAL that the slot's is taken away."""
    def lost():
        server.psql("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1000000)) FROM generate_series(1, 40) \\g /dev/null\n"
                    "SELECT pg_switch_wal() \\g /dev/null\nCHECKPOINT;", db)
        return server.value("SELECT wal_status = 'lost' FROM pg_replication_slots WHERE database = %s AND NOT temporary", (db,))

    wait_until(lost, 60, "the slot is lost")


@pytest.mark.parametrize("answer", ["error", "resync"])
@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
def test_slot_whose_wal_is_gone(fresh_server, receivers, answer, running):
    """max_slot_wal_keep_size strikes, also while the destination hangs: failed, or everything again; never silence."""
    server = fresh_server(conf={"max_slot_wal_keep_size": "'20MB'", "max_wal_size": "'64MB'"})
    db = server.create_database("d")
    table(server, db)
    free = threading.Event()
    free.set()
    receiver = receivers(answer=lambda r: free.wait(120) and None)
    webhook(server, db, receiver, options_={**QUICK, "on_slot_loss": answer})
    server.wait_for("p", db)
    if running:
        free.clear()
        server.psql("INSERT INTO t VALUES (100, 'while it hangs')", db)
    else:
        server.sql("SELECT etl.stop_pipeline('p')", db=db)
        wait_until(lambda: server.status("p", db)["state"] == "stopped" and not workers(server, db), 10, "stopped")
        server.psql("INSERT INTO t VALUES (100, 'while it is stopped')", db)
    try:
        lose_slot(server, db)
    finally:
        free.set()
    if not running:
        assert not server.status("p", db)["healthy"]
        assert server.status("p", db)["wal_status"] == "lost"
        server.sql("SELECT etl.start_pipeline('p')", db=db)
    if answer == "error":
        status = failed(server, db)
        assert "slot" in status["problem"] and not status["healthy"]
        server.sql("SELECT etl.resync_pipeline('p')", db=db)
        server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert server.status("p", db)["wal_status"] == "reserved"
    wait_until(lambda: len(slots(server, db)) == 1, 5, "one slot is left")
    assert max(e["epoch"] for e in receiver.events()) == 1


# -- the server ------------------------------------------------------------------------


def test_another_timeline_raises_the_epoch(fresh_server, receiver):
    """After a recovery of the same files positions may have fallen back: ids say so, and it goes on."""
    server = fresh_server()
    db = server.create_database("d")
    table(server, db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.stop()
    (server.data / "recovery.signal").touch()
    server.write_conf(restore_command="'/bin/false'")
    server.start()
    wait_until(lambda: not server.value("SELECT pg_is_in_recovery()"), 20, "recovery is over")
    server.psql("INSERT INTO t VALUES (100, 'on another timeline')", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    assert [e["epoch"] for e in receiver.events() if e["event"] == "insert" and e["table_row"]["id"] == 100] == [1]
    assert server.tables("p", db)["public.t"]["generation"] == 1


def test_promoted_standby_takes_over_when_told(fresh_server, receiver):
    """It has no slot, and cannot know whether the primary is gone: resync_pipeline() and start_pipeline() say so."""
    primary = fresh_server()
    db = primary.create_database("d")
    table(primary, db)
    webhook(primary, db, receiver, options_={"on_slot_loss": "resync"})
    primary.wait_for("p", db)
    standby = fresh_server(start=False)
    primary._run("pg_basebackup", "-D", standby.data, "-h", primary.base, "-p", primary.port, "-U", "postgres", "-R", "-c", "fast")
    standby.start()
    standby.wait_ready()
    primary.stop()
    before = receiver.count
    standby.sql("SELECT pg_promote()")
    failed(standby, db)
    standby.psql("INSERT INTO t VALUES (100, 'after the promotion')", db)
    assert receiver.count == before
    standby.sql("SELECT etl.resync_pipeline('p')", db=db)
    standby.sql("SELECT etl.start_pipeline('p')", db=db)
    standby.wait_for("p", db)
    assert_equal(standby, db, receiver.state(), ["public.t"])
    assert max(e["epoch"] for e in receiver.events()) >= 1


@pytest.mark.parametrize("how", ["base backup", "files"])
def test_a_copy_started_beside_the_original_does_not_deliver(fresh_server, receiver, how):
    """Not even when lost slots are to be answered by a resync; the original goes on."""
    original = fresh_server()
    db = original.create_database("d")
    table(original, db)
    webhook(original, db, receiver, options_={**QUICK, "on_slot_loss": "resync"})
    original.wait_for("p", db)
    copy = fresh_server(start=False)
    if how == "files":
        original.stop()
        subprocess.run(["cp", "-a", original.data, copy.data], check=True)
        original.start()
    else:
        original._run("pg_basebackup", "-D", copy.data, "-h", original.base, "-p", original.port, "-U", "postgres", "-c", "fast")
    original.wait_for("p", db)
    before = receiver.count
    copy.start()
    copy.wait_ready()
    status = failed(copy, db)
    assert "another" in status["problem"]
    copy.psql("INSERT INTO t VALUES (200, 'only in the copy')", db)
    copy.sql("SELECT etl.start_pipeline('p')", db=db)
    failed(copy, db)
    assert receiver.count == before
    original.psql("INSERT INTO t VALUES (100, 'only in the original')", db)
    original.wait_for("p", db)
    assert_equal(original, db, receiver.state(), ["public.t"])
    # the copy can be freed of it, and of a slot that came along
    copy.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    gone(copy, db)
    assert original.status("p", db)["state"] == "replicating"


def test_a_copy_does_not_drop_the_originals_tables(fresh_server):
    """Both carry the same marks; drop_tables in the copy leaves them alone."""
    original = fresh_server()
    db = original.create_database("d")
    table(original, db)
    folder = original.base / "folder"
    original.sql(f"COPY (SELECT 1) TO PROGRAM 'cat >/dev/null; mkdir -m 777 {folder}'")
    original.sql("CREATE EXTENSION etl_test", db=db)
    original.sql(f"CREATE SERVER s FOREIGN DATA WRAPPER etl_test_file OPTIONS (directory '{folder}')", db=db)
    create(original, db, "p", "pub", "s")
    original.wait_for("p", db)
    copy = fresh_server(start=False)
    original._run("pg_basebackup", "-D", copy.data, "-h", original.base, "-p", original.port, "-U", "postgres", "-c", "fast")
    copy.start()
    copy.wait_ready()
    failed(copy, db)
    copy.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    gone(copy, db)
    assert "without its tables" in copy.log()
    assert "drop_table" not in (folder / "calls").read_text()
    original.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    gone(original, db)
    assert "drop_table" in (folder / "calls").read_text()
