"""A PostgreSQL server of the tests' own."""

import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from .wait import wait_until

PG_CONFIG = os.environ.get("PG_CONFIG") or "/usr/lib/postgresql/15/bin/pg_config"
ETL_BUILD = os.environ.get("ETL_BUILD")
ETL_USER = os.environ.get("ETL_USER", "postgres")

DEFAULTS = {
    "listen_addresses": "''",
    "fsync": "off",
    "wal_level": "logical",
    "shared_preload_libraries": "'etl'",
    "max_worker_processes": "32",
    "etl.max_workers": "28",
    "max_replication_slots": "24",
    "max_wal_senders": "4",
    "max_connections": "60",
    "timezone": "'UTC'",
    "track_commit_timestamp": "on",
    "log_line_prefix": "'%m [%p] %b '",
    "log_checkpoints": "off",
    "autovacuum_naptime": "1min",
}

# What no test may cause unless it says so (marker "crashes").
CRASH = re.compile(r"PANIC:|TRAP:|was terminated by signal|terminating any other active server processes")


def pg_config(what):
    return subprocess.run([PG_CONFIG, what], check=True, capture_output=True, text=True).stdout.strip()


def unprivileged(command):
    """The command line that runs `command` as another user than root."""
    if os.geteuid() == 0:
        return ["runuser", "-u", ETL_USER, "--", *command]
    return list(command)


