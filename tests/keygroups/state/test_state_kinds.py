"""Lists, maps, reducing and aggregating state: what their writes cost, what is refused, and how they are stored."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import MappingProxyType
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
    UnstorableValue,
    ValueState,
    key_group_of,
)
from keygroups.state import SharedList, StateAccessOutsideInvocation, Transaction, WrongStateKind
from keygroups.state.disk import change_tracking
from snapshots import IncompatibleSnapshot, Snapshot
from tests.backends import contents, new_backend
from tests.snapshot_kit import G, new_store, part, restored

pytestmark = pytest.mark.usefixtures("each_backend")

LIST = ListState("clicks", pa.int64())
MAP = MapState("prices", pa.map_(pa.string(), pa.float64()))
ANY_MAP = MapState("anything")
STATES = (LIST, MAP, ANY_MAP)


class Run:
    """One subtask, and invocations that complete at once."""

    def __init__(self, states: tuple[StateDescriptor, ...] = STATES) -> None:
        self.states = states
        self.backend = new_backend(states, KeyGroupRange(0, G - 1))
        self.store = new_store()

    def begin(self, key: Any = "a") -> Transaction:
        return Transaction(self.backend, key, key_group_of(key, G))

    def do(self, state: StateDescriptor, write: Callable[[Any], object], key: Any = "a") -> None:
        transaction = self.begin(key)
        write(transaction.state(state))
        transaction.commit()

    def write(self) -> Snapshot:
        return self.store.write([part(self.backend, 0, 1)])

    def restart(self) -> None:
        latest = self.store.latest()
        assert latest is not None
        self.backend = restored(latest, 0, 1, self.states)  # type: ignore[arg-type]


def delta_rows(snapshot: Snapshot) -> list[int]:
    newest = [file for file in snapshot.manifest.files_of("delta") if file.version == snapshot.version]
    return [file.rows for file in newest]


def test_an_appended_element_is_one_row_of_the_next_snapshot_however_long_the_list() -> None:
    run = Run()
    run.do(LIST, lambda clicks: clicks.update(range(10_000)))
    run.write()
    run.do(LIST, lambda clicks: clicks.add(-1))

    assert delta_rows(run.write()) == [1]
    run.restart()
    assert run.begin().state(LIST).get() == [*range(10_000), -1]


def test_an_entry_that_is_put_or_removed_is_one_row_of_the_next_snapshot() -> None:
    run = Run()
    run.do(MAP, lambda prices: prices.put_all({str(n): float(n) for n in range(1000)}))
    run.write()
    run.do(MAP, lambda prices: (prices.put("1", -1.0), prices.remove("2"), prices.remove("never there")))

    assert delta_rows(run.write()) == [2]
    run.restart()
    assert dict(run.begin().state(MAP).items()) == {str(n): float(n) for n in range(1000) if n != 2} | {"1": -1.0}


@pytest.mark.parametrize("kept", [0, 2])
def test_a_replaced_list_or_map_hides_all_that_older_layers_hold(kept: int) -> None:
    run = Run()
    for key in ("a", "b"):
        run.do(LIST, lambda clicks: clicks.update(range(50)), key)
        run.do(ANY_MAP, lambda entries: entries.put_all({n: n for n in range(50)} | {("t", 1): "t"}), key)
    run.write()

    def replace(entries: Any) -> None:
        entries.clear()
        entries.put_all({n: -n for n in range(kept)})

    run.do(LIST, lambda clicks: clicks.update([-n for n in range(kept)]))
    run.do(ANY_MAP, replace)
    assert len(delta_rows(run.write())) == 2
    for _ in range(2):
        run.restart()
        assert run.begin().state(LIST).get() == [-n for n in range(kept)]
        assert dict(run.begin().state(ANY_MAP).items()) == {n: -n for n in range(kept)}
        assert run.begin("b").state(LIST).get() == list(range(50))
        assert len(run.begin("b").state(ANY_MAP).items()) == 51
        run.store.compact()


def test_entries_are_columns_that_anything_reads() -> None:
    run = Run()
    run.do(LIST, lambda clicks: clicks.add_all([5, 6]))
    run.do(MAP, lambda prices: prices.put("x", 1.5))
    snapshot = run.write()

    assert snapshot.to_arrow("clicks").drop_columns("key_group").to_pylist() == [
        {"key": "a", "position": 0, "value": 5},
        {"key": "a", "position": 1, "value": 6},
    ]
    assert snapshot.to_arrow("prices").drop_columns("key_group").to_pylist() == [
        {"key": "a", "map_key": "x", "value": 1.5}
    ]
    assert snapshot.manifest.required_features == ("entries",)
    assert run.store.verify().ok


def test_a_cut_shares_the_list_with_what_is_appended_later() -> None:
    elements = SharedList([1, 2])
    longer, other = elements.extended([3]), elements.extended([4])

    assert [list(elements), list(longer), list(other)] == [[1, 2], [1, 2, 3], [1, 2, 4]]
    assert (elements[0], elements[-1], elements[0:5]) == (1, 2, [1, 2])
    with pytest.raises(IndexError):
        elements[2]


def test_entries_that_come_and_go_are_not_noted_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_tracking, "NOTES_MAX", 2000)
    run = Run()
    run.write()
    for number in range(3000):
        run.do(ANY_MAP, lambda entries, number=number: entries.put(number, 1))  # type: ignore[misc]
        run.do(ANY_MAP, lambda entries, number=number: entries.remove(number))  # type: ignore[misc]
    (cut,) = (cut for cut in run.backend.cut() if cut.descriptor == ANY_MAP)

    assert cut.changed is not None
    assert list(cut.changed.values()) == [None]


REFUSED = [
    (ValueState("s", pa.int32()), lambda state: state.update(2**31)),
    (ValueState("s", pa.string()), lambda state: state.update(1)),
    (ValueState("s", pa.struct([("x", pa.int8())])), lambda state: state.update({"x": 300})),
    (ValueState("s"), lambda state: state.update(object())),
    (ValueState("s"), lambda state: state.update([{"deep": object()}])),
    (ListState("s", pa.int64()), lambda state: state.add("text")),
    (ListState("s", pa.int64()), lambda state: state.add_all([1, 1.5])),
    (ListState("s", pa.int64()), lambda state: state.update([1, True])),
    (MapState("s", pa.int64()), lambda state: state.put("key", 1.5)),
    (MapState("s", pa.map_(pa.string(), pa.int64())), lambda state: state.put(1, 1)),
    (MapState("s"), lambda state: state.put(object(), 1)),
    (ReducingState("s", lambda a, b: a + b, pa.int8()), lambda state: (state.add(100), state.add(100))),
    (AggregatingState("s", set, lambda a, v: {object()}, len), lambda state: state.add(1)),
]


@pytest.mark.parametrize(("state", "write"), REFUSED)
def test_what_cannot_be_stored_is_refused_when_it_is_written(state: Any, write: Callable[[Any], object]) -> None:
    run = Run((state,))
    transaction = run.begin()
    with pytest.raises(UnstorableValue, match=r"state 's' of key 'a'"):
        write(transaction.state(state))


def test_a_state_of_another_kind_is_refused() -> None:
    with pytest.raises(WrongStateKind, match="declared as a list state, not as a value state") as refused:
        Run().begin().state(ValueState("clicks"))
    assert (refused.value.asked, refused.value.declared) == ("value", "list")
    run = Run()
    with pytest.raises(IncompatibleSnapshot):
        restored(run.write(), 0, 1, (ValueState("clicks", pa.int64()), MAP, ANY_MAP))


@pytest.mark.parametrize("state", [*STATES, ReducingState("sum", operator.add)], ids=lambda state: state.name)
def test_handles_of_an_ended_invocation_are_refused(state: StateDescriptor) -> None:
    transaction = Run((state,)).begin()
    handle = transaction.state(state)
    transaction.abandon()
    names = ("items", "keys", "values", "is_empty", "clear") if isinstance(state, MapState) else ("get", "clear")
    for name in names:
        with pytest.raises(StateAccessOutsideInvocation):
            getattr(handle, name)()


@pytest.mark.parametrize("state", [ListState("tags"), ListState("tags", ttl=60)], ids=["a list", "with a time to live"])
@pytest.mark.parametrize("values", ["tea", b"tea", {"tea": 1}, 5], ids=repr)
def test_a_list_takes_nothing_apart(state: ListState, values: Any) -> None:
    tags = Run((state,)).begin().state(state)
    tags.add_all(tag for tag in ("green", "black"))
    for write in (tags.update, tags.add_all):
        with pytest.raises(ConfigError, match=rf"values='<{type(values).__name__}>': pass a list"):
            write(values)
    assert tags.get() == ["green", "black"]


@pytest.mark.parametrize("entries", ["ab", ["ab"], [("a", 1, 2)], [1], None], ids=repr)
def test_a_map_takes_only_pairs(entries: Any) -> None:
    prices = Run().begin().state(ANY_MAP)
    prices.put_all(MappingProxyType({"tea": 2}))
    with pytest.raises(ConfigError, match="entries="):
        prices.put_all(entries)
    assert prices.items() == [("tea", 2)]


def test_an_accumulator_that_is_changed_in_place_is_not_the_committed_one() -> None:
    def add(accumulator: list[int], value: int) -> list[int]:
        accumulator.append(value)
        return accumulator

    seen = AggregatingState("seen", list, add, list)
    run = Run((seen,))
    run.do(seen, lambda state: state.add(1))
    cut = part(run.backend, 0, 1)
    failed = run.begin()
    failed.state(seen).add(2)
    failed.abandon()
    assert run.begin().state(seen).get() == [1]
    run.do(seen, lambda state: state.add(3))

    assert run.begin().state(seen).get() == [1, 3]
    assert list(contents(cut.states[0].groups).values()) == [{"a": [1]}]
