"""How the commands show their help: as plain text, which no release of Typer and no narrow terminal cuts."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


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
