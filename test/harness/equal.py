"""Comparing a source table with what a receiver has, value by value."""

import json

from .state import canonical

PINNED = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601';"
    "SET bytea_output = 'hex'; SET extra_float_digits = 1; SET quote_all_identifiers = off;"
    "SET search_path = pg_catalog"
)

# How to_json() of a column is changed by the documented deviations.
DEVIATIONS = {
    "numeric": "to_json({0}::text)",
    "numeric[]": "to_json({0}::text[])",
    "money": "to_json({0}::numeric::text)",
    "money[]": "to_json({0}::numeric[]::text[])",
}


def source_rows(server, db, table, columns=None, where="true"):
    """Rows of a table as the events would show them (list of dictionaries)."""
    with server.connect(db) as connection:
        connection.execute(PINNED)
        found = connection.execute(
            """
            SELECT a.attname, format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, NULL)
              FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
             WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum
            """, (table,)).fetchall()
        parts = []
        for name, kind in found:
            if columns is not None and name not in columns:
                continue
            quoted = '"' + name.replace('"', '""') + '"'
            literal = "'" + name.replace("'", "''") + "'"
            parts.append(f"{literal}, " + DEVIATIONS.get(kind, "to_json({0})").format(f"t.{quoted}"))
        # a function takes 100 arguments at most
        objects = [f"json_build_object({', '.join(parts[i:i + 50])})::text" for i in range(0, len(parts), 50)]
        rows = connection.execute(
            f"SELECT {', '.join(objects)} FROM {table} AS t WHERE {where}"
        ).fetchall()
    load = lambda text: json.loads(text, parse_float=str, parse_constant=str)
    return [{k: v for text in row for k, v in load(text).items()} for row in rows]


def assert_equal(server, db, state, tables, columns=None, where="true", ignore_others=False):
    """The rebuilt tables ("schema.table") equal the source's, value by value."""
    for table in tables:
        want = sorted(map(canonical, source_rows(server, db, table, columns, where)))
        rows = state.rows(table)
        if ignore_others and columns is not None:
            rows = [{c: v for c, v in row.items() if c in columns} for row in rows]
        have = sorted(map(canonical, rows))
        if want == have:
            continue
        lacking = _minus(want, have)
        extra = _minus(have, want)
        raise AssertionError(
            f"{table}: {len(want)} rows at the source, {len(have)} at the receiver; "
            f"lacking {len(lacking)}: {lacking[:3]}, extra {len(extra)}: {extra[:3]}")


def _minus(a, b):
    rest, out = list(b), []
    counts = {}
    for row in rest:
        counts[row] = counts.get(row, 0) + 1
    for row in a:
        if counts.get(row):
            counts[row] -= 1
        else:
            out.append(row)
    return out
