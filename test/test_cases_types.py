r"""Values that others got wrong, at ClickHouse: the case's input, copied and streamed, compared with what is right.

As in test_cases_values.py, which has the same cases for webhooks, every script runs twice: in schema c before
the pipeline starts and in schema s afterwards, under the settings that change texts.  Values that ClickHouse's types
do not hold meet the table's value_policy.

case -> test here
T02 T04 T05 T08 T09 T12 T14 T16 T17 T19 T22 T23 T25 T28 T30 T32 T33 T35: test_<case>_...
"""

import datetime
from datetime import date
from decimal import Decimal

import pytest

from harness.clickhouse import ClickHouse
from harness.pipeline import clickhouse
from psycopg.types.json import Jsonb
from test_cases_values import HOSTILE, TYPES

TABLES = r"""
CREATE TABLE t02(id int PRIMARY KEY, n numeric(22,7), f float8, k numeric);
CREATE TABLE t04(id int PRIMARY KEY, w numeric(1000,500), s numeric(60,45), neg numeric(5,-2), sub numeric(3,5));
CREATE TABLE t05(id int PRIMARY KEY, n numeric(38,0), m numeric);
CREATE TABLE t08(id int PRIMARY KEY, a timestamp, b timestamptz, d date);
CREATE TABLE t08_null(id int PRIMARY KEY, a timestamp, b timestamptz, d date NOT NULL);
CREATE TABLE t08_text(id int PRIMARY KEY, a timestamp, b timestamptz, d date);
CREATE TABLE t09(id int PRIMARY KEY, d date, ts timestamptz[]);
CREATE TABLE t12(id int PRIMARY KEY, born date, at timestamptz);
CREATE TABLE t12_null(id int PRIMARY KEY, born date, at timestamptz);
CREATE TABLE t12_error(id int PRIMARY KEY, born date, at timestamptz);
CREATE TABLE t12_ends(id int PRIMARY KEY, born date, at timestamptz);
CREATE TABLE t14(id int PRIMARY KEY, t time, z timetz);
CREATE TABLE t16(id int PRIMARY KEY, i interval);
CREATE TABLE t17(id int PRIMARY KEY, b bytea, d date, f float8, tz timestamptz, m money);
CREATE TABLE t19(id int PRIMARY KEY, j jsonb);
CREATE TABLE t22(id int PRIMARY KEY, a int[], b int[][]);
CREATE TABLE t22_text(id int PRIMARY KEY, a int[], b int[][]);
CREATE TABLE t22_error(id int PRIMARY KEY, a int[], b int[][]);
CREATE TABLE t23(id int PRIMARY KEY, m mood[], p pos[]);
CREATE TABLE t25(id int PRIMARY KEY, a nested, b mail, c bits, d nested[]);
CREATE TABLE t28(id int PRIMARY KEY, h hstore, l ltree, c citext);
CREATE TABLE t30(id int PRIMARY KEY, b1 bit, b3 bit(3), vb varbit, bo boolean);
CREATE TABLE t32(id int PRIMARY KEY, at timestamptz, n int, s text, b boolean);
CREATE TABLE t32_zero(id int PRIMARY KEY, at timestamptz, n int, s text, b boolean);
CREATE TABLE t33(id int PRIMARY KEY, a text, b text);
CREATE TABLE t35(id int PRIMARY KEY, j jsonb, k jsonb);
CREATE TABLE t35_json(id int PRIMARY KEY, j jsonb, k json NOT NULL);
"""

OPTIONS = {"t02": {"value_policy": "null"}, "t08": {"value_policy": "clamp"}, "t08_null": {"value_policy": "null"},
           "t08_text": {"value_policy": "text"}, "t09": {"value_policy": "clamp"}, "t12": {"value_policy": "clamp"},
           "t12_null": {"value_policy": "null"}, "t22": {"value_policy": "null"}, "t22_text": {"value_policy": "text"},
           "t32_zero": {"nullable": False}, "t35_json": {"value_policy": "null"}}

