"""What a destination behind HTTP can do wrong, and what must not follow from it."""

import subprocess
import time
from pathlib import Path

import pytest
from harness import ProcessSample, assert_equal, wait_until
from harness.pipeline import drop, webhook
from harness.sink import Sink
from harness.tls import Authority

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
QUICK = {"retry_delay": "50ms", "max_retry_delay": "200ms", "auth_retry_delay": "200ms"}
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, note text);
CREATE TABLE other (id int PRIMARY KEY, note text);
INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 20) i;
CREATE PUBLICATION pub FOR TABLE t, other;
"""


@pytest.fixture
def sinks():
    """Makes sinks: sinks(secrets=..., authority=...)."""
    made = []

    def make(**kwargs):
        made.append(Sink(**kwargs))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


@pytest.fixture
def sink(sinks):
    return sinks()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    return Authority(folder)


@pytest.fixture(scope="session")
def resolver(tmp_path_factory, top):
    """A library that makes a server's name resolution stall (see stall.c)."""
    library = tmp_path_factory.mktemp("stall") / "stall.so"
    for parent in (library.parent, library.parent.parent, library.parent.parent.parent):
        parent.chmod(0o755)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, top / "test/stall/stall.c", "-ldl"], check=True)
    return library


def begin(server, db, sink, options=None, wait=True, mapping=None, **server_options):
    """Tables, publication and the webhook pipeline p; returns when it is in step."""
    server.psql(TABLES, db)
    webhook(server, db, sink, options_={**QUICK, **(options or {})}, mapping=mapping, **server_options)
    if wait:
        server.wait_for("p", db)


def in_trouble(server, db, timeout=20, text=None):
    """The status once it tells of a problem (that contains `text`)."""
    def look():
        row = server.status("p", db)
        return row if row["problem"] and (text is None or text in row["problem"]) else None

    return wait_until(look, timeout, f"a problem is shown: {text}")


def in_step(server, db, sink):
    """Everything arrived, nothing is parked, no problem is shown."""
    server.wait_for("p", db)
    assert_equal(server, db, sink.state(), ["public.t", "public.other"])
    assert {t["state"] for t in server.tables("p", db).values()} == {"ready"}
    wait_until(lambda: server.status("p", db)["problem"] is None, 10, "no problem is shown any more")


def change(server, db):
    server.sql("INSERT INTO t SELECT i, 'streamed' FROM generate_series(101, 110) i", db=db)
    server.sql("UPDATE t SET note = 'changed' WHERE id < 5", db=db)
    server.sql("INSERT INTO other VALUES (1, 'one')", db=db)


def every_retry_was_the_same(sink):
    """Requests with one webhook-id have one body."""
    bodies = {}
    for request in sink.requests():
        if request.fault not in ("cut", "early"):
            bodies.setdefault(request.headers["webhook-id"], set()).add(request.raw)
    assert all(len(found) == 1 for found in bodies.values())


# --- one fault after another, in ongoing replication ---

FAULTS = {
    "500": [{"action": "status", "status": 500, "count": 3}],
    "502": [{"action": "status", "status": 502, "count": 2, "body": "<html>bad gateway</html>"}],
    "503": [{"action": "status", "status": 503, "count": 2}],
    "408": [{"action": "status", "status": 408}],
    "425": [{"action": "status", "status": 425}],
    "429": [{"action": "status", "status": 429, "count": 2}],
    "401": [{"action": "status", "status": 401, "count": 2}],
    "403": [{"action": "status", "status": 403, "count": 2}],
    "404": [{"action": "status", "status": 404, "count": 2}],
    "415": [{"action": "status", "status": 415, "count": 2}],
    "garbage": [{"action": "garbage", "count": 2}],
    "other protocol": [{"action": "garbage", "body": "SSH-2.0-OpenSSH_9.2\r\n", "count": 2}],
    "half": [{"action": "half", "count": 2}],
    "closed": [{"action": "empty", "count": 2}],
    "reset": [{"action": "reset", "count": 2}],
    "taken, then lost": [{"action": "lost", "count": 2}],
    "reset at once": [{"action": "reset", "count": 1}, {"action": "reset_accept", "count": 3}],
    "closed at once": [{"action": "empty", "count": 1}, {"action": "close_accept", "count": 3}],
    "endless answer": [{"action": "endless"}],
    "endless headers": [{"action": "endless_headers", "count": 2}],
    "refused early": [{"action": "early", "status": 503, "count": 2}],
    "cut in the body": [{"action": "cut", "bytes": 10, "count": 2}],
    "slow": [{"action": "slow", "seconds": 0.3}],
    "dripping": [{"action": "slow", "pause": 0.005, "body": "thanks"}],
    "mixed": [{"action": "status", "status": 500}, {"action": "reset"}, {"action": "half"}, {"action": "lost"},
              {"action": "status", "status": 401}, {"action": "garbage"}],
}


