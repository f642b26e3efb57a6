"""Generated tables and transactions: what a property test replicates.

A Scenario is one to three tables and some transactions on them, drawn by hypothesis.  A row is a
number: which of its column's values it takes follows from it, so that hypothesis draws little
and shrinks well.  Scenarios are made by a process of their own (generate()), since hypothesis
looks for constants in all modules that are loaded: a seed gives the same scenarios everywhere.

    python test/harness/scenario.py SEED COUNT    prints them
"""

import os
import pickle
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from harness import values

# --- what there is ---


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


@dataclass
class Column:
    name: str
    type: str
    pool: list  # texts of its values; None is NULL
    not_null: bool = False
    storage: str = None

    def value(self, row):
        """Its value in the row of that number."""
        return self.pool[(row * 2654435761 + sum(self.name.encode()) * 40503 >> 7) % len(self.pool)]


@dataclass
class Table:
    """`key`: names of its unique columns; `how`: primary, index (unique, NOT NULL) or none.

    With `leaves` it is partitioned by the first of its key, into so many, of which one has the
    columns in another order.  `listed` (names) and `filter` (SQL) are what is published of it.
    """

    name: str
    columns: list
    key: list
    how: str
    identity: str  # default, index, full, nothing
    toast_target: int = None
    dropped: int = None  # a column that was dropped stood at this place
    leaves: int = 0
    generated: list = field(default_factory=list)  # (name, type, expression)
    listed: list = None  # None: all columns
    filter: str = None
    policies: dict = field(default_factory=dict)  # value_policy by column, where it is not text
    schema: str = "public"

    @property
    def full_name(self):
        return f"{self.schema}.{quoted(self.name)}"

    @property
    def found_by(self):
        """Columns of its replica identity, as destinations see them."""
        if self.identity in ("default", "index"):
            return self.key
        return self.key if self.identity == "full" and self.how == "primary" else []

    @property
    def toasts(self):
        """Values may be out of line."""
        return any(v and len(v) > 500 for c in self.columns for v in c.pool)

    @property
    def held(self):
        """No value is outside the range of a destination's type (see values.py)."""
        return self._held

    @property
    def published(self):
        """As ALTER PUBLICATION ... ADD TABLE names it."""
        columns = "" if self.listed is None else f" ({', '.join(map(quoted, self.listed))})"
        return self.full_name + columns + (f" WHERE ({self.filter})" if self.filter else "")

    def leaf(self, number):
        return f"{self.schema}.{quoted(f'{self.name}_{number}')}"

    def ddl(self):
        parts = [f"{quoted(c.name)} {c.type}{' NOT NULL' if c.not_null else ''}" for c in self.columns]
        parts += [f"{quoted(name)} {kind} GENERATED ALWAYS AS ({expression}) STORED" for name, kind, expression in self.generated]
        turned = parts[::-1]
        if self.dropped is not None:
            parts.insert(self.dropped, "gone text")
        key = ", ".join(map(quoted, self.key))
        if self.how == "primary":
            parts.append(f"PRIMARY KEY ({key})")
        name = self.full_name
        tables = [name]
        sql = [f"CREATE TABLE {name} ({', '.join(parts)})"]
        if self.leaves:
            sql[0] += f" PARTITION BY HASH ({quoted(self.key[0])})"
            tables = [self.leaf(i) for i in range(self.leaves)]
            bounds = [f"FOR VALUES WITH (MODULUS {self.leaves}, REMAINDER {i})" for i in range(self.leaves)]
            sql += [f"CREATE TABLE {leaf} PARTITION OF {name} {bound}" for leaf, bound in zip(tables[1:], bounds[1:])]
        if self.how == "index":
            sql.append(f"CREATE UNIQUE INDEX {quoted('u_' + self.name)} ON {name} ({key})")
        if self.dropped is not None:
            sql.append(f"ALTER TABLE {name} DROP gone")
        if self.leaves:
            sql += [f"CREATE TABLE {tables[0]} ({', '.join(turned)})", f"ALTER TABLE {name} ATTACH PARTITION {tables[0]} {bounds[0]}"]
        for c in self.columns:
            if c.storage:
                sql.append(f"ALTER TABLE {name} ALTER {quoted(c.name)} SET STORAGE {c.storage}")
        if self.toast_target:
            sql += [f"ALTER TABLE {t} SET (toast_tuple_target = {self.toast_target})" for t in tables]
        if self.identity == "index":
            index = f"{self.name}_pkey" if self.how == "primary" else "u_" + self.name
            sql.append(f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {quoted(index)}")
        elif self.identity != "default":
            sql += [f"ALTER TABLE {t} REPLICA IDENTITY {self.identity}" for t in {name: 0, **dict.fromkeys(tables)}]
        return sql


@dataclass
class Step:
    """One change; what it says is in its kind's method of Runner."""

    kind: str
    table: int
    row: int = 0  # number of the new values
    pick: int = 0  # which of the table's rows
    mask: int = 0  # which columns
    steps: list = field(default_factory=list)  # of a savepoint
    keep: bool = True


@dataclass
class Transaction:
    steps: list
    commit: bool


@dataclass
class Scenario:
    """`enter`: its tables enter the publication before that statement (0: while they are empty)."""

    tables: list
    transactions: list
    enter: int
    number: int = 0


# --- drawing them ---

WORDS = ["a", "A", "select", "Größe", "日本", "x y", 'q"u\'o', "back\\`tick", "_table_suffix", "n" * 40, "%s", "tags", "value", "é.b"]


@st.composite
def column(draw, number, held, key=False, not_null=None):
    # hypothesis likes 0: not the same type for all columns then
    name = draw(st.sampled_from(values.KEYS)) if key else TYPES[(draw(ROW) + 31 * number) % len(TYPES)]
    if not_null is None:
        not_null = draw(st.sampled_from([True, False, False, False]))
    pool = draw(st.lists(values.values(name, held, small=key), min_size=3 if key else 1, max_size=7 if key else 4))
    if not not_null:
        pool.append(None)
    storage = None
    if draw(st.booleans()) and any(v and len(v) > 500 for v in pool):
        storage = draw(st.sampled_from(["EXTERNAL", "EXTENDED", "MAIN"]))
    word = draw(st.sampled_from(WORDS))
    return Column(f"{word}{number}", name, pool, not_null, storage)


# a row filter may have operators of built-in types only
FILTERED = [k for k in values.KEYS if k not in ("citext", "mood", "positive", "price", "mail", "day")]
# their values outside a destination's range become others that are easily told
LIMITED = ["date", "day", "timestamp without time zone", "timestamp with time zone"]
# of four columns one is an array
TYPES = values.NAMES * 3 + values.ARRAYS
ROW = st.integers(0, 2 ** 32 - 1)


@st.composite
def table(draw, number):
    held = draw(st.sampled_from([True, True, False]))
    how = draw(st.sampled_from(["primary"] * 5 + ["index"] * 2 + ["none"]))
    keys = []
    if how != "none":
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
            keys.append(draw(column(len(keys), True, key=True, not_null=True)))
    rest = [draw(column(10 + i, held)) for i in range(draw(st.sampled_from([5, 3, 8, 2, 6, 4, 10, 0 if keys else 1])))]
    columns = [*keys, *rest]
    columns = draw(st.permutations(columns)) if draw(st.booleans()) else columns
    identities = {"primary": ["default"] * 4 + ["index", "full", "full"], "index": ["index"] * 3 + ["full"],
                  "none": ["full", "full", "nothing"]}[how]
    made = Table(f"t{number}", columns, [k.name for k in keys], how, draw(st.sampled_from(identities)),
                 draw(st.sampled_from([None, None, 128])), draw(st.sampled_from([None, None, 0, 1, len(columns)])))
    made._held = held
    if how == "primary" and made.identity != "index" and draw(st.sampled_from([True, False, False])):
        made.leaves = draw(st.sampled_from([2, 3]))
    if not held:
        for c in rest:
            if c.type in LIMITED and draw(st.booleans()):
                made.policies[c.name] = draw(st.sampled_from(["clamp"] if c.not_null else ["clamp", "null"]))
    if draw(st.sampled_from([True, False, False])):
        made.generated = [(f"g{i}", *generated(c)) for i, c in enumerate(rest[:2])]
    if draw(st.sampled_from([True, False, False])):
        made.filter = draw(row_filter(made))
    # under FULL a list of columns forbids updates; before 18 none has generated columns
    if made.identity != "full" and draw(st.sampled_from([True, False, False])):
        names = [c.name for c in columns]
        made.listed = [n for n in names if n in made.key or draw(st.booleans())] or names
    return made


def generated(c):
    """(type, expression) of a column that follows another one."""
    if c.type == "text":
        return "text", f"upper({quoted(c.name)}) || '!'"
    return "boolean", f"{quoted(c.name)} IS NULL"


@st.composite
def row_filter(draw, table):
    """A condition that some of the table's rows meet, over columns that changes have the old values of."""
    known = table.found_by if table.identity in ("default", "index") else [c.name for c in table.columns]
    columns = [c for c in table.columns if c.name in known and c.type in FILTERED]
    if not columns:
        return None
    c = draw(st.sampled_from(columns))
    name, bound = quoted(c.name), draw(st.sampled_from([v for v in c.pool if v is not None]))
    condition = f"{name} {draw(st.sampled_from(['>=', '<=', '<>', '=']))} '" + bound.replace("'", "''") + f"'::{c.type}"
    return draw(st.sampled_from([condition, condition, f"{condition} OR {name} IS NULL", f"NOT ({condition})"]))


@st.composite
def step(draw, tables, depth=0):
    number = draw(st.integers(0, len(tables) - 1))
    t = tables[number]
    kinds = ["insert"] * 5 + ["copy" if t.how == "none" else "insert_unless"]
    if t.identity != "nothing":
        kinds += ["update"] * 4 + ["update_all", "delete"]
        if t.key:
            kinds += ["rekey", "rekey", "swap"]
    if depth == 0:
        kinds += ["savepoint"] * 2 + ["truncate"]
    kind = draw(st.sampled_from(kinds))
    if kind == "savepoint":
        return Step(kind, number, steps=draw(st.lists(step(tables, 1), max_size=4)), keep=draw(st.booleans()))
    return Step(kind, number, draw(ROW), draw(st.integers(0, 99)), draw(st.integers(0, 255)))


@st.composite
def transaction(draw, tables):
    steps = [draw(step(tables)) for _ in range(draw(st.sampled_from([3, 1, 2, 5, 8])))]
    return Transaction(steps, draw(st.sampled_from([True] * 9 + [False])))


@st.composite
def scenarios(draw):
    when, place = draw(st.sampled_from(["between", "before", "after"])), draw(st.integers(0, 99))
    tables = [draw(table(i)) for i in range(draw(st.sampled_from([1, 1, 2, 3])))]
    first = [Step("insert", i, draw(ROW)) for i in range(len(tables)) for _ in range(draw(st.sampled_from([4, 0, 2, 7])))]
    transactions = [Transaction(first, True)]
    transactions += [draw(transaction(tables)) for _ in range(draw(st.sampled_from([4, 2, 6])))]
    statements = sum(len(t.steps) for t in transactions)
    enter = {"before": 0, "after": statements + 1, "between": place * statements // 99}[when]
    return Scenario(tables, transactions, enter)


def draw_all(seed_, count):
    made = []

    @seed(seed_)
    @settings(max_examples=count, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scenarios())
    def collect(scenario):
        scenario.number = len(made)
        for t in scenario.tables:
            t.name = f"s{scenario.number}_{t.name}"
        made.append(scenario)

    collect()
    return made


def draw_examples(seed_, names, count, held):
    """type -> that many texts of it."""
    made = {}
    for name in names:
        pool = made[name] = []

        @seed(seed_)
        @settings(max_examples=2 * count, phases=[Phase.generate], database=None, deadline=None,
                  suppress_health_check=list(HealthCheck))
        @given(values.values(name, held))
        def collect(text):
            pool.append(text)

        collect()
        # few values: again and again
        made[name] = [pool[-1 - i % len(pool)] for i in range(count)]
    return made


def in_a_process(call, *arguments):
    """A function of this module in a process of its own."""
    given = pickle.dumps((call, arguments))
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONHASHSEED": "0", "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        done = subprocess.run([sys.executable, __file__, "--call"], input=given, check=True, stdout=subprocess.PIPE, env=env)
    return pickle.loads(done.stdout)


def generate(seed_, count):
    """The scenarios of a seed, numbered."""
    return in_a_process("draw_all", seed_, count)


def examples(seed_, names, count, held):
    """type -> that many texts of it."""
    return in_a_process("draw_examples", seed_, names, count, held)


# --- making the changes ---


class Runner:
    """Makes a scenario's changes over a connection of its own, one statement at a time.

    run() is a generator: it yields "enter" when the tables shall enter the publication, and
    otherwise after each step.  `script` is what was done, for a message.
    """

    def __init__(self, scenario, connection):
        self.scenario, self.c = scenario, connection
        self.script = [f"{statement};" for t in scenario.tables for statement in t.ddl()]
        self.locked = False  # a table is locked against everybody until the end of the transaction

    def execute(self, sql, params=()):
        self.script.append(shown(sql, params))
        return self.c.execute(sql, params)

    def run(self):
        done, entered = 0, False
        for transaction in self.scenario.transactions:
            self.execute("BEGIN")
            for step in transaction.steps:
                if done >= self.scenario.enter and not entered and not self.locked:
                    self.script.append("-- the tables enter the publication")
                    entered = True
                    yield "enter"
                self.step(step)
                done += 1
                yield step.kind
            self.execute("COMMIT" if transaction.commit else "ROLLBACK")
            self.locked = False
            yield "end"
        if not entered:
            self.script.append("-- the tables enter the publication")
            yield "enter"

    def step(self, step):
        getattr(self, step.kind)(self.scenario.tables[step.table], step)

    # a row of the table, by its place
    PICK = "(SELECT tableoid, ctid FROM {0} ORDER BY tableoid, ctid OFFSET mod({1}, greatest((SELECT count(*)::int FROM {0}), 1)) LIMIT 1)"

    def picked(self, table, number):
        return self.PICK.format(table.full_name, number).replace("%", "%%")

    def name(self, text):
        return quoted(text).replace("%", "%%")

    def _values(self, columns, row):
        """(expressions, parameters)."""
        return [f"%s::{c.type}" for c in columns], [c.value(row) for c in columns]

    def _free(self, table, row):
        """(condition, parameters): no row has the key of that number."""
        if not table.key:
            return "true", []
        columns = [c for c in table.columns if c.name in table.key]
        same = " AND ".join(f"{self.name(c.name)} = %s::{c.type}" for c in columns)
        return f"NOT EXISTS (SELECT FROM {table.full_name} WHERE {same})", [c.value(row) for c in columns]

    def insert(self, table, step):
        names = ", ".join(self.name(c.name) for c in table.columns)
        parts, params = self._values(table.columns, step.row)
        free, more = self._free(table, step.row)
        self.execute(f"INSERT INTO {table.full_name} ({names}) SELECT {', '.join(parts)} WHERE {free}", params + more)

    def insert_unless(self, table, step):
        """Two rows; speculative insertions."""
        names = ", ".join(self.name(c.name) for c in table.columns)
        one, params = self._values(table.columns, step.row)
        two, more = self._values(table.columns, step.row + 1)
        self.execute(f"INSERT INTO {table.full_name} ({names}) VALUES ({', '.join(one)}), ({', '.join(two)})"
                     " ON CONFLICT DO NOTHING", params + more)

    def copy(self, table, step):
        rows = [[c.value(step.row + i) for c in table.columns] for i in range(1 + step.pick % 5)]
        self.script.append(f"-- COPY {table.full_name} FROM STDIN: {rows!r:.2000}")
        names = ", ".join(quoted(c.name) for c in table.columns)
        with self.c.cursor().copy(f"COPY {table.full_name} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def _set(self, table, step, where, params=()):
        """Columns that are no key, those of the mask; all others stay as they are."""
        rest = [c for c in table.columns if c.name not in table.key]
        some = [c for i, c in enumerate(rest) if step.mask >> i & 1] or rest[:1]
        if not some:
            return
        parts, given = self._values(some, step.row)
        pairs = ", ".join(f"{self.name(c.name)} = {p}" for c, p in zip(some, parts))
        self.execute(f"UPDATE {table.full_name} SET {pairs} WHERE {where}", [*given, *params])

    def update(self, table, step):
        self._set(table, step, f"(tableoid, ctid) = {self.picked(table, step.pick)}")

    def update_all(self, table, step):
        self._set(table, step, "true")

    def rekey(self, table, step):
        """Another key, and by the mask one other column."""
        columns = [c for c in table.columns if c.name in table.key]
        rest = [c for c in table.columns if c.name not in table.key]
        if rest and step.mask & 1:
            columns.append(rest[step.mask % len(rest)])
        parts, params = self._values(columns, step.row)
        pairs = ", ".join(f"{self.name(c.name)} = {p}" for c, p in zip(columns, parts))
        free, more = self._free(table, step.row)
        self.execute(f"UPDATE {table.full_name} SET {pairs} WHERE (tableoid, ctid) = {self.picked(table, step.pick)} AND {free}",
                     params + more)

    def swap(self, table, step):
        """Two rows exchange their keys, over a third one that is free."""
        keys = [c for c in table.columns if c.name in table.key]
        names = ", ".join(f"{self.name(c.name)}::text" for c in keys)
        found = self.c.execute(f"SELECT {names} FROM {table.full_name} ORDER BY tableoid, ctid LIMIT 20", ()).fetchall()
        if len(found) < 2:
            return
        one = found[step.pick % len(found)]
        two = found[(step.pick + 1) % len(found)]
        free, more = self._free(table, step.row)
        spare = [c.value(step.row) for c in keys]
        if not self.c.execute(f"SELECT {free}", more).fetchone()[0]:
            return
        for old, new in ((one, spare), (two, one), (spare, two)):
            pairs = ", ".join(f"{self.name(c.name)} = %s::{c.type}" for c in keys)
            same = " AND ".join(f"{self.name(c.name)} = %s::{c.type}" for c in keys)
            self.execute(f"UPDATE {table.full_name} SET {pairs} WHERE {same}", [*new, *old])

    def delete(self, table, step):
        self.execute(f"DELETE FROM {table.full_name} WHERE (tableoid, ctid) = {self.picked(table, step.pick)}")

    def truncate(self, table, step):
        """It, or all tables of the scenario."""
        tables = self.scenario.tables if step.mask & 1 else [table]
        self.locked = True
        self.execute("TRUNCATE " + ", ".join(t.full_name for t in tables))

    def savepoint(self, table, step):
        self.execute("SAVEPOINT s")
        for inner in step.steps:
            self.step(inner)
        self.execute("RELEASE s" if step.keep else "ROLLBACK TO s")


def shown(sql, params):
    """A statement with its values, long ones cut."""
    def literal(value):
        if value is None:
            return "NULL"
        text = str(value)
        return "'" + (text if len(text) < 300 else f"{text[:60]}...{len(text)} characters").replace("'", "''") + "'"

    given = iter(params)
    return re.sub("%[s%]", lambda found: "%" if found[0] == "%%" else literal(next(given)), sql) + ";"


def main(arguments):
    if arguments == ["--call"]:
        call, given = pickle.load(sys.stdin.buffer)
        sys.stdout.buffer.write(pickle.dumps(globals()[call](*given)))
        return
    for scenario in draw_all(*map(int, arguments)):
        print(f"-- scenario {scenario.number}")
        for t in scenario.tables:
            print("\n".join(f"{statement};" for statement in t.ddl()))
        for t in scenario.transactions:
            print("--", "commit" if t.commit else "rollback", *(s.kind for s in t.steps))


if __name__ == "__main__":
    # the classes must have the names that who unpickles knows
    from harness import scenario as module

    module.main(sys.argv[1:])
