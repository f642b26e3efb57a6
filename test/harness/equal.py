"""Comparing a source table with what a receiver has, value by value."""

import json

from .state import canonical

PINNED = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601';"
    "SET bytea_output = 'hex'; SET extra_float_digits = 1; SET quote_all_identifiers = off;"
    "SET lc_monetary = 'C'; SET search_path = pg_catalog"
)

COLUMNS = """
    SELECT attname, atttypid::int8 FROM pg_attribute
     WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class Types:
    """What to_json() does to numeric and money, at any depth, and the documented deviations from it."""

    def __init__(self, connection):
        self.types = {row[0]: row for row in connection.execute(
            "SELECT oid::int8, typname, typbasetype::int8, typelem::int8, typrelid::int8,"
            "       typsubscript = 'array_subscript_handler'::regproc FROM pg_type")}
        self.fields = {}
        for relid, name, kind in connection.execute(
                "SELECT attrelid::int8, attname, atttypid::int8 FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid"
                " WHERE relkind = 'c' AND attnum > 0 AND NOT attisdropped"):
            self.fields.setdefault(relid, {})[name] = kind

    def base(self, oid):
        while self.types[oid][2]:
            oid = self.types[oid][2]
        return oid

    def is_array(self, oid):
        return self.types[self.base(oid)][5]

    def expression(self, oid, value):
        """An array with bounds of its own is the text that PostgreSQL prints."""
        if not self.is_array(oid):
            return f"to_json({value})"
        text = f"{value}::numeric[]" if self.name(self.element(oid)) == "money" else value
        return f"CASE WHEN {text}::text LIKE '[%' THEN to_json({text}::text) ELSE to_json({value}) END"

    def name(self, oid):
        return self.types[self.base(oid)][1]

    def element(self, oid):
        return self.types[self.base(oid)][3]

    def expected(self, oid, value):
        """A value of to_json() as an event shows it."""
        oid = self.base(oid)
        _, name, _, element, relid, is_array = self.types[oid]
        if value is None:
            return None
        if name == "numeric":
            return str(value)
        if name == "money":
            return value.replace("$", "").replace(",", "")
        if is_array and isinstance(value, list):
            return [self.expected(oid if isinstance(v, list) and not self.is_array(element) else element, v) for v in value]
        if relid and isinstance(value, dict):
            return {k: self.expected(self.fields[relid][k], v) for k, v in value.items()}
        return value


def source_rows(server, db, table, columns=None, where="true"):
    """Rows of a table as the events would show them (list of dictionaries)."""
    with server.connect(db) as connection:
        connection.execute(PINNED)
        types = Types(connection)
        found = {name: kind for name, kind in connection.execute(COLUMNS, (table,)) if columns is None or name in columns}
        shown = [types.expression(kind, 't."' + name.replace('"', '""') + '"') + "::text" for name, kind in found.items()]
        rows = connection.execute(f"SELECT {', '.join(shown)} FROM {table} AS t WHERE {where}").fetchall()
    # a number with more digits than Python reads can only be a numeric, which is compared as text
    whole = lambda text: int(text) if len(text) < 4000 else text
    load = lambda text: None if text is None else json.loads(text, parse_int=whole, parse_float=str, parse_constant=str)
    return [{name: types.expected(kind, load(text)) for (name, kind), text in zip(found.items(), row)} for row in rows]


def assert_equal(server, db, state, tables, columns=None, where="true", ignore_others=False):
    """The rebuilt tables ("schema.table") equal the source's, value by value."""
    for table in tables:
        rows = state.rows(table)
        if ignore_others and columns is not None:
            rows = [{c: v for c, v in row.items() if c in columns} for row in rows]
        told = difference(source_rows(server, db, table, columns, where), rows)
        if told:
            raise AssertionError(f"{table}: {told}")


def difference(want, have):
    """What to say of two lists of rows that are not equal, or None."""
    want = sorted(map(canonical, want))
    have = sorted(map(canonical, have))
    if want == have:
        return None
    lacking = _minus(want, have)
    extra = _minus(have, want)
    return (f"{len(want)} rows at the source, {len(have)} at the receiver; "
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
