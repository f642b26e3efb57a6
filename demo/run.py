#!/usr/bin/env python3
"""A shop in PostgreSQL, kept up to date in ClickHouse: every step with its SQL.

Called by `make demo` (ETL_BUILD: an installed build, PG_CONFIG: its server;
--customers N: the size of the shop).  The PostgreSQL server is a throw-away
one in a folder below /tmp, the ClickHouse is the engine that the tests use;
both are gone when the script ends, however it ends.  It ends with 0 if both
sides had the same figures at every look.
"""

import argparse
import json
import os
import secrets
import signal
import sys
import time
import traceback
import unicodedata
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "test"))

from harness.clickhouse import ClickHouse  # noqa: E402
from harness.server import Server  # noqa: E402
from harness.wait import wait_until  # noqa: E402

CONF = {
    "max_worker_processes": "16", "etl.max_workers": "8", "max_replication_slots": "10",
    "max_slot_wal_keep_size": "'2GB'",
}
TABLES = ["customers", "products", "orders", "order_items", "payments", "stock_movements", "carts"]

# The same for each table: rows, a sum, values that are not NULL, characters, the newest moment.
FIGURES = {
    "customers": ("sum(credit_limit)", "count(birthday)", "sum(char_length(name))", "max(created_at)"),
    "products": ("sum(price)", "count(weight_kg)", "sum(char_length(title))", "NULL"),
    "orders": ("sum(total)", "count(shipped_on)", "sum(char_length(note))", "max(ordered_at)"),
    "order_items": ("sum(quantity * unit_price)", "count(sku)", "sum(char_length(sku))", "NULL"),
    "payments": ("sum(amount)", "count(reference)", "sum(char_length(reference))", "max(paid_at)"),
    "stock_movements": ("sum(CAST(quantity AS numeric(12,2)))", "count(reason)", "sum(char_length(sku))", "max(moved_at)"),
    "carts": ("sum(value)", "count(customer_id)", "sum(char_length(CAST(items AS text)))", "max(touched_at)"),
}

CHANGES = [
    ("New rows: a customer, an order of two lines, its payment and what leaves the stock, in one transaction.", """
BEGIN;
INSERT INTO customers (public_id, name, email, country, credit_limit, settings)
    VALUES (gen_random_uuid(), 'Grace Hopper ☕', NULL, 'US', 9999.99, '{"lang": "en"}');
INSERT INTO orders (customer_id, status, total, note, ordered_at)
    SELECT max(id), 'paid', 61.50, 'a moth, please', now() FROM customers;
INSERT INTO order_items
    SELECT max(o.id), l.line, l.sku, l.line + 1, 12.30
      FROM orders o, (SELECT row_number() OVER (ORDER BY sku) AS line, sku FROM products ORDER BY sku LIMIT 2) l
     GROUP BY l.line, l.sku;
INSERT INTO payments
    SELECT gen_random_uuid(), max(id), 'card', 61.50, 'RF-1947', now() FROM orders;
INSERT INTO stock_movements (sku, quantity, reason, moved_at)
    SELECT sku, -quantity, 'order ' || order_id, now() FROM order_items WHERE order_id = (SELECT max(id) FROM orders);
COMMIT"""),
    ("Updates, also to NULL.", """
UPDATE products SET price = round(price * 1.05, 2), attributes = attributes || '{"sale": false}' WHERE category = 'coffee'"""),
    (None, """
UPDATE customers SET birthday = NULL, credit_limit = NULL, newsletter = NOT newsletter WHERE id % 10 = 3"""),
    (None, """
UPDATE orders SET status = 'shipped', shipped_on = current_date WHERE status = 'paid' AND id % 20 = 1"""),
    ("Deletes: orders, with their lines and payments by ON DELETE CASCADE.", """
DELETE FROM orders WHERE id % 40 = 5"""),
    ("A key changes: the product's lines and movements follow by ON UPDATE CASCADE.", """
UPDATE products SET sku = 'NEW-' || sku WHERE sku = (SELECT min(sku) FROM products)"""),
    ("A table is emptied, and gets a row again.", """
TRUNCATE carts"""),
    (None, """
INSERT INTO carts VALUES (gen_random_uuid(), 1, '[{"n": 1}]', 19.99, now())"""),
]


class Unequal(Exception):
    """The two sides differ."""


def source(table):
    return table


def target(table):
    """The view of a table's current rows: "_" in names is doubled, schema and table are joined by one."""
    return f"shop.public_{table.replace('_', '__')}_current"


def figures_sql(name):
    """One query for all tables; `name` gives a table its name there."""
    names = ("source", "rows", "total", "filled", "letters", "newest")
    parts = []
    for table, figures in FIGURES.items():
        columns = [f"'{table}'", "count(*)", *figures]
        if not parts:
            columns = [f"{column} AS {name_}" for column, name_ in zip(columns, names)]
        parts.append(f"SELECT {', '.join(columns)} FROM {name(table)}")
    return "SELECT * FROM (\n" + "\nUNION ALL\n".join(parts) + "\n) AS figures ORDER BY source"


