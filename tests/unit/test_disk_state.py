"""State on the local disk: its directory, what its cuts and writes cost, and what it gives back."""

from __future__ import annotations

import datetime as dt
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections import Counter
from collections.abc import Hashable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from keygroups import ConfigError, KeyGroupRange, KeyGroupsError, ListState, MapState, StateDescriptor, ValueState
from keygroups.state import DiskBackend, DiskStateBackend, Expiring, MemoryBackend, StateCut, Transaction
from keygroups.state.disk import cut as disk_cut
from keygroups.state.disk import store as disk_store
from keygroups.state.disk.errors import StateDiskFull, StateStoreFailed, StoreNotInstalled
from keygroups.state.disk.store import Store, View
from tests.backends import contents
from tests.snapshot_kit import COUNT, new_store, part

OWNED = KeyGroupRange(0, 15)
VALUE = ValueState("value")
LIST = ListState("list")
MAP = MapState("map")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


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


def opened(directory: Path, *states: StateDescriptor, **options: Any) -> DiskBackend:
    return DiskStateBackend(directory, cache_bytes=2**20).open(states or (VALUE,), OWNED, **options)


def fill(backend: DiskBackend, count: int, state: str = "value") -> None:
    for number in range(count):
        backend.tables[state].put(number % 16, f"key {number}", number)


