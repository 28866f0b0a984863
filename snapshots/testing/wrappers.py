"""Wrappers of folders: every operation passes through one method, which may count it or make it fail."""

from __future__ import annotations

import copy
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
