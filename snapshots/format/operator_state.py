"""Operator state: one file per state and subtask, and its redistribution after a rescale."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any

import pyarrow as pa

from keygroups.codec import pack, unpack
from keygroups.operator_state import broadcast, split, union
from snapshots.filesystem import Folder
from snapshots.format.columns import PACKED
from snapshots.format.manifest import DataFile, Manifest
from snapshots.format.parquet import ParquetReader, damage_named
from snapshots.format.subtask import OperatorStateCut

OPERATOR_STATE_SCHEMA = pa.schema([pa.field("item", pa.binary(), False, PACKED)])


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A selection of the items of a file, in order."""

    file: DataFile
    start: int
    end: int


def operator_state_table(state: OperatorStateCut) -> pa.Table:
    """Encode the items of an operator state as a table."""
    where = f"operator state {state.name!r}"
    items = pa.array([pack(item, where) for item in state.items], pa.binary())
    return pa.Table.from_arrays([items], schema=OPERATOR_STATE_SCHEMA)


def digest_of(state: OperatorStateCut) -> str:
    """Return a digest that is the same for equal items, whatever the order of their sets and dicts."""
    where = f"operator state {state.name!r}"
    digest = hashlib.sha256()
    for item in state.items:
        packed = pack(_in_order(item, where), where)
        digest.update(len(packed).to_bytes(8, "big") + packed)
    return digest.hexdigest()


def _in_order(value: Any, where: str) -> Any:
    """Replace sets and dicts, whose order differs from process to process, by lists in an order of their own."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(_in_order(item, where) for item in value)
    if kind is dict:
        pairs = ([_in_order(key, where), _in_order(item, where)] for key, item in value.items())
        return ["dict", sorted(pairs, key=lambda pair: pack(pair[0], where))]
    if kind is set or kind is frozenset:
        return [kind.__name__, sorted((_in_order(item, where) for item in value), key=lambda one: pack(one, where))]
    return value


def read_items(folder: Folder, slices: Iterable[FileSlice]) -> list[object]:
    """Read the selected items of some files, one file after the other."""
    items: list[object] = []
    for part in slices:
        reader = ParquetReader(folder, part.file)
        table = reader.read_all()
        with damage_named(reader.path, part.file.key_groups):
            items += map(unpack, table.column("item").slice(part.start, part.end - part.start).to_pylist())
    return items


def own_runs(manifest: Manifest, parallelism: int, subtask_index: int) -> dict[str, tuple[int, int]]:
    """Return, for each union state, which run of its items a subtask keeps; it only gets to see the others.

    If every subtask kept all items, their number would grow with each restore.
    """
    rows = {(file.state, file.subtask): file.rows for file in manifest.files_of("operator")}
    numbered: dict[str, list[range]] = {}
    for state in manifest.operator_states:
        if state.mode == "union":
            ends = list(accumulate((rows.get((state.name, one.subtask), 0) for one in manifest.channels), initial=0))
            numbered[state.name] = [range(*run) for run in pairwise(ends)]
    own = {name: new[subtask_index] for name, new in split(numbered, parallelism).items()}
    return {name: (items[0], items[-1] + 1) if items else (0, 0) for name, items in own.items()}


def shares(manifest: Manifest, parallelism: int, subtask_index: int) -> dict[str, tuple[FileSlice, ...]]:
    """Return which items of each state a subtask gets, without reading them.

    Parameters
    ----------
    manifest : Manifest
        The snapshot.
    parallelism, subtask_index : int
        The number of subtasks, and the subtask that is restored.
    """
    files = {(file.state, file.subtask): file for file in manifest.files_of("operator")}
    places = {place: [(file.subtask, item) for item in range(file.rows)] for place, file in files.items()}
    modes: dict[str, dict[str, list[list[tuple[int, int]]]]] = {"split": {}, "union": {}, "broadcast": {}}
    for state in manifest.operator_states:
        old = [places.get((state.name, channel.subtask), []) for channel in manifest.channels]
        modes[state.mode][state.name] = old
    dealt = {name: new[subtask_index] for name, new in split(modes["split"], parallelism).items()}
    dealt |= {name: union(old, 1)[0] for name, old in modes["union"].items()}
    dealt |= {name: broadcast(old, parallelism)[subtask_index] for name, old in modes["broadcast"].items()}
    return {
        name: tuple(
            _slice(files[name, subtask], list(run)) for subtask, run in groupby(items, key=lambda item: item[0])
        )
        for name, items in dealt.items()
    }


def _slice(file: DataFile, items: Sequence[tuple[int, int]]) -> FileSlice:
    return FileSlice(file, items[0][1], items[-1][1] + 1)
