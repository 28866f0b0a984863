"""Sinks that fail for a while, refuse outputs, or are gone: in a job, by `retry` and `on_error` of the sink."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import shutil
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_op import FixedDelayRetry, Job, LetterWithoutValue, RetryAfter, Step
from async_op.connectors import (
    FileSink,
    FileSource,
    Sink,
    SinkUnavailable,
    TargetMissing,
    UnwritableValue,
)
from async_op.dead_letters import letter_key, letter_value
from async_op.testing import run
from keygroups import ConfigError
from snapshots.format.sink_notes import SinkNotes
from tests.async_op.job import kit
from tests.async_op.job.kit import Epochs, same

# All of a job is one epoch, however slow the machine is.
new_job = partial(kit.new_job, **kit.AT_ITS_END)


class Away(Epochs):
    """A sink whose target is away for so many attempts."""

    def __init__(self, attempts: int, error: Callable[[], Exception] = ConnectionError) -> None:
        super().__init__()
        self.left = attempts
        self.error = error
        self.retry = FixedDelayRetry(4, 0.0)

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        self.left -= 1
        if self.left >= 0:
            raise self.error()
        await super().write(values, epoch)


class AwayAtTheStart(Away):
    async def open(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise self.error()


class NoThrees(Epochs):
    """A sink that can write no multiple of three, and says so of one at a time."""

    def __init__(self, on_error: Any) -> None:
        super().__init__()
        self.on_error = on_error

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        for index, value in enumerate(values):
            if value % 3 == 0:
                raise UnwritableValue(value, "it is a multiple of three", index=index)
        await super().write(values, epoch)


class NoThreesAtOnce(NoThrees):
    async def refused(self, values: Sequence[Any]) -> list[UnwritableValue]:
        return [UnwritableValue(value, "3", index=index) for index, value in enumerate(values) if value % 3 == 0]


@pytest.mark.parametrize("kind", [Away, AwayAtTheStart])
@pytest.mark.parametrize("error", [ConnectionError, TimeoutError])
async def test_a_sink_that_is_away_for_a_while_is_retried(
    kind: type[Away], error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    sink = kind(3, error)
    with caplog.at_level(logging.WARNING, "async_op"):
        await new_job([1, 2], same, sink).run()
    assert sorted(sink.values) == [1, 2]
    said = [record.getMessage() for record in caplog.records if "is retried" in record.getMessage()]
    assert len(said) == 3
    assert "attempt 2" in said[1]
    assert kind.__name__ in said[1]


class Draining(Away):
    """A sink that takes what it writes out of its list, changes it, and fails when it is half through."""

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        assert isinstance(values, list)
        taken: list[Any] = []
        while values:
            taken.append(values.pop(0))
            taken[-1]["written"] = "written" not in taken[-1]
            self.left -= len(taken) == 2
            if len(taken) == 2 and self.left >= 0:
                raise self.error()
        await Epochs.write(self, taken, epoch)


async def test_each_attempt_of_a_sink_gets_all_outputs_as_they_were() -> None:
    sink = Draining(3)
    await new_job([{"number": number} for number in (1, 2, 3)], same, sink).run()
    assert sink.values == [{"number": number, "written": True} for number in (1, 2, 3)]


async def test_each_attempt_of_a_sink_of_dead_letters_gets_all_of_them_as_they_were() -> None:
    letters = Draining(3)
    await new_job([1, 2, 3], Step(unwanted, on_error="dead_letter"), Epochs(), dead_letters=letters).run()
    assert [letter["written"] for letter in letters.values] == [True] * 3


async def unwanted(value: Any) -> Any:
    raise LookupError(value)


class Changing(NoThrees):
    """Changes outputs before it refuses one."""

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        assert isinstance(values, list)
        numbers = [value.pop("number") for value in values]
        values.clear()
        await super().write(numbers, epoch)


async def test_what_a_sink_does_to_outputs_before_it_refuses_one_is_forgotten() -> None:
    outputs = [{"number": number} for number in (1, 2, 3, 4, 6)]
    sink, letters = Changing("dead_letter"), Epochs()
    await new_job(outputs, same, sink, dead_letters=letters).run()
    assert sink.values == [1, 2, 4]
    assert [letter_value(letter) for letter in letters.values] == [{"number": 3}, {"number": 6}]


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
@pytest.mark.parametrize("index", [3, 99, -1, "2", 2.0])
async def test_an_index_of_no_output_fails_the_job_and_leaves_out_nothing(on_error: Any, index: Any) -> None:
    """It would be refused again and again, or another output would be left out."""

    class Miscounting(Epochs):
        async def write(self, values: Sequence[Any], epoch: int) -> None:
            self.writes.append(len(values))
            assert len(self.writes) < 9, "it is asked for ever"
            raise UnwritableValue(None, "it is miscounted", index=index)

    sink, letters = Miscounting(), Epochs()
    sink.on_error = on_error
    with pytest.raises(UnwritableValue, match="miscounted") as raised:
        await new_job([1, 2, 4], same, sink, dead_letters=letters).run()
    assert "names no output" in "".join(raised.value.__notes__)
    assert (sink.writes, letters.values) == ([3], [])


async def test_an_index_may_be_an_integer_of_any_kind() -> None:
    class OfNumpy(NoThrees):
        async def write(self, values: Sequence[Any], epoch: int) -> None:
            try:
                await super().write(values, epoch)
            except UnwritableValue as error:
                error.index = np.int64(error.index)  # type: ignore[arg-type, assignment]
                raise

    sink, letters = OfNumpy("dead_letter"), Epochs()
    await new_job([1, 2, 3, 4, 6], same, sink, dead_letters=letters).run()
    assert (sink.values, [letter_value(letter) for letter in letters.values]) == ([1, 2, 4], [3, 6])


async def test_an_exception_group_of_a_sink_is_looked_into() -> None:
    """A sink that writes with a task group raises one."""

    class Grouped(NoThrees):
        left = 2

        async def write(self, values: Sequence[Any], epoch: int) -> None:
            self.left -= 1
            error = ConnectionError() if self.left % 2 else RetryAfter(0.0)
            async with asyncio.TaskGroup() as group:
                if self.left >= 0:
                    group.create_task(fail_with(error))
                group.create_task(super().write(values, epoch))

    sink = Grouped("skip")
    sink.retry = FixedDelayRetry(3, 0.0)
    await new_job([1, 2, 3, 6], same, sink).run()
    assert sink.values == [1, 2]

    mixed = Away(1, lambda: ExceptionGroup("two", [ConnectionError(), KeyError()]))
    with pytest.raises(ExceptionGroup, match="two"):
        await new_job([1], same, mixed).run()


async def fail_with(error: Exception) -> None:
    await asyncio.sleep(0)  # Python 3.12 leaves a cancellation behind if an eager task fails before the group waits
    raise error


async def test_a_sink_that_stays_away_is_named_with_its_epoch_and_the_next_start_delivers() -> None:
    snapshots = f"memory://{uuid.uuid4().hex}"
    with pytest.raises(SinkUnavailable) as raised:
        await new_job([1, 2], same, Away(100), snapshots=snapshots).run()
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.sink, error.epoch, error.attempts) == ("Away()", 1, 4)
    assert "ConnectionError" in error.reason

    sink = Epochs()
    await new_job([1, 2], same, sink, snapshots=snapshots).run()
    assert sorted(sink.values) == [1, 2]


async def test_without_retry_there_is_one_attempt() -> None:
    sink = Away(1)
    sink.retry = None
    with pytest.raises(SinkUnavailable) as raised:
        await new_job([1], same, sink).run()
    assert raised.value.attempts == 1


async def test_an_error_that_does_not_pass_is_raised_as_it_is_with_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        await new_job([1], same, Away(1, ZeroDivisionError)).run()
    assert raised.value.__notes__ == ["writing epoch 1 to Away() raised this"]


async def test_the_errors_that_a_policy_names_are_retried() -> None:
    sink = Away(3, ZeroDivisionError)
    sink.retry = FixedDelayRetry(4, 0.0, retry_on=ZeroDivisionError)
    await new_job([1], same, sink).run()
    assert sink.values == [1]


def test_by_default_a_sink_may_be_away_for_a_minute() -> None:
    class Slow(Away):
        retry = Sink.retry

        def __init__(self) -> None:
            Epochs.__init__(self)
            self.until = 45.0

        async def write(self, values: Sequence[Any], epoch: int) -> None:
            if asyncio.get_running_loop().time() < self.until:
                raise ConnectionError("the broker is away")
            await Epochs.write(self, values, epoch)

    sinks: list[Slow] = []

    async def main() -> None:
        sinks.append(sink := Slow())
        sink.until += asyncio.get_running_loop().time()
        await new_job([1], same, sink).run()

    for _ in range(5):  # delays are drawn at random
        run(main())
    assert [sink.values for sink in sinks] == [[1]] * 5


async def test_a_stop_at_a_cut_waits_for_no_further_attempt() -> None:
    sink = Away(100)
    sink.retry = FixedDelayRetry(100, 3600.0)
    job = new_job([1], same, sink)
    task = asyncio.create_task(job.run())
    while sink.left == 100:
        await asyncio.sleep(0)
    job.stop(drain=False)
    with pytest.raises(SinkUnavailable):
        await task


async def test_a_job_that_is_cancelled_between_attempts_ends_at_once() -> None:
    sink = Away(100)
    sink.retry = FixedDelayRetry(100, 3600.0)
    task = asyncio.create_task(new_job([1], same, sink).run())
    while sink.left == 100:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("kind", [NoThrees, NoThreesAtOnce])
async def test_refused_outputs_fail_the_job_or_are_left_out_or_become_dead_letters(kind: type[NoThrees]) -> None:
    with pytest.raises(UnwritableValue) as raised:
        await new_job([1, 2, 3, 4, 6], same, kind("fail")).run()
    assert (raised.value.index, raised.value.epoch) == (2, 1)

    skipping = new_job([1, 2, 3, 4, 6], same, sink := kind("skip"))
    await skipping.run()
    assert (sink.values, skipping.progress().refused) == ([1, 2, 4], 2)

    burying = new_job([1, 2, 3, 4, 6], same, sink := kind("dead_letter"), dead_letters=(letters := Epochs()))
    await burying.run()
    assert (sink.values, burying.progress().refused) == ([1, 2, 4], 2)
    assert [letter_value(letter) for letter in letters.values] == [3, 6]
    assert {letter["error_type"] for letter in letters.values} == {"UnwritableValue"}
    assert set(letters.epochs) == set(sink.epochs)


async def test_an_epoch_of_which_everything_is_refused_is_not_written() -> None:
    await new_job([3, 6], same, sink := NoThrees("dead_letter"), dead_letters=(letters := Epochs())).run()
    assert (sink.writes, [letter_value(letter) for letter in letters.values]) == ([], [3, 6])


@pytest.mark.parametrize("place", ["before the note", "after the note", "after the outputs", "after the letters"])
async def test_refused_outputs_are_dead_letters_once_wherever_a_job_stops(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the sink refuses other outputs after the restart, what was noted counts."""
    snapshots, threes = f"memory://{uuid.uuid4().hex}", {3, 6}
    written: dict[int, list[Any]] = {}
    buried: dict[int, list[Any]] = {}

    class Choosy(Sink[Any]):
        on_error = "dead_letter"

        async def write(self, values: Sequence[Any], epoch: int) -> None:
            if epoch in written:
                return  # as tables do
            for index, value in enumerate(values):
                if value in threes:
                    raise UnwritableValue(value, "no", index=index)
            written[epoch] = list(values)
            if place == "after the outputs":
                raise RuntimeError("killed")

    class Letters(Sink[Any]):
        async def write(self, values: Sequence[Any], epoch: int) -> None:
            buried.setdefault(epoch, [letter_value(letter) for letter in values])
            if place == "after the letters":
                raise RuntimeError("killed")

    note = SinkNotes.note_refused

    def killed(self: Any, *arguments: Any) -> None:
        if place == "after the note":
            note(self, *arguments)
        raise RuntimeError("killed")

    def job() -> Job:
        return new_job([1, 2, 3, 4, 6], same, Choosy(), dead_letters=Letters(), snapshots=snapshots)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        if "note" in place:
            patch.setattr(SinkNotes, "note_refused", killed)
        await job().run()
    stopped, place = place, ""
    if stopped != "before the note":
        threes.discard(6)
        threes.discard(3)
    await job().run()

    kept = [value for values in written.values() for value in values]
    lost = [value for values in buried.values() for value in values]
    assert sorted(kept + lost) == [1, 2, 3, 4, 6]
    assert 3 in lost


