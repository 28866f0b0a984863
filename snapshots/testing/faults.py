"""A folder that fails at chosen operations, as storage and processes do."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TypeVar, cast

from snapshots.filesystem import Folder
from snapshots.testing.wrappers import FolderWrapper, Operation

_T = TypeVar("_T")


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
