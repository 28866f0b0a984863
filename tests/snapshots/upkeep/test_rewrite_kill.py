"""A rewrite that is killed from outside, at any moment, leaves the newest version whole; a later one succeeds."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from snapshots import SnapshotStore
from tests.snapshots.upkeep.varied_operator import content, elements, operator

# Says each operation on the storage, and then waits until it is allowed.
DRIVER = """
import sys
from snapshots import SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.testing import FolderWrapper

class Asking(FolderWrapper):
    def around(self, operation, name, data, run):
        print(operation, flush=True)
        sys.stdin.readline()
        return run()

store = SnapshotStore.on(Asking(open_folder(sys.argv[1])))
for max_parallelism in sys.argv[2:]:
    store.repartition(3, max_parallelism=int(max_parallelism), rewrite=True)
print("done", flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    store = SnapshotStore(tmp_path, "enrich")
    store.write(operator(5).cut())
    return store


def kill_at(store: SnapshotStore, number: int) -> bool:
    """Run a rewrite in a process that is killed at an operation, half of the time with that one under way."""
    program = [sys.executable, "-c", DRIVER, store.uri.removeprefix("file://"), "1000"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(number):
            if process.stdout.readline().strip() == "done":
                return False
            process.stdin.write("\n")
            process.stdin.flush()
        process.kill()
    return True


@pytest.mark.thorough
def test_at_any_moment(store: SnapshotStore) -> None:
    before = store.load(1)
    expected, in_flight = content(before), elements(before)
    draw = random.Random(1)
    for number in sorted(draw.sample(range(30), 20)):
        was_killed = kill_at(store, number)
        newest = store.latest()
        assert newest is not None
        assert newest.version == 1 or not was_killed or newest.max_parallelism == 1000
        assert store.verify().ok
        assert store.verify(1).ok
        assert (content(newest), elements(newest)) == (expected, in_flight)

    last = store.repartition(2, max_parallelism=500, rewrite=True)
    assert (content(last), elements(last)) == (expected, in_flight)
    store.collect_garbage(keep_last=1, min_age=0, dry_run=False)
    assert {info.name for info in last.folder.files("data")} == {file.path for file in last.manifest.files}
