"""``keygroups get``: shows one key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from keygroups.ttl import wall_time
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store
from snapshots.cli.output import NotFound, Table, key_text, output_for, value_text
from snapshots.format.subtask import InFlightElement
from snapshots.inspection import KeyContent, KeyRow, StateOfKey, find_key
from snapshots.inspection.export import plain
from snapshots.inspection.for_people import duration_text

_ROWS_SHOWN_MAX = 50

Key = Annotated[list[str], typer.Argument(metavar="KEY...", help="The key; of several columns, one value each.")]
State = Annotated[str | None, typer.Option("--state", metavar="NAME", help="The state; by default all that have it.")]


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
