"""The only polling of the tests: a condition, a deadline."""

import time


class Timeout(AssertionError):
    """A condition did not come true in time."""


def wait_until(condition, timeout=30.0, what=None, interval=0.02):
    """Call `condition` until it returns something true, and return that.

    Raises Timeout, naming `what` (default: the condition) and the last value
    or error.  An exception of the condition counts as not yet.
    """
    deadline = time.monotonic() + timeout
    last = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - shown when time is over
            last = error
        if time.monotonic() >= deadline:
            name = what or getattr(condition, "__name__", "condition")
            raise Timeout(f"{name}: not within {timeout} s; last: {last!r}")
        time.sleep(interval)
