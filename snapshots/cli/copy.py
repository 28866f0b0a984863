"""``keygroups copy``: copies a snapshot for another operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store
from snapshots.cli.output import Table, output_for

To = Annotated[str, typer.Argument(metavar="TO", help="The other operator's folder, which has no snapshot yet.")]

KeepLineage = Annotated[
    bool, typer.Option("--keep-lineage", help="Keep the idempotency keys: the copy takes the place of the original.")
]


def copy(
    uri: Uri,
    to: To,
    version: Version = None,
    keep_lineage: KeepLineage = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Copy a snapshot to the folder of another operator: to run beside the original, or to take its place."""
    store, other = open_store(uri, storage_option), open_store(to, storage_option)
    source = store.load(version).manifest
    with progress_bar("copying"):
        copied = store.copy_to(other, source.version, keep_lineage=keep_lineage).manifest
    report = Copied(
        version=source.version,
        new_version=copied.version,
        operator_id=copied.operator_id,
        files=len(copied.whole_files),
        bytes=copied.bytes_total,
        lineage=copied.lineage,
        keeps_lineage=copied.lineage == source.lineage,
    )
    output_for(as_json=as_json).show(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The report of ``keygroups copy``."""

    version: int
    new_version: int
    operator_id: str
    files: int
    bytes: int
    lineage: str | None
    keeps_lineage: bool

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        rows = (("as version", self.new_version), ("files", self.files), ("bytes", self.bytes))
        keys = "the original's" if self.keeps_lineage else "its own"
        yield Table(f"copied snapshot {self.version} to {self.operator_id}", (), (*rows, ("idempotency keys", keys)))
