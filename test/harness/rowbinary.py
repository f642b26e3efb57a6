"""Reading ClickHouse's RowBinaryWithNamesAndTypes into Python values.

Written from the format's description alone, so that it can disagree with the
encoder that it is used to check.
"""

import re
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from uuid import UUID

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DAY = date(1970, 1, 1)
NUMBERS = {"Int8": "<b", "Int16": "<h", "Int32": "<i", "Int64": "<q", "UInt8": "<B", "UInt16": "<H", "UInt32": "<I",
           "UInt64": "<Q", "Float32": "<f", "Float64": "<d"}
WIDE = {"Int128": (16, True), "UInt128": (16, False), "Int256": (32, True), "UInt256": (32, False)}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        end = self.at + count
        if end > len(self.data):
            raise ValueError(f"the data end at byte {len(self.data)}, wanted {end}")
        found, self.at = self.data[self.at:end], end
        return found

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def string(self):
        return self.take(self.varint())


def split(text):
    """Arguments of a type, at the commas outside parentheses and quotes."""
    parts, depth, start, quote = [], 0, 0, None
    for i, c in enumerate(text):
        if quote:
            quote = None if c == quote and text[i - 1] != "\\" else quote
        elif c in "'`":
            quote = c
        elif c in "(":
            depth += 1
        elif c == ")":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return parts + [text[start:].strip()]


def as_text(raw):
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def reader_of(kind, text=True):
    """A function from a Reader to a value of this type.

    DateTime and DateTime64 are aware datetimes in UTC (DateTime64 beyond
    microseconds, and what Python's years do not reach: the ticks as int),
    Time64 is a timedelta, an Enum its name.
    """
    if kind in NUMBERS:
        form = struct.Struct(NUMBERS[kind])
        return lambda r: form.unpack(r.take(form.size))[0]
    if kind in WIDE:
        size, signed = WIDE[kind]
        return lambda r: int.from_bytes(r.take(size), "little", signed=signed)
    if kind == "Bool":
        return lambda r: {0: False, 1: True}[r.take(1)[0]]
    if kind == "String":
        return (lambda r: as_text(r.string())) if text else (lambda r: r.string())
    if kind == "Date":
        return lambda r: DAY + timedelta(days=int.from_bytes(r.take(2), "little"))
    if kind == "Date32":
        return lambda r: _day(int.from_bytes(r.take(4), "little", signed=True))
    if kind == "UUID":
        return lambda r: UUID(bytes=r.take(8)[::-1] + r.take(8)[::-1])
    if kind == "IPv4":
        return lambda r: IPv4Address(int.from_bytes(r.take(4), "little"))
    if kind == "IPv6":
        return lambda r: IPv6Address(r.take(16))
    if kind == "Nothing":
        return lambda r: None
    if kind == "Point":
        return reader_of("Tuple(Float64, Float64)", text)
    name, _, rest = kind.partition("(")
    arguments = split(rest[:-1]) if rest else []
    return _compound(name, arguments, text, kind)


def _compound(name, arguments, text, kind):
    if name == "DateTime":
        return lambda r: EPOCH + timedelta(seconds=int.from_bytes(r.take(4), "little"))
    if name in ("DateTime64", "Time64"):
        scale = int(arguments[0])
        made = _moment if name == "DateTime64" else _duration
        return lambda r: made(int.from_bytes(r.take(8), "little", signed=True), scale)
    if name == "Decimal":
        precision, scale = int(arguments[0]), int(arguments[1])
        size = 4 if precision <= 9 else 8 if precision <= 18 else 16 if precision <= 38 else 32
        return lambda r: _decimal(int.from_bytes(r.take(size), "little", signed=True), scale)
    if name == "FixedString":
        size = int(arguments[0])
        return (lambda r: as_text(r.take(size))) if text else (lambda r: r.take(size))
    if name in ("Enum8", "Enum16"):
        size = 1 if name == "Enum8" else 2
        labels = {int(m[2]): m[1] for m in (re.match(r"'(.*)' = (-?\d+)$", a) for a in arguments)}
        return lambda r: labels[int.from_bytes(r.take(size), "little", signed=True)]
    if name == "Nullable":
        inner = reader_of(arguments[0], text)
        return lambda r: None if r.take(1)[0] else inner(r)
    if name in ("LowCardinality", "SimpleAggregateFunction"):
        return reader_of(arguments[-1], text)
    if name == "Array":
        inner = reader_of(arguments[0], text)
        return lambda r: [inner(r) for _ in range(r.varint())]
    if name == "Tuple":
        inners = [reader_of(re.sub(r"^(?:\w+|`(?:[^`\\]|\\.)*`) (?=\w)", "", a), text) for a in arguments]
        return lambda r: tuple(inner(r) for inner in inners)
    if name == "Map":
        key, value = (reader_of(a, text) for a in arguments)
        return lambda r: {key(r): value(r) for _ in range(r.varint())}
    raise ValueError(f"no reader for the type {kind}")


def _decimal(unscaled, scale):
    # not arithmetic: that would round to the context's digits
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _day(days):
    try:
        return DAY + timedelta(days=days)
    except OverflowError:
        return days


def _moment(ticks, scale):
    micros, rest = divmod(ticks * 10 ** 6, 10 ** scale)
    try:
        return ticks if rest else EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return ticks


def _duration(ticks, scale):
    micros, rest = divmod(ticks * 10 ** 6, 10 ** scale)
    return ticks if rest else timedelta(microseconds=micros)


def read_rows(data, text=True):
    """(names, types, rows as tuples) of RowBinaryWithNamesAndTypes; nothing at all: no columns."""
    if not data:
        return [], [], []
    reader = Reader(data)
    count = reader.varint()
    names = [reader.string().decode() for _ in range(count)]
    types = [reader.string().decode() for _ in range(count)]
    readers = [reader_of(kind, text) for kind in types]
    rows = []
    while reader.at < len(data):
        rows.append(tuple(read(reader) for read in readers))
    return names, types, rows
