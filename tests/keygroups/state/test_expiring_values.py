"""Time to live: what is declared, stored, dropped, and what a change of the declaration does to what is stored."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from keygroups import (
    AggregatingState,
    ConfigError,
    KeyGroupRange,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    StateTtl,
    ValueState,
    key_group_of,
)
from keygroups.state import Expiring, Transaction
from snapshots import Snapshot, SubtaskSnapshot
from snapshots.upkeep.compaction import compact
from tests.backends import new_backend
from tests.snapshot_kit import G, loaded, new_store

pytestmark = pytest.mark.usefixtures("each_backend")

NOW = 1_000_000
STATES: tuple[StateDescriptor, ...] = (
    ValueState("value", pa.int64()),
    ListState("list"),
    MapState("map", pa.map_(pa.string(), pa.int64())),
)
KEYS = [f"key {number}" for number in range(40)]


class Run:
    """One subtask whose declarations change from one start to the next."""

    def __init__(self, ttl: Any) -> None:
        self.store = new_store()
        self.now = NOW
        self.declare(ttl)
        self.backend = new_backend(self.states, KeyGroupRange(0, G - 1), wall_time=lambda: self.now)

    def declare(self, ttl: Any) -> None:
        self.states = tuple(dataclasses.replace(state, ttl=ttl) for state in STATES)

    def fill(self, keys: list[str], number: int = 0) -> None:
        for key in keys:
            transaction = Transaction(self.backend, key, key_group_of(key, G))
            transaction.state(self.states[0]).update(number)
            transaction.state(self.states[1]).add(number)
            transaction.state(self.states[2]).put(str(number), number)
            transaction.commit()

    def write(self) -> Snapshot:
        cut = SubtaskSnapshot(
            subtask_index=0,
            parallelism=1,
            max_parallelism=G,
            hash="xxhash64",
            states=self.backend.cut(),
            wall_time=self.now,
        )
        return self.store.write([cut])

    def restart(self, ttl: Any, now: int) -> None:
        self.now = now
        self.declare(ttl)
        latest = self.store.latest()
        assert latest is not None
        share = latest.restore(0)
        restored = share.states(self.states, now)
        self.backend = new_backend(
            self.states, share.key_groups, restored, share.snapshot_id, wall_time=lambda: self.now
        )

    def read(self, key: str) -> tuple[Any, Any, Any]:
        transaction = Transaction(self.backend, key, key_group_of(key, G))
        value, list_, map_ = (transaction.state(state) for state in self.states)
        return value.value(), list_.get(), dict(map_.items())


FULL, EMPTY = (0, [0], {"0": 0}), (None, [], {})


def test_a_number_is_the_seconds_since_the_write() -> None:
    assert ValueState("a", ttl=1.5) == ValueState("a", ttl=StateTtl(1.5, "write"))
    assert ValueState("a").time_to_live is None


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, float("inf"), float("nan"), 1e15])
def test_a_time_to_live_is_a_time(seconds: float) -> None:
    with pytest.raises(ConfigError):
        ListState("a", ttl=seconds)


def test_there_are_two_kinds_of_update() -> None:
    with pytest.raises(ConfigError, match="read_and_write"):
        StateTtl(1, "never")  # type: ignore[arg-type]


def test_backends_hold_values_with_their_expiry() -> None:
    run = Run(ttl=1)
    run.fill(["a"])
    value, list_, map_ = (table.get(key_group_of("a", G), "a") for table in run.backend.tables.values())
    expiring = Expiring(0, NOW + 1000)
    assert (value, list(list_), dict(map_)) == (expiring, [expiring], {"0": expiring})  # type: ignore[call-overload]


@pytest.mark.parametrize("touched", [False, True])
def test_what_was_stored_without_a_ttl_lives_a_whole_one_from_the_restore_on(touched: bool) -> None:
    run = Run(ttl=None)
    run.fill(KEYS)
    assert "ttl" not in run.write().manifest.required_features
    run.restart(ttl=10, now=NOW + 50_000)
    if touched:
        assert run.read(KEYS[0]) == FULL
    snapshot = run.write()
    assert "ttl" in snapshot.manifest.required_features
    assert set(snapshot.to_arrow("value")["expires_at"].to_pylist()) == {NOW + 60_000}
    run.restart(ttl=10, now=NOW + 59_999)
    assert [run.read(key) for key in KEYS] == [FULL] * len(KEYS)
    run.restart(ttl=10, now=NOW + 60_000)
    assert [run.read(key) for key in KEYS] == [EMPTY] * len(KEYS)


@pytest.mark.parametrize("touched", [False, True])
def test_without_a_ttl_a_stored_expiry_means_nothing_any_more(touched: bool) -> None:
    run = Run(ttl=10)
    run.fill(KEYS)
    run.now += 5_000
    run.fill(KEYS[:20], 1)
    run.write()
    run.restart(ttl=None, now=NOW + 50_000)
    for _ in range(2):
        if touched:
            assert run.read(KEYS[0]) == (1, [0, 1], {"0": 0, "1": 1})
        run.fill(KEYS[20:30], 2)
        snapshot = run.write()
        assert "ttl" not in snapshot.manifest.required_features
        assert "expires_at" not in snapshot.to_arrow("list").schema.names
        run.restart(ttl=None, now=NOW + 90_000)
    assert run.read(KEYS[39]) == FULL
    assert run.read(KEYS[20])[1] == [0, 2, 2]


def test_a_list_that_has_lost_its_ttl_closes_its_gaps() -> None:
    run = Run(ttl=10)
    run.fill(KEYS)
    run.now += 5_000
    for number in (1, 2, 3):
        run.fill(KEYS, number)
    run.now += 5_000  # the first of four has expired
    run.write()
    run.restart(ttl=None, now=NOW)
    for number in (4, 5):
        run.fill(KEYS[:20], number)
        run.write()
        run.restart(ttl=None, now=NOW)
    assert run.read(KEYS[0])[1] == [1, 2, 3, 4, 5]
    assert run.read(KEYS[30])[1] == [1, 2, 3]


def test_another_ttl_holds_for_what_is_written_from_then_on() -> None:
    run = Run(ttl=10)
    run.fill(KEYS)
    run.write()
    run.restart(ttl=100, now=NOW + 5_000)
    run.fill(KEYS[:1], 1)
    snapshot = run.write()
    assert [file.rows for file in snapshot.manifest.files_of("delta")] == [1, 1, 1]
    run.restart(ttl=100, now=NOW + 10_000)
    assert run.read(KEYS[0]) == (1, [1], {"1": 1})
    assert run.read(KEYS[1]) == EMPTY


KINDS: tuple[tuple[StateDescriptor, Any, Any, Any, Any], ...] = (
    (ValueState("v", default=-1, ttl=10), lambda v: v.update(1), lambda v: v.value(), 1, -1),
    (ListState("v", ttl=10), lambda v: v.add(1), lambda v: v.get(), [1], []),
    (MapState("v", ttl=10), lambda v: v.put("a", 1), lambda v: v.get("a"), 1, None),
    (MapState("v", ttl=10), lambda v: v.put("a", 1), lambda v: v.contains("a"), True, False),
    (MapState("v", ttl=10), lambda v: v.put("a", 1), lambda v: v.is_empty(), False, True),
    (MapState("v", ttl=10), lambda v: v.put("a", 1), lambda v: v.items(), [("a", 1)], []),
    (MapState("v", ttl=10), lambda v: v.put("a", 1), lambda v: v.keys(), ["a"], []),
    (MapState("v", ttl=10), lambda v: v.put("a", 1), lambda v: v.values(), [1], []),
    (ReducingState("v", int.__add__, ttl=10), lambda v: v.add(1), lambda v: v.get(), 1, None),
    (AggregatingState("v", list, lambda a, b: [*a, b], sum, ttl=10), lambda v: v.add(1), lambda v: v.get(), 1, None),
)


@pytest.mark.parametrize(("state", "write", "read", "living", "expired"), KINDS)
def test_a_value_lives_until_the_millisecond_at_which_it_expires(
    state: StateDescriptor, write: Any, read: Any, living: Any, expired: Any
) -> None:
    now = [NOW]
    backend = new_backend([state], KeyGroupRange(0, 0), wall_time=lambda: now[0])
    transaction = Transaction(backend, "key", 0)
    write(transaction.state(state))
    transaction.commit()
    found = []
    for now[0] in (NOW, NOW + 9_999, NOW + 10_000):
        found.append(read(Transaction(backend, "key", 0).state(state)))

    assert found == [living, living, expired]


def test_snapshots_and_compaction_drop_what_has_expired() -> None:
    run = Run(ttl=10)
    run.fill(KEYS)
    run.write()
    run.restart(ttl=10, now=NOW + 5_000)
    run.fill(KEYS[:10], 1)
    run.write()
    run.restart(ttl=10, now=NOW + 12_000)
    run.store.compact()
    latest = run.store.latest()
    assert latest is not None
    # The system's clock says that all of it has expired long ago.
    assert [latest.to_arrow(state.name).num_rows for state in STATES] == [0, 0, 0]


@pytest.mark.parametrize(("now", "rows"), [(NOW + 9_999, 1), (NOW + 10_000, 0), (NOW + 10_001, 0)])
def test_what_expires_now_is_gone_from_restores_snapshots_and_compactions(now: int, rows: int) -> None:
    """A value lives up to the millisecond before its expiry, whoever reads it."""
    run = Run(ttl=10)
    run.fill(KEYS[:1])
    snapshot = run.write()
    restored = snapshot.restore(0).states(run.states, now)
    assert [sum(len(loaded(group)) for group in groups.values()) for groups in restored.values()] == [rows] * 3

    run.restart(ttl=10, now=now)
    run.store = new_store()  # where nothing is known, what nobody has touched is written as it was stored
    copied = run.write()
    assert [copied.to_arrow(state.name).num_rows for state in STATES] == [rows] * 3

    other = Run(ttl=10)
    other.fill(KEYS)
    other.write()
    other.now = NOW + 1_000
    other.fill(KEYS[:1], 1)
    compacted = compact(other.store.load(1).folder, other.write(), now)
    assert compacted.manifest.operation == "compact"
    assert compacted.to_arrow("value").num_rows == 1 + (len(KEYS) - 1) * rows


def test_a_long_list_is_rewritten_once_half_of_it_has_expired() -> None:
    run = Run(ttl=10)
    for number in range(100):
        run.fill(["a"], number)
        run.now += 1000
    held: Any = run.backend.tables["list"].get(key_group_of("a", G), "a")
    assert len(held) <= 22
    assert run.read("a")[1] == list(range(91, 100))


def test_a_ttl_survives_a_rewrite() -> None:
    run = Run(ttl=10)
    run.fill(KEYS)
    run.write()
    rewritten = run.store.repartition(3, max_parallelism=24, rewrite=True)
    assert "ttl" in rewritten.manifest.required_features
    assert set(rewritten.to_arrow("map")["expires_at"].to_pylist()) == {NOW + 10_000}
