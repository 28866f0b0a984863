"""Which file has the content of each partition, while logs are renamed, copied, cut and compressed.

A rotation has several steps. A listing may show any moment between them, and a file may be gone when it is opened. So a
search that fails is repeated until the listing stands still.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from async_op.connectors.files.access import FileAccess
from async_op.connectors.files.change_polling import Changes
from async_op.connectors.files.compression import is_compressed
from async_op.connectors.files.content_identity import FileIdentity
from async_op.connectors.files.listing import Stamp

_log = logging.getLogger(__name__)

_LOOKS_MAX = 5
"""A log that is written all the time never stands still."""
_SUFFIX = re.compile(r"[.\-_]")


@dataclass(slots=True)
class FilePartition:
    """A partition: where its content is now, and what identifies it. Its id is the name under which it was found first.

    Attributes
    ----------
    name : str or None
        The file; None if the content is nowhere, and other content has taken its name.
    identity : FileIdentity or None
        What was read; None if nothing was.
    """

    name: str | None
    identity: FileIdentity | None = None


class Partitions:
    """The partitions of a source, on one event loop.

    Parameters
    ----------
    known : dict of str to FilePartition
        The partitions of the run before, by id; new ones are added.
    files : FileAccess
        The files.
    changes : Changes
        Their listing.
    reads_replaced : bool
        Whether content that has replaced other content is a partition of its own.
    """

    def __init__(
        self, known: dict[str, FilePartition], files: FileAccess, changes: Changes, *, reads_replaced: bool
    ) -> None:
        self._known = known
        self._files = files
        self._changes = changes
        self._reads_replaced = reads_replaced
        self._moving = asyncio.Lock()
        self._copies: set[str] = set()

    def of(self, partition: str) -> FilePartition:
        """Return a partition by its id."""
        return self._known.setdefault(partition, FilePartition(partition))

    async def refresh(self) -> list[str]:
        """List the files, and return the ids of all partitions whose file is there."""
        await self._changes.refresh()
        if self._reads_replaced or self._unclaimed():
            await self._notice_moves()
        for name in self._unclaimed():
            if not await self._is_copy(name):
                self._known[self._new_id(name)] = FilePartition(name)
        ids = {one.name: partition for partition, one in self._known.items()}
        return [ids[name] for name in self._changes.files() if name in ids]

    async def is_found(self, one: FilePartition, old: str, stamp: Stamp | None = None) -> bool:
        """Look for the content of a partition whose file has other content or is gone.

        If nothing was read of it, its stamp says what to look for.
        """
        for _ in range(_LOOKS_MAX):
            seen = self._changes.files()
            await self._changes.refresh()
            if await self._has_moved(one, old, stamp):
                return True
            if self._changes.files() == seen:
                break
        return False

    def is_elsewhere(self, name: str, stamp: Stamp | None) -> bool:
        """Return whether a file that was not read yet is listed under another name, in any partition."""
        return any(self._is_same(other, name, stamp) for other in self._changes.files())

    def give_up(self, one: FilePartition, name: str) -> bool:
        """Leave a name to the content that has it now, if a source may read that; returns whether it may."""
        if self._reads_replaced and one.name == name:
            _log.warning("%s has other content than before, and is read from its beginning", name)
            one.name = None
        return self._reads_replaced

    def _unclaimed(self) -> list[str]:
        claimed = {one.name for one in self._known.values()}
        return [name for name in self._changes.files() if name not in claimed]

    def _new_id(self, name: str) -> str:
        """Return the id of a new partition: ids are never used twice, because ids of elements are made of them."""
        number, found = 1, name
        while found in self._known:
            number += 1
            found = f"{name}#{number}"
        return found

    async def _notice_moves(self) -> None:
        """Find the content of partitions whose files are no longer as they were."""
        for _ in range(len(self._known)):
            is_moved = False
            for one, name in self._displaced():
                is_there = name in self._changes.files()
                if is_there and one.identity is not None and await self._files.has(name, one.identity):
                    continue
                if await self.is_found(one, name):
                    is_moved = True
                elif is_there:
                    self.give_up(one, name)
            if not is_moved:  # one that moves makes room for another one, as from app.log.1 to app.log.2
                break

    def _displaced(self) -> Iterator[tuple[FilePartition, str]]:
        for one in list(self._known.values()):
            name, identity = one.name, one.identity
            if name is not None and identity is not None and self._changes.stamp(name) != identity.stamp:
                yield one, name

    async def _is_copy(self, name: str) -> bool:
        """Return whether a new file is the copy of one that is there, as while a log is copied or compressed.

        When the original is cut or removed, its partition continues with the copy. Only a name with something appended,
        such as `app.log.1` or `app.log.gz`, can be the name of a copy: two reports may well say the same.
        """
        for original in self._originals(name):
            seen = self._changes.stamp(original)
            try:
                is_copy = await self._files.is_copy(name, original)
            except FileNotFoundError:  # since the listing: the next one tells
                return True
            if is_copy and name not in self._copies:
                _log.warning("%s is a copy of %s, and is read only if that is gone or has changed", name, original)
                self._copies.add(name)
            if is_copy or await self._is_cut(original, seen):
                return True
        return False

    async def _is_cut(self, name: str, seen: Stamp | None) -> bool:
        """Return whether a file has lost content since it was listed, so that a comparison with it says nothing."""
        await self._changes.refresh()
        now = self._changes.stamp(name)
        return seen is None or now is None or now.bytes < seen.bytes or now.file != seen.file

    def _originals(self, name: str) -> Iterator[str]:
        files = self._changes.files()
        return (name[: found.start()] for found in _SUFFIX.finditer(name) if name[: found.start()] in files)

    async def _has_moved(self, one: FilePartition, old: str, stamp: Stamp | None) -> bool:
        """Look for the content of a partition under the names that no partition has."""
        async with self._moving:
            if one.name != old:
                return one.name is not None  # the listing and the reader have both noticed it
            identity = one.identity
            for name in self._unclaimed():
                if identity is None or not identity.head[0]:
                    is_it = self._is_same(name, old, stamp)
                else:
                    is_it = self._may_be(name, old, identity) and await self._files.has(name, identity)
                if is_it:
                    _log.info("%s is now %s, and is read on there", old, name)
                    one.name = name
                    one.identity = None if identity is None else replace(identity, path=name, is_done=False)
                    return True
        return False

    def _is_same(self, name: str, old_name: str, old: Stamp | None) -> bool:
        """Return whether a file is another one under a new name or in compressed form, as far as a listing shows it."""
        stamp = self._changes.stamp(name)
        is_renamed = stamp is not None and old is not None and stamp.file is not None and stamp.file == old.file
        return is_renamed or (is_compressed(name) and name.startswith(f"{old_name}."))

    def _may_be(self, name: str, old_name: str, identity: FileIdentity) -> bool:
        """Return whether a file may have the content of a partition.

        If the old name has other content now, the content decides. If nothing has the old name, a file with equal
        content may well be a new one, such as the next report that says the same. So it must be the same file on the
        disk, or the file in compressed form.
        """
        stamp = self._changes.stamp(name)
        if self._changes.stamp(old_name) is not None:
            return True
        if is_compressed(name) and not is_compressed(identity.path):
            return True
        old = identity.stamp
        if stamp is None or old is None or stamp.file is None or stamp.file != old.file:
            return False
        return stamp.changed == old.changed or stamp.bytes > old.bytes
