"""``keygroups get``, ``edit`` and ``export``: shows a key, drops and renames states, writes a state to a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from keygroups.ranges import KeyGroupRange
from keygroups.ttl import wall_time
from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store
from snapshots.cli.output import FlatReport, NotFound, Table, key_text, output_for, value_text
from snapshots.format.subtask import InFlightElement
from snapshots.inspection import KeyContent, KeyRow, StateOfKey, find_key
from snapshots.inspection import export as write_export
from snapshots.inspection.export import plain
from snapshots.inspection.for_people import duration_text
from snapshots.restore.snapshot import Snapshot
from snapshots.upkeep.edit import Editor

_ROWS_SHOWN_MAX = 50

Key = Annotated[list[str], typer.Argument(metavar="KEY...", help="The key; of several columns, one value each.")]
State = Annotated[str | None, typer.Option("--state", metavar="NAME", help="The state; by default all that have it.")]

Drop = Annotated[list[str] | None, typer.Option("--drop", metavar="NAME", help="Drop a state; may be repeated.")]
Rename = Annotated[
    list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Rename a state; may be repeated.")
]

ExportedState = Annotated[str | None, typer.Option("--state", metavar="NAME", help="The state.")]
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


def get(
    uri: Uri,
    key: Key,
    state: State = None,
    version: Version = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Show one key: its state, and what is in flight for it. A key that begins with a dash goes after `--`."""
    snapshot = open_store(uri, storage_option).load(version)
    found = find_key(snapshot, key, state)
    if found is None:
        what = "no state has" if state is None else f"state {state!r} does not have"
        raise NotFound(
            f"{what} the key {' '.join(key)!r} in snapshot {snapshot.version}, and nothing is in flight for it; "
            "to see keys: keygroups inspect --largest 10, or keygroups export"
        )
    output_for(as_json=as_json).show(Found(found, snapshot.version, wall_time()))


@dataclass(frozen=True, slots=True)
class Found:
    """The report of ``keygroups get``."""

    content: KeyContent
    version: int
    now: int

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        content = self.content
        return {
            "version": self.version,
            "key": plain(content.key),
            "key_group": content.key_group,
            "subtask": content.subtask,
            "states": [_state_json(state) for state in content.states],
            "in_flight": [
                _element_json(element) | {"step": step}
                for element, step in zip(content.in_flight, content.steps, strict=True)
            ],
        }

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        content = self.content
        place = (("key group", content.key_group), ("subtask", content.subtask), ("in flight", len(content.in_flight)))
        yield Table(f"key {key_text(content.key)} of snapshot {self.version}", (), place)
        for state in content.states:
            yield self._state_table(state)
        if content.in_flight:
            shown = content.in_flight[:_ROWS_SHOWN_MAX]
            is_job = any(content.steps)
            rows = tuple(
                (
                    *((step,) if is_job else ()),
                    *(element.element_id, "completed" if element.completed else "pending"),
                    *(element.attempt, _what(element)),
                )
                for element, step in zip(shown, content.steps, strict=False)
            )
            title = f"in flight{_first_of(len(shown), len(content.in_flight))}"
            yield Table(title, (*(("step",) if is_job else ()), "element", "call", "attempt", "value"), rows)

    def _state_table(self, state: StateOfKey) -> Table:
        shown = state.rows[:_ROWS_SHOWN_MAX]
        title = f"{state.name} ({state.kind}){_first_of(len(shown), len(state.rows))}"
        entry = {"list": ("position",), "map": ("map key",)}.get(state.kind, ())
        expires = any(row.expires_at is not None for row in shown)
        columns = (*entry, "value", *(("expires",) if expires else ()))
        rows = tuple(
            (
                *((value_text(row.entry),) if entry else ()),
                value_text(row.value),
                *((self._expiry(row),) if expires else ()),
            )
            for row in shown
        )
        return Table(title, columns, rows)

    def _expiry(self, row: KeyRow) -> str | None:
        if row.expires_at is None:
            return None
        seconds = (row.expires_at - self.now) / 1000
        return f"in {duration_text(seconds)}" if seconds > 0 else "has expired"


def _state_json(state: StateOfKey) -> dict[str, Any]:
    rows = [{"entry": plain(row.entry), "value": plain(row.value), "expires_at": row.expires_at} for row in state.rows]
    return {"name": state.name, "kind": state.kind, "rows": rows}


def _element_json(element: InFlightElement) -> dict[str, Any]:
    return {
        "element_id": element.element_id,
        "completed": element.completed,
        "attempt": element.attempt,
        "timestamp": element.timestamp,
        "value": plain(element.value),
        "outputs": None if element.outputs is None else plain(element.outputs),
    }


def _what(element: InFlightElement) -> str:
    outputs = "" if element.outputs is None else f" -> {value_text(element.outputs)}"
    return value_text(element.value) + outputs


def _first_of(shown: int, count: int) -> str:
    return "" if shown == count else f": the first {shown} of {count:,}"


def edit(
    uri: Uri,
    drop: Drop = None,
    rename: Rename = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Drop and rename states of the newest snapshot: first the drops, then the renames. Stop the operator first."""
    renames = [_names(text) for text in rename or ()]
    if not (drop or renames):
        raise typer.BadParameter("say what to change", param_hint="--drop, --rename")
    store = open_store(uri, storage_option)
    old = store.load()
    editor = store.edit()
    for name in drop or ():
        editor.drop(name)
    for one, other in renames:
        editor.rename(one, other)
    output = output_for(as_json=as_json)
    before, after = (", ".join(names) or "none" for names in (_all(old), _all(editor)))
    output.note(f"the states {before} become {after}; no file is written")
    new = editor.commit()
    output.show(Edited(old_version=old.version, new_version=new.version, states=_all(new)))


def _all(holder: Snapshot | Editor) -> tuple[str, ...]:
    return *holder.state_names, *holder.operator_state_names


def _names(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not OLD=NEW", param_hint="--rename")
    return old, new


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(FlatReport):
    """The report of ``keygroups edit``."""

    old_version: int
    new_version: int
    states: tuple[str, ...]

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        rows = (
            ("from version", self.old_version),
            ("to version", self.new_version),
            ("states", ", ".join(self.states)),
        )
        yield Table("edited", (), rows)


def export(
    uri: Uri,
    to: To,
    state: ExportedState = None,
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
class Exported(FlatReport):
    """The report of ``keygroups export``."""

    version: int
    state: str | None
    path: str
    rows: int

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        what = "the in-flight elements" if self.state is None else f"state {self.state}"
        yield Table(f"exported {what} of snapshot {self.version}", (), (("rows", self.rows), ("file", self.path)))
