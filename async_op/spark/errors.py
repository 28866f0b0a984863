"""Errors of the Spark entry points."""

from __future__ import annotations

from async_op.errors import shorten
from keygroups.errors import KeyGroupsError


class OutputMismatch(KeyGroupsError, ValueError):
    """An output of the function does not fit `output_schema`.

    Attributes
    ----------
    output : str
        The output, shortened.
    column : str or None
        The column that does not fit; None if the whole output does not.
    reason : str
        What is wrong.
    """

    def __init__(self, output: object, column: str | None, reason: str) -> None:
        self.output: str = shorten(output)
        self.column = column
        self.reason = reason
        place = "" if column is None else f" in column {column!r}"
        super().__init__(
            f"output {self.output} does not fit output_schema{place}: {reason}; "
            "return dicts or tuples that have every column of output_schema in its type"
        )
