"""etl.validate_pipeline() and etl.test_destination(): what is found, by name, and that nobody is in the way."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
import pytest
from harness import wait_until
from harness.pipeline import create, null, options, webhook
from harness.sink import Sink
from harness.tls import Authority


def findings(server, db, pipeline="p"):
    """(check_name, target) -> (severity, message, hint)"""
    rows = server.sql("SELECT severity, check_name, target, message, hint FROM etl.validate_pipeline(%s)",
                      (pipeline,), db)
    for severity, _, target, message, hint in rows:
        assert severity in ("error", "warning", "notice") and target and message
        assert hint or severity == "notice", message
    return {(row[1], row[2]): (row[0], *row[3:]) for row in rows}


def severities(server, db, pipeline="p"):
    return {key[0]: value[0] for key, value in findings(server, db, pipeline).items()}


def answers(server, db, destination):
    """check_name -> (ok, message)"""
    rows = server.sql("SELECT check_name, ok, message, elapsed FROM etl.test_destination(%s)", (destination,), db)
    assert all(row[3].total_seconds() >= 0 for row in rows)
    return {row[0]: (row[1], row[2]) for row in rows}


def published(server, db):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t", db=db)


def prepared(server, db):
    """A pipeline that nothing keeps from running."""
    published(server, db)
    null(server, db, start=False)


def checks_running(server):
    return server.backends("etl check")


# -- the server --------------------------------------------------------------


def test_nothing_to_say(fresh_server):
    server = fresh_server(conf={"max_slot_wal_keep_size": "'2GB'", "output_plugin_libraries": None})
    db = server.create_database("d")
    prepared(server, db)
    assert {k: v for k, v in findings(server, db).items() if k[0] != "output_plugin_libraries"} == {}
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert {k: v for k, v in findings(server, db).items() if k[0] != "output_plugin_libraries"} == {}


def test_settings_of_the_server(fresh_server):
    server = fresh_server(conf={"wal_level": "replica", "max_replication_slots": "2", "etl.max_workers": "3",
                                "max_worker_processes": "5"})
    db = server.create_database("d")
    prepared(server, db)
    found = findings(server, db)
    assert found["wal_level", "wal_level"][0] == "error"
    assert found["free_replication_slots", "max_replication_slots"][0] == "error"
    assert found["free_workers", "etl.max_workers"][0] == "warning"
    assert found["free_workers", "max_worker_processes"][0] == "warning"


def test_settings_of_retention(fresh_server):
    server = fresh_server()
    db = server.create_database("d")
    prepared(server, db)
    for value, expected in [("-1", {"slot_retention_unlimited": "warning"}), ("0", {"slot_retention_zero": "error"}),
                            ("'1023MB'", {"slot_retention_low": "warning"}), ("'1GB'", {})]:
        server.write_conf(max_slot_wal_keep_size=value)
        server.reload()
        wait_until(lambda: {k: v for k, v in severities(server, db).items() if k.startswith("slot_retention")} == expected,
                   5, f"{expected}")


def test_not_preloaded(fresh_server):
    server = fresh_server(conf={"shared_preload_libraries": "''"})
    server.sql("CREATE EXTENSION etl")
    prepared(server, "postgres")
    found = severities(server, "postgres")
    assert found["preloaded"] == "error"
    assert found["destination_connect"] == "warning"


def test_no_launcher(fresh_server):
    server = fresh_server()
    db = server.create_database("d")
    prepared(server, db)
    server.sql("SELECT pg_terminate_backend(%s)", (server.backends("etl launcher")[0],))
    wait_until(lambda: findings(server, db).get(("launcher_running", "etl launcher")), 3, "launcher_running")
    wait_until(lambda: server.backends("etl launcher"), 10, "a new launcher")
    wait_until(lambda: ("launcher_running", "etl launcher") not in findings(server, db), 3, "nothing to say")


def test_plugin_libraries(server, db):
    """Where the setting exists and does not name etl, pg_upgrade will ask for it."""
    prepared(server, db)
    exists = server.value("SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'")
    found = findings(server, db)
    assert found.get(("output_plugin_libraries", "output_plugin_libraries"), (None,))[0] == ("notice" if exists else None)


def test_a_database_of_unknown_encoding(server):
    server.sql("CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    try:
        server.sql("CREATE EXTENSION etl", db="ascii")
        prepared(server, "ascii")
        assert server.value("SELECT count(*) FROM etl.validate_pipeline('p')"
                            " WHERE check_name = 'server_encoding' AND severity = 'error' AND target = 'ascii'", db="ascii")
    finally:
        server.drop_database("ascii")


def test_on_a_standby(fresh_server):
    primary = fresh_server()
    db = primary.create_database("d")
    prepared(primary, db)
    standby = fresh_server(start=False)
    primary._run("pg_basebackup", "-D", standby.data, "-h", primary.base, "-p", primary.port,
                 "-U", "postgres", "-R", "-c", "fast")
    standby.start()
    standby.wait_ready()
    found = findings(standby, db)
    assert found["launcher_running", "etl launcher"][0] == "error"
    assert found["destination_connect", "s_p"][:2] == ("warning", "could not be tested: recovery is in progress")


# -- tables --------------------------------------------------------------------


def test_names_that_collide(server, db):
    """Two tables of one name at the destination: by chance, by option, and a table with another's view."""
    server.sql("CREATE SERVER w FOREIGN DATA WRAPPER etl_clickhouse OPTIONS (url 'http://127.0.0.1:1/', database 'd')", db=db)
    server.sql("""CREATE SCHEMA "a_"; CREATE SCHEMA a; CREATE TABLE "a_".b (id int PRIMARY KEY);
                  CREATE TABLE a."_b" (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY);
                  CREATE TABLE d (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE "a_".b, c, d""", db=db)
    create(server, db, "p", "pub", "w", start=False)

    def collisions():
        return [value[1] for (check, _), value in findings(server, db).items() if check == "name_collision"]

    assert collisions() == []
    server.sql('ALTER PUBLICATION pub ADD TABLE a."_b"', db=db)
    assert len(collisions()) == 1 and '"a___b"' in collisions()[0]
    server.sql("""SELECT etl.alter_table('p', 'a."_b"', '{"destination_table": "another"}')""", db=db)
    assert collisions() == []
    server.sql("""SELECT etl.alter_table('p', 'c', '{"destination_table": "public_d_current"}')""", db=db)
    assert len(collisions()) == 1 and '"public_d_current"' in collisions()[0]
    server.sql("SELECT etl.alter_table('p', 'c', jsonb_build_object('destination_table', repeat('long', 60)))", db=db)
    assert len(collisions()) == 1 and "too long" in collisions()[0]


