from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgpack
import pytest

from keygroups import (
    ConfigError,
    ListState,
    MapState,
    MissingCodec,
    UnstorableValue,
    ValueState,
    codec,
    key_group_of,
    register_codec,
)
from keygroups.codec import UnreadableValue, codecs_used, missing_codecs, pack, unpack
from snapshots import Snapshot, SnapshotStore
from tests.snapshot_kit import PROFILE, G, content_of, new_store, part, parts, record, restored, words


@dataclass(frozen=True)
class Money:
    amount: int
    currency: str = "EUR"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    forget(monkeypatch)


def register_money(name: str = "shop.Money-1") -> None:
    register_codec(name, Money, lambda money: (money.amount, money.currency), lambda parts: Money(*parts))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_codecs", {})
    monkeypatch.setattr(codec, "_codecs_of_types", {})


def test_a_registered_type_comes_back_wherever_it_is() -> None:
    register_money()
    register_codec(
        "fraction", Fraction, lambda f: [Money(f.numerator), f.denominator], lambda p: Fraction(p[0].amount, p[1])
    )
    value = {"list": [Money(1), (Money(2, "USD"), {Money(3)})], "nested": Fraction(1, 3), Money(4): None}

    assert unpack(pack(value, "a test")) == value


def test_the_bytes_of_a_registered_type_are_part_of_the_format() -> None:
    register_money("m")

    assert pack(Money(1), "a test").hex() == "c70c0b92a16dc706029201a3455552"
    assert unpack(pack(Money(1), "a test")) == Money(1)


def test_the_codecs_that_were_used_are_reported() -> None:
    register_money()
    register_codec("fraction", Fraction, str, Fraction)

    with codecs_used() as used:
        pack([Money(1), 1], "a test")
    with codecs_used() as none:
        pack([1], "a test")

    assert (used, none) == ({"shop.Money-1"}, set())
    assert missing_codecs(["x", "fraction"]) == ["x"]


class Sub(Fraction):
    pass


def test_a_subclass_needs_a_codec_of_its_own() -> None:
    register_codec("fraction", Fraction, str, Fraction)

    with pytest.raises(UnstorableValue, match="Sub"):
        pack(Sub(1), "a test")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 129])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="letters"):
        register_money(name)


@pytest.mark.parametrize("kind", [int, dict, set, type(None)])
def test_a_type_that_needs_no_codec_is_refused(kind: type) -> None:
    with pytest.raises(ConfigError, match="without a codec"):
        register_codec("mine", kind, str, kind)


def test_a_name_stands_for_one_type_and_a_type_for_one_name() -> None:
    register_money()
    register_money()  # as when its module is imported again

    with pytest.raises(ConfigError, match="already"):
        register_codec("shop.Money-1", Fraction, str, Fraction)
    with pytest.raises(ConfigError, match="already"):
        register_money("another")


def test_an_encoder_that_fails_names_what_holds_the_value() -> None:
    def fail(_: object) -> object:
        raise ValueError("no such currency")

    register_codec("money", Money, fail, fail)

    with pytest.raises(UnstorableValue, match="state 'a' holds a value of type Money .no such currency"):
        pack(Money(1), "state 'a'")


def test_a_value_without_its_codec_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    register_money()
    data = pack([Money(1)], "a test")
    forget(monkeypatch)

    with pytest.raises(MissingCodec, match="shop.Money-1") as caught:
        unpack(data)

    assert caught.value.codec == "shop.Money-1"


def test_bytes_that_are_no_codec_are_unreadable() -> None:
    for plain in ("text", [1], [["a"], 1]):
        with pytest.raises(UnreadableValue):
            unpack(msgpack.packb(msgpack.ExtType(11, msgpack.packb(plain))))


ALL = ListState("all"), MapState("by"), PROFILE


