"""Every type at ClickHouse: each value of each type through copy, insert, update and delete, compared by typed value."""

import json
import re
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from harness.clickhouse_equal import META, Source, assert_current, core, fetch
from harness.pipeline import FAST, clickhouse, webhook
from harness.wait import wait_until
from test_values import HOSTILE, PINNED, Types
from type_samples import DEFINITIONS, SAMPLES


# Samples of types that ClickHouse's do not hold as a whole: what is inside.
INSIDE = {
    "date": ["2026-11-30", "1900-01-01", "2299-12-31", "1969-12-31"],
    "timestamp without time zone": ["2026-11-30 03:50:27.12", "1900-01-01 00:00:00", "2299-12-31 23:59:59.999999",
                                    "1969-12-31 23:59:59.999999"],
    "timestamp with time zone": ["2026-11-30 03:50:27.123456+00", "1900-01-01 00:00:00+00",
                                 "2299-12-31 23:59:59.999999+00"],
    "numeric(12,2)": ["12.30", "-9999999999.99", "9999999999.99", "0"],
    "public.numbers": ["{1,2}", "{}", "{NULL,2147483647}"],
    "public.tree": SAMPLES["public.tree"],
}


# --- the walk ---


class Walk:
    """Tables over all types; rows are sample s of each type, the last one NULLs.

    Rows below 1000 are there before the pipeline starts.  Those from 1000 are
    inserted later, those from 2000 get their values by an update, those from
    3000 are deleted.
    """

    COLUMNS = 10
    FROM = {"copy": 0, "insert": 1000, "update": 2000, "delete": 3000}

    def __init__(self, connection, samples):
        self.c = connection
        self.samples = {name: samples.get(name, SAMPLES[name]) for name in Types(connection).names}
        names = list(self.samples)
        self.tables = [names[i:i + self.COLUMNS] for i in range(0, len(names), self.COLUMNS)]

    def depth(self, types):
        return max(len(self.samples[n]) for n in types)

    def write(self):
        c = self.c
        c.execute("SET search_path = public, pg_catalog")
        for t, types in enumerate(self.tables):
            columns = ", ".join(f"v{i} {n}, a{i} {n}[], m{i} {n}[][]" for i, n in enumerate(types))
            c.execute(f"CREATE TABLE walk_{t} (id int PRIMARY KEY, {columns})")
            c.execute(f"ALTER TABLE walk_{t} REPLICA IDENTITY FULL")
            for s in range(self.depth(types)):
                parts, params = ["%s"], [s]
                for n in types:
                    own = self.samples[n]
                    a, b = own[s % len(own)], own[(s + 1) % len(own)]
                    # the third array is empty
                    parts += [f"%s::{n}", f"ARRAY[%s::{n}, NULL, %s::{n}]" if s != 2 else f"'{{}}'::{n}[]",
                              f"ARRAY[[%s::{n}, NULL], [NULL, %s::{n}]]" if n != "public.numbers" else f"NULL::{n}[]"]
                    params += [a] + [a, b] * (s != 2) + [a, b] * (n != "public.numbers")
                c.execute(f"INSERT INTO walk_{t} VALUES ({', '.join(parts)})", params)
            c.execute(f"INSERT INTO walk_{t} (id) VALUES ({self.depth(types)})")

    def change(self):
        for t, types in enumerate(self.tables):
            names = [f"{k}{i}" for i in range(len(types)) for k in "vam"]
            columns = ", ".join(names)
            for first in (1000, 3000):
                self.c.execute(f"INSERT INTO walk_{t} (id, {columns}) SELECT id + {first}, {columns} FROM walk_{t} WHERE id < 1000")
            self.c.execute(f"INSERT INTO walk_{t} (id) SELECT id + 2000 FROM walk_{t} WHERE id < 1000")
            self.c.execute(f"UPDATE walk_{t} AS w SET {', '.join(f'{n} = o.{n}' for n in names)}"
                           f" FROM walk_{t} AS o WHERE w.id = o.id + 2000")
            self.c.execute(f"DELETE FROM walk_{t} WHERE id >= 3000")

    def compare(self, server, db, ch, lake):
        """Each value in the log; cells compared by operation, and the kinds of types met."""
        cells, kinds_met = Counter(), set()
        for t, types in enumerate(self.tables):
            source = Source(server, db, f"public.walk_{t}")
            names = list(source.columns)
            kinds, log = fetch(ch, (lake, f"public_walk__{t}"), names, source, extra=META, tail="ORDER BY cdc_lsn, cdc_ordinal")
            kinds_met |= {core(kinds[n]) for n in names}
            want = {row[0]: row for row in source.rows(names, [kinds[n] for n in names], "id < 1000")}
            operations = {"copy": b"INSERT", "insert": b"INSERT", "update": b"UPDATE", "delete": b"DELETE"}
            for operation, first in self.FROM.items():
                rows = {row["id"] - first: row for row in log
                        if first <= row["id"] < first + 1000 and row["cdc_operation"] == operations[operation]}
                assert set(rows) == set(want), (t, operation)
                for number, row in rows.items():
                    assert (row["cdc_ordinal"] == 0) == (operation == "copy")
                    for name, value in zip(names[1:], want[number][1:]):
                        column = f"{types[int(name[1:])]} ({name}) in {kinds[name]}, sample {number}, {operation}"
                        assert row[name] == value, column
                        cells[operation] += 1
        return cells, kinds_met