class TestDirectory:
    def test_each_backend_has_one_of_its_own_until_it_is_closed(self, directory: Path) -> None:
        one, other = opened(directory), opened(directory)
        one.tables["value"].put(0, "a", 1)
        other.tables["value"].put(0, "a", 2)

        assert len(list(directory.iterdir())) == 2
        assert [one.tables["value"].get(0, "a"), other.tables["value"].get(0, "a")] == [1, 2]
        one.close()
        assert len(list(directory.iterdir())) == 1
        assert other.tables["value"].get(0, "a") == 2
        other.close()
        assert list(directory.iterdir()) == []

    def test_a_cut_is_whole_after_the_close_and_the_files_go_with_it(self, directory: Path) -> None:
        backend = opened(directory)
        fill(backend, 100)
        cut: tuple[StateCut, ...] | None = backend.cut()
        backend.close()

        assert cut is not None
        assert sum(len(group) for group in contents(cut[0].groups).values()) == 100
        assert len(list(directory.iterdir())) == 1
        cut = None
        assert list(directory.iterdir()) == []

    def test_a_cut_that_nobody_writes_releases_its_view(self, directory: Path) -> None:
        backend = opened(directory)
        for number in range(3):
            backend.tables["value"].put(0, "a", number)
            backend.cut()

        assert backend._store._views == 0
        backend.close()
        assert list(directory.iterdir()) == []

    def test_what_a_dead_process_has_left_is_removed_and_what_lives_is_not(self, directory: Path) -> None:
        program = """
            import os, signal, sys
            from keygroups import KeyGroupRange, ValueState
            from keygroups.state import DiskStateBackend
            backend = DiskStateBackend(sys.argv[1]).open([ValueState("value")], KeyGroupRange(0, 3))
            backend.tables["value"].put(0, "a", 1)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        living = opened(directory)
        ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(directory)], check=False)
        assert ended.returncode == -signal.SIGKILL
        assert len(list(directory.iterdir())) == 2

        new = opened(directory)
        assert len(list(directory.iterdir())) == 2
        living.tables["value"].put(0, "a", 1)
        assert living.tables["value"].get(0, "a") == 1
        living.close()
        new.close()

    def test_what_is_not_ours_stays(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "notes.txt").write_text("mine")
        (directory / "keygroups-state-without-a-lock").mkdir()
        opened(directory).close()

        assert sorted(path.name for path in directory.iterdir()) == ["keygroups-state-without-a-lock", "notes.txt"]


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


class TestThreads:
    def test_a_cut_is_encoded_while_the_owner_goes_on(self, directory: Path) -> None:
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
        class Slow:
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


ZONE = dt.timezone(dt.timedelta(hours=2))
VALUES: list[tuple[pa.DataType | None, Any]] = [
    (None, None),
    (None, 2**70),
    (None, -0.0),
    (None, True),
    (None, "é\u0000"),
    (None, {"a": [1, (2, {3}), None], 4: b"\xc1"}),
    (None, Decimal("1.10")),
    (None, dt.datetime(2026, 1, 1, 12, 30, 0, 5, tzinfo=ZONE)),
    (None, dt.timedelta(days=-1, microseconds=1)),
    (None, uuid.UUID(int=7)),
    (None, Expiring([1, None], 1_700_000_000_000)),
    (None, Expiring(Expiring(None, 1), -5)),
    (pa.int64(), np.int64(7)),
    (pa.float32(), 0.5),
    (pa.decimal128(10, 2), Decimal("1.10")),
    (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    (pa.timestamp("ns"), np.datetime64("2026-01-01T00:00:00.000000001", "ns")),
    (pa.list_(pa.float64()), np.array([1.0, 2.5])),
    (pa.list_(pa.float64()), Expiring(np.array([1.0, 2.5]), 9)),
    (pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))]), {"x": None, "tags": ["a", None]}),
    (pa.map_(pa.string(), pa.int64()), {"a": 1}),
    (pa.time64("us"), dt.time(1, 2, 3)),
    (pa.duration("us"), dt.timedelta(seconds=5)),
    (pa.date32(), dt.date(2026, 1, 1)),
    (pa.large_binary(), b""),
]


KEYS: list[Any] = ["a", 1, 1.0, True, -0.0, 2**70, b"a", ("a", 1.0), dt.date(2026, 1, 1), "x" * 5000]


def plain(value: Any) -> Any:
    """Return what a column, or msgpack, makes of a value."""
    if isinstance(value, Expiring):
        return Expiring(plain(value.value), value.expires_at)
    if isinstance(value, np.datetime64):
        return pa.array([value])[0].as_py()
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


class TestValues:
    @pytest.mark.parametrize(("type_", "value"), VALUES)
    def test_they_come_back_as_they_are(self, directory: Path, type_: pa.DataType | None, value: Any) -> None:
        backend = opened(directory, ValueState("value", type_))
        table = backend.tables["value"]
        table.put(0, "a", value)
        for _ in range(2):
            found = table.get(0, "a")
            assert (type(found), found) == (type(plain(value)), plain(value))
            backend._store.flush()

    @pytest.mark.parametrize("key", KEYS, ids=repr)
    def test_keys_come_back_as_they_are(self, directory: Path, key: Any) -> None:
        backends = opened(directory, VALUE, LIST, MAP), MemoryBackend([VALUE, LIST, MAP], OWNED)
        for backend in backends:
            invocation = Transaction(backend, key, 0)
            invocation.state(VALUE).update(1)
            invocation.state(LIST).add(2)
            invocation.state(MAP).put(key, 3)
            invocation.commit()
        on_disk, in_memory = ([contents(cut.groups) for cut in backend.cut()] for backend in backends)

        assert on_disk == in_memory
        assert list(map(type, on_disk[0][0])) == list(map(type, in_memory[0][0]))

    def test_no_key_of_a_list_or_map_is_the_beginning_of_another(self, directory: Path) -> None:
        backend = opened(directory, LIST, MAP)
        keys: list[Any] = ["", "a", "aa", b"a", b"", 0, 1, 256]
        for key in keys:
            invocation = Transaction(backend, key, 0)
            invocation.state(LIST).add_all([key, key])
            invocation.state(MAP).put(key, key)
            invocation.commit()
        for key in keys:
            invocation = Transaction(backend, key, 0)
            assert invocation.state(LIST).get() == [key, key]
            assert invocation.state(MAP).items() == [(key, key)]

    def test_keys_have_the_column_of_what_is_there_not_of_what_was(self, directory: Path) -> None:
        backend = opened(directory)
        for key in ("a", 1):
            backend.tables["value"].put(0, key, 0)
        assert new_store().write([part(backend, 0, 1)]).to_arrow("value").schema.field("key").type == pa.binary()
        invocation = Transaction(backend, 1, 0)
        invocation.state(VALUE).clear()
        invocation.commit()

        assert new_store().write([part(backend, 0, 1)]).to_arrow("value").schema.field("key").type == pa.string()


class TestFailures:
    def test_a_store_that_is_not_installed_is_named_with_what_installs_it(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "rocksdict", None)
        with pytest.raises(StoreNotInstalled, match=r"pip install 'keygroups\[disk\]'") as refused:
            opened(directory)
        assert isinstance(refused.value, ImportError)
        assert not directory.exists()

    def test_a_full_disk_is_named(self, directory: Path) -> None:
        """A limit on the size of files stands for the disk."""
        program = """
            import os, resource, signal, sys
            from keygroups import KeyGroupRange, ValueState
            from keygroups.state import DiskStateBackend
            backend = DiskStateBackend(sys.argv[1]).open([ValueState("value")], KeyGroupRange(0, 3))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
            for number in range(2**20):
                backend.tables["value"].put(0, number, os.urandom(1000))
        """
        command = [sys.executable, "-c", textwrap.dedent(program), str(directory)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)

        assert "StateDiskFull: no space is left for the state in" in ended.stderr
        assert list(directory.iterdir()) == []

    def test_a_directory_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="file"):
            opened(tmp_path / "file" / "state")

    def test_a_closed_backend_is_not_an_empty_one(self, directory: Path) -> None:
        backend = opened(directory)
        backend.tables["value"].put(0, "a", 1)
        backend._store.flush()
        backend.close()
        with pytest.raises(StateStoreFailed):
            backend.tables["value"].get(0, "a")

    def test_a_cache_that_is_too_small_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="cache_bytes"):
            DiskStateBackend(cache_bytes=100)

    @pytest.mark.parametrize("error", [StoreNotInstalled("x"), StateStoreFailed("d", "r"), StateDiskFull("d")])
    def test_errors_survive_pickling(self, error: KeyGroupsError) -> None:
        copy = pickle.loads(pickle.dumps(error))

        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))

    def test_the_choice_survives_pickling(self) -> None:
        chosen = DiskStateBackend("/fast/disk", cache_bytes=2**28)

        assert pickle.loads(pickle.dumps(chosen)) == chosen
