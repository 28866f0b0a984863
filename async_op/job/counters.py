"""What a job has counted between two cuts, under the names that epochs of a pipeline on Spark have in manifests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from async_op.operator.counters import CALLS, LIMITS, Counted, milliseconds
from snapshots import SubtaskHandle, SubtaskSnapshot
from snapshots.format.manifest import named_by_unit, spent_by_unit

Counts = dict[str, float]

_OLDEST = "oldest_call_milliseconds"

_OF_CHILD = ("pid", "subtasks", "in_flight", "outputs", "dead_letters", "processor_milliseconds")


def counts_of(rows: int, outputs: int, cuts: Iterable[SubtaskSnapshot], counted: Sequence[Counted]) -> Counts:
    """Return the counts of a cut.

    Parameters
    ----------
    rows, outputs : int
        Elements that came from the source, and outputs and dead letters for the sinks, since the cut before.
    cuts : iterable of SubtaskSnapshot
        The subtasks of all steps at the cut.
    counted : sequence of dict
        What `StepOperator.count` has returned for each of them.
    """

    def total(name: str) -> float:
        return float(sum(one.get(name, 0) for one in counted))

    return {
        "rows": rows,
        "outputs": outputs,
        **{name: int(total(name)) for name in (*CALLS, *LIMITS)},
        "in_flight": sum(len(cut.in_flight) for cut in cuts),
        _OLDEST: milliseconds(max((one["oldest_call_seconds"] for one in counted), default=0)),
        "back_pressured_milliseconds": milliseconds(total("back_pressured_seconds")),
        "mails": int(total("mails")),
        "mailbox_wait_milliseconds": milliseconds(total("mailbox_seconds")),
        **named_by_unit(spent_by_unit(counted)),
    }


def counts_by_child(counts: Sequence[Counts]) -> Counts:
    """Return what a cut keeps of each child process, under the names of `ChildProgress`.

    Examples
    --------
    >>> counts_by_child([{"outputs": 3, "calls": 4}, {"outputs": 5, "calls": 6}])
    {'child_1_outputs': 3, 'child_2_outputs': 5}
    """
    return {
        f"child_{number}_{name}": one[name] for number, one in enumerate(counts, 1) for name in _OF_CHILD if name in one
    }


def added_up(counts: Sequence[Counts]) -> Counts:
    """Return the counts of all processes of a job together."""
    names = dict.fromkeys(chain.from_iterable(counts))
    found = {name: sum(one.get(name, 0) for one in counts) for name in names}
    return found | {_OLDEST: max(one.get(_OLDEST, 0) for one in counts)}


def counts_of_written(handles: Iterable[SubtaskHandle], seconds: float) -> Counts:
    """Return what the parts of a cut have written, in so many seconds of all of them together."""
    state = [file for handle in handles for file in handle.files if file.kind in {"keyed", "delta"}]
    return {
        "state_rows": sum(file.rows for file in state),
        "state_bytes": sum(file.bytes for file in state),
        "write_milliseconds": milliseconds(seconds),
    }