@pytest.mark.parametrize("policy", ["error", "text"])
def test_every_type_and_value_in_every_operation(server, ch, lake, policy):
    """Under value_policy error what the types hold, under text everything."""
    db = server.create_database("walk_" + policy)
    try:
        server.psql(DEFINITIONS, db)
        with server.connect(db) as c:
            c.execute(PINNED)
            walk = Walk(c, INSIDE if policy == "error" else {})
            for name, value in HOSTILE.items():
                c.execute(f"ALTER DATABASE {db} SET {name} = " + (value if name == "search_path" else f"'{value}'"))
            walk.write()
            c.execute("CREATE PUBLICATION pub FOR ALL TABLES")
            clickhouse(server, db, ch, lake, options_={**FAST, "engine": "merge_tree", "value_policy": policy})
            server.wait_for("p", db, timeout=120)
            walk.change()
            server.wait_for("p", db, timeout=120)
            cells, kinds = walk.compare(server, db, ch, lake)
        types = sum(map(len, walk.tables))
        rows = sum((walk.depth(t) + 1) * 3 * len(t) for t in walk.tables)
        assert cells == {operation: rows for operation in walk.FROM}
        assert types >= 90 and rows >= 1400
        print(f"{types} types, {sum(cells.values())} cells, policy {policy}: {dict(cells)}")
        typed = {k for k in kinds if k.startswith("Array(")}
        assert not typed if policy == "text" else len(typed) >= 20, kinds
    finally:
        server.sql("SELECT etl.drop_pipeline('p')", db=db)
        wait_until(lambda: server.status("p", db) is None, 30, "the pipeline is gone")
        server.drop_database(db)


# --- the documented map ---

DOC = Path(__file__).resolve().parent.parent / "doc" / "types.md"

# What the page says in words, as types of DEFINITIONS.
WORDS = {"enums": ["mood"], "composites": ["leaf", "tree"], "arrays of enums": ["mood[]"],
         "their multiranges": ["int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange",
                               "tstzmultirange"],
         "arrays of composites, of `hstore`": ["leaf[]", "hstore[]"], "other types of extensions": ["lquery", "ltxtquery"]}


