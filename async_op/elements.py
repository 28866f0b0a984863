"""Elements: records and watermarks, as they enter and leave an operator."""

from __future__ import annotations

from typing import Any, NamedTuple

from keygroups.representation import fields_repr


class Record(NamedTuple):
    """An output, with the timestamp of its input (milliseconds since the epoch, or None)."""

    value: Any
    timestamp: int | None

    def __repr__(self) -> str:
        return fields_repr(self)


class Watermark(NamedTuple):
    """A promise that no record with this timestamp or an earlier one follows (milliseconds since the epoch)."""

    timestamp: int


Element = tuple[Any, int | None, str | None]
"""An input: its value, timestamp and id."""
