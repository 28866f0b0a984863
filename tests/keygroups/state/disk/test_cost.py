"""The cost of cuts, reads and writes, in rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keygroups.state import Transaction
from keygroups.state.disk import cut as disk_cut
from keygroups.state.disk import store as disk_store
from keygroups.state.disk.store import Store, View
from tests.backends import contents
from tests.keygroups.state.disk.kit import LIST, MAP, fill, opened
from tests.snapshot_kit import COUNT, new_store, part


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count rows that are handed to the store, got by their key, and read from views."""
    counts = Counter[str]()
    write, get, chunk, first = Store.write, Store.get, View._chunk, View.first

    def counting_write(store: Store, written: Any) -> None:
        written = list(written)
        counts["written"] += len(written)
        write(store, written)

    def counting_get(store: Store, row: bytes) -> bytes | None:
        counts["got"] += 1
        return get(store, row)

    def counting_chunk(view: View, start: bytes, prefix: bytes) -> Any:
        found, goes_on = chunk(view, start, prefix)
        counts["read"] += len(found)
        counts["most at once"] = max(counts["most at once"], len(found))
        return found, goes_on

    def counting_first(view: View, start: bytes) -> bytes | None:
        counts["looked for"] += 1
        return first(view, start)

    monkeypatch.setattr(Store, "write", counting_write)
    monkeypatch.setattr(Store, "get", counting_get)
    monkeypatch.setattr(View, "_chunk", counting_chunk)
    monkeypatch.setattr(View, "first", counting_first)
    return counts


class TestCost:
    def test_a_cut_reads_and_writes_nothing_but_what_was_not_handed_over(
        self, directory: Path, rows: Counter[str]
    ) -> None:
        backend = opened(directory)
        fill(backend, 5000)
        backend._store.flush()
        rows.clear()
        cuts = backend.cut()

        assert rows == {}
        assert sum(len(group) for group in contents(cuts[0].groups).values()) == 5000

    def test_a_snapshot_is_read_a_bounded_number_of_rows_at_a_time(
        self, directory: Path, rows: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: object) -> None:
            raise AssertionError("a whole key group is read into memory")

        monkeypatch.setattr(disk_cut.StoredGroup, "load", refuse)
        monkeypatch.setattr(disk_store, "CHUNK_ROWS", 10)
        backend = opened(directory, COUNT, LIST)
        fill(backend, 2000, "count")
        backend.tables["list"].put(3, "a", range(500))
        rows.clear()
        snapshot = new_store().write([part(backend, 0, 1)])

        assert rows["most at once"] == 10
        assert rows["read"] == 2000 + 500 + 1
        assert {file.state: file.rows for file in snapshot.manifest.files} == {"count": 2000, "list": 500}

    def test_a_delta_reads_what_has_changed(self, directory: Path, rows: Counter[str]) -> None:
        store = new_store()
        backend = opened(directory, COUNT)
        fill(backend, 2000, "count")
        store.write([part(backend, 0, 1)])
        for number in (1, 17, 1999):
            backend.tables["count"].put(number % 16, f"key {number}", -1)
        rows.clear()
        snapshot = store.write([part(backend, 0, 1)])

        assert [file.rows for file in snapshot.manifest.files if file.kind == "delta"] == [3]
        assert rows["read"] <= 10
        assert rows["looked for"] <= 4, "the two key groups with changes, not all"

    def test_an_append_writes_its_row_and_the_length(self, directory: Path, rows: Counter[str]) -> None:
        backend = opened(directory, LIST, MAP)
        backend.tables["list"].put(0, "a", list(range(10_000)))
        backend._store.flush()
        rows.clear()
        invocation = Transaction(backend, "a", 0)
        invocation.state(LIST).add(-1)
        invocation.commit()
        backend._store.flush()

        assert (rows["written"], rows["read"]) == (2, 0)

    def test_an_entry_is_read_and_written_without_the_others(self, directory: Path, rows: Counter[str]) -> None:
        backend = opened(directory, MAP)
        backend.tables["map"].put(0, "a", {number: number for number in range(10_000)})
        backend._store.flush()
        rows.clear()
        invocation = Transaction(backend, "a", 0)
        prices = invocation.state(MAP)
        prices.put(5, prices.get(5) + 1)
        prices.remove(6)
        assert prices.contains(7)
        invocation.commit()
        backend._store.flush()

        assert (rows["written"], rows["read"]) == (2, 0)

    def test_what_is_written_is_handed_over_by_number_and_by_size(self, directory: Path, rows: Counter[str]) -> None:
        backend = opened(directory)
        for number in range(disk_store.DIRTY_ROWS_MAX - 1):
            backend.tables["value"].put(0, number, 0)
        assert rows["written"] == 0
        backend.tables["value"].put(0, -1, 0)
        assert rows["written"] == disk_store.DIRTY_ROWS_MAX
        backend.tables["value"].put(0, 0, bytes(disk_store.DIRTY_BYTES_MAX))
        assert rows["written"] == disk_store.DIRTY_ROWS_MAX + 1
