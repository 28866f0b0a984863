"""Folders for tests: every operation passes through one method, which may count it or make it fail."""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, BinaryIO, Literal, TypeVar, cast

from keygroups.context_managers import contextmanager
from snapshots.filesystem import FileInfo, Folder

_T = TypeVar("_T")

Operation = Literal["create", "write", "replace", "read", "open", "size", "exists", "names", "files", "delete"]


class FolderWrapper(Folder):
    """Forwards every operation to another folder. Any thread may call any method.

    Subclasses override `around`. Use it like any folder: ``SnapshotStore.on(CountingFolder(open_folder(uri)))``.

    Parameters
    ----------
    inner : Folder
        The folder that does the work.
    """

    def __init__(self, inner: Folder) -> None:
        super().__init__(inner.filesystem, inner.root)
        self.inner = inner

    @property
    def parent(self) -> Folder | None:
        """The parent of the inner folder, which is not wrapped."""
        return self.inner.parent

    def child(self, name: str) -> Folder:
        """Return a folder in this one, wrapped as this one is."""
        child = copy.copy(self)
        child.inner, child.root = self.inner.child(name), self.path(name)
        return child

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], _T]) -> _T:
        """Run one operation.

        Parameters
        ----------
        operation : str
            The method of `Folder`; reads of an open file are "read".
        name : str
            The file or sub-folder; if there are several, the first.
        data : bytes or None
            The data to store.
        run : callable
            Runs the operation on the inner folder.
        """
        return run()

    def create(self, name: str, data: bytes) -> None:
        """Create a file if absent."""
        self.around("create", name, data, lambda: self.inner.create(name, data))

    def write(self, name: str, data: bytes) -> None:
        """Write a file."""
        self.around("write", name, data, lambda: self.inner.write(name, data))

    def replace(self, name: str, data: bytes) -> None:
        """Write over a file."""
        self.around("replace", name, data, lambda: self.inner.replace(name, data))

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Read a file or a part of it."""
        return self.around("read", name, None, lambda: self.inner.read(name, start, end))

    def open(self, name: str) -> BinaryIO:
        """Open a file."""
        file = self.around("open", name, None, lambda: self.inner.open(name))
        return cast("BinaryIO", _WrappedFile(file, self, name))

    def size(self, name: str) -> int:
        """Return a file's size."""
        return self.around("size", name, None, lambda: self.inner.size(name))

    def exists(self, name: str) -> bool:
        """Return whether a file exists."""
        return self.around("exists", name, None, lambda: self.inner.exists(name))

    def names(self, folder: str) -> list[str]:
        """List the names in a sub-folder."""
        return self.around("names", folder, None, lambda: self.inner.names(folder))

    def files(self, folder: str = "") -> list[FileInfo]:
        """List the files below a sub-folder."""
        return self.around("files", folder, None, lambda: self.inner.files(folder))

    def sizes(self, prefix: str) -> dict[str, int]:
        """List the sizes of the files with a prefix."""
        return self.around("files", prefix, None, lambda: self.inner.sizes(prefix))

    def delete(self, names: Sequence[str]) -> None:
        """Delete files."""
        self.around("delete", names[0] if names else "", None, lambda: self.inner.delete(names))


class _WrappedFile:
    def __init__(self, file: BinaryIO, folder: FolderWrapper, name: str) -> None:
        self._file = file
        self._folder = folder
        self._name = name

    def read(self, size: int = -1) -> bytes:
        return self._folder.around("read", self._name, None, lambda: self._file.read(size))

    def __enter__(self) -> _WrappedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class CountingFolder(FolderWrapper):
    """Counts operations, and the bytes written and read.

    Attributes
    ----------
    operations : Counter of str
        The number of calls by operation.
    bytes_written, bytes_read : int
        The bytes of contents only.

    Examples
    --------
    >>> from snapshots.filesystem import open_folder
    >>> folder = CountingFolder(open_folder("memory://counted"))
    >>> folder.write("data/a/1", b"12345")
    >>> folder.read("data/a/1", 1, 3)
    b'23'
    >>> dict(folder.operations), folder.bytes_written, folder.bytes_read
    ({'write': 1, 'read': 1}, 5, 2)
    """

    def __init__(self, inner: Folder) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Reset all counters to zero."""
        self.operations: Counter[str] = Counter()
        self.bytes_written = 0
        self.bytes_read = 0

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], _T]) -> _T:
        """Count and run one operation; it counts even if it fails."""
        with self._lock:
            self.operations[operation] += 1
            self.bytes_written += 0 if data is None else len(data)
        result = run()
        if isinstance(result, bytes):
            with self._lock:
                self.bytes_read += len(result)
        return result


@contextmanager
def restless_threads() -> Iterator[None]:
    """Make Python switch threads as often as possible, so that a race shows within a few rounds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Crash(BaseException):
    """The process has died: no error handler runs, and no further operation reaches the storage."""


