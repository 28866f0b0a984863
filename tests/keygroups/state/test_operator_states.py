"""State without a key, as functions read and write it."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keygroups import ConfigError, ListState, OperatorListState, OperatorMapState, UnstorableValue
from keygroups.state import (
    OperatorMapIsFinal,
    OperatorStateNotDeclared,
    OperatorStateOfAnotherThread,
    OperatorStates,
    WrongStateKind,
)

OFFSETS = OperatorListState("offsets")
RULES = OperatorMapState("rules")


def states(**restored: Any) -> OperatorStates:
    return OperatorStates((OFFSETS, RULES), restored)


@pytest.mark.parametrize("kind", [OperatorListState, OperatorMapState])
@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, 7])
def test_a_name_that_is_no_part_of_a_file_name_is_refused(kind: Any, name: Any) -> None:
    with pytest.raises(ConfigError, match="name="):
        kind(name)


def test_other_arguments_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="mode='broadcast': use one of split, union"):
        OperatorListState("a", mode="broadcast")  # type: ignore[arg-type]
    for kind in (OperatorListState, OperatorMapState):
        with pytest.raises(ConfigError, match="pass a pyarrow type"):
            kind("a", int)  # type: ignore[arg-type]


class TestList:
    def test_it_begins_empty_or_with_the_restored_items(self) -> None:
        assert states().handle(OFFSETS).get() == []
        assert states(offsets=[("p", 1)]).handle(OFFSETS).get() == [("p", 1)]

    def test_writes_count_at_once(self) -> None:
        found = states(offsets=[1])
        found.handle(OFFSETS).add(2)
        assert found.cut("a cut")["offsets"] == (1, 2)
        found.handle(OFFSETS).update(iter([3]))
        assert found.cut("a cut")["offsets"] == (3,)
        assert found.handle(OFFSETS).get() == [3]

    def test_of_what_it_sees_of_others_it_keeps_nothing(self) -> None:
        known = OperatorListState("known", mode="union")
        found = OperatorStates((known,), {"known": ["a", "b", "c"]}, {"known": (1, 2)})
        handle = found.handle(known)
        handle.add("d")
        assert handle.get() == ["a", "b", "c", "d"]
        assert found.cut("a cut")["known"] == ("b", "d")
        handle.update(["c"])
        handle.add("e")
        assert handle.get() == ["c", "e"]
        assert found.cut("a cut")["known"] == ("c", "e")

    def test_what_a_complete_snapshot_holds_of_it(self) -> None:
        found = states(offsets=["restored"])
        handle = found.handle(OFFSETS)
        handle.add("a")
        assert handle.in_snapshot() == ["restored"]
        found.cut("first")
        handle.update(["b"])
        found.cut("second")
        handle.add("c")
        assert handle.in_snapshot() == ["restored"]
        found.complete("first")
        assert handle.in_snapshot() == ["restored", "a"]
        found.complete("unknown")
        found.complete(None)
        assert handle.in_snapshot() == ["b"]
        found.complete("first")
        assert handle.in_snapshot() == ["b"]

    def test_cuts_that_are_never_complete_are_forgotten(self) -> None:
        found = states()
        for number in range(1000):
            found.handle(OFFSETS).update([number])
            found.cut(f"{number}")
        found.complete("3")
        assert found.handle(OFFSETS).in_snapshot() == []
        found.complete(None)
        assert found.handle(OFFSETS).in_snapshot() == [999]

    def test_nobody_shares_an_object_with_it(self) -> None:
        found = states(offsets=[{"restored": []}])
        written: dict[str, list[int]] = {"written": []}
        found.handle(OFFSETS).add(written)
        cut = found.cut("a cut")["offsets"]

        written["written"].append(1)
        for item in found.handle(OFFSETS).get():
            item["more"] = 1
        found.handle(OFFSETS).get().clear()

        assert found.handle(OFFSETS).get() == [{"restored": []}, {"written": []}]
        assert cut == ({"restored": []}, {"written": []})

    def test_a_value_that_cannot_be_stored_is_refused_and_changes_nothing(self) -> None:
        typed = OperatorListState("numbers", pa.int64())
        found = OperatorStates((OFFSETS, typed), {"offsets": [1]})
        for write in (
            lambda: found.handle(OFFSETS).add(object()),
            lambda: found.handle(OFFSETS).update([2, object()]),
            lambda: found.handle(typed).add("text"),
        ):
            with pytest.raises(UnstorableValue, match="operator state"):
                write()
        assert found.cut("a cut") == {"offsets": (1,), "numbers": ()}

    def test_it_belongs_to_one_thread(self) -> None:
        handle, errors = states().handle(OFFSETS), list[Exception]()

        def use() -> None:
            for one in (handle.get, lambda: handle.add(1), lambda: handle.update([1])):
                try:
                    one()
                except OperatorStateOfAnotherThread as error:
                    errors.append(error)

        thread = threading.Thread(target=use, name="elsewhere")
        thread.start()
        thread.join()
        assert ["'elsewhere'" in str(error) and "ctx.operator_state" in str(error) for error in errors] == [True] * 3
        assert handle.get() == []


def test_handles_look_like_one_short_line() -> None:
    found = states(offsets=[1, 2], rules=[("a", "secret")])
    assert repr(found.handle(OFFSETS)) == "OperatorListHandle(name='offsets', mode='split', items=2)"
    assert repr(found.handle(RULES)) == "OperatorMapHandle(name='rules', entries=1)"


class TestMap:
    def test_it_is_a_mapping(self) -> None:
        rules = states(rules=[("a", 1)]).handle(RULES)
        rules["b"] = 2
        rules.update({"c": 3})
        del rules["a"]
        assert dict(rules) == {"b": 2, "c": 3}
        assert ("b" in rules, "a" in rules, len(rules), rules.get("z", 9)) == (True, False, 2, 9)

    def test_after_open_it_can_be_read_only_and_by_any_thread(self) -> None:
        found = states()
        rules = found.handle(RULES)
        rules["a"] = 1
        found.seal()
        for write in (lambda: rules.update(b=2), lambda: rules.pop("a"), rules.clear):
            with pytest.raises(OperatorMapIsFinal, match="can only be written in `open`"):
                write()
        read = list[int]()
        thread = threading.Thread(target=lambda: read.append(rules["a"]))
        thread.start()
        thread.join()
        assert read == [1]
        assert found.cut("a cut")["rules"] == (("a", 1),)

    def test_nobody_shares_an_object_with_it(self) -> None:
        rules = states().handle(RULES)
        written: list[int] = []
        rules["a"] = written
        written.append(1)
        rules["a"].append(2)
        for value in rules.values():
            value.append(3)
        assert rules["a"] == []

    def test_keys_and_values_are_checked(self) -> None:
        typed = OperatorMapState("prices", pa.map_(pa.string(), pa.float64()))
        prices = OperatorStates((typed,)).handle(typed)
        with pytest.raises(UnstorableValue, match="a key of operator state 'prices'"):
            prices[1] = 1.0
        with pytest.raises(UnstorableValue, match="operator state 'prices'"):
            prices["a"] = "dear"
        assert dict(prices) == {}

    @given(st.permutations([1, "a", (2, "b"), None, 2.5, b"c"]))
    def test_the_order_of_its_writes_does_not_show_in_a_cut(self, keys: list[Any]) -> None:
        one, other = states(), states()
        one.handle(RULES).update(dict.fromkeys(keys, 0))
        other.handle(RULES).update(dict.fromkeys(reversed(keys), 0))
        assert one.cut("a cut") == other.cut("a cut")


def test_a_state_that_is_not_declared_or_declared_otherwise_is_refused() -> None:
    found = states()
    with pytest.raises(OperatorStateNotDeclared, match=r"'other' is not declared \(declared: offsets, rules\)"):
        found.handle(OperatorListState("other"))
    for asked in (OperatorListState("offsets", mode="union"), OperatorMapState("offsets"), ListState("offsets")):
        with pytest.raises(WrongStateKind, match="'offsets' is declared as a split list state"):
            found.handle(asked)
