"""pg_dump carries definitions and nothing that runs."""

import pytest
from harness import wait_until


def dump(server, db, *options):
    return server._run("pg_dump", "-h", server.base, "-p", server.port, "-U", "postgres", *options, db).stdout


@pytest.fixture
def target(server):
    server.sql("CREATE DATABASE dump_target TEMPLATE template0")
    yield "dump_target"
    server.close("dump_target")
    server.sql("DROP DATABASE dump_target WITH (FORCE)")


def make(server, db):
    server.sql("CREATE TABLE t (id int PRIMARY KEY, a text)", db=db)
    server.sql("INSERT INTO t SELECT g, g FROM generate_series(1, 100) g", db=db)
    server.sql("CREATE PUBLICATION pub FOR TABLE t", db=db)
    server.sql("CREATE SERVER dest FOREIGN DATA WRAPPER etl_null OPTIONS (max_batch_events '50')", db=db)
    server.sql("SELECT etl.create_pipeline('gone', 'pub', 'dest')", db=db)
    server.sql("SELECT etl.create_pipeline('p', 'pub', 'dest', '{\"max_batch_delay\": \"50ms\"}')", db=db)
    server.sql("SELECT etl.alter_table('p', 't', '{\"on_error\": \"stop\"}')", db=db)
    server.sql("SELECT etl.drop_pipeline('gone')", db=db)
    wait_until(lambda: server.value("SELECT count(*) FROM etl.status", db=db) == 1, 30, "a dropped pipeline is gone")


@pytest.mark.parametrize("options", [(), ("--inserts",)], ids=["copy", "inserts"])
def test_a_restored_database_has_its_pipelines_and_runs_none(server, db, target, options):
    make(server, db)
    server.sql("SELECT etl.start_pipeline('p')", db=db)
    assert server.value("SELECT etl.wait_for('p')", db=db)
    text = dump(server, db, *options)
    for table in ("pipeline_intent", "pipeline_state", "table_state", "table_intent", "rule_history",
                  "schema_history", "error_entry", "destination_column", "column_state", "local_schema"):
        assert f"etl.{table} " not in text
    server.psql(text, target)

    definition = "SELECT id, name, owner::text, publication, server, options FROM etl.pipeline"
    assert server.sql(definition, db=target) == server.sql(definition, db=db)
    options = "SELECT * FROM etl.table_option"
    assert server.sql(options, db=target) == server.sql(options, db=db)
    assert server.sql("SELECT enabled, state, slot_name FROM etl.pipeline_status", db=target) == [(False, "stopped", None)]
    # IDs go on behind the restored ones
    assert server.value("SELECT etl.create_pipeline('next', 'pub', 'dest')", db=target) > \
        server.value("SELECT max(id) FROM etl.pipeline WHERE name <> 'next'", db=target)

    # and it can be started: a pipeline of its own
    server.sql("SELECT etl.start_pipeline('p')", db=target)
    assert server.value("SELECT etl.wait_for('p')", db=target)
    assert server.value("SELECT rows_copied FROM etl.table_status", db=target) == 100
    assert server.value("SELECT count(DISTINCT slot_name) FROM pg_replication_slots WHERE plugin = 'etl' AND NOT temporary"
                        " AND database IN (%s, %s)", (db, target)) == 2
    for name in (db, target):
        server.sql("SELECT etl.drop_pipeline('p')", db=name)
        wait_until(lambda: not server.value("SELECT count(*) FROM etl.status WHERE pipeline = 'p'", db=name), 30,
                   "the pipeline is gone")


def test_a_pipeline_of_a_role_that_is_gone_is_not_dumped(server, db):
    make(server, db)
    server.sql("UPDATE etl.pipeline SET owner = 4294967294::oid::regrole", db=db)
    text = dump(server, db)
    assert "max_batch_delay" not in text and "4294967294" not in text