class Fault(Enum):
    """The kinds of failures of an operation."""

    CRASH_BEFORE = "the process dies before it"
    CRASH_DURING = "the process dies in the middle of it: a part is stored, but never under a created name"
    CRASH_AFTER = "the process dies after it"
    LOST_REQUEST = "it does not take place, and an error is raised"
    LOST_REPLY = "it takes place, and an error is raised"
    LATE = "an error is raised, and it takes place later, before the next operation but one"
    STALE_LISTING = "a listing shows what the last listing of that folder showed"


class FaultyFolder(FolderWrapper):
    """Fails at the operations with the given numbers. Any thread may call any method; operations are serialized.

    Parameters
    ----------
    inner : Folder
        The folder that does the work.
    faults : mapping of int to Fault
        The faults by the number of the operation; the first is 0.
    seed : int
        The seed that decides where a write is torn.
    fresh : collection of str
        Sub-folders whose listings are never stale. Commits and retention rely on fresh listings of ``expired`` and
        ``pins``, which S3, GCS, Azure and POSIX filesystems provide.

    Attributes
    ----------
    operations : list of str
        The operations so far.

    Examples
    --------
    >>> from snapshots.filesystem import open_folder
    >>> folder = FaultyFolder(open_folder("memory://faulty"), {0: Fault.LOST_REPLY})
    >>> folder.create("manifests/1", b"1")
    Traceback (most recent call last):
    ConnectionResetError: the reply to create manifests/1 was lost
    >>> folder.read("manifests/1")
    b'1'
    """

    def __init__(self, inner: Folder, faults: Mapping[int, Fault], seed: int = 0, fresh: Collection[str] = ()) -> None:
        super().__init__(inner)
        self._fresh = frozenset(fresh)
        self._faults = dict(faults)
        self._random = random.Random(seed)  # noqa: S311 - no secret depends on it
        self._lock = threading.RLock()
        self._is_dead = False
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._listings: dict[str, object] = {}
        self.operations: list[str] = []

    def around(self, operation: Operation, name: str, data: bytes | None, run: Callable[[], _T]) -> _T:
        """Run one operation, as far as its fault allows."""
        with self._lock:
            if self._is_dead:
                raise Crash
            number = len(self.operations)
            self.operations.append(f"{operation} {name}")
            self._run_late(number)
            fault = self._faults.get(number)
            if operation in {"names", "files"}:
                is_stale = fault is Fault.STALE_LISTING and name not in self._fresh
                return self._list(fault, is_stale, f"{operation} {name}", run)
            return self._fail(fault, operation, name, data, run)

    def settle(self) -> None:
        """Carry out late operations now."""
        with self._lock:
            self._run_late(len(self.operations) + 2)

    def _fail(
        self, fault: Fault | None, operation: Operation, name: str, data: bytes | None, run: Callable[[], _T]
    ) -> _T:
        match fault:
            case Fault.CRASH_BEFORE:
                self._die()
            case Fault.CRASH_DURING:
                self._tear(operation, name, data)
                self._die()
            case Fault.LOST_REQUEST:
                raise TimeoutError(f"no answer to {operation} {name}")
            case Fault.LATE if operation in {"create", "write", "replace", "delete"}:
                self._late.append((len(self.operations) + 1, run))
                raise TimeoutError(f"no answer yet to {operation} {name}")
        result = run()
        if fault is Fault.CRASH_AFTER:
            self._die()
        if fault in {Fault.LOST_REPLY, Fault.LATE}:
            raise ConnectionResetError(f"the reply to {operation} {name} was lost")
        return result

    def _list(self, fault: Fault | None, is_stale: bool, asked: str, run: Callable[[], _T]) -> _T:
        if is_stale and asked in self._listings:
            return cast("_T", self._listings[asked])
        result = self._fail(fault, "names", asked, None, run)
        self._listings[asked] = result
        return result

    def _die(self) -> None:
        self._is_dead = True
        raise Crash

    def _tear(self, operation: Operation, name: str, data: bytes | None) -> None:
        if data is None:
            return
        part = bytes(data)[: self._random.randrange(len(data) or 1)]
        if operation == "write":
            self.inner.write(name, part)
        else:
            # Creating and replacing are atomic, but a temporary file may stay beside the target.
            self.inner.write(f"{name.rpartition('/')[0] or 'data'}/.{self._random.getrandbits(64):x}.tmp", part)

    def _run_late(self, number: int) -> None:
        due = [run for at, run in self._late if at <= number]
        self._late = [(at, run) for at, run in self._late if at > number]
        for run in due:
            try:
                run()
            except OSError:
                continue  # its result is not awaited
