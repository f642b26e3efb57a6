"""Comparing a source table with what ClickHouse has, value by value.

The source's values come through psycopg, the destination's through
rowbinary.py, both typed.  What the destination keeps as String is compared
with the text of the type's output function, bytea with the bytes, composites
and hstore (and arrays, where they are String) with to_json(), parsed.
"""

import json
import struct
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

from .equal import PINNED

META = ("cdc_operation", "cdc_epoch", "cdc_lsn", "cdc_ordinal", "cdc_timestamp", "cdc_old_key")
IS_NULL = "__is_null"
# elements that psycopg knows, also where a domain hides them
KNOWN = ("boolean", "smallint", "integer", "bigint", "real", "double precision", "numeric", "date", "uuid",
         "timestamp without time zone", "timestamp with time zone", "bytea")
# what columns of these types hold
LIMITS = {"date": ("date '1900-01-01'", "date '2299-12-31'"),
          "timestamp without time zone": ("timestamp '1900-01-01'", "timestamp '2299-12-31 23:59:59.999999'"),
          "timestamp with time zone": ("timestamptz '1900-01-01 00:00:00+00'", "timestamptz '2299-12-31 23:59:59.999999+00'")}
TEXT = "CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%%s', {1}) END"


def base_name(schema, table):
    """Name of a source table at the destination."""
    return f"{schema.replace('_', '__')}_{table.replace('_', '__')}"


def quoted(name):
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def core(kind):
    """The type without Nullable and LowCardinality."""
    for wrapper in ("LowCardinality(", "Nullable("):
        if kind.startswith(wrapper):
            kind = kind[len(wrapper):-1]
    return kind


# --- values in one form ---

def canonical(value, kind):
    """Equal for equal values of a ClickHouse type, hashable, and readable in a message."""
    kind = core(kind)
    if value is None:
        return None
    if kind.startswith("Array("):
        return tuple(canonical(v, kind[6:-1]) for v in value)
    if kind == "Float32":
        return "float " + repr(struct.unpack("<f", struct.pack("<f", value))[0])
    if kind == "Float64":
        return "float " + repr(float(value))
    if isinstance(value, str) and kind.startswith(("Int", "UInt")):
        return int(value)  # xid and its like
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    return value


def from_json(value, kind, is_bytes):
    """A member of cdc_old_key as a value of the column's type."""
    kind = core(kind)
    if value is None:
        return None
    if kind in ("String",) or kind.startswith(("Enum", "FixedString")):
        if is_bytes:
            return bytes.fromhex(value.removeprefix("\\x"))
        return value if isinstance(value, str) else json.dumps(value)
    if kind.startswith("Array("):
        return [from_json(v, kind[6:-1], is_bytes) for v in value]
    if kind.startswith("Decimal"):
        return Decimal(str(value))
    if kind.startswith("Float"):
        return float(value)
    if kind == "Date32":
        return date.fromisoformat(value)
    if kind.startswith("DateTime"):
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    if kind == "UUID":
        return UUID(value)
    if kind == "Bool":
        return bool(value)
    return int(value)


def from_text(text):
    """JSON as a value in which numbers are their texts, whether they were quoted or not."""
    return _frozen(json.loads(text, parse_float=str, parse_int=str, parse_constant=str))


def _frozen(value):
    if isinstance(value, dict):
        return ("object", tuple((k, _frozen(v)) for k, v in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(_frozen, value)))
    return value


def _unwrapped(value, kind):
    """Elements of a frozen JSON array where the destination has an array."""
    if value is None or not kind.startswith("Array("):
        return value
    return tuple(_unwrapped(v, core(kind[6:-1])) for v in value[1])


def _parsed(value):
    if isinstance(value, list):
        return tuple(map(_parsed, value))
    return value if value is None else from_text(value)


def array_elements(text, comma=","):
    """Elements of an array's text, as nested lists of texts and None."""
    at = 0

    def element():
        nonlocal at
        if text[at] == "{":
            return elements()
        if text[at] == '"':
            found, at = "", at + 1
            while text[at] != '"':
                at += text[at] == "\\"
                found, at = found + text[at], at + 1
            at += 1
            return found
        start = at
        while text[at] not in comma + "}":
            at += 1 + (text[at] == "\\")
        return None if text[start:at] == "NULL" else text[start:at]

    def elements():
        nonlocal at
        found, at = [], at + 1
        while text[at] != "}":
            found.append(element())
            at += text[at] == comma
        at += 1
        return found

    at = text.index("{")
    return elements()


