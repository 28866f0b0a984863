"""One key of a snapshot: its rows in the states, and what is in flight for it."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice, product
from typing import Any

import numpy as np
import pyarrow as pa

from keygroups.codec import pack
from keygroups.errors import ConfigError, NullKey, UnsupportedKey
from keygroups.hashing import key_group_of
from keygroups.ranges import KeyGroupRange, subtask_of
from keygroups.representation import fields_repr
from keygroups.state import identity_of, original_of
from snapshots.format import compute as pc
from snapshots.format.columns import is_packed, key_kind_of
from snapshots.format.in_flight_columns import decoded, in_flight_elements
from snapshots.format.manifest import StateInfo, manifest_name
from snapshots.format.parquet import ParquetReader
from snapshots.format.schemas import ENTRY_COLUMNS, EXPIRES_AT
from snapshots.format.steps import step_of
from snapshots.format.subtask import InFlightElement
from snapshots.restore.reader import KeyedReader, StateReader, decode_column, merge, stored_key_type
from snapshots.restore.snapshot import Snapshot

KEYS_MAX = 64
"""The most keys that one text is read as; each may need a request."""

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One row of a key.

    Attributes
    ----------
    entry : object
        In a list the position, in a map the map key; else None.
    value : object
        The value.
    expires_at : int or None
        When the value expires, in milliseconds since 1970; None if it has no time to live.
    """

    entry: Any
    value: Any
    expires_at: int | None

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True)
class StateOfKey:
    """The rows of a key in one state."""

    name: str
    kind: str
    rows: tuple[KeyRow, ...]

    __repr__ = fields_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyContent:
    """What a snapshot holds of one key.

    Attributes
    ----------
    key : object
        The key, in the type in which it was found.
    key_group, subtask : int
        Where it belongs, for the snapshot's own parallelism.
    states : tuple of StateOfKey
        The states that have rows of the key.
    in_flight : tuple of InFlightElement
        The elements with this key, in the order of their queues.
    steps : tuple of (str or None)
        For each of these elements, the step of the job that it is in; None for the elements of an operator.
    """

    key: Any
    key_group: int
    subtask: int
    states: tuple[StateOfKey, ...]
    in_flight: tuple[InFlightElement, ...]
    steps: tuple[str | None, ...]

    __repr__ = fields_repr


def find_key(snapshot: Snapshot, texts: Sequence[str], state_name: str | None = None) -> KeyContent | None:
    """Look up one key that a person has typed; of each file, only the row groups of its key group are read.

    A text says nothing about the type of its key: 42 may be an integer or a word. The keys that are stored tell. What
    they look like is tried first, then the other types that the text can be read as.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    texts : sequence of str
        The key, one text for each key column. Bytes are Base64, and times are in ISO 8601.
    state_name : str, optional
        Look into this state; by default into all.

    Returns
    -------
    KeyContent or None
        None if no state has the key and nothing is in flight for it.

    Raises
    ------
    ConfigError
        There is no such state.
    SnapshotCorrupted
        A file is damaged.
    """
    if state_name is not None and snapshot.manifest.state(state_name) is None:
        raise ConfigError("state_name", state_name, f"the snapshot has the states {list(snapshot.state_names)}")
    infos = [info for info in snapshot.manifest.states if state_name in (None, info.name)]
    reader = _KeyReader(snapshot)
    for key in keys_from(texts, like=reader.example(infos)):
        for key_group in _key_groups(key, snapshot):
            elements = list(reader.in_flight(key, key_group))
            content = KeyContent(
                key=key,
                key_group=key_group,
                subtask=subtask_of(key_group, snapshot.parallelism, snapshot.max_parallelism),
                states=tuple(state for info in infos if (state := reader.state(info, key, key_group)).rows),
                in_flight=tuple(element for element, _ in elements),
                steps=tuple(step for _, step in elements),
            )
            if content.states or content.in_flight:
                return content
    return None


def _key_groups(key: Hashable, snapshot: Snapshot) -> Iterator[int]:
    """Yield the key groups that a key may have: none if it cannot be hashed."""
    max_parallelism, hash_ = snapshot.max_parallelism, snapshot.manifest.hash
    try:
        yield key_group_of(key, max_parallelism, hash_)
        if hash_ == "flink" and type(key) is int and -(2**31) <= key < 2**31:
            yield key_group_of(np.int32(key), max_parallelism, hash_)  # a Java Integer, stored like a Long
    except (NullKey, UnsupportedKey, OverflowError):
        return


