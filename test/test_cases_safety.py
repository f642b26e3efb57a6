"""Safety, security, life cycle, monitoring, delivery: the case's input against what it calls right.

case -> test
E04 E06 E08 E10 E12 M01 X12: test_<case>_... here
E01  test_cases_values.py (values), test_http.py: test_every_fault_is_survived (answers), test_kills.py
E12  test_dump.py (what a dump carries, a restored database delivers nothing)
E13  test_cases_copy.py (cancel), test_http.py: test_fast_shutdown_is_prompt, test_termination_is_prompt_and_starts_again
E10  test_http.py: test_metadata_addresses_are_refused, test_a_name_does_not_lead_to_a_metadata_address,
     test_allowed_hosts, test_bad_urls_are_refused_at_definition, test_redirects_are_not_followed
X12  test_webhook.py: test_is_sent_again_until_it_is_taken, test_refused_row_parks_its_table_alone
M04 needs a function that compares values at one position, which is not there yet.
"""

import psycopg
import pytest
from harness import assert_equal, wait_until
from harness.pipeline import drop, webhook

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms", "auth_retry_delay": "200ms"}
SECRET = "whsec_c2VjcmV0IG9mIHRoZSB0ZXN0cyBvZiBldGwgIQ=="


def keys(state, table):
    return sorted(row["id"] for row in state.rows(table))


def follow(server, db, receiver, sql, **kwargs):
    server.psql(sql, db)
    webhook(server, db, receiver, options_=FAST, **kwargs)
    server.wait_for("p", db)


def test_e04_dropping_the_extension_leaves_nothing_behind(server, db, receiver, receivers):
    """In a session that used it; DDL and writes go on, and it can be created again there."""
    follow(server, db, receiver, "CREATE TABLE e04(id int PRIMARY KEY); INSERT INTO e04 VALUES (1);"
                                 "CREATE PUBLICATION pub FOR TABLE e04")
    with server.connect(db) as session:
        session.execute("SELECT * FROM etl.status").fetchall()
        assert session.execute("SELECT etl.wait_for('p')").fetchone() == (True,)
        with server.connect(db, autocommit=False) as reader:
            reader.execute("SELECT * FROM e04")  # holds its lock: dropping needs none on users' tables
            session.execute("SET lock_timeout = '5s'")
            session.execute("DROP EXTENSION etl CASCADE")
        session.execute("CREATE VIEW e04_v AS SELECT 1")
        session.execute("DROP VIEW e04_v")
        session.execute("INSERT INTO e04 VALUES (2)")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        wait_until(lambda: session.execute(slots).fetchone() == (0,), 20, "no slot is left")
        for catalog in ("pg_event_trigger", "pg_replication_origin", "pg_foreign_server"):
            assert session.execute(f"SELECT count(*) FROM {catalog}").fetchone() == (0,)
        session.execute("CREATE EXTENSION etl")
        assert session.execute("SELECT * FROM etl.status").fetchall() == []
    second = receivers()  # pipelines are numbered from 1 again, and so are their copies
    webhook(server, db, second, name="q", options_=FAST)
    server.wait_for("q", db)
    server.psql("INSERT INTO e04 VALUES (3)", db)
    server.wait_for("q", db)
    assert keys(receiver.state(), "public.e04") == [1]
    assert keys(second.state(), "public.e04") == [1, 2, 3]
    drop(server, db, "q")


def test_e06_nobody_reads_secrets_and_the_worker_needs_no_grants(server, db, receiver):
    follow(server, db, receiver, "CREATE TABLE e06(id int PRIMARY KEY, secret text); INSERT INTO e06 VALUES (1, 'rowvalue');"
                                 "CREATE PUBLICATION pub FOR TABLE e06; CREATE ROLE e06_reader LOGIN;"
                                 "CREATE ROLE e06_monitor LOGIN IN ROLE pg_monitor",
           mapping={"secret": SECRET, "headers": '{"authorization": "Bearer tokenvalue"}'})
    try:
        relations = server.sql("SELECT oid::regclass::text, relkind::text FROM pg_class"
                               " WHERE relnamespace = 'etl'::regnamespace AND relkind IN ('r', 'v', 'S')", db=db)
        for user in ("e06_reader", "e06_monitor"):
            with server.connect(db, user=user) as c:
                for name, kind in relations:
                    if kind != "v":
                        with pytest.raises(psycopg.errors.InsufficientPrivilege):
                            c.execute(f"SELECT * FROM {name}")
                        continue
                    text = str(c.execute(f"SELECT * FROM {name}").fetchall())
                    assert SECRET[6:] not in text and "tokenvalue" not in text and "rowvalue" not in text
                for catalog in ("pg_user_mappings", "pg_stat_activity"):
                    text = str(c.execute(f"SELECT * FROM {catalog}").fetchall())
                    assert SECRET[6:] not in text and "tokenvalue" not in text
        with server.connect(db, user="e06_reader") as c:
            assert c.execute("SELECT * FROM etl.pipeline_status").fetchall() == []
            acting = server.sql("SELECT oid::regprocedure::text, proname FROM pg_proc WHERE pronamespace = 'etl'::regnamespace"
                                " AND pg_has_role('e06_reader', proowner, 'USAGE')", db=db)
            assert acting == []
        server.psql("REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT ALL ON SCHEMA public TO e06_reader;"
                    "ALTER TABLE e06 OWNER TO e06_reader; INSERT INTO e06 VALUES (2, 'x')", db)
        server.wait_for("p", db)
        assert keys(receiver.state(), "public.e06") == [1, 2]
        server.psql("CREATE TABLE more(id int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE more;"
                    "DROP OWNED BY e06_reader; DROP ROLE e06_reader; INSERT INTO more VALUES (1)", db)
        server.wait_for("p", db)
        assert keys(receiver.state(), "public.more") == [1]
        assert SECRET[6:] not in server.log() and "tokenvalue" not in server.log() and "rowvalue" not in server.log()
    finally:
        server.sql("DROP OWNED BY e06_monitor; DROP ROLE e06_monitor", db=db)
    drop(server, db)


