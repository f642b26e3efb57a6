"""ClickHouse in this process (chdb): users, settings, running queries, errors.

Every request gets a session of its own, so that settings end with it; the
engine runs sessions side by side.  It knows the one user "default" and cannot
impersonate.  What another user may do is a role here: a session runs under
the role of its user alone, and the engine itself refuses what that lacks.  A
query carries its id in log_comment, since the engine draws ids of its own.
"""

import json
import re
import threading
import time
import uuid
from pathlib import Path
from xml.sax.saxutils import escape

from clickhouse_statement import Statement, quoted, where_of_kill

CONFIG = """<clickhouse>
<users_config>{users}</users_config>
<query_log><database>system</database><table>query_log</table></query_log>
<part_log><database>system</database><table>part_log</table></part_log>
</clickhouse>
"""
USERS = """<clickhouse><profiles><default/></profiles><quotas><default/></quotas>
<roles>{roles}</roles>
<users><default><password/><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
<grants><query>GRANT {names}</query></grants></default></users></clickhouse>
"""
ADMIN = "engine_admin"
ALL = "ALL ON *.*"

# Where the engine in a process differs from a server.
SERVER_SETTINGS = {"implicit_select": "0", "allow_introspection_functions": "0"}

NAMES = {62: "SYNTAX_ERROR", 216: "QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING", 394: "QUERY_WAS_CANCELLED",
         516: "AUTHENTICATION_FAILED"}


class Failure(Exception):
    """An exception of ClickHouse."""

    def __init__(self, code, message, name=None):
        self.code, self.message, self.name = code, message, name or NAMES.get(code, "UNKNOWN_EXCEPTION")
        super().__init__(f"Code: {code}. DB::Exception: {message} ({self.name})")

    @classmethod
    def of(cls, error, user="default"):
        """From what chdb raised: its own prefixes and repetitions are taken off."""
        cause = error.__cause__
        if isinstance(cause, UnicodeDecodeError):  # the engine quoted bytes of the data
            error = cause.object.decode("utf-8", "surrogateescape")
        text = re.sub(r"^Streaming insert \w+ failed: ", "", str(error))
        match = re.match(r"Code: (\d+)\. DB::Exception: (.*)", text, re.S)
        if not match:
            return cls(1002, text)
        code, message = int(match[1]), match[2]
        while message.startswith(f"Code: {code}. DB::Exception: "):
            message = message.split("DB::Exception: ", 1)[1]
        tail = re.search(r"(?:\s*\((?:[A-Z0-9_]+|version [^()]*(?:\([^()]*\))?)\)\.?)+\s*$", message)
        name = None
        if tail:
            name = re.search(r"\(([A-Z0-9_]+)\)", tail.group())
            message = message[:tail.start()]
        if message.startswith("default: "):
            message = user + message[len("default"):]
        return cls(code, message, name[1] if name else None)


class Running:
    """A query on its way: waiting (held by a test) or in the engine."""

    def __init__(self, query_id, user, text):
        self.query_id, self.user, self.text = query_id, user, text
        self.started = time.monotonic()
        self.killed = threading.Event()
        self.done = threading.Event()
        self.held = None

    def view(self):
        return {"query_id": self.query_id, "user": self.user, "query": self.text[:2000], "held": self.held,
                "elapsed": round(time.monotonic() - self.started, 3)}


class Hold:
    """A standing order to let queries wait: `when` "before" the engine runs them or "after"."""

    def __init__(self, contains="", when="before", count=1, skip=0):
        if when not in ("before", "after"):
            raise ValueError("when: before or after")
        self.contains, self.when, self.count, self.skip = contains, when, count, skip
        self.released = threading.Event()

    def takes(self, text, when):
        if self.when != when or self.contains not in text or self.count == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.count is not None:
            self.count -= 1
        return True


class Result:
    def __init__(self, data=b"", read_rows=0, read_bytes=0, written_rows=0, written_bytes=0, elapsed=0.0):
        self.data = data
        self.summary = {
            "read_rows": read_rows, "read_bytes": read_bytes, "written_rows": written_rows,
            "written_bytes": written_bytes, "total_rows_to_read": 0, "result_rows": written_rows,
            "result_bytes": len(data) or written_bytes, "elapsed_ns": int(elapsed * 1e9)}


