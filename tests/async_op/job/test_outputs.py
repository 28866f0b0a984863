"""What one epoch has for the sinks: in its order, cheap to hold and to write."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from async_op.job import outputs
from async_op.job.outputs import EpochOutputs, values_in
from keygroups.codec import Packed, pack
from snapshots.format.parquet import ParquetEncoder

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=9,
)


@given(runs=st.lists(st.tuples(st.booleans(), st.lists(VALUES, max_size=5)), max_size=9), memory=st.integers(1, 60))
def test_values_come_back_as_they_were_in_their_order(runs: list[tuple[bool, list[Any]]], memory: int) -> None:
    epoch = EpochOutputs()
    with mock.patch.object(outputs, "MEMORY_BYTES", memory):
        for number, (are_letters, values) in enumerate(runs):
            epoch.add(values, are_dead_letters=are_letters)
            if number % 2:
                epoch.spill()

    found = values_in(epoch.tables())
    epoch.close()
    assert found == tuple([one for kind, run in runs if kind == wanted for one in run] for wanted in (False, True))


@given(values=st.lists(VALUES), are_packed=st.lists(st.booleans()))
def test_outputs_that_are_packed_already_are_like_others(values: list[Any], are_packed: list[bool]) -> None:
    epoch = EpochOutputs()
    packed = [Packed(pack(value, "a test")) for value, is_packed in zip(values, are_packed, strict=False) if is_packed]
    rest = [value for value, is_packed in zip(values, are_packed, strict=False) if not is_packed]
    epoch.add([*packed, *rest, *packed], are_dead_letters=False)

    own = [copy.deepcopy(one) for one in packed]
    assert values_in(epoch.tables()) == ([*own, *rest, *own], [])


def test_to_take_outputs_imports_nothing_because_the_event_loop_waits_for_it() -> None:
    taken = "EpochOutputs().add([1, 'a', {'b': (2,)}], are_dead_letters=False)"
    program = f"from async_op.job.outputs import EpochOutputs; import sys; before = set(sys.modules); {taken}; "
    subprocess.run([sys.executable, "-c", program + "assert set(sys.modules) == before"], check=True)


def test_a_file_has_no_dictionary_of_outputs() -> None:
    epoch = EpochOutputs()
    epoch.add(range(10_000), are_dead_letters=False)
    encoder = ParquetEncoder(outputs.OUTPUT_SCHEMA)
    encoder.write(epoch.table())

    group = pq.read_metadata(encoder.finish({"path": "a"}).data).row_group(0)
    assert not any(group.column(index).has_dictionary_page for index in range(group.num_columns))
