"""What a job takes as a source, and what it refuses."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from keygroups import ConfigError
from tests.async_op.job.kit import Epochs, new_job, same

TABLE = pa.table({"user": ["ann", "bob", "cid"], "n": [1, 2, 3]})
FRAMES: list[Callable[[], Any]] = [lambda: TABLE, TABLE.to_pandas, TABLE.to_reader]


@pytest.mark.parametrize("make", FRAMES, ids=["table", "pandas", "reader"])
async def test_the_rows_of_frames_and_tables_are_the_elements(make: Callable[[], Any]) -> None:
    sink = Epochs()
    await new_job(make(), same, sink).run()
    assert sink.values == TABLE.to_pylist()


async def test_a_frame_is_read_on_where_the_snapshot_says() -> None:
    sink, place = Epochs(), f"memory://{uuid.uuid4().hex}"
    await new_job(TABLE.slice(0, 2), same, sink, snapshots=place).run()
    await new_job(TABLE.to_pandas(), same, sink, snapshots=place).run()
    assert sink.values == TABLE.to_pylist()


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"a": 1}, "items"),
        ({"b", "a"}, "sorted"),
        (frozenset("ab"), "sorted"),
        ({"a": 1}.keys(), "sorted"),
        (bytearray(b"ab"), "iterable"),
    ],
    ids=["dict", "set", "frozenset", "keys", "bytearray"],
)
def test_what_would_be_read_by_its_parts_or_in_no_order_is_refused(source: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        new_job(source, same, Epochs())
    assert caught.value.name == "source"


async def test_the_values_of_a_dict_have_an_order() -> None:
    sink = Epochs()
    await new_job({"a": 1, "b": 2}.values(), same, sink).run()
    assert sink.values == [1, 2]
