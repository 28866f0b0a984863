from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest

from keygroups import ConfigError, KeyGroupOutOfRange, KeyGroupRange, ValueState
from keygroups.state import (
    MISSING,
    KeyedStateBackend,
    KeyGroupContent,
    MemoryBackend,
    StateAccessOutsideInvocation,
    StateCut,
    StateNotDeclared,
    StateOfAnotherThread,
    Transaction,
    identity_of,
)
from tests.backends import UnreadGroup, contents, new_backend

pytestmark = pytest.mark.usefixtures("each_backend")

OWNED = KeyGroupRange(4, 7)
SEEN = ValueState("seen", default=0)
LAST = ValueState("last")


class Stored(UnreadGroup):
    """A key group in storage."""

    def __init__(self, content: dict[Hashable, object], damage: Exception | None = None) -> None:
        self.content = content
        self.damage = damage
        self.loads = 0

    def load(self) -> dict[Hashable, object]:
        self.loads += 1
        if self.damage is not None:
            raise self.damage
        return dict(self.content)


def backend(seen: dict[int, Stored] | None = None, last: dict[int, Stored] | None = None) -> KeyedStateBackend:
    return new_backend([SEEN, LAST], OWNED, {"seen": seen or {}, "last": last or {}})


def values(groups: Mapping[int, KeyGroupContent], key_group: int) -> dict[Hashable, object] | None:
    return groups[key_group].in_memory()


def groups_of(cuts: tuple[StateCut, ...], state: str) -> dict[int, dict[Any, object]]:
    (cut,) = (cut for cut in cuts if cut.descriptor.name == state)
    return contents(cut.groups)


