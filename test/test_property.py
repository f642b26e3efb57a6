"""Generated tables with generated changes arrive equal, value by value, whatever happens meanwhile.

harness/scenario.py draws tables over all types (some partitioned, with generated columns, a row
filter, a list of columns, value policies) and transactions on them; here they are made,
interleaved statement by statement, while three pipelines follow: events to a webhook's receiver,
ClickHouse's current rows, ClickHouse's event log.  A scenario's tables enter the publications
before its first row (all is streamed), after its last (all is copied), or in between, also in the
middle of a transaction (changes while the copy runs); workers are ended at random meanwhile, and
the settings of database and role are as hostile as in test_settings.py.  In the end the source is
compared with what the destinations have.

The seed is printed; ETL_SEED=<seed> with the same test repeats it.  A failure shows the script
of its tables.  make check runs 200 scenarios, make check-long 5000.
"""

import json
import os
import random

import psycopg
import pytest

from harness import Receiver, Server
from harness.clickhouse import ClickHouse
from harness.clickhouse_equal import assert_current, assert_log
from harness.equal import PINNED, difference, source_rows
from harness.hostile import EVIL, FACTORS, give, pairwise, reset
from harness.pipeline import clickhouse, webhook
from harness.scenario import Runner, generate
from harness.values import DEFINITIONS

SEED = int(os.environ.get("ETL_SEED") or random.randrange(1 << 30))
PARTS = 100 if os.environ.get("ETL_LONG") else 4
EXAMPLES = 50

FAST = {"retry_delay": "20ms", "max_retry_delay": "200ms", "copy_yield_timeout": "100ms"}
CLICKHOUSE = {**FAST, "max_batch_delay": "50ms"}
WORKERS = ["etl apply", "etl writer", "etl sync"]


class Pipeline:
    """A pipeline, its publication, which tables it can take, and how they are compared."""

    def __init__(self, name, takes, compare):
        self.name, self.takes, self.compare = name, takes, compare