def test_every_fault_is_survived(server, db, sink):
    """Each fault in turn: nothing lost, nothing parked, retries are the same bytes."""
    begin(server, db, sink)
    for number, (name, plan) in enumerate(FAULTS.items(), 1):
        sink.plan(*plan)
        server.sql("INSERT INTO t VALUES (%s, %s)", (1000 + number, name), db=db)
        server.sql("UPDATE t SET note = %s WHERE id = 1", (name,), db=db)
        server.sql("INSERT INTO other VALUES (%s, %s)", (number, name), db=db)
        server.wait_for("p", db)
        wait_until(lambda: not sink.left(), 20, f"fault used up: {name}")
    in_step(server, db, sink)
    every_retry_was_the_same(sink)


@pytest.mark.parametrize("action", ["hang", "hang_headers", "hang_body", "hang_accept"])
def test_a_destination_that_hangs_costs_request_timeout(server, db, sink, action):
    begin(server, db, sink, request_timeout="700ms", connect_timeout="500ms")
    sink.plan({"action": "reset"}, {"action": action, "count": 2})
    change(server, db)
    in_step(server, db, sink)
    assert not sink.left()


def test_down_at_the_start(server, db, sink):
    """Nothing is decoded, the views say why, and it goes on by itself."""
    sink.down()
    begin(server, db, sink, wait=False)
    problem = in_trouble(server, db, text="could not connect")["problem"]
    assert f"127.0.0.1:{sink.port}" in problem
    change(server, db)
    sink.plan()
    in_step(server, db, sink)


@pytest.mark.parametrize("how", [{"action": "refuse"}, {"action": "ignore"}, {"action": "ignore", "full": True}])
def test_going_down_in_the_middle(server, db, sink, how):
    begin(server, db, sink, request_timeout="700ms", connect_timeout="500ms")
    change(server, db)
    sink.plan({**how, "count": None})
    server.sql("UPDATE t SET note = 'while down'", db=db)
    in_trouble(server, db)
    assert server.status("p", db)["last_error"]
    server.sql("DELETE FROM t WHERE id = 3", db=db)
    sink.plan()
    in_step(server, db, sink)


def test_down_in_the_copy(server, db, sink):
    """The copy survives an outage without starting over."""
    server.psql(TABLES, db)
    server.sql("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1000, 9000) i", db=db)
    sink.plan({"action": "status", "status": 200, "count": 3}, {"action": "status", "status": 500, "count": 3},
              {"action": "reset", "count": 2}, {"action": "lost", "count": 1})
    webhook(server, db, sink, options_=QUICK)
    in_step(server, db, sink)
    assert not sink.left()


def test_retry_after_is_honoured(server, db, sink):
    begin(server, db, sink)
    sink.plan({"action": "status", "status": 429, "headers": {"Retry-After": "2"}})
    server.sql("INSERT INTO other VALUES (1, 'one')", db=db)
    in_step(server, db, sink)
    requests = sink.requests()
    refused = next(i for i, r in enumerate(requests) if r.answer == 429)
    assert requests[refused + 1].time - requests[refused].time >= 1.9


