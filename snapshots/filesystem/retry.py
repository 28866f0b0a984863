"""Which failures of a storage are transient, and how long to wait before the next attempt.

The clients of object stores retry failed requests themselves, with pauses. So reads are not retried here, because the
attempts of two layers would multiply. This module retries only what no client retries: a commit, whose outcome must be
known, and a conflict of two conditional writes.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator

from snapshots.filesystem.errors import StorageUnavailable

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


def attempts() -> Iterator[int]:
    """Yield 1 to `ATTEMPTS_MAX`, with a pause before each except the first; they grow, randomly, so writers diverge."""
    for number in range(1, ATTEMPTS_MAX + 1):
        if number > 1:
            pause(_PAUSE_SECONDS * 2 ** (number - 2) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        yield number


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later; false for a damaged or missing file."""
    return isinstance(error, OSError) and (
        isinstance(error, StorageUnavailable | ConnectionError | TimeoutError) or error.errno in _TRANSIENT
    )