class Engine:
    """One data directory; `folder` also has the users and a log of what was run."""

    def __init__(self, folder, users=None):
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Condition()
        self.running = {}
        self.closed = False
        self.inside = 0
        self.holds = []
        self.log = open(self.folder / "statements.jsonl", "a")
        kept = self.folder / "users.json"
        self._write_users(users or (json.loads(kept.read_text()) if kept.exists() else {"default": {}}))
        self._open()

    # --- life ---

    def _write_users(self, users):
        """{name: {"password": "", "grants": ["ALL ON *.*"], "settings": {}}}"""
        self.users = {name: {"password": "", "grants": [ALL], "settings": {}, **given} for name, given in users.items()}
        roles = f"<{ADMIN}><grants><query>GRANT {ALL} WITH GRANT OPTION</query></grants></{ADMIN}>"
        for name, user in self.users.items():
            # a role without any grant is written as one with a grant of nothing
            grants = user["grants"] or ["USAGE ON *.*"]
            queries = "".join(f"<query>GRANT {escape(g)}</query>" for g in grants)
            roles += f"<{self._role(name)}><grants>{queries}</grants></{self._role(name)}>"
        names = ", ".join([ADMIN] + [self._role(name) for name in self.users])
        (self.folder / "users.json").write_text(json.dumps(self.users))
        (self.folder / "users.xml").write_text(USERS.format(roles=roles, names=names))
        (self.folder / "config.xml").write_text(CONFIG.format(users=self.folder / "users.xml"))

    @staticmethod
    def _role(name):
        return "user_" + name.encode().hex()

    def _session(self):
        from chdb import session

        return session.Session(f"{self.folder}/data?config-file={self.folder}/config.xml")

    def _open(self):
        self.admin = self._session()
        self.admin.query(f"SET ROLE {ADMIN}")
        self.version, self.timezone = str(self.admin.query("SELECT version(), timezone()", "TSV")).split()

    def change_users(self, users):
        """New users; waits until no query runs, since the engine reads them when it is opened."""
        with self.lock:
            self.closed = True
            self.lock.wait_for(lambda: self.inside == 0)
            self.admin.close()
            try:
                self._write_users(users)
            finally:
                self._open()
                self.closed = False
                self.lock.notify_all()

    def close(self):
        with self.lock:
            self.closed = True
            self.lock.wait_for(lambda: self.inside == 0, 10)
            self.admin.close()

    def _enter(self):
        with self.lock:
            self.lock.wait_for(lambda: not self.closed)
            self.inside += 1

    def _leave(self):
        with self.lock:
            self.inside -= 1
            self.lock.notify_all()

    # --- users ---

    def authenticate(self, user, password):
        found = self.users.get(user)
        if found is None or found["password"] != password:
            raise Failure(516, f"{user}: Authentication failed: password is incorrect, or there is no user with such name.")

    # --- queries ---

    def run(self, source, user="default", database=None, query_id=None, settings=None, readonly=False,
            default_format="TabSeparated"):
        """Run one statement (bytes, with its data); returns (Statement, Result) or raises Failure."""
        statement = Statement(source)
        query_id = query_id or str(uuid.uuid4())
        entry = Running(query_id, user, statement.text)
        with self.lock:
            if query_id in self.running:
                raise Failure(216, f"Query with id = {query_id} is already running.")
            self.running[query_id] = entry
        code, result = 0, None
        try:
            if not statement.kind:
                raise Failure(62, "Empty query.")
            if statement.second:
                raise Failure(62, "Syntax error (Multi-statements are not allowed).")
            self._hold(entry, "before")
            result = self._execute(entry, statement, database, settings or {}, readonly, default_format)
            self._hold(entry, "after")
            return statement, result
        except Failure as failure:
            code = failure.code
            raise
        finally:
            with self.lock:
                del self.running[query_id]
                self.log.write(json.dumps({
                    "time": time.time(), "query_id": query_id, "user": user, "query": statement.text[:100000], "code": code,
                    "written_rows": result.summary["written_rows"] if result else 0}) + "\n")
                self.log.flush()
            entry.done.set()

    def _execute(self, entry, statement, database, settings, readonly, default_format):
        self._enter()
        session = self._session()
        try:
            self._prepare(session, entry, database, settings, readonly)
            if entry.killed.is_set():
                raise Failure(394, "Query was cancelled.")
            if statement.kind == "KILL" and where_of_kill(statement.text):
                return self._kill(session, entry, statement, default_format)
            if statement.data is not None:
                return self._insert(session, statement)
            text = re.sub(r"\bsystem\s*\.\s*`?processes`?(?!\w)",
                          "(SELECT * REPLACE(Settings['log_comment'] AS query_id) FROM system.processes)", statement.text)
            done = session.query(text, default_format)
            return Result(done.bytes(), done.storage_rows_read(), done.storage_bytes_read(), done.rows_written(),
                          done.bytes_written(), done.elapsed())
        except (RuntimeError, UnicodeDecodeError) as error:
            if isinstance(error, UnicodeDecodeError):
                error = RuntimeError(error.object.decode("utf-8", "surrogateescape"))
            raise Failure.of(error, entry.user) from None
        finally:
            session.close()
            self._leave()

    def _prepare(self, session, entry, database, settings, readonly):
        """What the connection of a server has: user, database, settings."""
        parts = dict(SERVER_SETTINGS)
        parts.update(self.users[entry.user]["settings"])
        parts.update(settings)
        parts["log_comment"] = entry.query_id
        late = {name: parts.pop(name) for name in ("readonly",) if name in parts}
        if readonly:
            late.setdefault("readonly", "2")
        for name, value in parts.items():
            if not re.fullmatch(r"\w+", name):
                raise Failure(115, f"Unknown setting '{name}'.", "UNKNOWN_SETTING")
            session.query(f"SET {name} = {quoted(value)}")
        if database:
            session.query("USE `" + database.replace("\\", "\\\\").replace("`", "\\`") + "`")
        session.query(f"SET ROLE {self._role(entry.user)}")
        for name, value in late.items():
            session.query(f"SET {name} = {quoted(value)}")

    @staticmethod
    def _insert(session, statement):
        insert = session.send_insert(statement.text, statement.format)
        try:
            view = memoryview(statement.data)
            for start in range(0, len(view), 1 << 22):
                insert.append(view[start:start + (1 << 22)])
            done = insert.finish()
        except RuntimeError:
            insert.cancel()
            raise
        return Result(b"", done.rows_written, done.bytes_written, done.rows_written, done.bytes_written, done.elapsed)

    # --- holding and killing ---

    def hold(self, **given):
        hold = Hold(**given)
        with self.lock:
            self.holds.append(hold)

    def release(self):
        with self.lock:
            for hold in self.holds:
                hold.released.set()
            self.holds = []

    def _hold(self, entry, when):
        with self.lock:
            hold = next((h for h in self.holds if h.takes(entry.text, when)), None)
        if hold is None:
            return
        entry.held = when
        while not hold.released.wait(0.01) and not entry.killed.is_set():
            pass
        entry.held = None
        if entry.killed.is_set():
            raise Failure(394, "Query was cancelled.")

    def views(self):
        with self.lock:
            return [entry.view() for entry in self.running.values()]

    def _kill(self, session, own, statement, default_format):
        """KILL QUERY: the condition is evaluated by the engine, over the queries of this process."""
        where, mode, format = where_of_kill(statement.text)
        with self.lock:
            entries = [e for e in self.running.values() if e is not own]
        rows = [f"({quoted(e.query_id)}, {quoted(e.user)}, {quoted(e.text)}, {time.monotonic() - e.started})" for e in entries]
        table = ("(SELECT t.1 AS query_id, t.2 AS user, t.3 AS query, t.4 AS elapsed FROM (SELECT arrayJoin(CAST(["
                 + ", ".join(rows) + "], 'Array(Tuple(String, String, String, Float64))')) AS t))")
        found = str(session.query(f"SELECT query_id FROM {table} WHERE {where}", "TSVRaw")).split("\n")[:-1]
        chosen = [e for e in entries if e.query_id in found]
        if any(e.user != own.user for e in chosen):
            if str(session.query("CHECK GRANT KILL QUERY ON *.*", "TSV")).strip() != "1":
                chosen = [e for e in chosen if e.user == own.user]
        if mode != "TEST":
            for entry in chosen:
                entry.killed.set()
            for entry in chosen:
                self._end(entry, wait=mode == "SYNC")
        state = {"SYNC": "finished", "ASYNC": "waiting", "TEST": ""}[mode]
        if not chosen:
            return Result()
        rows = ", ".join(f"({quoted(state)}, {quoted(e.query_id)}, {quoted(e.user)}, {quoted(e.text)})" for e in chosen)
        done = session.query("SELECT t.1 AS kill_status, t.2 AS query_id, t.3 AS user, t.4 AS query"
                             f" FROM (SELECT arrayJoin([{rows}]) AS t)", format or default_format)
        return Result(done.bytes())

    def _end(self, entry, wait):
        while not entry.done.is_set():
            # asked again: the query may just be on its way into the engine
            self.admin.query(f"KILL QUERY WHERE Settings['log_comment'] = {quoted(entry.query_id)} ASYNC")
            if not wait:
                return
            entry.done.wait(0.02)