def test_too_large_is_halved(server, db, sink):
    """413 above a size: smaller requests, everything arrives."""
    begin(server, db, sink)
    sink.plan({"action": "status", "status": 413, "larger": 3000, "count": None})
    with server.connect(db, autocommit=False) as c:
        c.execute("INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(100, 160) i")
        c.commit()
    in_step(server, db, sink)
    assert any(r.answer == 413 for r in sink.requests())
    assert all(len(r.body) <= 3000 for r in sink.delivered() if r.number > 5)


@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_row_parks_its_table_only(server, db, sink, status):
    begin(server, db, sink)
    sink.plan({"action": "status", "status": status, "contains": "poison", "count": None})
    with server.connect(db, autocommit=False) as c:
        c.execute("INSERT INTO t SELECT i, 'fine' FROM generate_series(101, 105) i")
        c.execute("INSERT INTO other VALUES (1, 'one')")
        c.execute("INSERT INTO t VALUES (106, 'poison')")
        c.execute("INSERT INTO other VALUES (2, 'two')")
        c.commit()
    server.sql("INSERT INTO other VALUES (3, 'three')", db=db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    tables = server.tables("p", db)
    assert tables["public.t"]["state"] == "errored"
    assert tables["public.t"]["sqlstate"] == "22000"
    assert "poison" not in tables["public.t"]["error"]
    assert tables["public.other"]["state"] == "ready"
    assert_equal(server, db, sink.state(), ["public.other"])
    assert any(r["id"] == 105 for r in sink.state().rows("public.t"))


def test_gone_fails_the_pipeline(server, db, sink):
    begin(server, db, sink)
    sink.plan({"action": "status", "status": 410, "count": None})
    server.sql("INSERT INTO other VALUES (1, 'one')", db=db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 20, "the pipeline failed")
    before = sink.stats()["requests"]
    assert "410" in server.status("p", db)["problem"]
    assert server.tables("p", db)["public.other"]["state"] == "ready"
    sink.plan()
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    in_step(server, db, sink)
    assert sink.stats()["requests"] > before


# --- where requests may go, and what they may carry there ---

@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(server, db, sinks, status):
    sink, elsewhere = sinks(), sinks()
    begin(server, db, sink)
    sink.plan({"action": "status", "status": status, "headers": {"Location": elsewhere.url}, "count": None})
    server.sql("INSERT INTO other VALUES (1, 'one')", db=db)
    in_trouble(server, db, text=str(status))
    assert elsewhere.stats()["connections"] == 0
    sink.plan()
    in_step(server, db, sink)


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "2852039166",
                                  "100.100.100.200", "[fd00:ec2::254]"])
def test_metadata_addresses_are_refused(server, db, host):
    begin(server, db, f"http://{host}/latest/", wait=False)
    in_trouble(server, db, text="not allowed")


def test_a_name_does_not_lead_to_a_metadata_address(fresh_server, resolver, sink, monkeypatch):
    """The filter looks at the address after resolution."""
    monkeypatch.setenv("LD_PRELOAD", str(resolver))
    server = fresh_server()
    db = server.create_database("d")
    begin(server, db, "http://at-169-254-169-254.example/", wait=False)
    in_trouble(server, db, text="not allowed")
    drop(server, db)
    server.sql("DROP SERVER s_p CASCADE", db=db)
    webhook(server, db, f"http://at-127-0-0-1.example:{sink.port}/", options_=QUICK)
    in_step(server, db, sink)


def allow(server, hosts):
    server.sql(f"ALTER SYSTEM SET etl.allowed_hosts = '{hosts}'")
    server.sql("SELECT pg_reload_conf()")


