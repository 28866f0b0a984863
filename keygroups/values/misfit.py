"""What is raised when a column would change a value."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError


class Misfit(KeyGroupsError, ValueError):
    """A column would change a value, or cannot hold it."""

    row: int
    """The index of the row among those that were passed."""
    column: str
    """The column, with the path to the value inside of it, such as ``address.zip`` or ``prices[2]``."""
    reason: str
    """Why the value does not fit. It never shows the value."""

    def _message(self) -> str:
        return f"row {self.row}, {self.place_and_reason}"

    @property
    def place_and_reason(self) -> str:
        """The column and the reason as one text, without the row."""
        return f"column {self.column!r}: {self.reason}" if self.column else self.reason


class Refusal(Exception):
    """A value does not fit; raised where neither its row nor its column is known yet."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason)

    def inside(self, step: str) -> Refusal:
        """Return the refusal as the container sees it."""
        return Refusal(self.reason, step + self.path)