class Rig:
    """A database with settings that are in the way, three pipelines, and what they deliver to."""

    def __init__(self, server, ch, number):
        self.server, self.ch, self.db = server, ch, f"property{number}"
        server.create_database(self.db)
        server.psql(DEFINITIONS + EVIL, self.db)
        rows = pairwise(FACTORS)
        give(server, self.db, rows[number % len(rows)])
        self.receiver = Receiver()
        self.parked = 0  # tables of the log that rightly are
        self.current, self.log = f"current{number}", f"log{number}"
        for database in (self.current, self.log):
            ch.create_database(database)
        self.pipelines = [
            Pipeline("hook", lambda t: True, self.compare_events),
            Pipeline("current", lambda t: t.found_by,
                     lambda t: assert_current(server, self.db, ch, self.current, t.full_name, t.listed, where=t.filter or "true",
                                              policies=t.policies)),
            Pipeline("log", logged,
                     lambda t: assert_log(server, self.db, ch, self.log, t.full_name, t.listed, t.filter or "true",
                                          policies=t.policies)),
        ]
        self.c = self.connect()
        for p in self.pipelines:
            self.c.execute(f"CREATE PUBLICATION {p.name} WITH (publish_via_partition_root)")
        webhook(server, self.db, self.receiver, "hook", "hook", FAST)
        clickhouse(server, self.db, ch, self.current, "current", "current", CLICKHOUSE)
        clickhouse(server, self.db, ch, self.log, "log", "log", {**CLICKHOUSE, "engine": "merge_tree"})

    def connect(self):
        """A session in which texts mean what the generator meant."""
        connection = self.server.connect(self.db)
        connection.execute(PINNED + "; SET search_path = public; SET standard_conforming_strings = on")
        return connection

    def close(self):
        self.receiver.close()
        self.c.close()
        self.server.drop_database(self.db)
        for database in (self.current, self.log):
            self.ch.execute(f"DROP DATABASE {database}")

    def run(self, scenarios, rng):
        """Make the scenarios' changes; what is wrong in the end, as texts."""
        for t in (t for s in scenarios for t in s.tables):
            for statement in t.ddl():
                self.c.execute(statement)
        runners = [Runner(s, self.connect()) for s in scenarios]
        try:
            self.interleave(runners, rng)
        finally:
            for r in runners:
                r.c.close()
        for p in self.pipelines:
            if not self.c.execute("SELECT etl.wait_for(%s, timeout => '4 minutes', allow_parked => true)", (p.name,)).fetchone()[0]:
                return [f"{p.name}: {self.server.trouble(self.db)}"]
        reset(self.server, self.db)
        self.state = self.receiver.state()
        return [f"{told}\n" + "\n".join(r.script) for r in runners for t in r.scenario.tables for told in self.compare(t)]

    def interleave(self, runners, rng):
        """Statement by statement, in one thread: a replay does the same in the same order."""
        running = [(r, r.run()) for r in runners]
        ends = {rng.randrange(1000): rng.choice(WORKERS) for _ in range(rng.choice((1, 2, 3)))}
        count = 0
        while running:
            at = rng.randrange(min(len(running), 8))
            runner, steps = running[at]
            try:
                if next(steps) == "enter":
                    self.publish(runner.scenario.tables)
            except StopIteration:
                running.pop(at)
            except psycopg.Error as error:
                raise AssertionError(f"{error}\n" + "\n".join(runner.script)) from error
            if count in ends:
                for pid in self.server.backends(ends[count], self.db):
                    self.server.sql("SELECT pg_terminate_backend(%s)", (pid,))
            count += 1

    def publish(self, tables):
        for p in self.pipelines:
            taken = [t for t in tables if p.takes(t)]
            for t in taken:
                if not t.held and p.name != "hook":
                    self.c.execute("SELECT etl.alter_table(%s, %s::regclass, %s)", (p.name, t.full_name, AS_TEXT))
                    for column, policy in t.policies.items():
                        self.c.execute("SELECT etl.alter_column(%s, %s::regclass, %s, %s)",
                                       (p.name, t.full_name, column, json.dumps({"value_policy": policy})))
            if taken:
                self.c.execute(f"ALTER PUBLICATION {p.name} ADD TABLE {', '.join(t.published for t in taken)}")

    def compare(self, table):
        for p in self.pipelines:
            if not p.takes(table):
                continue
            state, error = self.server.sql("SELECT state, error FROM etl.table_status WHERE pipeline = %s AND table_name = %s",
                                           (p.name, table.name), self.db)[0]
            if state == "errored" and p.name == "log" and may_lack_values(table) and error == LACKING:
                self.parked += 1
                continue
            try:
                assert state == "ready", f"{table.full_name} is {state}: {error}"
                p.compare(table)
            except AssertionError as wrong:
                yield f"{p.name}: {wrong}"

    def compare_events(self, table):
        rows = source_rows(self.server, self.db, table.full_name, table.listed, table.filter or "true")
        told = difference(rows, self.state.rows(f"{table.schema}.{table.name}"))
        assert not told, f"{table.full_name}: {told}"


LACKING = "an unchanged out-of-line value of a row is not known"


def may_lack_values(table):
    """A log can be asked for no older value; where the live row has moved on, its table is parked."""
    return table.identity not in ("full", "nothing") and table.toasts


def logged(table):
    """Can rows of a log be found?  Without a key by the whole old row, which is JSON there and not as the columns show it."""
    return table.found_by or not any(c.type.endswith("[]") or c.type in AS_JSON for c in table.columns)


# values that ClickHouse's types do not hold arrive as text
AS_TEXT = '{"value_policy": "text"}'
AS_JSON = ("json", "jsonb", "hstore", "leaf", "tree", "numbers", "int2vector", "oidvector")


@pytest.fixture(scope="module")
def places():
    server = Server(name="property").start()
    with ClickHouse(proxy=False) as ch:
        yield server, ch
    server.destroy()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_generated_tables_arrive_equal(places, part):
    print(f"ETL_SEED={SEED} repeats this, part {part}")
    scenarios = generate(SEED + part, EXAMPLES)
    rig = Rig(*places, part)
    failures = rig.run(scenarios, random.Random(SEED + part))
    tables = [t for s in scenarios for t in s.tables]
    print(f"{len(scenarios)} scenarios, {len(tables)} tables, {len({c.type for t in tables for c in t.columns})} types;"
          f" {', '.join(f'{p.name} takes {sum(map(bool, map(p.takes, tables)))}' for p in rig.pipelines)}, {rig.parked} parked")
    rig.close()
    assert not failures, f"{len(failures)} failures\n" + "\n\n".join(failures[:3])
