"""Just enough of ClickHouse's grammar to see where a statement ends and its data begins.

ClickHouse reads an INSERT from one stream: the statement, then bytes in the
format that it names.  A statement here is bytes, since those may follow it.
"""

import re

SPACE = re.compile(rb"(?:\s+|--[^\n]*|#[! ][^\n]*|/\*.*?\*/)*", re.S)
TOKEN = re.compile(
    rb"(?P<quoted>'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`\\]|\\.|``)*`)"
    rb"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_.]*)|(?P<other>.)", re.S)
FORMAT_END = re.compile(rb"[ \t\f\v]*\r?\n?")
PLAIN = (b"SELECT", b"WITH", b"FROM", b"EXPLAIN", b"WATCH", b"EXECUTE")


class Statement:
    """One statement of a request.

    text    what the engine is to run; for an INSERT with data, without its FORMAT
    kind    its first word in capitals
    format  of an INSERT with data: the format's name, else the one asked for
            at the end of a query, or None
    data    of an INSERT with data: its first bytes, else None
    second  a second statement follows
    """

    def __init__(self, source):
        self.source = source
        self.text = source
        self.kind = ""
        self.format = None
        self.data = None
        self.second = False
        self._parse()
        self.text = self.text.decode("utf-8", "surrogateescape").strip().rstrip(";").rstrip()

    def _tokens(self):
        """(kind, upper-cased text, start, end, depth of parentheses)"""
        position, depth = SPACE.match(self.source).end(), 0
        while position < len(self.source):
            match = TOKEN.match(self.source, position)
            text = match.group()
            if text in (b")", b"]", b"}"):
                depth -= 1
            yield match.lastgroup, text.upper(), match.start(), match.end(), depth
            if text in (b"(", b"[", b"{"):
                depth += 1
            position = SPACE.match(self.source, match.end()).end()

    def _parse(self):
        before = after = None  # words around the current one
        for kind, text, start, end, depth in self._tokens():
            if self.second or (before == b";" and depth == 0):
                self.second = True
                return
            if not self.kind:
                self.kind = text.decode("latin-1")
            if depth == 0 and self.kind == "INSERT" and kind == "word":
                if text == b"VALUES" and before != b"INTO" and before != b".":
                    return self._data("Values", start, end)
                if before == b"FORMAT" and after not in (b"INTO", b"."):
                    name = self.source[start:end].decode("latin-1")
                    return self._data(name, self._format_at, FORMAT_END.match(self.source, end).end())
                if text in PLAIN and before not in (b"INTO", b"."):
                    return self._plain()
            if depth == 0 and before == b"FORMAT" and kind == "word":
                self.format = self.source[start:end].decode("latin-1")
            if text == b"FORMAT":
                self._format_at = start
            before, after = text, before
        if self.kind == "INSERT":
            self._data("Values", len(self.source), len(self.source))

    def _data(self, name, end, begin):
        self.text, self.format, self.data = self.source[:end], name, self.source[begin:]

    def _plain(self):
        """An INSERT ... SELECT: no data, nor does it answer in a format."""
        before = None
        for kind, text, _, _, depth in self._tokens():
            if before == b";" and depth == 0:
                self.second = True
            before = text


def quoted(text):
    """A string literal."""
    return "'" + str(text).replace("\\", "\\\\").replace("'", "\\'") + "'"


def where_of_kill(text):
    """The condition of KILL QUERY, and whether it waits, tests, and for a format: (where, sync, format) or None."""
    match = re.match(r"\s*KILL\s+QUERY\s+(?:ON\s+CLUSTER\s+\S+\s+)?WHERE\s+(.*?)\s*(SYNC|ASYNC|TEST)?"
                     r"\s*(?:FORMAT\s+(\w+))?\s*;?\s*$", text, re.I | re.S)
    return (match[1], (match[2] or "ASYNC").upper(), match[3]) if match else None
