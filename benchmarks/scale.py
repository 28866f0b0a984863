"""The size of what is not state: manifests, requests, listings and pickles of a large operator, counted.

No data is written: a folder in memory keeps the manifests with their lists and, of data files, the sizes alone. What is
counted goes through the code that a real commit, restore, rescale and collection use. What epochs do is counted over a
cycle of them, from one folding of the deltas to the next. Each figure is taken at a reference size and with one
dimension smaller; the exponent says how it grows with that dimension (1 is in proportion, 0 not at all). The last
column is of ten times the subtasks and ten times the bytes.

    python -m benchmarks.scale --json
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from unittest import mock
from weakref import WeakValueDictionary

import pyarrow as pa

from benchmarks._sizes_folder import SizesFolder
from keygroups import KeyGroupRange, ValueState, range_of
from snapshots import PendingSnapshot, Snapshot, SnapshotStore, named_manifest
from snapshots.commit.manifest_creation import now_text, put_manifest
from snapshots.commit.part_writer import DELTAS_MAX, SubtaskHandle
from snapshots.format import file_lists
from snapshots.format.columns import KEY_ENCODING
from snapshots.format.files import target_file_bytes
from snapshots.format.layers import carry_over
from snapshots.format.manifest import Channel, DataFile, Manifest, features_of, manifest_name
from snapshots.format.manifest_schema import FileKind
from snapshots.format.schemas import state_info

TERABYTE = 10**12
CYCLE = DELTAS_MAX + 1
"""Epochs from one folding of the deltas to the next."""

KEPT = 3
"""Versions that a collection keeps; what it reads is in proportion."""

FOOTER_BYTES = 4096
ROW_BYTES = 100
CHANGED_SHARE = 0.01
STATE = state_info(ValueState("payload", pa.binary()), None)


@dataclass(frozen=True)
class Case:
    """An operator of one state after many epochs, each of which changed a hundredth of the keys."""

    parallelism: int = 1000
    key_groups: int = 32_768
    state_bytes: int = 10 * TERABYTE
    versions: int = 40
    """Those whose manifests and files are still in the folder."""


LARGER = Case(parallelism=10_000, state_bytes=100 * TERABYTE)

VARIED = {
    "parallelism": Case(parallelism=250),
    "key_groups": Case(key_groups=8_192),
    "state_bytes": Case(state_bytes=TERABYTE),
    "versions": Case(versions=20),
}


def id_of(version: int) -> str:
    """Return what all entries of a version have in common."""
    return uuid.uuid5(uuid.NAMESPACE_OID, str(version)).hex


def data_file(kind: FileKind, subtask: int, version: int, key_groups: KeyGroupRange, size: int) -> DataFile:
    """Return an entry as large as a real one."""
    # As the ids of the attempts of one commit, which begin alike.
    attempt_id = id_of(version)[:16] + uuid.uuid4().hex[16:]
    path = f"data/{attempt_id}/{kind}-payload-{key_groups.start}-{key_groups.end}.parquet"
    is_delta = kind == "delta"
    return DataFile(
        kind=kind,
        state="payload" if kind in {"keyed", "delta"} else None,
        subtask=subtask,
        version=version,
        parent_id=id_of(version - 1) if is_delta else None,
        key_groups=key_groups,
        file_key_groups=key_groups,
        path=path,
        rows=size // ROW_BYTES,
        bytes=size + FOOTER_BYTES,
        sha256=uuid.uuid4().hex * 2,
        footer_bytes=FOOTER_BYTES,
        footer_sha256=uuid.uuid4().hex * 2,
    )


def base_files(case: Case, subtask: int) -> Iterator[DataFile]:
    """Divide a subtask's state into files as a writer does: at the next key group once one is large enough."""
    owned = range_of(subtask, case.parallelism, case.key_groups)
    group_bytes = case.state_bytes // case.key_groups
    first, stored = owned.start, 0
    for key_group in owned:
        size = (key_group + 1 - first) * group_bytes
        if key_group == owned.end or size >= target_file_bytes(stored):
            yield data_file("keyed", subtask, 1, KeyGroupRange(first, key_group), size)
            first, stored = key_group + 1, stored + size


