"""A state as a data frame: columns that are declared keep their type, msgpack becomes Python values."""

from __future__ import annotations

import datetime as dt
import sys
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from keygroups import ConfigError, ListState, MapState, PackageNotInstalled, ValueState
from snapshots import Snapshot
from tests.snapshot_kit import new_store

MIXED: dict[Any, Any] = {"a": {"n": 1}, "b": (1, "two"), "c": None, "d": dt.date(2026, 1, 2)}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return new_store(str(tmp_path_factory.mktemp("state"))).bootstrap(
        {
            ValueState("count", pa.int64()): [("a", 2**60 + 1), ("b", None)],
            ValueState("mixed"): list(MIXED.items()),
            ValueState("name"): [("a", "ann"), ("b", None)],
            ValueState("big"): [("a", 2**70)],
            ValueState("place", pa.int64()): [((1, "x"), 5), ((2, "y"), 6)],
            ListState("tags"): [("a", ["new", 7])],
            MapState("prices"): [("a", {("x", 1): Decimal("1.5")})],
            ValueState("empty"): [],
            ValueState("times"): [("a", dt.datetime(2026, 1, 2)), ("b", dt.datetime(2026, 1, 2, tzinfo=dt.UTC))],
            ValueState("amounts"): [("a", Decimal("1.5")), ("b", Decimal("NaN"))],
        },
        parallelism=2,
        max_parallelism=16,
    )


def rows_of(frame: Any, *columns: str) -> set[str]:
    lists = [list(frame[name]) for name in columns]
    return {repr(row) for row in zip(*lists, strict=True)}


FRAMES = pytest.mark.parametrize("to_frame", [Snapshot.to_pandas, Snapshot.to_polars], ids=["pandas", "polars"])


@FRAMES
def test_the_columns_are_those_of_arrow(snapshot: Snapshot, to_frame: Any) -> None:
    for name in snapshot.state_names:
        frame, table = to_frame(snapshot, name), snapshot.to_arrow(name)
        assert list(frame.columns) == table.schema.names
        assert len(frame) == table.num_rows


@FRAMES
def test_values_without_a_type_are_decoded(snapshot: Snapshot, to_frame: Any) -> None:
    assert rows_of(to_frame(snapshot, "mixed"), "key", "value") == {repr(item) for item in MIXED.items()}
    assert rows_of(to_frame(snapshot, "name"), "key", "value") == {repr(("a", "ann")), repr(("b", None))}
    assert rows_of(to_frame(snapshot, "big"), "value") == {repr((2**70,))}
    assert rows_of(to_frame(snapshot, "tags"), "position", "value") == {repr((0, "new")), repr((1, 7))}


@FRAMES
def test_keys_of_several_columns_are_tuples(snapshot: Snapshot, to_frame: Any) -> None:
    assert rows_of(to_frame(snapshot, "place"), "key", "value") == {repr(((1, "x"), 5)), repr(((2, "y"), 6))}
    assert rows_of(to_frame(snapshot, "prices"), "map_key", "value") == {repr((("x", 1), Decimal("1.5")))}


@FRAMES
def test_whole_numbers_beside_nulls_keep_their_digits(snapshot: Snapshot, to_frame: Any) -> None:
    assert rows_of(to_frame(snapshot, "count"), "value") == {repr((2**60 + 1,)), repr((None,))}


def test_values_of_one_simple_type_are_a_column_of_polars(snapshot: Snapshot) -> None:
    assert snapshot.to_polars("name").schema["value"] == pl.String
    assert snapshot.to_polars("prices").schema["value"] == pl.Decimal(2, 1)
    assert snapshot.to_polars("mixed").schema["value"] == pl.Object
    # As a column, the first would be in UTC, and the second null.
    assert snapshot.to_polars("times").schema["value"] == pl.Object
    assert snapshot.to_polars("amounts").schema["value"] == pl.Object


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_package_that_is_missing_is_named(snapshot: Snapshot, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(PackageNotInstalled, match=f"pip install {package}") as missing:
        getattr(snapshot, f"to_{package}")("count")

    assert (missing.value.package, missing.value.method) == (package, f"Snapshot.to_{package}")


@FRAMES
def test_a_state_that_is_not_there_is_refused(snapshot: Snapshot, to_frame: Any) -> None:
    with pytest.raises(ConfigError, match="the snapshot has the states"):
        to_frame(snapshot, "absent")
