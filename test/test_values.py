"""Values as JSON: every type against to_json(), alone and through a pipeline."""

import json

import psycopg
import pytest
from harness import Receiver
from harness.pipeline import drop, webhook
from type_samples import DEFINITIONS, NO_INPUT, SAMPLES, WALK, WITH_MODIFIER

PINNED = ("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601';"
          "SET bytea_output = 'hex'; SET extra_float_digits = 1; SET search_path = pg_catalog")

# Everything that changes the text of a value, at its least convenient.
HOSTILE = {
    "TimeZone": "Asia/Kathmandu", "DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard",
    "bytea_output": "escape", "extra_float_digits": "-3", "search_path": "public, pg_catalog",
    "xmlbinary": "hex", "standard_conforming_strings": "off", "quote_all_identifiers": "on",
}


class Number(str):
    """The text of a JSON number."""


def exact(text):
    """A JSON text as nested lists and pairs; nothing that differs compares equal."""
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_refuse,
                      object_pairs_hook=lambda pairs: ("object", pairs))


def _refuse(text):
    raise AssertionError(f"{text} is not JSON")


def members(pair):
    kind, pairs = pair
    assert kind == "object"
    assert len({k for k, _ in pairs}) == len(pairs)
    return dict(pairs)


class Types:
    """The types of a database, their samples, and what the samples are in JSON."""

    def __init__(self, connection):
        self.c = connection
        self.walked = [row[0] for row in connection.execute(WALK).fetchall()]
        self.xml = self._has_xml()
        self.names = [WITH_MODIFIER.get(n, n) for n in self.walked
                      if n not in NO_INPUT and (n != "xml" or self.xml)]
        extra = [n for n in SAMPLES if n.startswith("numeric(") and n not in self.names]
        self.names += extra
        lacking = [n for n in self.names if n not in SAMPLES]
        assert not lacking, f"types without samples: {lacking}"

    def _has_xml(self):
        try:
            self.c.execute("SELECT '<a/>'::xml")
            return True
        except psycopg.errors.FeatureNotSupported:
            return False

    def numeric_like(self, name):
        return self.c.execute(
            "WITH RECURSIVE b AS (SELECT t.oid, t.typbasetype FROM pg_type t WHERE t.oid = %s::regtype"
            " UNION ALL SELECT t.oid, t.typbasetype FROM pg_type t JOIN b ON t.oid = b.typbasetype)"
            " SELECT oid FROM b WHERE typbasetype = 0", (name,)).fetchone()[0] in (1700, 790)

    def oracle(self, name, text):
        """to_json() of a value, changed by the documented deviations."""
        if name == "money":
            return json.dumps(self.c.execute("SELECT %s::money::numeric::text", (text,)).fetchone()[0])
        if name == "public.tree":
            return self.c.execute(
                """SELECT json_build_object('a', (v).a, 'q"u', (v)."q""u", 'n', (v).n::text[], 'l', (v).l)::text"""
                " FROM (SELECT %s::public.tree AS v) s", (text,)).fetchone()[0]
        cast = "::text" if self.numeric_like(name) else ""
        return self.c.execute(f"SELECT to_json(%s::{name}{cast})::text", (text,)).fetchone()[0]


@pytest.fixture(scope="module")
def types_db(server):
    name = server.create_database("types_values")
    server.psql(DEFINITIONS + "CREATE EXTENSION etl_test;", name)
    yield name
    server.drop_database(name)


@pytest.fixture
def types(server, types_db):
    with server.connect(types_db) as connection:
        connection.execute(PINNED)
        yield Types(connection)


@pytest.fixture
def encode(server, types_db):
    """encode(type, literal, flags): what the encoder writes, in a session with hostile settings."""
    with server.connect(types_db) as connection:
        for name, value in HOSTILE.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))

        def run(name, text, flags="", function="json"):
            return connection.execute(f"SELECT etl_test.{function}(%s::{name}, %s)", (text, flags)).fetchone()[0]

        yield run


def test_every_type_has_samples(types):
    known = {n for n, base in WITH_MODIFIER.items()} | set(SAMPLES) | set(NO_INPUT)
    assert not [n for n in types.walked if n not in known]
    assert len(types.names) >= 90


def test_every_value_is_to_json(types, encode):
    compared = 0
    for name in types.names:
        for text in SAMPLES[name]:
            have, want = encode(name, text), types.oracle(name, text)
            assert exact(have) == exact(want), (name, text)
            if name == "json":
                assert have == want
            compared += 1
    assert compared >= 300


