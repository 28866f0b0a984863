"""Threads: cuts are encoded and key groups loaded beside the owner."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from pathlib import Path

from tests.backends import UnreadGroup
from tests.keygroups.state.disk.kit import fill, opened
from tests.snapshot_kit import COUNT, new_store, part


class TestThreads:
    def test_a_cut_is_encoded_while_the_owner_continues(self, directory: Path) -> None:
        backend = opened(directory, COUNT)
        fill(backend, 3000, "count")
        frozen = part(backend, 0, 1)
        store, snapshots = new_store(), []
        thread = threading.Thread(target=lambda: snapshots.append(store.write([frozen])))
        thread.start()
        for number in range(3000):
            backend.tables["count"].put(number % 16, f"key {number}", -1)
        thread.join()

        stored = snapshots[0].to_arrow("count").to_pydict()
        assert dict(zip(stored["key"], stored["value"], strict=True)) == {f"key {n}": n for n in range(3000)}

    def test_a_key_group_is_loaded_once_and_never_over_what_was_written_since(self, directory: Path) -> None:
        class Slow(UnreadGroup):
            loads = 0

            def load(self) -> dict[Hashable, object]:
                self.loads += 1
                reading.set()
                assert may_go_on.wait(60)
                return {"a": "restored"}

        reading, may_go_on = threading.Event(), threading.Event()
        group = Slow()
        backend = opened(directory, restored={"value": {3: group}}, since="id")
        table = backend.tables["value"]
        arrival = table.unloaded()[3]
        loader = threading.Thread(target=arrival.load)
        loader.start()
        assert reading.wait(60)
        threading.Timer(0.01, may_go_on.set).start()
        table.put(3, "a", "written")
        loader.join()
        table.install(3, {})

        assert (table.get(3, "a"), group.loads) == ("written", 1)