def test_a_destination_that_needs_keys(server, db):
    """A table without key is an error for it, also when it only gets inserts."""
    server.sql("CREATE SERVER w FOREIGN DATA WRAPPER etl_clickhouse OPTIONS (url 'http://127.0.0.1:1/', database 'd')", db=db)
    server.sql("CREATE TABLE t (id int); CREATE PUBLICATION pub FOR TABLE t WITH (publish = insert)", db=db)
    create(server, db, "p", "pub", "w", start=False)
    assert findings(server, db)["replica_identity", "public.t"][0] == "error"
    server.sql("""SELECT etl.alter_table('p', 't', '{"engine": "merge_tree"}')""", db=db)
    assert findings(server, db)["replica_identity", "public.t"][0] == "warning"
    server.sql("""SELECT etl.alter_table('p', 't', '{"engine": null}');
                  ALTER TABLE t REPLICA IDENTITY FULL""", db=db)
    assert findings(server, db)["replica_identity", "public.t"][0] == "error"


def test_columns_that_the_destination_cannot_take(server, db):
    """What would park the table at its start is an error before."""
    server.sql("CREATE SERVER w FOREIGN DATA WRAPPER etl_clickhouse OPTIONS (url 'http://127.0.0.1:1/', database 'd')", db=db)
    server.sql("""CREATE TABLE t (id int PRIMARY KEY, _etl_version int); CREATE TABLE u (id int PRIMARY KEY, n int NOT NULL);
                  CREATE TABLE k (id int PRIMARY KEY, n int); CREATE PUBLICATION pub FOR TABLE t, u, k""", db=db)
    create(server, db, "p", "pub", "w", start=False)
    server.sql("""ALTER TABLE u REPLICA IDENTITY FULL; SELECT etl.alter_table('p', 'u', '{"order_by": "n, id"}');
                  ALTER TABLE u REPLICA IDENTITY DEFAULT; SELECT etl.alter_column('p', 'k', 'n', '{"destination_type": "Int16"}');
                  ALTER TABLE k ALTER n TYPE uuid USING NULL""", db=db)
    found = findings(server, db)
    assert found["name_collision", "public.t"][0] == "error" and "_etl_version" in found["name_collision", "public.t"][1]
    assert found["replica_identity", "public.u"][0] == "error" and "order_by" in found["replica_identity", "public.u"][1]
    assert found["not_replicable", "public.k"][0] == "notice" and "Int16" in found["not_replicable", "public.k"][1]
    assert server.sql("SELECT DISTINCT source::text FROM etl.plan('p')", db=db) == []


