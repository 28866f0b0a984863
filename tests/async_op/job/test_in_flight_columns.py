"""What is in flight in a job are columns: of a declared type, or of one that all values of a subtask have."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pyarrow as pa
import pytest

from async_op import Step
from keygroups import ConfigError
from snapshots import SnapshotStore
from snapshots.format.columns import is_packed
from tests.async_op.job.kit import Epochs, Gated, Log, new_job, running, same

ROW = pa.struct([("user", pa.string()), ("n", pa.int64())])


OPTIONS = {"snapshot_interval": 1000.0, "parallelism": 1}


async def cut_and_restored(values: list[Any], value_type: pa.DataType | None = None) -> tuple[pa.Table, list[Any]]:
    """Return what is in flight when a job is stopped, and the values with which calls are made again."""
    uri, log, gated, again = f"memory://{uuid.uuid4().hex}", Log(values), Gated(), Gated()
    for function in (gated, again):
        step = Step(function, name="hold", value_type=value_type, capacity=len(values))
        job = new_job(log, step, Epochs(), snapshots=uri, **OPTIONS)
        async with running(job):
            while len(function.called) < len(values):
                function.arrived.clear()
                await function.arrived.wait()
    store = SnapshotStore(uri, "job")
    return await asyncio.to_thread(lambda: store.load(1).in_flight(step="hold")), again.called


async def test_values_of_one_type_are_columns() -> None:
    values = [{"user": "ann", "n": 1}, {"user": "bob", "n": None}]
    elements, again = await cut_and_restored(values)
    assert elements.schema.field("value").type == ROW
    assert elements.column("value").to_pylist() == again == values


async def test_values_of_several_types_are_msgpack() -> None:
    values = [{"user": "ann", "n": 1}, {"user": "bob"}, ("ann", 1), bytearray(b"a"), 2**70]
    elements, again = await cut_and_restored(values)
    assert is_packed(elements.schema.field("value"))
    assert [*map(repr, again)] == [*map(repr, values)]


async def test_of_a_declared_type_only_what_does_not_fit_is_msgpack() -> None:
    values = [{"user": "ann", "n": 1}, {"user": "bob"}, {"user": "cid", "n": 1.0}]
    elements, again = await cut_and_restored(values, ROW)
    assert elements.column("value").to_pylist() == [values[0], None, None]
    assert [*map(repr, again)] == [*map(repr, values)]


@pytest.mark.parametrize("value_type", ["string", pa.dictionary(pa.int32(), pa.string()), pa.struct([])])
def test_a_type_that_no_column_has_is_refused(value_type: Any) -> None:
    with pytest.raises(ConfigError, match="value_type"):
        Step(same, value_type=value_type)
