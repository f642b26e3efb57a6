"""No setting of a database or a role changes a byte of what is delivered.

The settings that change the text of values, or what a name means, in a set of combinations in
which every value of each meets every value of each other, given to the database or to the role.
Under each one a table of all types is copied again and all its rows are updated.
"""

import itertools
import json
import subprocess

import pytest

from harness import Receiver
from harness.clickhouse import ClickHouse
from harness.clickhouse_equal import assert_current
from harness.equal import difference, source_rows
from harness.hostile import EVIL, FACTORS, give, pairwise, reset
from harness.pipeline import clickhouse, drop, webhook
from harness.scenario import examples
from harness.values import DEFINITIONS, NAMES

ROWS = 8


def test_pairwise_is_pairwise():
    rows = pairwise(FACTORS)
    assert len(rows) <= 40
    for (a, xs), (b, ys) in itertools.combinations(FACTORS.items(), 2):
        assert {(r[a], r[b]) for r in rows} == set(itertools.product(xs, ys))


class Bodies:
    """The bytes of rows, as they stand in the bodies of requests, by table, event and key."""

    MEMBERS = ("table_row", "updated_table_row", "old_table_row", "replicated_table_schema")

    def __init__(self, requests):
        self.rows = {}
        for request in requests:
            for line in request.body.split(b"\n")[:-1]:
                event = json.loads(line)
                if event["event"] not in ("insert", "update", "relation"):
                    continue
                kind = "copy" if "copy" in event else event["event"]
                key = event["table"]["name"], kind, event["key"]["id"] if kind != "relation" else 0
                for name in self.MEMBERS:
                    if isinstance(event.get(name), dict):
                        at = line.index(b'"%s":' % name.encode()) + len(name) + 3
                        self.rows.setdefault((*key, name), set()).add(self.value(line, at, kind))

    @staticmethod
    def value(line, at, kind):
        text = line[at:].decode()
        end = json.JSONDecoder().raw_decode(text)[1]
        # the position of a shape is another one after each copy
        return text[:end] if kind != "relation" else text[text.index('"replica_identity"'):end]


@pytest.fixture(scope="module")
def ch():
    with ClickHouse(proxy=False) as made:
        yield made


def fill(server, db):
    """Tables "held" and "wild": a column of each type, a row of NULLs and some of values."""
    server.psql(DEFINITIONS + EVIL, db)
    with server.connect(db) as c:
        for table in ("held", "wild"):
            columns = ", ".join(f"c{i} {name}" for i, name in enumerate(NAMES))
            c.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})")
            c.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            pools = examples(1, NAMES, ROWS, table == "held")
            parts = ", ".join(f"%s::{name}" for name in NAMES)
            for row in range(ROWS):
                c.execute(f"INSERT INTO {table} VALUES (%s, {parts})", [row, *(pools[name][row] for name in NAMES)])
            c.execute(f"INSERT INTO {table} VALUES (99)")


@pytest.mark.timeout(900)
def test_settings_change_no_byte(server, db, ch):
    receiver = Receiver()
    ch.create_database("settings")
    fill(server, db)
    server.sql("CREATE PUBLICATION pub FOR TABLE held, wild; CREATE PUBLICATION narrow FOR TABLE held", db=db)
    webhook(server, db, receiver, "hook", "pub", format="ndjson", options_={"max_batch_delay": "20ms"})
    clickhouse(server, db, ch, "settings", "table", "narrow", {"max_batch_delay": "20ms"})
    for name in ("hook", "table"):
        server.wait_for(name, db)
    rows = set()
    for settings in pairwise(FACTORS):
        give(server, db, settings)
        for worker in ("etl apply", "etl writer"):
            for pid in server.backends(worker, db):
                server.sql("SELECT pg_terminate_backend(%s)", (pid,))
        with server.connect(db) as c:
            c.execute("SET search_path = public")
            for table in ("held", "wild"):
                c.execute(f"SELECT etl.resync_table('hook', 'public.{table}')")
            c.execute("SELECT etl.resync_table('table', 'public.held')")
            for name in ("hook", "table"):
                assert c.execute("SELECT etl.wait_for(%s)", (name,)).fetchone()[0], settings
            c.execute("UPDATE public.held SET id = id; UPDATE public.wild SET id = id")
            for name in ("hook", "table"):
                assert c.execute("SELECT etl.wait_for(%s)", (name,)).fetchone()[0], settings
        found = Bodies(receiver.delivered()).rows
        differ = {key: texts for key, texts in found.items() if len(texts) > 1}
        assert not differ, (settings, list(differ.items())[:2])
        assert {key[1] for key in found} == {"relation", "copy", "update"}
        rows.add(ch.execute("SELECT * FROM settings.public_held_current ORDER BY id FORMAT RowBinary").body)
        assert len(rows) == 1, settings
    assert len(found) == 2 * (1 + 3 * (ROWS + 1))
    reset(server, db)
    assert_current(server, db, ch, "settings", "public.held")
    for table in ("held", "wild"):
        told = difference(source_rows(server, db, f"public.{table}"), receiver.state().rows(f"public.{table}"))
        assert not told, told
    for name in ("hook", "table"):
        drop(server, db, name)
    receiver.close()


@pytest.fixture(scope="module")
def yen(tmp_path_factory):
    """A folder with a locale whose money has no smaller unit."""
    folder = tmp_path_factory.mktemp("locales")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    subprocess.run(["localedef", "-i", "ja_JP", "-f", "UTF-8", str(folder / "ja_JP.UTF-8")], check=True)
    return folder


@pytest.mark.parametrize("level, shown", [("ROLE postgres", "1234.50"), ("ROLE postgres IN DATABASE d", "1234.50"),
                                          ("DATABASE d", "123450"), ("ROLE ALL", "123450")])
def test_money_is_what_the_database_says(fresh_server, receiver, monkeypatch, yen, level, shown):
    """How many digits are behind the point is a setting; that of the workers' role does not count."""
    monkeypatch.setenv("LOCPATH", str(yen))
    server = fresh_server()
    db = server.create_database("d")
    server.sql(f"ALTER {level} SET lc_monetary = 'ja_JP.UTF-8'")
    server.psql("SET lc_monetary = 'C'; CREATE TABLE t (id int PRIMARY KEY, m money); INSERT INTO t VALUES (1, 1234.50::numeric::money);"
                "CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.psql("INSERT INTO t SELECT 2, m FROM t", db)
    server.wait_for("p", db)
    assert [row["m"] for row in receiver.state().rows("public.t")] == [shown, shown]
