"""Processes: who runs when, what starts again, and whose way nobody is in."""

import threading
import time

import psycopg
import pytest
from harness import ProcessSample, wait_until
from harness.pipeline import create, null, webhook

PAIR = ["etl apply", "etl writer"]
ALL_SQL = """SELECT backend_type FROM pg_stat_activity
              WHERE backend_type LIKE 'etl %%' AND backend_type NOT IN ('etl launcher', 'etl check')
                AND (%s::text IS NULL OR datname = %s) ORDER BY 1"""


def workers(server, db=None):
    """backend_type of each worker of pipelines."""
    return [row[0] for row in server.sql(ALL_SQL, (db, db))]


def pair(server, db):
    """Pids of apply and writer, empty unless both are there."""
    pids = [server.backends(kind, db) for kind in PAIR]
    return [p[0] for p in pids] if all(pids) else []


def table(server, db, rows=10):
    server.psql(f"CREATE TABLE t (id int PRIMARY KEY, v text);"
                f"INSERT INTO t SELECT g, 'x' FROM generate_series(1, {rows}) g;"
                f"CREATE PUBLICATION pub FOR TABLE t", db)


def running(server, db, name="p", **kwargs):
    """A pipeline that discards, replicating."""
    table(server, db)
    null(server, db, name, **kwargs)
    server.wait_for(name, db)


def replicates(server, db, name="p"):
    """A change of now goes through."""
    server.sql("UPDATE t SET v = v || '.'", db=db)
    server.wait_for(name, db)


def slots(server, db):
    """Slots of pipelines; those of sync workers go with their workers."""
    return server.value("SELECT count(*) FROM pg_replication_slots WHERE database = %s AND NOT temporary", (db,))


def seconds(action):
    started = time.monotonic()
    action()
    return time.monotonic() - started


# -- start and stop --------------------------------------------------------


def test_visible_soon_after_start(server, db):
    """The pair is in pg_stat_activity within a second of the commit, under its fixed names."""
    table(server, db)
    null(server, db, start=False)
    assert workers(server, db) == []
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    wait_until(lambda: pair(server, db), 1, "apply and writer")
    server.wait_for("p", db)
    wait_until(lambda: workers(server, db) == PAIR, 5, "only the pair is left")
    assert len(server.backends("etl launcher")) == 1


