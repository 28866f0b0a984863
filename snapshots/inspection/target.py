"""Writes a local file atomically."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from keygroups.context_managers import contextmanager
from keygroups.errors import ConfigError


@contextmanager
def replacing(target: Path) -> Iterator[str]:
    """Yield a temporary name beside the target; at the end the file replaces the target, unless an error was raised.

    Raises
    ------
    ConfigError
        The target cannot be written.
    """
    if target.is_dir():
        raise ConfigError("path", str(target), "it is a folder: name a file in it")
    try:
        number, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except FileNotFoundError:
        raise ConfigError("path", str(target), "its folder does not exist: make it first") from None
    except (NotADirectoryError, PermissionError) as error:
        raise ConfigError("path", str(target), f"its folder cannot be written to ({error.strerror})") from error
    os.close(number)
    try:
        yield name
        # mkstemp makes a private file; an exported file gets the permissions of any new file.
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
