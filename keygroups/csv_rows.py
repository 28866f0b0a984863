"""Rows of CSV that are read back as they were written, by any reader."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any


class CsvWriter:
    r"""Writes rows as `csv.writer` does, with ``\n`` as the end of a line.

    `csv.writer` quotes a field with a bare ``\r`` only if ``\r`` is part of its line end; without quotes, a reader
    takes that ``\r`` for the end of the row.

    Parameters
    ----------
    file : text file
        A file that was opened with ``newline=""``.

    Examples
    --------
    >>> import io
    >>> file = io.StringIO(newline="")
    >>> CsvWriter(file).writerows([["a", "b"], ["one\rtwo", 3]])
    >>> file.getvalue()
    'a,b\n"one\rtwo","3"\n'
    """

    def __init__(self, file: Any) -> None:
        self._usual = csv.writer(file, lineterminator="\n")
        self._quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def writerow(self, fields: Sequence[Any]) -> None:
        """Write one row."""
        needs_quotes = any(isinstance(field, str) and "\r" in field for field in fields)
        (self._quoted if needs_quotes else self._usual).writerow(fields)

    def writerows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows."""
        for row in rows:
            self.writerow(row)
