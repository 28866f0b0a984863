"""Records that a source cannot decode, and sources that fail for a while."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from async_op import FixedDelayRetry, letter_value
from async_op.connectors import ConnectorUnavailable, FileSource, Reached, Source, Undecodable
from keygroups import ConfigError
from tests.async_op.job.kit import Epochs, new_job, same
from tests.async_op.job.virtual_job_loop import in_virtual_time
from tests.quick import first_are_quick


class Bad(Source[Any]):
    """Numbers; those that a test names cannot be decoded."""

    bounded = True

    def __init__(self, count: int, bad: set[int], on_error: Any = "fail", breaks_at: int | None = None) -> None:
        self.on_error = on_error
        self._count = count
        self._bad = bad
        self.breaks_at = breaks_at

    def partitions(self) -> list[str]:
        return ["a"]

    def read(self, partition: Any, position: Any) -> Iterator[Any]:
        for number in range(position or 0, self._count):
            if number == self.breaks_at:
                raise ValueError("the power is gone")
            if number in self._bad:
                yield [Undecodable(b"\xff%d" % number, number + 1, ValueError(f"a, number {number}: no number"))]
            else:
                yield number, None, number + 1


async def test_a_record_that_cannot_be_decoded_fails_the_job_by_default() -> None:
    sink = Epochs()
    with pytest.raises(ValueError, match="a, number 2: no number"):
        await new_job(Bad(5, {2}), same, sink).run()


async def test_it_may_be_skipped_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    sink = Epochs()
    await new_job(Bad(30, set(range(5, 20)), "skip"), same, sink).run()
    assert sink.values == [*range(5), *range(20, 30)]
    told = [record.getMessage() for record in caplog.records if "could not be decoded" in record.getMessage()]
    assert [message.split()[0] for message in told] == ["1", "10"]
    assert "a, number 5: no number" in told[0]


async def test_it_may_become_a_dead_letter_exactly_once() -> None:
    sink, letters, place = Epochs(), Epochs(), f"memory://{uuid.uuid4().hex}"
    source = Bad(9, {2, 3, 7}, "dead_letter", breaks_at=5)
    with pytest.raises(ValueError, match="power"):
        await new_job(source, same, sink, dead_letters=letters, snapshots=place, snapshot_interval=0.001).run()
    source.breaks_at = None
    for _ in range(2):
        await new_job(source, same, sink, dead_letters=letters, snapshots=place).run()
    assert sink.values == [0, 1, 4, 5, 6, 8]
    assert [letter_value(letter) for letter in letters.values] == [b"\xff2", b"\xff3", b"\xff7"]
    assert {(letter["step"], letter["attempts"], letter["error_type"]) for letter in letters.values} == {
        ("source", 0, "ValueError")
    }
    assert [letter["idempotency_key"].partition("/")[2] for letter in letters.values] == [
        "source/a@3",
        "source/a@4",
        "source/a@8",
    ]


def test_dead_letters_of_a_source_need_a_sink() -> None:
    with pytest.raises(ConfigError, match="'source' has on_error='dead_letter'"):
        new_job(Bad(1, set(), "dead_letter"), same, Epochs())


async def test_a_file_with_bad_records_gives_all_others(tmp_path: Any) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'1\n"\xff"\n' + b"[" * 100_000 + b"\n2\n")
    sink, letters = Epochs(), Epochs()
    source = FileSource(tmp_path / "*", "json", on_error="dead_letter")
    await new_job(source, same, sink, dead_letters=letters).run()
    assert sink.values == [1, 2]
    assert [letter["error_message"].split(":")[0] for letter in letters.values] == [
        f"{tmp_path}/x.jsonl, position {position}" for position in (2, 6)
    ]


class Flaky(Source[Any]):
    """Answers only after a number of failures, wherever it is asked."""

    bounded = True

    def __init__(self, failures: int, error: Exception, retry: Any = None) -> None:
        self.failures = dict.fromkeys(("open", "partitions", "read"), failures)
        self.error = error
        if retry is not None:
            self.retry = retry

    def _fail(self, what: str) -> None:
        if self.failures[what]:
            self.failures[what] -= 1
            raise self.error

    async def open(self) -> None:
        self._fail("open")

    def partitions(self) -> list[str]:
        self._fail("partitions")
        return ["a"]

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        for number in range(position or 0, 6):
            if number == 3:
                self._fail("read")
            yield number, None, number + 1


def test_a_source_that_is_away_for_a_while_is_asked_again() -> None:
    async def run() -> None:
        sink = Epochs()
        await new_job(Flaky(7, ConnectionError("broken pipe")), same, sink).run()
        assert sink.values == list(range(6))

    in_virtual_time(run())


@pytest.mark.parametrize("what", ["open", "partitions", "read"])
def test_attempts_have_a_bound_and_the_error_names_what_failed(what: str) -> None:
    async def run() -> None:
        source = Flaky(0, TimeoutError("no answer"), FixedDelayRetry(3, 1.0))
        source.failures[what] = 3
        with pytest.raises(ConnectorUnavailable, match="3 times.*no answer") as raised:
            await new_job(source, same, Epochs()).run()
        assert "Flaky" in raised.value.what
        assert ("'a'" in raised.value.what) == (what == "read")

    in_virtual_time(run())


def test_what_is_not_transient_is_raised_at_once_unless_the_policy_names_it() -> None:
    async def run() -> None:
        source = Flaky(0, LookupError("no such thing"))
        source.failures["read"] = 1
        with pytest.raises(LookupError) as raised:
            await new_job(source, same, Epochs()).run()
        assert raised.value.__notes__ == ["reading partition 'a' of Flaky raised this"]
        source = Flaky(1, LookupError("no such thing"), FixedDelayRetry(2, 1.0, retry_on=LookupError))
        await new_job(source, same, sink := Epochs()).run()
        assert sink.values == list(range(6))

    in_virtual_time(run())


class Remembering(Bad):
    """Says what it has read, and looks at it when it is restored."""

    def __init__(self, count: int) -> None:
        super().__init__(count, set())
        self.restored: Any = None

    async def restore(self, known: Any) -> None:
        self.restored = known

    def read(self, partition: Any, position: Any) -> Iterator[Any]:
        for item in super().read(partition, position):
            yield item
            yield Reached(item[2], {"digest": item[2]})


async def test_the_content_stands_beside_the_position() -> None:
    place = f"memory://{uuid.uuid4().hex}"
    await new_job(first := Remembering(4), same, Epochs(), snapshots=place).run()
    await new_job(second := Remembering(6), same, sink := Epochs(), snapshots=place, parallelism=2).run()
    assert (first.restored, second.restored) == (None, {"a": Reached(4, {"digest": 4})})
    assert sink.values == [4, 5]


class Rough(Source[Any]):
    """Partitions with bad records, whose reads break off now and then, and that say what they have read."""

    bounded = True
    on_error: Any = "dead_letter"

    def __init__(self, seed: int, is_asynchronous: bool) -> None:
        self._draw = random.Random(seed)
        self.partition_bad = {f"p{n}": {k for k in range(30) if self._draw.random() < 0.2} for n in range(3)}
        self._is_asynchronous = is_asynchronous
        self.crashes = self._draw.randrange(4)

    async def restore(self, known: Any) -> None:
        for one in known.values():
            assert one.content is None or one.content <= one.position, "a content is beyond its position"

    def partitions(self) -> list[str]:
        if self._draw.random() < 0.3:
            raise TimeoutError("no answer")
        return list(self.partition_bad)

    def read(self, partition: Any, position: Any) -> Any:
        items = self._items(partition, position or 0)
        return stream(items) if self._is_asynchronous else items

    def _items(self, partition: str, position: int) -> Iterator[Any]:
        block: list[Any] = []
        for number in range(position, 30):
            if self._draw.random() < 0.05:
                if self.crashes and self._draw.random() < 0.5:
                    self.crashes -= 1
                    raise ValueError("a crash")
                raise ConnectionError("broken off")
            bad = number in self.partition_bad[partition]
            error = ValueError(f"{partition}, {number}")
            block.append(
                Undecodable([partition, number], number + 1, error, number + 1 if self._draw.random() < 0.5 else None)
                if bad
                else ([partition, number], None, number + 1)
            )
            if self._draw.random() < 0.5:
                yield block if self._draw.random() < 0.5 or len(block) != 1 else block[0]
                block = []
                if self._draw.random() < 0.5:
                    yield Reached(number + 1, number + 1)
        if block:
            yield block


async def stream(items: Iterator[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("seed", first_are_quick(2, range(20)))
def test_whatever_a_source_gives_each_record_is_an_output_or_a_dead_letter_once(
    seed: int, is_asynchronous: bool
) -> None:
    async def run() -> None:
        draw, sink, letters, place = random.Random(-seed), Epochs(), Epochs(), f"memory://{uuid.uuid4().hex}"
        source = Rough(seed, is_asynchronous)
        for _ in range(10):
            try:
                await new_job(
                    source,
                    same,
                    sink,
                    dead_letters=letters,
                    snapshots=place,
                    parallelism=draw.randint(1, 3),
                    snapshot_interval=draw.choice([0.001, 1.0]),
                ).run()
                break
            except ValueError as error:
                assert str(error) == "a crash"
        good = [[name, n] for name, bad in source.partition_bad.items() for n in range(30) if n not in bad]
        assert sorted(sink.values) == good
        buried = [[name, n] for name, bad in source.partition_bad.items() for n in sorted(bad)]
        assert sorted(map(letter_value, letters.values)) == buried

    in_virtual_time(run())


async def test_a_map_in_parquet_with_a_key_twice_is_one_rows_fault(tmp_path: Path) -> None:
    pairs = [[("a", 1)], [("secret", 1), ("secret", 2)], [("b", 1)]]
    parquet.write_table(pa.table({"m": pa.array(pairs, pa.map_(pa.string(), pa.int64()))}), tmp_path / "x.parquet")
    source = FileSource(str(tmp_path / "*.parquet"), "parquet", on_error="dead_letter")
    await new_job(source, same, sink := Epochs(), dead_letters=(letters := Epochs())).run()
    assert sink.values == [{"m": {"a": 1}}, {"m": {"b": 1}}]
    (letter,) = letters.values
    assert letter_value(letter) == {"m": pairs[1]}
    assert "x.parquet, position 1: column 'm'" in letter["error_message"]
    assert "a map has a key twice" in letter["error_message"]
    assert "secret" not in letter["error_message"]
