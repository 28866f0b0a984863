"""The command line: ``keygroups inspect``, ``plan``, ``repartition``, ``verify`` and ``doctor``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line on the arguments of this process, and exit with its code.

    Raises
    ------
    SystemExit
        0 done, 1 a check failed, 2 usage, 3 not found, 4 conflict or fenced.
    """
    try:
        from snapshots.cli.app import run
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in {"packaging", "rich", "typer"}:
            raise
        sys.exit(_missing(package))
    sys.exit(run(sys.argv[1:]))


def _missing(package: str) -> int:
    sys.stderr.write(f"error: the command line needs {package}, which is not installed: pip install 'keygroups[cli]'\n")
    return 2
