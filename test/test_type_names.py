"""Labels of enums and attributes of composites are renamed: rows that were delivered show the new names, too."""


import pytest

from harness.clickhouse_equal import assert_current
from harness.equal import assert_equal
from harness.pipeline import FAST, clickhouse, webhook


SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN felt AS mood;
CREATE TYPE moods AS RANGE (subtype = mood);
CREATE TYPE pair AS (n int, m mood);
CREATE TYPE nest AS (p pair, x text);
CREATE DOMAIN nested AS nest;
CREATE TABLE enums (id int PRIMARY KEY, m mood, a mood[], d felt, r moods);
CREATE TABLE keys (m mood PRIMARY KEY, v int);
CREATE TABLE pairs (id int PRIMARY KEY, p pair);
CREATE TABLE nests (id int PRIMARY KEY, n nest[], d nested);
CREATE TABLE plain (id int PRIMARY KEY, v text);
INSERT INTO enums SELECT g, 'ok', '{sad,ok,NULL}', 'sad', '[sad,ok)' FROM generate_series(1, 3) g;
INSERT INTO keys VALUES ('sad', 1), ('ok', 2);
INSERT INTO pairs VALUES (1, '(1,ok)'), (2, NULL);
INSERT INTO nests VALUES (1, ARRAY['("(1,ok)",x)']::nest[], '("(2,sad)",y)');
INSERT INTO plain VALUES (1, 'x');
CREATE PUBLICATION pub FOR ALL TABLES;
"""
TABLES = ["enums", "keys", "pairs", "nests", "plain"]

# the statement, and the tables whose rows it changes
CHANGES = {
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'": {"enums", "keys", "pairs", "nests"},
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'x'; ALTER TYPE mood RENAME VALUE 'sad' TO 'ok'; ALTER TYPE mood RENAME VALUE 'x' TO 'sad'":
        {"enums", "keys", "pairs", "nests"},
    "ALTER TYPE pair RENAME ATTRIBUTE n TO number": {"pairs", "nests"},
    "ALTER TYPE pair ADD ATTRIBUTE more int": {"pairs", "nests"},
    "ALTER TYPE nest DROP ATTRIBUTE x": {"nests"},
    "ALTER TYPE pair DROP ATTRIBUTE n, ADD ATTRIBUTE n int": {"pairs", "nests"},
    "ALTER TYPE mood ADD VALUE 'new' BEFORE 'sad'": set(),
    "ALTER TYPE mood RENAME TO humour": set(),
    "CREATE TYPE other AS ENUM ('a'); ALTER TYPE other RENAME VALUE 'a' TO 'b'": set(),
}


def copies(server, db, pipeline):
    """How often each table has been copied."""
    return dict(server.sql("SELECT table_name, generation FROM etl.table_status WHERE pipeline = %s", (pipeline,), db))


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("ddl", CHANGES)
def test_old_rows_show_new_names(server, db, ch, lake, receiver, ddl, stopped):
    server.psql(SCHEMA, db)
    clickhouse(server, db, ch, lake, options_=FAST)
    webhook(server, db, receiver, name="hook", options_=FAST)
    pipelines = ("p", "hook")
    for p in pipelines:
        server.wait_for(p, db)
    before = {p: copies(server, db, p) for p in pipelines}
    if stopped:
        for p in pipelines:
            server.sql("SELECT etl.stop_pipeline(%s)", (p,), db)
    server.psql(ddl, db)
    if stopped:
        for p in pipelines:
            server.sql("SELECT etl.start_pipeline(%s)", (p,), db)
    for p in pipelines:
        server.wait_for(p, db)
        after = copies(server, db, p)
        assert {t for t in TABLES if after[t] != before[p][t]} == CHANGES[ddl], p
    assert_current(server, db, ch, lake, [f"public.{t}" for t in TABLES])
    assert_equal(server, db, receiver.state(), [f"public.{t}" for t in TABLES])
    server.psql("INSERT INTO enums SELECT 10 + g, m, a, d, r FROM enums, generate_series(0, 1) g WHERE id = 1;"
                "INSERT INTO nests SELECT 2, n, d FROM nests; UPDATE pairs SET p = (SELECT p FROM pairs WHERE id = 1);"
                "UPDATE keys SET v = v + 1; UPDATE plain SET v = 'y'", db)
    for p in pipelines:
        server.wait_for(p, db)
    assert_current(server, db, ch, lake, [f"public.{t}" for t in TABLES])
    assert_equal(server, db, receiver.state(), [f"public.{t}" for t in TABLES])
