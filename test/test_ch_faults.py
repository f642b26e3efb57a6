"""What ClickHouse, its users and its network do to a pipeline, and what is left of it."""

import random

import pytest

from harness import rss_anon
from harness.clickhouse import exception, exception_in_body, exception_without_tag
from harness.clickhouse_equal import assert_current, assert_log
from harness.pipeline import FAST, clickhouse, drop, quoted
from harness.wait import wait_until

ENGINES = {"replacing_merge_tree": assert_current, "merge_tree": assert_log}


@pytest.fixture
def start(server, db, ch, lake):
    """start("t") makes table t (id, v) with rows, publication and pipeline."""
    def make(*tables, rows=20, options=None, **kwargs):
        for name in tables:
            server.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} SELECT g, 'x' FROM generate_series(1, {rows}) g", db=db)
        server.sql(f"CREATE PUBLICATION pub FOR TABLE {', '.join(tables)}", db=db)
        return clickhouse(server, db, ch, lake, options_={**FAST, **(options or {})}, **kwargs)

    return make


def parked(server, db, table, name="p"):
    return wait_until(lambda: (t := server.tables(name, db).get(table)) and t["state"] == "errored" and t["error"] and t,
                      30, f"{table} is parked")


def problem(server, db, text):
    return wait_until(lambda: text in (server.status("p", db)["problem"] or "") and server.status("p", db), 30, f"the problem is {text}")


def ours(ch, lake):
    return [name for name in ch.tables(lake) if name.startswith("_etl_")]


# -- several pipelines, one database ------------------------------------------------


def test_two_pipelines_share_a_database(server, db, ch, lake, start):
    """Each drops what is its own."""
    start("t")
    server.sql("CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'u'); CREATE PUBLICATION other FOR TABLE u", db=db)
    clickhouse(server, db, ch, lake, "q", "other", options_=FAST)
    server.wait_for("p", db)
    server.wait_for("q", db)
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 20, "gone")
    assert sorted(ch.tables(lake)) == ["public_u", "public_u_current"]
    server.sql("INSERT INTO u VALUES (2, 'u')", db=db)
    server.wait_for("q", db)
    assert_current(server, db, ch, lake, "public.u")


def test_two_pipelines_want_one_table(server, db, ch, lake, start):
    """The second is told before its start, parks it at run time, and has it under another name or after the first."""
    start("t")
    server.wait_for("p", db)
    clickhouse(server, db, ch, lake, "q", options_=FAST, start=False)
    found = server.sql("SELECT target, message, hint FROM etl.validate_pipeline('q') WHERE check_name = 'destination_table_exists' AND severity = 'error'", db=db)
    assert [f[:2] for f in found] == [("public.t", f'"{n}" exists at the destination, and is not this pipeline\'s') for n in ("public_t", "public_t_current")]
    assert all("destination_table" in f[2] for f in found)
    assert server.sql("SELECT * FROM etl.validate_pipeline('p') WHERE severity = 'error'", db=db) == []
    server.sql("SELECT etl.start_pipeline('q')", db=db)
    table = parked(server, db, "public.t", "q")
    assert "belongs to another table or pipeline" in table["error"] and "destination_table" in table["hint"], table
    server.sql("INSERT INTO t VALUES (100, 'a')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")

    server.sql("SELECT etl.alter_table('q', 't', '{\"destination_table\": \"mine\"}'); SELECT etl.retry_table('q')", db=db)
    assert server.sql("SELECT * FROM etl.validate_pipeline('q') WHERE severity = 'error'", db=db) == []
    server.wait_for("q", db)
    assert_current(server, db, ch, lake, "public.t", target="mine_current")
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 20, "gone")
    server.sql("SELECT etl.alter_table('q', 't', '{\"destination_table\": null}'); SELECT etl.resync_table('q', 't')", db=db)
    server.wait_for("q", db)
    assert_current(server, db, ch, lake, "public.t")
    assert sorted(ch.tables(lake)) == ["public_t", "public_t_current"]
    drop(server, db, "q")


def test_tables_of_the_publication_that_left_it_are_dropped_too(server, db, ch, lake, start):
    start("t", "u")
    server.wait_for("p", db)
    server.sql("ALTER PUBLICATION pub DROP TABLE u; INSERT INTO t VALUES (100, 'a')", db=db)
    server.wait_for("p", db)
    assert "public_u" in ch.tables(lake)
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 20, "gone")
    assert ch.tables(lake) == {}


