"""The stream on which a Python worker sends a task's outputs to the JVM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def flusher() -> Callable[[], object]:
    """Return what sends to the JVM at once what the calling generator has yielded.

    Spark sends it only when 64 KB have gathered (unless `spark.python.udf.pipelined.enabled` is set, since 4.3), so
    the outputs of slow calls would wait for more of them, and a worker would learn late that its task was cancelled.
    The stream is found as an argument of `Serializer.dump_stream`, which runs the generator; where there is none,
    nothing is flushed.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "dump_stream" and "stream" in frame.f_locals:
            flush: Callable[[], object] = frame.f_locals["stream"].flush
            return flush
        frame = frame.f_back
    return lambda: None
