"""The RowBinary encoder against ClickHouse itself (chdb) and Python's integers."""

import json
import os
import random
import uuid
from decimal import Decimal

import chdb
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def pg(server):
    """A connection to a database with etl_test."""
    name = server.create_database("rowbinary")
    connection = server.connect(name)
    connection.prepare_threshold = None
    connection.execute("CREATE EXTENSION etl_test")
    connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601'")
    yield connection
    connection.close()
    server.drop_database(name)


@pytest.fixture
def read(tmp_path):
    """Rows of RowBinary bytes as ClickHouse reads them: read(data, types, expressions)."""

    def read(data, types, expressions=None):
        path = tmp_path / f"{uuid.uuid4().hex}.bin"
        path.write_bytes(data)
        columns = ", ".join(f"c{i} {t}" for i, t in enumerate(types))
        shown = ", ".join(expressions or [f"toString(c{i})" for i in range(len(types))])
        quoted = columns.replace("\\", "\\\\").replace("'", "\\'")
        result = chdb.query(f"SELECT {shown} FROM file('{path}', 'RowBinary', '{quoted}') FORMAT JSONCompactEachRow")
        os.unlink(path)
        return [json.loads(line) for line in str(result).splitlines()]

    return read


def encode(pg, query, types, policy="error"):
    return bytes(pg.execute("SELECT etl_test.rowbinary(%s, %s, %s)", (query, types, policy)).fetchone()[0])


def refused(pg, query, types, policy="error"):
    """SQLSTATE with which a value is refused."""
    with pytest.raises(psycopg.Error) as caught:
        encode(pg, query, types, policy)
    return caught.value.sqlstate, str(caught.value).splitlines()[0]


def same(shown, expected):
    assert shown == expected


def as_decimal(shown, expected):
    assert Decimal(shown) == Decimal(expected)


def as_float(shown, expected):
    assert repr(float(shown)) == repr(float(expected))


def as_time(shown, expected):
    assert shown.ljust(26, "0") == (expected + "." if "." not in expected else expected).ljust(26, "0")


# source type, type chosen, values (SQL text), how to compare
CASES = [
    ("boolean", "Bool", ["true", "false"], lambda s, e: same(s, {"t": "true", "f": "false"}[e])),
    ("smallint", "Int16", ["0", "-32768", "32767", "-1"], same),
    ("integer", "Int32", ["0", "-2147483648", "2147483647", "-1"], same),
    ("bigint", "Int64", ["0", "-9223372036854775808", "9223372036854775807", "-1"], same),
    ("real", "Float32", ["0", "-0", "1.1", "3.4028235e38", "1e-45", "NaN", "Infinity", "-Infinity"], as_float),
    ("double precision", "Float64",
     ["0", "-0", "1.1", "1.7976931348623157e308", "5e-324", "NaN", "Infinity", "-Infinity"], as_float),
    ("oid", "UInt32", ["0", "4294967295"], same),
    ("xid", "UInt32", ["3", "4294967295"], same),
    ("xid8", "UInt64", ["3", "18446744073709551615"], same),
    ("date", "Date32", ["1970-01-01", "1900-01-01", "2299-12-31", "2000-01-01", "1969-12-31"], same),
    ("timestamp", "DateTime64(6, 'UTC')",
     ["1970-01-01", "1900-01-01", "2299-12-31 23:59:59.999999", "2026-11-30 03:50:27.000001",
      "1969-12-31 23:59:59.999999"], as_time),
    ("timestamptz", "DateTime64(6, 'UTC')", ["2026-11-30 03:50:27.5+05:30", "1900-01-01+00"],
     lambda s, e: as_time(s, e.removesuffix("+00"))),
    ("uuid", "UUID", ["61f0c404-5cb3-11e7-907b-a6006ad3dba0", "ffffffff-ffff-ffff-ffff-fffffffffffe",
                      "00000000-0000-0000-0000-000000000001"], same),
    ("numeric(9,2)", "Decimal(9, 2)", ["0", "12.34", "-0.01", "9999999.99", "-9999999.99", "10000", "0.10"], as_decimal),
    ("numeric(18,4)", "Decimal(18, 4)", ["0.0001", "99999999999999.9999", "-99999999999999.9999", "1"], as_decimal),
    ("numeric(38,10)", "Decimal(38, 10)",
     ["9999999999999999999999999999.9999999999", "-0.0000000001", "1e20", "123456789012345678.5"], as_decimal),
    ("numeric(76,38)", "Decimal(76, 38)",
     ["9" * 38 + "." + "9" * 38, "-" + "9" * 38 + "." + "9" * 38, "-0." + "0" * 37 + "1", "1e37", "0"], as_decimal),
    ("numeric(5,0)", "Decimal(5, 0)", ["99999", "-1", "10000"], as_decimal),
    ("numeric", "String", ["1.230", "NaN", "Infinity", "1e40"], same),
    ("numeric(80,2)", "String", ["1.25"], same),
    ("numeric(3,-2)", "String", ["12300"], same),
    ("text", "String", ["", "a", "b" * 127, "c" * 128, "d" * 20000, "\u00e9\u4e2d\U0001f600"], same),
    ("varchar(10)", "String", ["", "abc"], same),
    ("char(5)", "String", ["ab", "abcde"], lambda s, e: same(s, e.ljust(5))),
    ('"char"', "String", ["x", "\\377"], None),
    ("name", "String", ["", "pg_class"], same),
    ("json", "String", ['{"a":1e400, "a" : 2}'], same),
    ("jsonb", "String", ['{"a": [1, 2.50, null]}'], same),
    ("xml", "String", ["<a>1</a>"], same),
    ("time", "String", ["24:00:00", "04:05:06.789"], same),
    ("timetz", "String", ["04:05:06.789+05:30"], same),
    ("interval", "String", ["P1Y2M3DT4H5M6.000007S"], same),
    ("inet", "String", ["10.0.0.1/8", "::1"], same),
    ("macaddr", "String", ["08:00:2b:01:02:03"], same),
    ("bit(3)", "String", ["101"], same),
    ("point", "String", ["(1,2)"], same),
    ("int4range", "String", ["[1,5)"], same),
    ("pg_lsn", "String", ["16/B374D848"], same),
    ("regclass", "String", ["pg_class"], same),
    ("tsvector", "String", ["'a':1 'b':2"], same),
]


