"""Elements: records and watermarks, as they enter and leave an operator."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

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


class Ids(Protocol):
    """Ids that are made only if somebody asks for one. Any thread may ask."""

    def __getitem__(self, index: int, /) -> str:
        """Return one id; asked again, the same."""
        ...


ElementId: TypeAlias = str | tuple[Ids, int]
"""An id, or where to look it up."""

Element: TypeAlias = tuple[Any, int | None, ElementId | None]
"""An input: its value, timestamp and id."""


def looked_up(element_id: ElementId | None) -> str | None:
    """Return an id, which is made now if nobody has asked for it before."""
    if element_id is None or isinstance(element_id, str):
        return element_id
    ids, index = element_id
    return ids[index]
