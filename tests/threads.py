"""Which threads a test has left behind."""

from __future__ import annotations

import threading


def threads_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that were started since, except the threads that a Spark session has started in this process.

    Its JVM opens a connection whenever it has collected garbage, and py4j starts a thread for each.
    """
    return [thread for thread in threading.enumerate() if thread not in before and not _is_of_py4j(thread)]


def left_since(before: set[threading.Thread]) -> list[threading.Thread]:
    """Return the threads that were started since and go on; a watchdog may still be about to end."""
    since = threads_since(before)
    for thread in since:
        if thread.name == "keygroups watchdog":
            thread.join(60)
    return [thread for thread in since if thread.is_alive()]


def _is_of_py4j(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)  # it is gone once the thread has ended
    return (getattr(target, "__module__", None) or type(thread).__module__).startswith("py4j.")