@pytest.mark.parametrize("kind,chosen,values,compare", CASES, ids=[c[0] for c in CASES])
def test_values_of_each_type_arrive_as_they_are(pg, read, kind, chosen, values, compare):
    pg.execute(f"DROP TABLE IF EXISTS v; CREATE TEMP TABLE v (k int, a {kind} NOT NULL, b {kind})")
    if kind == "xml" and "with-libxml" not in pg.execute("SELECT setting FROM pg_config WHERE name = 'CONFIGURE'").fetchone()[0]:
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            pg.execute("SELECT '<a/>'::xml")
        return
    for i, value in enumerate(values):
        pg.execute(f"INSERT INTO v VALUES (%s, %s::text::{kind}, %s::text::{kind}), (%s, %s::text::{kind}, NULL)",
                   (2 * i, value, value, 2 * i + 1, value))
    types = pg.execute("SELECT etl_test.rowbinary_types('v')").fetchone()[0]
    texts = [row[0] for row in pg.execute("SELECT format('%s', a) FROM v ORDER BY k")]
    data = encode(pg, "SELECT * FROM v ORDER BY k", types)
    pg.execute("DROP TABLE v")

    assert types == ["Nullable(Int32)", chosen, f"Nullable({chosen})"]
    rows = read(data, types)
    assert len(rows) == 2 * len(values)
    for i, (k, a, b) in enumerate(rows):
        assert k == str(i)
        assert b == (a if i % 2 == 0 else None)
        if compare:
            compare(a, texts[i])


def test_bytea_is_raw(pg, read):
    value = bytes(range(256)) * 3
    data = encode(pg, f"SELECT '\\x{value.hex()}'::bytea, ''::bytea", ["String", "Nullable(String)"])
    assert read(data, ["String", "Nullable(String)"], ["hex(c0)", "hex(c1)"]) == [[value.hex().upper(), ""]]


def test_money_is_a_decimal_string(pg, read):
    query = "SELECT a::numeric::money, a::numeric::money FROM (VALUES ('0'), ('1234.5'), ('-0.05'), ('-92233720368547758.08')) v(a)"
    types = ["String", "Decimal(21, 4)"]
    rows = read(encode(pg, query, types), types)
    assert [row[0] for row in rows] == ["0.00", "1234.50", "-0.05", "-92233720368547758.08"]
    assert [Decimal(row[1]) for row in rows] == [Decimal(row[0]) for row in rows]


def test_enums_and_domains(pg, read):
    pg.execute("CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE DOMAIN dom AS numeric(6,3) CHECK (VALUE > 0);"
               "CREATE DOMAIN domdom AS dom; CREATE DOMAIN moods AS mood;"
               "CREATE TABLE e (a mood NOT NULL, b mood, c domdom, d moods, e mood[])")
    pg.execute("INSERT INTO e VALUES ('sad', 'glad', 12.5, 'sad', '{sad,glad}'), ('glad', NULL, NULL, NULL, '{}')")
    types = pg.execute("SELECT etl_test.rowbinary_types('e')").fetchone()[0]
    rows = read(encode(pg, "TABLE e", types), types)
    pg.execute("DROP TABLE e; DROP DOMAIN moods, domdom, dom; DROP TYPE mood")
    assert types == ["LowCardinality(String)", "LowCardinality(Nullable(String))", "Nullable(Decimal(6, 3))",
                     "LowCardinality(Nullable(String))", "Array(LowCardinality(Nullable(String)))"]
    assert rows == [["sad", "glad", "12.5", "sad", "['sad','glad']"], ["glad", None, None, None, "[]"]]


def test_null_without_nullable_is_the_zero_where_that_is_asked_for(pg, read):
    types = ["Int64", "String", "UUID", "Date32", "Decimal(38, 2)", "FixedString(3)", "LowCardinality(String)", "Bool"]
    data = encode(pg, "SELECT null::int8, null::text, null::uuid, null::date, null::numeric, null::text, null::text,"
                      " null::bool", [t + " " for t in types])
    expressions = [f"toString(c{i})" for i in range(8)]
    expressions[5] = "hex(c5)"
    assert read(data, types, expressions) == [
        ["0", "", "00000000-0000-0000-0000-000000000000", "1970-01-01", "0", "000000", "", "false"]]


@pytest.mark.parametrize("value,kind", [
    ("null::int8", "Int64"), ("null::text", "String"), ("null::uuid", "UUID"), ("null::numeric", "Decimal(38, 2)"),
    ("null::text", "LowCardinality(String)"), ("null::json", "JSON"), ("null::int[]", "Array(Nullable(Int32))"),
])
def test_null_is_refused_by_a_type_that_holds_none(pg, value, kind):
    for policy in ("error", "clamp"):
        state, message = refused(pg, f"SELECT {value} AS some_column", [kind], policy)
        assert (state, message) == ("22004", f'value of column "some_column" is null, unlike {kind}')