class Server:
    """One cluster in a folder of its own below /tmp, reached through its socket.

    `conf` overrides settings (None removes one).  The extension comes from
    ETL_BUILD/root by Debian's extension_destdir, else from the server's tree.
    """

    def __init__(self, conf=None, name="server"):
        base = tempfile.mkdtemp(prefix=f"{name}.", dir=os.environ.get("ETL_TMP") or "/tmp")
        self.base = Path(base)
        os.chmod(base, 0o755)
        if os.geteuid() == 0:
            user = pwd.getpwnam(ETL_USER)
            os.chown(base, user.pw_uid, user.pw_gid)
        self.bindir = pg_config("--bindir")
        self.data = self.base / "data"
        self.log_path = self.base / "server.log"
        self.port = 5432
        self.conf = dict(DEFAULTS)
        root = Path(ETL_BUILD or "/nonexistent") / "root"
        if root.is_dir() and "Debian" in pg_config("--version"):
            self.conf["extension_destdir"] = f"'{root}'"
            self.conf["dynamic_library_path"] = f"'{root}{pg_config('--pkglibdir')}:$libdir'"
        self.conf.update(conf or {})
        self._kept = {}
        self.running = False
        self._final_log = None

    # -- life ------------------------------------------------------------

    def _run(self, *command, check=True, **kwargs):
        return subprocess.run(
            unprivileged([f"{self.bindir}/{command[0]}", *map(str, command[1:])]),
            check=check, capture_output=True, text=True, cwd=self.base, **kwargs,
        )

    def init(self):
        self._run("initdb", "-D", self.data, "-N", "-A", "trust", "-U", "postgres",
                  "--locale=C.UTF-8", "-E", "UTF8", "--no-instructions")
        return self

    def write_conf(self, **conf):
        """Write the settings again, changed by `conf`; takes effect at restart or reload()."""
        self.conf.update(conf)
        lines = [f"unix_socket_directories = '{self.base}'", f"port = {self.port}"]
        lines += [f"{name} = {value}" for name, value in self.conf.items() if value is not None]
        path = self.data / "etl_test.conf"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o644)
        main = self.data / "postgresql.conf"
        text = main.read_text()
        if "etl_test.conf" not in text:
            main.write_text(text + "\ninclude 'etl_test.conf'\n")

    def start(self, timeout=60):
        if not self.data.exists():
            self.init()
        self.write_conf()
        result = self._run("pg_ctl", "-D", self.data, "-l", self.log_path, "-w", "-t", timeout, "start", check=False)
        if result.returncode != 0:
            raise AssertionError(f"the server does not start: {result.stdout}{result.stderr}\n{self.log()[-3000:]}")
        self.running = True
        return self

    def stop(self, mode="fast", timeout=60):
        self.close()
        if self.running:
            self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", timeout, "stop")
        self.running = False

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def reload(self):
        self._run("pg_ctl", "-D", self.data, "reload")

    def postmaster_pid(self):
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def kill9(self):
        """kill -9 of the postmaster; returns when every process of the cluster is gone."""
        self.close()
        pid = self.postmaster_pid()
        os.kill(pid, signal.SIGKILL)
        self.running = False
        wait_until(lambda: not os.path.exists(f"/proc/{pid}") and not self.processes(), 30,
                   "processes of a killed server gone")

    def kill_worker(self, backend_type):
        """kill -9 of one process; returns when the server has ended all sessions because of it."""
        witness = self.connect()
        pid = self.backends(backend_type)[0]
        self.close()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: select.select([witness], [], [], 0)[0], 30, "the server ends its sessions")
        witness.close()

    def processes(self):
        """Processes whose working directory is the data directory."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{pid}/cwd").split(" ")[0] == str(self.data):
                    found.append(int(pid))
            except OSError:
                pass
        return found

    def destroy(self):
        try:
            self.stop("immediate")
        except subprocess.CalledProcessError:
            pass
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes(), 30, "processes of the server gone")
        self._final_log = self.log()
        if not os.environ.get("ETL_KEEP"):
            shutil.rmtree(self.base, ignore_errors=True)

    def wait_ready(self, timeout=60):
        wait_until(lambda: self.connect().close() or True, timeout, "the server accepts connections")

    # -- SQL -------------------------------------------------------------

    def dsn(self, db="postgres", user="postgres"):
        return f"host={self.base} port={self.port} dbname={db} user={user}"

    def connect(self, db="postgres", user="postgres", autocommit=True):
        return psycopg.connect(self.dsn(db, user), autocommit=autocommit)

    def _cursor(self, db):
        connection = self._kept.get(db)
        if connection is None or connection.closed or connection.broken:
            connection = self._kept[db] = self.connect(db)
        return connection.cursor()

    def sql(self, query, params=None, db="postgres"):
        """Rows of a query (None for a command), over a connection that is kept."""
        try:
            cursor = self._cursor(db)
            cursor.execute(query, params)
        except psycopg.OperationalError:
            self._kept.pop(db, None)
            raise
        return cursor.fetchall() if cursor.description else None

    def value(self, query, params=None, db="postgres"):
        """First column of the first row, None when there is no row."""
        rows = self.sql(query, params, db)
        return rows[0][0] if rows else None

    def close(self, db=None):
        """Close kept connections (of one database)."""
        for name in list(self._kept):
            if db in (None, name):
                self._kept.pop(name).close()

    def psql(self, text, db="postgres", check=True, *args):
        """Run a script by psql; returns the completed process."""
        return self._run("psql", "-X", "-h", self.base, "-p", self.port, "-U", "postgres", "-d", db,
                         "-v", "ON_ERROR_STOP=1", *args, input=text, check=check)

    def create_database(self, name, extension=True):
        self.sql(f'CREATE DATABASE "{name}"')
        if extension:
            self.sql("CREATE EXTENSION etl", db=name)
        return name

    def drop_database(self, name):
        self.close(name)
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    # -- etl -------------------------------------------------------------

    def backends(self, backend_type, db=None):
        """Pids of processes of a type, e.g. "etl apply"."""
        return [row[0] for row in self.sql(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = %s AND (%s::text IS NULL OR datname = %s)"
            " ORDER BY pid", (backend_type, db, db))]

    def status(self, pipeline, db):
        """The row of etl.pipeline_status as a dictionary."""
        cursor = self._cursor(db)
        cursor.execute("SELECT * FROM etl.pipeline_status WHERE pipeline = %s", (pipeline,))
        row = cursor.fetchone()
        return dict(zip([c.name for c in cursor.description], row)) if row else None

    def tables(self, pipeline, db):
        """Rows of etl.table_status as dictionaries by "schema.table"."""
        cursor = self._cursor(db)
        cursor.execute("SELECT * FROM etl.table_status WHERE pipeline = %s", (pipeline,))
        names = [c.name for c in cursor.description]
        rows = [dict(zip(names, row)) for row in cursor.fetchall()]
        return {f"{row['schema_name']}.{row['table_name']}": row for row in rows}

    def wait_for(self, pipeline, db, timeout=60, **kwargs):
        """etl.wait_for() must be true."""
        ok = self.value("SELECT etl.wait_for(%s, timeout => %s)", (pipeline, f"{timeout}s"), db)
        assert ok, f"wait_for: false; {self.trouble(db)}"

    def trouble(self, db):
        """What the views say of everything that is not well: for messages."""
        return {
            "pipelines": self.sql("SELECT pipeline, state, waiting_for, problem, last_error FROM etl.pipeline_status", db=db),
            "tables": self.sql("SELECT source::text, state, error FROM etl.table_status"
                               " WHERE state <> 'ready' LIMIT 10", db=db),
        }

    def failpoint(self, text):
        """Set etl.failpoint ('' clears it) for workers, at once for those that start."""
        self.sql(f"ALTER SYSTEM SET etl.failpoint = '{text}'")
        self.sql("SELECT pg_reload_conf()")

    # -- log -------------------------------------------------------------

    def log(self, since=0):
        """The log from a byte position on (see log_size())."""
        if self._final_log is not None:
            return self._final_log[since:]
        try:
            with open(self.log_path, errors="replace") as f:
                f.seek(since)
                return f.read()
        except FileNotFoundError:
            return ""

    def log_size(self):
        if self._final_log is not None:
            return len(self._final_log)
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def crashes(self, since=0):
        return [line for line in self.log(since).splitlines() if CRASH.search(line)]
