"""Tables at ClickHouse are equal to the source's, value by value."""

import uuid

import pytest

pytest.importorskip("chdb")

from harness.clickhouse import ClickHouse, exception  # noqa: E402
from harness.clickhouse_equal import assert_current, assert_log  # noqa: E402
from harness.pipeline import clickhouse  # noqa: E402
from harness.wait import wait_until  # noqa: E402

MIXED = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE mixed (
  id bigint PRIMARY KEY, flag bool, small int2, n int4 NOT NULL, big int8, r float4, d float8,
  price numeric(12,2), wide numeric(60,20), free numeric, money_ money, name text NOT NULL, code varchar(20), padded char(5),
  raw bytea, born date, at timestamp, tz timestamptz, t time, span interval, uid uuid, m mood, need mood NOT NULL DEFAULT 'ok',
  doc json, docb jsonb, o oid, address inet, list int[], "Odd `na\\me'" text);
INSERT INTO mixed
SELECT g, g % 3 = 0, g, g, g * 10000000000, g / 3.0, g / 7.0, g / 3.0, g / 9.0, g / 11.0, (g / 4.0)::numeric::money, 'row ' || g, 'c' || g, 'p',
       decode(md5(g::text), 'hex'), date '1950-01-01' + g, timestamp '1960-01-01' + g * interval '1 hour',
       timestamptz '2020-01-01' + g * interval '1 second', time '01:02:03' + g * interval '1 second', g * interval '1 hour',
       md5(g::text)::uuid, (ARRAY['sad', 'ok', 'happy', NULL])[1 + g % 4]::mood, 'sad', json_build_object('a', g), jsonb_build_object('a', g),
       g, '10.0.0.1', ARRAY[g, NULL], 'é' || g
  FROM generate_series(1, 500) g;
INSERT INTO mixed (id, n, name) VALUES (-1, 0, '');
"""


@pytest.fixture(scope="module")
def ch():
    with ClickHouse() as made:
        yield made


@pytest.fixture
def lake(ch):
    """A database of the test's own at ClickHouse."""
    name = "lake_" + uuid.uuid4().hex[:8]
    ch.create_database(name)
    yield name
    ch.proxy.plan()
    ch.release()
    ch.execute(f"DROP DATABASE {name}")


FAST = {"max_batch_delay": "20ms", "retry_delay": "50ms", "max_retry_delay": "500ms", "auth_retry_delay": "200ms"}


@pytest.fixture
def start(server, db, ch, lake):
    """start("t, u", engine=...) makes publication and pipeline."""
    def make(tables, options=None, **kwargs):
        server.sql(f"CREATE PUBLICATION pub FOR TABLE {tables}", db=db)
        return clickhouse(server, db, ch, lake, options_={**FAST, **(options or {})}, **kwargs)

    return make


def test_copy_and_stream_are_equal_by_value(server, db, ch, lake, start):
    server.psql(MIXED, db)
    start("mixed")
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.mixed")
    server.sql("INSERT INTO mixed SELECT id + 1000, flag, small, n, big, r, d, price, wide, free, money_, name, code, padded, raw, born,"
               " at, tz, t, span, uid, m, need, doc, docb, o, address, list, name FROM mixed WHERE id BETWEEN 10 AND 60;"
               "UPDATE mixed SET n = n + 1, price = NULL, name = name || 'x' WHERE id % 5 = 0;"
               "DELETE FROM mixed WHERE id % 7 = 0; UPDATE mixed SET id = id + 5000 WHERE id % 11 = 0", db=db)
    server.wait_for("p", db)
    assert_current(server, db, ch, lake, "public.mixed")


def test_the_event_log_has_every_change(server, db, ch, lake, start):
    server.psql(MIXED, db)
    start("mixed", {"engine": "merge_tree"})
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.mixed")
    server.sql("INSERT INTO mixed (id, n, name) SELECT g, g, 'new' FROM generate_series(2000, 2100) g;"
               "UPDATE mixed SET n = n + 1, price = NULL, name = name || 'x' WHERE id % 5 = 0;"
               "DELETE FROM mixed WHERE id % 7 = 0; UPDATE mixed SET id = id + 5000 WHERE id % 11 = 0", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.mixed")
    server.sql("TRUNCATE mixed; INSERT INTO mixed (id, n, name) VALUES (1, 1, 'after')", db=db)
    server.wait_for("p", db)
    assert_log(server, db, ch, lake, "public.mixed")
    assert ch.value(f"SELECT count() FROM {lake}.public_mixed WHERE cdc_operation = 'TRUNCATE'") == 1
