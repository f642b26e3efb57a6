"""What pgoutput says of the same WAL: the oracle of publication semantics.

with PgOutput(server, db, "pub") as oracle:    # makes a slot
    ...
    oracle.changes()                            # all changes since, decoded

Changes are tuples (operation, "schema.table", old, new): old and new are
dictionaries column -> text, or None; what is unchanged and not in the WAL is
absent.  A truncate names one table after the other.
"""

import struct

from .state import canonical  # noqa: F401 - re-exported for comparisons


class Reader:
    def __init__(self, data):
        self.data, self.at = bytes(data), 0

    def take(self, form):
        size = struct.calcsize("!" + form)
        value = struct.unpack_from("!" + form, self.data, self.at)
        self.at += size
        return value[0] if len(value) == 1 else value

    def text(self):
        end = self.data.index(b"\0", self.at)
        value = self.data[self.at:end].decode()
        self.at = end + 1
        return value

    def row(self, columns, only=None):
        found = {}
        for i in range(self.take("H")):
            kind = self.take("c")
            if kind == b"n":
                found[columns[i][0]] = None
            elif kind == b"t":
                size = self.take("I")
                found[columns[i][0]] = self.data[self.at:self.at + size].decode()
                self.at += size
        return {k: v for k, v in found.items() if only is None or k in only}


class PgOutput:
    def __init__(self, server, db, publication, slot="oracle"):
        self.server, self.db, self.publication = server, db, publication
        self.slot = f"{slot}_{db}"
        self.relations = {}

    def __enter__(self):
        self.server.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.slot,), self.db)
        return self

    def __exit__(self, *exc):
        self.server.sql("SELECT pg_drop_replication_slot(%s)", (self.slot,), self.db)

    def changes(self):
        found = []
        for (data,) in self.server.sql(
                "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
                " 'publication_names', %s)", (self.slot, self.publication), self.db):
            found += self._decode(Reader(data))
        return found

    def _decode(self, r):
        kind = r.take("c")
        if kind == b"R":
            oid = r.take("I")
            name = f"{r.text() or 'pg_catalog'}.{r.text()}"
            r.take("c")
            columns = []
            for _ in range(r.take("H")):
                key = r.take("B") & 1
                columns.append((r.text(), key))
                r.take("Ii")
            self.relations[oid] = name, columns
        elif kind == b"I":
            name, columns = self.relations[r.take("I")]
            r.take("c")
            return [("insert", name, None, r.row(columns))]
        elif kind in (b"U", b"D"):
            name, columns = self.relations[r.take("I")]
            what, old, new = r.take("c"), None, None
            if what in (b"K", b"O"):
                keys = None if what == b"O" else [c for c, key in columns if key]
                old = r.row(columns, keys)
                what = r.take("c") if kind == b"U" else None
            if what == b"N":
                new = r.row(columns)
            return [("update" if kind == b"U" else "delete", name, old, new)]
        elif kind == b"T":
            n, _ = r.take("IB")
            return [("truncate", self.relations[r.take("I")][0], None, None) for _ in range(n)]
        return []


def _text(value):
    if value is None or isinstance(value, str):
        return value
    return {True: "t", False: "f"}[value] if isinstance(value, bool) else str(value)


def _row(row):
    return None if row is None else {k: _text(v) for k, v in row.items()}


def from_events(events):
    """The same of events of ongoing replication, for tables of plain types."""
    found = []
    for event in events:
        kind = event["event"]
        if event["phase"] != "ongoing_replication":
            continue
        if kind == "truncate":
            found += [("truncate", f"{t['schema']}.{t['name']}", None, None) for t in event["truncated_tables"]]
        if kind not in ("insert", "update", "delete"):
            continue
        name = f"{event['table']['schema']}.{event['table']['name']}"
        new = event.get("table_row") if kind == "insert" else event.get("updated_table_row")
        found.append((kind, name, _row(event.get("old_table_row")), _row(new)))
    return found


def assert_same(wanted, found):
    """Change by change: kind, table, new row; the old one where both say it (we leave out keys that did not change)."""
    for i, (want, have) in enumerate(zip(wanted, found)):
        where = f"change {i}: pgoutput {want}, ours {have}"
        assert want[:2] == have[:2], where
        assert (want[3] is None) == (have[3] is None), where
        if want[3] is not None:
            shared = want[3].keys() & have[3].keys()
            assert want[3].keys() <= have[3].keys() and all(want[3][c] == have[3][c] for c in shared), where
        if have[2] is not None:
            assert want[2] is not None and want[2] == have[2], where
        elif want[2] is not None:
            assert want[3] is not None and all(want[3].get(c, v) == v for c, v in want[2].items()), where
    assert len(wanted) == len(found), f"{len(wanted)} changes of pgoutput, {len(found)} of ours"