def test_types_that_a_user_asked_for(pg, read):
    query = ("SELECT 7::int2, -7::int4, 255::int4, true, 12.5::numeric(9,1), 40::numeric, -40::numeric, 9::int8,"
             " '2026-11-30 03:50:27'::timestamp, '2026-11-30 03:50:27.5'::timestamp, '2026-11-30 03:50:27.5'::timestamptz,"
             " '2149-06-06'::date, 'ab'::text, 3::int4, 1.5::real, 42::int8, '04:05:06'::time, 'a'::text")
    types = ["Int64", "Int128", "UInt8", "UInt8", "Decimal( 40 , 20 )", "UInt8", "Int256", "Decimal(9,3)",
             "DateTime('Asia/Tokyo')", "DateTime64(1)", "DateTime64(9, 'UTC')",
             "Date", "FixedString(4)", "String", "Float64", "UInt256", "String",
             "LowCardinality(Nullable(String))"]
    expected = ["7", "-7", "255", "1", "12.5", "40", "-40", "9",
                "2026-11-30 12:50:27", "2026-11-30 03:50:27.5", "2026-11-30 03:50:27.500000000",
                "2149-06-06", "61620000", "3", "1.5", "42", "04:05:06", "a"]
    data = encode(pg, query, types)
    expressions = [f"toString(c{i})" for i in range(len(types))]
    expressions[9] = "toString(c9, 'UTC')"
    expressions[12] = "hex(c12)"
    assert read(data, types, expressions) == [expected]


@pytest.mark.parametrize("value,kind,sqlstate", [
    ("'1899-12-31'::date", "Date32", "22008"), ("'2300-01-01'::date", "Date32", "22008"),
    ("'infinity'::date", "Date32", "22008"), ("'-infinity'::date", "Nullable(Date32)", "22008"),
    ("'0044-03-15 BC'::date", "Date32", "22008"), ("'2149-06-07'::date", "Date", "22008"),
    ("'1969-12-31'::date", "Date", "22008"),
    ("'1899-12-31 23:59:59.999999'::timestamp", "DateTime64(6)", "22008"),
    ("'2300-01-01'::timestamp", "DateTime64(6)", "22008"), ("'infinity'::timestamptz", "DateTime64(6)", "22008"),
    ("'-infinity'::timestamp", "DateTime64(9)", "22008"), ("'2262-04-12'::timestamp", "DateTime64(9)", "22008"),
    ("'2026-01-01 00:00:00.000001'::timestamp", "DateTime", "22003"),
    ("'2106-02-07 06:28:16'::timestamp", "DateTime", "22008"),
    ("'NaN'::numeric", "Decimal(9, 2)", "22003"), ("'Infinity'::numeric", "Decimal(76, 2)", "22003"),
    ("'-Infinity'::numeric", "Decimal(9, 2)", "22003"), ("10000000.00", "Decimal(9, 2)", "22003"),
    ("1.005", "Decimal(9, 2)", "22003"), ("1e-30", "Decimal(9, 2)", "22003"), ("1e300", "Decimal(76, 0)", "22003"),
    ("256::numeric", "UInt8", "22003"), ("-1::numeric", "UInt8", "22003"), ("-129::numeric", "Int8", "22003"),
    ("128::numeric", "Int8", "22003"), ("0.5", "Int64", "22003"), ("32768::int4", "Int16", "22003"),
    ("-1::int4", "UInt64", "22003"), ("5000000000::int8", "UInt32", "22003"),
    ("1000::int4", "Decimal(3, 0)", "22003"), ("1000::int4", "Decimal(5, 2)", "22003"),
    ("'18446744073709551615'::xid8", "Decimal(19, 0)", "22003"), ("'18446744073709551615'::xid8", "Int64", "22003"),
    (str(2 ** 255), "Int256", "22003"), (str(-2 ** 255 - 1), "Int256", "22003"), (str(2 ** 256), "UInt256", "22003"),
    ("9" * 78, "UInt256", "22003"), ("1e78", "UInt256", "22003"), ("-1::numeric", "UInt256", "22003"),
    (str(2 ** 127), "Int128", "22003"), (str(2 ** 128), "UInt128", "22003"), (f"{2 ** 255 - 1}.5", "Int256", "22003"),
    ("'abcd'::text", "FixedString(3)", "22001"), ("'abc\u00e9'::text", "FixedString(4)", "22001"),
    ("'\\x61626364'::bytea", "FixedString(3)", "22001"), ("'\\x61'::bytea", "FixedString(2)", "22026"),
    ("''::bytea", "FixedString(2)", "22026"),
    ("1::int4", "UUID", "42846"), ("1.5::float8", "Float32", "42846"), ("'a'::text", "Int32", "42846"),
    ("true", "Array(Bool)", "42846"), ("1::int4", "Nothing at all", "42846"), ("1::int4", "Decimal(77, 0)", "42846"),
])
def test_values_outside_the_range_are_refused(pg, value, kind, sqlstate):
    state, message = refused(pg, f"SELECT {value} AS some_column", [kind])
    assert state == sqlstate
    assert "some_column" in message and kind in message


def test_range_ends_are_taken(pg, read):
    types = ["Date", "Date", "DateTime", "DateTime64(9, 'UTC')", "Int8", "UInt8", "Int64", "UInt64"]
    query = ("SELECT '1970-01-01'::date, '2149-06-06'::date, '2106-02-07 06:28:15'::timestamp,"
             " '2262-04-11 23:47:16.854775'::timestamp, -128::numeric, 255::numeric, -9223372036854775808::numeric,"
             " 18446744073709551615::numeric")
    expected = ["1970-01-01", "2149-06-06", "2106-02-07 06:28:15", "2262-04-11 23:47:16.854775000", "-128", "255",
                "-9223372036854775808", "18446744073709551615"]
    shown = [f"toString(c{i})" for i in range(8)]
    shown[2] = "toString(c2, 'UTC')"
    assert read(encode(pg, query, types), types, shown) == [expected]