TIMES = """
INSERT INTO {0} VALUES (1, 'infinity', '-infinity', 'infinity'), (2, '2024-01-01', '2024-01-01 00:00+00', '2024-01-01');
UPDATE {0} SET b = 'infinity' WHERE id = 2;
"""
FAR = """
INSERT INTO {0} VALUES (1, '1954-08-01', '1899-12-31 23:59:59+00'), (2, '1789-07-14', '2300-01-01 00:00+00'), (3, '2000-01-01', NULL);
UPDATE {0} SET born = '1789-07-14' WHERE id = 1;
"""
ARRAYS = """
INSERT INTO {0} VALUES (1, '{{{{1,2}},{{3,NULL}}}}', '{{1,2}}'), (2, '{{7}}', '{{{{1}},{{2}}}}'),
    (3, '[-1:1]={{7,8,9}}', '[2:3][5:5]={{{{1}},{{2}}}}'), (4, '{{{{{{1}}}}}}', '{{}}');
"""

ROWS = r"""
INSERT INTO t02 VALUES (1, 'NaN', 'NaN', 'NaN'), (2, 1.5, 2.5, 3.5);
UPDATE t02 SET n = 'NaN' WHERE id = 2;
DELETE FROM t02 WHERE k = 'NaN';
INSERT INTO t02 VALUES (3, 'NaN', '-Infinity', 'Infinity'), (4, 1, NULL, NULL);
INSERT INTO t04 VALUES (1, ('-' || repeat('1234567890',30) || '.' || repeat('1234567890',30))::numeric,
    0.123456789012345678901234567890123456789012345, 12345, 0.00123);
INSERT INTO t05 VALUES (1, 70, 7000.00);
UPDATE t05 SET n = 7000000000000000000000000000000000000, m = 1e20 WHERE id = 1;
INSERT INTO t05 VALUES (2, 70, 7000.00);
INSERT INTO t09 VALUES (1, 'infinity', '{infinity,2024-01-01 00:00+00}'), (2, '4713-01-01 BC', '{}'), (3, '5874897-12-31', NULL);
INSERT INTO t12_ends VALUES (1, '1900-01-01', '1900-01-01 00:00+00'), (2, '2299-12-31', '2299-12-31 23:59:59.999999+00');
INSERT INTO t14 VALUES (1, '24:00:00', '24:00:00+05:30'), (2, '23:59:59.999999', '00:00:00-15:59:59'),
    (3, '23:59:60', '00:00+00');
INSERT INTO t16 VALUES (1, '1 year 2 mons 3 days 04:05:06.000007'), (2, '-178000000 years'), (3, '1 mon -1 day'),
    (4, '-00:00:00.5');
SET intervalstyle = 'postgres';
INSERT INTO t16 VALUES (5, '1 year 2 mons 3 days 04:05:06');
RESET intervalstyle;
INSERT INTO t17 VALUES (1, '\xdeadbeef00', date '2024-02-03', 0.1::float8 + 0.2::float8,
    timestamptz '2024-02-03 04:05:06.789+00', 1234.5::money);
INSERT INTO t19 VALUES (1, '{"v":18446744073709551616,"w":0.1234567890123456789}'), (2, '{"e":1e400}'),
    (3, '{"id":9007199254740993}');
INSERT INTO t23 VALUES (1, '{sad,"so, so",""}', '{1,2}'), (2, '{}', '{}'), (3, NULL, '{NULL,3}');
INSERT INTO t25 VALUES (1, 12.30, 'Ann@Example.org', B'101', '{1.10,2.20}');
INSERT INTO t28 VALUES (1, 'a=>NULL, "k 2"=>"v\"x", ""=>""', 'Top.Science.Astro', 'MiXed'), (2, '', NULL, ''), (3, NULL, '', NULL);
INSERT INTO t30 VALUES (1, B'1', B'101', B'', true),
    (2, B'0', B'000', B'1010101010101010101010101010101010101010101010101010101010101010101', NULL);
INSERT INTO t32 VALUES (1, NULL, NULL, NULL, NULL), (2, '1970-01-01 00:00+00', 0, '', false);
INSERT INTO t32_zero SELECT * FROM t32;
INSERT INTO t33 VALUES (1, '__debezium_unavailable_value', 'NULL'), (2, '\N', ''), (3, NULL, 'null'),
    (4, E'tab\there\nnl\\back\r\x01\x7f', '"quoted",comma;semi|pipe'),
    (5, chr(128512) || chr(65279) || U&'e\0301', U&'\+10FFFF');
UPDATE t33 SET b = '__debezium_unavailable_value' WHERE id = 4;
INSERT INTO t35_json VALUES (1, '{"a":{"b":[1,null,"x"]}}', '{"i":9007199254740993,"f":0.1}'), (2, '"str"', '{}'), (3, NULL, '{"z":[]}'),
    (4, '{"big":18446744073709551616}', '{}');
INSERT INTO t35 VALUES (1, '{"a":{"b":[1,null,"x"]}}', 'null'), (2, '"str"', '[]'), (3, NULL, '1');
""" + "".join(TIMES.format(t) for t in ("t08", "t08_null", "t08_text")) \
    + "".join(FAR.format(t) for t in ("t12", "t12_null", "t12_error")) \
    + "".join(ARRAYS.format(t) for t in ("t22", "t22_text", "t22_error"))

