"""The Typer application with all commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from keygroups.errors import KeyGroupsError
from snapshots.cli.diff import diff
from snapshots.cli.doctor import doctor
from snapshots.cli.inspect import inspect, ls, report
from snapshots.cli.output import exit_code_of, show_error
from snapshots.cli.repartition import plan, repartition
from snapshots.cli.running import logs, top
from snapshots.cli.running import run as run_command
from snapshots.cli.state import edit, export, get
from snapshots.cli.upkeep import claim, compact, copy, gc, pin, unpin, verify
from snapshots.cli.version import version_text


class Command(TyperCommand):
    """A command whose usage names its arguments as the documentation does."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line; releases of Typer differ in the marks that they put around arguments."""
        arguments = [param.metavar for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return [*map(str, arguments), "[OPTIONS]"]


class Group(TyperGroup):
    """The program, whose list of commands has whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; the inherited one cuts each text at the end of its line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(str(one.help).split())) for name, one in self.commands.items()])


app = typer.Typer(
    name="keygroups",
    epilog="Exit codes: 0 done, 1 a check failed, 2 usage, 3 not found, 4 conflict or fenced.",
    no_args_is_help=True,
    cls=Group,
    # Plain help: the panels of rich cut names of options on a narrow terminal, and show flags as if they took a value.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    # The traceback of a bug is for a bug report: complete, plain, and without the values of local variables.
    pretty_exceptions_enable=False,
)
app.command("run", cls=Command)(run_command)
# In the order of tasks: look, check, rescale, change, clean up.
for command in (
    *(doctor, ls, inspect, get, top, logs, report, diff, export, verify),
    *(plan, repartition, edit, copy, compact, claim, gc, pin, unpin),
):
    app.command(cls=Command)(command)

Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="Import a module first, such as one that registers codecs."),
]


def show_version(wanted: bool) -> None:
    """Print the version of the project, and end."""
    if wanted:
        sys.stdout.write(f"keygroups {version_text()}\n")
        raise typer.Exit


ShowVersion = Annotated[
    bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def prepare(import_: Imports = None, version: ShowVersion = False) -> None:
    """List, inspect, watch, check, change, rescale and clean up snapshots."""
    for name in import_ or ():
        if "" not in sys.path:
            sys.path.insert(0, "")  # as `python -m` does
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise typer.BadParameter(f"{name!r} cannot be imported: {error}", param_hint="--import") from error


program = typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

    Parameters
    ----------
    arguments : sequence of str
        The arguments without the program's name.

    Returns
    -------
    int
        The exit code for an error of the project or the storage.

    Raises
    ------
    SystemExit
        In all other cases, with the exit code.
    """
    try:
        program(args=list(arguments), prog_name="keygroups")
    except (KeyGroupsError, OSError) as error:
        show_error(error)
        return exit_code_of(error)
    return 0