@pytest.mark.parametrize("bits,signed", [(b, s) for b in (8, 16, 32, 64, 128, 256) for s in (True, False)])
def test_numerics_at_the_ends_of_integers(pg, read, bits, signed):
    low, high = (-2 ** (bits - 1), 2 ** (bits - 1) - 1) if signed else (0, 2 ** bits - 1)
    kind = ("Int" if signed else "UInt") + str(bits)
    taken = [low, low + 1, high, high - 1, 10 ** (len(str(high)) - 1), 0, 1]
    query = "SELECT v::numeric FROM unnest(ARRAY[" + ", ".join(f"'{v}'" for v in taken) + "]) WITH ORDINALITY u(v, o) ORDER BY o"
    assert read(encode(pg, query, [kind]), [kind]) == [[str(v)] for v in taken]
    for value in (low - 1, high + 1, 2 * high, 10 ** len(str(high))):
        assert refused(pg, f"SELECT '{value}'::numeric", [kind])[0] == "22003"
        limit = str(low if value < 0 else high)
        assert read(encode(pg, f"SELECT '{value}'::numeric", [kind], "clamp"), [kind]) == [[limit]]


def test_xid8_is_never_negative(pg, read):
    types = ["Decimal(20, 0)", "Decimal(38, 2)", "Decimal(76, 0)", "Int128", "UInt256", "String"]
    value = "'18446744073709551615'::xid8"
    data = encode(pg, "SELECT " + ", ".join([value] * len(types)), types)
    assert read(data, types) == [["18446744073709551615"] * len(types)]


def test_bytes_of_a_fixed_length_are_of_that_length(pg, read):
    kind = "FixedString(2)"
    data = encode(pg, "SELECT '\\x6100'::bytea, '\\x0000'::bytea, 'a'::text, ''::text", [kind] * 4)
    assert read(data, [kind] * 4, [f"hex(c{i})" for i in range(4)]) == [["6100", "0000", "6100", "0000"]]
    nullable = f"Nullable({kind})"
    assert encode(pg, "SELECT '\\x61'::bytea, '\\x6162'::bytea", [nullable, nullable], "null") == b"\x01\x00ab"
    assert refused(pg, "SELECT '\\x61'::bytea", [kind], "clamp")[0] == "22026"


def test_compressed_and_external_values(pg, read):
    """Values as they lie in a table: short, compressed, out of line, both, by either method."""
    pg.execute("CREATE TABLE big (k int, p text, l text, e text, n numeric)")
    pg.execute("ALTER TABLE big ALTER p SET STORAGE main, ALTER l SET STORAGE extended, ALTER e SET STORAGE external")
    if "lz4" in (pg.execute("SELECT enumvals::text FROM pg_settings WHERE name = 'default_toast_compression'").fetchone()[0]):
        pg.execute("ALTER TABLE big ALTER l SET COMPRESSION lz4")
    pg.execute("INSERT INTO big SELECT i, repeat('p', n), string_agg(md5(j::text), '' ) || repeat('l', n),"
               " repeat('e', n), repeat('7', least(n, 70000))::numeric"
               " FROM (VALUES (1, 1), (2, 126), (3, 127), (4, 3000), (5, 100000)) v(i, n), generate_series(1, 200) j"
               " GROUP BY i, n")
    types = ["Int32", "String", "String", "String", "String"]
    rows = read(encode(pg, "SELECT * FROM big ORDER BY k", types), types,
                ["c0"] + [f"length(c{i})" for i in range(1, 5)] + [f"lower(hex(MD5(c{i})))" for i in range(1, 5)])
    expected = pg.execute("SELECT k, length(p), length(l), length(e), length(n::text), md5(p), md5(l), md5(e), md5(n::text)"
                          " FROM big ORDER BY k").fetchall()
    pg.execute("DROP TABLE big")
    assert [[int(x) for x in row[:5]] + row[5:] for row in rows] == [list(row) for row in expected]


def test_text_of_another_server_encoding_becomes_utf8(server, read):
    server.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        server.sql("CREATE EXTENSION etl; CREATE EXTENSION etl_test", db="latin")
        with server.connect("latin") as pg:
            query = "SELECT chr(233)::text, chr(233)::name, ARRAY[chr(233)], '\\xe9'::bytea, repeat(chr(233), 200)"
            data = encode(pg, query, ["String"] * 5)
            fixed = encode(pg, "SELECT chr(233)::text, (chr(233) || 'a')::varchar, '\\xe9e9'::bytea", ["FixedString(3)"] * 2 + ["FixedString(2)"])
            long = refused(pg, "SELECT chr(233)::text", ["FixedString(1)"])[0]
            document = encode(pg, "SELECT json_build_object(chr(233), chr(233))", ["JSON"])
            twice = refused(pg, "SELECT ('{\"' || chr(233) || '\": 1, \"\\u00e9\": 2}')::json", ["JSON"])[0]
        assert (fixed, long, twice) == ("\u00e9".encode() + b"\0" + "\u00e9a".encode() + b"\xe9\xe9", "22001", "22032")
        assert document[1:].decode() == '{"\u00e9" : "\u00e9"}'
        assert read(data, ["String"] * 5, ["c0", "c1", "c2", "hex(c3)", "c4"]) == [
            ["\u00e9", "\u00e9", '["\u00e9"]', "E9", "\u00e9" * 200]]
    finally:
        server.drop_database("latin")


