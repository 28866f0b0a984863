"""Whatever door a value leaves by, it comes back equal, or is refused with its column and row: never a third thing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends import ON_DISK
from tests.doors import doors, values
from tests.doors.check import check
from tests.doors.doors import Door, Refusal
from tests.examples import scaled

DOORS: dict[str, Door] = {
    **{
        f"state: {kind}, {where}, {'typed' if is_typed else 'untyped'}": doors.StateDoor(
            kind, backend, is_typed=is_typed
        )
        for kind, where, backend in [
            ("value", "memory", "memory"),
            ("value", "disk", ON_DISK),
            ("list", "disk", ON_DISK),
            ("map", "memory", "memory"),
        ]
        for is_typed in (True, False)
    },
    "bootstrap: value, typed": doors.BootstrapDoor("value", is_typed=True),
    "bootstrap: list, untyped": doors.BootstrapDoor("list", is_typed=False),
    "bootstrap: map, typed": doors.BootstrapDoor("map", is_typed=True),
    **{
        f"export: {ending}, {'typed' if is_typed else 'untyped'}": doors.ExportDoor(ending, is_typed=is_typed)
        for ending in ("parquet", "arrow", "csv", "jsonl")
        for is_typed in (True, False)
    },
    "in flight": doors.InFlightDoor(),
    "outputs in flight": doors.OutputsDoor(),
    "JSON files": doors.FileDoor("json"),
    "CSV files": doors.FileDoor("csv"),
    "Parquet files with a schema": doors.FileDoor("parquet", has_schema=True),
    "Parquet files without a schema": doors.FileDoor("parquet"),
    "Delta": doors.DeltaDoor(),
}


@pytest.fixture(scope="module", params=[*DOORS, "Iceberg", "PostgreSQL"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Door:
    match request.param:
        case "Iceberg":
            return doors.IcebergDoor(tmp_path_factory.mktemp("iceberg"))
        case "PostgreSQL":
            return doors.PostgresDoor(request.getfixturevalue("server"))
        case name:
            return DOORS[name]


@given(data=st.data())
@settings(max_examples=scaled(40))
def test_it_comes_back_equal_or_is_refused(door: Door, data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(door.plain)), "type")
    check(door, type_, data.draw(st.lists(values.near(door.plain[type_]), min_size=1, max_size=6), "values"))


def test_values_of_the_column_s_own_type_are_kept_beside_those_that_arrow_would_change(
    door: Door, pytestconfig: pytest.Config
) -> None:
    every = 9 if pytestconfig.getoption("quick") else 1
    for type_, plain in list(door.plain.items())[::every]:
        sent = [
            *plain,
            None,
            *(value for other, value in values.CHANGED if other == type_ or type_ not in values.PLAIN),
        ]
        kept = [not isinstance(back, Refusal) for back in check(door, type_, sent)[: len(plain) + 1]]
        assert kept == [type_ not in door.lacks] * (len(plain) + 1), type_


def test_values_of_numpy_and_of_other_time_zones_come_back_equal_or_are_refused(
    door: Door, pytestconfig: pytest.Config
) -> None:
    first, *others = door.plain
    check(door, first, values.OTHERS)
    if not pytestconfig.getoption("quick"):
        for value in values.OTHERS:  # alone, because the type of a column may follow from its values
            check(door, first, [value])
        for type_ in others:
            check(door, type_, values.OTHERS)
