"""A local disk that forgets what was not synced when the power fails. Files are real; what is durable is kept beside.

A program under POSIX can rely on this and no more: the content of a file is durable up to the size that it had when it
was synced, and a name is durable, or gone for good, once its directory was synced.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from snapshots.filesystem import local

_IN_MEMORY = Path("/dev/shm")

Entries = dict[str, int]
"""The inodes that a directory names."""


class Disk:
    """One directory tree.

    Parameters
    ----------
    draw : random.Random
        Decides what a loss of power leaves of what was not synced.

    Attributes
    ----------
    root : Path
        The tree.
    before_sync : callable
        Called with the descriptor before each sync; what it raises comes out of the sync, which then has no effect.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._home = Path(tempfile.mkdtemp(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
        self.root = self._home / "tree"
        # A name here for each durable file: it can be named again, and its inode is given to no other file.
        self._held = self._home / "held"
        self._sizes: dict[int, int] = {}
        self._entries: dict[int, Entries] = {}
        self.before_sync: Callable[[int], None] = lambda descriptor: None
        self.root.mkdir()
        self._held.mkdir()
        self.sync_all()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let local folders sync to this disk."""
        # Nothing but the syncs has to be seen: what a loss of power takes is the difference to the newest of them.
        seen = SimpleNamespace(**{**vars(os), "fsync": self.sync})
        with mock.patch.object(local, "os", seen):
            try:
                yield
            finally:
                shutil.rmtree(self._home)

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable, or a directory's names."""
        self.before_sync(descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._note_names(status.st_ino, os.scandir(descriptor), descriptor)
        else:
            self._sizes[status.st_ino] = status.st_size

    def fill(self, descriptor: int) -> None:
        """Run out of space: a part of what was written is there."""
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return
        os.ftruncate(descriptor, self._draw.randrange(os.fstat(descriptor).st_size + 1))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def lose_power(self) -> None:
        """Begin again with what is durable, and some of the rest."""
        self._restore(self.root)
        for path in sorted(self.root.rglob("*")):
            status = path.stat()
            if path.is_file() and (lost := status.st_size - self._sizes.get(status.st_ino, 0)) > 0:
                self._tear(path, status.st_size - lost, lost)
        self.sync_all()

    def _restore(self, directory: Path) -> None:
        durable = self._entries.get(directory.stat().st_ino, {})
        present = {entry.name: entry.inode() for entry in os.scandir(directory)}
        for name in sorted(present.keys() | durable.keys()):
            if present.get(name) != durable.get(name) and self._draw.random() < 0.5:
                self._replace(directory / name, durable.get(name))
            if (directory / name).is_dir():
                self._restore(directory / name)

    def _replace(self, path: Path, inode: int | None) -> None:
        """Let a name stand for what it stood for when its directory was synced."""
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if inode is None:
            return
        if (held := self._held / str(inode)).exists():
            os.link(held, path)
            return
        path.mkdir()
        self._entries[path.stat().st_ino] = self._entries.get(inode, {})

    def _tear(self, path: Path, durable: int, lost: int) -> None:
        """Keep a part of what was not synced; blocks that were never written are full of zeros."""
        kept = durable + self._draw.randrange(lost + 1)
        with path.open("r+b") as file:
            file.truncate(kept)
            if self._draw.random() < 0.3:
                file.truncate(durable + lost)

    def sync_all(self) -> None:
        """Make all durable that is there."""
        for directory, _, names in os.walk(self.root):
            for name in names:
                status = Path(directory, name).stat()
                self._sizes[status.st_ino] = status.st_size
            self._note_names(Path(directory).stat().st_ino, os.scandir(directory), None, directory)

    def _note_names(
        self, directory: int, found: Iterator[os.DirEntry[str]], descriptor: int | None, path: str = ""
    ) -> None:
        self._entries[directory] = {}
        for entry in found:
            inode = entry.inode()
            self._entries[directory][entry.name] = inode
            held = self._held / str(inode)
            if not entry.is_dir(follow_symlinks=False) and not held.exists():
                os.link(entry.name if descriptor is not None else Path(path, entry.name), held, src_dir_fd=descriptor)