ARRAYS = [
    ("'{1,NULL,-2147483648}'::int[]", "Array(Nullable(Int32))", "[1,NULL,-2147483648]"),
    ("'{}'::int[]", "Array(Nullable(Int32))", "[]"),
    ("'{}'::int[]", "Array(Array(Nullable(Int32)))", "[]"),
    ("'{{1,2},{3,NULL}}'::int[]", "Array(Array(Nullable(Int32)))", "[[1,2],[3,NULL]]"),
    ("'{{{1},{2}},{{3},{4}}}'::int[]", "Array(Array(Array(Nullable(Int32))))", "[[[1],[2]],[[3],[4]]]"),
    ("'{1,2}'::int[]", "Array(Int64)", "[1,2]"),
    ("'{a,NULL,\"NULL\",\"\",\"b,{}\"}'::text[]", "Array(Nullable(String))", "['a',NULL,'NULL','','b,{}']"),
    ("ARRAY[repeat('x', 300), NULL]", "Array(Nullable(String))", "['" + "x" * 300 + "',NULL]"),
    ("'{t,f,NULL}'::bool[]", "Array(Nullable(Bool))", "[true,false,NULL]"),
    ("'{1.5,NULL,NaN,-Infinity}'::float8[]", "Array(Nullable(Float64))", "[1.5,NULL,nan,-inf]"),
    ("'{12.30,-0.01}'::numeric(9,2)[]", "Array(Nullable(Decimal(9, 2)))", "[12.3,-0.01]"),
    ("'{2026-11-30,NULL}'::date[]", "Array(Nullable(Date32))", "['2026-11-30',NULL]"),
    ("'{00000000-0000-0000-0000-000000000001}'::uuid[]", "Array(UUID)", "['00000000-0000-0000-0000-000000000001']"),
    ("'1 2 -3'::int2vector", "Array(Nullable(Int16))", "[1,2,-3]"),
    ("'1 4294967295'::oidvector", "Array(Nullable(UInt32))", "[1,4294967295]"),
    ("ARRAY['1 year'::interval]", "Array(Nullable(String))", "['P1Y']"),
    ("ARRAY['{\"a\" : 1}'::json, NULL]", "Array(Nullable(String))", "['{\"a\" : 1}',NULL]"),
]


@pytest.mark.parametrize("value,kind,shown", ARRAYS, ids=[v for v, _, _ in ARRAYS])
def test_arrays(pg, read, value, kind, shown):
    data = encode(pg, f"SELECT {value}, {value}, 7::int2", [kind, kind + " ", "Int16"])
    assert read(data, [kind, kind, "UInt8", "Int16"]) == [[shown, shown, "0", "7"]]


def test_null_arrays_have_a_companion(pg, read):
    kind = "Array(Nullable(Int32))"
    data = encode(pg, "VALUES (null::int[]), ('{}'), ('{1}')", [kind + " "])
    assert read(data, [kind, "UInt8"]) == [["[]", "1"], ["[]", "0"], ["[1]", "0"]]


def test_arrays_as_they_lie_in_a_table(pg, read):
    """Short, compressed and out of line, with elements of every alignment."""
    pg.execute("CREATE TABLE lie (k int, c char, a int8[], t text[], b \"char\"[], d timestamptz[])")
    pg.execute("INSERT INTO lie SELECT n, 'x', array_fill(7::int8, ARRAY[n]), array_fill(repeat('y', n), ARRAY[3]),"
               " array_fill('z'::\"char\", ARRAY[n]), array_fill('2026-11-30 00:00+00'::timestamptz, ARRAY[n])"
               " FROM unnest(ARRAY[1, 2, 15, 16, 200, 5000, 100000]) n")
    types = ["Int32", "String", "Array(Nullable(Int64))", "Array(Nullable(String))", "Array(String)", "Array(DateTime64(6))"]
    rows = read(encode(pg, "SELECT * FROM lie ORDER BY k", types), types,
                ["c0", "length(c2)", "arraySum(arrayMap(x -> ifNull(x, 0), c2))", "length(c3[3])", "arrayUniq(c4)", "length(c4)", "uniqExact(c5[1]) OVER ()"])
    pg.execute("DROP TABLE lie")
    assert [[int(v) for v in row] for row in rows] == [
        [n, n, 7 * n, n, 1, n, 1] for n in (1, 2, 15, 16, 200, 5000, 100000)]


def test_what_has_a_structure_is_json(pg, read):
    pg.execute("CREATE EXTENSION IF NOT EXISTS hstore; CREATE TYPE pair AS (a int, m money, b text); CREATE DOMAIN list AS int[]")
    values = ["ROW(1, 1234.5::money, 'q\"')::pair", "'a=>NULL, \"k 2\"=>\"v\\\"x\"'::hstore", "'{{1,2},{3,NULL}}'::int[]",
              "'[-1:1]={7,8,9}'::int[]", "ARRAY[1.5::numeric]", "'{1,2}'::list", "'{}'::list"]
    rows = read(encode(pg, "SELECT " + ", ".join(values), ["String"] * 7), ["String"] * 7)
    pg.execute("DROP DOMAIN list; DROP TYPE pair")
    assert rows == [['{"a":1,"m":"1234.50","b":"q\\""}', '{"a":null,"k 2":"v\\"x"}', "[[1,2],[3,null]]",
                     '"[-1:1]={7,8,9}"', '["1.5"]', "[1,2]", "[]"]]


