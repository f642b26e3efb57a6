"""The ClickHouse of the tests behaves as ClickHouse: over HTTP, in its bytes, its errors, its faults."""

import gzip
import struct
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
import uuid
from decimal import Decimal

import pytest

from harness.clickhouse import ClickHouse, ClickHouseError, exception, exception_in_body
from harness.clickhouse_equal import assert_current, assert_log, base_name
from harness.tls import Authority
from harness.wait import wait_until

USERS = "(`id`, `name`, `_version`, `_deleted`)"
INSERT = f"INSERT INTO `users` {USERS} FORMAT RowBinary"
ROWS = (struct.pack("<q", 5) + b"\x00\x02hi" + (7).to_bytes(16, "little") + b"\x00"
        + struct.pack("<q", 6) + b"\x01" + (8).to_bytes(16, "little") + b"\x01")
TOOLS = {"zstd": ["zstd", "-cq1"], "lz4": ["lz4", "-cq"], "gzip": ["gzip", "-c"]}


@pytest.fixture(scope="module")
def ch():
    with ClickHouse() as made:
        yield made


@pytest.fixture
def lake(ch):
    """A database of the test's own, with the table users."""
    name = "lake_" + uuid.uuid4().hex[:8]
    ch.create_database(name)
    ch.execute("CREATE TABLE users (id Int64, name Nullable(String), _version UInt128, _deleted UInt8)"
               " ENGINE = ReplacingMergeTree(_version, _deleted) ORDER BY id"
               " SETTINGS non_replicated_deduplication_window = 1000 COMMENT 'etl 1 mark'", database=name)
    yield name
    ch.proxy.plan()
    ch.release()
    ch.execute(f"DROP DATABASE {name}")


def code_of(answer):
    """(status, code) of an exception, whose body must say the same."""
    code = int(answer.headers["x-clickhouse-exception-code"])
    assert answer.body.startswith(b"Code: %d. DB::Exception: " % code), answer.body
    assert answer.body.rstrip().endswith(b"(official build))")
    return answer.status, code


def compressed(encoding, data):
    return subprocess.run(TOOLS[encoding], input=data, stdout=subprocess.PIPE, check=True).stdout


