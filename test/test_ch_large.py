"""Many tables, wide rows, TLS: ClickHouse at its edges."""

import time

import pytest

from harness.clickhouse import ClickHouse
from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import FAST, clickhouse
from harness.tls import Authority
from harness.wait import wait_until


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [64, pytest.param(200, marks=pytest.mark.long)])
def test_a_large_row_by_copy_and_stream(server, db, ch, lake, start, size):
    """In MB; a value that is left alone comes from the live row."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE external;"
                f"INSERT INTO t SELECT 1, 0, repeat(md5('x'), {size << 15})", db)
    start("t")
    server.wait_for("p", db, timeout=400)
    server.sql(f"INSERT INTO t SELECT 2, 0, repeat(md5('y'), {size << 15}); UPDATE t SET n = 1", db=db)
    server.wait_for("p", db, timeout=400)
    there = ch.query(f"SELECT id, n, length(big), lower(hex(MD5(big))) FROM {lake}.public_t_current ORDER BY id")
    assert there == server.sql("SELECT id, n, length(big), md5(big) FROM t ORDER BY id", db=db)


def test_two_hundred_small_tables_at_once(server, db, ch, lake):
    """Copied, changed in one transaction, emptied, dropped: a fraction of a second each."""
    names = [f"small_{i}" for i in range(200)]
    server.psql("SELECT format('CREATE TABLE small_%s (id int PRIMARY KEY, v text)', g) FROM generate_series(0, 199) g \\gexec\n"
                "SELECT format('INSERT INTO small_%s SELECT i, ''r'' || i FROM generate_series(1, %s) i', g, g % 7) FROM generate_series(0, 199) g \\gexec\n"
                "CREATE PUBLICATION pub FOR ALL TABLES;", db)
    start = time.monotonic()
    clickhouse(server, db, ch, lake, options_=FAST)
    server.wait_for("p", db, timeout=300)
    copied = time.monotonic() - start
    server.psql("DO $$ BEGIN FOR g IN 0..199 LOOP EXECUTE format('INSERT INTO small_%s VALUES (100, ''new'')', g);"
                " EXECUTE format('UPDATE small_%s SET v = v || ''x''', g); END LOOP; END $$;", db)
    server.wait_for("p", db, timeout=120)
    changed = time.monotonic() - start - copied
    print(f"200 tables copied in {copied:.1f} s, changed in {changed:.1f} s")
    assert_current(server, db, ch, lake, [f"public.{n}" for n in names])
    assert len(ch.tables(lake)) == 400
    states = [t["state"] for t in server.tables("p", db).values() if t["state"] != "excluded"]
    assert states == ["ready"] * 200
    assert copied < 120 and changed < 60
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 60, "gone")
    assert ch.tables(lake) == {}


@pytest.mark.parametrize("engine", ["replacing_merge_tree", "merge_tree"])
def test_wide_rows(server, db, ch, lake, engine):
    """Many columns, and values of many megabytes, beside narrow rows."""
    columns = ", ".join(f"c{i} {('int', 'text', 'numeric(10,2)', 'bool')[i % 4]}" for i in range(1500))
    server.sql(f"CREATE TABLE broad (id int PRIMARY KEY, {columns});"
               "CREATE TABLE heavy (id int PRIMARY KEY, n int, v text, b bytea);"
               "ALTER TABLE heavy REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR TABLE broad, heavy;"
               "INSERT INTO broad (id, c0, c1, c1499) SELECT g, g, 'x', true FROM generate_series(1, 50) g;"
               "INSERT INTO heavy SELECT 1, 1, repeat('v', 20000000), NULL;"
               "INSERT INTO heavy SELECT 100 + g, g, 'narrow', '\\x00ff' FROM generate_series(1, 1000) g", db=db)
    clickhouse(server, db, ch, lake, options_={**FAST, "engine": engine})
    server.wait_for("p", db, timeout=120)
    server.sql("UPDATE broad SET c1 = c1 || 'y', c1498 = 1.25; DELETE FROM broad WHERE id % 3 = 0;"
               "UPDATE heavy SET n = n + 1 WHERE id IN (1, 101); INSERT INTO heavy SELECT 2, 2, 'w', convert_to(repeat('b', 30000000), 'UTF8')", db=db)
    server.wait_for("p", db, timeout=120)
    (assert_log if engine == "merge_tree" else assert_current)(server, db, ch, lake, "public.broad")
    view = "public_heavy_current" if engine == "replacing_merge_tree" else "public_heavy"
    tail = "" if engine == "replacing_merge_tree" else "WHERE (id, (cdc_lsn, cdc_ordinal)) IN (SELECT id, max((cdc_lsn, cdc_ordinal)) FROM {0}.{1} GROUP BY id)".format(lake, view)
    there = ch.query(f"SELECT id, n, length(v), length(b), length(replaceAll(v, substring(v, 1, 1), '')) = 0 OR id > 100 FROM {lake}.{view} {tail} ORDER BY id LIMIT 4")
    assert there == [(1, 2, 20000000, None, 1), (2, 2, 1, 30000000, 1), (101, 2, 6, 2, 1), (102, 2, 6, 2, 1)]
    assert ch.value(f"SELECT uniqExact(id) FROM {lake}.{view}") == 1002


def test_tls_with_an_authority_of_ones_own(server, db, tmp_path):
    """Refused without it, and without its name; with it everything goes through TLS."""
    authority = Authority(tmp_path / "tls")
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    with ClickHouse(authority=authority) as ch:
        ch.create_database("lake")
        server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'); CREATE PUBLICATION pub FOR TABLE t", db=db)
        assert ch.url.startswith("https://")
        clickhouse(server, db, ch, "lake", options_=FAST)
        wait_until(lambda: "certificate" in (server.status("p", db)["last_error"] or "").lower(), 30, "refused")
        assert ch.tables("lake") == {}
        server.sql(f"ALTER SERVER s_p OPTIONS (ADD ca_file '{authority.ca}')", db=db)
        server.wait_for("p", db)
        server.sql("INSERT INTO t VALUES (2, 'b'); TRUNCATE t; INSERT INTO t VALUES (3, 'c')", db=db)
        server.wait_for("p", db)
        assert_current(server, db, ch, "lake", "public.t")