DOCUMENTS = [
    ('{"a":{"b":[1,null,"x"]}}', True), ("{}", True), (' { "a" : [ ] , "b" : "x.y{\\"}" } ', True), ('{"a":[1.5,2,-3e-2]}', True),
    ('{"v":18446744073709551615,"w":-9223372036854775808,"x":0.1,"y":1.50}', True), ('{"a":[true,null,false]}', True),
    ('{"":{"":1},"a b":2,"a\\"\\\\":3}', True), ('{"\u00e9":"\\u00e9 \\ud83d\\ude00","A":1,"a":2}', True),
    ('{"a":["2020-01-01","2020-01-01 00:00:00.5","12","1.50","true"],"b":"2020-01-01 00:00:00","c":"2020-01-01T00:00:00.123Z"}', True),
    ('{"a":[[1],[null,2],[]],"b":[null,{"c":[1.5]},7],"d":[[]]}', True), ('{"a":[0,-1.5,9007199254740992,-9007199254740994]}', True),
    ('{"a":[{"b":9007199254740992},{"b":1.5},{"b":true},{"b":"x"},{"b":[[1]]}]}', True), ('{"a":[1,"x",[2],{"b":3}]}', True),
    ('{"a":1.000000000000000000000000000000000000000000,"b":0.0e10,"c":-0.0,"d":5e-324}', True),
    ("null", False), ("[]", False), ('"x"', False), ("1", False), ('{"v":18446744073709551616}', False),
    ('{"v":0.1234567890123456789}', False), ('{"v":1e400}', False), ('{"v":-9223372036854775809}', False), ('{"a":[1,true]}', False),
    ('{"a.b":1}', False), ('{"a":[{"b":{"c.d":1}}]}', False), ('{"a":' + "[" * 5 + '{"x":1e309}' + "]" * 5 + "}", False),
    ('{"a\\u002eb":1}', False), ('{"\\u002E":1}', False), ('{"v":1e-400}', False), ('{"v":-1e-16000}', False),
    ('{"a":[9007199254740993,1.5]}', False), ('{"a":[18446744073709551615,1.5]}', False), ('{"a":[[9007199254740993],[1.5]]}', False),
    ('{"a":[9007199254740993]}', False), ('{"a":["x",{"b":-9007199254740993}]}', False), ('{"a":[null]}', False), ('{"a":[[null],[1]]}', False),
    ('{"a":[true,"x"]}', False), ('{"a":[["x"],[true]]}', False), ('{"a":[[true],[1]]}', False),
    ('{"a":[null,[1]]}', False), ('{"a":[[],null]}', False), ('{"a":[[null],[[1]]]}', False), ('{"a":[{"b":[[1],null]}]}', False),
]

# Of json alone: jsonb is not so, or cannot be.
TEXTS = [
    ('{"a":1,"a":2}', False), ('{"a":1,"\\u0061":2}', False), ('{"\\u00e9":1,"\u00e9":2}', False), ('{"a/":1,"a\\/":2}', False),
    ('{"a":{"a":{"b":1}},"b":{"a":1}}', True), ('{"v":1e-20000}', False), ('{"v":-1e20000}', False), ('{"v":1e-99999999999999999999}', False),
    ('{"v":0.' + "0" * 20000 + '1}', False), ('{"v":1' + "0" * 200000 + '}', False), ('{"v":1.' + "0" * 20000 + "}", True),
    ('{"v":"\\ud800"}', False), ('{"v":"\\udc00"}', False), ('{"\\ud800\\u0061":1}', False), ('{"v":"\\u0000","\\u0000":1}', True),
    ('{"v":0e-20000,"w":0e20000,"x":1.7976931348623157e308,"y":1E22}', True), ('{"a":[1.5,-9223372036854775808]}', False),
]


@pytest.fixture
def as_json(tmp_path):
    """What ClickHouse's type JSON makes of documents in RowBinary, under the settings of our INSERTs."""

    def as_json(data):
        path = tmp_path / f"{uuid.uuid4().hex}.bin"
        path.write_bytes(data)
        shown = chdb.query(f"SELECT toString(j) FROM file('{path}', 'RowBinary', 'j JSON') FORMAT TSVRaw SETTINGS"
                           " input_format_binary_read_json_as_string = 1, input_format_try_infer_dates = 0,"
                           " input_format_try_infer_datetimes = 0, input_format_json_try_infer_numbers_from_strings = 0,"
                           " type_json_skip_duplicated_paths = 0")
        return [json.loads(line) for line in str(shown).splitlines()]

    return as_json


def kept(value):
    """Without the members that the type does not keep."""
    if isinstance(value, list):
        return [kept(v) for v in value]
    if not isinstance(value, dict):
        return (type(value), value) if isinstance(value, bool) else value
    made = {k: kept(v) for k, v in value.items() if v is not None}
    return {k: v for k, v in made.items() if v != {}}


@pytest.mark.parametrize("text,held", DOCUMENTS, ids=[t for t, _ in DOCUMENTS])
def test_documents_that_json_holds(pg, as_json, text, held):
    for source in ("json", "jsonb"):
        query = f"SELECT $${text}$$::{source} AS some_column"
        if held:
            want = pg.execute(f"SELECT ($${text}$$::{source})::text").fetchone()[0].encode()
            data = encode(pg, query, ["JSON"])
            assert data.endswith(want) and len(data) == len(want) + (1 if len(want) < 128 else 2)
            assert encode(pg, query, ["Nullable(JSON)"], "null")[0] == 0
            assert kept(as_json(data)) == [kept(json.loads(text))]
        else:
            assert refused(pg, query, ["JSON"])[0] == refused(pg, query, ["JSON"], "clamp")[0] == "22032"
            assert encode(pg, query, ["Nullable(JSON)"], "null") == b"\x01"


@pytest.mark.parametrize("text,held", TEXTS, ids=[t[:40] for t, _ in TEXTS])
def test_texts_that_json_holds(pg, as_json, text, held):
    query = f"SELECT $${text}$$::json"
    if held:
        assert kept(as_json(encode(pg, query, ["JSON"]))) == [kept(json.loads(text))]
    else:
        assert refused(pg, query, ["JSON"])[0] == "22032"
        assert encode(pg, query, ["Nullable(JSON)"], "null") == b"\x01"


def test_json_takes_json(pg):
    assert refused(pg, "SELECT 'x'::text", ["JSON"])[0] == "42846"
    assert encode(pg, "SELECT null::json", ["JSON "]) == b"\x02{}"


