"""What the tests share: servers, a receiver of events, the state they add up to."""

from .equal import assert_equal, source_rows
from .process import ProcessSample, cpu_seconds, rss_anon, watch_memory
from .receiver import Receiver
from .server import Server
from .state import State
from .wait import Timeout, wait_until

__all__ = [
    "ProcessSample",
    "Receiver",
    "Server",
    "State",
    "Timeout",
    "assert_equal",
    "cpu_seconds",
    "rss_anon",
    "source_rows",
    "wait_until",
    "watch_memory",
]