def innermost(kind):
    """What the arrays are of: Array(Array(Nullable(Int32))) gives Int32."""
    kind = core(kind)
    return innermost(kind[6:-1]) if kind.startswith("Array(") else kind


# --- the source ---

class Source:
    """A table of the source: its columns with their types, its key."""

    def __init__(self, server, db, table, policies=None):
        self.server, self.db, self.table, self.policies = server, db, table, policies or {}
        self.columns, self.elements, self.structured = {}, {}, {}
        for name, kind, element, structured in server.sql(
                """
                WITH RECURSIVE b(name, n, oid) AS (
                    SELECT attname, attnum, atttypid FROM pg_attribute
                     WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
                    UNION ALL SELECT name, n, typbasetype FROM b JOIN pg_type t USING (oid) WHERE typtype = 'd'),
                e(name, oid) AS (
                    SELECT name, typelem FROM b JOIN pg_type t USING (oid)
                     WHERE typtype <> 'd' AND typsubscript = 'array_subscript_handler'::regproc
                    UNION ALL SELECT name, typbasetype FROM e JOIN pg_type t USING (oid) WHERE typtype = 'd')
                SELECT b.name, format_type(b.oid, NULL), format_type(e.oid, NULL),
                       coalesce(et.typtype, t.typtype) = 'c' OR coalesce(et.typname, t.typname) = 'hstore' OR et.typelem <> 0 AND et.typlen = -1
                  FROM b JOIN pg_type t ON t.oid = b.oid AND t.typtype <> 'd'
                  LEFT JOIN (e JOIN pg_type et ON et.oid = e.oid AND et.typtype <> 'd') USING (name) ORDER BY n
                """, (table,), db):
            self.columns[name], self.structured[name] = kind, structured
            if element:
                self.elements[name] = element
        self.schema, self.name = server.sql(
            "SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s::regclass",
            (table,), db)[0]
        found = server.sql(
            """
            SELECT (SELECT array_agg(attname ORDER BY k.n)
                      FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(attnum, n)
                      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum)
              FROM pg_index i WHERE i.indrelid = %s::regclass AND (i.indisreplident OR i.indisprimary) AND i.indimmediate
             ORDER BY i.indisreplident DESC LIMIT 1
            """, (table,), db)
        self.key = found[0][0] if found else None

    def chosen(self, columns):
        """All columns, or these in the table's order."""
        unknown = set(columns or ()) - set(self.columns)
        if unknown:
            raise ValueError(f"{self.table} has no column {', '.join(sorted(unknown))}")
        return [c for c in self.columns if columns is None or c in columns]

    def is_bytes(self, column):
        return self.elements.get(column, self.columns[column]) == "bytea"

    def is_json(self, column, kind):
        """Is it, or are its elements, JSON in a String?"""
        return innermost(kind) == "String" and (
            self.structured[column] or column in self.elements and not core(kind).startswith("Array("))

    def rows(self, columns, kinds, where="true"):
        """Rows with these columns, in the form of these types of the destination."""
        made = [lambda v, c=column, k=kind: self._value(v, c, k) for column, kind in zip(columns, kinds)]
        shown = [self._expression(column, core(kind)) for column, kind in zip(columns, kinds)]
        with self.server.connect(self.db) as connection:
            connection.execute(PINNED)
            cursor = connection.execute(
                f"SELECT {', '.join(shown)} FROM {self.table} AS t WHERE {where.replace('%', '%%')}", ())
            return [tuple(make(v) for make, v in zip(made, row)) for row in cursor]

    def _expression(self, column, kind):
        value = 't."' + column.replace('"', '""').replace("%", "%%") + '"'
        if column in self.policies:
            low, high = LIMITS[self.columns[column]]
            outside = f"greatest(least({value}, {high}), {low})" if self.policies[column] == "clamp" else "NULL"
            value = f"(CASE WHEN {value} BETWEEN {low} AND {high} OR {value} IS NULL THEN {value} ELSE {outside} END)"
        if self.is_json(column, kind):
            if self.elements.get(column) == "money":
                value += "::numeric[]::text[]"
            shown = f"to_json({value})"
            if column in self.elements:  # bounds of its own
                shown = f"CASE WHEN {value}::text LIKE '[%%' THEN to_json({value}::text) ELSE {shown} END"
            return f"CASE WHEN {value} IS NOT DISTINCT FROM NULL THEN NULL ELSE ({shown})::text END"
        if kind.startswith("Array("):
            return self._array(column, kind, value)
        is_text = kind == "String" or kind.startswith(("FixedString", "Enum"))
        if is_text and self.columns[column] == "money":
            return TEXT.format(value, value + "::numeric")
        if is_text and not self.is_bytes(column):
            return TEXT.format(value, value)
        if kind.startswith("Time64"):
            return f"extract(epoch FROM {value})"
        return value

    def _array(self, column, kind, value):
        if self._is_text_array(column, kind):
            value += {"money": "::numeric[]", "smallint": "::int2[]", "oid": "::oid[]"}.get(self.elements[column], "")
            return TEXT.format(value, value)
        return f"{value}::{self.elements[column]}[]" if self.elements[column] in KNOWN else value

    def _is_text_array(self, column, kind):
        return kind.startswith("Array(") and not self.is_bytes(column) and not innermost(kind).startswith(("Bool", "Float", "Dec", "Date", "UUID"))

    def _value(self, value, column, kind):
        if value is None:
            return None
        if core(kind).startswith("Time64"):
            return timedelta(microseconds=int(value * 10 ** 6))
        if self.is_json(column, kind):
            return _unwrapped(from_text(value), core(kind))
        if self._is_text_array(column, core(kind)):
            value = array_elements(value, ";" if self.elements[column] == "box" else ",")
        return canonical(value, kind)