def documented(heading):
    """[(types, row)] of the first table below a heading of doc/types.md."""
    text = DOC.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", text, re.M)[0].splitlines()[2:]
    rows = []
    for line in table:
        row = [cell.strip() for cell in line.strip("|").split("|")]
        words = WORDS.get(row[0])
        types = words or re.findall(r"`([^`]+)`", row[0])
        if words is None:
            types += [t for word, known in WORDS.items() if re.sub("`[^`]*`", "", row[0]).endswith(word) for t in known]
        assert types, line
        rows.append((types, row))
    return rows


def test_the_documented_map_is_the_one_in_force(server, db, ch, lake, start):
    server.psql(DEFINITIONS, db)
    rows = documented("ClickHouse")
    types = [t for names, _ in rows for t in names]
    assert len(types) == len(set(types)) >= 75
    server.sql(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'c{i} {t}' for i, t in enumerate(types))})", db=db)
    start("t")
    server.wait_for("p", db)
    made = {name: kind for name, kind, _ in ch.columns(lake, "public_t")}
    said = {row[0]: row[1:] for row in server.sql(
        "SELECT column_name, destination_type, value_policy, note FROM etl.column_status", db=db)}
    number = 0
    for names, (_, kind, holds, _) in rows:
        for name in names:
            have = made[f"c{number}"]
            shown, policy, note = said[f"c{number}"]
            assert core(have) == core(kind.strip("`")) and have == shown, name
            if have.startswith("Array("):
                assert made[f"c{number}__is_null"] == "UInt8"
            else:
                assert "Nullable(" in have
            assert (policy, holds) == (None, "all") if policy is None else f"holds {holds}" in note.split("; null")[0], name
            number += 1


def test_the_documented_webhook_kinds_are_those_in_force(server, db, receiver):
    server.psql(DEFINITIONS, db)
    rows = documented("Webhooks")
    types = [t for names, _ in rows for t in names]
    server.sql(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'c{i} {t}' for i, t in enumerate(types))});"
               "CREATE PUBLICATION pub FOR TABLE t", db=db)
    webhook(server, db, receiver, start=False)
    said = dict(server.sql("SELECT source_column, destination_type FROM etl.plan('p') WHERE source_column <> 'id'", db=db))
    assert [said[f"c{i}"] for i in range(len(types))] == [row[1] for names, row in rows for _ in names]


def test_every_type_is_documented(server, db):
    """All that the walk meets, but for what the tests and information_schema define."""
    server.psql(DEFINITIONS, db)
    named = {t for names, _ in documented("ClickHouse") for t in names if "[" not in t}
    with server.connect(db) as c:
        known = {row[0] for row in c.execute("SELECT format_type(to_regtype(split_part(t, '(', 1)), NULL) FROM unnest(%s::text[]) t",
                                             (list(named),))}
        c.execute(PINNED)
        walked = {t.split("(")[0] for t in Types(c).names if not t.startswith(("public.", "information_schema."))}
    assert len(walked) >= 65
    assert not walked - {str(t).split("(")[0] for t in known}


# --- policies while a pipeline runs ---


def adjusted(server, db):
    """{column: values changed} where there were any."""
    return dict(server.sql("SELECT column_name, adjusted FROM etl.column_status WHERE adjusted > 0", db=db))


def rows(ch, lake):
    return ch.query(f"SELECT d, s, a, a__is_null FROM {lake}.public_t_current ORDER BY id")


