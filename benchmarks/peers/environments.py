"""A virtual environment for each system that is not a dependency of the project, kept in the user's cache folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.peer import Unavailable

INSTALL_SECONDS_MAX = 3600


def python_with(requirements: tuple[str, ...]) -> Path:
    """Return a Python that has the requirements, and install them if they are missing.

    Raises
    ------
    Unavailable
        They cannot be installed.
    """
    if not requirements:
        return Path(sys.executable)
    folder = cache_folder() / re.sub(r"[^\w.]+", "-", "-".join(requirements)).strip("-")
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"installing {', '.join(requirements)} into {folder}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
        done.touch()
    return python


def cache_folder() -> Path:
    """Return the folder of all environments, below `XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keygroups-peers"


def _run(command: list[str]) -> None:
    try:
        subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=INSTALL_SECONDS_MAX
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"not installed after {INSTALL_SECONDS_MAX} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stdout.decode(errors="replace").strip().splitlines() or ["no output"]
        raise Unavailable(f"cannot be installed: {lines[-1]}") from error
