"""A table that cannot be opened or made: the error names it and says what to do, whichever package writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from async_op.connectors import DeltaSink, IcebergSink, SinkRefused
from keygroups import ConfigError


@pytest.mark.parametrize("place", ["file", "file/below", "unknown://bucket/table", "s3://"])
async def test_a_place_where_no_delta_table_can_be_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    table = place if ":" in place else str(tmp_path / place)
    sink = DeltaSink(table, "job")
    with pytest.raises(SinkRefused) as raised:
        await sink.write([{"n": 1}], 1)
    assert raised.value.target == table
    await sink.close()


@pytest.mark.parametrize("name", ["a%20b", "a[1]", "a\\b", "a^b", "a|b", "a\tb"], ids=ascii)
def test_a_folder_in_which_deltalake_would_panic_or_get_lost_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    for table in (str(tmp_path / name), "orders", f"s3://lake/{name}"):
        with pytest.raises(ConfigError, match="table=.*choose another one"):
            DeltaSink(table, "job")


@pytest.mark.parametrize(
    ("catalog", "error"),
    [
        ({"type": "unknown"}, ConfigError),
        ({}, ConfigError),
        ({"uri": "unknown://secret@host"}, ConfigError),
        ({"type": "sql", "uri": "sqlite://"}, SinkRefused),
    ],
    ids=["type", "no address", "unknown address", "no warehouse"],
)
async def test_a_catalog_in_which_no_iceberg_table_can_be_is_refused(
    catalog: dict[str, Any], error: type[Exception]
) -> None:
    sink = IcebergSink("sales.orders", "job", catalog=catalog)
    with pytest.raises(error):
        await sink.write([{"n": 1}], 1)
    await sink.close()


@pytest.mark.parametrize(
    "made", [lambda: DeltaSink("", "job"), lambda: IcebergSink("", "job", catalog={})], ids=["Delta", "Iceberg"]
)
def test_a_table_needs_a_name(made: Any) -> None:
    with pytest.raises(ConfigError, match="table="):
        made()
