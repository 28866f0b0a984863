"""Threads that meet each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restless_threads() -> Iterator[None]:
    """Let Python switch threads as often as it can, so that a race is met in a few rounds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