class Narrow(Epochs):
    """A sink of dead letters whose columns take so many characters."""

    def __init__(self, most: int, on_error: Any = "fail") -> None:
        super().__init__()
        self.most = most
        self.on_error = on_error
        self.columns: tuple[str, ...] = ("value", "key", "error_message", "error_traceback")

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        for index, letter in enumerate(values):
            if any(len(letter[name] or "") > self.most for name in self.columns):
                raise UnwritableValue(letter, "it is too long", index=index)
        await super().write(values, epoch)


async def fail_at_length(value: str) -> None:
    raise ValueError(value)


@pytest.mark.parametrize(("most", "kept"), [(300_000, 262_144), (2_000, 1_024)])
async def test_a_dead_letter_that_its_sink_refuses_is_cut_and_says_how_long_it_was(most: int, kept: int) -> None:
    letters = Narrow(most)
    step = Step(fail_at_length, key_by=lambda value: value, on_error="dead_letter")
    await new_job(["short", "x" * 1_000_000, "y" * 1_000_000], step, Epochs(), dead_letters=letters).run()
    by_value = {letter["value"][1]: letter for letter in letters.values}
    assert letter_value(by_value["s"]) == "short"
    for name in ("x", "y"):
        cut = by_value[name]
        assert (cut["value"], cut["value_encoding"]) == (f'"{name * (kept - 1)}… (1,000,002 characters)', "cut")
        assert letter_key(cut) == cut["value"]
        with pytest.raises(LetterWithoutValue, match="was cut"):
            letter_value(cut)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_a_dead_letter_that_cannot_be_cut_any_more_is_handled_by_on_error(on_error: Any) -> None:
    letters = Narrow(100, on_error)
    letters.columns = ("value",)
    step = Step(fail_at_length, on_error="dead_letter")
    job = new_job(["short", "x" * 3000], step, Epochs(), dead_letters=letters)
    if on_error == "fail":
        with pytest.raises(UnwritableValue, match="too long"):
            await job.run()
        return
    await job.run()
    assert [letter_value(letter) for letter in letters.values] == ["short"]
    assert job.progress().refused == 1


