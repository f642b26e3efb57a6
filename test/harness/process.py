"""Figures of one process, from /proc."""

import os
import threading
import time
from dataclasses import dataclass

TICK = os.sysconf("SC_CLK_TCK")


def _status(pid, name):
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith(name + ":"):
                return int(line.split()[1])
    return 0


def rss_anon(pid):
    """Private memory in bytes (the ring and shared memory are not in it)."""
    return _status(pid, "RssAnon") * 1024


def cpu_seconds(pid):
    """User and system time used so far."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def wakeups(pid):
    """Voluntary context switches so far: how often it went to sleep."""
    return _status(pid, "voluntary_ctxt_switches")


@dataclass
class ProcessSample:
    """CPU and wake-ups of a process over a span of time."""

    seconds: float
    cpu: float  # share of a core
    wakeups: float  # per second

    @classmethod
    def over(cls, pid, seconds):
        """Look at the process, let `seconds` pass (the span measured), look again."""
        started, cpu, wakes = time.monotonic(), cpu_seconds(pid), wakeups(pid)
        threading.Event().wait(seconds)
        took = time.monotonic() - started
        return cls(took, (cpu_seconds(pid) - cpu) / took, (wakeups(pid) - wakes) / took)


class watch_memory:
    """Peak RssAnon of processes while a block runs, sampled every 20 ms.

    with watch_memory(apply=pid1, writer=pid2) as peak: ...
    peak["apply"] is in bytes, peak.base["apply"] what it was at the start.
    """

    def __init__(self, **pids):
        self.pids = pids
        self.base = {name: rss_anon(pid) for name, pid in pids.items()}
        self.peak = dict(self.base)
        self._done = threading.Event()

    def __getitem__(self, name):
        return self.peak[name]

    def __enter__(self):
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._done.set()
        self._thread.join()

    def _sample(self):
        while not self._done.wait(0.02):
            for name, pid in self.pids.items():
                try:
                    self.peak[name] = max(self.peak[name], rss_anon(pid))
                except OSError:
                    pass
