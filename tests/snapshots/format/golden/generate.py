"""Makes the golden snapshots of the present format version, once: what was released must stay readable for ever.

python -m tests.snapshots.format.golden.generate

The field `written_by` of their manifests says which release and libraries have made them.
"""

from __future__ import annotations

import datetime as dt
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pyarrow as pa

from keygroups import (
    AggregatingState,
    KeyGroupRange,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    key_group_of,
    register_codec,
)
from keygroups.state import MISSING, MemoryBackend, Transaction, identity_of
from keygroups.state.timers import TIMER_STATES, Timer
from snapshots import InFlightElement, OperatorStateCut, SnapshotStore, SubtaskSnapshot
from snapshots.commit import stored_lists
from snapshots.format import compression
from snapshots.format.delivered import Delivered, mark_delivered
from snapshots.format.manifest import FORMAT_VERSION
from snapshots.format.sink_notes import RefusedOutput, SinkNotes
from snapshots.format.subtask import ElementTypes, RefusedValue
from snapshots.inputs import StoredInput, put_input, write_rows
from snapshots.lineage import lineage_of
from tests.snapshots.format.golden.damaged import write_damaged
from tests.snapshots.format.golden.damaged_lists import write_damaged_lists

FOLDER = Path(__file__).parent
OPERATOR_ID = "golden"
G = 8

STATES = (
    ValueState("count", pa.int64()),
    ValueState("profile"),
    ValueState("place", pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string())), ("at", pa.float32())])),
)
KEYS: tuple[Any, ...] = ("a", "b", "c", "d", 1, 1.0, True, ("a", 2), b"raw", dt.date(2026, 1, 2))
FIRST: dict[str, dict[Any, Any]] = {
    "count": {f"key {number}": number for number in range(12)},
    "profile": {
        key: {"n": n, "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "price": Decimal("1.20"), "tags": {n}, "big": 2**70}
        for n, key in enumerate(KEYS)
    },
    "place": {"a": {"name": "A", "tags": ["x", None], "at": 1.5}, "b": None},
}
CHANGES: dict[str, dict[Any, Any]] = {"count": {"key 1": -1, "key 2": MISSING, "new": 5}, "profile": {1.0: "float"}}
ELEMENTS = (
    InFlightElement(0, 0, value={"id": 1}, timestamp=5, key="a", key_group=key_group_of("a", G), element_id="e0"),
    InFlightElement(0, 1, is_watermark=True, timestamp=7),
    InFlightElement(
        0, 2, completed=True, value=2, key="b", key_group=key_group_of("b", G), element_id="e2", attempt=2, outputs=(3,)
    ),
    InFlightElement(0, 3, value="without a key", element_id="e3", remaining=0.5, delay=0.25),
)
LISTED_ELEMENTS = ELEMENTS[:3]
"""Those with a key: where others are, channels are in no list."""

OPERATOR_STATE = OperatorStateCut("offsets", "split", (("topic", 1), ("topic", 2)))


def write(root: Path) -> None:
    """Write two versions: a whole one, and one with a delta, elements in flight and operator state."""
    store = SnapshotStore(root, OPERATOR_ID)
    backend = MemoryBackend(STATES, KeyGroupRange(0, G - 1))
    for contents in (FIRST, CHANGES):
        for state, values in contents.items():
            for key, value in values.items():
                backend.tables[state].put(key_group_of(key, G), identity_of(key), value)
        store.write([_part(backend)], source_position={"offset": 42})


CLICKS = ListState("clicks", pa.int64())
PRICES = MapState("prices", pa.map_(pa.string(), pa.float64()))
ANYTHING = MapState("anything")
HIGHEST = ReducingState("highest", max, pa.int64())
ENTRY_STATES = (CLICKS, PRICES, ANYTHING, HIGHEST)
MANY = {"x": 1.5, **{str(number): float(number) for number in range(20)}}


def write_entries(root: Path) -> None:
    """Write states of many entries: a whole version, and one with a delta that appends, replaces and removes."""
    store = SnapshotStore(root, OPERATOR_ID)
    backend = MemoryBackend(ENTRY_STATES, KeyGroupRange(0, G - 1))
    for version in (1, 2):
        for key in ("a", "b"):
            transaction = Transaction(backend, key, key_group_of(key, G))
            if version == 1:
                transaction.state(CLICKS).update(range(20))
                transaction.state(PRICES).put_all(MANY)
                # A dict could not hold both of 1 and 1.0.
                transaction.state(ANYTHING).put_all([(1.0, "float"), (("t", 2), [1]), *((n, n) for n in range(9))])
                transaction.state(HIGHEST).add(7)
            elif key == "a":
                transaction.state(CLICKS).add(20)
                transaction.state(PRICES).remove("x")
            else:
                transaction.state(CLICKS).update([1, 2])
                transaction.state(ANYTHING).clear()
            transaction.commit()
        store.write([_part(backend)])


def write_compressed(root: Path) -> None:
    """Write the same as `write`, with manifests that are stored as large ones are."""
    before, compression.COMPRESSED_FROM_BYTES = compression.COMPRESSED_FROM_BYTES, 0
    try:
        write(root)
    finally:
        compression.COMPRESSED_FROM_BYTES = before


def write_lists(root: Path) -> None:
    """Write the same content as `write`, with manifests that name lists of files, as large ones do."""
    store = SnapshotStore(root, OPERATOR_ID)
    backend = MemoryBackend(STATES, KeyGroupRange(0, G - 1))
    with mock.patch.object(stored_lists, "INLINE_MAX", 1), mock.patch.object(stored_lists, "LIST_ENTRIES_MAX", 2):
        for contents in (FIRST, CHANGES):
            for state, values in contents.items():
                for key, value in values.items():
                    backend.tables[state].put(key_group_of(key, G), identity_of(key), value)
            store.write([replace(_part(backend), in_flight=LISTED_ELEMENTS, operator_states=())])


OUTPUTS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "at": pa.array([0, None], pa.timestamp("us", "UTC")),
        "tags": pa.array([["x"], None], pa.list_(pa.string())),
    }
)


