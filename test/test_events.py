"""The events of the webhook destination: every kind, every member, every wrapping."""

import json
from datetime import datetime

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from harness import Receiver, assert_equal, wait_until
from harness.pipeline import drop, webhook
from standardwebhooks import Webhook, WebhookVerificationError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KINDS = {"begin", "insert", "update", "delete", "truncate", "commit", "relation", "copy_begin", "copy_end"}

COMMON = ["event", "id", "source", "pipeline", "epoch", "phase", "commit_lsn", "tx_ordinal", "sequence_key",
          "timestamp", "xid"]
MEMBERS = {
    "begin": COMMON,
    "insert": COMMON + ["table", "key", "table_row", "missing_columns"],
    "copied": COMMON + ["table", "key", "table_row", "missing_columns", "copy"],
    "update": COMMON + ["table", "key", "updated_table_row", "updated_table_row_kind", "missing_columns",
                        "old_table_row", "old_table_row_kind"],
    "delete": COMMON + ["table", "key", "old_table_row", "old_table_row_kind"],
    "truncate": COMMON + ["options", "truncated_tables"],
    "commit": COMMON + ["flags", "end_lsn"],
    "relation": COMMON + ["table", "replicated_table_schema", "changes"],
    "copy_begin": COMMON + ["table", "copy", "reason"],
    "copy_end": COMMON + ["table", "copy", "rows"],
}
TABLE = ["oid", "schema", "name", "generation", "version"]
COLUMN = ["attnum", "name", "type", "type_oid", "typmod", "nullable", "default", "generated", "json"]
SCHEMA = ["lsn", "replica_identity", "identity_columns", "primary_key", "columns"]

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, note text, flag bool, total numeric(12,2) NOT NULL DEFAULT 0, body text);
ALTER TABLE orders DROP COLUMN flag;
ALTER TABLE orders ALTER body SET STORAGE EXTERNAL;
CREATE TABLE items (order_id bigint REFERENCES orders, line int, what text, PRIMARY KEY (order_id, line));
CREATE TABLE whole (a int, b text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE whole_key (a int PRIMARY KEY, b text);
ALTER TABLE whole_key REPLICA IDENTITY FULL;
INSERT INTO orders VALUES (1, NULL, 12.30, 'long text'), (9, 'copied', 0, repeat('x', 20000));
INSERT INTO whole VALUES (1, 'one');
CREATE PUBLICATION pub FOR TABLE orders, items, whole, whole_key;
"""
CHANGES = [
    "INSERT INTO orders VALUES (2, 'a', 5, 'short')",
    "UPDATE orders SET note = 'b' WHERE id = 1",
    "UPDATE orders SET id = 10, note = 'moved' WHERE id = 9",
    "DELETE FROM orders WHERE id = 2",
    "UPDATE whole SET b = 'uno'",
    "DELETE FROM whole",
    "INSERT INTO whole_key VALUES (7, 'seven')",
    "UPDATE whole_key SET b = 'sept'",
    "INSERT INTO items VALUES (1, 1, 'thing')",
    "UPDATE orders SET body = 'another' WHERE id = 10",
]


class Story:
    """One run through everything, kept for the tests below."""

    def __init__(self, server, db, receiver, wrapping):
        self.server, self.db, self.receiver, self.wrapping = server, db, receiver, wrapping
        server.psql(TABLES, db)
        self.started = datetime.now().astimezone()
        self.id = webhook(server, db, receiver, "orders", mapping={"secret": SECRET}, format=wrapping)
        server.wait_for("orders", db)
        self.copied_lsn = server.value("SELECT pg_current_wal_lsn()", db=db)
        with server.connect(db, autocommit=False) as c:
            self.xid = c.execute("SELECT pg_current_xact_id()::text::int").fetchone()[0]
            for change in CHANGES:
                c.execute(change)
            c.commit()
            self.committed = c.execute(
                "SELECT pg_xact_commit_timestamp(%s::text::xid)", (self.xid,)).fetchone()[0]
        server.wait_for("orders", db)
        self.before_truncate = receiver.state()
        self.rows_before = receiver.events()
        server.sql("TRUNCATE orders CASCADE", db=db)
        server.wait_for("orders", db)
        self.events = receiver.events()
        self.source = f"/etl/{server.value('SELECT system_identifier FROM pg_control_system()')}/" \
            f"{server.value('SELECT oid FROM pg_database WHERE datname = %s', (db,))}/{self.id}"

    def oid(self, table):
        return self.server.value("SELECT %s::regclass::oid::int", (table,), self.db)

    def of(self, kind, table=None, phase=None):
        return [e for e in self.events if e["event"] == kind
                and (table is None or e["table"]["name"] == table)
                and (phase is None or e["phase"] == phase)]

    def transaction(self):
        """The events of the transaction of CHANGES, without metadata."""
        return [e for e in self.events if e["xid"] == self.xid]


@pytest.fixture(scope="module", params=["plain", "ndjson", "cloudevents"])
def story(server, request):
    db = f"events_{request.param}"
    server.create_database(db)
    receiver = Receiver()
    yield Story(server, db, receiver, request.param)
    drop(server, db, "orders")
    server.drop_database(db)
    receiver.close()


def test_every_kind_is_seen(story):
    assert {e["event"] for e in story.events} == KINDS


def test_members_in_order(story):
    for event in story.events:
        kind = "copied" if event["phase"] == "initial_sync" and event["event"] == "insert" else event["event"]
        assert list(event) == MEMBERS[kind], kind
        for table in [event["table"]] if "table" in event else event.get("truncated_tables", []):
            assert list(table) == TABLE


def test_source_epoch_and_pipeline(story):
    for event in story.events:
        assert event["source"] == story.source
        assert event["pipeline"] == "orders"
        assert event["epoch"] == 0


def test_ids_and_sequence(story):
    for event in story.events:
        kind = event["event"]
        if kind == "relation":
            t = event["table"]
            assert event["id"] == f"0/relation/{t['oid']}/{t['generation']}/{t['version']}"
            assert event["sequence_key"] is event["commit_lsn"] is event["tx_ordinal"] is event["xid"] is None
            continue
        high, low = (int(part, 16) for part in event["commit_lsn"].split("/"))
        assert event["commit_lsn"] == f"{high:X}/{low:X}"
        lsn = f"{high << 32 | low:016x}"
        if event["phase"] == "initial_sync":
            assert event["sequence_key"] == f"{lsn}/{0:016x}"
            assert event["tx_ordinal"] is None and event["xid"] is None
            stem = f"0/copy/{event['table']['oid']}/{event['copy']}/"
            assert event["id"].startswith(stem)
            tail = event["id"][len(stem):]
            assert tail == {"copy_begin": "begin", "copy_end": "end"}.get(kind, tail)
            if kind == "insert":
                assert len(tail) == 16 and int(tail, 16) >= 0
        else:
            assert event["sequence_key"] == f"{lsn}/{event['tx_ordinal']:016x}"
            assert event["id"] == f"0/{event['sequence_key']}"


def test_transaction_is_numbered_from_begin_to_commit(story):
    events = story.transaction()
    assert [e["event"] for e in events] == ["begin", "insert", "update", "update", "delete", "update", "delete",
                                           "insert", "update", "insert", "update", "commit"]
    assert [e["tx_ordinal"] for e in events] == list(range(len(events)))
    assert len({e["commit_lsn"] for e in events}) == 1
    assert {e["phase"] for e in events} == {"ongoing_replication"}
    for event in events:
        assert datetime.fromisoformat(event["timestamp"]) == story.committed
        assert event["timestamp"].endswith("+00:00")
    commit = events[-1]
    assert commit["flags"] == 0
    value = lambda text: (lambda h, l: int(h, 16) << 32 | int(l, 16))(*text.split("/"))
    assert value(commit["end_lsn"]) > value(commit["commit_lsn"])


def test_rows_and_keys(story):
    _, insert, update, moved, delete, whole_u, whole_d, key_i, key_u, item, last, _ = story.transaction()
    assert insert["key"] == {"id": 2}
    assert insert["table_row"] == {"id": 2, "note": "a", "total": "5.00", "body": "short"}
    assert list(insert["table_row"]) == ["id", "note", "total", "body"]
    assert insert["missing_columns"] == []
    assert insert["table"] == {"oid": story.oid("orders"), "schema": "public", "name": "orders",
                               "generation": 1, "version": 1}

    assert update["key"] == {"id": 1}
    assert update["updated_table_row"] == {"id": 1, "note": "b", "total": "12.30", "body": "long text"}
    assert update["updated_table_row_kind"] == "full" and update["missing_columns"] == []
    assert update["old_table_row"] is None and update["old_table_row_kind"] is None

    # an unchanged value that is stored out of line is not in the WAL, and no longer in the source
    assert moved["key"] == {"id": 9}
    assert moved["updated_table_row"] == {"id": 10, "note": "moved", "total": "0.00"}
    assert moved["updated_table_row_kind"] == "partial" and moved["missing_columns"] == ["body"]
    assert moved["old_table_row"] == {"id": 9} and moved["old_table_row_kind"] == "key"

    assert delete["key"] == delete["old_table_row"] == {"id": 2} and delete["old_table_row_kind"] == "key"

    assert whole_u["key"] is None and whole_u["old_table_row"] == {"a": 1, "b": "one"}
    assert whole_u["old_table_row_kind"] == "full" and whole_u["updated_table_row"] == {"a": 1, "b": "uno"}
    assert whole_d["key"] is None and whole_d["old_table_row"] == {"a": 1, "b": "uno"}
    assert whole_d["old_table_row_kind"] == "full"

    assert key_i["key"] == {"a": 7} and key_u["key"] == {"a": 7}
    assert key_u["old_table_row"] == {"a": 7, "b": "seven"} and key_u["old_table_row_kind"] == "full"
    assert item["key"] == {"order_id": 1, "line": 1}
    assert last["updated_table_row_kind"] == "full" and last["updated_table_row"]["body"] == "another"


def test_copy_of_a_table(story):
    begin, = story.of("copy_begin", "orders")
    end, = story.of("copy_end", "orders")
    rows = [e for e in story.of("insert", "orders") if e["phase"] == "initial_sync"]
    assert begin["reason"] == "initial"
    assert end["rows"] == len(rows) == 2
    assert {e["copy"] for e in rows} == {begin["copy"]} == {end["copy"]}
    assert begin["commit_lsn"] == end["commit_lsn"] == rows[0]["commit_lsn"]
    assert begin["phase"] == end["phase"] == "initial_sync"
    assert {e["key"]["id"] for e in rows} == {1, 9}
    assert {e["timestamp"] for e in rows} == {begin["timestamp"]}
    order = [e["id"] for e in story.events]
    relation = story.of("relation", "orders")[0]
    assert order.index(begin["id"]) < order.index(rows[0]["id"]) < order.index(end["id"])
    assert order.index(relation["id"]) < order.index(rows[0]["id"])
    # a table without rows is announced, too
    empty, = story.of("copy_end", "items")
    assert empty["rows"] == 0


def test_relation(story):
    relation = story.of("relation", "orders")[0]
    schema = relation["replicated_table_schema"]
    assert list(schema) == SCHEMA
    assert schema["replica_identity"] == "default"
    assert schema["identity_columns"] == schema["primary_key"] == ["id"]
    for column in schema["columns"]:
        assert list(column) == COLUMN
    assert schema["columns"] == [
        {"attnum": 1, "name": "id", "type": "bigint", "type_oid": 20, "typmod": -1, "nullable": False,
         "default": None, "generated": None, "json": "number"},
        {"attnum": 2, "name": "note", "type": "text", "type_oid": 25, "typmod": -1, "nullable": True,
         "default": None, "generated": None, "json": "string"},
        {"attnum": 4, "name": "total", "type": "numeric(12,2)", "type_oid": 1700, "typmod": 786438, "nullable": False,
         "default": "0", "generated": None, "json": "string"},
        {"attnum": 5, "name": "body", "type": "text", "type_oid": 25, "typmod": -1, "nullable": True,
         "default": None, "generated": None, "json": "string"},
    ]
    assert {"change": "create"} in relation["changes"]
    whole = story.of("relation", "whole")[0]["replicated_table_schema"]
    assert whole["replica_identity"] == "full" and whole["primary_key"] == []


def test_truncate(story):
    truncate, = story.of("truncate")
    assert truncate["options"] == {"cascade": True, "restart_identity": False}
    assert {t["name"] for t in truncate["truncated_tables"]} == {"orders", "items"}
    assert truncate["tx_ordinal"] == 1
    around = [e["event"] for e in story.events if e["commit_lsn"] == truncate["commit_lsn"]]
    assert around == ["begin", "truncate", "commit"]


def test_state_from_events_is_the_source(story):
    tables = ["public.orders", "public.items", "public.whole", "public.whole_key"]
    assert_equal(story.server, story.db, story.receiver.state(), tables)
    assert sorted(r["id"] for r in story.before_truncate.rows("public.orders")) == [1, 10]


def test_deliveries_are_signed(story):
    verifier = Webhook(SECRET)
    for request in story.receiver.delivered():
        try:
            verifier.verify(request.body, request.headers)
        except json.JSONDecodeError:  # what follows the check of the signature
            assert story.wrapping == "ndjson"
        with pytest.raises(WebhookVerificationError):
            verifier.verify(request.body + b" ", request.headers)
        assert request.headers["idempotency-key"] == f'"{request.headers["webhook-id"]}"'
        assert request.headers["user-agent"].startswith("etl/")
        assert request.headers["etl-pipeline"] == "orders"


def test_batch_ids(story):
    ids = [r.headers["webhook-id"] for r in story.receiver.delivered()]
    assert len(ids) == len(set(ids))
    for request in story.receiver.delivered():
        wid, events = request.headers["webhook-id"], request.events()
        assert wid.startswith(f"msg_{story.id}_0_")
        assert wid.endswith(f"_{len(events)}")
        placed = [e for e in events if e["sequence_key"] is not None]
        if placed and placed[0]["phase"] == "ongoing_replication" and placed[0] is events[0]:
            assert wid == f"msg_{story.id}_0_{placed[0]['sequence_key'].replace('/', '-')}_{len(events)}"


def test_wrapping(story):
    for request in story.receiver.delivered():
        if story.wrapping == "plain":
            assert request.headers["content-type"] == "application/json"
            body = json.loads(request.body)
            assert list(body) == ["type", "timestamp", "data"] and body["type"] == "etl.batch"
            assert list(body["data"]) == ["batch", "events"]
            assert body["data"]["batch"] == request.headers["webhook-id"]
            assert datetime.fromisoformat(body["timestamp"]).tzinfo
        elif story.wrapping == "ndjson":
            assert request.headers["content-type"] == "application/x-ndjson"
            assert request.body.endswith(b"\n") and b"\n\n" not in request.body
            assert all(isinstance(json.loads(line), dict) for line in request.body.splitlines())
        else:
            assert request.headers["content-type"] == "application/cloudevents-batch+json; charset=UTF-8"
            for outer in json.loads(request.body):
                check_cloudevent(story, outer)


def check_cloudevent(story, outer):
    event = JSONFormat().read(CloudEvent, json.dumps(outer))
    data = event.get_data()
    assert outer["specversion"] == "1.0"
    assert (event.get_id(), event.get_source()) == (data["id"], data["source"])
    assert event.get_type() == "etl." + data["event"]
    assert event.get_time() == datetime.fromisoformat(data["timestamp"])
    assert event.get_datacontenttype() == "application/json"
    members = ["specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema",
               "sequence", "partitionkey", "data"]
    assert [m for m in members if m in outer] == list(outer)
    table = data.get("table")
    if table:
        assert outer["subject"] == f"{table['schema']}.{table['name']}"
        dboid = story.source.split("/")[3]
        assert outer["dataschema"] == f"urn:etl:schema:{dboid}:{table['oid']}:{table['generation']}:{table['version']}"
    elif data["event"] != "truncate" or len(data["truncated_tables"]) > 1:
        assert "subject" not in outer
    if data["sequence_key"] is not None:
        assert outer["sequence"] == data["sequence_key"]
    else:
        assert "sequence" not in outer
    if data.get("key") is not None:
        pk = f"{table['oid']}:" + json.dumps(list(data["key"].values()), separators=(",", ":"))
        assert outer["partitionkey"] == pk


def test_retry_is_byte_identical(server, db, receivers):
    """Only timestamp and signature of a retry differ."""
    answers = iter([503, 500, 429])
    receiver = receivers(answer=lambda request: next(answers, 200))
    server.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver, options_={"retry_delay": "20ms", "max_retry_delay": "20ms"})
    server.wait_for("p", db)
    first = receiver.requests[:4]
    assert [r.answer for r in first] == [503, 500, 429, 200]
    assert len({r.body for r in first}) == 1
    assert len({r.headers["webhook-id"] for r in first}) == 1


def test_ids_are_stable_over_a_restart(fresh_server, receivers):
    """What could not be delivered before a restart has the same ids afterwards."""
    down = []
    receiver = receivers(answer=lambda request: 503 if down else 200)
    server = fresh_server()
    db = server.create_database("d")
    server.psql("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver, options_={"retry_delay": "50ms", "max_retry_delay": "200ms"})
    server.wait_for("p", db)
    down.append(True)
    server.sql("INSERT INTO t SELECT g, g::text FROM generate_series(1, 50) g", db=db)
    server.sql("UPDATE t SET v = v || 'x'", db=db)
    refused = lambda: [r for r in receiver.requests if r.answer == 503]
    wait_until(lambda: any(e["event"] == "insert" for r in refused() for e in r.events()), 20, "an attempt")
    server.restart()
    count = receiver.count
    wait_until(lambda: receiver.count > count, 20, "attempts after the restart")
    down.clear()
    server.wait_for("p", db)
    tried = {e["id"]: e for r in refused() for e in r.events() if e["event"] != "relation"}
    delivered = {e["id"]: e for e in receiver.events()}
    assert len(tried) > 50
    for event_id, event in tried.items():
        assert delivered[event_id] == event
    assert_equal(server, db, receiver.state(), ["public.t"])


def test_only_wanted_kinds(server, db, receiver):
    """Option events: the other kinds are not sent."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver, options_={"events": ["insert", "delete"]})
    server.wait_for("p", db)
    server.sql("INSERT INTO t VALUES (2)", db=db)
    server.sql("UPDATE t SET id = 3 WHERE id = 2", db=db)
    server.sql("DELETE FROM t WHERE id = 1", db=db)
    server.wait_for("p", db)
    assert {e["event"] for e in receiver.events()} == {"insert", "delete"}
    assert len([e for e in receiver.events() if e["event"] == "insert"]) == 2


def test_begin_and_commit_only_around_something(server, db, receiver):
    """A transaction of which nothing is delivered is not announced."""
    server.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int); CREATE PUBLICATION pub FOR TABLE t", db)
    webhook(server, db, receiver)
    server.wait_for("p", db)
    server.sql("INSERT INTO other VALUES (1)", db=db)
    server.psql("BEGIN; INSERT INTO other VALUES (2); INSERT INTO t VALUES (1); INSERT INTO other VALUES (3); COMMIT", db)
    server.wait_for("p", db)
    events = [e for e in receiver.events() if e["phase"] == "ongoing_replication" and e["event"] != "relation"]
    assert [e["event"] for e in events] == ["begin", "insert", "commit"]
    # what is not delivered is counted all the same
    assert [e["tx_ordinal"] for e in events] == [0, 2, 4]
