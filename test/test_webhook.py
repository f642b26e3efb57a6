"""The webhook destination: what answers do, options, secrets, partial rows, odd names, other encodings."""

import base64
import json
import os

import psycopg
import pytest
from harness import assert_equal, wait_until
from harness.pipeline import drop, webhook
from standardwebhooks import Webhook

SECRETS = ["whsec_" + base64.b64encode(bytes([i]) * 32).decode() for i in (1, 2, 3)]


def setup(server, db, tables=("a", "b")):
    for t in tables:
        server.psql(f"CREATE TABLE {t} (id int PRIMARY KEY, v text)", db)
    server.psql(f"CREATE PUBLICATION pub FOR TABLE {', '.join(tables)}", db)


def poisoned(status):
    return lambda request: status if b"poison" in request.body else None


# --- answers ---


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
def test_is_sent_again_until_it_is_taken(server, db, receivers, status):
    refusals = []

    def answer(request):
        if b'"again"' in request.body and len(refusals) < 2:
            refusals.append((request.headers["webhook-id"], request.body))
            return status, {"Retry-After": "0"}

    setup(server, db)
    receiver = receivers(answer)
    webhook(server, db, receiver, options_={"retry_delay": "20ms"})
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (1, 'again')", db)
    server.wait_for("p", db)
    taken = [(r.headers["webhook-id"], r.body) for r in receiver.delivered() if b'"again"' in r.body]
    assert len(refusals) == 2 and set(refusals) == set(taken) and len(taken) == 1
    assert server.tables("p", db)["public.a"]["state"] == "ready"
    drop(server, db)


@pytest.mark.parametrize("status", [400, 422, 413])
@pytest.mark.parametrize("phase", ["copy", "stream"])
def test_refused_row_parks_its_table_alone(server, db, receivers, status, phase):
    setup(server, db)
    receiver = receivers(poisoned(status))
    rows = "SELECT g, CASE g WHEN 37 THEN 'poison' ELSE 'v' END FROM generate_series(1, 100) g"
    if phase == "copy":
        server.psql(f"INSERT INTO a {rows}; INSERT INTO b SELECT g, 'v' FROM generate_series(1, 100) g", db)
    webhook(server, db, receiver)
    if phase == "stream":
        server.wait_for("p", db)
        server.psql(f"""BEGIN; INSERT INTO b SELECT g, 'v' FROM generate_series(1, 50) g; INSERT INTO a {rows};
                    INSERT INTO b SELECT g, 'v' FROM generate_series(51, 100) g; COMMIT""", db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    tables = server.tables("p", db)
    assert tables["public.b"]["state"] == "ready"
    parked = tables["public.a"]
    assert parked["state"] == "errored"
    assert f"status {status}" in parked["error"]
    assert_equal(server, db, receiver.state(), ["public.b"])
    if phase == "stream":
        assert parked["recovery"] == "resync"
        # everything before the refused row was delivered, nothing behind it
        ids = sorted(e["key"]["id"] for e in receiver.events() if e["event"] == "insert" and e["table"]["name"] == "a")
        assert ids == list(range(1, 37))
        # and the transaction of the other table is whole, in order
        xid = next(e["xid"] for e in receiver.events() if e["event"] == "begin")
        ordinals = [e["tx_ordinal"] for e in receiver.events() if e["xid"] == xid]
        assert ordinals == sorted(ordinals) and ordinals[0] == 0 and ordinals[-1] == 201
    ids = [r.headers["webhook-id"] for r in receiver.requests if r.answer == 200]
    assert len(ids) == len(set(ids))
    # batches that differ have ids that differ, refused ones too
    bodies = {}
    for r in receiver.requests:
        assert bodies.setdefault(r.headers["webhook-id"], r.body) == r.body
    drop(server, db)


def test_a_repaired_table_comes_back(server, db, receivers):
    setup(server, db)
    receiver = receivers(poisoned(400))
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (1, 'poison'); INSERT INTO a VALUES (2, 'w')", db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert server.tables("p", db)["public.a"]["state"] == "errored"
    server.psql("UPDATE a SET v = 'well' WHERE id = 1; SELECT etl.retry_table('p')", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a", "public.b"])
    drop(server, db)


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 415])
def test_trouble_of_the_endpoint_parks_nothing(server, db, receivers, status):
    trouble = {"on": False}
    setup(server, db)
    receiver = receivers(lambda request: (status, {"Location": "http://127.0.0.1:1/"}) if trouble["on"] else None)
    webhook(server, db, receiver, options_={"auth_retry_delay": "50ms"})
    server.wait_for("p", db)
    trouble["on"] = True
    server.psql("INSERT INTO a VALUES (1, 'x')", db)
    wait_until(lambda: server.status("p", db)["healthy"] is False, 20, "not healthy")
    assert f"status {status}" in server.status("p", db)["last_error"]
    assert {t["state"] for t in server.tables("p", db).values()} == {"ready"}
    trouble["on"] = False
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a"])
    wait_until(lambda: server.status("p", db)["healthy"], 20, "healthy again")
    drop(server, db)


