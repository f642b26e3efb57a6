"""Settings of a database or a role that change the text of values, or what names mean."""

import itertools
import random

import psycopg

# Names that mean something else for who does not say pg_catalog.
EVIL = """
CREATE SCHEMA evil; CREATE DOMAIN evil.text AS pg_catalog.bytea; CREATE DOMAIN evil.numeric AS pg_catalog.int4;
CREATE FUNCTION evil.format(pg_catalog.text, pg_catalog.text) RETURNS pg_catalog.text LANGUAGE sql AS 'SELECT ''evil''::pg_catalog.text';
CREATE TABLE evil.pg_class (oid oid PRIMARY KEY); CREATE TABLE evil.pg_type (oid oid PRIMARY KEY);
"""

FACTORS = {
    "DateStyle": ["ISO, MDY", "SQL, DMY", "German", "Postgres, YMD"],
    "IntervalStyle": ["postgres", "iso_8601", "sql_standard", "postgres_verbose"],
    "TimeZone": ["UTC", "Asia/Kathmandu", "America/St_Johns"],
    "bytea_output": ["hex", "escape"],
    "extra_float_digits": ["1", "-15", "3"],
    "lc_monetary": ["C", None],  # None: another one with two digits, if there is one
    "search_path": ["public", "evil, pg_catalog"],
    "standard_conforming_strings": ["on", "off"],
    "level": ["database", "role"],
}


def pairwise(factors):
    """Combinations in which each two values of two factors meet; always the same ones."""
    rng = random.Random(1)
    names = list(factors)
    wanted = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]}
    made = []
    while wanted:
        best, covers = None, set()
        for _ in range(50):
            row = {n: rng.choice(factors[n]) for n in names}
            met = wanted & set(itertools.combinations(row.items(), 2))
            if best is None or len(met) > len(covers):
                best, covers = row, met
        made.append(best)
        wanted -= covers
    return made


def other_monetary(server):
    for name in ("de_DE.UTF-8", "en_US.UTF-8", "en_GB.UTF-8", "C.UTF-8"):
        try:
            server.sql(f"SET lc_monetary = '{name}'")
            return name
        except psycopg.Error:
            pass  # not installed
        finally:
            server.close("postgres")
    return "POSIX"


def reset(server, db):
    server.sql(f"ALTER DATABASE {db} RESET ALL; ALTER ROLE postgres IN DATABASE {db} RESET ALL")
    server.close(db)


def give(server, db, settings):
    """Exactly these settings, to the database or the role."""
    reset(server, db)
    target = f"DATABASE {db}" if settings["level"] == "database" else f"ROLE postgres IN DATABASE {db}"
    for name, value in settings.items():
        if name != "level":
            value = value or other_monetary(server)
            shown = value if name in ("search_path", "DateStyle") else f"'{value}'"
            server.sql(f"ALTER {target} SET {name} = {shown}")
