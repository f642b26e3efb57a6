"""A random load of changes, with a seed that is printed."""

import os
import random
import threading

import psycopg

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, n int, v text, amount numeric(12,3), at timestamptz, tags text[]);
CREATE TABLE toasty (id int PRIMARY KEY, n int, big text);
ALTER TABLE toasty ALTER big SET STORAGE EXTERNAL;
CREATE TABLE pair (a int, b text, v int, PRIMARY KEY (a, b));
CREATE TABLE bag (n int, v text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE cleared (id int PRIMARY KEY, v text);
INSERT INTO keyed SELECT g, g, md5(g::text), g / 7.0, now(), ARRAY[g::text, NULL] FROM generate_series(1, {rows}) g;
INSERT INTO toasty SELECT g, 0, repeat(md5(g::text), 200) FROM generate_series(1, {rows} / 20) g;
INSERT INTO pair SELECT g % 50, g::text, 0 FROM generate_series(1, {rows} / 4) g;
INSERT INTO bag SELECT g % 97, md5(g::text) FROM generate_series(1, {rows} / 10) g;
INSERT INTO cleared SELECT g, 'old' FROM generate_series(1, {rows} / 20) g;
CREATE PUBLICATION pub FOR TABLE keyed, toasty, pair, bag, cleared;
"""
NAMES = ["public.keyed", "public.toasty", "public.pair", "public.bag", "public.cleared"]


class Workload:
    """Transactions of random changes until stop(); survives the death of the server.

    with Workload(server, db): ...
    """

    def __init__(self, server, db, seed=None):
        self.server, self.db = server, db
        self.seed = seed or int(os.environ.get("ETL_SEED") or random.randrange(1 << 30))
        self.transactions = 0
        self.error = None
        self._random = random.Random(self.seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @staticmethod
    def create(server, db, rows=4000):
        server.psql(TABLES.format(rows=rows), db)

    def __enter__(self):
        print(f"workload: ETL_SEED={self.seed}")
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error:
            raise self.error

    def _run(self):
        connection = None
        while not self._stop.is_set():
            try:
                if connection is None or connection.closed:
                    connection = self.server.connect(self.db, autocommit=False)
                self._transaction(connection)
                self.transactions += 1
            except psycopg.errors.UniqueViolation:
                connection.rollback()
            except psycopg.OperationalError:
                if connection is not None:
                    connection.close()
                connection = None
                self._stop.wait(0.05)
            except Exception as error:  # noqa: BLE001 - for the test's own thread
                self.error = error
                return
        if connection is not None:
            connection.close()

    def _transaction(self, c):
        r = self._random
        for _ in range(r.choice((1, 1, 2, 3, 8, 60))):
            if r.random() < 0.1:
                c.execute("SAVEPOINT s")
                self._change(c)
                self._change(c)
                c.execute(r.choice(("ROLLBACK TO s", "RELEASE s")))
            else:
                self._change(c)
        if r.random() < 0.05:
            c.rollback()
        else:
            c.commit()

    def _change(self, c):
        r = self._random
        n = r.randrange(1, 6000)
        kind = r.randrange(16)
        if kind <= 2:
            c.execute("INSERT INTO keyed VALUES (%s, 0, %s, 1.5, now(), '{a}') ON CONFLICT (id)"
                      " DO UPDATE SET n = keyed.n + 1", (n, f"é{n}"))
        elif kind <= 4:
            c.execute("UPDATE keyed SET n = n + 1, v = v || 'x', amount = NULL WHERE id BETWEEN %s AND %s", (n, n + 3))
        elif kind == 5:
            c.execute("UPDATE keyed SET id = id + 100000 + n WHERE id = %s", (n,))
        elif kind == 6:
            c.execute("DELETE FROM keyed WHERE id BETWEEN %s AND %s", (n, n + 2))
        elif kind <= 8:
            c.execute("UPDATE toasty SET n = n + 1 WHERE id = %s", (n % 220,))
        elif kind == 9:
            c.execute("INSERT INTO toasty VALUES (%s, 1, repeat(%s, 3000)) ON CONFLICT (id)"
                      " DO UPDATE SET big = excluded.big", (n % 220, f"b{n}"))
        elif kind == 10:
            c.execute("UPDATE toasty SET id = id + 1000 WHERE id = %s", (n % 220,))
        elif kind == 11:
            c.execute("UPDATE pair SET v = v + 1, b = b || '+' WHERE a = %s AND b < '2'", (n % 50,))
        elif kind == 12:
            c.execute("DELETE FROM pair WHERE a = %s AND b LIKE '%%+++%%'", (n % 50,))
            c.execute("INSERT INTO pair VALUES (%s, %s, 0) ON CONFLICT DO NOTHING", (n % 50, str(n)))
        elif kind == 13:
            c.execute("INSERT INTO bag VALUES (%s, 'same'), (%s, 'same'), (%s, NULL)", (n % 97,) * 3)
        elif kind == 14:
            c.execute("UPDATE bag SET v = v || '.' WHERE n = %s", (n % 97,))
            c.execute("DELETE FROM bag WHERE n = %s AND v LIKE '%%...%%'", (n % 97,))
        else:
            if r.random() < 0.05:
                c.execute("TRUNCATE cleared")
            c.execute("INSERT INTO cleared VALUES (%s, 'new') ON CONFLICT (id) DO UPDATE SET v = 'again'", (n % 500,))