def test_many_tables(server, db):
    """One lock at a time: more tables than a transaction may lock."""
    published(server, db)
    server.psql("SELECT format('CREATE TABLE s%s (id int PRIMARY KEY)', g) FROM generate_series(1, 1500) g \\gexec\n", db)
    server.sql("CREATE PUBLICATION everything FOR ALL TABLES", db=db)
    null(server, db, publication="everything", start=False)
    held = server.value("SELECT count(*) FROM etl.validate_pipeline('p'),"
                        " LATERAL (SELECT count(*) AS n FROM pg_locks WHERE pid = pg_backend_pid()) l WHERE l.n > 500", db=db)
    assert held == 0


# -- the destination -------------------------------------------------------------


class Silent:
    """Takes connections and says nothing."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port = self.socket.getsockname()[1]

    def close(self):
        self.socket.close()


@pytest.fixture
def silent():
    made = Silent()
    yield made
    made.close()


class Warehouse:
    """Answers queries of ClickHouse as `reply(query)` says: (status, headers, body)."""

    def __init__(self, reply):
        warehouse = self
        self.queries = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                query = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
                warehouse.queries.append(self.path + " " + query)
                status, headers, body = reply(query)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, *args):
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.httpd.server_address[1]}"
        threading.Thread(target=self.httpd.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()


def text(value):
    return bytes([len(value)]) + value.encode()


def warehouse_reply(version="26.7.2.1", engine="Atomic", granted=True, refuse=None):
    def reply(query):
        if refuse:
            return 403, {"X-ClickHouse-Exception-Code": str(refuse)}, b"Code: %d. DB::Exception: no\n" % refuse
        if "CHECK GRANT" in query:
            return 200, {}, bytes([granted])
        return 200, {}, text(version) + text(engine)
    return reply


@pytest.fixture
def warehouses():
    made = []

    def make(**kwargs):
        made.append(Warehouse(warehouse_reply(**kwargs)))
        return made[-1]

    yield make
    for w in made:
        w.close()


PASSED = ("destination_connect", "user_mapping", "destination_version", "destination_privileges")


@pytest.mark.parametrize("fault, failed", [
    ({}, None),
    ({"refuse": 516}, "user_mapping"),
    ({"version": "20.3.1.1"}, "destination_version"),
    ({"engine": "Ordinary"}, "destination_version"),
    ({"engine": ""}, "destination_connect"),
    ({"granted": False}, "destination_privileges"),
])
def test_a_warehouse_says_how_far_one_gets(server, db, warehouses, fault, failed):
    warehouse = warehouses(**fault)
    published(server, db)
    server.sql("CREATE SERVER w FOREIGN DATA WRAPPER etl_clickhouse "
               + options({"url": warehouse.url, "database": "analytics"}), db=db)
    server.sql("CREATE USER MAPPING FOR CURRENT_USER SERVER w OPTIONS (user 'u', password 'hush')", db=db)
    create(server, db, "p", "pub", "w", start=False)

    got = answers(server, db, "w")
    assert "hush" not in str(got)
    passed = PASSED[:PASSED.index(failed)] if failed else PASSED
    assert {name: ok for name, (ok, _) in got.items()} == {**dict.fromkeys(passed, True), **({failed: False} if failed else {})}

    found = {check: value for (check, target), value in findings(server, db).items() if target == "w"}
    assert set(found) == ({failed} if failed else set())
    if failed:
        assert found[failed][0] == "error" and found[failed][2]
        assert "hush" not in str(found)
    # looking leaves nothing behind
    assert not [q for q in warehouse.queries if any(word in q.upper() for word in ("KILL", "CREATE TABLE `", "INSERT INTO"))]


def test_credentials_that_are_missing_are_named(server, db, warehouses):
    warehouse = warehouses(refuse=194)
    server.sql("CREATE SERVER w FOREIGN DATA WRAPPER etl_clickhouse "
               + options({"url": warehouse.url, "database": "analytics"}), db=db)
    ok, message = answers(server, db, "w")["user_mapping"]
    assert not ok
    assert 'Role "postgres" has no user mapping for server "w"' in message


def test_whose_mapping_is_used(server, db):
    """test_destination() takes the caller's, validate_pipeline() the owner's."""
    published(server, db)
    server.sql("DROP ROLE IF EXISTS v_owner; CREATE ROLE v_owner REPLICATION LOGIN")
    try:
        with Sink() as sink:
            server.sql("CREATE SERVER h FOREIGN DATA WRAPPER etl_webhook " + options({"url": sink.url}), db=db)
            server.sql("GRANT USAGE ON FOREIGN SERVER h TO v_owner; GRANT SELECT ON t TO v_owner;"
                       "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA etl TO v_owner", db=db)
            with server.connect(db, "v_owner") as c:
                c.execute("SELECT etl.create_pipeline('p', publication => 'pub', destination => 'h')")
            server.sql("CREATE USER MAPPING FOR v_owner SERVER h OPTIONS (secret_file '/nonexistent/key')", db=db)
            assert answers(server, db, "h")["destination_connect"][0]
            found = findings(server, db)["destination_connect", "h"]
            assert found[0] == "error" and "option \"secret_file\"" in found[1]
            server.sql("GRANT pg_read_server_files TO v_owner")
            found = [value for (check, target), value in findings(server, db).items() if target == "h"]
            assert len(found) == 1 and "could not read file \"/nonexistent/key\"" in found[0][1]
            server.sql("DROP USER MAPPING FOR v_owner SERVER h", db=db)
            assert ("destination_connect", "h") not in findings(server, db)
            assert sink.stats()["requests"] == 0
    finally:
        server.sql("SELECT etl.drop_pipeline('p', force => true)", db=db)
        wait_until(lambda: server.status("p", db) is None, 10, "pipeline gone")
        server.sql("DROP OWNED BY v_owner", db=db)
        server.sql("DROP ROLE v_owner")


def test_wrong_tls(server, db, tmp_path):
    """A certificate that nobody has signed; with the authority's file it is right."""
    authority = Authority(server.base / f"tls_{db}")
    with Sink(authority=authority) as sink:
        server.sql("CREATE SERVER h FOREIGN DATA WRAPPER etl_webhook " + options({"url": sink.url}), db=db)
        ok, message = answers(server, db, "h")["destination_connect"]
        assert not ok and "certificate" in message.lower()
        server.sql(f"ALTER SERVER h OPTIONS (ADD ca_file '{authority.ca}')", db=db)
        assert answers(server, db, "h") == {"destination_connect": (True, "connected")}


