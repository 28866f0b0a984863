"""``keygroups export``: writes a state, or the in-flight elements, to one file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from keygroups.ranges import KeyGroupRange
from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store
from snapshots.cli.output import Table, output_for
from snapshots.inspection import export as write_export

State = Annotated[str | None, typer.Option("--state", metavar="NAME", help="The state.")]
InFlight = Annotated[bool, typer.Option("--in-flight", help="The in-flight elements, instead of a state.")]
To = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        "--to",
        metavar="PATH",
        help="The file; its ending sets the format: parquet, arrow, csv, jsonl.",
    ),
]
Step = Annotated[str | None, typer.Option("--step", metavar="NAME", help="With --in-flight: only this step of a job.")]
KeyGroups = Annotated[str | None, typer.Option("--key-groups", metavar="A-B", help="Only these key groups.")]


def export(
    uri: Uri,
    to: To,
    state: State = None,
    in_flight: InFlight = False,
    step: Step = None,
    version: Version = None,
    key_groups: KeyGroups = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Write a state, or the in-flight elements, to one local file."""
    if (state is None) != in_flight:
        raise typer.BadParameter("pass either --state NAME or --in-flight", param_hint="--state")
    if step is not None and not in_flight:
        raise typer.BadParameter("a state has its step in its name; pass it with --in-flight", param_hint="--step")
    snapshot = open_store(uri, storage_option).load(version)
    wanted = None if key_groups is None else key_groups_of(key_groups, snapshot.max_parallelism)
    with progress_bar("exporting") as progress:
        rows = write_export(snapshot, state, to, key_groups=wanted, step=step, progress=progress)
    output_for(as_json=as_json).show(Exported(version=snapshot.version, state=state, path=to, rows=rows))


def key_groups_of(text: str, max_parallelism: int) -> KeyGroupRange:
    """Parse a range of key groups: ``A-B``, inclusive, or a single number."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not first <= last < max_parallelism:
        reason = f"{text!r} is not a range such as 0-{max_parallelism - 1}, which is all key groups"
        raise typer.BadParameter(reason, param_hint="--key-groups")
    return KeyGroupRange(first, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The report of ``keygroups export``."""

    version: int
    state: str | None
    path: str
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        what = "the in-flight elements" if self.state is None else f"state {self.state}"
        yield Table(f"exported {what} of snapshot {self.version}", (), (("rows", self.rows), ("file", self.path)))