def epoch_files(case: Case, subtask: int, version: int) -> list[DataFile]:
    """Return what an epoch adds: changes, elements in flight, outputs. Each ninth epoch folds the deltas."""
    owned = range_of(subtask, case.parallelism, case.key_groups)
    delta_bytes = round(case.state_bytes / case.parallelism * CHANGED_SHARE)
    sizes: list[tuple[FileKind, int]] = [("delta", delta_bytes), ("in_flight", 100 * ROW_BYTES), ("output", 10**6)]
    files = [data_file(kind, subtask, version, owned, size) for kind, size in sizes]
    return [replace(file, folds=file.kind == "delta" and version % CYCLE == 0) for file in files]


def channels(case: Case) -> tuple[Channel, ...]:
    """Return the channels of all subtasks."""
    ranges = (range_of(subtask, case.parallelism, case.key_groups) for subtask in range(case.parallelism))
    return tuple(
        Channel(subtask=subtask, key_groups=owned, watermark=1_767_225_600_000, cut_id=uuid.uuid4().hex, keyless=0)
        for subtask, owned in enumerate(ranges)
    )


def fill(folder: SizesFolder, case: Case) -> None:
    """Leave the versions in the folder: of the older ones the names alone, of the last cycles everything."""
    base = [file for subtask in range(case.parallelism) for file in base_files(case, subtask)]
    folder.sizes_by_name |= {file.path: file.bytes for file in base}
    keyed, lists = base, ()
    for version in range(2, case.versions + 1):
        added = [file for subtask in range(case.parallelism) for file in epoch_files(case, subtask, version)]
        folder.sizes_by_name |= {file.path: file.bytes for file in added}
        deltas = [file for file in added if file.kind == "delta"]
        keyed = [*carry_over(keyed, deltas), *deltas]
        if version > case.versions - 2 * CYCLE:
            others = [file for file in added if file.kind != "delta"]
            manifest = manifest_of(case, version, (*keyed, *others))
            lists = put_manifest(folder, replace(manifest, file_lists=lists)).file_lists
        else:
            folder.contents[manifest_name(version)] = b"is to expire"


def manifest_of(case: Case, version: int, files: tuple[DataFile, ...]) -> Manifest:
    """Describe a version."""
    return Manifest(
        version=version,
        snapshot_id=uuid.uuid4().hex,
        parent_version=version - 1,
        parent_id=uuid.uuid4().hex,
        created_at=now_text(),
        operator_id="scale",
        max_parallelism=case.key_groups,
        parallelism=case.parallelism,
        hash="xxhash64",
        key_encoding=KEY_ENCODING,
        states=(STATE,),
        files=files,
        channels=channels(case),
        in_flight_count=100 * case.parallelism,
        source_position={"query_id": uuid.uuid4().hex, "batch_id": version, "epoch": version},
        metrics={"rows": 10**6, "outputs": 10**6, "calls": 10**6},
        required_features=features_of(files, (STATE,), channels(case)),
    )


def parts_on(folder: SizesFolder, case: Case, parent: Manifest) -> list[SubtaskHandle]:
    """Return what the workers report of one more epoch."""
    handles = []
    for channel in channels(case):
        files = tuple(epoch_files(case, channel.subtask, parent.version + 1))
        folder.sizes_by_name |= {file.path: file.bytes for file in files}
        handles.append(
            SubtaskHandle(
                subtask_index=channel.subtask,
                parallelism=case.parallelism,
                max_parallelism=case.key_groups,
                hash="xxhash64",
                key_groups=channel.key_groups,
                parent_id=parent.snapshot_id,
                states=(STATE,),
                codecs={STATE.name: frozenset()},
                operator_states=(),
                files=files,
                channel=channel,
                in_flight_count=100,
            )
        )
    return handles


class Process:
    """What a process remembers of manifests; in a `with` block, the code that is measured runs in it."""

    def __init__(self) -> None:
        self._lists: WeakValueDictionary[Any, Any] = WeakValueDictionary()
        self._last_loaded: dict[Any, Any] = {}

    def __enter__(self) -> None:
        self._patches = ExitStack()
        self._patches.enter_context(mock.patch.object(file_lists, "_alive", self._lists))
        self._patches.enter_context(mock.patch.object(named_manifest, "_last_loaded", self._last_loaded))

    def __exit__(self, *_: object) -> None:
        self._patches.close()