def through_proxy(ch, query, body=b"", **parameters):
    """One request through the proxy: (status, code) or the name of the client's error."""
    url = ch.url + "?" + urllib.parse.urlencode({"query": query, **parameters})
    try:
        with urllib.request.urlopen(url, body, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, int(error.headers.get("X-ClickHouse-Exception-Code", 0))
    except (OSError, urllib.error.URLError, __import__("http.client").client.HTTPException) as error:
        return type(error).__name__, str(error)


# --- HTTP ---

def test_ping_needs_nobody(ch):
    answer = ch.ask(method="GET", path="/ping", headers={"X-ClickHouse-User": "nobody"})
    assert (answer.status, answer.body) == (200, b"Ok.\n")


def test_the_worked_example_of_an_insert(ch, lake):
    answer = ch.ask(INSERT, ROWS, {"X-ClickHouse-Database": lake}, async_insert=0, wait_end_of_query=1,
                    insert_deduplication_token="p1-16402-1", query_id="p1-1")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-clickhouse-query-id"] == "p1-1"
    assert answer.summary["written_rows"] == 2
    assert ch.query(f"SELECT * FROM {lake}.users ORDER BY id") == [(5, "hi", 7, 0), (6, None, 8, 1)]


@pytest.mark.parametrize("encoding", ["zstd", "lz4", "gzip"])
def test_compressed_bodies(ch, lake, encoding):
    body = compressed(encoding, ROWS[:len(ROWS) // 2]) + compressed(encoding, ROWS[len(ROWS) // 2:])
    answer = ch.ask(INSERT, compressed(encoding, ROWS), {"Content-Encoding": encoding}, database=lake)
    assert answer.status == 200 and answer.summary["written_rows"] == 2
    if encoding != "gzip":  # several frames in one body
        assert ch.ask(INSERT, body, {"Content-Encoding": encoding}, database=lake).status == 200
    assert ch.ask(INSERT, ROWS, {"Content-Encoding": encoding}, database=lake).status == 500


def test_a_body_in_chunks_and_one_that_ends_early(ch, lake):
    def chunks():
        yield ROWS[:10]
        yield ROWS[10:]

    assert ch.ask(INSERT, chunks(), database=lake).status == 200
    assert code_of(ch.ask(INSERT, ROWS[:-3], database=lake)) == (500, 33)
    assert ch.value(f"SELECT count() FROM {lake}.users") == 2


def test_statement_and_data_in_one_body(ch, lake):
    ch.execute(INSERT.encode() + b"\n" + ROWS, database=lake)
    ch.execute(f"INSERT INTO users {USERS} VALUES (7, 'FORMAT x', 9, 0), (8, '', 9, 0)", database=lake)
    ch.execute(b'INSERT INTO users FORMAT JSONEachRow\n{"id": 9, "name": "\\u00e9"}', database=lake)
    ch.execute("INSERT INTO users SELECT 10, 'ten', 1, 0", database=lake)
    assert ch.query(f"SELECT id, name FROM {lake}.users ORDER BY id") == [
        (5, "hi"), (6, None), (7, "FORMAT x"), (8, ""), (9, "\u00e9"), (10, "ten")]


def test_names_and_types_are_checked(ch, lake):
    def header(*columns):
        out = bytes([len(columns)])
        for part in (0, 1):
            for column in columns:
                out += bytes([len(column[part])]) + column[part].encode()
        return out

    insert = "INSERT INTO users (id, name) FORMAT RowBinaryWithNamesAndTypes"
    good = header(("id", "Int64"), ("name", "Nullable(String)")) + struct.pack("<q", 1) + b"\x01"
    bad = header(("id", "Int32"), ("name", "Nullable(String)")) + struct.pack("<i", 1) + b"\x01"
    assert ch.ask(insert, good, database=lake).status == 200
    assert code_of(ch.ask(insert, bad, database=lake)) == (400, 117)


def test_a_get_only_reads(ch, lake):
    assert ch.ask("SELECT 1", method="GET").body == b"1\n"
    assert code_of(ch.ask("CREATE TABLE t (a Int8) ENGINE = Memory", method="GET", database=lake)) == (500, 164)


def test_a_post_without_a_length_and_a_long_statement(ch, lake):
    import socket

    with socket.create_connection(("127.0.0.1", ch.port)) as s:
        s.sendall(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 411")
    # the longest URI is 1 MiB, the longest statement max_query_size
    long = "SELECT '" + "x" * 300000 + "'"
    assert code_of(ch.ask(long)) == (400, 62)
    assert ch.ask(long, max_query_size=1000000).status == 200


def test_parameters_and_settings(ch):
    assert ch.value("SELECT {a:String} || {b:UInt8}", param_a="x'y", param_b="3") == "x'y3"
    assert ch.value("SELECT getSetting('max_threads')", max_threads=3) == 3
    assert ch.value("SELECT getSetting('max_threads')") != 3
    assert ch.value("SELECT getSetting('async_insert')") is True


def test_output_formats_and_response_compression(ch):
    answer = ch.ask("SELECT 1 AS a FORMAT JSONEachRow")
    assert (answer.body, answer.headers["x-clickhouse-format"]) == (b'{"a":1}\n', "JSONEachRow")
    assert ch.ask("SELECT 1", default_format="RowBinary").body == b"\x01"
    answer = ch.ask("SELECT 'x'", headers={"Accept-Encoding": "gzip"}, enable_http_compression=1)
    assert gzip.decompress(answer.body) == b"x\n"


# --- errors ---

@pytest.mark.parametrize("query,parameters,expected", [
    ("SELECT 1 FROM nowhere", {}, (404, 60)),
    ("SELECT nothing", {}, (404, 47)),
    ("SELECT 1", {"database": "nowhere"}, (404, 81)),
    ("SELECT 1", {"no_such_setting": "1"}, (404, 115)),
    ("SELEC 1", {}, (400, 62)),
    ("SELECT 1; SELECT 2", {}, (400, 62)),
    ("", {}, (400, 62)),
    ("SELECT 1 FORMAT Nothing", {}, (404, 73)),
    ("SELECT toInt8('x')", {}, (400, 6)),
    ("SELECT sleepEachRow(0.1) FROM numbers(9) FORMAT Null", {"max_execution_time": "0.2", "max_block_size": "1"}, (408, 159)),
    ("CREATE TABLE {lake}.users (a Int8) ENGINE = Memory", {}, (500, 57)),
    ("CREATE TABLE {lake}.t (a Nullable(Int8)) ENGINE = MergeTree ORDER BY a", {}, (400, 44)),
    ("INSERT INTO {lake}.users (nope) FORMAT TSV", {}, (500, 16)),
    ("ALTER TABLE {lake}.users RENAME COLUMN id TO k", {}, (500, 524)),
    ("ALTER TABLE {lake}.users MODIFY COLUMN name REMOVE DEFAULT", {}, (400, 36)),
    ("OPTIMIZE TABLE {lake}.users FINAL CLEANUP", {}, (500, 344)),
])
def test_codes_and_statuses(ch, lake, query, parameters, expected):
    assert code_of(ch.ask(None, query.replace("{lake}", lake).encode(), **parameters)) == expected


def test_an_error_that_quotes_bytes(ch, lake):
    """chdb may lose the text of such an error, and with it the code; it is an error all the same."""
    assert code_of(ch.ask("INSERT INTO users FORMAT CSV", b"\xcd\xff\n", database=lake))[0] in (400, 500)
    assert ch.ask(None, f"SELECT count() FROM {lake}.users".encode()).body == b"0\n"


# --- users ---

def test_users_passwords_and_privileges(ch, lake):
    ch.set_users(default={}, writer={"password": "s3", "grants": [f"SELECT, INSERT ON {lake}.*"]},
                 reader={"grants": [f"SELECT, INSERT ON {lake}.*"], "settings": {"readonly": "1"}}, none={"grants": []})
    try:
        def ask(sql, user, key="", **more):
            return ch.ask(None, sql.encode(), {"X-ClickHouse-User": user, "X-ClickHouse-Key": key}, **more)

        assert ask(f"SELECT count() FROM {lake}.users", "writer", "s3").body == b"0\n"
        assert ch.ask("SELECT 1", headers={"Authorization": "Basic d3JpdGVyOnMz"}).status == 200
        assert ch.ask("SELECT 1", user="writer", password="s3").status == 200
        assert code_of(ask("SELECT 1", "writer", "wrong")) == (403, 516)
        assert code_of(ask("SELECT 1", "nobody")) == (403, 516)
        assert code_of(ask("SELECT 1", "writer", "s3", password="s3")) == (403, 516)
        refused = ask(f"CREATE TABLE {lake}.t (a Int8) ENGINE = Memory", "writer", "s3")
        assert code_of(refused) == (403, 497)
        assert refused.body.startswith(b"Code: 497. DB::Exception: writer: Not enough privileges.")
        assert code_of(ask(f"INSERT INTO {lake}.users SELECT 1, '', 1, 0", "reader")) == (500, 164)
        assert code_of(ask(f"SELECT * FROM {lake}.users", "none")) == (403, 497)
        assert ask(f"SELECT count() FROM system.tables WHERE database = '{lake}'", "none").body == b"0\n"
    finally:
        ch.set_users(default={})


# --- the engine: what the destination builds on ---

def test_bytes_of_the_types(ch, lake):
    examples = [("Float64", "00" * 6 + "f07f", "inf"), ("Decimal(9, 2)", "d2040000", "12.34"),
                ("Date32", "219cffff", "1900-01-01"), ("Date32", "d1d60100", "2299-12-31"),
                ("DateTime64(6, 'UTC')", "006043b7ef26f8ff", "1900-01-01 00:00:00.000000"),
                ("DateTime64(6, 'UTC')", "ffbfece449ff2400", "2299-12-31 23:59:59.999999"),
                ("UUID", "e711b35c04c4f061a0dbd36a00a67b90", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
                ("IPv4", "04030201", "1.2.3.4"), ("Array(Nullable(String))", "020100026162", "[NULL,'ab']"),
                ("Nullable(Int32)", "01", "\\N"), ("LowCardinality(String)", "0178", "x"),
                ("UInt128", "07" + "00" * 15, "7"), ("FixedString(3)", "616200", "ab\\0"), ("Bool", "01", "true")]
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(examples))
    ch.execute(f"CREATE TABLE types ({columns}) ENGINE = MergeTree ORDER BY tuple()", database=lake)
    ch.ask("INSERT INTO types FORMAT RowBinary", bytes.fromhex("".join(e[1] for e in examples)), database=lake)
    shown = ch.ask("SELECT * FROM types FORMAT TSV", database=lake).body.decode().rstrip("\n").split("\t")
    assert shown == [e[2] for e in examples]
    back = ch.ask("SELECT * FROM types FORMAT RowBinary", database=lake).body
    assert back.hex() == "".join(e[1] for e in examples)


def test_a_token_is_taken_once(ch, lake):
    other = ROWS.replace(b"hi", b"ho")
    for body in (ROWS, ROWS, other):  # with a token the data are not looked at
        assert ch.ask(INSERT, body, database=lake, insert_deduplication_token="t1", async_insert=0).status == 200
    assert ch.query(f"SELECT id, name FROM {lake}.users ORDER BY id") == [(5, "hi"), (6, None)]
    ch.ask(INSERT, other, database=lake, insert_deduplication_token="t2", async_insert=0)
    assert ch.value(f"SELECT count() FROM {lake}.users") == 4
    assert ch.query(f"SELECT id, name FROM {lake}.users FINAL") == [(5, "ho")]  # deleted rows are gone


def test_an_insert_is_one_part(ch, lake):
    ch.execute("CREATE TABLE many (a UInt64, s String) ENGINE = MergeTree ORDER BY a", database=lake)
    data = b"".join(struct.pack("<Q", i) + b"\x04abcd" for i in range(300000))
    assert ch.ask("INSERT INTO many FORMAT RowBinary", data, database=lake).summary["written_rows"] == 300000
    assert ch.query(f"SELECT rows FROM system.parts WHERE database = '{lake}' AND table = 'many'") == [(300000,)]


def test_exchange_rename_views_and_marks(ch, lake):
    def run(sql):
        return ch.execute(sql, database=lake)

    run("CREATE VIEW users_current AS SELECT id, name FROM users FINAL WHERE _deleted = 0")
    ch.ask(INSERT, ROWS, database=lake)
    assert ch.query(f"SELECT * FROM {lake}.users_current") == [(5, "hi")]
    run("CREATE TABLE staging AS users")
    run("EXCHANGE TABLES users AND staging")
    assert ch.query(f"SELECT * FROM {lake}.users_current") == []
    run("DROP TABLE users")
    run("RENAME TABLE staging TO users")
    run("ALTER TABLE users COMMENT COLUMN name 'etl:2:1', ADD COLUMN IF NOT EXISTS n Int32 AFTER name")
    run("CREATE OR REPLACE VIEW users_current AS SELECT id, name, n FROM users FINAL WHERE _deleted = 0")
    assert ch.query(f"SELECT * FROM {lake}.users_current") == [(5, "hi", 0)]
    assert ch.tables(lake) == {"users": "etl 1 mark", "users_current": ""}
    assert [c[:2] for c in ch.columns(lake, "users")][:3] == [
        ("id", "Int64"), ("name", "Nullable(String)"), ("n", "Int32")]
    assert ch.columns(lake, "users")[1][2] == "etl:2:1"
    run("TRUNCATE TABLE IF EXISTS users")
    assert ch.value(f"SELECT count() FROM {lake}.users") == 0


def test_queries_side_by_side(ch, lake):
    failures = []

    def work(n):
        for i in range(10):
            answer = ch.ask("INSERT INTO users (id, _version) FORMAT RowBinary",
                            struct.pack("<q", n) + (i + 1).to_bytes(16, "little"), database=lake,
                            insert_deduplication_token=f"{n}-{i}", async_insert=0)
            if answer.status != 200:
                failures.append(answer.body)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ch.query(f"SELECT id, _version FROM {lake}.users FINAL ORDER BY id") == [(n, 10) for n in range(6)]


# --- queries on their way ---

def asking(ch, *args, **kwargs):
    """A request in a thread; the list gets its answer."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ch.ask(*args, **kwargs)))
    thread.start()
    return thread, answers


def test_kill_query_ends_what_waits_and_what_runs(ch, lake):
    ch.hold("INSERT INTO `users`")
    waiting, answers = asking(ch, INSERT, ROWS, database=lake, query_id="etl-0a0b-1-1")
    ch.wait_held()
    assert code_of(ch.ask("SELECT 1", query_id="etl-0a0b-1-1")) == (500, 216)
    slow = "INSERT INTO users (id) SELECT sleepEachRow(0.2) FROM numbers(100) SETTINGS max_block_size = 1"
    running, more = asking(ch, None, slow.encode(), database=lake, query_id="etl-0a0b-1-2")
    wait_until(lambda: ch.value("SELECT count() FROM system.processes WHERE query_id = 'etl-0a0b-1-2'"), 10)
    assert ch.query("KILL QUERY WHERE query_id LIKE 'etl-ffff-%' SYNC") == []
    killed = ch.query("KILL QUERY WHERE query_id LIKE 'etl-0a0b-%' SYNC")
    assert sorted(row[:2] for row in killed) == [("finished", "etl-0a0b-1-1"), ("finished", "etl-0a0b-1-2")]
    waiting.join()
    running.join()
    assert code_of(answers[0]) == code_of(more[0]) == (500, 394)
    assert ch.value(f"SELECT count() FROM {lake}.users") == 0
    assert ch.running() == []


def test_a_query_goes_on_without_its_client(ch, lake):
    import socket

    ch.hold("INSERT INTO `users`")
    target = "/?" + urllib.parse.urlencode({"query": INSERT, "database": lake})
    with socket.create_connection(("127.0.0.1", ch.port)) as s:
        s.sendall(f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(ROWS)}\r\n\r\n".encode() + ROWS)
        ch.wait_held()
    ch.release()
    wait_until(lambda: ch.value(f"SELECT count() FROM {lake}.users") == 2, 10)


# --- life, TLS ---

def test_what_was_answered_survives_a_kill(tmp_path):
    with ClickHouse(tmp_path / "ch", users={"default": {}, "w": {"password": "x"}}, proxy=False) as ch:
        ch.create_database("lake")
        ch.execute("CREATE TABLE lake.t (a UInt64) ENGINE = MergeTree ORDER BY a"
                   " SETTINGS non_replicated_deduplication_window = 10")
        ch.ask("INSERT INTO lake.t FORMAT RowBinary", struct.pack("<Q", 1), insert_deduplication_token="x", async_insert=0)
        ch.kill9()
        ch.start()
        ch.ask("INSERT INTO lake.t FORMAT RowBinary", struct.pack("<Q", 2), insert_deduplication_token="x", async_insert=0)
        assert ch.query("SELECT a FROM lake.t", user="w", password="x") == [(1,)]
        assert [s["written_rows"] for s in ch.statements("INSERT INTO lake.t")] == [1, 1]


def test_tls(tmp_path):
    authority = Authority(tmp_path / "tls")
    with ClickHouse(tmp_path / "ch", authority=authority, proxy=False) as ch:
        assert ch.url.startswith("https://localhost:")
        assert ch.value("SELECT 1") == 1


# --- faults ---

def test_the_proxy_loses_answers_and_the_token_saves_them(ch, lake):
    def insert(token):
        return through_proxy(ch, INSERT, ROWS, database=lake, insert_deduplication_token=token, async_insert=0)

    def count():
        return ch.value(f"SELECT count() FROM {lake}.users")

    for n, fault in enumerate([{"action": "lost"}, {"action": "reset", "apply": True}, {"action": "half", "apply": True},
                               exception(159, "TIMEOUT_EXCEEDED", 408, apply=True)], 1):
        ch.proxy.plan({**fault, "contains": "INSERT INTO `users`"})
        first = insert(f"a{n}")
        assert first[0] == 408 or first == (200, b"") or isinstance(first[0], str), first
        assert count() == 2 * n
        assert insert(f"a{n}") == (200, b"")
        assert count() == 2 * n


def test_the_proxy_refuses_delays_and_repeats(ch, lake):
    def insert(token):
        return through_proxy(ch, INSERT, ROWS, database=lake, insert_deduplication_token=token, async_insert=0)

    def count():
        return ch.value(f"SELECT count() FROM {lake}.users")

    ch.proxy.plan(exception(252, "TOO_MANY_PARTS"), exception(202, "TOO_MANY_SIMULTANEOUS_QUERIES"))
    assert insert("b") == (500, 252)
    assert insert("b") == (500, 202)
    ch.proxy.plan(exception_in_body(241, "MEMORY_LIMIT_EXCEEDED"))
    assert insert("b")[0] == 200
    ch.proxy.plan({"action": "reset"})
    assert isinstance(insert("b")[0], str)
    ch.proxy.plan({"action": "corrupt", "bytes": 8})
    assert insert("b")[0] in (400, 500)
    ch.proxy.plan({"action": "later"})
    assert isinstance(insert("b")[0], str)
    assert count() == 0
    assert ch.proxy.release() == [200]  # a late write
    assert count() == 2
    ch.proxy.plan({"action": "duplicate"})
    assert insert("c") == (200, b"")
    ch.execute(f"TRUNCATE TABLE {lake}.users")  # a plain MergeTree forgets its tokens
    assert ch.proxy.release() == [200]
    assert count() == 2
    ch.proxy.down()
    assert insert("d")[0] == "URLError"
    ch.proxy.plan()
    assert insert("d") == (200, b"")
    assert ch.proxy.requests()[-1].parameters["insert_deduplication_token"] == "d"
    assert ch.proxy.requests()[-1].applied == 200


# --- comparing ---

SOURCE = """
CREATE TABLE every (id bigint PRIMARY KEY, b bool, i int2, f4 real, f8 float8, n numeric(12,3), free numeric, t text,
    c char(5), raw bytea, d date, ts timestamp, tz timestamptz, u uuid, j jsonb, iv interval, m money, a int[], tm time);
INSERT INTO every VALUES
    (1, true, -1, 0.1, 'NaN', 1.5, 1.230, 'x', 'ab', '\\xff00', '1900-01-01', '2299-12-31 23:59:59.999999',
     '2026-01-01 00:00+05', '61f0c404-5cb3-11e7-907b-a6006ad3dba0', '{"a": [1, 2]}', '1 day', '-12.30', '{1,NULL}', '24:00');
INSERT INTO every (id) VALUES (2);
"""
EVERY = """CREATE TABLE public_every (id Int64, b Nullable(Bool), i Nullable(Int16), f4 Nullable(Float32),
    f8 Nullable(Float64), n Nullable(Decimal(12, 3)), free Nullable(String), t Nullable(String), c Nullable(String),
    raw Nullable(String), d Nullable(Date32), ts Nullable(DateTime64(6, 'UTC')), tz Nullable(DateTime64(6, 'UTC')),
    u Nullable(UUID), j Nullable(String), iv Nullable(String), m Nullable(String), a Array(Nullable(Int32)),
    a__is_null UInt8, tm Nullable(Time64(6))"""
VALUES = """VALUES (1, true, -1, 0.1, nan, 1.5, '1.230', 'x', 'ab   ', unhex('ff00'), '1900-01-01',
    '2299-12-31 23:59:59.999999', '2025-12-31 19:00:00', '61f0c404-5cb3-11e7-907b-a6006ad3dba0', '{"a": [1, 2]}', 'P1D',
    '-12.30', [1, NULL], 0, '24:00:00'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, [], 1, NULL)"""


def test_comparing_finds_each_difference(ch, lake, server, db):
    server.psql(SOURCE, db)
    ch.execute(EVERY + ") ENGINE = MergeTree ORDER BY id", database=lake)
    ch.execute("CREATE VIEW public_every_current AS SELECT * FROM public_every", database=lake)
    ch.execute("INSERT INTO public_every " + VALUES, database=lake)
    ch.execute("CREATE TABLE good AS public_every", database=lake)
    ch.execute("INSERT INTO good SELECT * FROM public_every", database=lake)
    assert_current(server, db, ch, lake, "public.every")
    for column, other in [("f4", "0.10000002"), ("f8", "1"), ("n", "1.501"), ("free", "'1.23'"), ("c", "'ab'"),
                          ("raw", "unhex('ff01')"), ("ts", "addMicroseconds(ts, 1)"), ("a", "[1]"), ("a__is_null", "1"),
                          ("tm", "'00:00:00'"), ("u", "generateUUIDv4()"), ("b", "NULL")]:
        ch.execute("TRUNCATE TABLE public_every", database=lake)
        ch.execute(f"INSERT INTO public_every SELECT * REPLACE (if(id = 1, {other}, {column}) AS {column}) FROM good",
                   database=lake)
        with pytest.raises(AssertionError, match=column.removesuffix("__is_null")):
            assert_current(server, db, ch, lake, "public.every")
    ch.execute("TRUNCATE TABLE public_every", database=lake)
    with pytest.raises(AssertionError, match="2 rows at the source, 0 at the destination"):
        assert_current(server, db, ch, lake, "public.every")


def test_comparing_odd_names_other_names_and_no_key(ch, lake, server, db):
    server.psql('CREATE TABLE "odd_""Name" ("a`b\\c %s" int, plain text, c int);'
                ' INSERT INTO "odd_""Name" VALUES (1, NULL, 5), (1, NULL, 5), (2, \'x\', 6)', db)
    name = base_name("public", 'odd_"Name')
    assert name == 'public_odd__"Name'
    ch.execute(f"CREATE TABLE `{name}_current` (`a\\`b\\\\c %s` Int32, other Nullable(String)) ENGINE = Log", database=lake)
    ch.execute(f"INSERT INTO `{name}_current` VALUES (1, NULL), (2, 'x')", database=lake)
    columns = ["a`b\\c %s", "plain"]
    with pytest.raises(AssertionError, match="lacking 1"):
        assert_current(server, db, ch, lake, 'public."odd_""Name"', columns, {"plain": "other"})
    ch.execute(f"INSERT INTO `{name}_current` VALUES (1, NULL)", database=lake)
    assert_current(server, db, ch, lake, 'public."odd_""Name"', columns, {"plain": "other"})


def test_folding_a_log(ch, lake, server, db):
    server.psql("CREATE TABLE kept (id int PRIMARY KEY, v text); INSERT INTO kept VALUES (1, 'a'), (30, 'c')", db)
    name = base_name("public", "kept")
    ch.execute(f"CREATE TABLE {name} (id Nullable(Int32), v Nullable(String), cdc_operation LowCardinality(String),"
               " cdc_epoch UInt16, cdc_lsn UInt64, cdc_ordinal UInt64, cdc_timestamp DateTime64(6, 'UTC'),"
               " cdc_old_key Nullable(String)) ENGINE = MergeTree ORDER BY (cdc_epoch, cdc_lsn, cdc_ordinal)", database=lake)
    ch.execute(f"INSERT INTO {name} VALUES"
               " (9, 'gone', 'INSERT', 1, 5, 0, 0, NULL), (8, 'gone', 'INSERT', 1, 5, 0, 0, NULL),"
               " (NULL, NULL, 'TRUNCATE', 1, 6, 1, 0, NULL), (1, 'x', 'INSERT', 1, 6, 2, 0, NULL),"
               " (2, 'b', 'INSERT', 1, 6, 3, 0, NULL), (1, 'a', 'UPDATE', 1, 7, 1, 0, NULL),"
               " (2, NULL, 'DELETE', 1, 8, 1, 0, NULL), (3, 'c', 'INSERT', 2, 1, 1, 0, NULL),"
               " (30, 'c', 'UPDATE', 2, 1, 2, 0, '{\"id\": 3}')", database=lake)
    assert_log(server, db, ch, lake, "public.kept")
    ch.execute(f"INSERT INTO {name} VALUES (1, 'a', 'UPDATE', 1, 7, 1, 0, NULL)", database=lake)
    with pytest.raises(AssertionError, match="more than once"):
        assert_log(server, db, ch, lake, "public.kept")


def test_names_at_the_destination():
    assert base_name("public", "order_items") == "public_order__items"


def test_typed_rows(ch):
    rows = ch.query("SELECT toDecimal128('-0.50', 2), 'x', unhex('ff'), [1, NULL], NULL, toInt256(-1), ('a', 1.5)")
    assert rows == [(Decimal("-0.50"), "x", b"\xff", [1, None], None, -1, ("a", 1.5))]
    with pytest.raises(ClickHouseError) as caught:
        ch.query("SELECT nothing")
    assert (caught.value.status, caught.value.code) == (404, 47)
