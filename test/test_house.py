"""The house rules that a script can check."""

import os
import re

import pytest

SKIP = {".git", "build", "__pycache__", ".pytest_cache", "results"}
MADE = (".o", ".so", ".bc", "regression.diffs", "regression.out")


def files(top, *suffixes):
    for folder, folders, names in os.walk(top):
        folders[:] = [f for f in folders if f not in SKIP]
        for name in names:
            if name.endswith(MADE):     # by "make" in the tree: has the paths of whoever ran it
                continue
            if not suffixes or name.endswith(suffixes):
                yield os.path.join(folder, name)


def text(path):
    with open(path, errors="replace") as f:
        return f.read()


def test_the_project_names_no_machine(top):
    """No path of the machine on which somebody worked."""
    words = re.compile("/" + "(home|root|opt|srv|mnt)/")
    found = [f"{path}:{i}" for path in files(top)
             for i, line in enumerate(text(path).splitlines(), 1) if words.search(line)]
    assert not found, "\n".join(found)


def test_server_versions_are_known_to_compat_alone(top):
    found = [p for p in files(top, ".c", ".h") if "PG_VERSION_NUM" in text(p) and not p.endswith("src/compat.h")]
    assert not found, "\n".join(found)


def test_sources_look_alike(top):
    """A header that teaches, postgres.h first, tabs, no line that nobody can read."""
    wrong = []
    for path in files(os.path.join(top, "src"), ".c", ".h"):
        lines = text(path).splitlines()
        if not lines or not lines[0].startswith("/*"):
            wrong.append(f"{path}: no header")
        includes = [line for line in lines if line.startswith("#include")]
        if path.endswith(".c") and (not includes or includes[0] != '#include "postgres.h"'):
            wrong.append(f"{path}: postgres.h is not first")
        for i, line in enumerate(lines, 1):
            if line.startswith("    ") or line.rstrip() != line:
                wrong.append(f"{path}:{i}: spaces")
            if len(line.expandtabs(4)) > 132 and '"' not in line and not line.endswith("\\"):
                wrong.append(f"{path}:{i}: long line")
        if "ereport(ERROR,\n\t\t\t(errmsg" in "\n".join(lines):
            wrong.append(f"{path}: an error without errcode")
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_for_later(top):
    """No open ends in the sources, no test that is left out."""
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b|pytest\.mark\.(skip|xfail)\b")
    found = [f"{path}:{i}" for path in files(top, ".c", ".h", ".py", ".sql")
             for i, line in enumerate(text(path).splitlines(), 1)
             if words.search(line) and "test_house.py" not in path]
    assert not found, "\n".join(found)


def test_no_test_sleeps(top):
    """Waiting is wait_until() and etl.wait_for()."""
    words = re.compile(r"time\.sleep\(|pg_sleep\(")
    found = [f"{path}:{i}" for path in files(os.path.join(top, "test"), ".py")
             for i, line in enumerate(text(path).splitlines(), 1)
             if words.search(line) and not path.endswith(("harness/wait.py", "test_house.py"))
             and "a statement that takes long" not in line]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kind, query", [
    ("schema", "SELECT nspname FROM pg_namespace WHERE nspname = 'etl'"
               " AND obj_description(oid, 'pg_namespace') IS NULL"),
    ("relation", "SELECT relname FROM pg_class WHERE relnamespace = 'etl'::regnamespace AND relkind IN ('r', 'v')"
                 " AND obj_description(oid, 'pg_class') IS NULL"),
    ("function", "SELECT proname FROM pg_proc WHERE pronamespace = 'etl'::regnamespace"
                 " AND obj_description(oid, 'pg_proc') IS NULL"),
    ("wrapper", "SELECT fdwname FROM pg_foreign_data_wrapper WHERE fdwname LIKE 'etl%'"
                " AND obj_description(oid, 'pg_foreign_data_wrapper') IS NULL"),
])
def test_every_object_has_a_comment(server, db, kind, query):
    assert server.sql(query, db=db) == []


def test_own_tables_have_a_key(server, db):
    """So that nobody's FOR ALL TABLES publication breaks our writes."""
    assert server.sql("""
        SELECT relname FROM pg_class c WHERE relnamespace = 'etl'::regnamespace AND relkind = 'r'
           AND relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
        """, db=db) == []


def test_public_reads_views_only(server, db):
    """PUBLIC may look at views; tables are nobody's, functions that act nobody's."""
    assert server.sql("""
        SELECT relname FROM pg_class c WHERE relnamespace = 'etl'::regnamespace AND relkind = 'r'
           AND has_table_privilege('pg_monitor', c.oid, 'SELECT')
        """, db=db) == []
    assert server.sql("""
        SELECT relname FROM pg_class c WHERE relnamespace = 'etl'::regnamespace AND relkind = 'v'
           AND NOT has_table_privilege('pg_monitor', c.oid, 'SELECT')
        """, db=db) == []
    server.sql("CREATE ROLE nobody_special", db=db)
    try:
        assert server.sql("""
            SELECT proname FROM pg_proc p WHERE pronamespace = 'etl'::regnamespace
               AND proname ~ '^(create|alter|rename|start|stop|drop|retry|resync|validate|test)_'
               AND has_function_privilege('nobody_special', p.oid, 'EXECUTE')
            """, db=db) == []
    finally:
        server.sql("DROP ROLE nobody_special", db=db)
