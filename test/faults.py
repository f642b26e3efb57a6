"""A plan of faults: what a server of the tests does wrong, to which requests.

A plan is a list of faults.  Each request takes the first fault that concerns
it; a fault with a count is used up.  Plans are plain dictionaries on the way
to another process, so that everything which answers requests can follow the
same plan.

    [{"action": "status", "status": 500, "count": 3},
     {"action": "status", "status": 429, "headers": {"Retry-After": "2"}},
     {"action": "status", "status": 400, "contains": "poison", "count": None}]

Selectors (all that are given must fit): `contains` a text in the decoded
body, `lacks` one that is not there, `larger` a body of more bytes, `path` a
prefix of the path, `skip` this many fitting requests first.

Actions, by the moment they strike:

    listening   refuse   the port is closed
                ignore   connections are not accepted (full: nor is the queue
                         of the kernel left open, so that they time out)
    accepting   reset_accept, close_accept, hang_accept
    headers     early    answer with `status` before the body was read, close
                cut      read `bytes` of the body, then reset
    answering   status   `status`, `headers`, `body`
                hang     no answer until the plan changes (then close)
                hang_headers, hang_body   the same after headers, after half a body
                half     headers promise more than comes, then close
                garbage  bytes that are no HTTP, then close
                empty    close without an answer
                reset    the same with a reset
                lost     as empty, but the request counts as taken
                slow     `seconds` before the answer, or `pause` seconds before
                         each byte of it
                endless  a body without an end
                endless_headers

In front of an engine (engines/proxy.py) there are three more, and every fault
of answering can have `apply`: the engine gets the request first, only its
answer is lost.

                later    close without an answer; the engine gets the request
                         after `seconds`, or when it is released
                duplicate   the engine gets it, and later once more
                corrupt  one byte of the body is changed on its way

A fault's `count` is 1 unless given; None means for as long as the plan stands.
"""

import threading
from dataclasses import asdict, dataclass, field, fields

STAGES = {
    "listening": ("refuse", "ignore"),
    "accepting": ("reset_accept", "close_accept", "hang_accept"),
    "headers": ("early", "cut"),
    "answering": ("status", "hang", "hang_headers", "hang_body", "half", "garbage", "empty", "reset", "lost",
                  "slow", "endless", "endless_headers", "later", "duplicate", "corrupt"),
}
STAGE = {action: stage for stage, actions in STAGES.items() for action in actions}


@dataclass
class Fault:
    action: str
    count: int | None = 1
    skip: int = 0
    contains: str | None = None
    lacks: str | None = None
    larger: int | None = None
    path: str | None = None
    status: int = 500
    headers: dict = field(default_factory=dict)
    body: str = ""
    bytes: int = 0
    seconds: float = 0
    pause: float = 0
    full: bool = False
    apply: bool = False

    def __post_init__(self):
        if self.action not in STAGE:
            raise ValueError(f"no such action: {self.action} (there are {', '.join(sorted(STAGE))})")

    @classmethod
    def of(cls, what):
        unknown = set(what) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"no such members of a fault: {', '.join(sorted(unknown))}")
        return cls(**what)

    def fits(self, path, length, body):
        """Is this request meant?  `body` is decoded, None while it has not been read."""
        if self.path is not None and not (path or "").startswith(self.path):
            return False
        if self.larger is not None and not (length or 0) > self.larger:
            return False
        if self.contains is not None and (body is None or self.contains.encode() not in body):
            return False
        return self.lacks is None or (body is not None and self.lacks.encode() not in body)


class FaultPlan:
    """Thread-safe; `changed` is a fresh event with every plan, set when it goes."""

    def __init__(self):
        self.lock = threading.Lock()
        self.faults = []
        self.changed = threading.Event()

    def replace(self, faults):
        made = [Fault.of(f) for f in faults]
        with self.lock:
            self.faults = made
            self._announce()

    def add(self, faults):
        made = [Fault.of(f) for f in faults]
        with self.lock:
            self.faults.extend(made)
            self._announce()

    def _announce(self):
        self.changed.set()
        self.changed = threading.Event()

    def left(self):
        with self.lock:
            return [asdict(f) for f in self.faults]

    def listening(self):
        """The standing fault of the listener, or None."""
        with self.lock:
            return next((f for f in self.faults if STAGE[f.action] == "listening"), None)

    def take(self, stage, path=None, length=None, body=None):
        """The fault for this moment of this request (with its end event), or None."""
        with self.lock:
            for fault in self.faults:
                if STAGE[fault.action] != stage or not fault.fits(path, length, body):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    return None
                if fault.count is not None:
                    fault.count -= 1
                    if fault.count <= 0:
                        self.faults.remove(fault)
                return fault
            return None
