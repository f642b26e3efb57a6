"""Partitioned tables: as one table of their root's shape, or each partition by itself."""

import random

import pytest
from harness import assert_equal, wait_until
from harness.pgoutput import PgOutput, assert_same, from_events
from harness.pipeline import webhook

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms"}

# Four leaves on two levels; no two have their columns at the same places.
TREE = """
CREATE TABLE r (id int, region text, v text, n int DEFAULT 5, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE r_eu PARTITION OF r FOR VALUES IN ('eu') PARTITION BY RANGE (id);
CREATE TABLE r_eu_1 PARTITION OF r_eu FOR VALUES FROM (0) TO (100);
CREATE TABLE r_eu_2 (gone int, v text, n int, region text NOT NULL, id int NOT NULL, PRIMARY KEY (region, id));
ALTER TABLE r_eu_2 DROP gone; ALTER TABLE r_eu_2 DROP CONSTRAINT r_eu_2_pkey;
ALTER TABLE r_eu ATTACH PARTITION r_eu_2 FOR VALUES FROM (100) TO (100000);
CREATE TABLE r_us (n int, region text NOT NULL, junk text, id int NOT NULL, v text);
ALTER TABLE r_us DROP junk; INSERT INTO r_us VALUES (7, 'us', 900, 'before');
ALTER TABLE r ATTACH PARTITION r_us FOR VALUES IN ('us');
CREATE TABLE r_rest PARTITION OF r DEFAULT;
INSERT INTO r SELECT g, (ARRAY['eu', 'us', 'asia'])[1 + g % 3], 'v' || g, g FROM generate_series(1, 200) g;
"""
LEAVES = ["public.r_eu_1", "public.r_eu_2", "public.r_us", "public.r_rest"]
VIA_ROOT = "CREATE PUBLICATION pub FOR TABLE r WITH (publish_via_partition_root)"

CHANGES = """
INSERT INTO r VALUES (300, 'eu', 'new', 1), (301, 'us', NULL, 2), (302, 'mars', 'default partition', NULL);
UPDATE r SET v = v || '!' WHERE id % 5 = 0;
UPDATE r SET id = id + 400 WHERE id BETWEEN 20 AND 30;
DELETE FROM r WHERE id % 7 = 0;
INSERT INTO r_us (id, region, v) VALUES (303, 'us', 'straight into the leaf');
"""


def names(receiver):
    """Tables that rows were delivered of."""
    return {e["table"]["name"] for e in receiver.events() if e["event"] in ("insert", "update", "delete")}


def copies(receiver, table):
    return sorted({e["copy"] for e in receiver.events() if e["event"] == "copy_begin" and e["table"]["name"] == table})


@pytest.fixture
def fail(server):
    """Sets etl.failpoint; cleared behind the test."""
    yield server.failpoint
    server.failpoint("")


@pytest.fixture
def equal(server, db, receiver):
    """equal("public.r"): once everything is delivered, source and receiver have the same rows."""
    def check(*tables):
        server.wait_for("p", db)
        assert_equal(server, db, receiver.state(), tables)

    return check


# --- rows ---


def test_a_root_is_one_table(server, db, receiver, follow, equal):
    """Copy and changes of all levels arrive as rows of the root, in its shape and with its key."""
    run = follow(TREE + VIA_ROOT)
    equal("public.r")
    run(CHANGES)
    equal("public.r")
    assert names(receiver) == {"r"}
    for event in receiver.events():
        if event["event"] == "insert":
            assert list(event["table_row"]) == ["id", "region", "v", "n"] and list(event["key"]) == ["id", "region"]
    tables = server.tables("p", db)
    assert list(tables) == ["public.r"] and tables["public.r"]["state"] == "ready"
    assert copies(receiver, "r") == [1]


def test_partitions_by_themselves(server, db, receiver, follow, equal):
    run = follow(TREE + "CREATE PUBLICATION pub FOR TABLE r")
    equal(*LEAVES)
    run(CHANGES)
    equal(*LEAVES)
    assert names(receiver) == {"r_eu_1", "r_eu_2", "r_us", "r_rest"}


def test_a_part_of_a_tree_is_a_root(server, db, receiver, follow, equal):
    """The topmost table that the publication names is the one whose rows they are."""
    run = follow(TREE + "CREATE PUBLICATION pub FOR TABLE r_eu, r_us WITH (publish_via_partition_root)")
    run(CHANGES)
    equal("public.r_eu", "public.r_us")
    assert names(receiver) == {"r_eu", "r_us"}
    run("ALTER PUBLICATION pub ADD TABLE r")
    run("INSERT INTO r VALUES (500, 'eu', 'below the topmost', 1)")
    equal("public.r")
    assert list(server.tables("p", db)) == ["public.r"]
    run("ALTER PUBLICATION pub DROP TABLE r")
    run("INSERT INTO r VALUES (501, 'eu', 'of a part again', 1), (502, 'asia', 'not published', 1)")
    equal("public.r_eu", "public.r_us")


