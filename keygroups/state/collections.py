"""What a key holds in a state of many entries: an immutable list or map, of which a longer one can be made cheaply."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

Entries: TypeAlias = Sequence[Any] | Mapping[Hashable, Any]
"""The content of one key: elements by their position, or values by the identity of their map key. Nothing changes one:
`SharedList` and `immutables.Map` in memory, on disk what reads as they do."""


class SharedList(Sequence[Any]):
    """The first elements of a list that may grow behind them.

    `extended` appends to the same list if nobody has before, so a list of any length grows at the price of what is
    appended, and what a cut holds stays as it is. Only the thread that owns the operator may extend it; any may read.

    Examples
    --------
    >>> short = SharedList([1, 2])
    >>> list(short.extended([3])), list(short)
    ([1, 2, 3], [1, 2])
    """

    __slots__ = ("_elements", "_length")

    def __init__(self, elements: list[Any], length: int | None = None) -> None:
        self._elements = elements
        self._length = len(elements) if length is None else length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements[: self._length])

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int) and 0 <= index < self._length:
            return self._elements[index]
        return self._elements[: self._length][index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedList) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SharedList({list(self)!r})"

    def extended(self, more: Iterable[Any]) -> SharedList:
        """Return a list with more elements at its end."""
        elements = self._elements
        if len(elements) != self._length:
            elements = elements[: self._length]
        elements.extend(more)
        return SharedList(elements)


def entries_of(content: Entries) -> Iterable[tuple[Hashable, Any]]:
    """Return the entries of a key."""
    return enumerate(content) if isinstance(content, Sequence) else content.items()


def entry_of(content: Entries, entry: Hashable, default: Any) -> Any:
    """Return one entry of a key, or a default where there is none."""
    if not isinstance(content, Sequence):
        return content.get(entry, default)
    # Neither has an entry that stands for all of them.
    return content[entry] if isinstance(entry, int) and entry < len(content) else default
