"""Checks the machine before the first test, so that a fault is found in a second and not after ten minutes."""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from snapshots.java import JavaNotFound, use_java

FREE_BYTES_MIN = 3 * 2**30
"""A whole run wrote 1.8 GB into the folder of temporary files."""


def complaints() -> list[str]:
    """Return a sentence for each thing that is missing, which says what to do."""
    return [sentence for check in (_packages, _java, _disk) if (sentence := check())]


def _packages() -> str | None:
    missing = [name for name in ("pyspark", "hypothesis", "pytest_asyncio", "xdist") if find_spec(name) is None]
    return f"{', '.join(missing)} cannot be imported: rm .venv/.demo .venv/.dev && make .venv/.dev" if missing else None


def _java() -> str | None:
    try:
        use_java()
    except JavaNotFound as missing:
        return f"{missing}; for the tests, `make java` installs one into .venv"
    return None


def _disk() -> str | None:
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    if free >= FREE_BYTES_MIN:
        return None
    sizes = f"{free / 2**30:.1f} GB left and the tests need {FREE_BYTES_MIN / 2**30:.0f} GB"
    return f"{folder} has {sizes}: free some, or set TMPDIR to another folder"
