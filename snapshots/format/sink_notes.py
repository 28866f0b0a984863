"""What an operator remembers of its sinks, beside its versions: one small file that is replaced.

It says into which targets epochs have been written, so that a sink can tell a new target from a target that was
removed. And it lists the outputs of the running epoch that the sink has refused: they are noted before the rest is
written, so a restart leaves out the same ones, and gives the same ones to the dead letters. Without the file, nothing
is expected of a target. If it is lost between the two writes of one epoch, refused outputs have no dead letter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from snapshots.filesystem import Folder
from snapshots.format.delivered import Delivered

NOTES = "sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedOutput:
    """An output that a sink has refused.

    Attributes
    ----------
    error_type, error_message : str
        The error.
    """

    error_type: str
    error_message: str


class SinkNotes:
    """The notes of one operator. One thread at a time may call it; it blocks.

    Parameters
    ----------
    folder : Folder
        The operator's folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._known: dict[str, Any] | None = None

    def was_written(self, role: str, target: str) -> bool:
        """Return whether epochs of this operator are in a target: the sink, or the dead letters."""
        return bool(self._read().get("targets", {}).get(role) == _digest(target))

    def note_written(self, role: str, target: str) -> None:
        """Remember that a target has an epoch; writes only what is new."""
        if not self.was_written(role, target):
            notes = self._read()
            self._write({**notes, "targets": {**notes.get("targets", {}), role: _digest(target)}})

    def refused(self, epoch: Delivered) -> dict[int, RefusedOutput]:
        """Return the refused outputs of an epoch by their index; none if the notes are about another one."""
        found = self._read().get("refused", {})
        if found.get("epoch") != [*epoch]:
            return {}
        return {int(index): RefusedOutput(**output) for index, output in found["outputs"].items()}

    def note_refused(self, epoch: Delivered, outputs: Mapping[int, RefusedOutput]) -> None:
        """Remember all refused outputs of an epoch, before the rest of it is written."""
        listed = {str(index): asdict(output) for index, output in outputs.items()}
        self._write({**self._read(), "refused": {"epoch": [*epoch], "outputs": listed}})

    def _read(self) -> dict[str, Any]:
        if self._known is None:
            try:
                found = json.loads(self._folder.read(NOTES))
            except (FileNotFoundError, ValueError):
                found = {}
            self._known = found if isinstance(found, dict) else {}
        return self._known

    def _write(self, notes: dict[str, Any]) -> None:
        self._folder.replace(NOTES, json.dumps(notes).encode())
        self._known = notes


def _digest(target: str) -> str:
    """Return what stands for a target in the file, which then has no address of it."""
    return hashlib.sha256(target.encode(errors="surrogatepass")).hexdigest()[:32]
