"""Nothing is lost and nothing is wrong, whoever dies and whenever.

Each test kills one process in one phase of a load of random changes (its seed
is printed; ETL_SEED repeats it), and then compares the tables that the events
add up to with the source, value by value.
"""

import threading

import pytest
from harness import assert_equal, wait_until
from harness.pipeline import webhook
from harness.workload import NAMES, Workload

PHASES = ["initial_sync", "ongoing_replication"]
CELLS = [(victim, phase) for victim in ("etl apply", "etl writer", "etl launcher") for phase in PHASES]
CELLS.append(("etl sync", "initial_sync"))
# where the code has a failpoint
POINTS = ["apply_slot_made", "writer_slot_created", "sync_before_lock", "sync_after_lock", "sync_copy_row",
          "sync_before_finish", "sync_before_handover", "sync_after_take", "batch_send", "batch_durable",
          "writer_before_store", "writer_stored"]
OPTIONS = {"max_batch_events": 200, "retry_delay": "50ms", "max_retry_delay": "500ms"}


class Moment:
    """Tells the test that the n-th delivery of a phase has come; it is answered afterwards."""

    def __init__(self, phase, n=3):
        self.phase, self.n = phase, n
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, request):
        if self.reached.is_set():
            return 200
        if any(e["phase"] == self.phase and e["event"] in ("insert", "update", "delete") for e in request.events()):
            self.n -= 1
            if self.n <= 0:
                self.reached.set()
                self.go_on.wait(10)
                return 503
        return 200

    def wait(self):
        assert self.reached.wait(60), f"no delivery of phase {self.phase}"

    def release(self):
        self.go_on.set()


def settle(server, db, receiver, name="p"):
    server.wait_ready()
    server.wait_for(name, db, timeout=120)
    assert_equal(server, db, receiver.state(), NAMES)
    assert server.tables(name, db)
    assert all(t["state"] == "ready" for t in server.tables(name, db).values())


@pytest.mark.parametrize("victim, phase", CELLS)
def test_terminated(server, db, receivers, victim, phase):
    """pg_terminate_backend: the others go on, what died starts again by itself."""
    moment = Moment(phase)
    receiver = receivers(answer=moment)
    Workload.create(server, db)
    session = server.value("SELECT pg_backend_pid()", db=db)
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=OPTIONS)
        moment.wait()
        pids = server.backends(victim, None if victim == "etl launcher" else db)
        assert pids
        for pid in pids:
            assert server.value("SELECT pg_terminate_backend(%s)", (pid,))
        wait_until(lambda: not set(pids) & set(server.backends(victim)), 10, "the victim is gone")
        moment.release()
        done = load.transactions
        wait_until(lambda: load.transactions > done + 50, 60, "the load goes on")
    assert server.value("SELECT pg_backend_pid()", db=db) == session
    settle(server, db, receiver)
    wait_until(lambda: server.backends("etl launcher"), 10, "a launcher again")


@pytest.mark.crashes
@pytest.mark.parametrize("victim, phase", CELLS)
def test_killed(fresh_server, receivers, victim, phase):
    """kill -9 of a process: the server restarts all of its sessions, and everything goes on."""
    server = fresh_server()
    db = server.create_database("d")
    moment = Moment(phase)
    receiver = receivers(answer=moment)
    Workload.create(server, db)
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=OPTIONS)
        moment.wait()
        server.kill_worker(victim)
        moment.release()
        done = load.transactions
        wait_until(lambda: load.transactions > done + 50, 60, "the load goes on")
    settle(server, db, receiver)


@pytest.mark.parametrize("phase", PHASES)
def test_server_killed(fresh_server, receivers, phase):
    """kill -9 of the postmaster, and a start."""
    server = fresh_server(conf={"fsync": "off"})
    db = server.create_database("d")
    moment = Moment(phase)
    receiver = receivers(answer=moment)
    Workload.create(server, db)
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=OPTIONS)
        moment.wait()
        server.kill9()
        moment.release()
        server.start()
        done = load.transactions
        wait_until(lambda: load.transactions > done + 50, 60, "the load goes on")
    settle(server, db, receiver)


def test_killed_again_and_again(fresh_server, receivers):
    """Workers and the whole server, in turn, while the load runs."""
    server = fresh_server()
    db = server.create_database("d")
    receiver = receivers()
    Workload.create(server, db)
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=OPTIONS)
        for victim in ["etl writer", "etl apply", "etl sync", None, "etl apply", "etl writer", None, "etl launcher"]:
            done = load.transactions
            wait_until(lambda: load.transactions > done + 20, 60, "the load goes on")
            if victim is None:
                server.kill9()
                server.start()
            else:
                for pid in server.backends(victim):
                    server.sql("SELECT pg_terminate_backend(%s)", (pid,))
    settle(server, db, receiver)


def test_fast_stop_and_start(fresh_server, receivers):
    """pg_ctl stop -m fast in the middle of a load, with a receiver that does not answer."""
    moment = Moment("ongoing_replication", n=1)
    receiver = receivers(answer=moment)
    server = fresh_server()
    db = server.create_database("d")
    Workload.create(server, db, rows=400)
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=OPTIONS)
        moment.wait()
        server.stop("fast", timeout=10)
        moment.release()
        server.start()
        done = load.transactions
        wait_until(lambda: load.transactions > done + 20, 60, "the load goes on")
    settle(server, db, receiver)


@pytest.fixture
def clear(server):
    """No failpoint is left behind."""
    yield
    server.failpoint("")


@pytest.mark.parametrize("action", ["fatal", "error"])
@pytest.mark.parametrize("point", POINTS)
def test_ends_at(server, db, receivers, clear, point, action):
    """A process ends, or fails, at each named place of the code, twice; everything goes on."""
    receiver = receivers()
    Workload.create(server, db, rows=1000)
    size = server.log_size()
    server.failpoint(f"{point}={action}:2")
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=OPTIONS)
        wait_until(lambda: server.log(size).count(f'failpoint "{point}"') >= 2, 30, f"{point} is reached")
        done = load.transactions
        wait_until(lambda: load.transactions > done + 20, 60, "the load goes on")
    # an error in a table's copy sets that table aside, and is no reason for the others to stop
    server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    parked = [t for t in server.tables("p", db).values() if t["state"] == "errored"]
    if parked:
        assert action == "error" and point in ("sync_copy_row", "batch_send", "batch_durable")
        assert all(t["recovery"] == "retry" and "failpoint" in t["error"] for t in parked)
        assert server.value("SELECT etl.retry_table('p')", db=db) == len(parked) <= 2
    settle(server, db, receiver)
    if action == "error":
        logged = "SELECT count(*) > 0 FROM etl.error_log WHERE message LIKE '%failpoint%'"
        wait_until(lambda: server.value(logged, db=db), 10, "the error log knows")


@pytest.mark.crashes
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(fresh_server, receivers, point):
    """The same by SIGKILL: the server restarts all sessions; everything goes on."""
    server = fresh_server()
    db = server.create_database("d")
    receiver = receivers()
    Workload.create(server, db, rows=1000)
    server.failpoint(f"{point}=panic")
    with Workload(server, db) as load:
        webhook(server, db, receiver, options_=OPTIONS)
        wait_until(lambda: "was terminated by signal 9" in server.log(), 30, f"{point} is reached")
        server.close()
        # it is reached again at once: nobody can connect to take it back by SQL
        (server.data / "postgresql.auto.conf").write_text("")
        server.reload()
        server.wait_ready()
        done = load.transactions
        wait_until(lambda: load.transactions > done + 20, 60, "the load goes on")
    settle(server, db, receiver)