class _KeyReader:
    """Reads the rows of keys; each footer is read once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        path = snapshot.folder.path(manifest_name(snapshot.version))
        self._states = {
            info.name: StateReader(snapshot.folder, snapshot.manifest.files_of("keyed", "delta", state=info.name), path)
            for info in snapshot.manifest.states
        }
        self._in_flight = [
            ParquetReader(snapshot.folder, file) for file in snapshot.manifest.files_of("in_flight") if file.rows
        ]

    def example(self, infos: Sequence[StateInfo]) -> type | tuple[type, ...] | None:
        """Return the type of some stored key, for a key of several columns the types of its columns."""
        for info in infos:
            for _, layers in self._states[info.name].spans(KeyGroupRange(0, self._snapshot.max_parallelism - 1)):
                base = layers[0]
                if base.file.rows:
                    kind = key_kind_of(stored_key_type(base))
                    return self._type_of_first_key(base) if kind is object else kind
        return None

    def _type_of_first_key(self, layer: KeyedReader) -> type | tuple[type, ...]:
        """Return the type of a key that is stored as msgpack; this reads one row group."""
        rows = ParquetReader(self._snapshot.folder, layer.file).read([0])
        key = decode_column(rows.slice(0, 1), "key")[0]
        return tuple(map(type, key)) if isinstance(key, tuple) else type(key)

    def state(self, info: StateInfo, key: Hashable, key_group: int) -> StateOfKey:
        """Return the rows of a key in one state; files whose keys are all of another type are not read."""
        wanted = KeyGroupRange(key_group, key_group)
        ((_, layers),) = self._states[info.name].spans(wanted)
        kind = type(key)
        if not any(layer.file.rows and key_kind_of(stored_key_type(layer)) in (kind, object) for layer in layers):
            return StateOfKey(info.name, info.kind, ())
        table = merge([layer.read(wanted) for layer in layers])
        return StateOfKey(info.name, info.kind, _rows_of(table.filter(_is_key(table, key)), info.kind))

    def in_flight(self, key: Hashable, key_group: int) -> Iterator[tuple[InFlightElement, str | None]]:
        """Yield the elements with a key, each with its step."""
        identity = identity_of(key)
        for reader in self._in_flight:
            if key_group not in reader.file.file_key_groups:
                continue
            table = reader.read(reader.row_groups(key_group, key_group))
            table = table.filter(pc.equal(table.column("key_group"), key_group))
            keys = decoded(table, "key")
            places = [at for at, other in enumerate(keys) if other is not None and identity_of(other) == identity]
            step = step_of(self._snapshot.manifest, reader.file)
            yield from ((one, step) for one in in_flight_elements(pc.take(table, np.array(places, np.int64))))


def _is_key(table: pa.Table, key: Hashable) -> pa.ChunkedArray:
    column = table.column("key")
    if is_packed(table.schema.field("key")):
        return pc.equal(column, pa.scalar(pack(original_of(identity_of(key)), "the key"), pa.binary()))
    if key != key:
        return pc.is_nan(column)
    return pc.equal(column, pa.scalar(key, column.type))  # of the key's own type: other files are not read


def _rows_of(table: pa.Table, kind: str) -> tuple[KeyRow, ...]:
    entry = ENTRY_COLUMNS.get(kind)
    entries = [None] * table.num_rows if entry is None else decode_column(table, entry)
    expires_at = table.column(EXPIRES_AT).to_pylist() if EXPIRES_AT in table.schema.names else [None] * len(entries)
    rows = [KeyRow(*row) for row in zip(entries, decode_column(table, "value"), expires_at, strict=True)]
    return tuple(sorted(rows, key=lambda row: row.entry) if kind == "list" else rows)


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: dict[type, Callable[[str], Any]] = {
    int: int,
    str: str,
    float: float,
    bool: lambda text: _BOOLEANS[text.lower()],
    dt.date: dt.date.fromisoformat,
    dt.datetime: dt.datetime.fromisoformat,
    Decimal: Decimal,
    bytes: _bytes_of,
}
"""How a text becomes a value of each type of key, the likely ones first."""


def keys_from(texts: Sequence[str], like: type | tuple[type, ...] | None = None) -> Iterator[Hashable]:
    """Yield the keys that texts may stand for, the likely ones first, at most `KEYS_MAX`.

    Parameters
    ----------
    texts : sequence of str
        One text for each key column.
    like : type or tuple of types, optional
        The type of a key that is known; for several columns, the type of each.

    Examples
    --------
    >>> list(keys_from(["42"], like=int))[:2]
    [42, '42']
    >>> list(keys_from(["ann", "7"], like=(str, int)))[0]
    ('ann', 7)
    >>> list(keys_from(['"ann"']))
    ['"ann"', 'ann']
    """
    if len(texts) == 1 and not isinstance(like, tuple):
        yield from islice(readings(texts[0], like), KEYS_MAX)
        return
    kinds = like if isinstance(like, tuple) and len(like) == len(texts) else (None,) * len(texts)
    yield from islice(product(*map(readings, texts, kinds)), KEYS_MAX)


def readings(text: str, like: type | None = None) -> Iterator[Hashable]:
    """Yield the values that a text may stand for: as the type `like` if it can be, then as the other types.

    Text in quotes is also read as JSON, because commands show keys in that form. So is text with backslashes, because a
    shell removes the quotes.
    """
    for kind in dict.fromkeys([like, *_READERS]):
        read = None if kind is None else _READERS.get(kind)
        if read is None:
            continue
        try:
            yield read(text)
        except (ValueError, KeyError, InvalidOperation, binascii.Error, OverflowError):
            continue
    unquoted = _unquoted(text)
    if unquoted is not None:
        yield from readings(unquoted, like)


def _unquoted(text: str) -> str | None:
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    if not is_quoted and "\\" not in text:
        return None
    try:
        return str(json.loads(text if is_quoted else f'"{text}"'))
    except ValueError:
        return None