HOSTILE = """
CREATE SCHEMA e08;
CREATE FUNCTION e08.array_to_string(anyarray, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'pwned'; RETURN ''; END $$;
CREATE FUNCTION e08.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'pwned'; RETURN NULL; END $$;
CREATE FUNCTION e08.coalesce_max(int, int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION e08.equal(name, text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'pwned'; RETURN true; END $$;
CREATE OPERATOR e08.= (LEFTARG = name, RIGHTARG = text, FUNCTION = e08.equal);
CREATE FUNCTION e08.equal(bigint, bigint) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'pwned'; RETURN true; END $$;
CREATE OPERATOR e08.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = e08.equal);
"""


def test_e08_hostile_objects_are_not_found(server, db, receiver):
    """In front of pg_catalog, as temporary tables, as operators: our functions and views use none of them."""
    follow(server, db, receiver, f"{HOSTILE} CREATE TABLE e08.t(id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE e08.t")
    said = []
    with server.connect(db) as c:
        c.add_notice_handler(lambda d: said.append(d.message_primary))
        c.execute("CREATE TEMP TABLE pg_class(oid oid, relname name, relnamespace oid);"
                  "CREATE TEMP TABLE pg_publication(oid oid, pubname name); CREATE TEMP TABLE pipeline(id int)")
        c.execute("SET search_path = e08, pg_temp, pg_catalog")
        c.execute("SELECT array_to_string(ARRAY[1], ',')")
        assert "pwned" in said, "the trap works"
        said.clear()
        for view in ("status", "pipeline_status", "table_status", "error_log", "settings", "metrics"):
            c.execute(f"SELECT * FROM etl.{view}").fetchall()
        for call in ("alter_pipeline('p', '{\"max_batch_events\": 7}')", "alter_table('p', 'e08.t', '{\"on_error\": \"park\"}')",
                     "rename_pipeline('p', 'q')", "rename_pipeline('q', 'p')", "retry_table('p')", "resync_table('p', 'e08.t')",
                     "stop_pipeline('p')", "start_pipeline('p')", "resync_pipeline('p')", "validate_pipeline('p')",
                     "test_destination('s_p')", "build_info()",
                     "create_pipeline('other', publication => 'pub', destination => 's_p')", "drop_pipeline('other')"):
            c.execute(f"SELECT * FROM etl.{call}").fetchall()
        c.execute("INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN a int; UPDATE t SET a = 1")
        assert "pwned" not in said
    server.wait_for("p", db)
    assert receiver.state().rows("e08.t") == [{"id": 1, "a": 1}]
    assert "pwned" not in server.log()
    drop(server, db)


@pytest.mark.parametrize("url", ["gopher://h/", "http://h/\r\nX-Injected: 1", "http://user@allowed@evil/", "dict://h/"])
def test_e10_addresses_that_are_none(server, db, url):
    with pytest.raises(psycopg.Error):
        server.sql(psycopg.sql.SQL("CREATE SERVER e10 FOREIGN DATA WRAPPER etl_webhook OPTIONS (url {})").format(
            psycopg.sql.Literal(url)), db=db)


@pytest.mark.parametrize("url", ["http://2130706433:{}/hook", "http://0x7f.1:{}/hook", "http://localhost:{}/hook"])
def test_e10_an_address_is_judged_after_it_is_resolved(fresh_server, receiver, url):
    """However 127.0.0.1 is written, a list of hosts without it keeps it out."""
    server = fresh_server({"etl.allowed_hosts": "'10.0.0.0/8'"})
    db = server.create_database("e10")
    server.psql("CREATE TABLE e10(id int PRIMARY KEY); INSERT INTO e10 VALUES (1); CREATE PUBLICATION pub FOR TABLE e10", db)
    webhook(server, db, url.format(receiver.port), options_=FAST)
    wait_until(lambda: "not allowed" in (server.status("p", db)["problem"] or ""), 20, "refused by name of the setting")
    assert receiver.count == 0