async def test_a_file_sink_leaves_out_what_its_format_lacks(tmp_path: Path) -> None:
    values = [{"n": 1}, {"n": {1, 2}}, {"n": float("nan")}, {"n": 2}]
    sink = FileSink(tmp_path / "out", "json", on_error="skip")
    job = new_job(values, same, sink)
    await job.run()
    (file,) = (tmp_path / "out").glob("*.jsonl")
    assert [json.loads(line)["n"] for line in file.read_text().splitlines()] == [1, 2]
    assert job.progress().refused == 2

    with pytest.raises(UnwritableValue) as raised:
        await new_job(values, same, FileSink(tmp_path / "other", "json")).run()
    assert (raised.value.index, raised.value.epoch) == (1, 1)


async def test_a_folder_that_was_removed_is_not_recreated(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1\n2\n")

    def job() -> Job:
        source = FileSource(str(tmp_path / "in" / "*"), "json")
        return new_job(source, same, FileSink(tmp_path / "out", "json"), snapshots=str(tmp_path / "s"))

    await job().run()
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "in" / "b").write_text("3\n")
    with pytest.raises(TargetMissing, match="written to it before") as raised:
        await job().run()
    assert pickle.loads(pickle.dumps(raised.value)).was_there
    (tmp_path / "out").mkdir()
    await job().run()
    assert [file.read_text() for file in (tmp_path / "out").glob("*.jsonl")] == ["3\n"]


def test_wrong_options_of_a_sink_are_refused(tmp_path: Path) -> None:
    for options in ({"on_error": "ignore"}, {"retry": 3}, {"dead_letters": print}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            FileSink(tmp_path, "json", **options)
    with pytest.raises(ConfigError, match="on_error='dead_letter'"):
        new_job([1], same, FileSink(tmp_path, "json", on_error="dead_letter"))
    with pytest.raises(ConfigError, match="'fail' or 'skip'"):
        new_job([1], same, Epochs(), dead_letters=FileSink(tmp_path, "json", on_error="dead_letter"))
    other = FileSink(tmp_path, "json", on_error="dead_letter", dead_letters=Epochs())
    with pytest.raises(ConfigError, match="the job only"):
        new_job([1], same, other, dead_letters=Epochs())
    new_job([1], same, other)