def test_start_is_idempotent(server, db):
    running(server, db)
    before = pair(server, db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    replicates(server, db)
    assert pair(server, db) == before


def test_stop_and_start(server, db):
    """Stopped: no process, the slot stays; started again: goes on where it was."""
    running(server, db)
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: workers(server, db) == [], 3, "workers gone")
    wait_until(lambda: server.status("p", db)["state"] == "stopped", 1, "state stopped")
    assert slots(server, db) == 1
    server.sql("UPDATE t SET v = 'while stopped'", db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert server.tables("p", db)["public.t"]["generation"] == 1


def test_stop_with_a_destination_that_hangs(server, db, receivers):
    """The batch in flight gets etl.shutdown_timeout (2 s), not more."""
    hang = threading.Event()
    receiver = receivers(answer=lambda r: hang.wait(60) and None)
    table(server, db)
    webhook(server, db, receiver)
    wait_until(lambda: receiver.count > 0, 20, "a request that hangs")
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    took = seconds(lambda: wait_until(lambda: workers(server, db) == [], 10, "workers gone"))
    hang.set()
    assert took <= 3


@pytest.mark.parametrize("how", ["ROLLBACK", "subtransaction"])
def test_request_that_is_rolled_back(server, db, how):
    """start_pipeline() counts when it is committed, and only then."""
    table(server, db)
    null(server, db, start=False)
    with server.connect(db, autocommit=False) as c:
        c.execute("SAVEPOINT s")
        c.execute("SELECT etl.start_pipeline('p')")
        if how == "ROLLBACK":
            c.rollback()
        else:
            c.execute("ROLLBACK TO s")
            c.commit()
    # the look at the database on account of another pipeline would find it
    null(server, db, "q")
    server.wait_for("q", db)
    wait_until(lambda: workers(server, db) == PAIR, 5, "only the other pipeline's pair")
    status = server.status("p", db)
    assert (status["enabled"], status["state"]) == (False, "stopped")


def test_nested_request_that_is_kept(server, db):
    """A subtransaction's request is its parent's when it is released."""
    table(server, db)
    null(server, db, start=False)
    with server.connect(db, autocommit=False) as c:
        c.execute("SAVEPOINT a")
        c.execute("SAVEPOINT b")
        c.execute("SELECT etl.start_pipeline('p')")
        c.execute("RELEASE b")
        c.execute("SAVEPOINT c")
        c.execute("SELECT etl.start_pipeline('p')")
        c.execute("ROLLBACK TO c")
        c.execute("RELEASE a")
        c.commit()
    wait_until(lambda: pair(server, db), 2, "apply and writer")


def test_prepare_transaction_is_refused(server, db):
    table(server, db)
    null(server, db, start=False)
    with server.connect(db, autocommit=False) as c:
        c.execute("SELECT etl.start_pipeline('p')")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            c.execute("PREPARE TRANSACTION 'etl'")
        c.rollback()
    assert not server.status("p", db)["enabled"]


# -- deaths ----------------------------------------------------------------


@pytest.mark.parametrize("victim", PAIR)
def test_terminated_worker_is_back(server, db, victim):
    """Replicating again within two seconds; both halves are new, no other session notices."""
    running(server, db)
    session = server.value("SELECT pg_backend_pid()", db=db)
    before = pair(server, db)
    server.sql("SELECT pg_terminate_backend(%s)", (server.backends(victim, db)[0],))
    wait_until(lambda: pair(server, db) and not set(pair(server, db)) & set(before), 2, "a new pair")
    replicates(server, db)
    assert server.value("SELECT pg_backend_pid()", db=db) == session


def test_terminated_again_and_again(server, db):
    """Each time it comes back; early deaths only make it come a little later."""
    running(server, db)
    for _ in range(4):
        server.sql("SELECT pg_terminate_backend(%s)", (wait_until(lambda: pair(server, db), 5, "pair")[0],))
        wait_until(lambda: not workers(server, db) or pair(server, db), 5, "the pair ends")
    wait_until(lambda: pair(server, db), 10, "the pair is back")
    replicates(server, db)


def test_terminated_launcher_takes_over(server, db):
    """Pipelines go on without it; the next one knows them, and serves requests."""
    running(server, db)
    before = pair(server, db)
    launcher = server.backends("etl launcher")
    server.sql("SELECT pg_terminate_backend(%s)", (launcher[0],))
    replicates(server, db)
    wait_until(lambda: server.backends("etl launcher") not in ([], launcher), 10, "a new launcher")
    assert pair(server, db) == before
    server.sql("SELECT pg_terminate_backend(%s)", (before[0],))
    wait_until(lambda: pair(server, db) and not set(pair(server, db)) & set(before), 5, "a new pair")
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: workers(server, db) == [], 4, "workers gone")


@pytest.mark.crashes
@pytest.mark.parametrize("victim", ["etl launcher", *PAIR])
def test_killed_process(fresh_server, victim):
    """kill -9: the server restarts its sessions, and within five seconds it replicates."""
    server = fresh_server()
    db = server.create_database("d")
    running(server, db)
    server.kill_worker(victim)
    server.wait_ready()
    wait_until(lambda: pair(server, db), 5, "the pair is back")
    replicates(server, db)


def test_restart_of_the_server(fresh_server):
    """Enabled pipelines start by themselves, stopped ones do not."""
    server = fresh_server()
    one, two = server.create_database("one"), server.create_database("two")
    running(server, one)
    running(server, two)
    server.sql("SELECT etl.stop_pipeline('p')", db=two)
    wait_until(lambda: workers(server, two) == [], 4, "workers gone")
    took = seconds(server.stop)
    assert took <= 5
    server.start()
    wait_until(lambda: pair(server, one), 5, "the pair is back")
    replicates(server, one)
    assert workers(server, two) == []
    assert server.status("p", two)["state"] == "stopped"


