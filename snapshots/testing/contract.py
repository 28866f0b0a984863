"""The contract of filesystems for snapshots, as tests.

Inherit from `FolderContract` in your own test, with a fixture `folder` that returns an empty folder::

    class TestMyStorage(FolderContract):
        @pytest.fixture
        def folder(self) -> Folder:
            return open_folder(f"s3://my-bucket/{uuid.uuid4().hex}", {"endpoint_url": "https://…"})
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import ClassVar

import pytest

from keygroups.context_managers import contextmanager
from snapshots.filesystem import Folder
from snapshots.testing.wrappers import restless_threads

RACERS = 8
PAUSE = 0.0002
"""Seconds between two reads of a reader, so that the writers get the processor."""


class FolderContract:
    """Tests the promises of `Folder`, above all the promise of `create`.

    Attributes
    ----------
    rounds : int
        How often writers race; use fewer rounds for a distant storage.
    large_bytes : int
        The size of a large file: larger than what a client puts in one request, if there is such a limit.
    is_shared : bool
        Whether other processes see the folder.
    """

    rounds: ClassVar[int] = 200
    large_bytes: ClassVar[int] = 8 * 2**20
    is_shared: ClassVar[bool] = True

    def reopened(self, folder: Folder) -> Folder:
        """Return the same folder as another process would open it."""
        copy: Folder = pickle.loads(pickle.dumps(folder))  # noqa: S301 - the pickle is our own
        return copy

    def test_what_was_created_is_read_whole_and_in_ranges(self, folder: Folder) -> None:
        data = bytes(range(256)) * 300
        folder.create("manifests/1", data)

        assert folder.read("manifests/1") == data
        assert folder.read("manifests/1", start=300, end=700) == data[300:700]
        assert folder.read("manifests/1", start=len(data) - 8, end=len(data)) == data[-8:]
        assert folder.size("manifests/1") == len(data)
        with folder.open("manifests/1") as file:
            file.seek(70_000)
            assert file.read(100) == data[70_000:70_100]

    def test_a_range_beyond_the_end_is_cut_not_filled(self, folder: Folder) -> None:
        folder.write("data/a/1", b"12345")

        assert folder.read("data/a/1", start=3, end=100) == b"45"
        assert folder.read("data/a/1", start=10, end=20) == b""

    def test_sizes_are_those_of_the_names_that_begin_alike(self, folder: Folder) -> None:
        for name, size in (("data/ab1/x", 3), ("data/ab1/y", 0), ("data/ab2/x", 5), ("data/a/x", 7), ("data/b/x", 8)):
            folder.write(name, bytes(size))

        assert folder.sizes("data/ab") == {"data/ab1/x": 3, "data/ab1/y": 0, "data/ab2/x": 5}
        assert folder.sizes("data/ab1/") == {"data/ab1/x": 3, "data/ab1/y": 0}
        assert folder.sizes("data/c") == folder.sizes("nowhere/c") == {}
        folder.write("data/ab3/z", b"1")
        assert folder.sizes("data/ab")["data/ab3/z"] == 1

    def test_an_empty_file_is_a_file(self, folder: Folder) -> None:
        folder.write("data/a/empty", b"")

        assert folder.read("data/a/empty") == b""
        assert folder.names("data/a") == ["empty"]

    def test_a_name_is_created_only_once_and_keeps_what_it_had(self, folder: Folder) -> None:
        folder.create("manifests/1", b"first")

        with pytest.raises(FileExistsError):
            folder.create("manifests/1", b"second")
        assert folder.read("manifests/1") == b"first"
        assert folder.names("manifests") == ["1"]

    def test_one_of_many_racing_writers_wins_and_no_reader_sees_a_part(self, folder: Folder) -> None:
        """A check followed by a write would let two writers win, and a plain write would show readers a part."""
        contents = [bytes([racer]) * 20_000 for racer in range(RACERS)]
        start = threading.Barrier(RACERS)

        def race(racer: int) -> list[bool]:
            won = []
            for round_ in range(self.rounds):
                start.wait()
                try:
                    folder.create(f"manifests/{round_}", contents[racer])
                except FileExistsError:
                    won.append(False)
                else:
                    won.append(True)
            return won

        with (
            restless_threads(),
            looking(folder, contents, self.rounds) as torn,
            ThreadPoolExecutor(RACERS) as pool,
        ):
            outcomes = list(pool.map(race, range(RACERS)))

        assert [sum(winners) for winners in zip(*outcomes, strict=True)] == [1] * self.rounds
        winners = [outcome.index(True) for outcome in zip(*outcomes, strict=True)]
        assert [folder.read(f"manifests/{round_}") for round_ in range(self.rounds)] == [
            contents[won] for won in winners
        ]
        assert sorted(folder.names("manifests")) == sorted(map(str, range(self.rounds)))
        assert torn() == []

    def test_what_is_missing_raises_file_not_found(self, folder: Folder) -> None:
        for use in (folder.read, folder.size):
            with pytest.raises(FileNotFoundError):
                use("manifests/1")
        with pytest.raises(FileNotFoundError), folder.open("manifests/1") as file:
            file.read()

    def test_names_are_fresh_sorted_and_without_their_folder(self, folder: Folder) -> None:
        assert folder.names("manifests") == []

        other = self.reopened(folder)
        for name in ("2", "10", "1"):
            other.create(f"manifests/{name}", b"")
            assert name in folder.names("manifests")
        assert folder.names("manifests") == ["1", "10", "2"]

    def test_a_large_file_is_created_only_once(self, folder: Folder) -> None:
        """Clients put large objects in parts, for which the condition is a different one."""
        first = bytes(self.large_bytes)
        folder.create("manifests/1", first)

        with pytest.raises(FileExistsError):
            folder.create("manifests/1", b"1" * self.large_bytes)
        assert folder.read("manifests/1", 0, 1) == b"\0"
        assert folder.size("manifests/1") == self.large_bytes

    def test_one_of_many_racing_processes_wins(self, folder: Folder) -> None:
        if not self.is_shared:
            pytest.skip("other processes do not see the memory of this one")
        rounds = max(self.rounds // 10, 5)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=spawn) as pool:
            outcomes = list(pool.map(_race, [folder] * 2, [b"0", b"1"], [rounds] * 2))

        assert [sum(winners) for winners in zip(*outcomes, strict=True)] == [1] * rounds
        winners = [b"0" if first else b"1" for first in outcomes[0]]
        assert [folder.read(f"manifests/{number}") for number in range(rounds)] == winners

    def test_replace_writes_over_what_was_there(self, folder: Folder) -> None:
        for content in (b"first", b"", b"2"):
            folder.replace("hints/latest", content)
            assert self.reopened(folder).read("hints/latest") == content
        assert folder.names("hints") == ["latest"]

    def test_what_exists_is_known_at_once(self, folder: Folder) -> None:
        assert not folder.exists("manifests/1")
        folder.create("manifests/1", b"")
        assert folder.exists("manifests/1")
        assert self.reopened(folder).exists("manifests/1")
        folder.delete(["manifests/1"])
        assert not folder.exists("manifests/1")

    def test_files_are_listed_at_any_depth_with_size_and_age(self, folder: Folder) -> None:
        assert folder.files() == []
        folder.write("data/b/2", b"22")
        folder.write("data/a/1", b"")
        folder.create("manifests/1", b"1")

        listed = folder.files()
        assert [(file.name, file.bytes) for file in listed] == [("data/a/1", 0), ("data/b/2", 2), ("manifests/1", 1)]
        assert [file.name for file in folder.files("data")] == ["data/a/1", "data/b/2"]
        ages = [file.modified for file in listed]
        assert max(ages) - min(ages) < 600
        assert min(ages) > 1_700_000_000

    def test_what_is_deleted_is_gone_and_may_be_deleted_again(self, folder: Folder) -> None:
        names = [f"data/{number}/file" for number in range(20)]
        for name in names:
            folder.write(name, b"1")
        folder.delete(names[:15])
        assert [file.name for file in folder.files("data")] == sorted(names[15:])

        folder.delete([*names, "data/never/was"])
        assert folder.files("data") == []
        folder.delete(names)
        folder.delete([])

    def test_a_deleted_name_may_be_created_again(self, folder: Folder) -> None:
        folder.create("manifests/1", b"1")
        folder.delete(["manifests/1"])
        folder.create("manifests/1", b"2")
        assert folder.read("manifests/1") == b"2"

    def test_the_uri_names_the_folder_and_no_secret(self, folder: Folder) -> None:
        assert folder.path("data/a/1").startswith(folder.root + "/")
        assert folder.uri.endswith(folder.root.lstrip("/"))
        assert not {"@", "?"} & set(folder.uri)

    def test_a_folder_goes_to_another_process(self, folder: Folder) -> None:
        folder.create("manifests/1", b"1")
        copy = self.reopened(folder)

        assert type(copy) is type(folder)
        assert copy.read("manifests/1") == b"1"
        with pytest.raises(FileExistsError):
            copy.create("manifests/1", b"2")


def _race(folder: Folder, content: bytes, rounds: int) -> list[bool]:
    won = []
    folder.write(f"ready/{content.decode()}", b"")
    for _ in range(30_000):
        if len(folder.names("ready")) == 2:
            break
        threading.Event().wait(0.001)
    for number in range(rounds):
        try:
            folder.create(f"manifests/{number}", content)
        except FileExistsError:
            won.append(False)
        else:
            won.append(True)
    return won


@contextmanager
def looking(folder: Folder, contents: list[bytes], rounds: int) -> Iterator[Callable[[], list[str]]]:
    """Keep reading what others create; yields a function that returns the names whose content was seen in part."""
    torn: list[str] = []
    over = threading.Event()

    def look() -> None:
        name, number = "manifests/0", 0
        while number < rounds and not over.wait(PAUSE):
            name = f"manifests/{number}"
            try:
                seen = folder.read(name)
            except FileNotFoundError:
                continue
            number += 1
            if seen not in contents:
                torn.append(name)

    thread = threading.Thread(target=look, name=f"reader-{uuid.uuid4().hex}")
    thread.start()
    try:
        yield lambda: torn
    finally:
        over.set()
        thread.join()