def test_any_document_is_the_same_or_refused(pg, as_json):
    """Documents drawn so that neighbours in arrays differ in type."""
    chooser = random.Random(7)
    leaves = [None, True, False, 0, 1, -1, 2 ** 53 + 1, 2 ** 64 - 1, -2 ** 63, 1.5, -0.25, 1e300, "", "x", "1", "2020-01-01", "true", "a.b"]

    def draw(depth):
        kind = chooser.choice("llao" if depth < 4 else "l")
        if kind == "l":
            return chooser.choice(leaves)
        if kind == "a":
            few = [chooser.choice(leaves) for _ in range(2)]
            return [chooser.choice(few) if chooser.random() < 0.5 else draw(depth + 1) for _ in range(chooser.randrange(4))]
        return {chooser.choice(["a", "b", "c c", "D", ""]): draw(depth + 1) for _ in range(chooser.randrange(4))}

    held, data = [], b""
    for document in [{"k": draw(0), "l": draw(1)} for _ in range(1500)]:
        encoded = encode(pg, f"SELECT $${json.dumps(document)}$$::json", ["Nullable(JSON)"], "null")
        if encoded[0] == 0:
            held.append(document)
            data += encoded[1:]
    assert 500 < len(held) < 1450
    for document, found in zip(held, as_json(data), strict=True):
        assert kept(found) == kept(document), document


def test_an_object_of_many_names_takes_no_longer_than_many_objects(pg):
    """Its names are not compared each with each."""
    wide = "SELECT ('{' || string_agg(format('\"%s\":1', 'name ' || i), ',') || '}')::json FROM generate_series(1, 200000) i"
    narrow = ("SELECT ('{\"a\":[' || string_agg(format('{\"%s\":1}', 'name ' || i), ',') || ']}')::json"
              " FROM generate_series(1, 200000) i")
    seconds = [pg.execute("SELECT etl_test.rowbinary_seconds(%s, %s, 1)", (query, ["JSON"])).fetchone()[0]
               for query in (narrow, wide)]
    assert seconds[1] < 10 * seconds[0] + 1, seconds


OTHER_ARRAYS = [
    ("'{{1,2},{3,4}}'::int[]", "Array(Nullable(Int32))", "2202E"), ("'{1,2}'::int[]", "Array(Array(Nullable(Int32)))", "2202E"),
    ("'[0:1]={1,2}'::int[]", "Array(Nullable(Int32))", "2202E"), ("'[2:3][5:5]={{1},{2}}'::int[]", "Array(Array(Int32))", "2202E"),
    ("'{1,NULL}'::int[]", "Array(Int32)", "22004"), ("'{infinity}'::date[]", "Array(Nullable(Date32))", "22008"),
    ("'{1}'::int[]", "Array(UUID)", "42846"), ("'{1}'::int[]", "Int32", "42846"), ("'{1}'::int[]", "Array(Array(UUID))", "42846"),
]


@pytest.mark.parametrize("value,kind,sqlstate", OTHER_ARRAYS, ids=[f"{v} {k}" for v, k, _ in OTHER_ARRAYS])
def test_arrays_that_are_something_else(pg, value, kind, sqlstate):
    state, message = refused(pg, f"SELECT {value} AS some_column", [kind])
    assert state == sqlstate and "some_column" in message and kind in message


# value, type, under clamp: what it becomes, or the SQLSTATE of what has nothing near
CLAMPED = [
    ("'1789-07-14'::date", "Date32", "1900-01-01"), ("'infinity'::date", "Date32", "2299-12-31"),
    ("'-infinity'::date", "Date32", "1900-01-01"), ("'5874897-12-31'::date", "Date", "2149-06-06"),
    ("'1969-12-31'::date", "Date", "1970-01-01"),
    ("'0044-03-15 BC'::timestamp", "DateTime64(6, 'UTC')", "1900-01-01 00:00:00.000000"),
    ("'infinity'::timestamptz", "DateTime64(6, 'UTC')", "2299-12-31 23:59:59.999999"),
    ("'-infinity'::timestamptz", "DateTime64(9, 'UTC')", "1900-01-01 00:00:00.000000000"),
    ("'infinity'::timestamptz", "DateTime64(9, 'UTC')", "2262-04-11 23:47:16.854775000"),
    ("'2300-01-01'::timestamp", "DateTime64(1, 'UTC')", "2299-12-31 23:59:59.9"),
    ("'2026-01-01 00:00:00.999999'::timestamp", "DateTime('UTC')", "2026-01-01 00:00:00"),
    ("'1969-12-31 23:59:59.5'::timestamp", "DateTime64(0, 'UTC')", "1969-12-31 23:59:59"),
    ("'infinity'::timestamp", "DateTime('UTC')", "2106-02-07 06:28:15"),
    ("'Infinity'::numeric", "Decimal(9, 2)", "9999999.99"), ("'-Infinity'::numeric", "Decimal(76, 38)", "-" + "9" * 38 + "." + "9" * 38),
    ("1e300", "Decimal(38, 0)", "9" * 38), ("-10000000.00", "Decimal(9, 2)", "-9999999.99"), ("1.005", "Decimal(9, 2)", "1.01"),
    ("9999999.999", "Decimal(9, 2)", "9999999.99"), ("'NaN'::numeric", "Decimal(9, 2)", "22003"),
    ("1000::int4", "Decimal(3, 0)", "999"), ("-1000::int4", "Decimal(5, 2)", "-999.99"), ("'1234.56'::money", "Decimal(5, 1)", "1234.6"),
    ("256::numeric", "UInt8", "255"), ("-1::numeric", "UInt8", "0"), ("-129::numeric", "Int8", "-128"), ("0.5", "Int64", "1"),
    ("128::numeric", "Int8", "127"), ("1e77", "Int256", str(2 ** 255 - 1)), ("-1e77", "Int256", str(-2 ** 255)),
    ("1e76 + 0.4", "Int256", str(10 ** 76)), ("1e77 + 0.4", "UInt256", str(10 ** 77)), ("1e300", "UInt256", str(2 ** 256 - 1)), ("-0.4", "UInt8", "0"),
    ("'NaN'::numeric", "Int64", "22003"), ("'Infinity'::numeric", "UInt64", str(2 ** 64 - 1)), ("'-Infinity'::numeric", "Int64", str(-2 ** 63)),
    ("32768::int4", "Int16", "32767"), ("-1::int4", "UInt64", "0"), ("5000000000::int8", "UInt32", "4294967295"),
    ("'18446744073709551615'::xid8", "Int64", str(2 ** 63 - 1)), ("'18446744073709551615'::xid8", "UInt32", str(2 ** 32 - 1)),
    ("'18446744073709551615'::xid8", "Decimal(5, 0)", "99999"), ("'18446744073709551615'::xid8", "Decimal(20, 1)", "9" * 19 + ".9"),
    ("'abcd'::text", "FixedString(3)", "22001"), ("1::int4", "UUID", "42846"),
    ("'[0:1]={1,2}'::int[]", "Array(Nullable(Int32))", "[1,2]"), ("'{{1}}'::int[]", "Array(Nullable(Int32))", "2202E"),
    ("'{infinity,2026-11-30,NULL}'::date[]", "Array(Nullable(Date32))", "['2299-12-31','2026-11-30',NULL]"),
    ("'[0:0]={-infinity}'::date[]", "Array(Nullable(Date32))", "['1900-01-01']"), ("'{NaN}'::numeric[]", "Array(Decimal(9, 2))", "22003"),
]


