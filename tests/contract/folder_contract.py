"""What every filesystem must do that snapshots are committed on.

A test class for a filesystem inherits from `FolderContract` and has a fixture `folder`.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from snapshots.filesystem import Folder, open_folder
from tests.snapshot_kit import restless_threads

RACERS = 8
ROUNDS = 200
PAUSE = 0.0002
"""Seconds between two looks of a reader, so that it leaves the processor to the writers."""


class FolderContract:
    """The promises of `Folder`, above all that of `create`."""

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
        """A check that is followed by a write lets two writers win; a plain write shows its beginning to a reader."""
        contents = [bytes([racer]) * 20_000 for racer in range(RACERS)]
        start = threading.Barrier(RACERS)

        def race(racer: int) -> list[bool]:
            won = []
            for round_ in range(ROUNDS):
                start.wait()
                try:
                    folder.create(f"manifests/{round_}", contents[racer])
                except FileExistsError:
                    won.append(False)
                else:
                    won.append(True)
            return won

        with restless_threads(), looking(folder, contents) as torn, ThreadPoolExecutor(RACERS) as pool:
            outcomes = list(pool.map(race, range(RACERS)))

        assert [sum(winners) for winners in zip(*outcomes, strict=True)] == [1] * ROUNDS
        winners = [outcome.index(True) for outcome in zip(*outcomes, strict=True)]
        assert [folder.read(f"manifests/{round_}") for round_ in range(ROUNDS)] == [contents[won] for won in winners]
        assert sorted(folder.names("manifests")) == sorted(map(str, range(ROUNDS)))
        assert torn() == []

    def test_what_is_missing_raises_file_not_found(self, folder: Folder) -> None:
        for use in (folder.read, folder.size):
            with pytest.raises(FileNotFoundError):
                use("manifests/1")
        with pytest.raises(FileNotFoundError), folder.open("manifests/1") as file:
            file.read()

    def test_names_are_fresh_sorted_and_without_their_folder(self, folder: Folder) -> None:
        assert folder.names("manifests") == []

        other = open_folder(folder.uri)
        for name in ("2", "10", "1"):
            other.create(f"manifests/{name}", b"")
            assert name in folder.names("manifests")
        assert folder.names("manifests") == ["1", "10", "2"]

    def test_the_uri_opens_the_same_folder(self, folder: Folder) -> None:
        folder.write("data/a/1", b"1")

        assert open_folder(folder.uri).read("data/a/1") == b"1"
        assert folder.path("data/a/1").startswith(folder.root + "/")

    def test_a_folder_goes_to_another_process(self, folder: Folder) -> None:
        folder.create("manifests/1", b"1")
        copy = pickle.loads(pickle.dumps(folder))

        assert type(copy) is type(folder)
        assert copy.read("manifests/1") == b"1"
        with pytest.raises(FileExistsError):
            copy.create("manifests/1", b"2")


@contextmanager
def looking(folder: Folder, contents: list[bytes]) -> Iterator[Callable[[], list[str]]]:
    """Read what others create all the while; gives the names of which a part was seen."""
    torn: list[str] = []
    over = threading.Event()

    def look() -> None:
        name, number = "manifests/0", 0
        while number < ROUNDS and not over.wait(PAUSE):
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