# -- users at ClickHouse -------------------------------------------------------------


def test_a_column_of_a_users_own_does_no_harm(server, db, ch, lake, start):
    start("t")
    server.wait_for("p", db)
    ch.execute(f"ALTER TABLE {lake}.public_t ADD COLUMN mine String DEFAULT 'm'")
    server.sql("INSERT INTO t VALUES (100, 'a'); UPDATE t SET v = 'b' WHERE id = 3; TRUNCATE t; INSERT INTO t VALUES (1, 'c')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


@pytest.mark.parametrize("alter", ["MODIFY COLUMN v Nullable(Int32)", "RENAME COLUMN v TO w"])
def test_columns_altered_by_a_user_park_the_table(server, db, ch, lake, start, alter):
    start("t", "u")
    server.wait_for("p", db)
    ch.execute(f"ALTER TABLE {lake}.public_t DELETE WHERE 1", mutations_sync=2)
    ch.execute(f"ALTER TABLE {lake}.public_t {alter}", mutations_sync=2)
    server.sql("INSERT INTO t SELECT g, 'geheim' FROM generate_series(100, 200) g; INSERT INTO u VALUES (100, 'a')", db=db)
    table = parked(server, db, "public.t")
    assert "geheim" not in table["error"] and "retry_table" in table["hint"], table
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert_current(server, db, ch, lake, "public.u")
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])


def test_a_mark_that_a_user_took_away(server, db, ch, lake, start):
    """What has no mark is a stranger's, whatever it was before."""
    start("t")
    server.wait_for("p", db)
    ch.execute(f"ALTER TABLE {lake}.public_t MODIFY COMMENT 'mine now'")
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    assert "if_exists" in parked(server, db, "public.t")["hint"]
    assert ch.value(f"SELECT count() FROM {lake}.public_t") == 20
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 20, "gone")
    assert list(ch.tables(lake)) == ["public_t"]


