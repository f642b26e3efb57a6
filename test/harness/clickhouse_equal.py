"""Comparing a source table with what ClickHouse has, value by value.

The source's values come through psycopg, the destination's through
rowbinary.py, both typed.  What the destination keeps as String is compared
with the text of the type's output function, bytea with the bytes.
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
        return tuple(canonical(v, kind if isinstance(v, list) else kind[6:-1]) for v in value)
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


# --- the source ---

class Source:
    """A table of the source: its columns with their types, its key."""

    def __init__(self, server, db, table):
        self.server, self.db, self.table = server, db, table
        self.columns = dict(server.sql(
            """
            SELECT a.attname, format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, NULL)
              FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
             WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
             ORDER BY a.attnum
            """, (table,), db))
        self.schema, self.name = server.sql(
            "SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s::regclass",
            (table,), db)[0]
        found = server.sql(
            """
            SELECT (SELECT array_agg(attname ORDER BY k.n)
                      FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(attnum, n)
                      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum)
              FROM pg_index i WHERE i.indrelid = %s::regclass AND (i.indisreplident OR i.indisprimary)
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
        return self.columns[column] == "bytea"

    def rows(self, columns, kinds, where="true"):
        """Rows with these columns, in the form of these types of the destination."""
        shown = [self._expression(column, core(kind)) for column, kind in zip(columns, kinds)]
        with self.server.connect(self.db) as connection:
            connection.execute(PINNED)
            cursor = connection.execute(
                f"SELECT {', '.join(shown)} FROM {self.table} AS t WHERE {where.replace('%', '%%')}", ())
            return [tuple(self._value(v, kind) for v, kind in zip(row, kinds)) for row in cursor]

    def _expression(self, column, kind):
        value = 't."' + column.replace('"', '""').replace("%", "%%") + '"'
        is_text = kind == "String" or kind.startswith(("FixedString", "Enum"))
        if is_text and self.columns[column] == "money":
            return TEXT.format(value, value + "::numeric")
        if is_text and not self.is_bytes(column):
            return TEXT.format(value, value)
        if kind.startswith("Time64"):
            return f"extract(epoch FROM {value})"
        return value

    @staticmethod
    def _value(value, kind):
        if value is not None and core(kind).startswith("Time64"):
            return timedelta(microseconds=int(value * 10 ** 6))
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
            row[column] = None if row.pop(column + IS_NULL, 0) else canonical(value, kinds[column])
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
                   suffix="_current"):
    """The views of the tables ("schema.table") hold exactly the rows of the source.

    columns  only these; names  {column: its name at the destination};
    where    the publication's row filter; target  name of the view (one table)
    """
    for table in [tables] if isinstance(tables, str) else tables:
        source = Source(server, db, table)
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


def assert_log(server, db, clickhouse, database, tables, columns=None, where="true", target=None):
    """The event logs of the tables add up to the rows of the source, no change twice."""
    for table in [tables] if isinstance(tables, str) else tables:
        source = Source(server, db, table)
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
