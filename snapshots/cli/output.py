"""Where a command's answer goes: data to stdout, as tables or as JSON; notes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

# Wide enough that a table in a file or a pipe is not folded at the 80 columns that rich assumes there.
_WIDTH_WITHOUT_TERMINAL = 200


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; without column names, a list of facts.

    Attributes
    ----------
    title : str
        What the rows are.
    columns : tuple of str
        Their names; may be empty.
    rows : tuple of tuples
        Numbers (also approximate ones: text that begins with ~) are aligned and grouped by thousands, None is
        shown as a dash.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


class Report(Protocol):
    """The answer of a command."""

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, for programs."""

    def tables(self) -> Iterable[Table]:
        """Return the form for people."""


class Output(Protocol):
    """The way in which a command answers."""

    def show(self, report: Report) -> None:
        """Write the data to stdout."""

    def note(self, text: str) -> None:
        """Write a remark to stderr."""


def output_for(*, as_json: bool) -> Output:
    """Return the output that the user has chosen."""
    return JsonOutput() if as_json else ConsoleOutput()


class JsonOutput:
    """One JSON document; remarks are for people, and left out."""

    def show(self, report: Report) -> None:
        """Write the document to stdout."""
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")

    def note(self, text: str) -> None:
        """Say nothing."""


class ConsoleOutput:
    """Tables by rich, in colour on a terminal."""

    def show(self, report: Report) -> None:
        """Write the tables to stdout."""
        console = Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
        for table in report.tables():
            # Not as the table's own title, which would be folded to the table's width.
            console.print(Text(table.title, style="bold"), soft_wrap=True)
            console.print(_to_rich(table))

    def note(self, text: str) -> None:
        """Write the remark to stderr."""
        sys.stderr.write(f"{text}\n")


def _to_rich(table: Table) -> RichTable:
    width = len(table.columns) or max((len(row) for row in table.rows), default=0)
    rendered = RichTable(show_header=bool(table.columns))
    for index in range(width):
        heading = table.columns[index] if table.columns else ""
        is_number = bool(table.columns) and all(_is_number(row[index]) for row in table.rows)
        rendered.add_column(heading, justify="right" if is_number else "left", overflow="fold")
    for row in table.rows:
        rendered.add_row(*(Text(_cell(value)) for value in row))
    return rendered


def _is_number(value: object) -> bool:
    return isinstance(value, int | None) or str(value).startswith("~")


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case _:
            return str(value)
