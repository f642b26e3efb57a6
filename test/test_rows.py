"""Rows: images under each replica identity, values out of line, keys, transactions, sizes.

Every test compares values at both ends: tables rebuilt from a webhook's
events, and views or logs of ClickHouse's engine.
"""

import pytest
from harness import assert_equal
from harness.pipeline import drop, webhook

FAST = {"retry_delay": "50ms", "max_retry_delay": "200ms", "max_batch_delay": "0"}


def changes(receiver, *kinds):
    """Row events of the stream, in order."""
    return [e for e in receiver.events() if e["event"] in (kinds or ("insert", "update", "delete"))
            and e["phase"] == "ongoing_replication"]


@pytest.fixture
def follow(server, db, receiver):
    """follow(sql): make what it says, then a pipeline; returns psql of the database."""
    def make(sql, publish="t", **options):
        server.psql(f"{sql}; CREATE PUBLICATION pub FOR TABLE {publish}", db)
        webhook(server, db, receiver, options_={**FAST, **options})
        server.wait_for("p", db)
        return lambda text: server.psql(text, db)

    yield make
    if server.status("p", db):
        drop(server, db)


# --- values out of line ---


BIG = ("CREATE TABLE t (id int PRIMARY KEY, n int, big text, j jsonb, b bytea);"
       "ALTER TABLE t ALTER big SET STORAGE external, ALTER b SET STORAGE external;")


def test_r01_an_unchanged_value_is_read_from_the_live_row(server, db, receiver, follow):
    """Nothing of the row is on its way, and the receiver cannot be asked: the source has it."""
    run = follow(BIG + "INSERT INTO t SELECT i, 0, repeat('x', 20000) || i, jsonb_build_object('k', repeat('y', 20000)),"
                       "decode(repeat('ab', 10000), 'hex') FROM generate_series(1, 3) i")
    run("UPDATE t SET n = 1 WHERE id = 1")
    server.wait_for("p", db)
    run("UPDATE t SET n = n + 1 WHERE id < 3; UPDATE t SET n = n + 1")
    server.wait_for("p", db)
    assert all(e["updated_table_row_kind"] == "full" and e["missing_columns"] == [] for e in changes(receiver, "update"))
    assert_equal(server, db, receiver.state(), ["public.t"])