def test_promotion(fresh_server):
    """A standby runs nothing; promoted, it looks, and says that the slot is not there."""
    primary = fresh_server()
    db = primary.create_database("d")
    running(primary, db)
    standby = fresh_server(start=False)
    primary._run("pg_basebackup", "-D", standby.data, "-h", primary.base, "-p", primary.port,
                 "-U", "postgres", "-R", "-c", "fast")
    standby.start()
    standby.wait_ready()
    assert standby.value("SELECT pg_is_in_recovery()")
    assert standby.backends("etl launcher") == [] and workers(standby) == []
    standby.sql("SELECT pg_promote()")
    wait_until(lambda: standby.backends("etl launcher"), 10, "a launcher")
    wait_until(lambda: standby.status("p", db)["state"] == "failed", 10, "failed")
    wait_until(lambda: workers(standby) == [], 5, "no worker is left")
    assert "slot" in standby.status("p", db)["problem"]
    assert slots(standby, db) == 0
    replicates(primary, db)


# -- limits ----------------------------------------------------------------


def states(server, db):
    return dict((row[0], row[1:]) for row in server.sql(
        "SELECT pipeline, state, waiting_for FROM etl.pipeline_status", db=db))


@pytest.mark.parametrize("conf, name", [
    ({"etl.max_workers": "3"}, "etl.max_workers"),
    ({"max_worker_processes": "5", "etl.max_workers": "20"}, "max_worker_processes"),
])
def test_limit_is_named_and_waited_for(fresh_server, conf, name):
    """The second pipeline waits, says for what, and starts when the first stops."""
    server = fresh_server(conf=conf)
    db = server.create_database("d")
    table(server, db)
    null(server, db, "a")
    wait_until(lambda: pair(server, db), 5, "a")
    null(server, db, "b")
    wait_until(lambda: states(server, db)["b"] == ("waiting", name), 5, "b waits")
    assert states(server, db)["a"][1] != name
    server.wait_for("a", db)
    server.sql("SELECT etl.stop_pipeline('a')", db=db)
    server.wait_for("b", db)
    assert states(server, db)["b"][1] is None


def test_raised_limit_is_used(fresh_server):
    server = fresh_server(conf={"etl.max_workers": "3"})
    db = server.create_database("d")
    table(server, db)
    null(server, db, "a")
    wait_until(lambda: pair(server, db), 5, "a")
    null(server, db, "b")
    wait_until(lambda: states(server, db)["b"] == ("waiting", "etl.max_workers"), 5, "b waits")
    server.write_conf(**{"etl.max_workers": "8"})
    server.reload()
    server.wait_for("b", db)
    server.wait_for("a", db)


def test_max_pipelines(fresh_server):
    """More pipelines than room in shared memory: the last waits until one stops."""
    server = fresh_server(conf={"etl.max_pipelines": "2"})
    db = server.create_database("d")
    table(server, db)
    server.sql("CREATE SERVER s FOREIGN DATA WRAPPER etl_null", db=db)
    for name in ("a", "b"):
        create(server, db, name, "pub", "s")
        server.wait_for(name, db)
    create(server, db, "c", "pub", "s")
    wait_until(lambda: states(server, db)["c"] == ("waiting", "etl.max_pipelines"), 5, "c waits")
    server.sql("SELECT etl.stop_pipeline('a')", db=db)
    wait_until(lambda: states(server, db)["c"][0] == "replicating", 20, "c runs")


