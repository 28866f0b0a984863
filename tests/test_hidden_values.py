"""Keys, elements and outputs stay out of messages where they have to, and stay attributes of the errors."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from async_op import AsyncFunction, AsyncWaitOperator
from async_op.connectors.errors import UnwritableValue
from async_op.errors import (
    AsyncTimeoutError,
    ElementFailed,
    IncompleteAnswer,
    InvalidFunctionResult,
    KeyColumnMissing,
    TimersUnavailable,
    UnusableTimestamp,
    failure_of,
)
from async_op.spark.errors import OutputMismatch
from keygroups import ValueState
from keygroups.errors import SHOW_VALUES, KeyGroupsError
from keygroups.state.errors import StateAccessOutsideInvocation
from snapshots import SnapshotStore
from snapshots.errors import DuplicateKey

SECRET = "ann@example.org"
ERRORS: list[Callable[[], Exception]] = [
    lambda: AsyncTimeoutError(SECRET, 1.0),
    lambda: failure_of(SECRET, SECRET, 1, AsyncTimeoutError(SECRET, 1.0)),
    lambda: ElementFailed({"mail": SECRET}, SECRET, 1, ValueError("refused")),
    lambda: InvalidFunctionResult(SECRET),
    lambda: IncompleteAnswer(3, {"message": SECRET}),
    lambda: KeyColumnMissing("user", {"mail": SECRET}),
    lambda: UnusableTimestamp({"mail": SECRET}, SECRET),
    lambda: TimersUnavailable(SECRET),
    lambda: OutputMismatch((SECRET,), "n", "it is text"),
    lambda: UnwritableValue({"mail": SECRET}, "it is no JSON"),
    lambda: StateAccessOutsideInvocation(SECRET),
    lambda: DuplicateKey("visits", SECRET),
    lambda: DuplicateKey("visits", "a", SECRET),
]


def told(error: BaseException) -> str:
    return f"{error} {error.args} {getattr(error, '__notes__', ())}"


@pytest.mark.parametrize("make", ERRORS, ids=map(str, range(len(ERRORS))))
def test_a_value_is_hidden_unless_the_environment_shows_it(
    make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHOW_VALUES, "1")
    assert SECRET in told(make())
    assert SHOW_VALUES not in told(make())
    monkeypatch.setenv(SHOW_VALUES, "0")
    assert SECRET not in told(make())
    monkeypatch.delenv(SHOW_VALUES)
    error = make()

    for one in (error, pickle.loads(pickle.dumps(error))):
        assert SECRET not in told(one)
        assert re.search("<(str|dict|tuple), hidden>", told(one))
        assert [note for note in one.__notes__ if SHOW_VALUES in note], "the reader learns how to see it"
        assert SECRET in repr(vars(one)), "whoever handles the error has the value"


class Stores(AsyncFunction):
    states = (ValueState("typed", pa.int64()), ValueState("any"))

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        ctx.state(self.states[value["n"]]).update([SECRET, "text", object()][value["n"] :])
        return []


@pytest.mark.parametrize(
    "value", [{"user": SECRET, "n": 0}, {"user": SECRET, "n": 1}, {"user": None, "mail": SECRET}], ids=str
)
def test_an_operator_fails_without_the_value(value: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        operator = AsyncWaitOperator(Stores(), lambda output: None, key_by=lambda row: row["user"])
        await operator.open()
        await operator.process(value)
        await operator.finish()

    monkeypatch.delenv(SHOW_VALUES)
    with pytest.raises(KeyGroupsError) as failed:
        asyncio.run(run())
    assert SECRET not in told(failed.value) + told(failed.value.__cause__ or failed.value)


def test_rows_that_cannot_be_stored_are_named_without_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHOW_VALUES)
    store = SnapshotStore(tmp_path, "any")
    for bad in ([(SECRET, object())], [(SECRET, 1), (SECRET, 2)]):
        with pytest.raises((TypeError, ValueError)) as refused:
            store.bootstrap({ValueState("any"): bad}, parallelism=1, max_parallelism=8)
        assert SECRET not in told(refused.value)
