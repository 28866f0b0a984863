"""Whether an operator still has the keys under which a snapshot holds its state and its elements in flight.

With other keys, the state of one key would be read and written for another. Columns are compared by name. Of the keys
that a function makes, the keys of elements in flight are computed again. In both cases, the first new key must have the
type of a stored key of the state: the same column may be a number in JSON, and text in CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from async_op.in_flight.key_assignment import checked_hash
from keygroups.errors import in_message
from keygroups.hashing import key_hasher
from keygroups.names import in_step
from keygroups.state import identity_of, original_of
from keygroups.state.timers import TIMER_STATES, Timer
from snapshots import IncompatibleSnapshot, InFlightElement, Snapshot
from snapshots.format.steps import of_step
from snapshots.format.subtask import NO_KEY_GROUP, RefusedValue
from snapshots.restore.reader import decode_column

SAMPLE = 1000
"""How many stored keys, and how many elements in flight, of a step are looked at."""

KeyGetter = Callable[[Any], Hashable]

_ADVICE = "pass the key_by with which the snapshot was made, or choose another {} to begin with new state"
_TYPE_ADVICE = (
    "pass the key_by with which the snapshot was made, or one that converts keys to that type, or choose another "
    "job_id to begin with new state"
)


def check_columns(what: str, wanted: Sequence[str], found: Sequence[str], where: str) -> None:
    """Check that the key columns match the snapshot's.

    Parameters
    ----------
    what : str
        What they are, such as "key columns".
    wanted, found : list of str
        The operator's and the snapshot's key columns; with their types, where these are known.
    where : str
        What to choose another one of, to begin with new state.

    Raises
    ------
    IncompatibleSnapshot
        They are others.
    """
    if list(wanted) != list(found):
        advice = f"state of other keys cannot be adopted: {_ADVICE.format(where)}"
        raise IncompatibleSnapshot(what, ", ".join(wanted) or "none", ", ".join(found) or "none", advice)


def checked_getter(
    snapshot: Snapshot, step: str, key_by: KeyGetter | None, wanted: Sequence[str] | None, found: Sequence[str] | None
) -> KeyGetter | None:
    """Check that a step of a job has the keys of its snapshot, and return its `key_by`, which goes on to check.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot that is to be restored.
    step : str
        The step.
    key_by : callable or None
        Returns the key of a value.
    wanted, found : list of str or None
        The key columns of the step now and in the snapshot; None if a function makes its keys, or they are unknown.

    Raises
    ------
    IncompatibleSnapshot
        They are others, and the snapshot has something under them.
    """
    if not _holds_keys(snapshot, step):
        return key_by
    is_compared = False
    if wanted is not None and found is not None:
        check_columns(f"key columns of step {step}", wanted, found, "job_id")
    elif key_by is not None:
        for element in _in_flight(snapshot, step):
            _compare(f" in step {step}", key_by, element, "job_id")
            is_compared = True
    stored = set() if key_by is None or is_compared else _stored_shapes(snapshot, step)
    return _FirstKeyChecked(step, key_by, stored, snapshot.manifest.hash) if key_by is not None and stored else key_by


def _holds_keys(snapshot: Snapshot, step: str) -> bool:
    held = of_step(snapshot.manifest, step)
    return step in snapshot.step_names and bool(held.states or held.in_flight_count)


def _in_flight(snapshot: Snapshot, step: str) -> Iterable[InFlightElement]:
    shares = (snapshot.restore(subtask, step=step) for subtask in range(snapshot.parallelism))
    elements = (element for share in shares for element in share.queue().elements)
    return islice(_keyed(elements), SAMPLE)


def check_in_flight(elements: Iterable[InFlightElement], key_by: KeyGetter | None) -> None:
    """Check that `key_by` makes the stored keys of the elements that an operator restores.

    Raises
    ------
    IncompatibleSnapshot
        It makes another key of an element, or none.
    """
    if key_by is not None:
        for element in _keyed(elements):
            _compare("", key_by, element, "folder")


def _keyed(elements: Iterable[InFlightElement]) -> Iterable[InFlightElement]:
    """Leave out what has no key, and what has no value of which a key could be made."""
    without = (Timer, RefusedValue)
    return (one for one in elements if one.key_group != NO_KEY_GROUP and not isinstance(one.value, without))


def _compare(where: str, key_by: KeyGetter, element: InFlightElement, other: str) -> None:
    try:
        key: object = key_by(element.value)
        is_same = identity_of(key) == identity_of(element.key)
    except Exception as error:  # noqa: BLE001 - a function that has once made this key
        key, is_same = error, False
    if not is_same:
        what = f"the key of element {element.element_id!r} in flight{where}"
        raise IncompatibleSnapshot(what, in_message(key), in_message(element.key), _ADVICE.format(other))


def _stored_shapes(snapshot: Snapshot, step: str) -> set[str]:
    """Return the types of a sample of the state's keys."""
    shapes = set[str]()
    for info in of_step(snapshot.manifest, step).states:
        if info.name in TIMER_STATES:
            continue
        rows = snapshot.to_reader(in_step(step, info.name))
        tables = (pa.Table.from_batches([batch.slice(0, SAMPLE)]) for batch in rows)
        keys = (key for table in tables for key in decode_column(table, "key"))
        shapes |= set(map(_shape, islice(keys, SAMPLE)))
    return shapes


def _shape(key: Hashable) -> str:
    stored = original_of(identity_of(key))  # a key of NumPy is stored as the key of Python that it equals
    if isinstance(stored, tuple):  # a key of several columns
        return f"({', '.join(map(_shape, stored))})"
    return type(stored).__name__


class _FirstKeyChecked:
    """A `key_by` whose first key must have the type of a stored one: then the state is certainly of other keys."""

    __slots__ = ("_hash", "_key_by", "_shapes", "_step")

    def __init__(self, step: str, key_by: KeyGetter, shapes: set[str], hash: str) -> None:
        self._step = step
        self._key_by = key_by
        self._shapes = shapes
        self._hash = hash

    def __call__(self, value: Any) -> Hashable:
        key = self._key_by(value)
        if self._shapes and self._is_key(key):  # what can be no key is the fault of its element alone
            found = _shape(key)
            if found not in self._shapes:
                what = f"the type of keys of step {self._step}"
                raise IncompatibleSnapshot(what, found, " or ".join(sorted(self._shapes)), _TYPE_ADVICE)
            self._shapes = set()
        return key

    def _is_key(self, key: object) -> bool:
        try:
            checked_hash(key, key_hasher(self._hash), self._hash)
        except Exception:  # noqa: BLE001 - a codec of the user's may fail in any way
            return False
        return True
