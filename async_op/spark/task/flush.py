"""The stream on which a Python worker sends a task's outputs to the JVM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def flusher() -> Callable[[], object]:
    """Return a function that sends to the JVM at once what the calling generator has yielded.

    Spark itself sends only when 64 KB have gathered (unless `spark.python.udf.pipelined.enabled` is set, since 4.3).
    So outputs of slow calls would wait for more, and a worker would learn late that its task was cancelled. The stream
    is found as an argument of `Serializer.dump_stream`, which runs the generator; without it, the function does
    nothing.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "dump_stream" and "stream" in frame.f_locals:
            flush: Callable[[], object] = frame.f_locals["stream"].flush
            return flush
        frame = frame.f_back
    return lambda: None
