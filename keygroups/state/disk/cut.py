"""The cut of a state on disk: a view of the store, which is read in bounded pieces."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from functools import cached_property
from typing import Any

from immutables import Map

from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import MISSING
from keygroups.state.collections import SharedList
from keygroups.state.disk.change_tracking import parts_of
from keygroups.state.disk.encoding import CHANGED, CONTENT, WHOLE, RowEncoding
from keygroups.state.disk.store import CHUNK_ROWS, Row, View
from keygroups.state.expiring_values import HOLE
from keygroups.state.group import KeyGroupContent, StateRows, TakeRows
from keygroups.state.key_identity import original_of

Kinds = Mapping[str, frozenset[type]]
"""The types of keys and map keys that a table has seen, including removed keys."""


class StoredGroups(Mapping[int, KeyGroupContent]):
    """The non-empty key groups of a state at a cut. Any thread may call it.

    All of them are found when they are first iterated over. A small delta asks for a few of thousands.

    Parameters
    ----------
    view : View
        The store at the cut.
    format_ : RowEncoding
        The encoding of the state.
    owned : KeyGroupRange
        The key groups of the subtask.
    unloaded : mapping of int to KeyGroupContent
        The restored key groups that are not in the store yet.
    kinds : mapping of str to frozenset of type
        The types that the keys may have.
    """

    def __init__(
        self,
        view: View,
        format_: RowEncoding,
        owned: KeyGroupRange,
        unloaded: Mapping[int, KeyGroupContent],
        kinds: Kinds,
    ) -> None:
        self._view = view
        self._format = format_
        self._owned = owned
        self._unloaded = unloaded
        self._kinds = kinds

    @cached_property
    def _found(self) -> dict[int, KeyGroupContent]:
        stored = _key_groups(self._view, self._format, CONTENT, self._owned)
        groups: dict[int, KeyGroupContent] = {
            key_group: StoredGroup(self._view, self._format, key_group, self._kinds) for key_group in stored
        }
        # If a key group was being loaded, some of its rows may already be there.
        return groups | {key_group: group for key_group, group in self._unloaded.items() if group.in_memory() != {}}

    def __getitem__(self, key_group: int) -> KeyGroupContent:
        unloaded = self._unloaded.get(key_group)
        if unloaded is not None and unloaded.in_memory() != {}:
            return unloaded
        if _next_key_group(self._view, self._format, CONTENT, key_group) != key_group:
            raise KeyError(key_group)
        return StoredGroup(self._view, self._format, key_group, self._kinds)

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class StoredGroup:
    """One key group at a cut. Any thread may call it."""

    __slots__ = ("_format", "_key_group", "_kinds", "_view")

    def __init__(self, view: View, format_: RowEncoding, key_group: int, kinds: Kinds) -> None:
        self._view = view
        self._format = format_
        self._key_group = key_group
        self._kinds = kinds

    def load(self) -> dict[Hashable, object]:
        """Read all values into memory, by the identity of their key."""
        if not self._format.has_entries:
            return {key: value for rows in self._pieces() for key, value in zip(rows.keys, rows.values, strict=True)}
        held: dict[Hashable, dict[Any, object]] = {}
        for rows in self._pieces():
            assert rows.entries is not None, "the state has many entries per key"
            for key, entry, value in zip(rows.keys, rows.entries, rows.values, strict=True):
                held.setdefault(key, {})[entry] = value
        if self._format.is_list:
            return {
                key: SharedList([entries.get(at, HOLE) for at in range(max(entries) + 1)])
                for key, entries in held.items()
            }
        return {key: Map(entries) for key, entries in held.items()}

    def in_memory(self) -> None:
        """Return None: the values are on disk."""

    def kinds(self, column: str, keys_max: int | None = None) -> frozenset[type]:
        """Return the types that the keys or map keys may have."""
        kinds = self._kinds[column]
        if len(kinds) <= 1:
            return kinds
        parts = (self._format.split(row[self._start :]) for chunk in self._chunks() for row, _ in chunk)
        if column == "key":
            return frozenset(type(original_of(self._format.identity(key))) for key, _ in parts)
        return frozenset(type(original_of(self._format.entry_of(entry))) for _, entry in parts)

    def rows(self, changed: Collection[Any] | None = None) -> TakeRows:
        """Return a function that returns the next rows: all rows, or the rows of changed keys or entries."""
        pieces = self._pieces(changed)
        left: list[tuple[Any, Any, Any]] = []

        def take(count: int) -> StateRows:
            while len(left) < count and (piece := next(pieces, None)) is not None:
                left.extend(zip(piece.keys, piece.entries or piece.keys, piece.values, strict=True))
            taken = left[:count]
            del left[:count]
            entries = [row[1] for row in taken] if self._format.has_entries else None
            return StateRows([row[0] for row in taken], entries, [row[2] for row in taken])

        return take

    def stored(self) -> None:
        """Return None: the rows have to be encoded."""

    def _pieces(self, changed: Collection[Any] | None = None) -> Iterator[StateRows]:
        if changed is None:
            for chunk in self._chunks():
                yield self._decoded(chunk)
            return
        assert isinstance(changed, ChangedRows), "changes come from the cut of this group"
        prefix = self._format.prefix(CONTENT, self._key_group)
        for parts in changed.parts():
            yield self._decoded_or_missing([(part, self._view.get(prefix + part)) for part in parts])

    @property
    def _start(self) -> int:
        return len(self._format.prefix(CONTENT, self._key_group))

    def _chunks(self) -> Iterator[list[Row]]:
        return self._view.chunks(self._format.prefix(CONTENT, self._key_group))

    def _decoded(self, chunk: list[Row]) -> StateRows:
        format_, start = self._format, self._start
        if not format_.has_entries:
            keys = [format_.identity(row[start:]) for row, _ in chunk]
            return StateRows(keys, None, [format_.decode(data) for _, data in chunk])
        return self._decoded_entries([(row[start:], data) for row, data in chunk], keep_whole=False)

    def _decoded_or_missing(self, parts: list[tuple[bytes, bytes | None]]) -> StateRows:
        format_ = self._format
        if format_.has_entries:
            return self._decoded_entries(parts, keep_whole=True)
        keys = [format_.identity(part) for part, _ in parts]
        return StateRows(keys, None, [MISSING if data is None else format_.decode(data) for _, data in parts])

    def _decoded_entries(self, parts: list[tuple[bytes, bytes | None]] | list[Row], *, keep_whole: bool) -> StateRows:
        format_ = self._format
        rows = StateRows([], [], [])
        assert rows.entries is not None
        before, identity = b"", None
        for part, data in parts:
            key, entry = format_.split(part)
            if entry == WHOLE and not keep_whole:
                continue
            if key != before:
                before, identity = key, format_.identity(key)
            rows.keys.append(identity)
            rows.entries.append(format_.entry_of(entry))
            rows.values.append(MISSING if data is None or entry == WHOLE else format_.decode(data))
        return rows


class ChangedGroups(Mapping[int, "ChangedRows | None"]):
    """The changed keys of a state at a cut by key group; None for a group in `whole`. Any thread may call it."""

    def __init__(self, view: View, format_: RowEncoding, owned: KeyGroupRange, whole: frozenset[int]) -> None:
        self._whole = whole
        self._view = view
        self._format = format_
        self._owned = owned

    @cached_property
    def _found(self) -> dict[int, ChangedRows | None]:
        changed = _key_groups(self._view, self._format, CHANGED, self._owned)
        found = {key_group: ChangedRows(self._view, self._format, key_group) for key_group in changed}
        return found | dict.fromkeys(self._whole)

    def __getitem__(self, key_group: int) -> ChangedRows | None:
        return self._found[key_group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class ChangedRows(Collection[Any]):
    """The keys of a key group, or pairs of key and entry, that were written or removed. Any thread may call it."""

    def __init__(self, view: View, format_: RowEncoding, key_group: int) -> None:
        self._view = view
        self._format = format_
        self._prefix = format_.prefix(CHANGED, key_group)

    @cached_property
    def _count(self) -> int:
        return len(self._all())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        format_ = self._format
        for parts in self.parts():
            for key, entry in map(format_.split, parts):
                identity = format_.identity(key)
                yield (identity, format_.entry_of(entry)) if format_.has_entries else identity

    def __contains__(self, changed: object) -> bool:
        return any(one == changed for one in self)

    def parts(self) -> Iterator[list[bytes]]:
        """Yield the rest of each row after the prefix, without duplicates and in order, in bounded lists."""
        parts = sorted(self._all())
        for start in range(0, len(parts), CHUNK_ROWS):
            yield parts[start : start + CHUNK_ROWS]

    def _all(self) -> set[bytes]:
        """Read all notes of the key group, at most `NOTES_MAX`."""
        return {part for chunk in self._view.chunks(self._prefix) for _, data in chunk for part in parts_of(data)}


def _key_groups(view: View, format_: RowEncoding, kind: bytes, owned: KeyGroupRange) -> Iterator[int]:
    """Return the key groups that have rows, by seeking from one to the next."""
    start = owned.start
    while start <= owned.end and (key_group := _next_key_group(view, format_, kind, start)) is not None:
        yield key_group
        start = key_group + 1


def _next_key_group(view: View, format_: RowEncoding, kind: bytes, start: int) -> int | None:
    """Return the first key group from `start` on that has rows; None if there is none."""
    prefix = format_.prefix(kind, start)
    row = view.first(prefix)
    if row is None or not row.startswith(prefix[:-2]):
        return None
    return int.from_bytes(row[len(prefix) - 2 :][:2], "big")
