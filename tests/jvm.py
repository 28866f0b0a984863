"""How tests start a JVM: for runs of seconds, not of days."""

from __future__ import annotations

import sys
from pathlib import Path

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""Tests end before Java's optimising compiler has paid for itself: it took a third of the processors' time.

Nor does anything read what a JVM counts for `jstat`, twenty times a second.
"""

ARCHIVE = Path(sys.prefix, "spark.jsa")
"""The classes that Spark loads, as a JVM maps them; `make test` has it written by `tests.spark.class_archive`."""


def options() -> str:
    """What each JVM of the tests gets; it starts without the archive, too, in twice the processor's time."""
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable" if ARCHIVE.exists() else OPTIONS


if __name__ == "__main__":
    print(options())  # noqa: T201 - for the Makefile
