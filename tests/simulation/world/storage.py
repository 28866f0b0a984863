"""The storage that all processes of a world share: an object store or a local disk, and each process's way to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from fsspec.implementations.local import LocalFileSystem

from snapshots.filesystem import FileInfo, Folder
from snapshots.filesystem.local import LocalFolder
from snapshots.testing import Fault, FaultyFolder, FolderWrapper
from snapshots.testing.wrappers import Operation
from tests.simulation.world.disk import Disk
from tests.simulation.world.objects import Objects, ObjectsFolder

_T = TypeVar("_T")

OPERATIONS = 250
"""Faults of a process come within so many operations, about as many as two commits have."""


COMMITS = 3
"""Half of the faults of requests come with one of the first manifests that a process writes, or soon after it."""


class Faults(NamedTuple):
    """What goes wrong for a process: at which operations, so long after which manifest, at which syncs of its disk."""

    of_operations: dict[int, Fault]
    of_commits: list[tuple[int, Fault] | None]
    of_syncs: dict[int, str]


class Clocked(FolderWrapper):
    """A storage whose clock, which stamps its files, the world turns."""

    def __init__(self, inner: Folder) -> None:
        super().__init__(inner)
        self.now = 0.0
        self.times: dict[str, float] = {}

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], _T]) -> _T:
        result = run()
        if operation in {"create", "write", "replace"}:
            self.times[name] = self.now
        return result

    def files(self, folder: str = "") -> list[FileInfo]:
        return [file._replace(modified=self.times.setdefault(file.name, self.now)) for file in self.inner.files(folder)]


class Process(FaultyFolder):
    """A process's way to the storage, on which others may overtake it."""

    def __init__(self, storage: Storage, faults: Faults, seed: int) -> None:
        super().__init__(storage.shared, faults.of_operations, seed, fresh=("expired", "pins"))
        self._storage = storage
        self._of_commits = iter(faults.of_commits)
        self._of_syncs = dict(faults.of_syncs)
        self._syncs = 0
        self.is_faulty = bool(faults.of_operations or faults.of_syncs or any(faults.of_commits))

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], _T]) -> _T:
        self._storage.interrupt(operation)
        if data is not None and name.startswith("manifests/") and (commit := next(self._of_commits, None)):
            later, fault = commit
            self._faults[len(self.operations) + later] = fault
        before, self._storage.acting = self._storage.acting, self
        try:
            return super().around(operation, name, data, run)
        finally:
            self._storage.acting = before

    def sync(self) -> str | None:
        """Count a sync of the disk and return what goes wrong with it; a loss of power ends the process."""
        fault = self._of_syncs.get(self._syncs)
        self._syncs += 1
        if fault == "power loss":
            self._storage.met["power loss"] += 1
            self._storage.has_lost_power = True
            self._die()
        return fault


class Storage:
    """One shared storage.

    Attributes
    ----------
    shared : Folder
        The storage as nobody but the oracle sees it: without a fault.
    met : Counter of str
        What has happened.
    interrupt : callable
        Called before each operation of a process, for others to overtake it.
    """

    def __init__(self, draw: random.Random, *, on_disk: bool) -> None:
        self._draw = draw
        self.disk = Disk(draw) if on_disk else None
        self._objects = Objects()
        inner: Folder = ObjectsFolder(self._objects, "bucket/operator")
        if self.disk is not None:
            inner = LocalFolder(LocalFileSystem(), str(self.disk.root / "operator"))
            self.disk.before_sync = self._before_sync
        self.shared = Clocked(inner)
        self.met: Counter[str] = Counter()
        self.acting: Process | None = None
        self.has_lost_power = False
        self.interrupt: Callable[[Operation], None] = lambda operation: None
        self._processes: list[Process] = []

    def process(self, kinds: frozenset[str], rate: float, operations: int = OPERATIONS) -> Process:
        """Return what a new process sees; at some of so many operations something of these kinds goes wrong."""
        faults = Faults({}, [None] * COMMITS, {})
        possible = [fault for kind, group in REQUEST_FAULTS.items() if kind in kinds for fault in group]
        of_disk = sorted(kinds & SYNC_FAULTS) if self.disk is not None else []
        if self._draw.random() < rate:
            for _ in range(self._draw.randrange(1, 4)):
                if possible and self._draw.random() < 0.5:
                    faults.of_operations[self._draw.randrange(operations)] = self._draw.choice(possible)
                elif possible:
                    later = self._draw.choice((0, 0, 0, 1, 2, 3))
                    faults.of_commits[self._draw.randrange(COMMITS)] = later, self._draw.choice(possible)
                if of_disk:
                    faults.of_syncs[self._draw.randrange(operations)] = self._draw.choice(of_disk)
        process = Process(self, faults, self._draw.getrandbits(32))
        self._processes.append(process)
        return process

    def settle(self) -> None:
        """What was late arrives."""
        for process in self._processes:
            process.settle()
        self._processes.clear()

    def restart(self) -> None:
        """Begin again after a loss of power; requests that were on their way are lost."""
        assert self.disk is not None
        self.disk.lose_power()
        self._processes.clear()
        self.has_lost_power = False

    def damage(self, name: str, data: bytes | None) -> None:
        """Let a file have another content, or be gone, behind everybody's back."""
        path = self.shared.path(name)
        if self.disk is not None:
            Path(path).unlink(missing_ok=True)
            if data is not None:
                Path(path).write_bytes(data)
            self.disk.sync_all()
        elif data is None:
            del self._objects.objects[path]
        else:
            self._objects.objects[path] = data

    def _before_sync(self, descriptor: int) -> None:
        if self.acting is None or self.disk is None:
            return
        if self.acting.sync() == "disk full":
            self.met["disk full"] += 1
            self.disk.fill(descriptor)


REQUEST_FAULTS: dict[str, tuple[Fault, ...]] = {
    "crash": (Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.CRASH_AFTER),
    "lost request": (Fault.LOST_REQUEST,),
    "lost reply": (Fault.LOST_REPLY,),
    "late request": (Fault.LATE,),
    "stale listing": (Fault.STALE_LISTING,),
}
SYNC_FAULTS = frozenset({"power loss", "disk full"})