def test_no_answer_within_ten_seconds(server, db, silent):
    """A receiver that accepts and says nothing."""
    published(server, db)
    webhook(server, db, f"https://127.0.0.1:{silent.port}/", start=False, connect_timeout="1min")
    ok, message = answers(server, db, "s_p")["destination_connect"]
    assert not ok and "within 10 s" in message
    wait_until(lambda: not checks_running(server), 5, "no process is left")


@pytest.mark.parametrize("query", ["SELECT * FROM etl.test_destination('s_p')", "SELECT * FROM etl.validate_pipeline('p')"])
@pytest.mark.parametrize("how", ["cancel", "timeout", "terminate"])
def test_cancelled_at_once(server, db, silent, query, how):
    """And nothing is left: no process, no transaction."""
    published(server, db)
    webhook(server, db, f"https://127.0.0.1:{silent.port}/", start=False, connect_timeout="1min")
    with server.connect(db) as c:
        pid = c.execute("SELECT pg_backend_pid()").fetchone()[0]
        if how == "timeout":
            c.execute("SET statement_timeout = '300ms'")
        failure = []

        def ask():
            try:
                c.execute(query)
            except psycopg.Error as error:
                failure.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        if how != "timeout":
            wait_until(lambda: checks_running(server), 5, "a check worker")
            server.sql("SELECT pg_%s_backend(%%s)" % how, (pid,))
        thread.join(3)
        assert not thread.is_alive()
        assert failure and failure[0].sqlstate in ("57014", "57P01")
    wait_until(lambda: not checks_running(server), 3, "no process is left")