def test_e12_a_dump_by_an_ordinary_owner(server, db, receiver):
    """A role with rights on its own tables dumps them; the whole database needs pg_read_all_data, no superuser."""
    follow(server, db, receiver, "CREATE TABLE e12(id int PRIMARY KEY); INSERT INTO e12 VALUES (1);"
                                 "CREATE PUBLICATION pub FOR TABLE e12; CREATE ROLE e12_owner LOGIN; ALTER TABLE e12 OWNER TO e12_owner",
           mapping={"secret": SECRET})
    try:
        def dump(*options):
            return server._run("pg_dump", "-h", server.base, "-p", server.port, "-U", "e12_owner", *options, db).stdout

        assert "CREATE TABLE public.e12" in dump("-t", "e12") and "COPY public.e12" in dump("-n", "public")
        server.sql("GRANT pg_read_all_data TO e12_owner", db=db)
        text = dump()
        assert "CREATE TABLE public.e12" in text and "COPY etl.pipeline " in text and SECRET[6:] not in text
    finally:
        server.sql("ALTER TABLE e12 OWNER TO postgres; DROP OWNED BY e12_owner; DROP ROLE e12_owner", db=db)
    drop(server, db)


def test_m01_not_green_when_nothing_arrives(server, db, receivers):
    """Figures per table move with deliveries only; a broken route is not healthy."""
    broken = []
    receiver = receivers(lambda r: 404 if broken else 200)
    follow(server, db, receiver, "CREATE TABLE m01(id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE m01")
    server.psql("INSERT INTO m01 VALUES (1)", db)
    server.wait_for("p", db)
    good = server.tables("p", db)["public.m01"]
    assert good["inserts"] == 1 and good["last_change_time"] and good["last_delivered_lsn"]
    assert server.status("p", db)["healthy"]
    broken.append(True)
    server.psql("INSERT INTO m01 VALUES (2)", db)
    wait_until(lambda: server.status("p", db)["healthy"] is False, 20, "not healthy")
    status = server.status("p", db)
    assert "404" in status["problem"] and status["lag_bytes"] > 0 and status["lag"].total_seconds() > 0
    assert server.tables("p", db)["public.m01"]["last_delivered_lsn"] == good["last_delivered_lsn"]
    broken.clear()
    server.wait_for("p", db)
    assert server.tables("p", db)["public.m01"]["inserts"] == 2 and server.status("p", db)["healthy"]
    drop(server, db)


def test_x12_every_answer_has_its_end(server, db, receivers):
    """500 twice, 429, a reset, no answer in time, a redirect: all arrive, in order; 400 parks its table alone."""
    tries = {}
    elsewhere = receivers()

    def answer(request):
        inserts = [e for e in request.events() if e["event"] == "insert" and e["table"]["name"] == "x12"]
        if not inserts:
            return 200
        key = inserts[0]["table_row"]["id"]
        tries.setdefault(key, []).append((request.headers["webhook-id"], request.headers["idempotency-key"], request.body))
        n = len(tries[key])
        if key == 1 and n <= 2:
            return 500
        if key == 2 and n == 1:
            return 429, {"Retry-After": "1"}
        if key == 4 and n == 1:
            raise ConnectionResetError
        if key == 6 and n == 1:
            return 302, {"Location": elsewhere.url}
        return 400 if key == 7 else 200

    receiver = receivers(answer)
    server.psql("CREATE TABLE x12(id int PRIMARY KEY, v text); CREATE TABLE other(id int PRIMARY KEY);"
                "CREATE PUBLICATION pub FOR TABLE x12, other", db)
    webhook(server, db, receiver, options_={**FAST, "max_batch_events": 1})
    server.wait_for("p", db)
    server.psql("INSERT INTO x12 SELECT g, 'v' FROM generate_series(1, 6) g; UPDATE x12 SET v = 'w';", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.x12"])
    assert {key: len(n) for key, n in tries.items()} == {1: 3, 2: 2, 3: 1, 4: 2, 5: 1, 6: 2}
    assert all(len(set(n)) == 1 for n in tries.values()), "ids and bytes of retries are the same"
    assert elsewhere.count == 0
    server.psql("INSERT INTO x12 VALUES (7, 'poison'); INSERT INTO other VALUES (1)", db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert server.tables("p", db)["public.x12"]["state"] == "errored" and keys(receiver.state(), "public.other") == [1]
    assert len(tries[7]) <= 3
    drop(server, db)