def measure(case: Case) -> dict[str, float]:
    """Count everything of one operator."""
    folder = SizesFolder()
    store = SnapshotStore.on(folder)
    figures: Counter[str] = Counter()

    def count(name: str, times: int = 1) -> None:
        figures[f"{name}: requests"] += sum(folder.requests.values()) / times
        figures[f"{name}: bytes"] += sum(folder.moved.values()) / times
        figures[f"{name}: listings"] += folder.requests["list"] / times
        folder.requests.clear()
        folder.moved.clear()

    middle = case.parallelism // 2
    owned = range_of(middle, case.parallelism, case.key_groups)
    coordinator, worker = Process(), Process()
    with Process():
        fill(folder, case)
    count("(preparation)")
    with coordinator:
        pending = store.begin()
        count("latest(), of a new process")
    with worker:
        copied(pending)._parent_of(owned)
        count("(a worker that has just begun)")
    for _ in range(CYCLE):
        with coordinator:
            assert pending.parent is not None
            handles = parts_on(folder, case, pending.parent)
            snapshot = pending.commit(handles)
            count("commit, on average", CYCLE)
            pending = PendingSnapshot(folder, "scale", snapshot.manifest)
        with worker:
            copied(pending)._parent_of(owned)
            count("manifest of a part, on average", CYCLE)
    figures["a part's report: bytes"] = len(pickle.dumps(handles[0]))
    figures["pickled for a worker's part: bytes"] = len(pickle.dumps(pending))
    figures["pickled for a worker's restore: bytes"] = len(pickle.dumps(snapshot))
    figures.update(of_manifest(folder, snapshot))
    with Process():
        share = copied(snapshot).restore(middle)
        count("manifest of a restore")
    figures["restore of a subtask: files"] = len(share.manifest.files)
    figures["restore of a subtask: pickled bytes"] = len(pickle.dumps(share))
    figures["restore of all: files"] = sum(
        len(snapshot.restore(index).manifest.files) for index in range(0, case.parallelism, 50)
    ) * min(50, case.parallelism)
    with Process():
        store.repartition(case.parallelism * 3 // 2)
        count("rescale, by a new process")
    with Process():
        report = store.collect_garbage(keep_last=KEPT, min_age=-0.0, dry_run=True)
    figures["gc: manifests kept"] = len(report.retained)
    count("gc")
    return {name: value for name, value in figures.items() if not name.startswith("(")}


def of_manifest(folder: SizesFolder, snapshot: Snapshot) -> dict[str, int]:
    """Return the size of a manifest."""
    lists = [one.info for one in snapshot.manifest.file_lists]
    head_bytes = len(folder.contents[manifest_name(snapshot.version)])
    return {
        "manifest: files": len(snapshot.manifest.files),
        "manifest: lists": len(lists),
        "manifest: bytes without lists": head_bytes,
        "manifest: bytes": head_bytes + sum(one.bytes for one in lists),
    }


_Named = TypeVar("_Named", PendingSnapshot, Snapshot)


def copied(named: _Named) -> _Named:
    """Return what a worker gets."""
    copy: _Named = pickle.loads(pickle.dumps(named))  # noqa: S301 - of our own making
    return copy


def main() -> None:
    """Count at the reference size and at others, and print how the figures grow."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=1, help="has no effect: counts are the same in every run")
    parser.add_argument("--shrink", type=int, default=1, help="divide P, G and the bytes by this, for a quick look")
    arguments = parser.parse_args()
    reference = shrunk(Case(), arguments.shrink)
    cases = {name: shrunk(case, arguments.shrink) for name, case in VARIED.items()}
    at_reference = measure(reference)
    smaller = {name: (case, measure(case)) for name, case in cases.items()}
    larger = measure(shrunk(LARGER, arguments.shrink))
    rows = []
    for name, value in at_reference.items():
        exponents = {
            dimension: round(
                math.log(max(value, 1) / max(figures[name], 1))
                / math.log(getattr(reference, dimension) / getattr(case, dimension)),
                2,
            )
            for dimension, (case, figures) in smaller.items()
        }
        rows.append({"name": name, "value": value, "exponents": exponents, "larger": larger[name]})
    if arguments.json:
        json.dump(rows, sys.stdout, indent=2)
        return
    print(f"{'':45} {'':>15}" + "".join(f"{name:>13}" for name in smaller) + f"{'larger':>15}")
    for row in rows:
        shown = "".join(f"{exponent:13.2f}" for exponent in row["exponents"].values())
        print(f"{row['name']:45} {row['value']:15,.0f}{shown}{row['larger']:15,.0f}")


def shrunk(case: Case, by: int) -> Case:
    """Return a smaller case of the same shape."""
    return replace(
        case,
        parallelism=case.parallelism // by,
        key_groups=case.key_groups // by,
        state_bytes=case.state_bytes // by,
    )


if __name__ == "__main__":
    main()