def write_outputs(root: Path) -> None:
    """Write outputs that are to be delivered: a version that has some, and one that has none of the same schema."""
    store = SnapshotStore(root, OPERATOR_ID)
    backend = MemoryBackend(STATES, KeyGroupRange(0, G - 1))
    for outputs in (OUTPUTS, OUTPUTS.slice(OUTPUTS.num_rows)):
        pending = store.begin()
        pending.commit([pending.write_subtask(_part(backend), outputs)])
    (root / OPERATOR_ID / "latest").unlink()


ROW = pa.struct([("user", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tags", pa.list_(pa.string()))])
AT = dt.datetime(2026, 1, 2, tzinfo=ZoneInfo("UTC"))
PAIR = (7, "eu")
TYPED_ELEMENTS = (
    InFlightElement(
        *(0, 0), value={"user": 7, "at": AT, "tags": ["a", None]}, key=PAIR, key_group=key_group_of(PAIR, G)
    ),
    InFlightElement(0, 1, is_watermark=True, timestamp=7),
    InFlightElement(0, 2, completed=True, value={"user": 8, "at": None, "tags": []}, outputs=({"n": 1.5}, {"n": None})),
    InFlightElement(0, 3, value={"user": "a text"}, element_id="of another type"),
    InFlightElement(0, 4, value=RefusedValue("{'id': 2}", "no JSON")),
)


def write_elements(root: Path) -> None:
    """Write elements whose keys, values and outputs are columns, and what these do not hold beside them."""
    known = ElementTypes(value=ROW, key=pa.struct([("id", pa.int32()), ("region", pa.string())]))
    part = _part(MemoryBackend((), KeyGroupRange(0, G - 1)))
    part = replace(part, in_flight=TYPED_ELEMENTS, operator_states=(), element_types=known)
    SnapshotStore(root, OPERATOR_ID).write([part])


NOW = 2_000_000_000_000
"""The processing time of the snapshot with timers and values that expire, in milliseconds."""

VISITS = ListState("visits", pa.int64(), ttl=100)
NAME = ValueState("name", ttl=100)
TIMED_STATES = (VISITS, NAME, *TIMER_STATES.values())
TIMER_ELEMENTS = (
    InFlightElement(0, 0, value=Timer(5, True), timestamp=5, key="a", key_group=key_group_of("a", G), element_id="e0"),
    InFlightElement(0, 1, value=Timer(NOW, False), key="b", key_group=key_group_of("b", G), element_id="e1", attempt=2),
    InFlightElement(0, 2, is_watermark=True, timestamp=7),
)


def write_timed(root: Path) -> None:
    """Write values that expire and timers: a whole version, and one with a delta; some elements expire in between."""
    now = NOW
    store = SnapshotStore(root, OPERATOR_ID)
    backend = MemoryBackend(TIMED_STATES, KeyGroupRange(0, G - 1), wall_time=lambda: now)
    for version in (1, 2):
        for number in range(30 if version == 1 else 2):
            key = f"key {number}"
            transaction = Transaction(backend, key, key_group_of(key, G))
            transaction.state(VISITS).add_all([version, number])
            transaction.state(NAME).update(key)
            for timers in TIMER_STATES.values():
                transaction.state(timers).put(number, None)
            transaction.commit()
            now += 1000
        now += 60_000
        store.write([replace(_part(backend), in_flight=TIMER_ELEMENTS, wall_time=now)])


def write_job(root: Path) -> None:
    """Write two versions of a job: a source, and a step with state, elements and outputs that nobody has taken yet."""
    store = SnapshotStore(root, OPERATOR_ID)
    backend = MemoryBackend(STATES, KeyGroupRange(0, G - 1))
    for contents, outputs in ((FIRST, OUTPUTS), (CHANGES, OUTPUTS.slice(1))):
        for state, values in contents.items():
            for key, value in values.items():
                backend.tables[state].put(key_group_of(key, G), identity_of(key), value)
        enrich = _part(backend)
        source = replace(enrich, states=(), in_flight=(), watermark=None)
        pending = store.begin()
        handles = [pending.write_subtask(source, step="source"), pending.write_subtask(enrich, outputs, step="enrich")]
        pending.commit(handles, source_position={"offset": 42})
    (root / OPERATOR_ID / "latest").unlink()


FRACTION = "keygroups.tests.Fraction-1"
"""The codec without which the snapshot of the other kinds cannot be restored."""

MEAN = AggregatingState("mean", lambda: [0, 0], lambda a, v: [a[0] + v, a[1] + 1], lambda a: a[0] / a[1])
SHARE = ValueState("share")
OTHER_STATES = (MEAN, SHARE)
OTHER_KEYS: tuple[Any, ...] = ("a", 7, ("a", 2), True)
OPERATOR_STATES = (
    OPERATOR_STATE,
    OperatorStateCut("rules", "broadcast", (("limit", 3), ("name", "A"))),
    OperatorStateCut("seen", "union", (1, (2, "two"))),
)
DELIVERED = Delivered(1, "0123456789abcdef")


LINEAGE = "1b0c5e7f9a3d2468ace01357"
REFUSED = InFlightElement(
    0, 1, value=RefusedValue("{'id': 2}", "no JSON"), key="b", key_group=key_group_of("b", G), element_id="p0@2"
)
SOURCE_STATES = (
    OperatorStateCut("positions", "split", (("p0", 3), (7, None))),
    OperatorStateCut("watermarks", "split", (("p0", 1000),)),
    OperatorStateCut("contents", "split", ((None, "files"), ("p0", [3, b"digest"]))),
)
TARGET = "FileSink('/data/out')"
REFUSED_OUTPUT = RefusedOutput(error_type="UnwritableValue", error_message="there is no place for it")


def write_refusals(root: Path) -> None:
    """Write a job that has a lineage, a record without a usable value, contents beside its positions, and a sink that
    has refused an output of the epoch that it gets.
    """
    store = SnapshotStore(root, OPERATOR_ID)
    lineage_of(store.folder, None, LINEAGE)
    step = replace(_part(MemoryBackend((), KeyGroupRange(0, G - 1))), lineage=LINEAGE, operator_states=())
    pending = store.begin()
    handles = [
        pending.write_subtask(replace(step, in_flight=(), operator_states=SOURCE_STATES), step="source"),
        pending.write_subtask(replace(step, in_flight=(ELEMENTS[0], REFUSED)), OUTPUTS, step="enrich"),
    ]
    (stored,) = pending.commit(handles).outputs()
    notes = SinkNotes(store.folder)
    notes.note_written("outputs", TARGET)
    notes.note_refused(stored.identity, {1: REFUSED_OUTPUT})
    (root / OPERATOR_ID / "latest").unlink()


def register_fraction() -> None:
    """Register the codec of the values of `SHARE`."""
    register_codec(FRACTION, Fraction, lambda value: (value.numerator, value.denominator), lambda pair: Fraction(*pair))


def write_others(root: Path) -> None:
    """Write what the other ones lack: Flink's hash, a codec, an aggregate, all modes of operator state, and beside
    the version the mark of the delivered epoch and the stored input of a run.
    """
    register_fraction()
    store = SnapshotStore(root, OPERATOR_ID)
    backend = MemoryBackend(OTHER_STATES, KeyGroupRange(0, G - 1))
    for number, key in enumerate(OTHER_KEYS):
        transaction = Transaction(backend, key, key_group_of(key, G, "flink"))
        transaction.state(MEAN).add(number)
        transaction.state(MEAN).add(1)
        transaction.state(SHARE).update(Fraction(number, 3))
        transaction.commit()
    store.write([replace(_part(backend), hash="flink", in_flight=(), operator_states=OPERATOR_STATES)])
    mark_delivered(store.folder, DELIVERED)
    rows = write_rows(store.folder, "f" * 32, 0, 0, OUTPUTS)
    put_input(store.folder, StoredInput("run-1", "e" * 32, "{}", ((rows,),)))


def _part(backend: MemoryBackend) -> SubtaskSnapshot:
    return SubtaskSnapshot(
        subtask_index=0,
        parallelism=1,
        max_parallelism=G,
        hash="xxhash64",
        states=backend.cut(),
        in_flight=ELEMENTS,
        operator_states=(OPERATOR_STATE,),
        watermark=3,
    )


if __name__ == "__main__":
    made = 0
    for name, writes in (
        ("v", write),
        ("entries-v", write_entries),
        ("timed-v", write_timed),
        ("outputs-v", write_outputs),
        ("compressed-v", write_compressed),
        ("job-v", write_job),
        ("others-v", write_others),
        ("elements-v", write_elements),
        ("refusals-v", write_refusals),
        ("damaged-v", write_damaged),
        ("lists-v", write_lists),
        ("damaged-lists-v", write_damaged_lists),
    ):
        name = f"{name}{FORMAT_VERSION}"
        if not (FOLDER / name).exists():
            writes(FOLDER / name)
            made += 1
    if not made:
        sys.exit("a golden snapshot is never written again; a new format version, or feature, has its own")
