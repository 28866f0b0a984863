"""``keygroups report``: writes a snapshot as one web page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store
from snapshots.cli.output import Table, output_for
from snapshots.inspection.target import replacing
from snapshots.report import render

Target = Annotated[str, typer.Option("-o", "--output", metavar="FILE.html", help="The file.")]
Planned = Annotated[
    int | None,
    typer.Option("--parallelism", metavar="N", min=1, help="Also show what a rescale to this parallelism would move."),
]
Largest = Annotated[
    int, typer.Option("--largest", metavar="N", min=0, help="How many of the largest keys to show; 0 reads no rows.")
]


Samples = Annotated[
    int,
    typer.Option("--samples", metavar="N", min=0, max=1000, help="How many rows of each state to show, with values."),
]


def report(
    uri: Uri,
    output: Target,
    parallelism: Planned = None,
    version: Version = None,
    largest: Largest = 10,
    samples: Samples = 0,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Write a snapshot as one web page: history, key groups, subtasks, in-flight elements, largest keys, settings."""
    store = open_store(uri, storage_option)
    snapshot = store.load(version)
    with progress_bar("reading") as progress:
        page = render(store, snapshot, parallelism=parallelism, largest=largest, samples=samples, progress=progress)
    with replacing(Path(output)) as unfinished:
        Path(unfinished).write_text(page, encoding="utf-8")
    written = Written(version=snapshot.version, path=output, bytes=len(page.encode()))
    output_for(as_json=as_json).show(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The report of ``keygroups report``."""

    version: int
    path: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        yield Table(f"report of snapshot {self.version}", (), (("file", self.path), ("bytes", self.bytes)))
