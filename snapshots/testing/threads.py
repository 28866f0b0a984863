"""Makes races between threads likely."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restless_threads() -> Iterator[None]:
    """Make Python switch threads as often as possible, so that a race shows within a few rounds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