def test_a_table_renamed_by_a_user(server, db, ch, lake, start):
    """It is known by its mark: a start finds it, and a new copy takes the right name."""
    start("t", "u")
    server.wait_for("p", db)
    ch.execute(f"RENAME TABLE {lake}.public_t TO {lake}.elsewhere")
    server.sql("INSERT INTO t VALUES (100, 'a')", db=db)
    server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    server.sql("SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])
    assert sorted(ch.tables(lake)) == ["public_t", "public_t_current", "public_u", "public_u_current"]


def test_a_view_over_our_tables_survives_a_resync(server, db, ch, lake, start):
    start("t")
    server.wait_for("p", db)
    ch.execute(f"CREATE VIEW {lake}.report AS SELECT count() AS c FROM {lake}.public_t_current")
    server.sql("SELECT etl.resync_table('p', 't'); INSERT INTO t VALUES (100, 'a')", db=db)
    server.wait_for("p", db)
    assert ch.value(f"SELECT c FROM {lake}.report") == 21


# -- names and options ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["la`ke'\\x", "with space; größe--%"])
def test_names_of_databases(server, db, ch, lake, start, name):
    name = lake[-4:] + name
    written = "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
    ch.execute(f"CREATE DATABASE {written}")
    try:
        server.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'); CREATE PUBLICATION pub FOR TABLE t", db=db)
        clickhouse(server, db, ch, name, options_=FAST)
        server.wait_for("p", db)
        server.sql("INSERT INTO t VALUES (2, 'b'); TRUNCATE t; INSERT INTO t VALUES (3, 'c')", db=db)
        server.wait_for("p", db)
        assert ch.query(f"SELECT id, v FROM {written}.public_t_current") == [(3, "c")]
    finally:
        ch.execute(f"DROP DATABASE {written}")


@pytest.mark.parametrize("name", ["_etl_sync_x", ""])
def test_names_that_no_table_may_have(server, db, ch, lake, start, name):
    start("t", start=False)
    with pytest.raises(Exception, match="destination_table"):
        server.sql("SELECT etl.alter_table('p', 't', %s::jsonb)", ('{"destination_table": "' + name + '"}',), db)


def test_a_name_that_is_too_long(server, db, ch, lake, start):
    start("t", "u", start=False)
    server.sql("SELECT etl.alter_table('p', 't', %s::jsonb)", ('{"destination_table": "' + "x" * 300 + '"}',), db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    assert "destination_table" in parked(server, db, "public.t")["hint"]
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert_current(server, db, ch, lake, "public.u")


@pytest.mark.parametrize("options", ['{"table_settings": "nosuch = 1"}', '{"table_settings": "index_granularity ="}', '{"partition_by": "nosuch"}',
                                     '{"partition_by": "id %"}', '{"table_settings": "index_granularity = 0"}'])
def test_options_that_the_engine_refuses(server, db, ch, lake, start, options):
    """The table's trouble, and the hint speaks of its options; nothing is left of it."""
    start("t", "u", start=False)
    server.sql("SELECT etl.alter_table('p', 't', %s::jsonb); SELECT etl.start_pipeline('p')".replace("%s", quoted(options)), db=db)
    table = parked(server, db, "public.t")
    assert "ClickHouse reports error" in table["error"] and "option" in table["hint"], table
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert_current(server, db, ch, lake, "public.u")
    server.sql("SELECT etl.alter_table('p', 't', '{\"table_settings\": null, \"partition_by\": null}'); SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])


# -- errors ---------------------------------------------------------------------------

PASS = [(159, "TIMEOUT_EXCEEDED", 408), (201, "QUOTA_EXCEEDED", 500), (202, "TOO_MANY_SIMULTANEOUS_QUERIES", 500), (210, "NETWORK_ERROR", 500),
        (243, "NOT_ENOUGH_SPACE", 500), (75, "CANNOT_WRITE_TO_FILE_DESCRIPTOR", 500), (173, "CANNOT_ALLOCATE_MEMORY", 500),
        (473, "DEADLOCK_AVOIDED", 500), (999, "KEEPER_EXCEPTION", 500), (745, "SERVER_OVERLOADED", 503), (439, "CANNOT_SCHEDULE_TASK", 503)]
REFUSE = [(164, "READONLY", 500), (452, "SETTING_CONSTRAINT_VIOLATION", 500), (512, "SET_NON_GRANTED_ROLE", 403), (511, "UNKNOWN_ROLE", 404),
          (497, "ACCESS_DENIED", 403), (291, "DATABASE_ACCESS_DENIED", 403), (195, "IP_ADDRESS_NOT_ALLOWED", 403)]


@pytest.mark.parametrize("code, name, status", PASS, ids=[c[1] for c in PASS])
def test_what_passes(server, db, ch, lake, start, code, name, status):
    """Whatever is asked for when it comes."""
    ch.proxy.plan(*[exception(code, name, status, contains=where, count=2)
                    for where in ("INSERT", "CREATE TABLE", "RENAME TABLE", "CREATE OR REPLACE VIEW", "SELECT name")])
    start("t", "u")
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])
    assert set(t["generation"] for t in server.tables("p", db).values()) == {1}
    assert ours(ch, lake) == []


@pytest.mark.parametrize("where", ["INSERT", "CREATE TABLE", "EXCHANGE"])
def test_what_is_refused_is_nobodys_row(server, db, ch, lake, start, where):
    start("t", "u")
    server.wait_for("p", db)
    for code, name, status in REFUSE:
        ch.proxy.plan(exception(code, name, status, contains=where, count=None))
        server.sql("SELECT etl.resync_table('p', 't'); INSERT INTO u SELECT max(id) + 1, 'a' FROM u", db=db)
        wait_until(lambda: f"error {code}" in (server.status("p", db)["last_error"] or ""), 30, "told")
        status = server.status("p", db)
        assert status["tables_parked"] == 0 and not status["healthy"], status
        ch.proxy.plan()
        server.wait_for("p", db)
        assert_current(server, db, ch, lake, ["public.t", "public.u"])
        assert ours(ch, lake) == []


def test_trouble_of_one_table_is_shown_as_long_as_it_lasts(server, db, ch, lake, start):
    """Another table's success does not end it."""
    start("t", "u")
    server.wait_for("p", db)
    ch.proxy.plan(exception(497, "ACCESS_DENIED", 403, contains=f"{lake}`.`public_t`", count=None),
                  exception(497, "ACCESS_DENIED", 403, contains=f"{lake}`.`public_u`", count=3))
    server.sql("INSERT INTO t VALUES (100, 'a'); INSERT INTO u VALUES (100, 'a')", db=db)
    wait_until(lambda: server.tables("p", db)["public.u"]["inserts"] == 1, 30, "the one goes on")
    for _ in range(3):
        server.sql("INSERT INTO u SELECT max(id) + 1, 'b' FROM u", db=db)
        before = server.tables("p", db)["public.u"]["inserts"]
        wait_until(lambda: server.tables("p", db)["public.u"]["inserts"] > before or before == 4, 30, "and on")
        status = server.status("p", db)
        assert not status["healthy"] and status["state"] == "retrying" and "497" in status["problem"], status
    ch.proxy.plan()
    wait_until(lambda: (s := server.status("p", db))["healthy"] and s["state"] == "replicating", 30, "healthy")
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])


