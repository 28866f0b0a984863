"""``keygroups compact``: folds the deltas of a snapshot into its base files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, open_store
from snapshots.cli.output import Table, output_for


def compact(uri: Uri, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Commit a snapshot with the same content in fewer files."""
    store = open_store(uri, storage_option)
    old = store.load().manifest
    with progress_bar("compacting"):
        new = store.compact().manifest
    report = Compaction(
        old_version=old.version,
        new_version=new.version,
        old_files=len(old.whole_files),
        new_files=len(new.whole_files),
        old_bytes=old.bytes_total,
        new_bytes=new.bytes_total,
    )
    output_for(as_json=as_json).show(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The report of ``keygroups compact``; if there was nothing to fold, the new version equals the old one."""

    old_version: int
    new_version: int
    old_files: int
    new_files: int
    old_bytes: int
    new_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        title = "compacted" if self.new_version != self.old_version else "nothing to fold"
        rows = (
            ("snapshot", self.old_version, self.new_version),
            ("files", self.old_files, self.new_files),
            ("bytes", self.old_bytes, self.new_bytes),
        )
        yield Table(title, ("", "from", "to"), rows)
