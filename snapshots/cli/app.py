"""The Typer application: which commands there are."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from keygroups.errors import KeyGroupsError
from snapshots.cli.compact import compact
from snapshots.cli.diff import diff
from snapshots.cli.doctor import doctor
from snapshots.cli.errors import exit_code_of, show_error
from snapshots.cli.export import export
from snapshots.cli.gc import gc, pin, unpin
from snapshots.cli.inspect import inspect
from snapshots.cli.plan import plan
from snapshots.cli.repartition import repartition
from snapshots.cli.report import report
from snapshots.cli.verify import verify

app = typer.Typer(
    name="keygroups",
    help="Look at, check, rescale and clean up snapshots.",
    epilog="Exit codes: 0 done, 1 a check failed, 2 usage, 3 not found, 4 conflict or fenced.",
    no_args_is_help=True,
    add_completion=False,
    # A bug's traceback is for a bug report: whole, plain, and without the values of local variables.
    pretty_exceptions_enable=False,
)
for command in (inspect, plan, repartition, diff, export, report, compact, verify, gc, pin, unpin, doctor):
    app.command()(command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Parameters
    ----------
    arguments : sequence of str
        Without the program's name.

    Returns
    -------
    int
        The exit code of an error that the project or the storage raised.

    Raises
    ------
    SystemExit
        In every other case, with the exit code.
    """
    try:
        app(args=list(arguments), prog_name="keygroups")
    except (KeyGroupsError, OSError) as error:
        show_error(error)
        return exit_code_of(error)
    return 0
