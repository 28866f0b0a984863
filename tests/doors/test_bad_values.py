"""A bad value is the fault of its element: all others come out of a stream, a job and a host, whatever is bad.

`tests/async_op/job/test_bad_values.py` has restarts of jobs, and `tests/spark/test_bad_rows.py` pipelines.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from async_op import AsyncDataStream, AsyncFunction, ElementFailed, Step, letter_value
from async_op.calls.value_checks import Unreadable
from async_op.connectors import FileSink, FileSource, MalformedRecord, UnwritableValue
from async_op.dead_letters import row_of
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import OperatorOptions
from async_op.subtask.operator import ResidentOperator
from keygroups import KeyGroupsError, MapState
from snapshots.format.subtask import RefusedValue
from tests.async_op.job.kit import Epochs, new_job
from tests.async_op.kit import commit
from tests.doors.bad import ERRORS, KEYS, VALUES
from tests.hosting.virtual_host import Kit, Run, hosted, outputs

NOTES = MapState("notes")
MAKERS: dict[str, dict[str, Callable[[], Any]]] = {"error": ERRORS, "output": VALUES, "state": VALUES, "value": VALUES}


@dataclass(frozen=True)
class Bad:
    """What is bad about an element."""

    place: str
    kind: str


class Serving(AsyncFunction):
    """Answers each element with its number, unless it is bad."""

    states = (NOTES,)

    def __init__(self, plan: Sequence[Bad | None]) -> None:
        self._plan = plan

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        await asyncio.sleep(0)
        bad = self._plan[value["id"]]
        if bad is not None and bad.place == "error":
            error = ERRORS[bad.kind]()
            raise error
        if bad is not None and bad.place == "output":
            return [VALUES[bad.kind]()]
        if bad is not None and bad.place == "state":
            ctx.state(NOTES).put("note", VALUES[bad.kind]())
        return [value["id"]]


def key_in(plan: Sequence[Bad | None]) -> Callable[[Any], Any]:
    def key_of(value: Any) -> Any:
        bad = plan[value["id"]]
        return KEYS[bad.kind] if bad is not None and bad.place == "key" else "a"

    return key_of


def elements_of(plan: Sequence[Bad | None], payload: Any) -> list[Any]:
    def one(number: int, bad: Bad | None) -> Any:
        value = VALUES[bad.kind]() if bad is not None and bad.place == "value" else {"payload": payload}
        return value | {"id": number}

    return [one(number, bad) for number, bad in enumerate(plan)]


def plans(*places: str) -> st.SearchStrategy[list[Bad | None]]:
    """Return good elements, among which are some that are bad in one of the places."""
    kinds = [Bad(place, kind) for place in places for kind in (MAKERS | {"key": KEYS})[place]]
    return st.lists(st.none() | st.sampled_from(kinds), min_size=1, max_size=12)


PAYLOADS = st.sampled_from([None, float("nan"), json.loads("1e999"), -0.0, 2**70, b"\xff", "é"])
"""What is in the elements: values that JSON lacks come back from dead letters, too."""
MODES = st.sampled_from(["ordered", "unordered", "key_ordered"])


def numbers_in(letters: Iterable[Any], payload: Any) -> list[int]:
    """Return the numbers of the elements that became dead letters; each of those can be stored anywhere."""
    found = []
    for letter in letters:
        row = row_of(letter)
        json.dumps(row, allow_nan=False, ensure_ascii=False).encode()
        if "payload" in letter.value:
            assert repr(letter_value(row)["payload"]) == repr(payload)
        found.append(letter.value["id"])
    return sorted(found)


def divided(plan: Sequence[Bad | None]) -> tuple[list[int], list[int]]:
    """Return the numbers of the good elements, and of the bad ones."""
    good = [number for number, bad in enumerate(plan) if bad is None]
    return good, [number for number, bad in enumerate(plan) if bad is not None]


@given(plans("error", "state", "key"), PAYLOADS, MODES)
@example([Bad("error", "str() raises")] * 3, float("nan"), "ordered")
def test_a_stream(plan: list[Bad | None], payload: Any, mode: Any) -> None:
    good, bad = divided(plan)

    async def run(**options: Any) -> list[Any]:
        stream = getattr(AsyncDataStream, f"{mode}_wait")
        return [one async for one in stream(elements_of(plan, payload), Serving(plan), key_by=key_in(plan), **options)]

    letters: list[Any] = []
    assert sorted(asyncio.run(run(on_error="skip"))) == good
    assert sorted(asyncio.run(run(on_error="dead_letter", dead_letters=letters.append))) == good
    assert numbers_in(letters, payload) == bad
    if bad:
        # The error of a key is that of `key_by`, with a note.
        with pytest.raises(KeyGroupsError) as failed:
            asyncio.run(run())
        said = " ".join([str(failed.value), *getattr(failed.value, "__notes__", ())])
        assert "(id " in said
        said.encode()


@given(plans("error", "state", "key", "value", "output"), PAYLOADS, MODES)
@settings(max_examples=10)
def test_a_job(plan: list[Bad | None], payload: Any, mode: Any) -> None:
    good, bad = divided(plan)

    async def run(on_error: Any) -> tuple[list[Any], list[Any]]:
        sink, letters = Epochs(), Epochs()
        step = Step(Serving(plan), "serve", key_by=key_in(plan), mode=mode, on_error=on_error, capacity=3)
        await new_job(elements_of(plan, payload), step, sink, dead_letters=letters, snapshot_interval=0.001).run()
        return sink.values, letters.values

    assert sorted(asyncio.run(run("skip"))[0]) == good
    found, letters = asyncio.run(run("dead_letter"))
    assert (sorted(found), len(letters)) == (good, len(bad))
    if bad:
        with pytest.raises(ElementFailed, match=r"\(id .*@\d+\)") as failed:
            asyncio.run(run("fail"))
        str(failed.value).encode()


class Refusing(Kit):
    """Elements of a host; a value that cannot be read is known to be one."""

    plan: Sequence[Bad | None] = ()

    def operator(self, subtask_index: int, output: Any) -> ResidentOperator:
        options = OperatorOptions(function=self.function, **self.options)
        return ResidentOperator.of(options, output, subtask_info=SubtaskInfo(max_parallelism=4, vet=Unreadable()))

    def decoder(self, epoch: Any) -> Any:
        numbers = count()

        def one(value: Any) -> Any:
            bad = self.plan[value["id"]]
            is_unreadable = bad is not None and bad.place == "value"
            return RefusedValue(str(value["id"]), "it cannot be read") if is_unreadable else value

        return lambda rows: [(one(row), None, f"{epoch}-{next(numbers)}") for row in rows]


@given(plans("error", "state", "key", "value"), PAYLOADS, st.sampled_from(["ordered", "unordered"]))
def test_a_host(plan: list[Bad | None], payload: Any, mode: Any) -> None:
    good, bad = divided(plan)
    letters: list[Any] = []
    options = {"key_by": key_in(plan), "mode": mode, "on_error": "dead_letter", "dead_letters": letters.append}
    kit = Refusing(function=Serving(plan), options=options)  # type: ignore[arg-type]
    kit.plan = plan

    async def test(run: Run) -> None:
        part = await run.epoch(*elements_of(plan, payload), timeout=None)  # type: ignore[arg-type]
        assert sorted(outputs(part)) == good
        await commit(part.snapshot)

    hosted(test, kit)
    unreadable = [int(one.value.text) for one in letters if isinstance(one.value, RefusedValue)]
    others = numbers_in([one for one in letters if not isinstance(one.value, RefusedValue)], payload)
    assert sorted([*unreadable, *others]) == bad


LINES = {"1e999": False, "NaN": False, '"\\ud83d"': False, '"\\ud83d\\ude00"': True, "1e99": True, "9" * 40: True}
"""Fields of a file of JSON, and whether a file of JSON can have them as outputs."""


@given(st.lists(st.sampled_from(sorted(LINES)), min_size=1, max_size=8), st.sampled_from(["skip", "dead_letter"]))
@settings(max_examples=10)
def test_a_job_from_file_to_file(fields: list[str], on_error: Any) -> None:
    async def same(value: Any) -> Any:
        return value

    async def run(folder: Path, on_error: Any) -> Epochs:
        letters = Epochs()
        sink = FileSink(folder / "out", "json", on_error=on_error)
        step = Step(same, "same", on_error=on_error)
        options: dict[str, Any] = {"dead_letters": letters, "snapshots": str(folder / "snapshots")}
        await new_job(FileSource(str(folder / "in.jsonl"), "json", on_error=on_error), step, sink, **options).run()
        return letters

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [f'{{"id": {number}, "of": {field}}}\n' for number, field in enumerate(fields)]
        (folder / "in.jsonl").write_text("".join(lines))
        bad = [number for number, field in enumerate(fields) if not LINES[field]]
        if bad:
            with pytest.raises((MalformedRecord, ElementFailed, UnwritableValue)):
                asyncio.run(run(folder, "fail"))
        letters = asyncio.run(run(folder, on_error))
        files = sorted((folder / "out").glob("*.jsonl"))
        written = [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]
    assert sorted(written) == [number for number in range(len(fields)) if number not in bad]
    assert len(letters.values) == (len(bad) if on_error == "dead_letter" else 0)
