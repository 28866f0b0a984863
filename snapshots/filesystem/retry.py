"""Which answers of a storage pass, and how long to wait for the next attempt.

The clients of object stores repeat a failed request themselves, with pauses, so reads are not repeated here: two layers
would multiply. Here is only what no client repeats: a commit, of which the outcome must be known, and a conflict of two
conditional writes.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator

from snapshots.errors import StorageUnavailable

ATTEMPTS_MAX = 5
_PAUSE_SECONDS = 0.05

_TRANSIENT = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.EINTR,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ESTALE,
    errno.ETIMEDOUT,
    getattr(errno, "EREMOTEIO", errno.EAGAIN),
}

pause = threading.Event().wait


def attempts(limit: int = ATTEMPTS_MAX) -> Iterator[int]:
    """Yield 1 to `limit`, and pause before each but the first: longer each time, and by chance, so that two differ."""
    for number in range(1, limit + 1):
        if number > 1:
            pause(_PAUSE_SECONDS * 2 ** (number - 2) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        yield number


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later; a damaged or missing file is not of that kind."""
    return isinstance(error, OSError) and (
        isinstance(error, StorageUnavailable | ConnectionError | TimeoutError) or error.errno in _TRANSIENT
    )
