"""``keygroups repartition``: rescale a snapshot by a commit of metadata."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from snapshots.cli.options import AsJson, Parallelism, StorageOptions, Uri, load, open_store
from snapshots.cli.output import Table, output_for


def repartition(
    uri: Uri, parallelism: Parallelism, as_json: AsJson = False, storage_option: StorageOptions = None
) -> None:
    """Commit a snapshot with another parallelism over the same files."""
    store = open_store(uri, storage_option)
    old = load(store, None)
    start = time.perf_counter()
    new = store.repartition(parallelism)
    milliseconds = (time.perf_counter() - start) * 1000
    report = Repartition(
        old_version=old.version,
        new_version=new.version,
        old_parallelism=old.parallelism,
        new_parallelism=new.parallelism,
        max_parallelism=new.max_parallelism,
        milliseconds=round(milliseconds, 3),
    )
    output_for(as_json=as_json).show(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """The report of ``keygroups repartition``."""

    old_version: int
    new_version: int
    old_parallelism: int
    new_parallelism: int
    max_parallelism: int
    milliseconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the form for people."""
        yield Table(
            f"repartitioned in {self.milliseconds:.1f} ms",
            ("", "from", "to"),
            (
                ("snapshot", self.old_version, self.new_version),
                ("parallelism", self.old_parallelism, self.new_parallelism),
            ),
        )
