"""A local file that is whole or not there at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keygroups.errors import ConfigError


@contextmanager
def replacing(target: Path) -> Iterator[str]:
    """Give out a name beside the target, which takes the target's place at the end if nothing was raised.

    Raises
    ------
    ConfigError
        The target's folder does not exist.
    """
    try:
        number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except FileNotFoundError:
        raise ConfigError("path", str(target), "its folder does not exist: make it first") from None
    os.close(number)
    try:
        yield name
        # A file of mkstemp is its maker's alone; what is exported is as any new file is.
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
