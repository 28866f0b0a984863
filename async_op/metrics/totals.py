"""Metrics of snapshots, restores, rescales and epochs: sums over their events."""

from __future__ import annotations

import threading
from collections import defaultdict

from async_op.metrics.families import Family, Sample, cumulative
from async_op.metrics.limits import LIMIT_COUNTERS
from async_op.statistics import LATENCY_BOUNDS, LatencyHistogram
from keygroups.events import Event
from snapshots.format.manifest import spent_by_unit

_NAMES = {
    "snapshot": "Snapshots committed.",
    "write": "Parts of snapshots, written by subtasks.",
    "restore": "Restores of subtasks.",
    "rescale": "Changes of the parallelism.",
    "epoch": "Epochs of pipelines.",
}
_SUMS = {
    "snapshot": {"bytes": "Bytes of new files.", "files": "New files.", "rows": "Rows of new files."},
    "write": {"bytes": "Bytes written by subtasks."},
    "epoch": {
        "rows": "Input rows.",
        "outputs": "Output rows.",
        "calls": "Calls made.",
        "retries": "Calls that were further attempts at the same row.",
        "timeouts": "Rows whose time budget ran out.",
        "skipped": "Rows that failed for good and were dropped.",
        "dead_letters": "Rows that failed for good and became dead letters.",
        "refused": "Outputs and dead letters that a sink has refused.",
        "reinvoked": "Calls made again after a restore.",
        "reemitted": "Stored outputs that were emitted after a restore.",
        "source_wait_milliseconds": "Time that tasks waited for rows.",
        "consume_wait_milliseconds": "Time that tasks waited for replies of their hosts.",
        "back_pressure_wait_milliseconds": "Time that tasks waited because their hosts took no more rows.",
        "back_pressured_milliseconds": "Time in which operators had no room for calls.",
        "outbox_full_milliseconds": "Time in which operators took nothing in because their outputs waited.",
        "mails": "Results and calls that other threads handed to event loops of operators.",
        "mailbox_wait_milliseconds": "How long a sample of the mails waited for event loops.",
        "run_seconds": "Time that the driver waited for subtasks.",
        "commit_seconds": "Time spent on commits.",
        "sink_seconds": "Time spent in the sink.",
        "overtime_milliseconds": "Time that tasks waited for calls that the previous epoch had carried over.",
        "write_milliseconds": "Time that subtasks spent on writing parts.",
        "state_rows": "Rows of keyed state written.",
        "state_bytes": "Bytes of keyed state written.",
        **LIMIT_COUNTERS,
    },
}
_SPENT = "What calls have cost."

_LAST = {
    "snapshot": {
        "version": "The newest version.",
        "parallelism": "The number of subtasks.",
        "in_flight": "Elements in flight in the newest snapshot.",
    },
    "epoch": {
        "oldest_call_milliseconds": "For how long the oldest element without a result has been in its operator.",
        "resident": "Subtasks whose operator lives on in a host.",
        "empty_reads": "How often in a row a task has waited for rows in vain.",
        "failed_collections": "How many collections of old versions have failed in a row.",
    },
}

_Key = tuple[str, str]
"""The names of an event and of an operator."""


class EventTotals:
    """Adds up events. Any thread may call it.

    There is one series per operator: operators are few, and people choose their names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._durations: defaultdict[_Key, LatencyHistogram] = defaultdict(LatencyHistogram)
        self._sums: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        self._last: dict[tuple[str, str, str], float] = {}
        self._spent: defaultdict[tuple[str, str], float] = defaultdict(float)

    def add(self, event: Event) -> None:
        """Count an event, except for calls, which operators count themselves."""
        if event.name not in _NAMES:
            return
        operator = str(event.attributes.get("operator_id", ""))
        with self._lock:
            self._counts[event.name, operator, "ok" if event.error is None else "error"] += 1
            if event.error is not None:
                return
            self._durations[event.name, operator].add(event.seconds)
            for name in _SUMS.get(event.name, ()):
                self._sums[event.name, name, operator] += _number(event, name)
            for name in _LAST.get(event.name, ()):
                self._last[event.name, name, operator] = _number(event, name)
            for unit, amount in spent_by_unit([event.attributes]).items():
                self._spent[operator, unit] += amount

    def families(self) -> list[Family]:
        """Return the metrics of all events so far."""
        with self._lock:
            spent = [Sample({"operator": one, "unit": unit}, amount) for (one, unit), amount in self._spent.items()]
            families = [family for event in _NAMES for family in self._families_of(event)]
            return [*families, Family("keygroups_epoch_spent", "counter", _SPENT, tuple(spent))]

    def _families_of(self, event: str) -> list[Family]:
        prefix = f"keygroups_{event}_"
        counts = [
            Sample({"operator": operator, "outcome": outcome}, count)
            for (name, operator, outcome), count in self._counts.items()
            if name == event
        ]
        durations = [
            Sample({"operator": operator}, latency.seconds, cumulative(latency.buckets, LATENCY_BOUNDS))
            for operator, latency in (
                (operator, histogram.freeze())
                for (name, operator), histogram in self._durations.items()
                if name == event
            )
        ]
        families = [
            Family(f"keygroups_{event}s", "counter", _NAMES[event], tuple(counts)),
            Family(f"{prefix}duration_seconds", "histogram", f"Duration. {_NAMES[event]}", tuple(durations)),
        ]
        for name, text in _SUMS.get(event, {}).items():
            families.append(Family(prefix + name, "counter", text, _samples_of(self._sums, event, name)))
        for name, text in _LAST.get(event, {}).items():
            families.append(Family(prefix + name, "gauge", text, _samples_of(self._last, event, name)))
        return families


def _samples_of(values: dict[tuple[str, str, str], float], event: str, name: str) -> tuple[Sample, ...]:
    return tuple(
        Sample({"operator": operator}, value)
        for (one, other, operator), value in values.items()
        if (one, other) == (event, name)
    )


def _number(event: Event, name: str) -> float:
    value = event.attributes.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