def test_arrays_of_every_type(types, encode):
    for name in types.names:
        values = SAMPLES[name]
        wanted = [types.oracle(name, v) for v in values]
        array = types.c.execute(f"SELECT (ARRAY[{', '.join(['%s'] * len(values))}, NULL]::{name}[])::text",
                                values).fetchone()[0]
        if name in ("public.numbers",):
            continue  # an array of a domain over arrays is no matrix
        if name == "money":
            array = "{" + ",".join(f'"{v}"' for v in values) + ",NULL}"
        assert exact(encode(f"{name}[]", array)) == exact("[" + ",".join([*wanted, "null"]) + "]"), name
        assert exact(encode(f"{name}[]", "{}")) == []


def test_fixed_forms_ignore_settings(types, encode):
    """Types with a form of their own need no pinned settings at all."""
    for name in ("boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric", "money", "text",
                 "character varying", "character(6)", "bytea", "uuid", "date", "time without time zone",
                 "time with time zone", "timestamp without time zone", "timestamp with time zone", "interval",
                 "json", "jsonb", "public.hstore"):
        for text in SAMPLES[name]:
            assert encode(name, text) == encode(name, text, function="json_unpinned"), (name, text)


def test_known_texts(encode):
    for name, text, want in [
        ("numeric", "12.30", '"12.30"'), ("numeric", "1e20", '"100000000000000000000"'),
        ("money", "1234.5", '"1234.50"'), ("bigint", "9007199254740993", "9007199254740993"),
        ("real", "NaN", '"NaN"'), ("double precision", "1e20", "1e+20"), ("oid", "4000000000", '"4000000000"'),
        ("bytea", r"\xdeadbeef", r'"\\xdeadbeef"'), ("time with time zone", "04:05:06.789+05:30", '"04:05:06.789+05:30"'),
        ("timestamp with time zone", "2026-11-30 05:50:27.123456+02", '"2026-11-30T03:50:27.123456+00:00"'),
        ("interval", "1 year 2 mons 3 days 04:05:06.000007", '"P1Y2M3DT4H5M6.000007S"'),
        ("interval", "1 mon -1 day", '"P1M-1D"'), ("date", "0044-03-15 BC", '"0044-03-15 BC"'),
        ("character(6)", "ab", '"ab    "'), ("json", ' {"a":1e400}', ' {"a":1e400}'),
        ("integer[]", "{{1,2},{3,NULL}}", "[[1,2],[3,null]]"), ("integer[]", "[-1:1]={7,8,9}", '"[-1:1]={7,8,9}"'),
        ("integer[]", "[2:3][5:5]={{1},{2}}", '"[2:3][5:5]={{1},{2}}"'), ("integer[]", "{{{1}}}", "[[[1]]]"),
        ("money[]", "[0:1]={1,NULL}", '"[0:1]={1.00,NULL}"'), ("public.numbers[]", '{"{1,2}",NULL}', "[[1,2],null]"),
        ("int2vector", "1 2", "[1,2]"), ("public.hstore", 'a=>NULL,"k 2"=>v', '{"a":null,"k 2":"v"}'),
        ("text", "\x01\x1f\x7f/é", '"\\u0001\\u001f\x7f/é"'), ("text", "\b\f\n\r\t", '"\\b\\f\\n\\r\\t"'),
    ]:
        assert encode(name, text) == want, (name, text)


def test_options(encode):
    assert encode("bigint", "1", "int8") == '"1"'
    assert encode("bigint[]", "{1,NULL}", "int8") == '["1",null]'
    assert encode("integer", "1", "int8") == "1"
    assert encode("numeric", "7000.00", "numeric") == "7000.00"
    assert encode("numeric", "NaN", "numeric") == '"NaN"'
    assert encode("numeric", "-Infinity", "numeric") == '"-Infinity"'
    assert encode("public.tree", '(1,x,"{1.10,2}",)', "numeric") == '{"a":1,"q\\"u":"x","n":[1.10,2],"l":null}'
    assert encode("bytea", r"\xdeadbeef00", "base64") == '"3q2+7wA="'
    assert encode("bytea", r"\x", "base64") == '""'
    assert encode("json", '{"a":1,\r\n"b":2}', "one_line") == '{"a":1,  "b":2}'
    assert encode("json[]", '{"[1,\n2]"}', "one_line") == "[[1, 2]]"


