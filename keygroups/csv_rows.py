"""Rows of CSV that are read back as they were written, by any reader."""

from __future__ import annotations

import re
from collections.abc import Iterable

_QUOTED = re.compile(r'[",\r\n]')
"""What a cell needs quotes for; `csv.writer` has none for a bare carriage return, which readers take for a line end."""


def csv_line(cells: Iterable[str | None]) -> str:
    r"""Return cells as a line of CSV: None is an empty cell, and empty text is a pair of quotes.

    Examples
    --------
    >>> csv_line(["a,b", None, ""])
    '"a,b",,""\n'
    """
    written = [*map(_quoted, cells)]
    # Readers skip an empty line.
    return (",".join(written) if len(written) != 1 else written[0] or '""') + "\n"


def _quoted(cell: str | None) -> str:
    if cell is None:
        return ""
    return f'"{cell.replace(chr(34), chr(34) * 2)}"' if not cell or _QUOTED.search(cell) else cell