@pytest.mark.parametrize("value,kind,becomes", CLAMPED, ids=[f"{v} {k}" for v, k, _ in CLAMPED])
def test_policies(pg, read, value, kind, becomes):
    """Under clamp the nearest value or none, under null none; what a type holds is left alone by all."""
    is_array = kind.startswith("Array")
    nullable = kind + " " if is_array else f"Nullable({kind})"
    if becomes in ("22001", "22003", "2202E", "42846"):
        assert refused(pg, f"SELECT {value}", [kind], "clamp")[0] == becomes
    else:
        assert read(encode(pg, f"SELECT {value}, {value}", [kind, nullable], "clamp"),
                    [kind, nullable] + ["UInt8"] * is_array)[0][:2] == [becomes] * 2
    if becomes == "42846":
        assert refused(pg, f"SELECT {value}", [nullable], "null")[0] == becomes
        return
    rows = read(encode(pg, f"SELECT {value}, 7::int2", [nullable, "Int16"], "null"), [nullable] + ["UInt8"] * is_array + ["Int16"])
    elements = is_array and "infinity" in value and "[0" not in value
    if elements:
        assert rows == [["[NULL,'2026-11-30',NULL]", "0", "7"]]
    elif is_array:
        assert rows == [["[]", "1", "7"]]
    else:
        assert rows == [[None, "7"]]


WIDTHS = [(9, 4), (18, 8), (38, 16), (76, 32)]


def unscaled(data, width):
    assert len(data) % width == 0
    return [int.from_bytes(data[i:i + width], "little", signed=True) for i in range(0, len(data), width)]


@pytest.mark.parametrize("precision,width", WIDTHS)
def test_decimals_at_every_digit(pg, precision, width):
    """Powers of ten, their neighbours, in every scale: exact, by Python's integers."""
    chooser = random.Random(precision)
    for scale in sorted({0, 1, 2, 3, 4, 5, 7, 8, 9, precision // 2, precision - 1, precision}):
        units = set()
        for digits in range(precision + 1):
            units.update({10 ** digits - 1, 10 ** digits, 10 ** digits + 1, chooser.randrange(10 ** digits + 1)})
        units = [u for u in units if u < 10 ** precision]
        units += [-u for u in units]
        texts = [f"{u}e-{scale}" for u in units]
        query = "SELECT v::numeric FROM unnest(ARRAY[" + ", ".join(f"'{t}'" for t in texts) + "]) WITH ORDINALITY u(v, o) ORDER BY o"
        assert unscaled(encode(pg, query, [f"Decimal({precision}, {scale})"]), width) == units


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_numeric_is_exact_or_refused(pg, data):
    precision = data.draw(st.integers(1, 76))
    scale = data.draw(st.integers(0, precision))
    width = next(w for p, w in WIDTHS if precision <= p)
    digits = data.draw(st.integers(-10 ** 80, 10 ** 80) | st.integers(-10 ** 10, 10 ** 10))
    exponent = data.draw(st.integers(-90, 40))
    number = f"{digits}e{exponent}"
    shift = exponent + scale
    units = digits * 10 ** shift if shift >= 0 else digits // 10 ** -shift if digits % 10 ** -shift == 0 else None
    query = f"SELECT '{number}'::numeric"
    kind = f"Decimal({precision}, {scale})"
    if units is None or abs(units) >= 10 ** precision:
        assert refused(pg, query, [kind])[0] == "22003"
    else:
        assert unscaled(encode(pg, query, [kind]), width) == [units]


def test_versions_compare_as_positions_do(pg):
    positions = [(e, lsn, o, s) for e in (0, 1, 65535) for lsn in (0, 1, 0xFFFF, 0x10000, 2 ** 63 - 1)
                 for o in (0, 1, 2 ** 40 - 1) for s in (0, 1)]
    versions = []
    for epoch, lsn, ordinal, sub in positions:
        text = f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
        data = pg.execute("SELECT etl_test.rowbinary_version(%s, %s::text::pg_lsn, %s, %s)",
                          (epoch, text, ordinal, sub)).fetchone()[0]
        versions.append(int.from_bytes(bytes(data), "little"))
    assert versions == [(e << 112) | (lsn << 48) | (o << 8) | s for e, lsn, o, s in positions]
    assert versions == sorted(versions)
