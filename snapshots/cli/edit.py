"""``keygroups edit``: drops and renames states, in a new version over the same files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from snapshots.cli.options import AsJson, StorageOptions, Uri, open_store
from snapshots.cli.output import Table, output_for
from snapshots.restore.snapshot import Snapshot
from snapshots.upkeep.edit import Editor

Drop = Annotated[list[str] | None, typer.Option("--drop", metavar="NAME", help="Drop a state; may be repeated.")]
Rename = Annotated[
    list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Rename a state; may be repeated.")
]


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
class Edited:
    """The report of ``keygroups edit``."""

    old_version: int
    new_version: int
    states: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        rows = (
            ("from version", self.old_version),
            ("to version", self.new_version),
            ("states", ", ".join(self.states)),
        )
        yield Table("edited", (), rows)