def test_escapes_at_every_place(server, types_db):
    """Strings are copied eight bytes at a time: each special byte at each place of such a step."""
    with server.connect(types_db) as c:
        for special in ('"', "\\", "\n", "\x1f", "é", "\U0001f600", "\x7f"):
            for before in range(18):
                for after in (0, 1, 7, 8, 9):
                    text = "a" * before + special + "b" * after
                    have = c.execute("SELECT etl_test.json(%s::text)", (text,)).fetchone()[0]
                    assert json.loads(have) == text
                    assert have == c.execute("SELECT to_json(%s::text)::text", (text,)).fetchone()[0]


def test_walking_stays_inside(server, types_db):
    """The walker accepts what is whole, and nothing that is cut."""
    whole = b'{"a":1,"b\\"}":{"c":[1,[2],"]}"]},"d":null,"":" \\\\"}'
    with server.connect(types_db) as c:
        def skip(text):
            return c.execute("SELECT etl_test.json_skip(%s)", (text,)).fetchone()[0]

        def member(text, name):
            return c.execute("SELECT etl_test.json_member(%s, %s)", (text, name)).fetchone()[0]

        assert skip(whole) == len(whole)
        assert skip(b" 1 ") == 3 and skip(b"1,") == 1 and skip(b'"a"x') == 3
        for cut in range(len(whole)):
            assert skip(whole[:cut]) == 0
            assert member(whole[:cut], '"none"') is None
        for bad in (b"", b" ", b"]", b"}", b",", b"[", b'"', b'"\\', b"[1", b"{\"a\"", b"\x00"):
            assert skip(bad) == 0
        assert member(whole, '"d"') == b"null"
        assert member(whole, '"b\\"}"') == b'{"c":[1,[2],"]}"]}'
        assert member(whole, '""') == b'" \\\\"'
        assert member(whole, '"c"') is None


def test_composite_type_that_grows(server, types_db):
    """A codec does not outlive the shape of a composite type."""
    with server.connect(types_db) as c:
        c.execute("CREATE TYPE growing AS (a int)")
        assert c.execute("SELECT etl_test.json(ROW(1)::growing)").fetchone()[0] == '{"a":1}'
        c.execute("ALTER TYPE growing ADD ATTRIBUTE b text")
        assert c.execute("SELECT etl_test.json(ROW(1, 'x')::growing)").fetchone()[0] == '{"a":1,"b":"x"}'
        c.execute("ALTER TYPE growing DROP ATTRIBUTE a")
        assert c.execute("SELECT etl_test.json(ROW('x')::growing)").fetchone()[0] == '{"b":"x"}'
        c.execute("DROP TYPE growing")


def test_wide_and_deep(server, types_db):
    with server.connect(types_db) as c:
        names = [f"c{i}" for i in range(1600)]
        c.execute(f"CREATE TABLE wide ({', '.join(f'{n} int' for n in names)})")
        c.execute("INSERT INTO wide (c0, c1599) VALUES (1, 2)")
        have = exact(c.execute("SELECT etl_test.json(w) FROM wide w").fetchone()[0])
        assert members(have) == {n: Number({"c0": 1, "c1599": 2}.get(n)) if n in ("c0", "c1599") else None for n in names}
        c.execute("DROP TABLE wide")
        deep = "[" * 3000 + "]" * 3000
        assert c.execute("SELECT etl_test.json(%s::json)", (deep,)).fetchone()[0] == deep
        assert c.execute("SELECT etl_test.json(%s::jsonb)", (deep,)).fetchone()[0] == deep


# --- through a pipeline ---