class TestBackend:
    def test_states_are_separate_and_so_are_key_groups(self) -> None:
        tables = backend().tables
        tables["seen"].put(4, "a", 1)
        tables["last"].put(4, "a", 2)
        tables["seen"].put(5, "a", 3)

        assert [tables["seen"].get(4, "a"), tables["last"].get(4, "a"), tables["seen"].get(5, "a")] == [1, 2, 3]
        assert tables["last"].get(5, "a") is MISSING

    def test_none_is_a_value_and_missing_removes(self) -> None:
        table = backend().tables["seen"]
        table.put(4, "a", None)
        assert table.get(4, "a") is None

        table.put(4, "a", MISSING)
        table.put(4, "never there", MISSING)
        assert table.get(4, "a") is MISSING

    def test_a_cut_holds_what_was_there_and_later_writes_leave_it_alone(self) -> None:
        store = backend()
        table = store.tables["seen"]
        table.put(4, "a", 1)
        table.put(4, "b", 1)
        table.put(7, "c", 1)
        first = store.cut()
        table.put(4, "a", 2)
        table.put(4, "b", MISSING)
        table.put(5, "d", 2)
        second = store.cut()
        table.put(4, "a", 3)

        assert groups_of(first, "seen") == {4: {"a": 1, "b": 1}, 7: {"c": 1}}
        assert groups_of(second, "seen") == {4: {"a": 2}, 5: {"d": 2}, 7: {"c": 1}}
        assert table.get(4, "a") == 3

    def test_a_cut_names_what_has_changed_since_the_one_before(self) -> None:
        store = backend()
        table = store.tables["seen"]
        table.put(4, "a", 1)
        first, _ = store.cut()
        table.put(4, "b", 1)
        table.put(5, identity_of(1.0), 1)
        table.put(5, "gone", MISSING)
        second, _ = store.cut()
        table.put(4, "c", 1)
        third, _ = store.cut()
        fourth, _ = store.cut()

        assert (first.since, first.changed) == (None, None)
        assert second.since == first.cut_id
        changed = [{kg: set(keys or ()) for kg, keys in (cut.changed or {}).items()} for cut in (second, third, fourth)]
        assert changed == [{4: {"b"}, 5: {identity_of(1.0), "gone"}}, {4: {"c"}}, {}]

    def test_a_cut_names_every_state_and_only_key_groups_with_something_in_them(self) -> None:
        store = backend()
        store.tables["seen"].put(4, "a", 1)
        store.tables["seen"].put(4, "a", MISSING)
        cuts = store.cut()

        assert [cut.descriptor for cut in cuts] == [SEEN, LAST]
        assert [contents(cut.groups) for cut in cuts] == [{}, {}]

    def test_a_key_group_is_loaded_on_first_touch_and_once(self) -> None:
        stored = {4: Stored({"a": 1}), 5: Stored({"b": 2})}
        table = backend(seen=stored).tables["seen"]
        assert stored[4].loads == 0

        assert table.get(4, "a") == 1
        assert table.get(4, "missing") is MISSING
        table.put(5, "b", 3)
        assert table.get(5, "b") == 3
        assert [stored[4].loads, stored[5].loads] == [1, 1]

    def test_a_cut_passes_on_what_was_never_loaded(self) -> None:
        stored = {4: Stored({"a": 1}), 5: Stored({"b": 2})}
        store = backend(seen=stored)
        store.tables["seen"].put(5, "b", 3)

        (cut, _) = store.cut()
        assert cut.groups[4] is stored[4]
        assert stored[4].loads == 0
        assert contents(cut.groups) == {4: {"a": 1}, 5: {"b": 3}}

    def test_a_key_group_that_is_loaded_after_a_cut_leaves_the_cut_alone(self) -> None:
        stored = Stored({"a": 1})
        store = backend(seen={4: stored})
        (cut, _) = store.cut()
        store.tables["seen"].put(4, "a", 2)

        assert dict(cut.groups) == {4: stored}
        assert stored.load() == {"a": 1}
        assert groups_of(store.cut(), "seen") == {4: {"a": 2}}

    def test_a_key_group_that_is_installed_late_changes_nothing_of_one_that_is_there(self) -> None:
        stored = {4: Stored({"a": 1}), 5: Stored({"a": 1})}
        store = backend(seen=stored)
        table = store.tables["seen"]
        loaded = {key_group: group.load() for key_group, group in table.unloaded().items()}
        table.put(4, "a", 2)
        for key_group, group in loaded.items():
            table.install(key_group, group)
        table.put(5, "a", 3)
        for key_group in loaded:
            table.install(key_group, {"a": 1})

        assert [table.get(4, "a"), table.get(5, "a")] == [2, 3]
        assert groups_of(store.cut(), "seen") == {4: {"a": 2}, 5: {"a": 3}}

    def test_content_that_was_read_without_the_table_is_not_read_again(self) -> None:
        stored = Stored({"a": 1})
        table = backend(seen={4: stored}).tables["seen"]
        table.install(4, stored.load())

        assert (table.get(4, "a"), stored.loads) == (1, 1)
        assert table.unloaded() == {}

    def test_a_failed_load_fails_again_instead_of_being_an_empty_key_group(self) -> None:
        table = backend(seen={4: Stored({}, OSError("storage is away"))}).tables["seen"]

        for _ in range(2):
            with pytest.raises(OSError, match="storage is away"):
                table.get(4, "a")
            with pytest.raises(OSError, match="storage is away"):
                table.put(4, "a", 1)

    def test_restored_content_of_another_subtask_is_refused(self) -> None:
        for key_group in (3, 8):
            with pytest.raises(KeyGroupOutOfRange) as refused:
                backend(seen={key_group: Stored({})})
            assert (refused.value.key_group, refused.value.first, refused.value.last) == (key_group, 4, 7)

    @pytest.mark.parametrize("key_group", [3, 8])
    @pytest.mark.parametrize(
        "use",
        [
            lambda table, key_group: table.get(key_group, "a"),
            lambda table, key_group: table.put(key_group, "a", 1),
            lambda table, key_group: table.load(key_group),
            lambda table, key_group: table.install(key_group, {}),
        ],
        ids=["get", "put", "load", "install"],
    )
    def test_a_key_group_of_another_subtask_is_refused(self, use: Callable[[Any, int], Any], key_group: int) -> None:
        with pytest.raises(KeyGroupOutOfRange) as refused:
            use(backend().tables["seen"], key_group)
        assert (refused.value.key_group, refused.value.first, refused.value.last) == (key_group, 4, 7)

    def test_two_states_of_one_name_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="two states have this name") as refused:
            new_backend([SEEN, LAST, ValueState("seen")], OWNED)
        assert (refused.value.name, refused.value.value) == ("states", "seen")

    def test_a_second_thread_is_refused_and_told_whose_the_state_is(self) -> None:
        table = backend().tables["seen"]
        table.get(4, "a")
        refusals: list[StateOfAnotherThread] = []

        def use() -> None:
            try:
                table.get(4, "a")
            except StateOfAnotherThread as refusal:
                refusals.append(refusal)

        thread = threading.Thread(target=use, name="another")
        thread.start()
        thread.join()

        (refusal,) = refusals
        assert (refusal.thread, refusal.owner) == ("another", threading.current_thread().name)


