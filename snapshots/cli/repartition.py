"""``keygroups repartition``: rescales a snapshot, by metadata alone or with a rewrite of every row."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, Hash, MaxParallelism, Parallelism, StorageOptions, Uri, open_store
from snapshots.cli.output import Table, output_for
from snapshots.format.manifest import Manifest
from snapshots.restore.snapshot import Snapshot
from snapshots.store import SnapshotStore
from snapshots.upkeep.rewrite import Target


class Engine(StrEnum):
    """The engine of the rewrite."""

    LOCAL = "local"
    SPARK = "spark"


def repartition(
    uri: Uri,
    parallelism: Parallelism,
    max_parallelism: MaxParallelism = None,
    hash_: Hash = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Rewrite every row, to change max parallelism or hash.")
    ] = False,
    engine: Annotated[Engine, typer.Option("--engine", help="The engine of the rewrite.")] = Engine.LOCAL,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Commit a snapshot with another parallelism, over the same files or with rewritten ones."""
    store = open_store(uri, storage_option)
    old = store.load()
    target = Target.of(old.manifest, parallelism, max_parallelism, hash_)
    if not rewrite:
        target.check_is_kept(old.manifest, "add --rewrite")
    output = output_for(as_json=as_json)
    output.note(intention(old.manifest, target, rewrite=rewrite))
    start = time.perf_counter()
    new = _run(store, target, rewrite=rewrite, engine=engine)
    milliseconds = (time.perf_counter() - start) * 1000
    output.show(Repartition.of(old.manifest, new.manifest, milliseconds))


def intention(manifest: Manifest, target: Target, *, rewrite: bool) -> str:
    """Describe what a repartition is about to do."""
    to = f"to parallelism {target.parallelism}"
    if not rewrite:
        return f"snapshot {manifest.version} {to}: metadata only, 0 bytes of {manifest.bytes_total:,} are moved"
    files = [file for file in manifest.whole_files if file.kind in {"keyed", "delta", "in_flight"}]
    return (
        f"snapshot {manifest.version} {to}, {target.max_parallelism} key groups by {target.hash} (from "
        f"{manifest.max_parallelism} by {manifest.hash}): a rewrite, which reads {sum(file.bytes for file in files):,} "
        f"bytes in {len(files):,} files and writes about as many; version {manifest.version} stays as it is"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """The report of ``keygroups repartition``."""

    old_version: int
    new_version: int
    old_parallelism: int
    new_parallelism: int
    old_max_parallelism: int
    max_parallelism: int
    old_hash: str
    hash: str
    operation: str
    bytes_read: int
    bytes_written: int
    milliseconds: float

    @classmethod
    def of(cls, old: Manifest, new: Manifest, milliseconds: float) -> Repartition:
        """Compare two snapshots: files only in the old one were read, files only in the new one were written."""
        before = {file.path: file.bytes for file in old.files}
        after = {file.path: file.bytes for file in new.files}
        return cls(
            old_version=old.version,
            new_version=new.version,
            old_parallelism=old.parallelism,
            new_parallelism=new.parallelism,
            old_max_parallelism=old.max_parallelism,
            max_parallelism=new.max_parallelism,
            old_hash=old.hash,
            hash=new.hash,
            operation=new.operation,
            bytes_read=sum(before[path] for path in before.keys() - after.keys()),
            bytes_written=sum(after[path] for path in after.keys() - before.keys()),
            milliseconds=round(milliseconds, 3),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        word = "rewritten" if self.operation == "rewrite" else "repartitioned"
        yield Table(
            f"{word} in {self.milliseconds:.1f} ms, {self.bytes_read:,} bytes read and {self.bytes_written:,} written",
            ("", "from", "to"),
            (
                ("snapshot", self.old_version, self.new_version),
                ("parallelism", self.old_parallelism, self.new_parallelism),
                ("max parallelism", self.old_max_parallelism, self.max_parallelism),
                ("hash", self.old_hash, self.hash),
            ),
        )


def _run(store: SnapshotStore, target: Target, *, rewrite: bool, engine: Engine) -> Snapshot:
    def run(**how: Any) -> Snapshot:
        return store.repartition(
            target.parallelism,
            max_parallelism=target.max_parallelism,
            hash=target.hash,
            rewrite=rewrite,
            **how,
        )

    if not rewrite:
        return run()
    if engine is Engine.SPARK:
        from snapshots.upkeep.spark import session

        with session() as spark:
            return run(engine="spark", spark=spark)
    with progress_bar("rewriting") as progress:
        return run(progress=progress)