def test_gone_for_good(server, db, receivers):
    setup(server, db)
    receiver = receivers(poisoned(410))
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("INSERT INTO a VALUES (1, 'poison')", db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 20, "failed")
    assert "410" in server.status("p", db)["last_error"]
    drop(server, db)


def test_a_refused_begin_is_the_endpoints_trouble(server, db, receivers):
    """An event of no table parks nobody."""
    refuse = {"on": False}
    setup(server, db)
    receiver = receivers(lambda r: 400 if refuse["on"] and b'"event":"begin"' in r.body else None)
    webhook(server, db, receiver, options_={"auth_retry_delay": "50ms"})
    server.wait_for("p", db)
    refuse["on"] = True
    server.psql("INSERT INTO a VALUES (1, 'x')", db)
    wait_until(lambda: server.status("p", db)["healthy"] is False, 20, "not healthy")
    assert {t["state"] for t in server.tables("p", db).values()} == {"ready"}
    refuse["on"] = False
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.a"])
    drop(server, db)


def test_receiver_away_at_the_start(server, db, receivers):
    receiver = receivers()
    url, port = receiver.url, receiver.port
    receiver.close()
    setup(server, db)
    server.psql("INSERT INTO a VALUES (1, 'x')", db)
    webhook(server, db, url, options_={"retry_delay": "20ms", "max_retry_delay": "100ms"})
    wait_until(lambda: f"127.0.0.1:{port}" in (server.status("p", db)["last_error"] or ""), 20, "an error")
    drop(server, db)


# --- secrets and headers ---


def verified(request, secret):
    try:
        Webhook(secret).verify(request.body, request.headers)
        return True
    except Exception:
        return False


def test_two_secrets_sign(server, db, receiver):
    setup(server, db)
    server.psql("INSERT INTO a VALUES (1, 'x')", db)
    webhook(server, db, receiver, mapping={"secret": SECRETS[0], "previous_secret": SECRETS[1]})
    server.wait_for("p", db)
    for request in receiver.requests:
        assert verified(request, SECRETS[0]) and verified(request, SECRETS[1]) and not verified(request, SECRETS[2])
    drop(server, db)


def test_secret_file(server, db, receiver):
    path = server.base / "hook.secret"
    path.write_text(f"{SECRETS[2]}\n\n{SECRETS[1]}\n")
    os.chmod(path, 0o644)
    setup(server, db)
    server.psql("INSERT INTO a VALUES (1, 'x')", db)
    webhook(server, db, receiver, mapping={"secret_file": str(path)})
    server.wait_for("p", db)
    assert receiver.requests
    for request in receiver.requests:
        assert verified(request, SECRETS[2]) and verified(request, SECRETS[1])
    drop(server, db)


@pytest.mark.parametrize("content", [None, "", "whsec_short\n", "5ef1b1f0-unlike-a-secret"])
def test_bad_secret_file_is_waited_for(server, db, receiver, content):
    path = server.base / f"{db}.secret"
    if content is not None:
        path.write_text(content)
        os.chmod(path, 0o644)
    setup(server, db)
    webhook(server, db, receiver, mapping={"secret_file": str(path)}, options_={"auth_retry_delay": "50ms"})
    wait_until(lambda: server.status("p", db)["last_error"], 20, "an error")
    assert not receiver.requests
    if content:
        assert content.strip() not in server.log()
    path.write_text(SECRETS[0])
    os.chmod(path, 0o644)
    server.wait_for("p", db)
    drop(server, db)