def test_enabled_off_and_on(fresh_server):
    """etl.enabled = off stops every pipeline of the server, on brings them back."""
    server = fresh_server()
    dbs = [server.create_database(name) for name in ("one", "two")]
    for db in dbs:
        running(server, db)
    server.write_conf(**{"etl.enabled": "off"})
    server.reload()
    wait_until(lambda: workers(server) == [], 4, "workers gone")
    for db in dbs:
        wait_until(lambda: server.status("p", db)["state"] == "stopped", 1, "state stopped")
        server.sql("SELECT etl.start_pipeline('p')", db=db)
    wait_until(lambda: not server.backends("etl check"), 5, "looks are over")
    assert workers(server) == []
    server.write_conf(**{"etl.enabled": "on"})
    server.reload()
    for db in dbs:
        wait_until(lambda: pair(server, db), 3, "the pair is back")
        replicates(server, db)


# -- databases that are needed by others -------------------------------------


def test_drop_database(server):
    """As if nothing ran in it, with and without FORCE."""
    for clause in ("", " WITH (FORCE)"):
        db = server.create_database("gone")
        running(server, db)
        server.close(db)
        took = seconds(lambda: server.sql(f"DROP DATABASE gone{clause}"))
        assert took <= 5
        assert slots(server, "gone") == 0
        wait_until(lambda: workers(server, "gone") == [], 2, "workers gone")


def test_drop_database_elsewhere(server, db, receivers):
    """Workers that hang in requests keep nobody from dropping another database."""
    hang = threading.Event()
    receiver = receivers(answer=lambda r: hang.wait(60) and None)
    table(server, db)
    for name in ("a", "b", "c"):
        webhook(server, db, receiver, name)
    wait_until(lambda: receiver.count >= 3, 30, "requests that hang")
    try:
        for i in range(5):
            server.create_database(f"other{i}", extension=False)
            assert seconds(lambda: server.drop_database(f"other{i}")) <= 0.5
    finally:
        hang.set()


def test_failed_drop_brings_the_workers_back(server, db):
    """Somebody else is connected: the command fails, the pipeline goes on."""
    running(server, db)
    before = pair(server, db)
    with server.connect(db):
        with pytest.raises(psycopg.errors.ObjectInUse):
            server.sql(f"DROP DATABASE {db}")
    wait_until(lambda: pair(server, db) and pair(server, db) != before, 3, "the pair is back")
    replicates(server, db)


def test_drop_by_a_stranger_is_not_noticed(server, db):
    """Who may not drop the database does not make the pipeline pause either."""
    running(server, db)
    before = pair(server, db)
    server.sql("CREATE ROLE stranger LOGIN")
    try:
        with server.connect("postgres", "stranger") as c:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                c.execute(f"DROP DATABASE {db}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                c.execute(f"ALTER DATABASE {db} RENAME TO x")
    finally:
        server.sql("DROP ROLE stranger")
    replicates(server, db)
    assert pair(server, db) == before


def test_rename_database(server):
    db = server.create_database("before")
    running(server, db)
    server.close(db)
    assert seconds(lambda: server.sql("ALTER DATABASE before RENAME TO after")) <= 5
    try:
        wait_until(lambda: pair(server, "after"), 3, "the pair is back")
        replicates(server, "after")
        assert server.tables("p", "after")["public.t"]["generation"] == 1
    finally:
        server.drop_database("after")


def test_database_as_template(server):
    """The copy delivers nothing; the original goes on."""
    db = server.create_database("original")
    running(server, db)
    server.close(db)
    try:
        assert seconds(lambda: server.sql("CREATE DATABASE twin TEMPLATE original")) <= 10
        wait_until(lambda: pair(server, db), 3, "the pair is back")
        replicates(server, db)
        assert workers(server, "twin") == []
        assert slots(server, "twin") == 0
        # not even when it is told to: it is not the database that was recorded
        server.sql("SELECT etl.start_pipeline('p')", db="twin")
        wait_until(lambda: server.status("p", "twin")["state"] == "failed", 10, "failed")
        assert slots(server, "twin") == 0
    finally:
        server.drop_database("twin")
        server.drop_database("original")


# -- drops -----------------------------------------------------------------


def test_drop_pipeline_leaves_nothing(server, db):
    running(server, db)
    server.sql("SELECT etl.drop_pipeline('p')", db=db)
    wait_until(lambda: server.status("p", db) is None, 5, "the pipeline is gone")
    assert workers(server, db) == []
    assert slots(server, db) == 0
    for name in server.sql("SELECT relname FROM pg_class WHERE relnamespace = 'etl'::regnamespace"
                           " AND relkind = 'r' AND relname NOT IN ('local_schema')", db=db):
        assert server.value(f"SELECT count(*) FROM etl.{name[0]}", db=db) == 0, name[0]
    server.sql("DROP SERVER s_p", db=db)


def test_drop_server_in_use(server, db):
    running(server, db)
    for command in ("DROP SERVER s_p", "DROP SERVER s_p CASCADE"):
        with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="pipeline \"p\""):
            server.sql(command, db=db)
    server.sql("CREATE SERVER unused FOREIGN DATA WRAPPER etl_null", db=db)
    server.sql("DROP SERVER unused", db=db)
    replicates(server, db)


