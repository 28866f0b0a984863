"""The command line: ``keygroups ls``, ``inspect``, ``get``, ``top``, ``plan``, ``repartition``, ``gc`` and others."""

from __future__ import annotations

import io
import os
import sys

from snapshots.cli.version import version_text

__all__ = ["main"]

# As a shell reports a process that SIGINT or SIGPIPE has ended.
_STOPPED = 130
_NOBODY_READS = 141

# The bare library installs the command too, which then has to say what is missing.
_HELP_WITHOUT_EXTRA = """\
Usage: keygroups COMMAND [ARGS]...

List, inspect, watch, check, change, rescale and clean up snapshots: ls, inspect, get, top, logs, plan, repartition,
diff, export, report, edit, copy, compact, claim, verify, gc, pin, unpin, doctor. Run jobs: run.

The commands need packages that are not installed: pip install 'keygroups[cli]'
"""


def main() -> None:
    """Run the command line on the arguments of this process, and exit with its code.

    Raises
    ------
    SystemExit
        0 done, 1 a check failed, 2 usage, 3 not found, 4 conflict or fenced, 130 stopped, 141 output no longer read.
    """
    _prepare_streams()
    code: int | str | None
    try:
        code = _run()
    except SystemExit as leaving:
        # Both packages that write to stdout turn a broken pipe into an exit with 1, which here means a failed check.
        code = _NOBODY_READS if isinstance(leaving.__context__, BrokenPipeError) else leaving.code
    except KeyboardInterrupt:
        code = _STOPPED
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _NOBODY_READS
        # Otherwise the interpreter tries to write the rest at its end, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> int:
    try:
        from snapshots.cli.app import run
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in {"jinja2", "markupsafe", "packaging", "rich", "typer"}:
            raise
        return _run_without(package)
    return run(sys.argv[1:])


def _run_without(package: str) -> int:
    if {"--help", "-h"} & set(sys.argv):
        sys.stdout.write(_HELP_WITHOUT_EXTRA)
        return 0
    if "--version" in sys.argv[1:2]:
        sys.stdout.write(f"keygroups {version_text()}\n")
        return 0
    sys.stderr.write(f"error: the command line needs {package}, which is not installed: pip install 'keygroups[cli]'\n")
    return 2