def test_no_worker_process_is_free(fresh_server):
    server = fresh_server(conf={"max_worker_processes": "4", "etl.max_workers": "2"})
    db = server.create_database("d")
    published(server, db)
    # launcher, core's launcher and a pair take all four
    null(server, db)
    wait_until(lambda: server.backends("etl apply") and server.backends("etl writer"), 10, "a pair")
    ok, message = answers(server, db, "s_p")["destination_connect"]
    assert not ok and message.startswith("could not be tested: no worker process is free")
    assert findings(server, db)["destination_connect", "s_p"][0] == "warning"


def test_a_running_pipeline_does_not_notice(server, db, silent):
    """Neither the one that is validated nor others."""
    published(server, db)
    null(server, db, "p")
    server.wait_for("p", db)
    webhook(server, db, f"https://127.0.0.1:{silent.port}/", name="q", start=False, connect_timeout="1min")
    pids = server.backends("etl writer", db)
    with server.connect(db) as c:
        def ask():
            with pytest.raises(psycopg.errors.QueryCanceled):
                c.execute("SELECT * FROM etl.validate_pipeline('q')")

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: checks_running(server), 5, "a check worker")
        server.sql("INSERT INTO t VALUES (1, 'a')", db=db)
        server.wait_for("p", db, timeout=5)
        assert findings(server, db, "p").get(("destination_connect", "s_p")) is None
        c.cancel()
        thread.join(5)
        assert not thread.is_alive()
    assert server.backends("etl writer", db) == pids


def test_an_altered_server_is_tested_as_it_is(server, db, receiver):
    """Nothing is remembered from before."""
    published(server, db)
    webhook(server, db, "http://127.0.0.1:1/", start=False)
    assert not answers(server, db, "s_p")["destination_connect"][0]
    server.sql(f"ALTER SERVER s_p OPTIONS (SET url '{receiver.url}')", db=db)
    assert answers(server, db, "s_p")["destination_connect"][0]
    assert severities(server, db).get("destination_connect") is None
