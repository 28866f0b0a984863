"""Where the hosts of a run have their files on a machine, so that their logs are found by the folder of snapshots."""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path

FOLDER_PREFIX = "keygroups-"
"""What the names of all folders of runs begin with."""

TAIL_BYTES = 64 * 1024
"""How much of the end of a log is shown; a log may have 64 MiB."""

_OWNER = "#"
"""Ends the owner in the id of a run."""


def new_run_id(uri: str) -> str:
    """Return an id for a run of the operator that has its snapshots in a folder."""
    return f"{uri}{_OWNER}{uuid.uuid4().hex}"


def digest_of(name: str) -> str:
    """Return a short digest: the path of a Unix socket has 107 bytes at most."""
    return hashlib.blake2b(name.encode(), digest_size=6).hexdigest()


def run_folder(run_id: str, parent: str | None = None) -> Path:
    """Return the folder of a run on this machine; by default it is among the temporary files."""
    owner, _, _ = run_id.rpartition(_OWNER)
    return Path(parent or tempfile.gettempdir()) / f"{_prefix(owner)}{digest_of(run_id)}"


def logs_pattern(uri: str) -> str:
    """Return the pattern that the paths of an operator's logs match on each machine that runs its hosts."""
    return str(Path(tempfile.gettempdir()) / f"{_prefix(uri)}*" / "*.log")


def logs_of(uri: str, parent: str | None = None) -> list[Path]:
    """Return the logs that hosts of an operator have on this machine, the one that was written last at the end."""
    folder = Path(parent or tempfile.gettempdir())
    return sorted(folder.glob(f"{_prefix(uri)}*/*.log"), key=_written)


def tails_of(logs: Iterable[Path]) -> dict[str, str]:
    """Return the end of each log by its path; a log that is removed meanwhile is left out."""
    found = {}
    for log in logs:
        try:
            with log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                found[str(log)] = file.read().decode("utf-8", "backslashreplace")
        except OSError:
            continue
    return found


def _prefix(owner: str) -> str:
    return f"{FOLDER_PREFIX}{os.getuid()}-{digest_of(owner)}-"


def _written(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:  # it has just been removed
        return 0.0