def test_headers_of_server_and_mapping_are_sent(server, db, receiver):
    setup(server, db)
    server.psql("INSERT INTO a VALUES (1, 'x')", db)
    webhook(server, db, receiver, headers=json.dumps({"X-Plain": "one, two", "X-Both": "server"}),
            mapping={"headers": json.dumps({"Authorization": "Bearer t0p", "X-Both": "mapping"})})
    server.wait_for("p", db)
    for request in receiver.requests:
        assert request.headers["x-plain"] == "one, two"
        assert request.headers["authorization"] == "Bearer t0p"
        assert request.headers["x-both"] == "mapping"
    assert "t0p" not in server.log()
    drop(server, db)


def test_basic_authentication(server, db, receiver):
    setup(server, db)
    server.psql("INSERT INTO a VALUES (1, 'x')", db)
    webhook(server, db, receiver, mapping={"user": "u", "password": "p:w"})
    server.wait_for("p", db)
    want = "Basic " + base64.b64encode(b"u:p:w").decode()
    assert {r.headers.get("authorization") for r in receiver.requests} == {want}
    drop(server, db)


@pytest.mark.parametrize("where, values", [
    ("server", {"url": "ftp://x/"}), ("server", {"url": "http://u:p@x/"}), ("server", {"url": "no url"}),
    ("server", {"format": "xml"}), ("server", {"headers": "[]"}), ("server", {"headers": '{"a b":"c"}'}),
    ("server", {"headers": '{"a":"c\\r\\nd: e"}'}), ("server", {"headers": '{"a":1}'}), ("server", {"headers": '{"a":""}'}),
    ("server", {"headers": '{"Content-Length":"1"}'}), ("server", {"headers": '{"Webhook-Id":"1"}'}),
    ("server", {"int8_as": "text"}), ("server", {"secret": SECRETS[0]}), ("server", {"nonsense": "1"}),
    ("mapping", {"secret": "plain"}), ("mapping", {"secret": "whsec_c2hvcnQ="}), ("mapping", {"previous_secret": SECRETS[0]}),
    ("mapping", {"secret": SECRETS[0], "secret_file": "/x"}), ("mapping", {"password": "a", "password_file": "/x"}),
    ("mapping", {"format": "plain"}),
    ("pipeline", {"events": ["insert", "updates"]}), ("pipeline", {"events": "insert"}), ("pipeline", {"format": 1}),
    ("pipeline", {"headers": {"a": "b"}}),
])
def test_bad_options_are_refused(server, db, where, values):
    setup(server, db)
    options = {"url": "http://127.0.0.1:1/"} | (values if where == "server" else {})
    with pytest.raises(psycopg.Error) as caught:
        webhook(server, db, options.pop("url"), mapping=values if where == "mapping" else None,
                options_=values if where == "pipeline" else None, start=False, **options)
    assert caught.value.sqlstate in ("22023", "HV00D")
    for value in values.values():
        if where == "mapping" and isinstance(value, str) and not value.startswith("/"):
            assert value not in str(caught.value) or value in ("a", "plain")


# --- values by option ---


def test_values_by_option(server, db, receiver):
    server.psql("""CREATE TABLE t (id int8 PRIMARY KEY, n numeric, b bytea, a int8[]);
                CREATE PUBLICATION pub FOR TABLE t; INSERT INTO t VALUES (1, 7000.00, '\\xdeadbeef00', '{1}')""", db)
    webhook(server, db, receiver, options_={"int8_as": "string", "numeric_as": "number", "bytea_as": "base64"})
    server.wait_for("p", db)
    assert b'"key":{"id":"1"},"table_row":{"id":"1","n":7000.00,"b":"3q2+7wA=","a":["1"]}' in receiver.requests[0].body
    relation = next(e for e in receiver.events() if e["event"] == "relation")
    assert [c["json"] for c in relation["replicated_table_schema"]["columns"]] == ["string", "number", "string", "array"]

    server.sql("SELECT etl.alter_pipeline('p', %s)", (json.dumps({"int8_as": None, "numeric_as": None}),), db)
    wait_until(lambda: server.sql("SELECT etl.wait_for('p')", db=db) and _after_change(server, db, receiver),
               30, "rows in the new form")
    drop(server, db)


def _after_change(server, db, receiver):
    server.psql("UPDATE t SET n = n + 1", db)
    server.wait_for("p", db)
    return b'"updated_table_row":{"id":1,"n":"70' in receiver.requests[-1].body


