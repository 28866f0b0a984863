"""Elements on their way to another process: each value arrives as it was, or is refused by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import Job, Step
from async_op.job.processes.messages import Destination, elements_in, payload_for
from keygroups.codec import pack, register_codec, unpack
from keygroups.errors import UnstorableValue
from snapshots.format.subtask import RefusedValue
from tests.async_op.job.processes.steps import Kept, by_length, by_type, same
from tests.doors import bad, values


class WithLock:
    """Cannot be pickled, but has a codec."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()

    def __repr__(self) -> str:
        return f"WithLock({self.number})"


class FailsWhenRead(Exception):
    """Is pickled without a complaint, and cannot be read."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


class Mean:
    def __reduce__(self) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise ValueError("no")


register_codec("test_sent_elements.WithLock", WithLock, lambda one: one.number, WithLock)


def local() -> Any:
    class Local:
        pass

    return Local()


UNSENDABLE: list[Callable[[], Any]] = [
    *bad.VALUES.values(),
    *(threading.Lock, Mean, local, lambda: iter([]), lambda: local, lambda: FailsWhenRead(1, "a")),
    *(lambda: [FailsWhenRead(1, "a")], lambda: {"of": Fraction(1, 3)}, lambda: memoryview(b"a"), lambda: "\ud83d"),
]
PLACE = Destination(False, 0, 0, 0, 0, 0)
SENT = st.one_of(st.sampled_from(values.UNTYPED), values.VALUES, st.builds(WithLock, st.integers()))


def is_storable(value: Any) -> bool:
    try:
        pack(value, "a test")
    except UnstorableValue:
        return False
    return True


@given(st.lists(SENT, max_size=5))
def test_a_value_arrives_as_it_was_or_is_refused(sent: list[Any]) -> None:
    check_arrival(sent)


@pytest.mark.parametrize("make", UNSENDABLE, ids=range(len(UNSENDABLE)))
def test_a_bad_value_is_refused_alone(make: Callable[[], Any]) -> None:
    check_arrival(["before", make(), "behind"])


def check_arrival(sent: list[Any]) -> None:
    arrived = elements_in(payload_for(PLACE, [(value, number, ("a@", number)) for number, value in enumerate(sent)]))

    assert [rest for _, *rest in arrived] == [[number, ("a@", number)] for number in range(len(sent))]
    for value, (back, *_) in zip(sent, arrived, strict=True):
        if is_storable(value):
            assert values.same_exactly(unpack(pack(value, "a test")), back)
        elif type(value) is not str:  # half a surrogate pair arrives, and is refused there
            assert type(back) is RefusedValue or not is_storable(back)


def test_values_that_are_usual_are_pickled_once_and_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("async_op.job.processes.messages.StorableCheck", None)
    noon = datetime(2026, 3, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    usual = [values.UNTYPED, {"at": noon, "of": [np.int64(3), np.float32(0.5), np.datetime64("2026-03-01")]}]
    sent: list[Any] = [(value, None, "a") for value in [*usual, WithLock(3), RefusedValue("a", "b")]]
    assert repr(elements_in(payload_for(PLACE, sent))) == repr(sent)


def test_a_refused_value_says_what_it_was_and_why() -> None:
    ((refused, *_),) = elements_in(payload_for(PLACE, [({"of": Fraction(1, 3)}, None, "a")]))

    assert refused.text == "{'of': Fraction(1, 3)}"
    assert "Fraction, which cannot be stored" in refused.reason


def test_a_value_that_is_refused_already_keeps_its_reason() -> None:
    refused = RefusedValue("text", "it is too long")
    elements = [(refused, None, "a"), (threading.Lock(), None, "b")]

    assert elements_in(payload_for(PLACE, elements))[0] == (refused, None, "a")


def test_a_job_ends_and_only_the_elements_with_bad_values_fail(tmp_path: Path) -> None:
    def texts() -> Iterator[Any]:
        for number, make in enumerate(UNSENDABLE):
            yield f"good {number}"
            yield make()

    sink, letters = Kept(), Kept()
    steps = [Step(same, "first", key_by=by_type, on_error="dead_letter"), Step(same, "second", key_by=by_length)]
    options: dict[str, Any] = {"parallelism": 4, "processes": 2, "dead_letters": letters}
    Job(list(texts()), steps, sink, snapshots=tmp_path, job_id="job", **options).run_sync()

    assert sorted(sink.values) == sorted(f"good {number}" for number in range(len(UNSENDABLE)))
    assert {letter["step"] for letter in letters.values} == {"first"}
    assert not any("RefusedValue" in str(letter["key"]) for letter in letters.values)
    assert len(letters.values) == len(UNSENDABLE)


@pytest.mark.parametrize("processes", [1, 2])
def test_values_with_a_codec_pass_though_they_cannot_be_pickled(tmp_path: Path, processes: int) -> None:
    sink = Kept()
    steps = [Step(same, "first"), Step(same, "second", key_by=repr)]
    given = [WithLock(number) for number in range(50)]
    Job(given, steps, sink, snapshots=tmp_path, job_id="job", parallelism=4, processes=processes).run_sync()

    assert sorted(value.number for value in sink.values) == list(range(50))