def question_sql(name):
    """What somebody at the shop may ask: the same words for both sides."""
    return (f"SELECT p.category AS category, count(*) AS sold, sum(i.quantity * i.unit_price) AS revenue\n"
            f"  FROM {name('order_items')} i\n  JOIN {name('products')} p ON p.sku = i.sku\n"
            f"  JOIN {name('orders')} o ON o.id = i.order_id\n"
            " WHERE o.status <> 'cancelled'\n GROUP BY p.category\n ORDER BY revenue DESC")


def text(value):
    """A value as both sides show it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, datetime):
        return (value.astimezone(timezone.utc) if value.tzinfo else value).strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(value)


def width(value):
    """Columns of a terminal."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in value)


def grid(names, rows):
    """As psql draws it; figures to the right."""
    rows = [[text(v) for v in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(names, *rows)]
    right = [all(not v or v.replace(".", "").lstrip("-").isdigit() for v in column) for column in zip(*rows)]
    lines = [" | ".join(n.center(w) for n, w in zip(names, widths)), "-+-".join("-" * w for w in widths)]
    for row in rows:
        gaps = [" " * (w - width(v)) for v, w in zip(row, widths)]
        lines.append(" | ".join(gap + v if to_right else v + gap for v, gap, to_right in zip(row, gaps, right)))
    return "".join(f"   {line}".rstrip() + "\n" for line in lines)


def tall(names, row):
    longest = max(map(len, names))
    return "".join(f"   {n.ljust(longest)} | {text(v)}".rstrip() + "\n" for n, v in zip(names, row))


class Demo:
    """The steps, on a server with an empty database "shop" and an engine."""

    def __init__(self, server, ch, customers=2000, out=sys.stdout):
        self.server, self.ch, self.customers, self.out = server, ch, customers, out
        self.password = server.base / "clickhouse.password"
        self.looks = 0

    # -- showing ---------------------------------------------------------

    def say(self, *lines):
        print("", *lines, sep="\n", file=self.out, flush=True)

    def show(self, prompt, statement):
        first, *rest = statement.strip().splitlines()
        print(f"\n{prompt} {first}", *(" " * len(prompt) + " " + line for line in rest), sep="\n", end=";\n", file=self.out,
              flush=True)

    def sql(self, statement, expanded=False):
        """Show a statement, run it in PostgreSQL, show and return what it gives."""
        self.show("postgres>", statement)
        with self.server.connect("shop") as connection:
            cursor = connection.execute(statement)
            # of several statements, the last one's is told
            while cursor.nextset():
                pass
            if not cursor.description:
                print(f"   {cursor.statusmessage}", file=self.out)
                return None
            names, rows = [c.name for c in cursor.description], cursor.fetchall()
        return self._result(names, rows, expanded)

    def call(self, statement):
        """The same of a function that returns nothing."""
        self.show("postgres>", statement)
        self.server.sql(statement, db="shop")
        print("   done", file=self.out)

    def click(self, statement):
        """The same at ClickHouse."""
        self.show("clickhouse>", statement)
        names, _, rows = self.ch.table(statement)
        return self._result(names, rows)

    def _result(self, names, rows, expanded=False):
        if expanded:
            print(*(tall(names, row) for row in rows), sep="\n", end="", file=self.out)
        elif rows:
            print(grid(names, rows), end="", file=self.out)
        if not expanded:
            print(f"   ({len(rows)} row{'' if len(rows) == 1 else 's'})", file=self.out, flush=True)
        return rows

    # -- the steps -------------------------------------------------------

    def fill(self):
        self.say("== The shop", "", "Seven tables with numeric, uuid, timestamps, dates, enums, jsonb, booleans, NULLs",
                 f"and text of many alphabets (demo/shop.sql, {self.customers} customers).")
        self.server.psql((HERE / "shop.sql").read_text(), "shop", True, "-q", "-v", f"customers={self.customers}", "-o", "/dev/null")
        self.sql("SELECT id, name, birthday, credit_limit, settings, created_at FROM customers ORDER BY id LIMIT 3")

    def replicate(self):
        self.say("== From nothing to a copy at ClickHouse", "",
                 "At ClickHouse there is a database and a user who may work in it, nothing else.")
        self._allow()
        self.say("The extension, what to send (a publication), where to (a foreign server; the password",
                 "is read from a file), and the pipeline that joins them:")
        self.sql("CREATE EXTENSION etl")
        self.sql("CREATE PUBLICATION shop FOR TABLE " + ", ".join(TABLES))
        self.sql("CREATE SERVER warehouse FOREIGN DATA WRAPPER etl_clickhouse\n"
                 f"    OPTIONS (url '{self.ch.url}', database 'shop')")
        self.sql("CREATE USER MAPPING FOR CURRENT_USER SERVER warehouse\n"
                 f"    OPTIONS (user 'etl', password_file '{self.password}')")
        self.sql("SELECT etl.create_pipeline('shop', publication => 'shop', destination => 'warehouse') AS pipeline_id")
        self.say("Would it run? An error would keep it from running; a notice is good to know.")
        found = self.sql("SELECT severity, check_name, target, message FROM etl.validate_pipeline('shop')")
        if any(row[0] == "error" for row in found):
            raise Unequal("validate_pipeline() has found an error")
        self.say("Start, and wait until every table is copied and everything committed so far is at ClickHouse:")
        self.call("SELECT etl.start_pipeline('shop')")
        self.wait()
        self.compare()

    def _allow(self):
        """The user of the pipeline at ClickHouse, its password in a file that only the server's user can read."""
        word = secrets.token_hex(12)
        self.password.touch(0o600)
        self.password.write_text(word + "\n")
        if os.geteuid() == 0:
            owner = self.server.data.stat()
            os.chown(self.password, owner.st_uid, owner.st_gid)
        self.ch.create_database("shop")
        self.ch.set_users(default={}, etl={"password": word, "grants": [
            "SELECT, INSERT, ALTER TABLE, CREATE TABLE, DROP TABLE, CREATE VIEW, DROP VIEW ON shop.*"]})

    def change(self):
        self.say("== Changes, as they are committed")
        for why, statement in CHANGES:
            if why:
                self.say(why)
            self.sql(statement)
        self.wait()

    def wait(self):
        if not self.sql("SELECT etl.wait_for('shop', timeout => '2 minutes') AS delivered")[0][0]:
            raise Unequal(f"not delivered: {self.server.trouble('shop')}")

    def look(self):
        self.say("== What the views say")
        self.sql("SELECT * FROM etl.status")
        self.sql("SELECT state, healthy, slot_name, wal_status, lag_bytes, retained_wal_bytes, tables_total, tables_ready,\n"
                 "       transactions, changes, rows_copied, bytes_sent, batches, retries, last_error\n"
                 "  FROM etl.pipeline_status", expanded=True)
        self.sql("SELECT source, state, destination_table, rows_copied, inserts, updates, deletes, truncates\n"
                 "  FROM etl.table_status ORDER BY source::text")

    def compare(self):
        """Ask both sides the same, and show both answers."""
        self.say("== The same questions to both sides")
        for question in (figures_sql, question_sql):
            here, there = self.sql(question(source)), self.click(question(target))
            if [list(map(text, row)) for row in here] != [list(map(text, row)) for row in there]:
                raise Unequal("PostgreSQL and ClickHouse differ")
            self.looks += sum(len(row) for row in here)
            print(f"   equal: {len(here)} rows on both sides", file=self.out, flush=True)

    def end(self):
        self.say("== Leaving nothing behind")
        self.call("SELECT etl.drop_pipeline('shop', drop_tables => true)")
        wait_until(lambda: self.server.value("SELECT count(*) FROM etl.status", db="shop") == 0, 60, "the pipeline is gone")
        slots = self.sql("SELECT count(*) AS slots FROM pg_replication_slots")
        tables = self.click("SELECT count(*) AS tables FROM system.tables WHERE database = 'shop'")
        self.sql("DROP SERVER warehouse CASCADE")
        self.sql("DROP PUBLICATION shop")
        self.sql("DROP EXTENSION etl")
        if slots[0][0] or tables[0][0]:
            raise Unequal("something is left behind")

    def run(self):
        for step in (self.fill, self.replicate, self.change, self.look, self.compare, self.end):
            step()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--customers", type=int, default=2000, help="the size of the shop (default: %(default)s)")
    args = parser.parse_args()
    # the end by a signal is an end with cleaning up, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))

    started = time.monotonic()
    server = Server(CONF, name="demo")
    try:
        with ClickHouse(proxy=False, users={"default": {}}) as ch:
            print(f"PostgreSQL is a server of its own in {server.base}, ClickHouse {ch.version} answers at {ch.url}", flush=True)
            server.start()
            server.sql("CREATE DATABASE shop")
            demo = Demo(server, ch, args.customers)
            demo.run()
    except Exception:  # whatever it is: tell, and leave nothing behind
        print(f"\nFAILED\n{traceback.format_exc()}\nThe server's log ends with\n{server.log()[-3000:]}", flush=True)
        return 1
    finally:
        server.destroy()
    print(f"\nDone in {time.monotonic() - started:.0f} s: {demo.looks} figures asked of both sides, all equal.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