PARKED = ("t12_error", "t22_error")


def moment(*parts):
    return datetime.datetime(*parts, tzinfo=datetime.timezone.utc)


FIRST, LAST = moment(1900, 1, 1), moment(2299, 12, 31, 23, 59, 59, 999999)


class Outcome:
    """What ClickHouse has in the end, copied and streamed."""

    def __init__(self, server, db, ch):
        self.server, self.db, self.ch = server, db, ch

    def types(self, table):
        """{column: type} of the copied table, which the streamed one must have too."""
        found = [{n: t for n, t, _ in self.ch.columns("lake", f"{schema}_{table.replace('_', '__')}") if not n.startswith("_etl")}
                 for schema in ("c", "s")]
        assert found[0] == found[1]
        return found[0]

    def is_(self, table, expected, columns="* EXCEPT(id)"):
        for schema in ("c", "s"):
            view = f"lake.{schema}_{table.replace('_', '__')}_current"
            assert self.ch.query(f"SELECT {columns} FROM {view} ORDER BY id") == expected, (schema, table)

    def states(self):
        """{table: (state, sqlstate, error)}; not the times, which nobody reads under these settings."""
        return {row[0]: row[1:] for row in self.server.sql(
            "SELECT schema_name || '.' || table_name, state, sqlstate, error FROM etl.table_status WHERE pipeline = 'p'", db=self.db)}

    def error(self, schema, table):
        state, sqlstate, error = self.states()[f"{schema}.{table}"]
        assert state == "errored"
        return sqlstate, error


@pytest.fixture(scope="module")
def outcome(server):
    db = server.create_database("case_types")
    for name, value in HOSTILE.items():
        server.sql(f"ALTER DATABASE {db} SET {name} = '{value}'")
        server.sql(f"ALTER ROLE postgres IN DATABASE {db} SET {name} = '{value}'")
    server.close(db)
    with ClickHouse(proxy=False) as ch:
        ch.create_database("lake")
        server.psql(TYPES, db)
        for schema in ("c", "s"):
            server.psql(f"SET search_path = {schema}, public; {TABLES}", db)
        server.psql(f"SET search_path = c, public; {ROWS}", db)
        server.sql("CREATE PUBLICATION pub FOR TABLES IN SCHEMA c, s", db=db)
        clickhouse(server, db, ch, "lake", start=False, options_={"max_batch_delay": "20ms"})
        for schema in ("c", "s"):
            for table, options in OPTIONS.items():
                server.sql("SELECT etl.alter_table('p', %s::regclass, %s)", (f"{schema}.{table}", Jsonb(options)), db)
            for column in "jk":
                server.sql("SELECT etl.alter_column('p', %s::regclass, %s, '{\"destination_type\": \"JSON\"}')",
                           (f"{schema}.t35_json", column), db)
        server.sql("SELECT etl.start_pipeline('p')", db=db)
        assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
        server.psql(f"SET search_path = s, public; {ROWS}", db)
        assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
        yield Outcome(server, db, ch)
    server.sql("SELECT etl.drop_pipeline('p', force => true)", db=db)
    server.drop_database(db)


