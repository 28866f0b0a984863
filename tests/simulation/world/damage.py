"""Bits that rot and files that vanish in the middle of a history: whoever reads them is told, and nobody reads on."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from snapshots import ManifestMissing, Snapshot, SnapshotCorrupted, SnapshotNotFound
from snapshots.format.file_lists import read_list
from snapshots.format.manifest import DataFile, ListInfo, manifest_name
from snapshots.format.parquet import ParquetReader
from snapshots.upkeep.compaction import compact
from snapshots.versions import HINT

if TYPE_CHECKING:
    from tests.simulation.world.world import World

_MAGIC_BYTES = 4
_GZIP = b"\x1f\x8b"

KINDS = frozenset({"bit rot", "lost file"})
NOTICED = (SnapshotCorrupted, SnapshotNotFound)


def damage_something(world: World, kind: str, draw: random.Random) -> None:
    """Damage a file of a version, let others meet it, and repair it, as from a backup."""
    live = world.oracle.live()
    if not live:
        return
    version = draw.choice(live)
    manifest = world.clean.load(version).manifest
    file = draw.choice([None, *manifest.files, *(one.info for one in manifest.file_lists)])
    name = manifest_name(version) if file is None else file.path
    # Of a small file most is footer: half of the damage is to rows.
    within = file.bytes - file.footer_bytes if isinstance(file, DataFile) and draw.random() >= 0.5 else None
    with _damaged(world, name, kind, within, draw) as place:
        _check_noticed(world, version, name, is_newest=version == live[-1])
        # The first bytes say that it is Parquet, which nobody doubts who has the manifest.
        if file is not None and (kind == "lost file" or place >= _MAGIC_BYTES):
            _check_refused(world, file)
        _read(world, [version, draw.choice(live)])
        _change(world, live[-1], draw)
    world.storage.met[kind] += 1
    world.oracle.check()


@contextmanager
def _damaged(world: World, name: str, kind: str, within: int | None, draw: random.Random) -> Iterator[int]:
    data = world.storage.shared.read(name)
    place, rotten = _rotten(data, within or len(data), draw)
    world.storage.damage(name, rotten if kind == "bit rot" else None)
    try:
        yield place
    finally:
        world.storage.damage(name, data)


def _rotten(data: bytes, within: int, draw: random.Random) -> tuple[int, bytes]:
    """Flip a bit that means something: gzip says when a file was made, and fills up its last byte."""
    while True:
        place = draw.randrange(within)
        rotten = bytes([*data[:place], data[place] ^ 1 << draw.randrange(8), *data[place + 1 :]])
        if not data.startswith(_GZIP) or _unzipped(rotten) != _unzipped(data):
            return place, rotten


def _unzipped(data: bytes) -> bytes | None:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return None


def _check_refused(world: World, file: DataFile | ListInfo) -> None:
    """No reader takes what is damaged for what was written, also if it can be decoded."""
    with suppress(*NOTICED):
        if isinstance(file, DataFile):
            ParquetReader(world.clean.folder, file).read_all()
        else:
            read_list(world.clean.folder, file)
        raise AssertionError(f"{file.path} is read although it is damaged")


def _check_noticed(world: World, version: int, name: str, *, is_newest: bool) -> None:
    """A look at every byte finds the damage, and the newest version is not overlooked."""
    with suppress(*NOTICED):
        assert not world.clean.verify(version).ok, f"nobody notices what became of {name}"
    hint = world.storage.shared.read(HINT) if world.storage.shared.exists(HINT) else b""
    # Without a hint nothing says that there was a newer version.
    if is_newest and name == manifest_name(version) and hint.isdigit() and int(hint) == version:
        with suppress(ManifestMissing, SnapshotCorrupted):
            world.clean.latest()
            raise AssertionError(f"nobody misses the newest version {version}")


def _read(world: World, versions: list[int]) -> None:
    """Each version holds what it must, or says that it is damaged."""
    for version in versions:
        with suppress(*NOTICED):
            world.oracle.check_version(world.clean.load(version))


def _change(world: World, newest: int, draw: random.Random) -> None:
    """Whatever is made of a damaged version is right, or is not made."""
    with suppress(*NOTICED):
        latest = world.clean.load()
        if latest.version < newest:
            return  # the newest one is lost without a trace: what is made now is made of the one before
        changes: list[Callable[[], Snapshot]] = [
            lambda: compact(world.clean.folder, latest, world.times().now),
            lambda: world.clean.repartition(1, max_parallelism=draw.choice((1, 2, 4)), rewrite=True),
            lambda: world.clean.repartition(1),
        ]
        changed = draw.choice(changes)()
        world.disturbances += 1
        if changed.version > latest.version:
            world.oracle.acknowledge(changed)