class TestMemoryBackend:
    def test_a_cut_copies_nothing_and_a_write_copies_only_its_key_group(self) -> None:
        store = MemoryBackend([SEEN], OWNED)
        table = store.tables["seen"]
        for key_group in OWNED:
            table.put(key_group, "a", 1)
        first = store.cut()[0].groups
        table.put(5, "a", 2)
        table.put(5, "b", 2)
        second = store.cut()[0].groups

        assert [key_group for key_group in OWNED if values(first, key_group) is not values(second, key_group)] == [5]

    def test_nothing_that_is_kept_for_each_key_is_walked_by_the_garbage_collector(self) -> None:
        backend = MemoryBackend([ValueState("count")], KeyGroupRange(0, 3))
        backend.cut()
        for number in range(1000):
            backend.tables["count"].put(number % 4, f"key {number}", number)
        (cut,) = backend.cut()
        assert cut.changed is not None
        assert len(cut.changed) == 4
        assert not any(
            map(gc.is_tracked, (*(group.in_memory() for group in cut.groups.values()), *cut.changed.values()))
        )


class TestTransaction:
    def test_a_read_sees_what_is_committed(self) -> None:
        store = backend()
        store.tables["seen"].put(4, "a", 1)

        assert Transaction(store, "a", 4).state(SEEN).value() == 1

    def test_a_key_without_a_value_has_the_default(self) -> None:
        transaction = Transaction(backend(), "a", 4)

        assert transaction.state(SEEN).value() == 0
        assert transaction.state(LAST).value() is None

    def test_a_stored_none_is_not_the_default(self) -> None:
        store = backend()
        store.tables["seen"].put(4, "a", None)

        assert Transaction(store, "a", 4).state(SEEN).value() is None

    def test_own_writes_are_seen_at_once_by_every_handle_and_by_nobody_else(self) -> None:
        store = backend()
        mine, other = Transaction(store, "a", 4), Transaction(store, "a", 4)
        mine.state(SEEN).update(1)

        assert mine.state(SEEN).value() == 1
        assert other.state(SEEN).value() == 0
        assert store.tables["seen"].get(4, "a") is MISSING
        assert groups_of(store.cut(), "seen") == {}

    def test_a_commit_applies_all_writes_to_its_own_key_only(self) -> None:
        store = backend()
        store.tables["seen"].put(4, "b", 9)
        transaction = Transaction(store, "a", 4)
        transaction.state(SEEN).update(1)
        transaction.state(SEEN).update(2)
        transaction.state(LAST).update("x")
        transaction.commit()

        assert groups_of(store.cut(), "seen") == {4: {"a": 2, "b": 9}}
        assert groups_of(store.cut(), "last") == {4: {"a": "x"}}

    def test_a_clear_is_seen_at_once_and_removes_on_commit(self) -> None:
        store = backend()
        store.tables["seen"].put(4, "a", 5)
        transaction = Transaction(store, "a", 4)
        handle = transaction.state(SEEN)
        handle.clear()

        assert handle.value() == 0
        assert store.tables["seen"].get(4, "a") == 5
        transaction.commit()
        assert store.tables["seen"].get(4, "a") is MISSING

    def test_a_value_set_after_a_clear_stays(self) -> None:
        store = backend()
        transaction = Transaction(store, "a", 4)
        transaction.state(SEEN).clear()
        transaction.state(SEEN).update(7)
        transaction.commit()

        assert store.tables["seen"].get(4, "a") == 7

    @pytest.mark.parametrize("end", [Transaction.abandon, Transaction.commit])
    def test_handles_of_an_ended_invocation_are_refused(self, end: object) -> None:
        store = backend()
        transaction = Transaction(store, ("user", 7), 4)
        handle = transaction.state(SEEN)
        assert callable(end)
        end(transaction)

        for use in (handle.value, lambda: handle.update(1), handle.clear):
            with pytest.raises(StateAccessOutsideInvocation, match=r"key \('user', 7\)") as refused:
                use()
            assert refused.value.key == ("user", 7)
        assert groups_of(store.cut(), "seen") == {}

    @pytest.mark.parametrize("end", [Transaction.abandon, Transaction.commit])
    def test_every_handle_of_an_ended_invocation_is_refused_and_it_gets_no_other(self, end: object) -> None:
        transaction = Transaction(backend(), "a", 4)
        first, second = transaction.state(SEEN), transaction.state(LAST)
        assert callable(end)
        end(transaction)

        for use in (first.value, second.value, lambda: transaction.state(SEEN), lambda: transaction.state(LAST)):
            with pytest.raises(StateAccessOutsideInvocation):
                use()

    def test_an_abandoned_invocation_has_written_nothing_even_if_it_completes_late(self) -> None:
        store = backend()
        transaction = Transaction(store, "a", 4)
        transaction.state(SEEN).update(1)
        transaction.abandon()
        transaction.commit()

        assert groups_of(store.cut(), "seen") == {}

    def test_a_cut_has_all_writes_of_an_invocation_or_none(self) -> None:
        store = backend()
        transaction = Transaction(store, "a", 4)
        transaction.state(SEEN).update(1)
        transaction.state(LAST).update(1)
        before = store.cut()
        transaction.commit()
        after = store.cut()

        assert [contents(cut.groups) for cut in before] == [{}, {}]
        assert [contents(cut.groups) for cut in after] == [{4: {"a": 1}}, {4: {"a": 1}}]

    @pytest.mark.parametrize("damaged", ["seen", "last"])
    def test_a_commit_that_meets_damage_has_written_nothing(self, damaged: str) -> None:
        """A write to a key group that nobody has read yet loads it."""
        store = backend(**{damaged: {4: Stored({}, OSError("storage is away"))}})
        transaction = Transaction(store, "a", 4)
        transaction.state(SEEN).update(1)
        transaction.state(LAST).update(1)
        with pytest.raises(OSError, match="storage is away"):
            transaction.commit()

        (sound,) = {"seen", "last"} - {damaged}
        assert groups_of(store.cut(), sound) == {}

    def test_a_state_that_was_not_declared_is_named_with_those_that_were(self) -> None:
        transaction = Transaction(backend(), "a", 4)

        with pytest.raises(StateNotDeclared, match=r"'other' is not declared \(declared: seen, last\)") as refused:
            transaction.state(ValueState("other"))
        assert (refused.value.state, refused.value.declared) == ("other", ("seen", "last"))

    @pytest.mark.parametrize("argument", ["seen", None, {"name": "seen"}])
    def test_what_is_no_descriptor_is_refused(self, argument: Any) -> None:
        with pytest.raises(ConfigError, match="pass the descriptor itself") as refused:
            Transaction(backend(), "a", 4).state(argument)
        assert (refused.value.name, refused.value.value) == ("descriptor", argument)

    def test_a_descriptor_is_known_by_its_name(self) -> None:
        """Functions are pickled to workers, so the descriptor at hand may be a copy of the declared one."""
        store = backend()
        store.tables["seen"].put(4, "a", 1)

        assert Transaction(store, "a", 4).state(ValueState("seen")).value() == 1