def test_only_what_must_be_is_parked(outcome):
    states = outcome.states()
    assert {t for t in states if states[t][0] == "errored"} == {f"{s}.{t}" for s in ("c", "s") for t in PARKED}
    assert {state for state, _, _ in states.values()} == {"ready", "errored"}


def test_t02_nan_is_nan_or_what_the_policy_says_and_the_row_can_go(outcome):
    assert outcome.types("t02") == {"id": "Int32", "n": "Nullable(Decimal(22, 7))", "f": "Nullable(Float64)", "k": "Nullable(String)"}
    outcome.is_("t02", [(None, "2.5", "3.5"), (None, "-inf", "Infinity"), ("1", None, None)], "toString(n) n, toString(f) f, k")


def test_t04_what_a_declared_type_cannot_hold_is_decided_once(outcome):
    assert outcome.types("t04") == {"id": "Int32", "w": "Nullable(String)", "s": "Nullable(Decimal(60, 45))",
                                    "neg": "Nullable(String)", "sub": "Nullable(String)"}
    outcome.is_("t04", [("-" + "1234567890" * 30 + "." + "1234567890" * 30 + "0" * 200,
                         Decimal("0.123456789012345678901234567890123456789012345"), "12300", "0.00123")])


def test_t05_plain_digits_and_the_scale_in_both_paths(outcome):
    outcome.is_("t05", [(Decimal("7" + "0" * 36), "1" + "0" * 20), (Decimal(70), "7000.00")])


def test_t08_infinity_is_clamped_nulled_or_text(outcome):
    outcome.is_("t08", [(LAST, FIRST, date(2299, 12, 31)), (moment(2024, 1, 1), LAST, date(2024, 1, 1))])
    assert outcome.types("t08_null")["d"] == "Nullable(Date32)"
    outcome.is_("t08_null", [(None, None, None), (moment(2024, 1, 1), None, date(2024, 1, 1))])
    assert set(outcome.types("t08_text").values()) == {"Int32", "Nullable(String)"}
    outcome.is_("t08_text", [("infinity", "-infinity", "infinity"), ("2024-01-01 00:00:00", "infinity", "2024-01-01")])


def test_t09_what_is_outside_does_not_arrive_at_any_depth(outcome):
    outcome.is_("t09", [(date(2299, 12, 31), [LAST, moment(2024, 1, 1)], 0), (date(1900, 1, 1), [], 0),
                        (date(2299, 12, 31), [], 1)])


def test_t12_dates_never_wrap_and_both_paths_have_one_rule(outcome):
    outcome.is_("t12", [(date(1900, 1, 1), FIRST), (date(1900, 1, 1), LAST), (date(2000, 1, 1), None)])
    outcome.is_("t12_null", [(None, None), (None, None), (date(2000, 1, 1), None)])
    outcome.is_("t12_ends", [(date(1900, 1, 1), FIRST), (date(2299, 12, 31), LAST)])
    for schema in ("c", "s"):
        sqlstate, error = outcome.error(schema, "t12_error")
        assert sqlstate == "22008" and f'"{schema}.t12_error"' in error and "is outside the range of Nullable(Date" in error
        assert "1789" not in error


def test_t14_the_24th_hour_arrives(outcome):
    outcome.is_("t14", [("24:00:00", "24:00:00+05:30"), ("23:59:59.999999", "00:00:00-15:59:59"), ("24:00:00", "00:00:00+00")])


def test_t16_intervals_have_one_form(outcome):
    outcome.is_("t16", [("P1Y2M3DT4H5M6.000007S",), ("P-178000000Y",), ("P1M-1D",), ("PT-0.5S",), ("P1Y2M3DT4H5M6S",)])


