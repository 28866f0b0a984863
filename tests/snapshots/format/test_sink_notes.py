from __future__ import annotations

from snapshots.format.delivered import Delivered, mark_delivered
from snapshots.format.sink_notes import EPOCHS_MAX, RefusedOutput, SinkNotes
from tests.snapshot_kit import new_store

REFUSED = RefusedOutput(error_type="UnwritableValue", error_message="there is no place for it")


def epoch(number: int) -> Delivered:
    return Delivered(number, f"attempt-{number}")


def test_the_notes_of_epochs_that_are_not_marked_stay() -> None:
    folder = new_store().folder
    for number in (5, 8):
        SinkNotes(folder).note_refused(epoch(number), {number: REFUSED})
    mark_delivered(folder, epoch(5))
    SinkNotes(folder).note_refused(epoch(9), {1: REFUSED, 3: REFUSED})
    SinkNotes(folder).note_refused(epoch(9), {1: REFUSED})

    found = [SinkNotes(folder).refused(epoch(number)) for number in (5, 8, 9)]
    assert found == [{}, {8: REFUSED}, {1: REFUSED}]
    assert SinkNotes(folder).refused(Delivered(8, "another history")) == {}


def test_the_notes_are_bounded() -> None:
    notes = SinkNotes(new_store().folder)
    for number in range(EPOCHS_MAX + 2):
        notes.note_refused(epoch(number), {0: REFUSED})

    kept = [number for number in range(EPOCHS_MAX + 2) if notes.refused(epoch(number))]
    assert kept == list(range(2, EPOCHS_MAX + 2))