class Walk:
    """A table per handful of types, written before and while a pipeline runs."""

    COLUMNS = 12

    def __init__(self, types):
        self.types = types
        self.columns = [(n, SAMPLES[n]) for n in types.names]
        self.tables = [self.columns[i:i + self.COLUMNS] for i in range(0, len(self.columns), self.COLUMNS)]
        self.depth = max(len(s) for _, s in self.columns)
        self.expected = {}

    def create(self):
        c = self.types.c
        c.execute("SET search_path = public, pg_catalog")
        for t, columns in enumerate(self.tables):
            parts = [f"v{i} {n}, a{i} {n}[]" for i, (n, _) in enumerate(columns)]
            c.execute(f"CREATE TABLE walk_{t} (id int PRIMARY KEY, {', '.join(parts)})")
            c.execute(f"ALTER TABLE walk_{t} REPLICA IDENTITY FULL")

    def write(self, first):
        """One row of NULLs and one for each sample."""
        c = self.types.c
        for t, columns in enumerate(self.tables):
            c.execute(f"INSERT INTO walk_{t} VALUES (%s{', NULL' * 2 * len(columns)})", (first,))
            self.expected[f"walk_{t}", first] = {"id": Number(first)} | {
                k: None for i in range(len(columns)) for k in (f"v{i}", f"a{i}")}
            for s in range(self.depth):
                names, parts, params, row = ["id"], ["%s"], [first + 1 + s], {"id": Number(first + 1 + s)}
                for i, (n, samples) in enumerate(columns):
                    a, b = samples[s % len(samples)], samples[(s + 1) % len(samples)]
                    names += [f"v{i}", f"a{i}"]
                    parts += [f"%s::{n}", f"ARRAY[%s::{n}, NULL, %s::{n}]"]
                    params += [a, a, b]
                    row[f"v{i}"] = self.json(n, a)
                    row[f"a{i}"] = [self.json(n, a), None, self.json(n, b)]
                c.execute(f"INSERT INTO walk_{t} ({', '.join(names)}) VALUES ({', '.join(parts)})", params)
                self.expected[f"walk_{t}", first + 1 + s] = row

    def json(self, name, text, known={}):
        if (name, text) not in known:
            known[name, text] = exact(self.types.oracle(name, text))
        return known[name, text]


@pytest.mark.parametrize("wrapping", ["plain", "ndjson", "cloudevents"])
def test_every_type_through_a_pipeline(server, wrapping):
    """Copy, insert, update and delete of every type under hostile settings of the database."""
    db = server.create_database(f"walk_{wrapping}")
    receiver = Receiver()
    server.psql(DEFINITIONS, db)
    with server.connect(db) as c:
        c.execute(PINNED)
        walk = Walk(Types(c))
        for name, value in HOSTILE.items():
            c.execute(f"ALTER DATABASE {db} SET {name} = " + (value if name == "search_path" else f"'{value}'"))
        walk.create()
        walk.write(0)
        c.execute("CREATE PUBLICATION pub FOR ALL TABLES")
        webhook(server, db, receiver, format=wrapping)
        server.wait_for("p", db, timeout=120)
        copied = len(receiver.requests)
        walk.write(1000)
        for t in range(len(walk.tables)):
            c.execute(f"UPDATE walk_{t} SET id = id + 1000 WHERE id >= 1000")
            c.execute(f"DELETE FROM walk_{t} WHERE id >= 2000")
        server.wait_for("p", db, timeout=120)
    drop(server, db)
    server.drop_database(db)
    receiver.close()

    seen = {"copy": 0, "insert": 0, "update": 0, "delete": 0}
    for number, request in enumerate(receiver.requests):
        for event in map(members, raw_events(request)):
            kind = "copy" if "copy" in event else event["event"]
            if kind not in seen or event["event"] not in ("insert", "update", "delete"):
                continue
            assert (kind == "copy") == (number < copied)
            check(walk, kind, event)
            seen[kind] += 1
    rows = (walk.depth + 1) * len(walk.tables)
    assert seen == {kind: rows for kind in seen}
    assert len(walk.columns) >= 90


def raw_events(request):
    if request.kind == "application/x-ndjson":
        return [exact(line) for line in request.body.decode().split("\n")[:-1]]
    body = exact(request.body.decode())
    if request.kind == "application/cloudevents-batch+json":
        return [members(e)["data"] for e in body]
    return members(members(body)["data"])["events"]


def check(walk, kind, event):
    table = members(event["table"])["name"]
    if kind in ("copy", "insert"):
        row = members(event["table_row"])
        assert same(row, walk.expected[table, int(row["id"])]), (table, kind)
        assert event["missing_columns"] == []
        return
    old = members(event["old_table_row"])
    assert event["old_table_row_kind"] == "full"
    shift = 0 if kind == "update" else 1000
    expected = dict(walk.expected[table, int(old["id"]) - shift])
    expected["id"] = old["id"]
    assert same(old, expected), (table, kind)
    if kind == "update":
        new = members(event["updated_table_row"])
        assert event["updated_table_row_kind"] == "full"
        expected["id"] = Number(int(old["id"]) + 1000)
        assert same(new, expected), (table, kind)


def same(have, want):
    if have == want:
        return True
    for name in want:
        assert have.get(name) == want[name], name
    assert list(have) == list(want)
    return True
