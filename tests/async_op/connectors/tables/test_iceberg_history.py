"""An Iceberg table keeps a snapshot of each epoch: what that costs the next one, and what becomes of old ones."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyiceberg.table
import pytest
from pyiceberg.catalog import load_catalog

from async_op.connectors.tables import iceberg
from tests.async_op.connectors.tables.targets import Iceberg
from tests.async_op.job.kit import Log, new_job, running

COPIES_MAX = 4
"""How often an epoch may copy the metadata of a table: before its change, after each of the two, and for the commit."""


@pytest.fixture
def table(tmp_path: Path) -> Iceberg:
    return Iceberg(tmp_path)


def row(number: int) -> dict[str, Any]:
    return {"n": number, "name": str(number)}


def metadata_files(folder: Path) -> int:
    return len(list(folder.rglob("*.metadata.json")))


async def test_an_epoch_copies_the_metadata_of_its_table_a_few_times_only(
    table: Iceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = []
    update = pyiceberg.table.update_table_metadata
    monkeypatch.setattr(pyiceberg.table, "update_table_metadata", lambda *given: copies.append(1) or update(*given))
    sink = table.sink()
    await sink.write([row(1)], 1)
    copies.clear()
    await sink.write([row(2)], 2)
    assert 0 < len(copies) <= COPIES_MAX
    await sink.close()
    assert table.numbers() == [1, 2]


async def test_the_metadata_of_old_commits_is_removed_from_a_table_that_the_sink_has_made(
    table: Iceberg, tmp_path: Path
) -> None:
    sink = table.sink()
    await sink.write([row(1)], 1)
    catalog = load_catalog(**table.catalog)
    most = {"write.metadata.previous-versions-max": "3"}
    catalog.load_table("sales.orders").transaction().set_properties(most).commit_transaction()
    catalog.close()
    for epoch in range(2, 12):
        await sink.write([row(epoch)], epoch)
    await sink.close()
    assert metadata_files(tmp_path) == 1 + 3
    assert table.numbers() == [*range(1, 12)]


async def test_many_snapshots_are_told_with_what_to_do_and_again_when_they_have_doubled(
    table: Iceberg, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(iceberg, "_SNAPSHOTS_TOLD", 3)
    sink = table.sink()
    with caplog.at_level(logging.WARNING, "async_op.connectors"):
        for epoch in range(1, 9):
            await sink.write([row(epoch)], epoch)
    await sink.close()
    assert [one.getMessage().partition(",")[0] for one in caplog.records] == [
        "the table sales.orders has 3 snapshots",
        "the table sales.orders has 6 snapshots",
    ]
    assert "let old ones expire" in caplog.text


@pytest.mark.thorough
async def test_snapshots_may_expire_while_a_job_writes(table: Iceberg, tmp_path: Path) -> None:
    async def as_row(number: int) -> dict[str, Any]:
        return row(number)

    def expire() -> int:
        catalog = load_catalog(**table.catalog)
        try:
            orders = catalog.load_table("sales.orders")
            orders.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
            return len(catalog.load_table("sales.orders").snapshots())
        finally:
            catalog.close()

    source = Log([0])
    async with running(new_job(source, as_row, table.sink(), snapshots=tmp_path / "state")):
        for number in range(1, 8):
            while len(table.numbers()) < number:
                await asyncio.sleep(0.02)
            left = await asyncio.to_thread(expire)
            await source.append(0, number)
    assert left <= 2
    await new_job(source, as_row, table.sink(), snapshots=tmp_path / "state").explain()
    assert table.numbers() == [*range(8)]
