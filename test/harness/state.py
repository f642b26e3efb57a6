"""Tables as a receiver rebuilds them from events."""

import json
from collections import defaultdict


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Table:
    """Rows of one table, by key where it has one, else a bag; all in one shape."""

    def __init__(self):
        self.keyed = {}
        self.bag = []
        self.shape = None  # attnum -> column name
        self.key = None  # names of the columns by which rows are found

    def rows(self):
        return list(self.keyed.values()) + self.bag

    def follow(self, shape):
        """Columns were renamed, dropped or (without a value for old rows) added."""
        if shape is None or shape == self.shape:
            return
        if self.shape is not None:
            rows = self.rows()
            names = {old: shape[attnum] for attnum, old in self.shape.items() if attnum in shape}
            added = [name for attnum, name in shape.items() if attnum not in self.shape]
            for row in rows:
                new = {names[c]: v for c, v in row.items() if c in names}
                new.update({name: None for name in added})
                row.clear()
                row.update(new)
            self.keyed = {self._renamed(key, names): row for key, row in self.keyed.items()}
        self.shape = shape

    def find_by(self, key):
        """Rows are found by other columns from here on (another replica identity)."""
        if key is None or key == self.key:
            return
        rows = self.rows() if self.key is not None else []
        if rows:
            self.keyed, self.bag = {}, []
        for row in rows:
            self.insert({c: row[c] for c in key} if key else None, row)
        self.key = key

    @staticmethod
    def _renamed(key, names):
        return canonical({names.get(c, c): v for c, v in json.loads(key).items()})

    def insert(self, key, row):
        if key is None:
            self.bag.append(row)
        else:
            self.keyed[canonical(key)] = row

    def delete(self, event):
        key, old = event["key"], event["old_table_row"]
        if key is not None:
            return self.keyed.pop(canonical(key), None)
        for i, row in enumerate(self.bag):
            if row == old:
                return self.bag.pop(i)
        return None

    def update(self, event):
        before = self.delete(event)
        row = dict(event["updated_table_row"])
        for column in event["missing_columns"]:
            assert before is not None and column in before, f"no value of {column} for {event['id']}"
            row[column] = before[column]
        key = event["key"]
        self.insert(None if key is None else {c: row[c] for c in key}, row)


class State:
    """The tables that events add up to.

    Takes events without duplicates of (source, id), in any order.  A table
    starts from its newest finished copy (rows of that copy, or nothing where
    none was made) and takes the changes behind it in order of (epoch,
    sequence_key); what came before that copy is void.
    """

    def __init__(self, events):
        copies = defaultdict(list)  # (oid, copy) -> rows
        finished = {}  # oid -> (order, copy)
        changes = []
        self.shapes = {}  # (oid, generation, version) -> shape
        self.keys = {}  # the same -> names of the key's columns
        self.names = {}
        self.tables = defaultdict(Table)
        for event in events:
            kind = event["event"]
            table = event.get("table")
            if table:
                self.names[table["oid"]] = f"{table['schema']}.{table['name']}"
            if kind == "relation":
                self.shapes[table["oid"], table["generation"], table["version"]] = {
                    c["attnum"]: c["name"] for c in event["replicated_table_schema"]["columns"]}
                self.keys[table["oid"], table["generation"], table["version"]] = \
                    event["replicated_table_schema"]["identity_columns"]
            elif kind == "copy_end":
                order = (event["epoch"], event["sequence_key"])
                newest = finished.get(table["oid"])
                if newest is None or event["copy"] > newest[1]:
                    finished[table["oid"]] = (order, event["copy"], event["rows"])
            elif kind == "insert" and "copy" in event:
                copies[table["oid"], event["copy"]].append(event)
            elif kind in ("insert", "update", "delete", "truncate"):
                changes.append(event)
        for oid, (_, copy, rows) in finished.items():
            got = copies[oid, copy]
            assert len(got) == rows, f"copy {copy} of {self.names[oid]}: {len(got)} rows, copy_end says {rows}"
            for event in got:
                self._follow(event["table"])
                self.tables[oid].insert(event["key"], dict(event["table_row"]))
        changes.sort(key=lambda e: (e["epoch"], e["sequence_key"]))
        for event in changes:
            order = (event["epoch"], event["sequence_key"])
            tables = event["truncated_tables"] if event["event"] == "truncate" else [event["table"]]
            for table in tables:
                oid = table["oid"]
                if oid in finished and order <= finished[oid][0]:
                    continue
                self._apply(oid, event)

    def _follow(self, table):
        version = table["oid"], table["generation"], table["version"]
        self.tables[table["oid"]].follow(self.shapes.get(version))
        self.tables[table["oid"]].find_by(self.keys.get(version))

    def _apply(self, oid, event):
        table = self.tables[oid]
        if event["event"] != "truncate":
            self._follow(event["table"])
        if event["event"] == "insert":
            table.insert(event["key"], dict(event["table_row"]))
        elif event["event"] == "update":
            table.update(event)
        elif event["event"] == "delete":
            table.delete(event)
        else:
            self.tables[oid] = Table()

    def rows(self, name):
        """Rows of "schema.table" (of the newest relation of that name)."""
        oids = [oid for oid, n in self.names.items() if n == name]
        return self.tables[oids[-1]].rows() if oids else []
