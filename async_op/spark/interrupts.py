"""Ctrl-C while the main thread waits for a query."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt`, and do nothing else.

    PySpark's own handler cancels all jobs before. That would fail the micro-batch under way, or its sink, and so the
    query that is about to be stopped.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_of_pyspark = str(getattr(handler, "__module__", "")).startswith("pyspark.")
    if not is_of_pyspark or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
