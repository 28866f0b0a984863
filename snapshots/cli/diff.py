"""``keygroups diff``: shows what was added, removed and changed between two versions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, open_store
from snapshots.cli.output import Table, key_text, output_for, value_text
from snapshots.inspection import Difference, RowChange, compare
from snapshots.inspection.export import plain

_KEY_GROUPS_SHOWN_MAX = 20

OldVersion = Annotated[int, typer.Argument(metavar="V1", min=1, help="The version to compare with.")]
NewVersion = Annotated[int, typer.Argument(metavar="V2", min=1, help="The version to compare.")]
Rows = Annotated[bool, typer.Option("--rows", help="Name the keys that differ, with their values before and after.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many keys --rows names.")]


def diff(
    uri: Uri,
    old_version: OldVersion,
    new_version: NewVersion,
    rows: Rows = False,
    limit: Limit = 100,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Compare two versions: what was added, removed and changed, per state and key group."""
    store = open_store(uri, storage_option)
    old, new = store.load(old_version), store.load(new_version)
    with progress_bar("comparing"):
        found = compare(old, new, rows=limit if rows else 0)
    output_for(as_json=as_json).show(Comparison(found, with_rows=rows))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The report of ``keygroups diff``."""

    found: Difference
    with_rows: bool

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        found = self.found
        report: dict[str, Any] = {
            "old_version": found.old.version,
            "new_version": found.new.version,
            "states": [
                {
                    "name": state.name,
                    "in_old": state.in_old,
                    "in_new": state.in_new,
                    "added": state.added,
                    "removed": state.removed,
                    "changed": state.changed,
                    "key_groups_compared": state.compared,
                    "key_groups_identical": state.identical,
                    "key_groups": [asdict(change) for change in state.key_groups],
                }
                for state in found.states
            ],
            "operator_states": [asdict(state) for state in found.operator_states],
            "in_flight": asdict(found.in_flight),
            "in_flight_by_step": {step: asdict(one) for step, one in found.in_flight_by_step.items()},
        }
        if self.with_rows:
            report["rows"] = [_row_of(change) for change in found.rows]
        return report

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        found = self.found
        yield Table(
            f"from snapshot {found.old.version} to {found.new.version} of {found.new.operator_id}",
            ("state", "added", "removed", "changed", "key groups that differ", "compared", "in the same files"),
            tuple(
                (
                    *(state.name, state.added, state.removed, state.changed),
                    *(len(state.key_groups), state.compared, state.identical),
                )
                for state in found.states
            ),
            spare=("in the same files", "compared", "key groups that differ"),
        )
        for state in found.states:
            shown = state.key_groups[:_KEY_GROUPS_SHOWN_MAX]
            if shown:
                title = f"key groups of {state.name}: {len(shown)} of the {len(state.key_groups)} that differ"
                rows = tuple((one.key_group, one.added, one.removed, one.changed) for one in shown)
                yield Table(title, ("key group", "added", "removed", "changed"), rows)
        if found.operator_states:
            counts = tuple((state.name, state.added, state.removed) for state in found.operator_states)
            yield Table("operator states", ("state", "items added", "items removed"), counts)
        yield from _in_flight(found)
        if found.rows:
            columns = ("state", "key group", "key", "entry", "change", "before", "after")
            title = f"keys that differ (at most {len(found.rows)})"
            yield Table(title, columns, tuple(map(_cells_of, found.rows)), spare=("key group",))


def _in_flight(found: Difference) -> Iterable[Table]:
    names = tuple(name.replace("_", " ") for name in asdict(found.in_flight))
    if found.in_flight_by_step:
        rows = tuple((step, *asdict(one).values()) for step, one in found.in_flight_by_step.items())
        yield Table("in flight", ("step", *names), rows)
    else:
        yield Table("in flight", (), tuple(zip(names, asdict(found.in_flight).values(), strict=True)))


def _row_of(change: RowChange) -> dict[str, Any]:
    return {
        "state": change.state,
        "key_group": change.key_group,
        "key": plain(change.key),
        "entry": plain(change.entry),
        "change": change.change,
        "before": plain(change.before),
        "after": plain(change.after),
    }


def _cells_of(change: RowChange) -> tuple[object, ...]:
    entry = None if change.entry is None else value_text(change.entry)
    before = None if change.change == "added" else value_text(change.before)
    after = None if change.change == "removed" else value_text(change.after)
    return change.state, str(change.key_group), key_text(change.key), entry, change.change, before, after
