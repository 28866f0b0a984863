"""Rows that a decoder of this package has made: a flat one is copied for its call without a look at what is in it."""

from __future__ import annotations

import json
from gc import is_tracked
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_op import FixedDelayRetry, Step
from async_op.calls import workers
from async_op.connectors import FileSource
from async_op.connectors.arrow_input import rows_of
from keygroups.state.detached import are_immutable
from tests.async_op.connectors.files.test_text import JSON, read
from tests.async_op.job.kit import Epochs, new_job, same
from tests.doors.values import PLAIN

FLAT: list[Any] = [{"n": n, "name": "é", "price": 1.5, "none": None, "ok": True} for n in range(20)]
NESTED: list[Any] = [{"n": n, "tags": ["new"], "of": {"a": [1]}} for n in range(20)]
LEAVES_DICTS_ALONE = pytest.mark.skipif(is_tracked({}), reason="this Python tracks each dict")


def are_plain_if_untracked(row: Any) -> bool:
    return type(row) is not dict or is_tracked(row) or are_immutable(map(type, row.values()))


@given(rows=st.lists(JSON, max_size=4))
def test_a_row_of_json_that_the_collector_does_not_track_holds_nothing_that_can_change(rows: list[Any]) -> None:
    items = read("".join(json.dumps(row) + "\n" for row in rows).encode(), "json")
    assert all(are_plain_if_untracked(item[0]) for item in items)


@pytest.mark.parametrize("type_", PLAIN, ids=str)
def test_a_row_of_arrow_that_the_collector_does_not_track_holds_nothing_that_can_change(type_: pa.DataType) -> None:
    values = [value for value in PLAIN[type_] if not pa.types.is_nested(type_) or value is not None]
    batch = pa.record_batch([pa.array([*values, None], type_)], names=["v"])
    assert all(map(are_plain_if_untracked, rows_of(batch)))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked about the types in dicts."""
    found: list[Any] = []

    def counted(types: Any) -> bool:
        found.append(types := list(types))
        return are_immutable(types)

    monkeypatch.setattr(workers, "are_immutable", counted)
    return found


def written(folder: Path, rows: list[Any]) -> Path:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


@LEAVES_DICTS_ALONE
async def test_only_rows_that_may_hold_what_can_change_are_looked_at(tmp_path: Path, looks: list[Any]) -> None:
    await new_job(FileSource(written(tmp_path, FLAT), "json"), same, Epochs()).run()
    assert looks == []
    await new_job(FLAT, same, Epochs()).run()
    assert len(looks) == len(FLAT)
    await new_job(FileSource(written(tmp_path, NESTED), "json"), same, Epochs()).run()
    assert len(looks) == len(FLAT) + len(NESTED)


@pytest.mark.parametrize("rows", [FLAT, NESTED], ids=["flat", "nested"])
async def test_each_attempt_gets_a_decoded_row_as_it_was_read(tmp_path: Path, rows: list[Any]) -> None:
    seen: list[str] = []

    async def spoil(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        seen.append(json.dumps(row))
        row["n"] = row["more"] = -1
        row.get("of", {}).clear()
        row.get("tags", []).append("old")
        if ctx.attempt < 3:
            raise ValueError
        return row

    step = Step(spoil, name="spoil", retry=FixedDelayRetry(3, 0))
    await new_job(FileSource(written(tmp_path, rows), "json"), step, Epochs()).run()
    assert sorted(seen) == sorted(map(json.dumps, rows * 3))


async def to_bytes(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": bytearray([row["n"]])}


@pytest.mark.parametrize("is_from_a_step", [False, True])
async def test_a_bytearray_which_the_collector_does_not_track_is_copied(tmp_path: Path, is_from_a_step: bool) -> None:
    seen: list[bytes] = []

    async def spoil(row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        seen.append(bytes(row["n"]))
        row["n"].append(0)
        if ctx.attempt < 3:
            raise ValueError
        return row

    step = Step(spoil, name="spoil", retry=FixedDelayRetry(3, 0))
    rows = [{"n": bytearray([n])} for n in range(20)]
    if is_from_a_step:
        await new_job(FileSource(written(tmp_path, FLAT), "json"), [to_bytes, step], Epochs()).run()
    else:
        await new_job(rows, step, Epochs()).run()
    assert sorted(seen) == sorted([bytes([n]) for n in range(20)] * 3)


def test_what_a_subclass_reads_and_types_that_are_registered_with_arrow_are_not_known() -> None:
    class Other(FileSource):
        def read(self, partition: Any, position: Any) -> Any:
            return super().read(partition, position)

    assert FileSource("x", "csv").is_decoded
    assert not Other("x", "csv").is_decoded
    assert not FileSource("x", "parquet").is_decoded