def test_allowed_hosts(fresh_server, sink):
    server = fresh_server({"etl.allowed_hosts": "'.example.com, 10.0.0.0/8'"})
    db = server.create_database("d")
    begin(server, db, sink, wait=False)
    in_trouble(server, db, text="not allowed")
    assert sink.stats()["connections"] == 0
    allow(server, ".example.com, 127.0.0.0/8")
    in_step(server, db, sink)

    # taken back: also from connections that are open
    before = sink.stats()["requests"]
    allow(server, ".example.com")
    wait_until(lambda: server.value("SHOW etl.allowed_hosts", db=db) == ".example.com", 10, "the setting is taken")
    in_trouble(server, db, text="not allowed")
    server.sql("INSERT INTO other VALUES (1, 'one')", db=db)
    assert not server.value("SELECT etl.wait_for('p', timeout => '1s')", db=db)
    assert sink.stats()["requests"] == before

    with pytest.raises(Exception, match="no host name"):
        allow(server, "10.0.0.0/40")


@pytest.mark.parametrize("url", ["ftp://h/", "file:///etc/passwd", "http://u:p@h/", "http://user@allowed@evil/",
                                 "http://h/\r\nX: y", "http:///h", "nonsense", ""])
def test_bad_urls_are_refused_at_definition(server, db, url):
    result = server.psql("CREATE SERVER s FOREIGN DATA WRAPPER etl_webhook OPTIONS (url E'"
                         + url.replace("\r\n", "\\r\\n") + "')", db, check=False)
    assert result.returncode != 0
    assert "etl" in result.stderr.lower() or "url" in result.stderr.lower()


def test_tls_with_an_authority_of_ones_own(server, db, sinks, authority):
    sink = sinks(authority=authority)
    begin(server, db, sink, wait=False)
    in_trouble(server, db, text="certificate")
    server.sql(f"ALTER SERVER s_p OPTIONS (ADD ca_file '{authority.ca}')", db=db)
    in_step(server, db, sink)


def test_tls_with_a_client_certificate(server, db, sinks, authority):
    sink = sinks(authority=authority, client_ca=True)
    begin(server, db, sink, ca_file=authority.ca, client_cert_file=authority.client_cert,
          client_key_file=authority.client_key)
    in_step(server, db, sink)
    assert {r.client for r in sink.requests()} == {"etl"}


def test_signatures_are_checked_by_the_receiver(server, db, sinks):
    """A wrong secret is the endpoint's trouble: nothing is parked."""
    sink = sinks(secrets=[SECRET])
    begin(server, db, sink, mapping={"secret": OTHER_SECRET}, wait=False)
    in_trouble(server, db, text="401")
    server.sql(f"ALTER USER MAPPING FOR CURRENT_USER SERVER s_p OPTIONS (SET secret '{SECRET}')", db=db)
    in_step(server, db, sink)
    assert all(r.unsigned is None for r in sink.delivered())


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_compressed_bodies(server, db, sinks, compression):
    sink = sinks(secrets=[SECRET])
    begin(server, db, sink, mapping={"secret": SECRET}, compression=compression)
    server.sql("INSERT INTO t SELECT i, repeat(md5(i::text), 10) FROM generate_series(1000, 3000) i", db=db)
    in_step(server, db, sink)
    assert {r.headers.get("content-encoding") for r in sink.requests()} == {compression}


def test_no_secret_in_the_log(fresh_server, sinks):
    server = fresh_server({"log_min_messages": "debug1"})
    db = server.create_database("d")
    sink = sinks(path="/hook?token=marker-query")
    log = server.log_size()
    server.psql(TABLES, db)
    server.sql("SET log_statement = 'none'")
    webhook(server, db, sink, options_=QUICK, mapping={"secret": SECRET, "user": "joe", "password": "marker-password"})
    server.wait_for("p", db)
    for plan in ({"action": "status", "status": 500}, {"action": "status", "status": 401}, {"action": "reset"},
                 {"action": "garbage"}, {"action": "status", "status": 404, "body": "marker-answer"}):
        sink.plan(plan)
        server.sql("UPDATE t SET note = 'marker-row' WHERE id = 1", db=db)
        server.wait_for("p", db)
    in_step(server, db, sink)
    assert sink.requests()[-1].headers["authorization"].startswith("Basic ")
    lines = [line for line in server.log(log).splitlines() if "CREATE " not in line and "UPDATE " not in line]
    views = server.sql("SELECT s::text FROM etl.pipeline_status s UNION ALL SELECT e::text FROM etl.error_log e"
                       " UNION ALL SELECT t::text FROM etl.table_status t", db=db)
    for marker in ("marker-query", "marker-password", "marker-answer", "marker-row", SECRET):
        assert not [line for line in lines if marker in line]
        assert not [row for row in views if marker in row[0]]


