"""The layers of a key group: a base and the deltas above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keygroups import KeyGroupRange
from snapshots import SnapshotCorrupted
from snapshots.format.layers import carry_over, layers_of, spans
from snapshots.format.manifest import DataFile, Manifest, manifest_name
from snapshots.format.manifest_head import Head
from tests.snapshot_kit import COUNT, PROFILE
from tests.snapshots.increments import Run

pytestmark = pytest.mark.usefixtures("each_backend")


def data_file(kind: Any, version: int, start: int, end: int, **fields: Any) -> DataFile:
    return DataFile(
        kind=kind, state="s", subtask=0, version=version, key_groups=KeyGroupRange(start, end),
        file_key_groups=KeyGroupRange(start, end), path=f"data/{kind}-{version}-{start}", rows=0, bytes=0, sha256="",
        footer_bytes=0, footer_sha256="", **fields,
    )  # fmt: skip


class TestLayers:
    def test_a_new_base_in_the_middle_leaves_two_ranges_of_the_old_one(self) -> None:
        old = [data_file("keyed", 1, 0, 15), data_file("delta", 2, 4, 11)]
        left = list(carry_over(old, [data_file("keyed", 3, 5, 9)]))

        assert [(f.version, f.key_groups.start, f.key_groups.end) for f in left] == [
            (1, 0, 4), (1, 10, 15), (2, 4, 4), (2, 10, 11),
        ]  # fmt: skip

    def test_a_folded_delta_takes_the_place_of_deltas_only(self) -> None:
        old = [data_file("keyed", 1, 0, 15), data_file("delta", 2, 0, 7), data_file("delta", 3, 4, 11)]
        left = list(carry_over(old, [data_file("delta", 4, 0, 9, folds=True)]))

        assert [(f.version, f.key_groups.start, f.key_groups.end) for f in left] == [(1, 0, 15), (3, 10, 11)]

    def test_spans_are_the_runs_with_the_same_layers(self) -> None:
        stored = [data_file("keyed", 1, 0, 7), data_file("keyed", 1, 8, 15), data_file("delta", 2, 6, 9)]

        found = spans(stored, KeyGroupRange(2, 12))
        assert [(span.start, span.end, [f.version for f in layers]) for span, layers in found] == [
            (2, 5, [1]), (6, 7, [1, 2]), (8, 9, [1, 2]), (10, 12, [1]),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "stored",
        [
            [],
            [data_file("delta", 1, 0, 3)],
            [data_file("keyed", 1, 0, 3), data_file("keyed", 2, 0, 3)],
            [data_file("delta", 1, 0, 3), data_file("keyed", 2, 0, 3)],
            [data_file("keyed", 1, 0, 3), data_file("delta", 2, 0, 3), data_file("delta", 2, 0, 3)],
        ],
        ids=["none", "no base", "two bases", "base above", "same version"],
    )
    def test_any_other_order_is_corruption(self, stored: list[DataFile]) -> None:
        with pytest.raises(ValueError, match="key group 2"):
            layers_of(stored, 2)

    def test_a_manifest_without_a_base_is_found(self) -> None:
        run = Run()
        run.change("key 1", -1)
        snapshot = run.write()
        without: Callable[[DataFile], bool] = lambda file: not (file.kind == "keyed" and file.state == "count")  # noqa: E731
        fields = {name: getattr(snapshot.manifest, name) for name in snapshot.manifest.__slots__}
        wrong = Manifest(**(fields | {"version": 3, "files": tuple(filter(without, snapshot.manifest.files))}))
        snapshot.folder.create(manifest_name(3), Head(wrong).to_bytes())

        (problem,) = run.store.verify(3).problems
        assert "takes one keyed file" in problem.what
        with pytest.raises(SnapshotCorrupted, match="takes one keyed file"):
            run.store.load(3).restore(0).states([COUNT, PROFILE])
