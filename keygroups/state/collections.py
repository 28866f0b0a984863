"""The content of a key in a state of many entries: immutable lists and maps that can be extended cheaply."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

Entries: TypeAlias = Sequence[Any] | Mapping[Hashable, Any]
"""The content of one key: elements by position, or values by the identity of their map key. It is immutable: in memory
a `SharedList` or `immutables.Map`, on disk an object with the same interface."""


class SharedList(Sequence[Any]):
    """The first elements of a list that may continue to grow.

    `extended` appends to the underlying list if nothing was appended to it yet. So growing costs as much as the
    new elements only, and the list that a cut holds does not change. Only the thread that owns the operator may extend
    it; any thread may read it.

    Examples
    --------
    >>> short = SharedList([1, 2])
    >>> short.extended([3]), short
    (SharedList([1, 2, 3]), SharedList([1, 2]))
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
        """Return a list with more elements at the end; this list stays unchanged."""
        elements = self._elements
        if len(elements) != self._length:
            elements = elements[: self._length]
        elements.extend(more)
        return SharedList(elements)


def entries_of(content: Entries) -> Iterable[tuple[Hashable, Any]]:
    """Return the pairs of entry and value of a key."""
    return enumerate(content) if isinstance(content, Sequence) else content.items()


def entry_of(content: Entries, entry: Hashable, default: Any) -> Any:
    """Return one entry of a key, or a default if there is none."""
    if not isinstance(content, Sequence):
        return content.get(entry, default)
    # `MISSING`, which stands for all entries, is not an entry itself. Where a map is gone, an entry may be any integer.
    return content[entry] if isinstance(entry, int) and 0 <= entry < len(content) else default
