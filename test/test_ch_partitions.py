"""Partitioned tables at ClickHouse: one table in the root's shape, equal by value."""


import pytest

from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import FAST, clickhouse


# One partition has its columns elsewhere; one was there before it was attached.
TREE = """
CREATE TABLE r (id int, region text, v text, n numeric(8,2) DEFAULT 5, big text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE r_eu PARTITION OF r FOR VALUES IN ('eu') PARTITION BY RANGE (id);
CREATE TABLE r_eu_1 PARTITION OF r_eu FOR VALUES FROM (0) TO (100);
CREATE TABLE r_eu_2 PARTITION OF r_eu FOR VALUES FROM (100) TO (100000);
CREATE TABLE r_us (big text, n numeric(8,2), region text NOT NULL, junk text, id int NOT NULL, v text);
ALTER TABLE r_us DROP junk; ALTER TABLE r ATTACH PARTITION r_us FOR VALUES IN ('us');
CREATE TABLE r_rest PARTITION OF r DEFAULT;
ALTER TABLE r_eu_1 ALTER big SET STORAGE EXTERNAL; ALTER TABLE r_us ALTER big SET STORAGE EXTERNAL;
INSERT INTO r SELECT g, (ARRAY['eu', 'us', 'asia'])[1 + g % 3], 'v' || g, g / 3.0, repeat(md5(g::text), 100) FROM generate_series(1, 200) g;
CREATE PUBLICATION pub FOR TABLE r WITH (publish_via_partition_root);
"""


@pytest.fixture
def follow(server, db, ch, lake):
    """follow(**options): the tree and its pipeline; returns a step: run it, and compare by value."""
    def make(**options):
        server.psql(TREE, db)
        clickhouse(server, db, ch, lake, options_={**FAST, **options})
        server.wait_for("p", db)
        equal = assert_log if options.get("engine") == "merge_tree" else assert_current

        def step(sql, compare=True):
            server.psql(sql, db)
            server.wait_for("p", db)
            if compare:
                equal(server, db, ch, lake, "public.r")

        step("")
        return step

    return make


@pytest.mark.parametrize("engine", ["replacing_merge_tree", "merge_tree"])
def test_rows(server, db, ch, lake, follow, engine):
    step = follow(engine=engine)
    # a pause between a large value's update and the row's going: the live row completes it
    step("UPDATE r SET n = n + 1 WHERE id % 3 = 0")
    step("UPDATE r SET id = id + 20000 WHERE id = 190")
    # a row that has gone tells nothing any more
    step("ALTER TABLE r_eu_1 REPLICA IDENTITY FULL; ALTER TABLE r_us REPLICA IDENTITY FULL;"
         "ALTER TABLE r_eu_2 REPLICA IDENTITY FULL; ALTER TABLE r_rest REPLICA IDENTITY FULL")
    step("INSERT INTO r VALUES (300, 'eu', 'new', 1, 'x'), (301, 'us', NULL, 2, NULL), (302, 'mars', 'default', NULL, 'y')")
    step("UPDATE r SET v = v || '!' WHERE id % 5 = 0; UPDATE r SET id = id + 400 WHERE id BETWEEN 20 AND 30; DELETE FROM r WHERE id % 7 = 0")
    step("UPDATE r SET region = 'us' WHERE region = 'eu' AND id > 50")
    step("BEGIN; UPDATE r SET region = 'mars' WHERE id < 30; UPDATE r SET region = 'eu' WHERE id < 30; UPDATE r SET region = 'mars' WHERE id < 20; COMMIT")
    step("BEGIN; DELETE FROM r WHERE id = 100; INSERT INTO r VALUES (100, 'eu', 'again', 1, NULL); COMMIT")
    step("TRUNCATE r; INSERT INTO r VALUES (1, 'us', 'first', 1, 'x')")
    assert set(ch.tables(lake)) == ({"public_r"} if engine == "merge_tree" else {"public_r", "public_r_current"})


def test_partitions_come_and_go(server, db, ch, lake, follow):
    step = follow()
    step("CREATE TABLE r_jp (LIKE r INCLUDING DEFAULTS); INSERT INTO r_jp SELECT g, 'jp', 'old', g, NULL FROM generate_series(1000, 1030) g;"
         "ALTER TABLE r ATTACH PARTITION r_jp FOR VALUES IN ('jp'); UPDATE r SET v = 'x' WHERE id = 1000")
    step("TRUNCATE r_us; INSERT INTO r VALUES (400, 'us', 'after', 1, NULL)")
    step("ALTER TABLE r DETACH PARTITION r_jp; INSERT INTO r_jp VALUES (1, 'jp', 'apart', 1, NULL)")
    step("DROP TABLE r_eu_2; INSERT INTO r VALUES (50, 'eu', 'after', 1, NULL) ON CONFLICT DO NOTHING")
    step("BEGIN; CREATE TABLE r_fr PARTITION OF r FOR VALUES IN ('fr'); INSERT INTO r VALUES (1, 'fr', 'new', 1, NULL); COMMIT")
    step("ALTER TABLE r ADD COLUMN c int DEFAULT 7; INSERT INTO r VALUES (2, 'fr', 'new', 1, NULL, 8)")
    assert sorted(ch.tables(lake)) == ["public_r", "public_r_current"]


def test_a_log_keeps_what_was(server, db, ch, lake, follow):
    """What leaves the table, or is truncated in part, has been there: the log says so still."""
    step = follow(engine="merge_tree")
    ids = lambda: {row[0] for row in ch.query(f"SELECT id FROM {lake}.public_r")}
    before = ids()
    step("ALTER TABLE r DETACH PARTITION r_us; TRUNCATE r_rest; DROP TABLE r_eu_2; INSERT INTO r VALUES (5000, 'asia', 'x', 1, NULL)", compare=False)
    assert ids() == before | {5000} and server.tables("p", db)["public.r"]["generation"] == 1


def test_by_themselves(server, db, ch, lake):
    server.psql(TREE + "ALTER PUBLICATION pub SET (publish_via_partition_root = false)", db)
    clickhouse(server, db, ch, lake, options_=FAST)
    leaves = ["public.r_eu_1", "public.r_eu_2", "public.r_us", "public.r_rest"]
    server.wait_for("p", db)
    server.psql("UPDATE r SET v = v || '!' WHERE id % 5 = 0", db)
    server.wait_for("p", db)
    server.psql("UPDATE r SET region = 'us' WHERE region = 'eu'", db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, leaves)
    server.psql("ALTER PUBLICATION pub SET (publish_via_partition_root); INSERT INTO r VALUES (1, 'mars', 'x', 1, NULL)", db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.r")
