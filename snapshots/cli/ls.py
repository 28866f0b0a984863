"""``keygroups ls``: lists the operators and jobs under a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from keygroups.ttl import wall_time
from snapshots.cli.options import AsJson, StorageOptions, parsed
from snapshots.cli.output import CHECK_FAILED, NotFound, Table, output_for
from snapshots.filesystem import open_folder
from snapshots.folder_hints import folder_above
from snapshots.format.manifest import Manifest
from snapshots.inspection import Operators, OperatorSummary, operators_in
from snapshots.inspection.for_people import age_text, size_text

Above = Annotated[
    str, typer.Argument(metavar="FOLDER", help="The folder above the folders of operators and jobs: a path or a URI.")
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit", metavar="N", min=1, max=10_000, help="How many folders to read, in the order of their names."
    ),
]


def ls(folder: Above, limit: Limit = 100, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """List the operators and jobs under a folder: the newest version of each, when it was committed, and its size."""
    output = output_for(as_json=as_json)
    above = open_folder(folder, parsed(storage_option))
    found = operators_in(above, limit)
    if not found.found:
        raise NotFound(f"no operator or job has its folder in {found.uri}{_seen(found, folder_above(above))}")
    output.show(Listing(found, wall_time() / 1000))
    for operator in found.found:
        if operator.problem is not None:
            output.note(f"{operator.operator_id}: {operator.problem}")
    if found.looked_into < found.folders:
        output.note(f"looked into {found.looked_into} of {found.folders} names; for more: --limit")
    if any(operator.problem is not None for operator in found.found):
        raise typer.Exit(CHECK_FAILED)


def _seen(found: Operators, below: str | None) -> str:
    """Say what is in a folder without operators, and where they may be: `below` is a folder of it that has some."""
    if not found.folders:
        return ", which is empty or absent: check the path, or start one there"
    if below is not None:
        return f" itself; there are some one level below: `keygroups ls {below}`"
    if found.looked_into < found.folders:
        return f"; the first {found.looked_into} of {found.folders} names are of something else; for more: --limit"
    return f"; its names ({found.folders}) are of something else: name the folder right above the operators' folders"


@dataclass(frozen=True, slots=True)
class Listing:
    """The report of ``keygroups ls``."""

    found: Operators
    now: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return {
            "folder": self.found.uri,
            "operators": [_json_of(one) for one in self.found.found],
            "names": self.found.folders,
            "looked_into": self.found.looked_into,
        }

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        columns = ("name", "kind", "version", "committed", "operation", "subtasks", "rows", "size", "in flight")
        spare = ("operation", "subtasks", "kind", "rows", "in flight")
        yield Table(f"snapshots in {self.found.uri}", columns, tuple(map(self._row, self.found.found)), spare)

    def _row(self, operator: OperatorSummary) -> tuple[object, ...]:
        newest = operator.newest
        if newest is None:
            return operator.operator_id, None, None, f"unreadable: {type(operator.problem).__name__}", *(None,) * 5
        return (
            *(operator.operator_id, _kind_of(newest), newest.version),
            *(age_text(newest.created_at, self.now), newest.operation),
            *(newest.parallelism, newest.rows_total, size_text(newest.bytes_total), newest.in_flight_count),
        )


def _kind_of(newest: Manifest) -> str:
    return "job" if newest.step_names else "operator"


def _json_of(operator: OperatorSummary) -> dict[str, Any]:
    newest = operator.newest
    names = ("version", "created_at", "operation", "parallelism", "max_parallelism")
    return {
        "operator_id": operator.operator_id,
        "uri": operator.uri,
        "kind": None if newest is None else _kind_of(newest),
        **{name: None if newest is None else getattr(newest, name) for name in names},
        "rows": None if newest is None else newest.rows_total,
        "bytes": None if newest is None else newest.bytes_total,
        "in_flight": None if newest is None else newest.in_flight_count,
        "problem": None if operator.problem is None else str(operator.problem),
    }
