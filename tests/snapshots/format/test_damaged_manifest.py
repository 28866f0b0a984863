"""A damaged manifest: the file that has no key groups, and without which the others do not count."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from snapshots import SnapshotCorrupted, SnapshotNotFound
from snapshots.format.manifest import manifest_name
from tests.snapshot_kit import new_store, parts
from tests.snapshots.format.damage import SEED, names, written


def changes_of_a_manifest() -> list[Callable[[bytes], bytes]]:
    choose = random.Random(SEED)

    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        return bytes(changed)

    return [lambda data: b"", lambda data: data[:-1], lambda data: data + b"\n", lambda data: data[::-1], *[flip] * 20]


class TestManifest:
    """The file that has no key groups, and without which the others do not count."""

    def test_damage_is_found_and_never_an_empty_start_or_an_older_snapshot(self) -> None:
        store = new_store()
        folder = written(store).folder
        path, data = folder.path(manifest_name(2)), folder.read(manifest_name(2))
        before = names(folder)
        for change in changes_of_a_manifest():
            folder.filesystem.pipe_file(path, change(data))

            uses: list[Callable[[], object]] = [
                store.latest,
                store.begin,
                lambda: store.load(2),
                lambda: store.repartition(1),
                lambda: store.write(parts({})),
                store.compact,
            ]
            for use in uses:
                with pytest.raises(SnapshotCorrupted) as refused:
                    use()
                assert (refused.value.path, refused.value.key_groups) == (path, None)
            for report in (store.verify(), store.verify(2)):
                assert [(problem.path, problem.key_groups) for problem in report.problems] == [(path, None)]
                assert (report.version, report.ok) == (2, False)
            assert store.verify(1).ok
        assert names(folder) == before

    def test_a_missing_version_is_not_found_and_others_stay(self) -> None:
        store = new_store()
        for _ in range(3):
            folder = store.write(parts({})).folder
        folder.filesystem.rm_file(folder.path(manifest_name(2)))

        for use in (store.load, store.verify):
            with pytest.raises(SnapshotNotFound, match="version 2"):
                use(2)
        assert store.versions() == [1, 3]
        assert store.verify(3).ok

    def test_swapped_manifests_are_found(self) -> None:
        store = new_store()
        folder = written(store).folder
        written(store, shift=1)
        one, two = folder.read(manifest_name(1)), folder.read(manifest_name(2))
        folder.filesystem.pipe_file(folder.path(manifest_name(1)), two)
        folder.filesystem.pipe_file(folder.path(manifest_name(2)), one)

        for version in (1, 2):
            (problem,) = store.verify(version).problems
            assert (problem.path, problem.key_groups) == (folder.path(manifest_name(version)), None)
            with pytest.raises(SnapshotCorrupted, match="moved or renamed"):
                store.load(version)
