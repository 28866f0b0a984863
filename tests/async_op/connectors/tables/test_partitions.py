"""Partition columns of a table: values that would be lost there are refused, and all others come back."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform, DayTransform, TruncateTransform

from async_op.connectors import UnwritableValue
from tests.async_op.connectors.tables.targets import Delta, Iceberg, Target

DATE, MOMENT = dt.date(2026, 1, 2), dt.datetime(1960, 1, 2, 3, 4, 5, 678)
KEPT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["a/b", "%41", " é\n", "null", "x" * 200, None]),
    (pa.int64(), [-(2**63), 0]),
    (pa.float64(), [0.1, -0.0, 1e22, math.inf]),
    (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("-2.00")]),
    (pa.date32(), [DATE, dt.date.min]),
    (pa.timestamp("us"), [MOMENT]),
]
REFUSED: dict[type[Target], list[tuple[pa.DataType, list[Any]]]] = {
    Delta: [
        (pa.string(), ["", "__HIVE_DEFAULT_PARTITION__", "é" * 60]),
        (pa.float64(), [1e300, 5e-324]),
        (pa.decimal128(10, 2), [Decimal("-1.10")]),
        (pa.binary(), [b"a"]),
    ],
    Iceberg: [(pa.string(), ["é" * 60]), (pa.float64(), [math.nan])],
}


def partitioned(kind: type[Target], folder: Path, type_: pa.DataType) -> Any:
    """Return a target whose table is partitioned by the column `p`."""
    target: Any = kind(folder)
    schema = pa.schema([("n", pa.int64()), ("p", type_)])
    if kind is Delta:
        deltalake.DeltaTable.create(target.arguments[0], deltalake.Schema.from_arrow(schema), partition_by=["p"])
        return target
    catalog = load_catalog(**target.catalog)
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", schema)
    with table.update_spec() as update:
        update.add_identity("p")
    catalog.close()
    return target


@pytest.mark.parametrize("kind", [Delta, Iceberg])
async def test_what_a_partition_column_keeps_comes_back_and_all_else_is_refused(
    kind: type[Target], tmp_path: Path
) -> None:
    lost = dict(REFUSED[kind])
    for number, type_ in enumerate(dict.fromkeys([type_ for type_, _ in KEPT] + list(lost))):
        (tmp_path / str(number)).mkdir()
        target = partitioned(kind, tmp_path / str(number), type_)
        kept, bad = dict(KEPT).get(type_, []), lost.get(type_, [])
        rows = [{"n": n, "p": value} for n, value in enumerate([*bad, *kept])]
        sink = target.sink()
        if bad:
            with pytest.raises(UnwritableValue, match=r"column 'p', output 0.*in a partition column"):
                await sink.write(rows, 1)
        assert [(one.index, one.column) for one in await sink.refused(rows)] == [(n, "p") for n in range(len(bad))]
        if kept:
            await sink.write(rows[len(bad) :], 1)
            assert sorted(map(repr, target.rows())) == sorted(map(repr, rows[len(bad) :]))
        await sink.close()


TRANSFORMS: list[tuple[Any, pa.DataType, Any]] = [
    (DayTransform(), pa.timestamp("us"), MOMENT),
    (BucketTransform(4), pa.int64(), 7),
    (BucketTransform(4), pa.string(), "a/b"),
    (TruncateTransform(2), pa.string(), "abc"),
]


@pytest.mark.parametrize(("transform", "type_", "value"), TRANSFORMS, ids=lambda one: str(one))
async def test_iceberg_tables_partitioned_by_day_bucket_or_beginning_are_written(
    tmp_path: Path, transform: Any, type_: pa.DataType, value: Any
) -> None:
    target: Any = Iceberg(tmp_path)
    catalog = load_catalog(**target.catalog)
    catalog.create_namespace("sales")
    with catalog.create_table("sales.orders", pa.schema([("p", type_)])).update_spec() as update:
        update.add_field("p", transform, "part")
    catalog.close()

    sink = target.sink()
    await sink.write([{"p": value}, {"p": None}], 1)
    await sink.close()
    assert sorted(map(repr, target.rows())) == sorted(map(repr, [{"p": value}, {"p": None}]))