def test_a_policy_is_changed_and_a_parked_table_comes_back(server, db, ch, lake, start):
    """The rule of the column, of the table, of the pipeline; made in time or after the table was parked."""
    server.sql("CREATE TABLE t (id int PRIMARY KEY, d date NOT NULL, s date, a date[]); INSERT INTO t VALUES (1, '2020-01-01', NULL, NULL)", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("SELECT etl.alter_column('p', 't', 's', '{\"value_policy\": \"clamp\"}')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (2, '2020-01-01', 'infinity', '{2020-01-01}')", db=db)
    server.wait_for("p", db)
    first, last = date(1900, 1, 1), date(2299, 12, 31)
    day = date(2020, 1, 1)
    assert rows(ch, lake) == [(day, None, [], 1), (day, last, [day], 0)]
    assert server.tables("p", db)["public.t"]["generation"] == 1
    assert adjusted(server, db) == {"s": 1}
    # the table has no rule: its value parks it, and the new rule brings it back with another table
    server.sql("INSERT INTO t VALUES (3, '-infinity', '-infinity', '{infinity,2020-01-01}')", db=db)
    wait_until(lambda: server.tables("p", db)["public.t"]["state"] == "errored", 30, "parked")
    server.sql("SELECT etl.alter_table('p', 't', '{\"value_policy\": \"null\"}'); SELECT etl.retry_table('p', 't')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t SELECT id + 3, d, s, a FROM t", db=db)
    server.wait_for("p", db)
    assert rows(ch, lake) == 2 * [(day, None, [], 1), (day, last, [day], 0), (None, first, [None, day], 0)]
    assert dict((n, k) for n, k, _ in ch.columns(lake, "public_t"))["d"] == "Nullable(Date32)"
    # of this copy: two rows were copied and two streamed; an array counts once
    assert adjusted(server, db) == {"d": 2, "s": 4, "a": 2}
    # the pipeline's rule is the widest
    server.sql("SELECT etl.alter_pipeline('p', '{\"value_policy\": \"clamp\"}'); SELECT etl.alter_table('p', 't', '{\"value_policy\": null}');"
               "SELECT etl.alter_column('p', 't', 's', '{\"value_policy\": \"text\"}')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t SELECT id + 6, d, s, a FROM t WHERE id < 4", db=db)
    server.wait_for("p", db)
    assert rows(ch, lake) == 3 * [(day, None, [], 1), (day, "infinity", [day], 0), (first, "-infinity", [last, day], 0)]
    kinds = {n: k for n, k, _ in ch.columns(lake, "public_t")}
    assert (kinds["d"], kinds["s"]) == ("Date32", "Nullable(String)")


@pytest.mark.parametrize("policy", ["null", "clamp"])
def test_the_key_is_never_changed(server, db, ch, lake, start, policy):
    server.sql("CREATE TABLE t (id date PRIMARY KEY, v int); CREATE TABLE u (id date PRIMARY KEY, v int);"
               "INSERT INTO t VALUES ('infinity', 1), ('2300-01-01', 2); INSERT INTO u VALUES ('2020-01-01', 1)", db=db)
    start("t, u", {"value_policy": policy})
    server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    server.sql("INSERT INTO u VALUES ('-infinity', 1)", db=db)
    wait_until(lambda: server.status("p", db)["tables_parked"] == 2, 30, "both are parked")
    assert {t["sqlstate"] for t in server.tables("p", db).values()} == {"22008"}
    server.sql("SELECT etl.alter_pipeline('p', '{\"value_policy\": \"text\"}'); SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert ch.query(f"SELECT * FROM {lake}.public_t_current ORDER BY v") == [("infinity", 1), ("2300-01-01", 2)]
    assert ch.query(f"SELECT id FROM {lake}.public_u_current ORDER BY id") == [("-infinity",), ("2020-01-01",)]


def test_current_rows_of_every_type_after_updates(server, ch, lake):
    """The view over the current rows, updates of every column under the ordinary replica identity."""
    db = server.create_database("walk_current")
    try:
        server.psql(DEFINITIONS, db)
        with server.connect(db) as c:
            c.execute(PINNED)
            walk = Walk(c, INSIDE)
            walk.write()
            for t in range(len(walk.tables)):
                c.execute(f"ALTER TABLE walk_{t} REPLICA IDENTITY DEFAULT")
            c.execute("CREATE PUBLICATION pub FOR ALL TABLES")
            clickhouse(server, db, ch, lake, options_=FAST)
            server.wait_for("p", db, timeout=120)
            walk.change()
            server.wait_for("p", db, timeout=120)
        assert_current(server, db, ch, lake, [f"public.walk_{t}" for t in range(len(walk.tables))])
    finally:
        server.sql("SELECT etl.drop_pipeline('p')", db=db)
        wait_until(lambda: server.status("p", db) is None, 30, "the pipeline is gone")
        server.drop_database(db)


def test_enums_follow_their_labels(server, db, ch, lake, start):
    server.sql("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int PRIMARY KEY, m mood, a mood[]);"
               "INSERT INTO t VALUES (1, 'sad', '{ok,sad}')", db=db)
    start("t")
    server.wait_for("p", db)
    server.sql("ALTER TYPE mood ADD VALUE 'new' BEFORE 'sad'", db=db)
    server.sql("INSERT INTO t VALUES (2, 'new', '{new,NULL}')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")
    assert ch.query(f"SELECT m, a FROM {lake}.public_t_current ORDER BY id") == [("sad", ["ok", "sad"]), ("new", ["new", None])]


def test_strings_in_json_stay_strings(server, db, ch, lake, start):
    """ClickHouse would take them for dates, times and numbers."""
    texts = ["2020-01-01", "2020-01-01 00:00:00", "2020-01-01T00:00:00.5Z", "17", "1.50", "true", "x"]
    document = {f"m{i}": text for i, text in enumerate(texts)} | {"all": texts}
    server.sql("CREATE TABLE t (id int PRIMARY KEY, j jsonb)", db=db)
    server.sql("INSERT INTO t VALUES (1, %s::text::jsonb)", (json.dumps(document),), db)
    start("t", start=False)
    server.sql("SELECT etl.alter_column('p', 't', 'j', '{\"destination_type\": \"JSON\"}'); SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t SELECT 2, j FROM t", db=db)
    server.wait_for("p", db)
    found = ch.query(f"SELECT toString(j), JSONAllPathsWithTypes(j) FROM {lake}.public_t_current ORDER BY id")
    assert [json.loads(shown) for shown, _ in found] == [document] * 2
    assert [kinds for _, kinds in found] == [{f"m{i}": "String" for i in range(len(texts))} | {"all": "Array(Nullable(String))"}] * 2


def test_a_null_where_none_should_be_is_never_a_zero(server, db, ch, lake, start):
    """As under a NOT NULL constraint that is not valid; here the catalog is not true."""
    def claim(not_null):
        server.sql(f"UPDATE pg_attribute SET attnotnull = {not_null} WHERE attrelid = 't'::regclass AND attname = 'n'", db=db)

    server.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, NULL)", db=db)
    claim(True)
    start("t", {"value_policy": "clamp"})
    table = wait_until(lambda: (t := server.tables("p", db).get("public.t")) and t["state"] == "errored" and t, 30, "parked")
    assert table["sqlstate"] == "22004" and 'value of column "n" is null, unlike Int32' in table["error"]
    claim(False)
    server.sql("SELECT etl.retry_table('p', 't')", db=db)
    server.wait_for("p", db)
    assert ch.query(f"SELECT id, n FROM {lake}.public_t_current") == [(1, None)]


def test_a_source_column_with_the_name_of_a_companion(server, db, ch, lake, start):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, a int[], a__is_null text); INSERT INTO t VALUES (1, '{1}', 'x');"
               "CREATE TABLE u (id int PRIMARY KEY, a int[] NOT NULL, a__is_null text); INSERT INTO u VALUES (1, '{1}', 'x')", db=db)
    start("t, u")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    row = server.tables("p", db)["public.t"]
    assert row["sqlstate"] == "42701" and "destination_column" in row["hint"]
    assert ch.query(f"SELECT * FROM {lake}.public_u_current") == [(1, [1], "x")]
    server.sql("SELECT etl.alter_column('p', 't', 'a__is_null', '{\"destination_column\": \"said\"}'); SELECT etl.retry_table('p', 't')", db=db)
    server.wait_for("p", db)
    assert ch.query(f"SELECT * FROM {lake}.public_t_current") == [(1, [1], 0, "x")]