def with_money(store: SnapshotStore) -> Snapshot:
    return store.bootstrap(
        {
            ALL[0]: [("a", [Money(1), Money(2)])],
            ALL[1]: [("a", {Money(1): 1})],
            PROFILE: [("a", {"price": Money(1)}), *((word, 1) for word in words(100))],
            ValueState("none"): [("a", 1)],
        },
        parallelism=2,
        max_parallelism=G,
    )


def codecs_of(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    return {info.name: info.codecs for info in snapshot.manifest.states}


def test_a_manifest_names_the_codecs_of_each_state() -> None:
    register_money()
    snapshot = with_money(new_store())

    assert codecs_of(snapshot) == dict.fromkeys(("all", "by", "profile"), ("shop.Money-1",)) | {"none": ()}
    assert "codecs" in snapshot.manifest.required_features
    loaded = SnapshotStore.on(snapshot.folder).load(1)
    assert loaded.manifest == snapshot.manifest


def test_a_restore_without_a_codec_is_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    register_money()
    snapshot = with_money(new_store())
    forget(monkeypatch)

    with pytest.raises(MissingCodec, match="state 'all' holds values of the codec 'shop.Money-1'"):
        snapshot.restore(0).states([*ALL, ValueState("none")])


def change(snapshot: Snapshot, key: str, value: Any) -> Snapshot:
    backends = [restored(snapshot, index, descriptors=[PROFILE]) for index in range(2)]
    key_group = key_group_of(key, G)
    backends[key_group * 2 // G].tables["profile"].put(key_group, key, value)
    return SnapshotStore.on(snapshot.folder).write([part(backend, n, 2) for n, backend in enumerate(backends)])


def test_a_codec_is_named_as_long_as_a_value_may_need_it() -> None:
    store = new_store()
    none = store.write(parts({"profile": dict.fromkeys(words(100), 1)}, [PROFILE]))
    assert codecs_of(none) == {"profile": ()}
    register_money()

    delta = change(none, "key 1", Money(1))
    assert delta.manifest.files_of("delta")
    assert codecs_of(delta) == {"profile": ("shop.Money-1",)}
    # The delta below still has it, although nothing new does.
    assert codecs_of(change(delta, "key 1", 2)) == {"profile": ("shop.Money-1",)}
    assert codecs_of(store.compact()) == {"profile": ("shop.Money-1",)}
    assert codecs_of(store.repartition(2, max_parallelism=32, rewrite=True)) == {"profile": ("shop.Money-1",)}
    # Whoever writes everything that is in memory knows what there is.
    whole = store.edit().map_items("profile", lambda key, value: [(key, value)]).commit()
    assert codecs_of(whole) == {"profile": ()}
    assert "codecs" not in whole.manifest.required_features


def test_a_codec_of_one_subtask_is_that_of_the_snapshot() -> None:
    register_money()
    made = parts({"profile": {"key 1": Money(1), **dict.fromkeys(words(1), 1)}}, [PROFILE])

    snapshot = new_store().write(made)

    assert codecs_of(snapshot) == {"profile": ("shop.Money-1",)}
    assert content_of(snapshot, descriptors=[PROFILE])["profile"]["key 1"] == Money(1)


def test_elements_in_flight_may_hold_registered_values(monkeypatch: pytest.MonkeyPatch) -> None:
    register_money()
    element = record("a", 0, channel=0, value=Money(1), completed=True, outputs=(Money(2),))
    snapshot = new_store().write(parts({}, in_flight=[element]))

    restores = [snapshot.restore(index) for index in range(2)]
    (found,) = [one for restore in restores for one in restore.queue().elements]
    assert (found.value, found.outputs) == (Money(1), (Money(2),))

    forget(monkeypatch)
    with pytest.raises(MissingCodec):
        [snapshot.restore(index).queue() for index in range(2)]


def test_missing_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    register_money()
    snapshot = with_money(new_store())
    forget(monkeypatch)
    store = SnapshotStore.on(snapshot.folder)

    # Without a look at the values every file is whole.
    assert store.verify().ok
    with pytest.raises(MissingCodec):
        store.edit().map_items("profile", lambda key, value: [(key, value)])
