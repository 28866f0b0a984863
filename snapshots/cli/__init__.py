"""The command line: ``keygroups ls``, ``inspect``, ``get``, ``top``, ``plan``, ``repartition``, ``gc`` and others."""

from __future__ import annotations

import sys

from snapshots.cli.version import version_text

__all__ = ["main"]

# The bare library installs the command too, which then has to say what is missing.
_HELP_WITHOUT_EXTRA = """\
Usage: keygroups COMMAND [ARGS]...

List, inspect, watch, check, change, rescale and clean up snapshots: ls, inspect, get, top, plan, repartition, diff,
export, report, edit, copy, compact, claim, verify, gc, pin, unpin, doctor.

The commands need packages that are not installed: pip install 'keygroups[cli]'
"""


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
        if package not in {"jinja2", "markupsafe", "packaging", "rich", "typer"}:
            raise
        sys.exit(_run_without(package))
    sys.exit(run(sys.argv[1:]))


def _run_without(package: str) -> int:
    if {"--help", "-h"} & set(sys.argv):
        sys.stdout.write(_HELP_WITHOUT_EXTRA)
        return 0
    if "--version" in sys.argv[1:2]:
        sys.stdout.write(f"keygroups {version_text()}\n")
        return 0
    sys.stderr.write(f"error: the command line needs {package}, which is not installed: pip install 'keygroups[cli]'\n")
    return 2
