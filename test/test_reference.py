"""doc/reference.md says what is there: every function, view, column and option by name."""

import re


def reference(top):
    return (top / "doc/reference.md").read_text()


def column(server, db, query):
    return [row[0] for row in server.sql(query, db=db)]


def test_every_function_is_described(top, server, db):
    names = column(server, db, "SELECT proname FROM pg_proc p WHERE pronamespace = 'etl'::regnamespace"
                               " AND prorettype <> 'internal'::regtype AND proname !~ '_validator$'"
                               " AND NOT has_function_privilege('pg_monitor', oid, 'EXECUTE')")
    text = reference(top)
    assert names and [n for n in names if f"`{n}(" not in text] == []


def test_every_view_and_column_is_described(top, server, db):
    text = reference(top)
    missing = []
    for view in ("status", "pipeline_status", "table_status", "column_status", "error_log", "settings", "metrics"):
        section = re.search(rf"^### {view}\n(.*?)^##", text, re.S | re.M).group(1)
        words = set(re.findall(r"\w+", section))
        missing += [f"{view}.{c}" for c in column(
            server, db,
            f"SELECT attname FROM pg_attribute WHERE attrelid = 'etl.{view}'::regclass AND attnum > 0")
            if c not in words]
    assert missing == []


def test_every_option_is_described(top, server, db):
    text = reference(top) + "".join((top / f"doc/{kind}.md").read_text() for kind in ("clickhouse", "webhook"))
    names = column(server, db, "SELECT DISTINCT name FROM etl.settings WHERE name <> 'failpoint'"
                               " AND (scope = 'setting' OR scope IN ('kind clickhouse', 'kind null', 'kind webhook'))")
    assert names and [n for n in names if f"`{n}`" not in text] == []
