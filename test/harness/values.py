"""Values of every type for property tests, as the texts that PostgreSQL's input functions read.

values("numeric(12,2)") is a hypothesis strategy of such texts.  Each draws ordinary values, the
extremes of the type, and what other programs have stumbled over.  `held` leaves out what not
every destination's type can hold (years past 2299, NaN in a Decimal, arrays of several
dimensions), `small` what does not fit into an index.  array_text(), row_text() and range texts are built from their elements' texts.
"""

import json
import random
from datetime import date, datetime, timedelta
from decimal import Decimal

from hypothesis import strategies as st

# Types of the tests' own, and of extensions.  Each needs DEFINITIONS.
DEFINITIONS = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'so, so', '', 'it''s "\\é"');
CREATE TYPE leaf AS (a int, "b x" text);
CREATE TYPE tree AS (a int8, "q""u" text, n numeric[], l leaf);
CREATE TYPE price_range AS RANGE (subtype = numeric, multirange_type_name = price_multirange);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN price_nested AS price CHECK (value >= 0);
CREATE DOMAIN mail AS citext;
CREATE DOMAIN bits AS varbit(8);
CREATE DOMAIN numbers AS int[];
CREATE DOMAIN feeling AS mood;
CREATE DOMAIN day AS date;
"""

# --- texts of what is made of elements ---


def array_text(elements, delimiter=","):
    """An array; None is NULL, a list a further dimension."""
    def one(e):
        if e is None:
            return "NULL"
        if isinstance(e, list):
            return array_text(e, delimiter)
        return '"' + e.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + delimiter.join(map(one, elements)) + "}"


def row_text(fields):
    """A composite value; None is NULL."""
    return "(" + ",".join("" if f is None else '"' + f.replace("\\", "\\\\").replace('"', '""') + '"'
                          for f in fields) + ")"


def hstore_text(pairs):
    def quoted(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return ", ".join(f"{quoted(k)}=>{'NULL' if v is None else quoted(v)}" for k, v in pairs.items())


# --- texts ---

MARKERS = ["", " ", "NULL", "null", "\\N", "__debezium_unavailable_value", "{}", "[]", "{NULL}", '{"a":1}', "'", '"', "\\", "\\\\",
           "`", "%s", "$1", "tab\there\nnl\\back\r\x01\x7f", '"quoted",comma;semi|pipe', "e\u0301\U0001f600\ufeff\U0010ffff",
           "\u2028\u0085\u200f", "0", "t", "NaN", "infinity", "1970-01-01", "x" * 127, "é" * 64]
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
SHORT = st.one_of(st.sampled_from(MARKERS), st.text(CHARACTERS, max_size=12))


def long_text(seed, size, hard):
    """Characters that compress badly, or one word again and again."""
    if hard:
        return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyzäöüß€\U0001f600 \"\\\n", k=size))
    return ("word %d " % seed * (size // 6 + 1))[:size]


# around the 2 kB from which values are stored out of line, one and several pieces, compressed or not
LONG = st.builds(long_text, st.integers(0, 9), st.sampled_from([1900, 1996, 2100, 5000, 30000, 120000]), st.booleans())


def text(limit=None, small=False, big=True):
    kinds = SHORT if small or limit or not big else st.one_of(SHORT, SHORT, LONG)
    return kinds.map(lambda t: t[:limit]) if limit else kinds


# --- numbers ---


def integer(low, high):
    edges = [e for e in (low, low + 1, high - 1, high, 0, 1, -1) if low <= e <= high]
    return st.one_of(st.sampled_from(edges), st.integers(low, high)).map(str)


def real(width):
    return st.floats(width=width).map(lambda f: repr(f).replace("inf", "Infinity").replace("nan", "NaN"))


def decimal_text(unscaled, scale):
    return format(Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)), "f")


def numeric(precision=None, scale=0, held=False, small=False):
    """numeric(p,s), or without a modifier, with the special values that are not `held` by a Decimal."""
    if precision is not None:
        most = 10 ** precision - 1
        made = st.one_of(st.sampled_from([0, 1, -1, most, -most]), st.integers(-most, most)).map(
            lambda n: decimal_text(n, scale))
        return made if held else st.one_of(made, made, st.just("NaN"))
    odd = ["NaN", "Infinity", "-Infinity", "0", "0.00", "7000.00", "1e20", "-0.5", "1e-30"]
    if not small:
        odd += ["9" * 400 + "." + "9" * 300, "1e131000", "-1e-16000"]
    return st.one_of(st.sampled_from(odd), st.builds(decimal_text, st.integers(-10 ** 40, 10 ** 40), st.integers(0, 45)))


# --- dates and times ---

HELD_DAYS = (date(1900, 1, 1), date(2299, 12, 31))


def date_text(year, month, day):
    return f"{year:04d}-{month:02d}-{day:02d}" if year > 0 else f"{1 - year:04d}-{month:02d}-{day:02d} BC"


def clock(hour, minute, second, micros):
    return f"{hour:02d}:{minute:02d}:{second:02d}" + (f".{micros:06d}" if micros else "")


CLOCK = st.builds(clock, st.integers(0, 23), st.integers(0, 59), st.integers(0, 59),
                  st.sampled_from([0, 1, 999999, 500000, 120000]))


def days(held, last=5874897):
    edges = ["1900-01-01", "2299-12-31", "1970-01-01", "1969-12-31", "2000-02-29", "1999-12-31", "2038-01-19"]
    inside = st.one_of(st.sampled_from(edges), st.dates(*HELD_DAYS).map(str))
    if held:
        return inside
    far = [date_text(last, 12, 31), "4713-01-01 BC", "0001-12-31 BC", "0001-01-01", "1899-12-31", "2300-01-01", "10000-01-01",
           "0044-03-15 BC"]
    return st.one_of(inside, st.sampled_from([*far, "infinity", "-infinity"]),
                     st.builds(date_text, st.integers(-4711, last), st.integers(1, 12), st.integers(1, 28)))


def moments(held, zone=False):
    def joined(day, time, offset):
        if "infinity" in day:
            return day
        day, bc, _ = day.partition(" BC")
        return f"{day} {time}{offset}{bc}"

    offsets = st.sampled_from(["+00", "-08", "+05:45", "+13:59"]) if zone else st.just("")
    # no zone moves a held day out of the range
    inside = days(held, 294275).filter(lambda d: not (held and zone and d in ("1900-01-01", "2299-12-31")))
    edges = ["1900-01-01 00:00:00", "2299-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999"]
    return st.one_of(st.sampled_from([e + ("+00" if zone else "") for e in edges]), st.builds(joined, inside, CLOCK, offsets))


def interval_text(months, days, micros):
    return f"{months} mons {days} days {micros} microseconds"


INTERVAL = st.one_of(
    st.sampled_from(["0", "1 year 2 mons 3 days 04:05:06.000007", "-178000000 years", "178000000 years", "1 mon -1 day",
                     "-00:00:00.5", "-1 year +1 day -00:00:00.000001", "2562047788:00:54.775807"]),
    st.builds(interval_text, st.integers(-2 ** 31 + 1, 2 ** 31 - 1), st.integers(-2 ** 31 + 1, 2 ** 31 - 1),
              st.integers(-2 ** 50, 2 ** 50)))
OFFSET = st.one_of(st.sampled_from(["+00", "+05:30", "-08", "+15:59:59", "-15:59:59"]),
                   st.builds(lambda h, m: f"{h:+03d}:{m:02d}", st.integers(-15, 15), st.integers(0, 59)))

# --- documents ---

NUMBER = st.sampled_from(["0", "-0", "1.50", "18446744073709551616", "9007199254740993", "0.1234567890123456789", "1e400",
                          "-1E-5", "12345678901234567890.123456789"])
LEAF = st.one_of(st.just("null"), st.just("true"), NUMBER, SHORT.map(lambda t: json.dumps(t, ensure_ascii=False)))


def nested(inside):
    def members(pairs):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in pairs) + "}"

    return st.one_of(st.lists(inside, max_size=3).map(lambda v: "[" + ",".join(v) + "]"),
                     st.lists(st.tuples(SHORT, inside), max_size=3).map(members))


DOCUMENT = st.recursive(LEAF, nested, max_leaves=5)
# what json keeps and jsonb does not
VERBATIM = st.sampled_from(['{"a" : 1,\n "a":2,\r\n\t"b":[ ]}', ' "s" ', '"\\u00e9\\u0000"', "{ }", "[ 1 ,2 ]"])


def long_document(text):
    return json.dumps({"k": text})


# --- networks, geometry, bits ---

INET = st.builds(lambda a, n: f"{a}/{n}", st.ip_addresses(v=4).map(str), st.integers(0, 32)) | st.builds(
    lambda a, n: f"{a}/{n}", st.ip_addresses(v=6).map(str), st.integers(0, 128))
CIDR = st.sampled_from(["10.0.0.0/8", "::/0", "192.168.1.1/32", "2001:db8::/32", "0.0.0.0/0"])
BYTES = st.one_of(st.sampled_from([b"", b"\0", b"\\", b"\xff" * 40, b"\\x00", bytes(range(256))]), st.binary(max_size=20))


def hexed(data):
    return "\\x" + data.hex()


def mac(size):
    return st.binary(min_size=size, max_size=size).map(lambda b: b.hex(":"))


FLOAT = st.one_of(st.sampled_from(["0", "-1e308", "1e-300", "4.5", "0.1"]), st.floats(-1e6, 1e6).map(repr))
POINT = st.one_of(st.just("(NaN,Infinity)"), st.builds(lambda x, y: f"({x},{y})", FLOAT, FLOAT))
FLAT = st.builds(lambda x, y: f"({x},{y})", st.integers(-99, 99), st.integers(-99, 99))


def between(opening, closing, least):
    return st.lists(FLAT, min_size=least, max_size=4).map(lambda p: opening + ",".join(p) + closing)


BITS = st.text("01", max_size=40)

# --- ranges ---


def ranges(bound, key=None):
    """Of texts of bounds, which `key` puts in order."""
    def made(pair, braces, open_low, open_high):
        low, high = sorted(pair, key=key)
        return braces[0] + ("" if open_low else f'"{low}"') + "," + ("" if open_high else f'"{high}"') + braces[1]

    rare = st.sampled_from([False, False, False, True])
    return st.one_of(st.just("empty"), st.builds(
        made, st.tuples(bound, bound), st.sampled_from(["[)", "[]", "()", "(]"]), rare, rare))


def multiranges(one):
    return st.lists(one.filter(lambda r: r != "empty"), max_size=3).map(lambda r: "{" + ",".join(r) + "}")


INT4RANGE = ranges(st.integers(-2 ** 31 + 1, 2 ** 31 - 2).map(str), int)
INT8RANGE = ranges(st.integers(-2 ** 63 + 1, 2 ** 63 - 2).map(str), int)
NUMRANGE = ranges(st.builds(decimal_text, st.integers(-10 ** 6, 10 ** 6), st.integers(0, 3)), Decimal)
DATERANGE = ranges(st.dates(date(1, 1, 1), date(9000, 1, 1)).map(str))
TSRANGE = ranges(st.datetimes(datetime(1000, 1, 1), datetime(9000, 1, 1)).map(lambda d: d.isoformat(" ")))
TSTZRANGE = ranges(st.datetimes(datetime(1000, 1, 1), datetime(9000, 1, 1)).map(
    lambda d: (d + timedelta(0)).isoformat(" ") + "+00"))

# --- the types ---

ENUM = st.sampled_from(["sad", "ok", "so, so", "", 'it\'s "\\é"'])


def optional(strategy):
    return st.one_of(strategy, st.none())


LEAF_ROW = st.tuples(optional(integer(-2 ** 31, 2 ** 31 - 1)), optional(SHORT)).map(row_text)
TREE_ROW = st.tuples(
    optional(integer(-2 ** 63, 2 ** 63 - 1)), optional(SHORT),
    optional(st.lists(optional(numeric(12, 3)), max_size=3).map(array_text)), optional(LEAF_ROW)).map(row_text)

# type -> (held, small) -> strategy
SCALARS = {
    "boolean": lambda held, small: st.sampled_from(["true", "false"]),
    "smallint": lambda held, small: integer(-2 ** 15, 2 ** 15 - 1),
    "integer": lambda held, small: integer(-2 ** 31, 2 ** 31 - 1),
    "bigint": lambda held, small: integer(-2 ** 63, 2 ** 63 - 1),
    "oid": lambda held, small: integer(0, 2 ** 32 - 1),
    "xid": lambda held, small: integer(0, 2 ** 32 - 1),
    "xid8": lambda held, small: integer(0, 2 ** 64 - 1),
    "real": lambda held, small: real(32),
    "double precision": lambda held, small: real(64),
    "numeric": lambda held, small: numeric(None, 0, held, small),
    "numeric(12,2)": lambda held, small: numeric(12, 2, held),
    "numeric(9,9)": lambda held, small: numeric(9, 9, held),
    "numeric(38,0)": lambda held, small: numeric(38, 0, held),
    "numeric(76,38)": lambda held, small: numeric(76, 38, held),
    "numeric(5,-2)": lambda held, small: numeric(5, -2, held),
    "numeric(3,5)": lambda held, small: numeric(3, 5, held),
    "numeric(1000,500)": lambda held, small: numeric(60, 30, held),
    "money": lambda held, small: integer(-2 ** 63, 2 ** 63 - 1).map(lambda n: decimal_text(int(n), 2)),
    "text": lambda held, small: text(None, small),
    "character varying": lambda held, small: text(None, small),
    "character varying(20)": lambda held, small: text(20),
    "character(6)": lambda held, small: text(6),
    "name": lambda held, small: text(15),
    '"char"': lambda held, small: st.sampled_from(["x", '"', "", "\x7f"]),
    "citext": lambda held, small: text(None, small),
    "bytea": lambda held, small: (BYTES if small else st.one_of(BYTES, BYTES, LONG.map(lambda t: t.encode()))).map(hexed),
    "date": lambda held, small: days(held),
    "time without time zone": lambda held, small: st.one_of(st.just("24:00:00"), CLOCK),
    "time(3) without time zone": lambda held, small: CLOCK,
    "time with time zone": lambda held, small: st.builds(str.__add__, st.one_of(st.just("24:00:00"), CLOCK), OFFSET),
    "timestamp without time zone": lambda held, small: moments(held),
    "timestamp(0) without time zone": lambda held, small: moments(held).filter(lambda t: "2299-12-31 23:59:59" not in t),
    "timestamp with time zone": lambda held, small: moments(held, zone=True),
    "interval": lambda held, small: INTERVAL,
    "uuid": lambda held, small: st.uuids().map(str),
    "json": lambda held, small: st.one_of(DOCUMENT, VERBATIM, LONG.map(long_document)),
    "jsonb": lambda held, small: DOCUMENT if small else st.one_of(DOCUMENT, DOCUMENT, LONG.map(long_document)),
    "inet": lambda held, small: INET,
    "cidr": lambda held, small: CIDR,
    "macaddr": lambda held, small: mac(6),
    "macaddr8": lambda held, small: mac(8),
    "bit(3)": lambda held, small: st.text("01", min_size=3, max_size=3),
    "bit varying": lambda held, small: BITS,
    "point": lambda held, small: POINT,
    "lseg": lambda held, small: st.builds(lambda a, b: f"[{a},{b}]", FLAT, FLAT),
    "path": lambda held, small: st.one_of(between("[", "]", 1), between("(", ")", 1)),
    "box": lambda held, small: st.builds(lambda a, b: f"{a},{b}", FLAT, FLAT),
    "polygon": lambda held, small: between("(", ")", 1),
    "line": lambda held, small: st.builds(lambda a, c: f"{{{a},1,{c}}}", FLOAT, FLOAT),
    "circle": lambda held, small: st.builds(lambda p, r: f"<{p},{r}>", FLAT, st.integers(0, 9)),
    "tsvector": lambda held, small: st.sampled_from(["'a':1A 'b c':2", "", "'q''uote':16383"]),
    "tsquery": lambda held, small: st.sampled_from(["'a' & 'b':*A", "", "!'a' <-> 'b'"]),
    "jsonpath": lambda held, small: st.sampled_from(["$.a", '$."k 2"[*] ? (@ > 1)', "$"]),
    "pg_lsn": lambda held, small: st.builds(lambda a, b: f"{a:X}/{b:X}", st.integers(0, 2 ** 32 - 1), st.integers(0, 2 ** 32 - 1)),
    "tid": lambda held, small: st.builds(lambda a, b: f"({a},{b})", st.integers(0, 2 ** 32 - 1), st.integers(0, 65535)),
    "int2vector": lambda held, small: st.sampled_from(["1 2", "-32768 32767", "5", ""]),
    "oidvector": lambda held, small: st.sampled_from(["1 2", "4294967295 0", "5", ""]),
    "int4range": lambda held, small: INT4RANGE,
    "int8range": lambda held, small: INT8RANGE,
    "numrange": lambda held, small: NUMRANGE,
    "daterange": lambda held, small: DATERANGE,
    "tsrange": lambda held, small: TSRANGE,
    "tstzrange": lambda held, small: TSTZRANGE,
    "int4multirange": lambda held, small: multiranges(INT4RANGE),
    "int8multirange": lambda held, small: multiranges(INT8RANGE),
    "nummultirange": lambda held, small: multiranges(NUMRANGE),
    "datemultirange": lambda held, small: multiranges(DATERANGE),
    "tsmultirange": lambda held, small: multiranges(TSRANGE),
    "tstzmultirange": lambda held, small: multiranges(TSTZRANGE),
    "hstore": lambda held, small: st.dictionaries(SHORT, optional(SHORT), max_size=3).map(hstore_text),
    "ltree": lambda held, small: st.sampled_from(["Top.Science.Astro", "", "a", "a_1.B2"]),
    "mood": lambda held, small: ENUM,
    "feeling": lambda held, small: ENUM,
    "leaf": lambda held, small: LEAF_ROW,
    "tree": lambda held, small: TREE_ROW,
    "price_range": lambda held, small: NUMRANGE,
    "price_multirange": lambda held, small: multiranges(NUMRANGE),
    "positive": lambda held, small: integer(1, 2 ** 31 - 1),
    "price": lambda held, small: numeric(10, 2, held),
    "price_nested": lambda held, small: numeric(10, 2, True).map(lambda t: t.lstrip("-")),
    "mail": lambda held, small: text(None, small),
    "bits": lambda held, small: st.text("01", max_size=8),
    "day": lambda held, small: days(held),
    "numbers": lambda held, small: arrays(integer(-2 ** 31, 2 ** 31 - 1), "integer", held),
}

# Types of columns that may be a key: of a btree, with texts that fit into an index, and of a text
# that the type prints as it was given to it (a key of floats or documents is nobody's wish).
KEYS = ["smallint", "integer", "bigint", "oid", "numeric", "numeric(12,2)", "text", "character varying(20)", "character(6)",
        "citext", "bytea", "date", "timestamp without time zone", "timestamp with time zone", "time without time zone", "uuid",
        "boolean", "inet", "mood", "positive", "price", "mail", "interval", "pg_lsn", "name", "day"]

DELIMITERS = {"box": ";"}


def arrays(element, name, held):
    """Of one and of two dimensions, empty, with NULLs; rarely with bounds of its own."""
    delimiter = DELIMITERS.get(name, ",")
    one = st.lists(optional(element), max_size=4)
    if held:
        return one.map(lambda e: array_text(e, delimiter))
    two = st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(optional(element), min_size=n, max_size=n), min_size=1, max_size=2))
    made = st.one_of(one, one, one, two).map(lambda e: array_text(e, delimiter))
    bounded = st.lists(element, min_size=3, max_size=3).map(lambda e: "[-1:1]=" + array_text(e, delimiter))
    return st.one_of(made, made, made, made, bounded)


def values(name, held=False, small=False):
    """A strategy of texts of the type `name`."""
    if name.endswith("[]"):
        element = name[:-2]
        return arrays(SCALARS[element](held, True), element, held)
    return SCALARS[name](held, small)


NAMES = list(SCALARS)
# an array of a domain over arrays is no matrix, and pg_type has no array of int2vector's kind that is one
ARRAYS = [f"{name}[]" for name in NAMES if name not in ("numbers", "int2vector", "oidvector")]