# --- the source server stays free ---

def writer_of(server, db):
    return wait_until(lambda: server.backends("etl writer", db), 20, "a writer")[0]


def gone(server, db):
    return not server.backends("etl writer", db) and not server.backends("etl apply", db)


@pytest.fixture(params=["hang", "stall"])
def stuck(request, fresh_server, resolver, sinks, monkeypatch):
    """A server whose pipeline hangs: in a request, or in name resolution."""
    monkeypatch.setenv("LD_PRELOAD", str(resolver))
    server = fresh_server()
    db = server.create_database("d")
    sink = sinks()
    if request.param == "hang":
        begin(server, db, sink)
        sink.hang()
        server.sql("INSERT INTO other VALUES (1, 'one')", db=db)
        sink.wait_stats(lambda s: s["hanging"] > 0, what="a request hangs")
    else:
        begin(server, db, "http://stall.example/", wait=False, connect_timeout="1min")
        writer = writer_of(server, db)
        wait_until(lambda: len(list(Path(f"/proc/{writer}/task").iterdir())) > 1, 20, "a resolver thread")
    return server, db, sink


def test_stop_is_prompt(stuck):
    server, db, _ = stuck
    timeout = server.value("SELECT setting::int FROM pg_settings WHERE name = 'etl.shutdown_timeout'", db=db) / 1000
    started = time.monotonic()
    server.sql("SELECT etl.stop_pipeline('p')", db=db)
    wait_until(lambda: gone(server, db), timeout + 5, "workers gone")
    assert time.monotonic() - started <= timeout + 1


def test_fast_shutdown_is_prompt(stuck):
    server, _, _ = stuck
    started = time.monotonic()
    server.stop("fast")
    assert time.monotonic() - started <= 2


def test_drop_of_another_database_is_prompt(stuck):
    server, _, _ = stuck
    for _ in range(5):
        server.create_database("elsewhere", extension=False)
        started = time.monotonic()
        server.sql("DROP DATABASE elsewhere")
        assert time.monotonic() - started <= 0.5


def test_drop_of_its_database_is_prompt(stuck):
    server, db, _ = stuck
    server.close(db)
    started = time.monotonic()
    server.sql(f"DROP DATABASE {db}")
    assert time.monotonic() - started <= 5


def test_termination_is_prompt_and_starts_again(stuck):
    server, db, sink = stuck
    writer = writer_of(server, db)
    started = time.monotonic()
    server.sql("SELECT pg_terminate_backend(%s)", (writer,), db=db)
    wait_until(lambda: (server.backends("etl writer", db) or [writer])[0] != writer, 5, "another writer")
    assert time.monotonic() - started <= 3


def test_hanging_costs_nothing(stuck):
    """CPU and wake-ups of the workers while the destination does not answer."""
    server, db, _ = stuck
    for kind in ("etl apply", "etl writer"):
        pid = server.backends(kind, db)[0]
        sample = ProcessSample.over(pid, 5)
        assert sample.cpu <= 0.005, f"{kind}: {sample}"
        assert sample.wakeups <= 10, f"{kind}: {sample}"


def test_being_down_costs_nothing(server, db, sink):
    """The same between retries, and the log stays quiet."""
    sink.down()
    server.psql(TABLES, db)
    webhook(server, db, sink)
    in_trouble(server, db)
    log = server.log_size()
    for kind in ("etl apply", "etl writer"):
        pid = server.backends(kind, db)[0]
        sample = ProcessSample.over(pid, 5)
        assert sample.cpu <= 0.005, f"{kind}: {sample}"
        assert sample.wakeups <= 10, f"{kind}: {sample}"
    lines = [line for line in server.log(log).splitlines() if "could not connect" in line]
    assert len(lines) <= 1, lines