@pytest.mark.parametrize("fault", [exception_in_body, exception_without_tag])
def test_an_exception_inside_an_answer_of_200(server, db, ch, lake, start, fault):
    """To anything: no success, and no data."""
    start("t", options={"engine": "merge_tree", "on_truncate": "apply"}, start=False)
    ch.proxy.plan(*[fault(241, "MEMORY_LIMIT_EXCEEDED", contains=where, count=2)
                    for where in ("SELECT version", "SELECT name", "SELECT tupleElement", "KILL QUERY", "CREATE TABLE", "RENAME TABLE", "EXCHANGE", "DROP TABLE")])
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    server.sql("INSERT INTO t SELECT g, 'y' FROM generate_series(100, 200) g", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.t")
    server.sql("TRUNCATE t; INSERT INTO t VALUES (1, 'z')", db=db)
    server.wait_for("p", db)
    assert ch.query(f"SELECT id, v FROM {lake}.public_t") == [(1, "z")]


@pytest.mark.parametrize("action", ["half", "garbage", "empty", "reset", "lost", "endless_headers"])
@pytest.mark.parametrize("apply", [False, True], ids=["before", "after"])
def test_answers_that_are_cut(server, db, ch, lake, start, action, apply):
    faults = [{"action": action, "contains": where, "count": 2, "apply": apply}
              for where in ("SELECT", "KILL", "CREATE", "RENAME", "EXCHANGE", "DROP", "INSERT")]
    ch.proxy.plan(*faults)
    start("t", "u")
    server.wait_for("p", db)
    ch.proxy.plan(*faults)
    server.sql("INSERT INTO t VALUES (100, 'a'); TRUNCATE u; INSERT INTO u VALUES (1, 'b'); SELECT etl.resync_table('p', 't')", db=db)
    server.wait_for("p", db)
    server.sql("UPDATE t SET v = 'c'; TRUNCATE u; INSERT INTO u VALUES (2, 'b')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])
    assert ours(ch, lake) == []


# -- what would be the same each time ----------------------------------------------------

DECIDED = [(57, "TABLE_ALREADY_EXISTS", 500, "CREATE TABLE"), (70, "CANNOT_CONVERT_TYPE", 500, "INSERT"), (386, "NO_COMMON_TYPE", 500, "CREATE TABLE"),
           (386, "NO_COMMON_TYPE", 500, "INSERT"), (359, "TABLE_SIZE_EXCEEDS_MAX_DROP_SIZE_LIMIT", 500, "CREATE TABLE"),
           (395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO", 500, "INSERT"), (478, "UNKNOWN_POLICY", 500, "CREATE TABLE")]


@pytest.mark.parametrize("code, name, status, where", DECIDED, ids=[f"{c[1]}-{c[3]}" for c in DECIDED])
def test_what_does_not_pass_is_not_tried_for_ever(server, db, ch, lake, start, code, name, status, where):
    """It parks its table; nothing of it holds up the others."""
    start("t", "u", start=False)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    name_of = "_etl_sync_" if where == "CREATE TABLE" else "public_t`"
    ch.proxy.plan(exception(code, name, status, contains=f"{where} {'INTO ' if where == 'INSERT' else ''}`{lake}`.`{name_of}", count=None))
    server.sql("SELECT etl.resync_table('p', 't')" if where == "CREATE TABLE" else "INSERT INTO t VALUES (100, 'a')", db=db)
    table = parked(server, db, "public.t")
    assert f"ClickHouse reports error {code}" in table["error"] and table["hint"], table
    server.sql("INSERT INTO u VALUES (100, 'a')", db=db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert_current(server, db, ch, lake, "public.u")
    ch.proxy.plan()
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])


TOASTED = "CREATE TABLE t (k text PRIMARY KEY, n int, big text); ALTER TABLE t ALTER big SET STORAGE EXTERNAL; CREATE TABLE u (id int PRIMARY KEY, v text)"
# the first of two new rows lacks a value that is nowhere but at ClickHouse
HOLE = "BEGIN; UPDATE t SET n = 1; UPDATE t SET big = 'short'; COMMIT"


@pytest.mark.parametrize("code, name", [(47, "UNKNOWN_IDENTIFIER"), (60, "UNKNOWN_TABLE"), (62, "SYNTAX_ERROR")])
def test_a_table_that_cannot_be_asked_is_parked(server, db, ch, lake, start, code, name):
    """For values that only ClickHouse has; what it says of the query has keys of rows, and is not shown."""
    server.sql(TOASTED + "; INSERT INTO t VALUES ('geheim', 0, repeat('b', 9000)); CREATE PUBLICATION pub FOR TABLE t, u", db=db)
    clickhouse(server, db, ch, lake, options_=FAST)
    server.wait_for("p", db)
    since = server.log_size()
    ch.proxy.plan(exception(code, name, 404, "Missing: 'geheim' (GEHEIM) in scope SELECT", contains="argMax", count=None))
    server.sql(HOLE, db=db)
    table = parked(server, db, "public.t")
    assert table["error"] == f"ClickHouse reports error {code} ({name})" and "geheim" not in table["hint"], table
    server.sql("INSERT INTO u VALUES (1, 'a')", db=db)
    assert server.value("SELECT etl.wait_for('p', allow_parked => true)", db=db)
    assert_current(server, db, ch, lake, "public.u")
    assert "geheim" not in server.log(since) and server.value("SELECT count(*) FROM etl.error_log WHERE message ILIKE '%%geheim%%'", db=db) == 0
    ch.proxy.plan()
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_a_table_that_is_gone_when_it_is_asked(server, db, ch, lake, start):
    server.sql(TOASTED + "; INSERT INTO t VALUES ('k', 0, repeat('b', 9000)); INSERT INTO u VALUES (1, 'a'); CREATE PUBLICATION pub FOR TABLE t, u", db=db)
    clickhouse(server, db, ch, lake, options_=FAST)
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES ('l', 0, 'x')", db=db)  # the writer knows the place
    server.wait_for("p", db)
    ch.execute(f"DROP TABLE {lake}.public_t")
    server.sql(HOLE, db=db)
    table = parked(server, db, "public.t")
    assert table["sqlstate"] == "42P01" and "retry_table" in table["hint"], table
    server.sql("SELECT etl.retry_table('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_on_error_stop_stops_where_a_table_cannot_be_asked(server, db, ch, lake, start):
    server.sql(TOASTED + "; INSERT INTO t VALUES ('k', 0, repeat('b', 9000)); CREATE PUBLICATION pub FOR TABLE t", db=db)
    clickhouse(server, db, ch, lake, options_={**FAST, "on_error": "stop"})
    server.wait_for("p", db)
    ch.proxy.plan(exception(47, "UNKNOWN_IDENTIFIER", 404, contains="argMax", count=None))
    server.sql(HOLE, db=db)
    wait_until(lambda: server.status("p", db)["state"] == "failed", 30, "failed")
    ch.proxy.plan()
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.t")


def test_many_rows_with_long_keys_are_asked_for(server, db, ch, lake, start):
    """The question is longer than what ClickHouse takes by itself (256 kB)."""
    server.sql(TOASTED + "; INSERT INTO t SELECT g || repeat(md5(g::text), 1000), 0, repeat('b', 9000) FROM generate_series(1, 64) g;"
               "CREATE PUBLICATION pub FOR TABLE t", db=db)
    clickhouse(server, db, ch, lake, options_={**FAST, "max_batch_delay": "1s"})
    server.wait_for("p", db)
    server.sql("BEGIN; UPDATE t SET n = 1; UPDATE t SET big = 'short' WHERE n % 2 = 1; COMMIT", db=db)
    server.wait_for("p", db)
    assert max(int(r.headers["content-length"]) for r in ch.proxy.requests() if not r.query) > 256 * 1024
    assert_current(server, db, ch, lake, "public.t")


@pytest.mark.parametrize("before", ["x", "xx"])
def test_a_long_text_is_cut_between_characters(server, db, ch, lake, start, before):
    ch.proxy.plan(exception(36, "BAD_ARGUMENTS", 400, before + "ü" * 400, contains="CREATE TABLE", count=None))
    start("t")
    error = parked(server, db, "public.t")["error"]
    told = "ClickHouse reports error 36: " + before
    assert error.startswith(told) and set(error[len(told):]) == {"ü"} and len(error) > 150, error


def test_answers_leave_nothing_in_memory(server, db, ch, lake, start):
    """Newer servers send a word with each answer, which is looked for in the body."""
    start("t", options={"max_batch_events": 1, "max_batch_delay": "0"})
    server.wait_for("p", db)
    writer, = server.backends("etl writer", db)
    ch.proxy.plan({"action": "status", "status": 200, "headers": {"X-ClickHouse-Exception-Tag": "a" * 8000}, "contains": "INSERT", "count": None})
    sizes = []
    for first in (1000, 2000):
        server.sql("INSERT INTO t SELECT g, 'a' FROM generate_series(%s::int, %s::int) g", (first, first + 799), db)
        server.wait_for("p", db)
        sizes.append(rss_anon(writer))
    assert sizes[1] - sizes[0] < 2 * 1024 * 1024, sizes


# -- secrets --------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["INSERT", "EXCHANGE"])
def test_a_password_that_is_replaced_in_its_file(server, db, ch, lake, start, tmp_path, when):
    """It is read again when ClickHouse refuses the old one."""
    def user(password):
        ch.set_users(default={}, w={"password": password, "grants": [f"SELECT, INSERT, ALTER, CREATE TABLE, CREATE VIEW, DROP ON {lake}.*"]})

    for folder in [tmp_path, *list(tmp_path.parents)[:-2]]:
        folder.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    secret.chmod(0o644)
    try:
        user("first")
        start("t", mapping={"user": "w", "password_file": str(secret)})
        server.wait_for("p", db)
        writer = server.backends("etl writer", db)
        user("second")
        server.sql("INSERT INTO t VALUES (100, 'a')" if when == "INSERT" else "TRUNCATE t", db=db)
        problem(server, db, "516")
        secret.write_text("second\n")
        server.wait_for("p", db)
        assert_current(server, db, ch, lake, "public.t")
        assert server.backends("etl writer", db) == writer
    finally:
        ch.set_users(default={})


# -- the event log ---------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["SharedMergeTree", "ReplicatedMergeTree"])
def test_a_log_of_another_engine_has_no_change_twice(server, db, ch, lake, start, engine):
    """ClickHouse Cloud, Replicated databases: the table that is made is another than was asked for."""
    start("t", options={"engine": "merge_tree"})
    server.wait_for("p", db)
    told = ["public_t", engine, ch.tables(lake)["public_t"]]
    ch.proxy.plan({"action": "status", "status": 200, "contains": "SELECT name, engine", "count": None, "body": "".join(chr(len(t)) + t for t in told)},
                  {"action": "hang", "apply": True, "contains": "INSERT INTO"})
    server.sql("INSERT INTO t VALUES (100, 'a')", db=db)
    wait_until(lambda: ch.value(f"SELECT count() FROM {lake}.public_t") == 21, 20, "it is there, and nobody knows")
    writer, = server.backends("etl writer", db)
    server.value("SELECT pg_terminate_backend(%s)", (writer,))
    server.sql("INSERT INTO t VALUES (101, 'b')", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.t")


# -- slow, or gone in the middle ---------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_engine_dies_in_the_middle_of_a_copy(server, db, ch, lake, start, engine, when):
    ch.hold("INSERT", when=when, skip=1)
    start("t", "u", rows=20000, options={"engine": engine, "max_batch_size": "64kB"})
    ch.wait_held()
    ch.kill9()
    server.sql("INSERT INTO t VALUES (0, 'a')", db=db)
    ch.start()
    server.wait_for("p", db)
    ENGINES[engine](server, db, ch, lake, ["public.t", "public.u"])
    assert ours(ch, lake) == []


def test_a_table_whose_statements_hang_keeps_no_other(server, db, ch, lake, start):
    """TRUNCATE of one table waits for a lock at ClickHouse; another's rows go on."""
    start("t", "u", request_timeout="500ms")
    server.wait_for("p", db)
    ch.hold("CREATE TABLE", count=1)
    server.sql("TRUNCATE t; INSERT INTO t VALUES (1, 'after')", db=db)
    ch.wait_held()
    server.sql("INSERT INTO u VALUES (100, 'a')", db=db)
    wait_until(lambda: server.tables("p", db)["public.u"]["inserts"] == 1, 30, "the other goes on")
    wait_until(lambda: "still works on" in (server.status("p", db)["last_error"] or ""), 10, "it is waited for")
    assert len(ch.statements("CREATE TABLE")) == 2 or len([r for r in ch.running() if "CREATE" in r["query"]]) == 1
    ch.release()
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_late_insert_changes_nothing(server, db, ch, lake, start, engine):
    """What was given up, and sent again, arrives when its row has changed or is gone."""
    start("t", options={"engine": engine})
    server.wait_for("p", db)
    ch.proxy.plan({"action": "later", "contains": "INSERT"})
    server.sql("INSERT INTO t VALUES (100, 'late')", db=db)
    server.wait_for("p", db)
    server.sql("DELETE FROM t WHERE id = 100" if engine == "replacing_merge_tree" else "UPDATE t SET v = 'b' WHERE id = 100", db=db)
    server.wait_for("p", db)
    assert ch.proxy.release() == [200]
    ENGINES[engine](server, db, ch, lake, "public.t")


# -- the end -------------------------------------------------------------------------------


def test_drop_pipeline_while_clickhouse_is_down(server, db, ch, lake, start):
    """It waits, says so, and is done when it is up; or goes without the destination."""
    start("t")
    server.wait_for("p", db)
    ch.proxy.plan({"action": "reset", "count": None})
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: (s := server.status("p", db))["state"] == "dropping" and s["last_error"] and s["next_retry_time"], 20, "dropping")
    ch.proxy.plan()
    wait_until(lambda: server.status("p", db) is None, 30, "gone")
    assert ch.tables(lake) == {}


def test_drop_pipeline_by_force_while_clickhouse_is_down(server, db, ch, lake, start):
    start("t")
    server.wait_for("p", db)
    ch.proxy.plan({"action": "reset", "count": None})
    server.sql("SELECT etl.drop_pipeline('p', drop_tables => true)", db=db)
    wait_until(lambda: server.status("p", db)["last_error"], 20, "trouble")
    server.sql("SELECT etl.drop_pipeline('p', force => true)", db=db)
    wait_until(lambda: server.status("p", db) is None, 10, "gone")
    wait_until(lambda: server.value("SELECT count(*) FROM pg_replication_slots WHERE database = %s", (db,)) == 0, 10, "no slot")
    assert sorted(ch.tables(lake)) == ["public_t", "public_t_current"]


def test_any_statement_may_fail_anywhere(server, db, ch, lake, start):
    """Random faults before and after any statement, while tables are emptied, copied again, changed."""
    seed = int(__import__("os").environ.get("ETL_SEED") or random.randrange(10 ** 6))
    print("seed", seed)
    rng = random.Random(seed)
    start("t", "u")
    server.wait_for("p", db)
    for _ in range(12):
        ch.proxy.plan(*[{"action": rng.choice(["lost", "reset", "half", "status"]), "contains": rng.choice(["CREATE", "EXCHANGE", "DROP", "RENAME", "INSERT", "SELECT", "KILL"]),
                         "skip": rng.randrange(3), "apply": rng.random() < 0.5, "status": rng.choice([500, 503, 502])} for _ in range(4)])
        for _ in range(3):
            table = rng.choice("tu")
            server.sql(rng.choice(["TRUNCATE {0}", "INSERT INTO {0} SELECT g, 'n' FROM generate_series(1, 30) g ON CONFLICT (id) DO UPDATE SET v = {0}.v || 'x'",
                                   "DELETE FROM {0} WHERE id % 3 = 0", "SELECT etl.resync_table('p', '{0}')",
                                   "TRUNCATE t, u; INSERT INTO {0} VALUES (1, 'after')"]).format(table), db=db)
    ch.proxy.plan()
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, ["public.t", "public.u"])
    assert ours(ch, lake) == [] and server.status("p", db)["tables_parked"] == 0