# --- the destination ---

def fetch(clickhouse, target, columns, source, names=None, extra=(), tail=""):
    """(types by column, rows as dictionaries in canonical form) of a table or view.

    `columns` are the source's, `names` their other names at the destination;
    `extra` columns come as they are.
    """
    names = names or {}
    have = {name for name, _, _ in clickhouse.columns(*target)}
    nulls = [c for c in columns if names.get(c, c) + IS_NULL in have]
    wanted = [quoted(names.get(c, c)) for c in columns] + [quoted(names.get(c, c) + IS_NULL) for c in nulls]
    wanted += [quoted(c) for c in extra]
    shown = [*columns, *(c + IS_NULL for c in nulls), *extra]
    _, kinds, rows = clickhouse.table(
        f"SELECT {', '.join(wanted)} FROM {quoted(target[0])}.{quoted(target[1])} {tail}", text=False)
    kinds = dict(zip(shown, kinds))
    made = []
    for row in rows:
        row = dict(zip(shown, row))
        for column in columns:
            value = row[column]
            if isinstance(value, (bytes, list)) and not source.is_bytes(column):
                value = _decoded(value)
            if row.pop(column + IS_NULL, 0) or value is None:
                row[column] = None
            elif source.is_json(column, kinds[column]):
                row[column] = _parsed(value)
            else:
                row[column] = canonical(value, kinds[column])
        made.append(row)
    return kinds, made


def _decoded(value):
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value


# --- comparing ---

def difference(columns, key, want, have):
    """What to say of two lists of rows (tuples) that are not equal, or None."""
    want, have = Counter(want), Counter(have)
    lacking, extra = want - have, have - want
    if not lacking and not extra:
        return None
    told = []
    if key:
        at = [columns.index(k) for k in key]
        others = {tuple(row[i] for i in at): row for row in extra}
        for row in lacking:
            k = tuple(row[i] for i in at)
            other = others.pop(k, None)
            if other is None:
                told.append(f"lacking: {_shown(columns, row)}")
            else:
                told.append(f"{dict(zip(key, k))}: " + ", ".join(
                    f"{c}: {_short(w)} at the source, {_short(h)} at the destination"
                    for c, w, h in zip(columns, row, other) if w != h))
            if len(told) >= 5:
                break
        told += [f"extra: {_shown(columns, row)}" for row in list(others.values())[:3]]
    else:
        told += [f"lacking {n}: {_shown(columns, row)}" for row, n in list(lacking.items())[:3]]
        told += [f"extra {n}: {_shown(columns, row)}" for row, n in list(extra.items())[:3]]
    return (f"{sum(want.values())} rows at the source, {sum(have.values())} at the destination, "
            f"{sum(lacking.values())} lacking or different, {sum(extra.values())} extra or different\n  " + "\n  ".join(told))


