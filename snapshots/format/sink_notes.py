"""What an operator remembers of its sinks, beside its versions: one small file that is replaced.

It says into which targets epochs have been written, so that a sink can tell a new target from a target that was
removed. And it lists the outputs that the sink has refused, of each epoch that a restart would deliver again: they are
noted before the rest is written, so a restart leaves out the same ones, and gives the same ones to the dead letters.
Without the file, nothing is expected of a target. If it is lost between the two writes of one epoch, refused outputs
have no dead letter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from snapshots.filesystem import Folder
from snapshots.format.delivered import Delivered, last_delivered

NOTES = "sink"

EPOCHS_MAX = 100
"""Of more epochs that are not marked, the refused outputs of the oldest ones are forgotten."""


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
        return bool(self._read().get("targets", {}).get(role) == target_digest(target))

    def note_written(self, role: str, target: str) -> None:
        """Remember that a target has an epoch; writes only what is new."""
        if not self.was_written(role, target):
            notes = self._read()
            self._write({**notes, "targets": {**notes.get("targets", {}), role: target_digest(target)}})

    def refused(self, epoch: Delivered) -> dict[int, RefusedOutput]:
        """Return the refused outputs of an epoch by their index; none if there are no notes about it."""
        for noted in self._read().get("refused", []):
            if noted["epoch"] == [*epoch]:
                return {int(index): RefusedOutput(**output) for index, output in noted["outputs"].items()}
        return {}

    def note_refused(self, epoch: Delivered, outputs: Mapping[int, RefusedOutput]) -> None:
        """Remember all refused outputs of an epoch, before the rest of it is written.

        Epochs up to the mark of the last delivered one are forgotten. Others stay: if the mark could not be stored, a
        restart delivers them again.
        """
        notes, mark = self._read(), last_delivered(self._folder)
        done = -1 if mark is None else mark.epoch
        kept = [one for one in notes.get("refused", []) if done < one["epoch"][0] and one["epoch"] != [*epoch]]
        listed = {str(index): asdict(output) for index, output in outputs.items()}
        newest = {"epoch": [*epoch], "outputs": listed}
        self._write({**notes, "refused": [*kept, newest][-EPOCHS_MAX:]})

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


def target_digest(target: str) -> str:
    """Return what stands for a target in files, which then have no address of it."""
    return hashlib.sha256(target.encode(errors="surrogatepass")).hexdigest()[:32]
