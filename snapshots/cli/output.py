"""The output of commands: data go to stdout, as tables or JSON; notes go to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rich.box import HEAVY_HEAD, Box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from keygroups.errors import ConfigError, KeyGroupsError, MissingCodec
from snapshots.errors import CommitConflict, SnapshotExists, SnapshotNotFound, WriterFenced
from snapshots.inspection import KeyGroupSizes, for_people

# Wide enough that tables in files and pipes are not wrapped at the 80 columns that rich assumes.
_WIDTH_WITHOUT_TERMINAL = 200

_WIDTH_UNLIMITED = 100_000

_VALUE_CHARACTERS_MAX = 400


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; without column names, it is a list of facts.

    Attributes
    ----------
    title : str
        What the rows show.
    columns : tuple of str
        The column names; may be empty.
    rows : tuple of tuples
        The rows. Numbers, including approximate ones (text that begins with ~), are aligned and grouped by thousands.
        None is shown as a dash.
    spare : tuple of str
        The columns that a narrow terminal goes without, the first of them first.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    spare: tuple[str, ...] = ()

    def without(self, column: str) -> Table:
        """Return the table without a column."""
        place = self.columns.index(column)
        rows = tuple((*row[:place], *row[place + 1 :]) for row in self.rows)
        return Table(self.title, (*self.columns[:place], *self.columns[place + 1 :]), rows, self.spare)


class Report(Protocol):
    """The result of a command."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatReport:
    """A report whose fields are its data for JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


class Output(Protocol):
    """Shows the result of a command."""

    def show(self, report: Report) -> None:
        """Write the data to stdout."""

    def note(self, text: str) -> None:
        """Write a remark to stderr."""


def output_for(*, as_json: bool) -> Output:
    """Return the output that the user chose."""
    return JsonOutput() if as_json else ConsoleOutput()


class JsonOutput:
    """Prints one JSON document; leaves out remarks, which are for people."""

    def show(self, report: Report) -> None:
        """Write the document to stdout."""
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")

    def note(self, text: str) -> None:
        """Do nothing: remarks are for people."""


class ConsoleOutput:
    """Prints tables with rich, in colour on a terminal."""

    def show(self, report: Report) -> None:
        """Write the tables to stdout."""
        console = new_console()
        for table in report.tables():
            # Not the table's own title, which rich would wrap to the width of the table.
            console.print(Text(table.title, style="bold"), soft_wrap=True)
            console.print(fitted(table, console))

    def note(self, text: str) -> None:
        """Write the remark to stderr."""
        sys.stderr.write(f"{text}\n")


def value_text(value: object) -> str:
    """Return a key or a value as JSON, which shows all characters; a long one is truncated."""
    return for_people.value_text(value, _VALUE_CHARACTERS_MAX)


def key_text(key: object) -> str:
    """Return a key as ``keygroups get`` takes it; a long one is truncated."""
    return for_people.key_text(key, _VALUE_CHARACTERS_MAX)


def new_console() -> Console:
    """Return the console for data; it is as wide as the terminal, if there is one."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def fitted(table: Table, console: Console) -> RichTable:
    """Return a table that fits the console: if need be without lines, and without columns that it can spare."""
    unlimited = console.options.update_width(_WIDTH_UNLIMITED)
    rendered = to_rich(table, HEAVY_HEAD)
    for column in (None, *table.spare):
        if console.measure(rendered, options=unlimited).maximum <= console.width:
            return rendered
        table = table if column is None else table.without(column)
        rendered = to_rich(table, None)
    return rendered


def to_rich(table: Table, box: Box | None) -> RichTable:
    """Return a table without its title; without a box, it has no lines."""
    width = len(table.columns) or max((len(row) for row in table.rows), default=0)
    rendered = RichTable(show_header=bool(table.columns), box=box, collapse_padding=box is None)
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


_LINES_MAX = 16
_BAR_WIDTH = 28
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar_chart(sizes: KeyGroupSizes) -> Table:
    """Draw the bytes of each key group; if there are many, each bar stands for several neighbours."""
    count = len(sizes.bytes)
    step = -(-count // _LINES_MAX)
    runs = [(first, min(first + step, count)) for first in range(0, count, step)]
    found = [(int((sizes.rows + sizes.delta_rows)[a:b].sum()), int(sizes.bytes[a:b].sum())) for a, b in runs]
    largest = max((bytes_ for _, bytes_ in found), default=0)
    rows = tuple(
        (f"{first}" if end == first + 1 else f"{first}-{end - 1}", rows, bytes_, bar(bytes_, largest))
        for (first, end), (rows, bytes_) in zip(runs, found, strict=True)
    )
    title = f"bytes by key group: the largest has {sizes.skew:.1f} times the average"
    return Table(title, ("key groups", "rows", "bytes", ""), rows)


def bar(value: int, largest: int, width: int = _BAR_WIDTH) -> str:
    """Draw a bar of at most so many characters, with a resolution of an eighth of one.

    Examples
    --------
    >>> bar(1, 1), bar(1, 80), bar(0, 1)
    ('████████████████████████████', '▍', '')
    """
    eighths = round(value * width * 8 / largest) if largest else 0
    whole, rest = divmod(eighths, 8)
    return _EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else "")


def sparkline(values: Sequence[int | None]) -> str:
    """Draw a column for each value, one character wide; a dot stands for a value that there is not.

    Examples
    --------
    >>> sparkline([0, 1, 50, None, 100])
    '▁▂▅·█'
    """
    largest = max((value for value in values if value is not None), default=0)
    steps = len(_HEIGHTS) - 1
    heights = (None if value is None else -(-value * steps // largest) if largest else 0 for value in values)
    return "".join("·" if height is None else _HEIGHTS[height] for height in heights)


CHECK_FAILED = 1
USAGE = 2
NOT_FOUND = 3
CONFLICT = 4


class NotFound(KeyGroupsError, LookupError):
    """What a command was asked for does not exist; the text says where it was looked for."""


def exit_code_of(error: Exception) -> int:
    """Return the exit code of an error that is shown without a traceback."""
    match error:
        case ConfigError():
            return USAGE
        case SnapshotNotFound() | NotFound():
            return NOT_FOUND
        case CommitConflict() | WriterFenced() | SnapshotExists():
            return CONFLICT
        case _:
            return CHECK_FAILED


def show_error(error: Exception) -> None:
    """Write the error's message, which says what to do next, to stderr."""
    sys.stderr.write(f"error: {error}\n")
    if isinstance(error, MissingCodec):
        sys.stderr.write("on the command line: keygroups --import MODULE, with the module that registers it\n")