def _short(value):
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def _shown(columns, row):
    return "{" + ", ".join(f"{c}: {_short(v)}" for c, v in zip(columns, row)) + "}"


def assert_current(server, db, clickhouse, database, tables, columns=None, names=None, where="true", target=None,
                   suffix="_current", policies=None):
    """The views of the tables ("schema.table") hold exactly the rows of the source.

    columns  only these; names  {column: its name at the destination};
    where    the publication's row filter; target  name of the view (one table)
    policies {column: its value_policy}, of columns in LIMITS
    """
    for table in [tables] if isinstance(tables, str) else tables:
        source = Source(server, db, table, policies)
        chosen = source.chosen(columns)
        view = (database, target or base_name(source.schema, source.name) + suffix)
        kinds, have = fetch(clickhouse, view, chosen, source, names)
        want = source.rows(chosen, [kinds[c] for c in chosen], where)
        key = source.key if source.key and set(source.key) <= set(chosen) else None
        told = difference(chosen, key, want, [tuple(row[c] for c in chosen) for row in have])
        if told:
            raise AssertionError(f"{table} and {'.'.join(view)}: {told}")


# --- the event log ---

def duplicates(rows, key):
    """Changes that a log has more than once: [(position, ...)]."""
    def identity(row):
        position = (row["cdc_epoch"], row["cdc_lsn"], row["cdc_ordinal"])
        # copied rows share a position
        return position if row["cdc_ordinal"] else position + tuple(row[k] for k in key or ())

    counted = Counter(identity(row) for row in rows if row["cdc_ordinal"] or key)
    return [identity for identity, n in counted.items() if n > 1]


def fold(rows, kinds, columns, key, source):
    """The rows that a log adds up to, as a list of tuples; it must apply without contradiction."""
    identity = key or columns
    state = {}

    def remove(k, row):
        if not state.get(k):
            raise AssertionError(f"{row['cdc_operation']} of a row that is not there: {_shown(META, [row[m] for m in META])}")
        state[k].pop()

    def put(k, row):
        if key and state.get(k):
            raise AssertionError(f"INSERT of a row that is there: {_shown(META, [row[m] for m in META])}")
        state.setdefault(k, []).append(tuple(row[c] for c in columns))

    for row in rows:
        k = tuple(row[c] for c in identity)
        operation = row["cdc_operation"].decode()
        if operation == "TRUNCATE":
            state.clear()
        elif operation == "INSERT":
            put(k, row)
        elif operation == "DELETE":
            remove(k, row)
        elif operation == "UPDATE":
            old = k
            if row["cdc_old_key"] is not None:
                # numbers as they are written: -0 is not 0
                given = json.loads(row["cdc_old_key"], parse_float=str, parse_int=str)
                old = tuple(canonical(from_json(given[c], kinds[c], source.is_bytes(c)), kinds[c]) for c in identity)
            remove(old, row)
            put(k, row)
        else:
            raise AssertionError(f"unknown operation {operation}")
    return [row for rows in state.values() for row in rows]


def assert_log(server, db, clickhouse, database, tables, columns=None, where="true", target=None, policies=None):
    """The event logs of the tables add up to the rows of the source, no change twice."""
    for table in [tables] if isinstance(tables, str) else tables:
        source = Source(server, db, table, policies)
        chosen = source.chosen(columns)
        log = (database, target or base_name(source.schema, source.name))
        kinds, rows = fetch(clickhouse, log, chosen, source, extra=META, tail="ORDER BY cdc_epoch, cdc_lsn, cdc_ordinal")
        twice = duplicates(rows, source.key)
        if twice:
            raise AssertionError(f"{table}: {len(twice)} changes more than once in {'.'.join(log)}: {twice[:5]}")
        want = source.rows(chosen, [kinds[c] for c in chosen], where)
        told = difference(chosen, source.key, want, fold(rows, kinds, chosen, source.key, source))
        if told:
            raise AssertionError(f"{table} and the log {'.'.join(log)}: {told}")