def test_drop_extension(server, db):
    """No slot, no worker, no lock is left; what was rolled back did not happen."""
    running(server, db)
    with server.connect(db, autocommit=False) as c:
        c.execute("DROP EXTENSION etl CASCADE")
        c.rollback()
    replicates(server, db)
    server.sql("DROP EXTENSION etl CASCADE", db=db)
    wait_until(lambda: workers(server, db) == [] and slots(server, db) == 0, 5, "workers and slot gone")


def test_drop_and_create_extension_at_once(server, db):
    """A new life: ids begin again, and the former pipeline's slot is not taken for its own."""
    running(server, db)
    old = server.status("p", db)["slot_name"]
    with server.connect(db, autocommit=False) as c:
        c.execute("DROP EXTENSION etl CASCADE")
        c.execute("CREATE EXTENSION etl")
        c.execute("CREATE SERVER s FOREIGN DATA WRAPPER etl_null")
        c.execute("SELECT etl.create_pipeline('p', publication => 'pub', destination => 's')")
        c.execute("SELECT etl.start_pipeline('p')")
        c.commit()
    wait_until(lambda: (server.status("p", db) or {}).get("slot_name") not in (None, "", old), 20, "a slot of its own")
    server.wait_for("p", db)
    wait_until(lambda: slots(server, db) == 1, 5, "the old slot is gone")
    assert server.status("p", db)["slot_name"] != old


def test_rename_pipeline_while_running(server, db):
    """The slot and the processes stay."""
    running(server, db)
    slot = server.status("p", db)["slot_name"]
    server.sql("SELECT etl.rename_pipeline('p', 'q')", db=db)
    replicates(server, db, "q")
    assert server.status("q", db)["slot_name"] == slot


# -- loading -----------------------------------------------------------------


def test_without_preload_silent_and_helpful(fresh_server):
    """Not preloaded: everything can be defined, and what needs to run says what to do."""
    server = fresh_server(conf={"shared_preload_libraries": "''", "etl.max_pipelines": "4"})
    notices = []
    with server.connect() as c:
        c.add_notice_handler(lambda n: notices.append(n.message_primary))
        c.execute("LOAD 'etl'")
        c.execute("CREATE EXTENSION etl")
        c.execute("CREATE SERVER s FOREIGN DATA WRAPPER etl_null")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as error:
            c.execute("CREATE PUBLICATION pub")
            c.execute("SELECT etl.create_pipeline('p', publication => 'pub', destination => 's')")
            c.execute("SELECT etl.start_pipeline('p')")
    assert "shared_preload_libraries" in error.value.diag.message_hint
    assert notices == []


def test_launcher_sleeps(fresh_server):
    """Without pipelines nothing wakes the launcher."""
    server = fresh_server()
    launcher = wait_until(lambda: server.backends("etl launcher"), 10, "launcher")[0]
    wait_until(lambda: not server.backends("etl check"), 10, "looks are over")
    sample = ProcessSample.over(launcher, 5)
    assert sample.cpu <= 0.002 and sample.wakeups <= 1, sample