@pytest.mark.parametrize("publication", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_all_tables_by_their_roots(server, db, receiver, follow, equal, publication):
    run = follow(TREE + "CREATE TABLE plain (id int PRIMARY KEY); INSERT INTO plain VALUES (1);"
                 f"CREATE PUBLICATION pub {publication} WITH (publish_via_partition_root)")
    run(CHANGES)
    run("CREATE TABLE s (id int PRIMARY KEY) PARTITION BY HASH (id);"
        "CREATE TABLE s_0 PARTITION OF s FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE s_1 PARTITION OF s FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
        "INSERT INTO s SELECT generate_series(1, 50); INSERT INTO plain VALUES (2)")
    equal("public.r", "public.plain", "public.s")
    assert names(receiver) == {"r", "plain", "s"}


@pytest.mark.parametrize("where", ["FOR TABLE r", "FOR TABLE r (id, region, n)", "FOR TABLE r_eu, r_us (v, region, id)",
                                   "FOR ALL TABLES"])
@pytest.mark.parametrize("via_root", [True, False])
def test_what_pgoutput_says(server, db, receiver, where, via_root):
    """Tables, operations, columns and values are those that a subscriber of the server's own would get."""
    if not via_root and "(" in where:
        where = "FOR TABLE r, r_us (id, region, n)"  # a list of a root would be refused
    server.psql(TREE + f"CREATE PUBLICATION pub {where} WITH (publish_via_partition_root = {via_root})", db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    with PgOutput(server, db, "pub") as oracle:
        server.psql(CHANGES + "BEGIN; UPDATE r SET region = 'us' WHERE id = 300; UPDATE r SET region = 'eu' WHERE id = 303; COMMIT;"
                    "UPDATE r SET v = NULL WHERE id % 11 = 0; TRUNCATE r", db)
        server.wait_for("p", db)
        wanted = [change for change in oracle.changes() if not change[1].startswith("etl.")]
    assert len(wanted) > 50
    found = from_events(receiver.events())
    # of one TRUNCATE, tables come in no particular order
    assert_same(*([c for c in changes if c[0] != "truncate"] for changes in (wanted, found)))
    assert_same(*(sorted(c for c in changes if c[0] == "truncate") for changes in (wanted, found)))


@pytest.mark.parametrize("where, full", [
    ("FOR TABLE r WHERE (id > 50 AND region <> 'asia'), r_us WHERE (id < 10)", False),
    ("FOR TABLE r WHERE (n > 50 AND v IS NOT NULL)", True),
    ("FOR TABLE r_eu WHERE (id % 2 = 0), r_us", False),
    ("FOR TABLE r, r_us WHERE (id < 60), r_eu_1 WHERE (id % 3 <> 0)", None),
])
def test_row_filters(server, db, receiver, where, full):
    """The root's filter holds for the root, a partition's for itself, in the copy and as pgoutput has it afterwards."""
    via_root = full is not None
    server.psql(TREE + f"CREATE PUBLICATION pub {where} WITH (publish_via_partition_root = {via_root})", db)
    if full:
        server.psql("".join(f"ALTER TABLE {leaf} REPLICA IDENTITY FULL;" for leaf in [*LEAVES, "r"]), db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    published = server.sql("SELECT format('%I.%I', schemaname, tablename), coalesce(rowfilter, 'true') FROM pg_publication_tables"
                           " WHERE pubname = 'pub'", db=db)
    assert len(published) == (4 if full is None else 2 if "r_eu WHERE" in where else 1)
    for table, condition in published:
        assert_equal(server, db, receiver.state(), [table], where=condition)
    with PgOutput(server, db, "pub") as oracle:
        server.psql(CHANGES + "UPDATE r SET region = 'us' WHERE region = 'asia' AND id < 100; UPDATE r SET region = 'eu' WHERE id % 4 = 0;"
                    "UPDATE r SET id = id + 1000 WHERE id > 150; UPDATE r SET n = 100 - n; UPDATE r SET v = NULL WHERE id % 2 = 0", db)
        server.wait_for("p", db)
        assert_same(oracle.changes(), from_events(receiver.events()))
    for table, condition in published:
        assert_equal(server, db, receiver.state(), [table], where=condition)


def test_a_row_that_moves(server, db, receiver, follow, equal):
    """A delete in one partition and an insert in another: the row is there at the end, whatever meets in a batch."""
    run = follow(TREE + VIA_ROOT)
    run("UPDATE r SET region = 'us' WHERE region = 'eu' AND id < 190")
    equal("public.r")
    run("BEGIN; UPDATE r SET region = 'asia' WHERE region = 'us'; UPDATE r SET region = 'us' WHERE region = 'asia'; COMMIT")
    run("BEGIN; UPDATE r SET region = 'asia', v = 'back' WHERE id = 6; UPDATE r SET region = 'us' WHERE id = 6; COMMIT")
    run("BEGIN; DELETE FROM r WHERE id = 9; INSERT INTO r VALUES (9, 'us', 'again', 1); UPDATE r SET region = 'eu' WHERE id = 9;"
        "UPDATE r SET id = 5000 WHERE id = 9; COMMIT")
    equal("public.r")


def test_values_out_of_line(server, db, receiver, follow, equal):
    """Unchanged values that the WAL does not have come from the leaf's old row or its live one, or are named."""
    run = follow("CREATE TABLE r (id int PRIMARY KEY, big text, n int) PARTITION BY RANGE (id);"
                 "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10);"
                 "CREATE TABLE r2 (n int, big text, id int NOT NULL); ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (10) TO (20);"
                 "ALTER TABLE r1 ALTER big SET STORAGE EXTERNAL; ALTER TABLE r2 ALTER big SET STORAGE EXTERNAL;"
                 "ALTER TABLE r2 REPLICA IDENTITY FULL;"
                 "INSERT INTO r SELECT g, repeat(md5(g::text), 500), g FROM generate_series(1, 19) g;"
                 "CREATE PUBLICATION pub FOR TABLE r WITH (publish_via_partition_root)")
    run("UPDATE r SET n = n + 1; UPDATE r SET id = 0 WHERE id = 19;"
        "DELETE FROM r WHERE id IN (7, 17); UPDATE r SET id = 17 WHERE id = 6; UPDATE r SET id = 7 WHERE id = 16")
    equal("public.r")
    updates = [e for e in receiver.events() if e["event"] == "update"]
    assert {e["old_table_row_kind"] for e in updates if e["key"]["id"] >= 10} == {"full"}
    assert all(e["missing_columns"] in ([], ["big"]) for e in updates)


# --- identity ---


def test_a_leaf_that_does_not_identify_parks_its_root(server, db, receiver, follow, equal):
    """The WAL has the leaf's identity, the destination's key is the root's."""
    run = follow(TREE + VIA_ROOT)
    run("UPDATE r_us SET n = id; CREATE UNIQUE INDEX other ON r_us (n); ALTER TABLE r_us ALTER n SET NOT NULL;"
        "ALTER TABLE r_us REPLICA IDENTITY USING INDEX other; INSERT INTO r VALUES (600, 'us', 'inserts need none', 600)")
    equal("public.r")
    found = server.sql("SELECT severity, target, hint FROM etl.validate_pipeline('p') WHERE check_name = 'replica_identity'", db=db)
    assert [row[:2] for row in found] == [("error", "public.r_us")] and found[0][2]
    run("UPDATE r SET id = 601 WHERE id = 600")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    row = server.tables("p", db)["public.r"]
    assert row["state"] == "errored" and "r_us" in row["error"] and "REPLICA IDENTITY FULL" in row["hint"]
    run("ALTER TABLE r_us REPLICA IDENTITY FULL; SELECT etl.retry_table('p')")
    run("UPDATE r SET id = 602 WHERE id = 601")
    equal("public.r")


def test_identities_that_have_more_than_the_key(server, db, receiver, follow, equal):
    run = follow(TREE + VIA_ROOT)
    run("ALTER TABLE r_us REPLICA IDENTITY FULL; UPDATE r_eu_2 SET n = 0 WHERE n IS NULL; ALTER TABLE r_eu_2 ALTER n SET NOT NULL;"
        "CREATE UNIQUE INDEX wide ON r_eu_2 (n, id, region); ALTER TABLE r_eu_2 REPLICA IDENTITY USING INDEX wide")
    run(CHANGES + "UPDATE r SET n = n + 1000; UPDATE r SET id = 777 WHERE id = 303")
    equal("public.r")


def test_a_root_without_key(server, db, receiver, follow, equal):
    """Rows are found by all their columns, so all leaves must tell them."""
    run = follow("CREATE TABLE r (id int, v text) PARTITION BY RANGE (id);"
                 "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10); CREATE TABLE r2 PARTITION OF r DEFAULT;"
                 "ALTER TABLE r1 REPLICA IDENTITY FULL; ALTER TABLE r2 REPLICA IDENTITY FULL;"
                 "INSERT INTO r SELECT g, 'x' FROM generate_series(1, 20) g;"
                 "CREATE PUBLICATION pub FOR TABLE r WITH (publish_via_partition_root)")
    run("UPDATE r SET v = 'y' WHERE id IN (3, 13); UPDATE r SET id = 30 WHERE id = 4; DELETE FROM r WHERE id IN (5, 15)")
    equal("public.r")


# --- partitions come and go ---


def test_attached_with_rows(server, db, receiver, follow, equal):
    """What is in it is copied with the root, beside what goes on; later rows are the root's."""
    run = follow(TREE + VIA_ROOT)
    run("CREATE TABLE r_jp (v text, n int, id int NOT NULL, region text NOT NULL);"
        "INSERT INTO r_jp SELECT 'old', g, 1000 + g, 'jp' FROM generate_series(1, 30) g;"
        "ALTER TABLE r ATTACH PARTITION r_jp FOR VALUES IN ('jp'); INSERT INTO r VALUES (1100, 'jp', 'late', 1);"
        "UPDATE r SET v = 'changed' WHERE id = 1001")
    equal("public.r")
    assert copies(receiver, "r") == [1, 2]
    assert [e["reason"] for e in receiver.events() if e["event"] == "copy_begin"][-1] == "resync"


@pytest.mark.parametrize("before, needed", [(False, False), (True, True)])
def test_made_and_attached_in_one_transaction(server, db, receiver, follow, equal, before, needed):
    """As partition managers do it: without rows before it is attached, nothing is copied again."""
    run = follow(TREE + VIA_ROOT)
    insert = "INSERT INTO r_jp (id, region, v) VALUES (1000, 'jp', 'before');" if before else ""
    run(f"BEGIN; CREATE TABLE r_jp (LIKE r INCLUDING DEFAULTS); {insert} ALTER TABLE r_jp RENAME TO r_japan;"
        "SAVEPOINT a; ALTER TABLE r ATTACH PARTITION r_japan FOR VALUES IN ('jp'); RELEASE a;"
        "INSERT INTO r VALUES (1001, 'jp', 'within', 1); COMMIT; INSERT INTO r VALUES (1002, 'jp', 'after', 1)")
    equal("public.r")
    assert copies(receiver, "r") == ([1, 2] if needed else [1])


def test_a_subtree_is_attached_and_detached(server, db, receiver, follow, equal):
    run = follow(TREE + VIA_ROOT)
    run("CREATE TABLE sub (id int NOT NULL, region text NOT NULL, v text, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE sub_1 PARTITION OF sub FOR VALUES FROM (0) TO (5000); CREATE TABLE sub_2 PARTITION OF sub DEFAULT;"
        "INSERT INTO sub SELECT g * 1000, 'jp', 'sub', g FROM generate_series(1, 10) g")
    run("ALTER TABLE r ATTACH PARTITION sub FOR VALUES IN ('jp'); INSERT INTO r VALUES (1, 'jp', 'after', 1)")
    equal("public.r")
    run("ALTER TABLE r DETACH PARTITION sub; INSERT INTO sub VALUES (2, 'jp', 'unseen', 1)")
    equal("public.r")
    assert copies(receiver, "r") == [1, 2, 3]
    assert not [e for e in receiver.events() if "unseen" in str(e)]


@pytest.mark.parametrize("how", ["ALTER TABLE r DETACH PARTITION r_us", "DROP TABLE r_us",
                                 "DROP TABLE r_rest; ALTER TABLE r DETACH PARTITION r_us CONCURRENTLY", "ALTER TABLE r DETACH PARTITION r_eu",
                                 "DROP TABLE r_eu CASCADE"])
def test_detached_or_dropped(server, db, receiver, follow, equal, how):
    """By default the rows go."""
    run = follow(TREE + VIA_ROOT)
    run(how)
    run("CREATE TABLE r_new PARTITION OF r FOR VALUES IN ('new'); INSERT INTO r VALUES (700, 'new', 'goes on', 1)")
    equal("public.r")
    # a copy that the new partition overtakes is begun again, under the next number
    first, *again = copies(receiver, "r")
    assert first == 1 and again


@pytest.mark.parametrize("how", ["ALTER TABLE r DETACH PARTITION r_us", "DROP TABLE r_us"])
@pytest.mark.parametrize("scope", ["pipeline", "table"])
def test_detached_and_kept(server, db, receiver, follow, equal, how, scope):
    run = follow(TREE + VIA_ROOT, **({"on_partition_detached": "keep"} if scope == "pipeline" else {}))
    if scope == "table":
        run("SELECT etl.alter_table('p', 'r', '{\"on_partition_detached\": \"keep\"}')")
        server.wait_for("p", db)
    rows = server.value("SELECT count(*) FROM r", db=db)
    run(how)
    run("INSERT INTO r VALUES (700, 'asia', 'goes on', 1); DROP TABLE IF EXISTS r_us")
    server.wait_for("p", db)
    assert len(receiver.state().rows("public.r")) == rows + 1
    assert copies(receiver, "r") == [1]
    run("SELECT etl.resync_table('p', 'r')")
    equal("public.r")


def test_a_detached_partition_is_a_table_of_its_own(server, db, receiver, follow, equal):
    """Where all tables are published."""
    run = follow(TREE + "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root)")
    run("ALTER TABLE r DETACH PARTITION r_us; INSERT INTO r_us VALUES (1, 'us', 701, 'alone')")
    equal("public.r", "public.r_us")
    run("ALTER TABLE r ATTACH PARTITION r_us FOR VALUES IN ('us'); INSERT INTO r VALUES (702, 'us', 'together', 1)")
    equal("public.r")
    assert [name for name in server.tables("p", db) if not name.startswith("etl.")] == ["public.r"]


def test_a_root_is_dropped(server, db, receiver, follow, equal):
    run = follow(TREE + "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE r, t WITH (publish_via_partition_root)")
    run("DROP TABLE r; INSERT INTO t VALUES (1)")
    equal("public.t")
    assert server.tables("p", db)["public.r"]["state"] == "dropped"


# --- truncate ---


@pytest.mark.parametrize("how", ["TRUNCATE r_us", "TRUNCATE r_eu", "TRUNCATE r_eu_1, r_us",
                                 "BEGIN; INSERT INTO r VALUES (800, 'us', 'x', 1); TRUNCATE r_us;"
                                 "INSERT INTO r VALUES (801, 'us', 'y', 1); COMMIT"])
def test_truncate_of_a_part(server, db, receiver, follow, equal, how):
    """No event can say it: the root is copied again."""
    run = follow(TREE + VIA_ROOT)
    run(how)
    run("INSERT INTO r VALUES (802, 'eu', 'z', 1)")
    equal("public.r")
    assert copies(receiver, "r") == [1, 2] and not [e for e in receiver.events() if e["event"] == "truncate"]


def test_truncate_that_is_not_published(server, db, receiver, follow, equal):
    run = follow(TREE + "CREATE PUBLICATION pub FOR TABLE r WITH (publish_via_partition_root, publish = 'insert, update, delete')")
    rows = len(receiver.state().rows("public.r"))
    run("TRUNCATE r_us; TRUNCATE r; INSERT INTO r VALUES (900, 'eu', 'z', 1)")
    server.wait_for("p", db)
    assert len(receiver.state().rows("public.r")) == rows + 1 and copies(receiver, "r") == [1]


@pytest.mark.parametrize("via_root", [True, False])
def test_truncate_of_a_root_with_others(server, db, receiver, follow, equal, via_root):
    """CASCADE, RESTART IDENTITY, several tables: one event with all that the publication has."""
    run = follow(TREE + "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, region text,"
                 " FOREIGN KEY (a, region) REFERENCES r); INSERT INTO t (a, region) VALUES (3, 'eu');"
                 "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1); CREATE TABLE unpublished (id int);"
                 f"CREATE PUBLICATION pub FOR TABLE r, t, u WITH (publish_via_partition_root = {via_root})")
    run("INSERT INTO u VALUES (2)")
    run("TRUNCATE r, u, unpublished RESTART IDENTITY CASCADE; INSERT INTO r VALUES (1, 'eu', 'first', 1)")
    tables = ["public.r"] if via_root else LEAVES
    equal(*tables, "public.t", "public.u")
    event, = [e for e in receiver.events() if e["event"] == "truncate"]
    assert event["options"] == {"cascade": True, "restart_identity": True}
    assert sorted(f"{t['schema']}.{t['name']}" for t in event["truncated_tables"]) == sorted(tables + ["public.t", "public.u"])
    assert max([1] + copies(receiver, "r")) == 1


# --- the publication and the table change ---


def test_via_root_is_switched(server, db, receiver, follow, equal):
    """Leaves leave and the root comes, and the other way round; nothing is lost on the way."""
    run = follow(TREE + "CREATE PUBLICATION pub FOR TABLE r")
    for turn, via_root in enumerate([True, False, True]):
        run("BEGIN; INSERT INTO r VALUES (%d, 'eu', 'before', 1);"
            "ALTER PUBLICATION pub SET (publish_via_partition_root = %s); INSERT INTO r VALUES (%d, 'us', 'after', 1); COMMIT;"
            "INSERT INTO r VALUES (%d, 'asia', 'later', 1); DELETE FROM r WHERE id = %d"
            % (2000 + turn, via_root, 2100 + turn, 2200 + turn, 10 + turn))
        equal(*(["public.r"] if via_root else LEAVES))
        assert sorted(server.tables("p", db)) == (["public.r"] if via_root else sorted(LEAVES))


@pytest.mark.parametrize("ddl", [
    "ALTER TABLE r ADD COLUMN c int DEFAULT 7",
    "ALTER TABLE r ADD COLUMN c timestamptz DEFAULT now()",
    "ALTER TABLE r ADD COLUMN c int; UPDATE r SET c = id",
    "ALTER TABLE r DROP COLUMN v",
    "ALTER TABLE r RENAME COLUMN v TO w",
    "ALTER TABLE r ALTER COLUMN n TYPE bigint",
    "ALTER TABLE r ALTER COLUMN v TYPE int USING length(v)",
    "ALTER TABLE r_us ALTER COLUMN n SET DEFAULT 99",
    "BEGIN; UPDATE r SET v = 'before'; ALTER TABLE r ADD COLUMN c text; UPDATE r SET c = v || id;"
    "INSERT INTO r (id, region, c) VALUES (9999, 'us', 'x'); COMMIT",
    "ALTER TABLE r RENAME TO q; ALTER TABLE q RENAME TO r",
    "ALTER TABLE r_us RENAME TO r_usa; CREATE SCHEMA elsewhere; ALTER TABLE r_eu_1 SET SCHEMA elsewhere",
])
def test_alter_table_of_a_root(server, db, receiver, follow, equal, ddl):
    run = follow(TREE + VIA_ROOT)
    run("INSERT INTO r VALUES (1500, 'us', 'x', 1)")
    run(ddl)
    run("INSERT INTO r (id, region) VALUES (1501, 'eu'), (50, 'eu'), (1501, 'us'); UPDATE r SET id = 1502 WHERE id = 1500")
    equal("public.r")


def test_column_list_of_a_root(server, db, receiver, follow):
    """The root's list holds, whatever a leaf's own entry says."""
    run = follow(TREE + "CREATE PUBLICATION pub FOR TABLE r (id, region, n), r_us (id, region, v) WITH (publish_via_partition_root)")
    run(CHANGES)
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.r"], columns=["id", "region", "n"])


# --- what cannot be replicated ---


@pytest.mark.parametrize("what", ["unlogged", "foreign"])
def test_a_partition_without_wal_parks_its_root(server, db, receiver, follow, equal, what):
    """Its rows would be copied once and grow old.  By themselves, the others are followed."""
    make = {"unlogged": "CREATE UNLOGGED TABLE r_x PARTITION OF r FOR VALUES IN ('x')",
            "foreign": "CREATE FOREIGN TABLE r_x PARTITION OF r FOR VALUES IN ('x') SERVER nowhere"}[what]
    # a foreign partition could not have an index, so the root has none
    run = follow("CREATE FOREIGN DATA WRAPPER elsewhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER elsewhere;"
                 "CREATE TABLE r (id int, region text) PARTITION BY LIST (region);"
                 "CREATE TABLE r_a PARTITION OF r FOR VALUES IN ('a'); ALTER TABLE r_a REPLICA IDENTITY FULL;"
                 "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO r VALUES (1, 'a');"
                 "CREATE PUBLICATION pub FOR TABLE r, t WITH (publish_via_partition_root)")
    run(make)
    run("INSERT INTO r VALUES (2, 'a'); INSERT INTO t VALUES (1)")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    wait_until(lambda: server.tables("p", db)["public.r"]["state"] == "errored", 20, "root parked")
    row = server.tables("p", db)["public.r"]
    assert what in row["error"] and "r_x" in row["error"] and "publish_via_partition_root" in row["hint"]
    assert_equal(server, db, receiver.state(), ["public.t"])
    found = server.sql("SELECT target FROM etl.validate_pipeline('p') WHERE check_name = 'not_replicable'", db=db)
    assert found == [("public.r_x",)]
    run("ALTER PUBLICATION pub SET (publish_via_partition_root = false); INSERT INTO r VALUES (3, 'a')")
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    equal("public.r_a", "public.t")
    row = server.tables("p", db).get("public.r_x")
    assert row is None or (row["state"], row["excluded_reason"]) == ("excluded", what)
    run("ALTER PUBLICATION pub SET (publish_via_partition_root); DROP FOREIGN TABLE IF EXISTS r_x"
        if what == "foreign" else
        "ALTER PUBLICATION pub SET (publish_via_partition_root); DROP TABLE r_x")
    equal("public.r", "public.t")


def test_unlogged_and_logged_again(server, db, receiver, follow, equal):
    run = follow(TREE + VIA_ROOT)
    run("ALTER TABLE r_us SET UNLOGGED; INSERT INTO r VALUES (3000, 'us', 'unseen', 1)")
    wait_until(lambda: server.tables("p", db)["public.r"]["state"] == "errored", 20, "root parked")
    run("ALTER TABLE r_us SET LOGGED; SELECT etl.retry_table('p'); INSERT INTO r VALUES (3001, 'us', 'seen', 1)")
    equal("public.r")


# --- plain inheritance ---


def test_inheritance(server, db, receiver, follow, equal):
    """Children are tables of their own: parents are copied and followed without them."""
    run = follow("CREATE TABLE parent (id int PRIMARY KEY, v text); CREATE TABLE child (w int, PRIMARY KEY (id)) INHERITS (parent);"
                 "CREATE TABLE alone (PRIMARY KEY (id)) INHERITS (parent);"
                 "INSERT INTO parent VALUES (1, 'p'); INSERT INTO child VALUES (1, 'c', 1); INSERT INTO alone VALUES (1, 'a');"
                 "CREATE PUBLICATION pub FOR TABLE ONLY parent, child WITH (publish_via_partition_root)")
    run("INSERT INTO parent VALUES (2, 'p'); INSERT INTO child VALUES (3, 'c', 3); INSERT INTO alone VALUES (4, 'a');"
        "UPDATE parent SET v = v || '!'; DELETE FROM parent WHERE id = 1 AND v = 'c!'")
    server.wait_for("p", db)
    state = receiver.state()
    assert sorted(r["id"] for r in state.rows("public.parent")) == sorted(
        row[0] for row in server.sql("SELECT id FROM ONLY parent", db=db))
    assert_equal(server, db, state, ["public.child"])
    assert names(receiver) == {"parent", "child"}
    run("ALTER PUBLICATION pub SET TABLE parent; INSERT INTO alone VALUES (5, 'a')")
    equal("public.child", "public.alone")


# --- trouble ---


def test_a_tree_that_changes_while_its_copy_begins(server, db, receiver, fail):
    """Between snapshot and lock: the initial sync starts again, or catch-up sees what came."""
    server.psql(TREE + "CREATE TABLE r_jp (LIKE r INCLUDING DEFAULTS); INSERT INTO r_jp VALUES (4000, 'jp', 'x', 1);" + VIA_ROOT, db)
    log = server.log_size()
    fail("sync_before_lock=wait")
    webhook(server, db, receiver, options_=FAST)
    wait_until(lambda: 'failpoint "sync_before_lock"' in server.log(log), 30, "failpoint reached")
    server.psql("INSERT INTO r_jp VALUES (4001, 'jp', 'between', 1); ALTER TABLE r ATTACH PARTITION r_jp FOR VALUES IN ('jp');"
                "ALTER TABLE r DETACH PARTITION r_us; INSERT INTO r VALUES (4002, 'jp', 'after', 1)", db)
    fail("")
    server.wait_for("p", db)
    assert_equal(server, db, receiver.state(), ["public.r"])


def test_replayed(server, db, receivers):
    """What a partition's coming and going asks for survives the death of the workers, at any place."""
    refuse = []
    receiver = receivers(answer=lambda r: 503 if refuse else 200)
    server.psql(TREE + "CREATE TABLE r_jp (LIKE r INCLUDING DEFAULTS); INSERT INTO r_jp VALUES (1, 'jp', 'x', 1);" + VIA_ROOT, db)
    webhook(server, db, receiver, options_=FAST)
    server.wait_for("p", db)
    steps = ["ALTER TABLE r ATTACH PARTITION r_jp FOR VALUES IN ('jp'); INSERT INTO r VALUES (2, 'jp', 'y', 1)",
             "TRUNCATE r_us; INSERT INTO r VALUES (3, 'us', 'z', 1)",
             "ALTER TABLE r DETACH PARTITION r_jp; INSERT INTO r_jp VALUES (3, 'jp', 'out', 1)",
             "BEGIN; CREATE TABLE r_fr PARTITION OF r FOR VALUES IN ('fr'); INSERT INTO r VALUES (4, 'fr', 'new', 1); COMMIT"]
    random.seed(11)
    for step in steps:
        refuse.append(True)
        server.psql(step, db)
        for _ in range(2):
            for pid in server.backends(random.choice(["etl apply", "etl writer", "etl sync"]), db):
                server.sql("SELECT pg_terminate_backend(%s)", (pid,), db)
            server.psql("INSERT INTO r SELECT max(id) + 1, 'eu', 'go on', 1 FROM r WHERE region = 'eu'", db)
        refuse.clear()
        server.wait_for("p", db, timeout=120)
        assert_equal(server, db, receiver.state(), ["public.r"])


class Forest:
    """Random changes of a partitioned table, its partitions and its columns; all that a user may do to it."""

    def __init__(self, connection, seed):
        self.c, self.r = connection, random.Random(seed)
        self.parts = {}  # region -> partition
        self.apart = []  # tables that were partitions, or may be, as (name, region)
        self.n = 0
        self.columns = 0
        self.run("CREATE SEQUENCE s START 100000", "CREATE TABLE f (id int, region text, v text, PRIMARY KEY (id, region)) PARTITION BY LIST (region)")
        for _ in range(3):
            self.made()

    def run(self, *commands):
        for command in commands:
            self.c.execute(command)

    def name(self):
        self.n += 1
        return f"f{self.n}"

    def region(self):
        return self.r.choice(sorted(self.parts)) if self.parts else None

    # --- partitions ---

    def made(self):
        name = self.name()
        if self.r.random() < 0.3:
            self.run(f"CREATE TABLE {name} PARTITION OF f FOR VALUES IN ('{name}') PARTITION BY RANGE (id)",
                     f"CREATE TABLE {name}_low PARTITION OF {name} FOR VALUES FROM (MINVALUE) TO (500)",
                     f"CREATE TABLE {name}_high PARTITION OF {name} FOR VALUES FROM (500) TO (MAXVALUE)")
        else:
            self.run(f"CREATE TABLE {name} PARTITION OF f FOR VALUES IN ('{name}')")
        self.parts[name] = name
        return name

    def alone(self):
        name = self.name()
        self.run(f"CREATE TABLE {name} (gone int, LIKE f)", f"ALTER TABLE {name} DROP gone")
        if self.r.random() < 0.7:
            self.run(f"INSERT INTO {name} (id, region, v) SELECT g, '{name}', 'alone' FROM generate_series(1, 20) g")
        self.apart.append((name, name))

    def attach(self):
        if not self.apart:
            return self.alone()
        name, region = self.apart.pop(self.r.randrange(len(self.apart)))
        self.run(f"ALTER TABLE f ATTACH PARTITION {name} FOR VALUES IN ('{region}')")
        self.parts[region] = name

    def detach(self):
        region = self.region()
        if region:
            name = self.parts.pop(region)
            self.run(f"ALTER TABLE f DETACH PARTITION {name}", f"INSERT INTO {name} (id, region, v) VALUES (-{self.n}, '{region}', 'apart')")
            self.n += 1
            self.apart.append((name, region))

    def detach_concurrently(self):
        region = self.region()
        if region:
            self.apart.append((self.parts[region], region))
            self.run(f"ALTER TABLE f DETACH PARTITION {self.parts.pop(region)} CONCURRENTLY")

    def drop(self):
        if self.region() and len(self.parts) > 2:
            self.run(f"DROP TABLE {self.parts.pop(self.region())}")

    def truncate(self):
        if self.region():
            self.run(f"TRUNCATE {self.parts[self.region()]}")

    def truncate_all(self):
        self.run("TRUNCATE f")

    # --- columns, identities ---

    def add_column(self):
        self.columns += 1
        self.run(f"ALTER TABLE f ADD COLUMN c{self.columns} " + self.r.choice(("int", "text DEFAULT 'd'", "timestamptz DEFAULT now()")))
        # what may be attached must have the same columns
        for name, _ in self.apart:
            self.run(f"DROP TABLE {name}")
        self.apart = []

    def drop_column(self):
        if self.columns:
            self.run(f"ALTER TABLE f DROP COLUMN c{self.columns}")
            self.columns -= 1
            for name, _ in self.apart:
                self.run(f"DROP TABLE {name}")
            self.apart = []

    def identity(self):
        leaf = self.r.choice([row[0] for row in self.c.execute(
            "SELECT relid::regclass::text FROM pg_partition_tree('f') WHERE isleaf AND level > 0").fetchall()] or [None])
        if leaf:
            self.run(f"ALTER TABLE {leaf} REPLICA IDENTITY {self.r.choice(('FULL', 'DEFAULT'))}")

    # --- rows ---

    def insert(self):
        if self.region():
            low = self.r.randrange(1000)
            self.run(f"INSERT INTO f (id, region, v) SELECT g, '{self.region()}', 'new' FROM generate_series({low}, {low + 15}) g ON CONFLICT DO NOTHING")

    def update(self):
        self.run(f"UPDATE f SET v = v || '.' WHERE id % 7 = {self.r.randrange(7)}")

    def move(self):
        if self.region():
            low = self.r.randrange(1000)
            self.run(f"UPDATE f SET region = '{self.region()}', id = nextval('s') WHERE id BETWEEN {low} AND {low + 10}")

    def delete(self):
        self.run(f"DELETE FROM f WHERE id % 11 = {self.r.randrange(11)}")

    def step(self):
        rows = [self.insert, self.insert, self.insert, self.update, self.move, self.delete]
        rare = [self.made, self.alone, self.attach, self.attach, self.detach, self.drop, self.truncate, self.truncate_all,
                self.add_column, self.drop_column, self.identity]
        if self.r.random() < 0.05:
            return self.detach_concurrently()
        self.c.execute("BEGIN")
        for _ in range(self.r.choice((1, 2, 3, 5))):
            saved = dict(self.parts), list(self.apart), self.columns
            undo = self.r.random() < 0.15
            self.c.execute("SAVEPOINT s")
            self.r.choice(rows if self.r.random() < 0.6 else rare)()
            self.c.execute("ROLLBACK TO s" if undo else "RELEASE s")
            if undo:
                self.parts, self.apart, self.columns = saved
        self.c.execute("COMMIT")


@pytest.mark.parametrize("seed", [1, 2, 3] + [pytest.param(s, marks=[pytest.mark.long, pytest.mark.timeout(1200)]) for s in range(4, 40)])
@pytest.mark.parametrize("publication", ["FOR TABLE f", "FOR ALL TABLES"])
def test_random_forest(server, db, receiver, seed, publication):
    """Whatever comes and goes, in whatever transactions, with workers that die: equal at the end."""
    with server.connect(db) as connection:
        forest = Forest(connection, seed)
        server.psql(f"CREATE PUBLICATION pub {publication} WITH (publish_via_partition_root)", db)
        webhook(server, db, receiver, options_=FAST)
        server.wait_for("p", db)
        for i in range(60):
            forest.step()
            if i % 15 == 7:
                for pid in server.backends(forest.r.choice(["etl apply", "etl writer", "etl sync"]), db):
                    server.sql("SELECT pg_terminate_backend(%s)", (pid,), db)
            if i % 20 == 19:
                # a receiver learns of the last change of columns with the next row
                forest.run(f"INSERT INTO f (id, region) VALUES ({i}, '{forest.made()}')")
                server.wait_for("p", db, timeout=120)
                tables = ["public.f"]
                if "ALL" in publication:
                    tables += [f"public.{name}" for name, _ in forest.apart]
                assert_equal(server, db, receiver.state(), tables)
