"""Reading: a large state is several files and row groups, of which each subtask reads its share."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from keygroups import key_group_of
from keygroups.state import LazyGroup
from snapshots import Snapshot
from snapshots.format import files
from tests.quick import first_is_quick
from tests.snapshot_kit import COUNT, PROFILE, G, content_of, new_store, parts, record, restored
from tests.snapshots.increments import CONTENT, Run, kinds

pytestmark = pytest.mark.usefixtures("each_backend")


class TestSplitting:
    def test_a_large_state_is_several_files_of_neighbouring_ranges(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "FILE_BYTES", 1000)
        monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1)
        monkeypatch.setattr("snapshots.format.columns.PIECE_ROWS_MAX", 1)
        snapshot = new_store().write(parts(CONTENT, parallelism=1))

        ranges = [file.key_groups for file in snapshot.manifest.files_of("keyed", state="count")]
        assert len(ranges) > 3
        assert [key_group for key_groups in ranges for key_group in key_groups] == list(range(G))
        assert content_of(snapshot, 3) == CONTENT

    def test_a_large_key_group_is_several_row_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "ROW_GROUP_BYTES", 100)
        monkeypatch.setattr("snapshots.format.columns.PIECE_ROWS_MAX", 3)
        snapshot = new_store().write(parts(CONTENT, parallelism=1))

        assert content_of(snapshot, 5) == CONTENT


class TestReading:
    def large(self, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
        monkeypatch.setattr(files, "ROW_GROUP_ROWS_MIN", 1)
        monkeypatch.setattr("snapshots.format.columns.PIECE_ROWS_MAX", 50)
        content: dict[str, dict[Any, object]] = {"count": {f"{n:0100}": n for n in range(20_000)}, "profile": {}}
        return new_store().write(parts(content, parallelism=1))

    def test_nothing_is_read_before_the_first_touch_which_reads_its_row_group(
        self, reads: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot = self.large(monkeypatch)
        (file,) = snapshot.manifest.files_of("keyed", state="count")
        backend = restored(snapshot, 1, 4)
        assert reads == []

        backend.tables["count"].get(5, "key")
        assert len(reads) == 2, "the footer and a row group"
        assert sum(reads) - file.footer_bytes < 1.1 * file.bytes / G
        backend.tables["count"].get(5, "another")
        assert len(reads) == 2

    @pytest.mark.parametrize("parallelism", first_is_quick([4, 2, 8]))
    def test_a_share_of_the_key_groups_costs_that_share(
        self, parallelism: int, reads: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snapshot = self.large(monkeypatch)
        (file,) = snapshot.manifest.files_of("keyed", state="count")
        for group in snapshot.restore(1, parallelism).states([COUNT, PROFILE])["count"].values():
            group.load()

        assert sum(reads) - file.footer_bytes < 1.1 * file.bytes / parallelism
        assert len(reads) == 1 + G // parallelism

    def test_a_restore_carries_only_what_its_range_needs(self) -> None:
        def size(parallelism: int) -> int:
            snapshot = new_store().write(parts(CONTENT, parallelism=parallelism))
            return max(len(pickle.dumps(snapshot.restore(n))) for n in range(parallelism))

        assert size(16) < 1.1 * size(2)

    def test_elements_without_a_key_are_read_by_those_who_get_them(self, reads: list[int]) -> None:
        elements = [record(None, n, channel) for channel in range(8) for n in range(10)]
        snapshot = new_store().write(parts({}, parallelism=8, in_flight=elements))
        found = []
        for subtask in range(8):
            reads.clear()
            found += [element.element_id for element in snapshot.restore(subtask).queue().elements]
            assert len(reads) == 2, "a footer and a row group of one file"
        assert found == [element.element_id for element in elements]

    def test_key_groups_are_loaded_by_another_thread_and_installed_by_the_owner(self) -> None:
        run = Run()
        table = run.backends[0].tables["count"]
        assert set(table.unloaded()) == set(range(G))
        run.change("key 1", -1)
        waiting: dict[int, LazyGroup] = dict(table.unloaded())
        assert len(waiting) == G - 1
        late = key_group_of("key 2", G)
        content = {key_group: group.load() for key_group, group in waiting.items()}
        run.change("key 2", -2)
        for key_group, group in content.items():
            table.install(key_group, group)

        assert table.unloaded() == {}
        assert table.get(late, "key 2") == -2
        assert [kind for kind, _ in kinds(run.write())] == ["keyed", "delta"]