def test_t17_settings_of_database_and_role_change_nothing(outcome):
    outcome.is_("t17", [("DEADBEEF00", date(2024, 2, 3), 0.30000000000000004, moment(2024, 2, 3, 4, 5, 6, 789000), "1234.50")],
                "hex(b) AS b, d, f, tz, m")


def test_t19_numbers_in_json_keep_their_digits(outcome):
    outcome.is_("t19", [('{"v": 18446744073709551616, "w": 0.1234567890123456789}',), ('{"e": 1' + "0" * 400 + "}",),
                        ('{"id": 9007199254740993}',)])


def test_t22_dimensions_and_bounds_are_not_flattened(outcome):
    assert outcome.types("t22") == {"id": "Int32", "a": "Array(Nullable(Int32))", "a__is_null": "UInt8",
                                    "b": "Array(Array(Nullable(Int32)))", "b__is_null": "UInt8"}
    outcome.is_("t22", [([], 1, [], 1), ([7], 0, [[1], [2]], 0), ([], 1, [], 1), ([], 1, [], 0)])
    outcome.is_("t22_text", [("[[1,2],[3,null]]", "[1,2]"), ("[7]", "[[1],[2]]"),
                             ('"[-1:1]={7,8,9}"', '"[2:3][5:5]={{1},{2}}"'), ("[[[1]]]", "[]")])
    for schema in ("c", "s"):
        sqlstate, error = outcome.error(schema, "t22_error")
        assert sqlstate == "2202E" and "number of dimensions" in error


def test_t23_arrays_of_enums_and_domains_are_arrays(outcome):
    assert outcome.types("t23")["m"] == "Array(LowCardinality(Nullable(String)))"
    outcome.is_("t23", [(["sad", "so, so", ""], 0, [1, 2], 0), ([], 0, [], 0), ([], 1, [None, 3], 0)])


def test_t25_domains_are_their_base_type(outcome):
    assert outcome.types("t25") == {"id": "Int32", "a": "Nullable(Decimal(10, 2))", "b": "Nullable(String)", "c": "Nullable(String)",
                                    "d": "Array(Nullable(Decimal(10, 2)))", "d__is_null": "UInt8"}
    outcome.is_("t25", [(Decimal("12.30"), "Ann@Example.org", "101", [Decimal("1.10"), Decimal("2.20")], 0)])


def test_t28_values_of_extensions_types(outcome):
    outcome.is_("t28", [('{"":"","a":null,"k 2":"v\\"x"}', "Top.Science.Astro", "MiXed"), ("{}", None, ""), (None, "", None)])


def test_t30_bits_are_not_booleans(outcome):
    assert outcome.types("t30")["b1"] == "Nullable(String)"
    outcome.is_("t30", [("1", "101", "", True), ("0", "000", "10" * 33 + "1", None)])


def test_t32_null_is_not_a_default_unless_asked_for(outcome):
    outcome.is_("t32", [(None, None, None, None), (moment(1970, 1, 1), 0, "", False)])
    outcome.is_("t32_zero", [(moment(1970, 1, 1), 0, "", False)] * 2)


def test_t33_no_text_means_anything_to_us(outcome):
    outcome.is_("t33", [("__debezium_unavailable_value", "NULL"), ("\\N", ""), (None, "null"),
                        ("tab\there\nnl\\back\r\x01\x7f", "__debezium_unavailable_value"),
                        ("\U0001f600\ufeffe\u0301", "\U0010ffff")])


def test_t35_json_null_and_sql_null_stay_different(outcome):
    outcome.is_("t35", [('{"a": {"b": [1, null, "x"]}}', "null"), ('"str"', "[]"), (None, "1")])


def test_t35_json_is_the_destinations_own_type_by_option(outcome):
    assert outcome.types("t35_json") == {"id": "Int32", "j": "Nullable(JSON)", "k": "Nullable(JSON)"}
    outcome.is_("t35_json", [('{"a":{"b":[1,null,"x"]}}', '{"f":0.1,"i":9007199254740993}', "1"), (None, "{}", ""),
                             (None, '{"z":[]}', ""), (None, "{}", "")],
                "toString(j) j, toString(k) k, toString(j.a.b[1]) b")