# --- partial rows ---


def test_unchanged_toast_is_named_not_made_up(server, db, receiver):
    big, small = "x" * 200000, "small"
    server.psql("""CREATE TABLE t (id int PRIMARY KEY, n int, big text, j jsonb, b bytea);
                ALTER TABLE t ALTER big SET STORAGE external, ALTER b SET STORAGE external, ALTER j SET STORAGE external;
                CREATE PUBLICATION pub FOR TABLE t""", db)
    server.sql("INSERT INTO t VALUES (1, 0, %s, jsonb_build_object('k', %s::text), decode(repeat('ab', 100000), 'hex'))",
               (big, big), db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("SELECT etl.stop_pipeline('p')", db)
    wait_until(lambda: not server.backends("etl writer", db), 10, "stopped")
    for query in ("UPDATE t SET n = 1", "UPDATE t SET n = n + 1", "UPDATE t SET big = 'small', n = 3", "UPDATE t SET n = 4",
                  "UPDATE t SET j = '1', b = ''"):
        server.psql(query, db)
    server.psql("SELECT etl.start_pipeline('p')", db)
    server.wait_for("p", db)
    updates = [e for e in receiver.events() if e["event"] == "update"]
    assert [u["missing_columns"] for u in updates] == [["big", "j", "b"], ["big", "j", "b"], ["j", "b"], ["j", "b"], []]
    assert [u["updated_table_row_kind"] for u in updates] == ["partial"] * 4 + ["full"]
    assert [u["updated_table_row"].get("big") for u in updates] == [None, None, small, small, small]
    assert all(u["old_table_row"] is None for u in updates)
    assert_equal(server, db, receiver.state(), ["public.t"])
    drop(server, db)


def test_unchanged_toast_under_full_and_in_the_key(server, db, receiver):
    server.psql("""CREATE TABLE f (id int PRIMARY KEY, n int, big text);
                ALTER TABLE f ALTER big SET STORAGE external, REPLICA IDENTITY full;
                CREATE TABLE k (id text PRIMARY KEY, n int, other text);
                ALTER TABLE k ALTER id SET STORAGE external, ALTER other SET STORAGE external;
                INSERT INTO f VALUES (1, 0, repeat('z', 50000)); INSERT INTO k VALUES (repeat('k', 2200), 0, repeat('o', 50000));
                CREATE PUBLICATION pub FOR TABLE f, k""", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("SELECT etl.stop_pipeline('p')", db)
    wait_until(lambda: not server.backends("etl writer", db), 10, "stopped")
    server.psql("UPDATE f SET n = 1; UPDATE k SET n = 1; UPDATE k SET n = 2, other = ''", db)
    server.psql("SELECT etl.start_pipeline('p')", db)
    server.wait_for("p", db)
    by_table = {e["table"]["name"]: e for e in reversed(receiver.events()) if e["event"] == "update"}
    assert by_table["f"]["updated_table_row"]["big"] == "z" * 50000
    assert by_table["f"]["updated_table_row_kind"] == "full" and by_table["f"]["missing_columns"] == []
    assert by_table["f"]["old_table_row"] == {"id": 1, "n": 0, "big": "z" * 50000}
    # the key is stored out of line, unchanged: known, and no old row
    assert by_table["k"]["updated_table_row"]["id"] == by_table["k"]["key"]["id"] == "k" * 2200
    assert by_table["k"]["missing_columns"] == ["other"]
    assert by_table["k"]["old_table_row"] is None
    assert_equal(server, db, receiver.state(), ["public.f", "public.k"])
    drop(server, db)


@pytest.mark.parametrize("wrapping", ["plain", "cloudevents"])
def test_unchanged_toast_is_completed_from_the_row_before(server, db, receiver, wrapping):
    """Within what is under way the value is known, and it is the right row's even when keys move."""
    server.psql("""CREATE TABLE t (id int PRIMARY KEY, n int, "b ig" text, j json);
                ALTER TABLE t ALTER "b ig" SET STORAGE external, ALTER j SET STORAGE external;
                INSERT INTO t VALUES (1, 0, repeat('a', 9000), '1'), (9, 0, repeat('z', 9000), '9');
                CREATE PUBLICATION pub FOR TABLE t""", db)
    webhook(server, db, receiver, format=wrapping)
    server.wait_for("p", db)

    # whether the first row is still under way when the second comes is a matter of luck
    def completed():
        server.psql("""BEGIN; DELETE FROM t WHERE id = 4;
                    INSERT INTO t VALUES (4, 0, repeat('b', 9000), to_json(repeat('c,"}', 3000)));
                    UPDATE t SET n = 1 WHERE id = 4; COMMIT""", db)
        server.wait_for("p", db)
        last = [e for e in receiver.events() if e["event"] == "update"][-1]
        return last if last["updated_table_row_kind"] == "full" else None

    update = wait_until(completed, 30, "a completed row")
    assert update["missing_columns"] == [] and list(update["updated_table_row"]) == ["id", "n", "b ig", "j"]
    assert update["updated_table_row"]["b ig"] == "b" * 9000
    assert update["updated_table_row"]["j"] == 'c,"}' * 3000

    server.psql("""BEGIN;
                INSERT INTO t VALUES (2, 0, repeat('b', 9000), to_json(repeat('c,"}', 3000)));
                UPDATE t SET n = 1 WHERE id = 2;
                UPDATE t SET id = 3 WHERE id = 2;
                UPDATE t SET id = 2 WHERE id = 1;
                UPDATE t SET n = 5 WHERE id = 2;
                UPDATE t SET n = 6 WHERE id = 3;
                DELETE FROM t WHERE id = 3;
                UPDATE t SET id = 3 WHERE id = 9;
                UPDATE t SET n = 7 WHERE id = 3;
                COMMIT""", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    drop(server, db)


# --- names, encodings, width ---


ODD = 'a"b\\c/é\t{}'


@pytest.mark.parametrize("wrapping", ["plain", "ndjson", "cloudevents"])
def test_odd_names(server, db, receiver, wrapping):
    with server.connect(db) as c:
        def q(name):
            return '"' + name.replace('"', '""') + '"'
        c.execute(f"CREATE SCHEMA {q(ODD)}")
        c.execute(f"CREATE TABLE {q(ODD)}.{q(ODD)} ({q(ODD)} text PRIMARY KEY, v json)")
        c.execute(f"CREATE PUBLICATION pub FOR TABLE {q(ODD)}.{q(ODD)}")
        c.execute(f"INSERT INTO {q(ODD)}.{q(ODD)} VALUES (%s, %s)", (ODD, '{"a":1,\r\n "b":[ ]}'))
        webhook(server, db, receiver, name="p", start=False, format=wrapping)
        c.execute("SELECT etl.rename_pipeline('p', %s)", (ODD,))
        c.execute("SELECT etl.start_pipeline(%s)", (ODD,))
        server.wait_for(ODD, db)
        c.execute(f"UPDATE {q(ODD)}.{q(ODD)} SET {q(ODD)} = 'k2'")
    server.wait_for(ODD, db)
    for event in receiver.events():
        assert event["pipeline"] == ODD
        if "table" in event:
            assert event["table"]["schema"] == event["table"]["name"] == ODD
    update = next(e for e in receiver.events() if e["event"] == "update")
    assert update["key"] == {ODD: ODD} and update["updated_table_row"][ODD] == "k2"
    assert update["old_table_row"] == {ODD: ODD} and update["old_table_row_kind"] == "key"
    whole = b"".join(r.body for r in receiver.requests)
    assert (b'{"a":1,   "b":[ ]}' if wrapping == "ndjson" else b'{"a":1,\r\n "b":[ ]}') in whole
    assert {r.headers["etl-pipeline"] for r in receiver.requests} == {'a"b\\c/%C3%A9%09{}'}
    if wrapping == "cloudevents":
        cloud = [c for r in receiver.requests for c in json.loads(r.body) if c["type"] == "etl.update"]
        assert [c["partitionkey"].split(":", 1)[1] for c in cloud] == [json.dumps([ODD], ensure_ascii=False)]
        assert {c["subject"] for c in cloud} == {f"{ODD}.{ODD}"}
    drop(server, db, ODD)


@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1251", "EUC_JP"])
def test_other_encodings_arrive_as_utf8(server, receiver, encoding):
    text = {"LATIN1": "é\xff", "WIN1251": "Жизнь", "EUC_JP": "日本語"}[encoding]
    db = f"enc_{encoding.lower()}"
    server.sql(f"CREATE DATABASE {db} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    server.sql("CREATE EXTENSION etl", db=db)
    with server.connect(db) as c:
        c.execute(f'CREATE TABLE "{text}" (id int PRIMARY KEY, "{text}" text, j json, b jsonb, e text[])')
        c.execute(f'CREATE PUBLICATION pub FOR TABLE "{text}"')
        row = (1, text, json.dumps({text: text}, ensure_ascii=False), json.dumps(text, ensure_ascii=False), [text])
        c.execute(f'INSERT INTO "{text}" VALUES (%s, %s, %s, %s, %s)', row)
        webhook(server, db, receiver)
        server.wait_for("p", db)
        c.execute(f'UPDATE "{text}" SET id = 2')
    server.wait_for("p", db)
    rows = [e.get("table_row") or e["updated_table_row"] for e in receiver.events() if e["event"] in ("insert", "update")]
    assert rows == [{"id": i, text: text, "j": {text: text}, "b": text, "e": [text]} for i in (1, 2)]
    drop(server, db)
    server.drop_database(db)


@pytest.mark.parametrize("encoding, text", [("LATIN1", "é\"\xff"), ("EUC_JP", "日本語")])
def test_the_partition_key_of_another_encoding_is_utf8(server, receiver, encoding, text):
    db = f"part_{encoding.lower()}"
    server.sql(f"CREATE DATABASE {db} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        server.sql("CREATE EXTENSION etl", db=db)
        with server.connect(db) as c:
            c.execute("CREATE TABLE t (k text PRIMARY KEY, v int)")
            c.execute("INSERT INTO t VALUES (%s, 1)", (text,))
            c.execute("CREATE PUBLICATION pub FOR TABLE t")
            webhook(server, db, receiver, format="cloudevents")
            server.wait_for("p", db)
            c.execute("UPDATE t SET v = 2")
        server.wait_for("p", db)
        events = [c for r in receiver.requests for c in json.loads(r.body) if c["type"] in ("etl.insert", "etl.update")]
        assert [c["data"]["key"] for c in events] == [{"k": text}] * 2
        assert [c["partitionkey"].split(":", 1)[1] for c in events] == [json.dumps([text], ensure_ascii=False)] * 2
        drop(server, db)
    finally:
        server.drop_database(db)


def test_widest_table(server, db, receiver):
    columns = ", ".join(f"c{i} int" for i in range(1599))
    server.psql(f"CREATE TABLE wide (id int PRIMARY KEY, {columns}); INSERT INTO wide (id, c0, c1598) VALUES (1, 2, 3);"
                "CREATE PUBLICATION pub FOR TABLE wide", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("UPDATE wide SET c5 = 7", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.wide"])
    drop(server, db)


def test_row_larger_than_a_batch(server, db, receiver):
    server.psql("""CREATE TABLE t (id int PRIMARY KEY, v text, w bytea);
                INSERT INTO t VALUES (1, repeat('a"b', 3000000), decode(repeat('ff', 5000000), 'hex'));
                CREATE PUBLICATION pub FOR TABLE t""", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("INSERT INTO t SELECT 2, v || 'x', w FROM t", db)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.t"])
    drop(server, db)


def test_composite_type_changes_in_the_stream(server, db, receiver):
    """Each row shows the type as it was when the row was written; what is there in the end, as it is now."""
    server.psql("""CREATE TYPE c AS (a int); CREATE TABLE t (id int PRIMARY KEY, c c);
                CREATE PUBLICATION pub FOR TABLE t; INSERT INTO t VALUES (1, ROW(1))""", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("INSERT INTO t VALUES (2, ROW(2)); ALTER TYPE c ADD ATTRIBUTE b text; INSERT INTO t VALUES (3, ROW(3, 'x'));"
                "ALTER TYPE c DROP ATTRIBUTE a; INSERT INTO t VALUES (4, ROW('y'))", db)
    server.wait_for("p", db)
    rows = {e["key"]["id"]: e["table_row"]["c"] for e in receiver.events()
            if e["event"] == "insert" and e["phase"] == "ongoing_replication"}
    assert rows == {2: {"a": 2}, 3: {"a": 3, "b": "x"}, 4: {"b": "y"}}
    assert {row["id"]: row["c"] for row in receiver.state().rows("public.t")} == {
        1: {"b": None}, 2: {"b": None}, 3: {"b": "x"}, 4: {"b": "y"}}
    drop(server, db)
