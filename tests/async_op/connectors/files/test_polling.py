"""How often a job that follows files lists them, and how soon it reads a new one. All in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from async_op.connectors import FileSource
from async_op.connectors.files.access import FileAccess
from async_op.connectors.files.listing import Stamp
from async_op.connectors.source import pause_between_looks
from async_op.testing import run
from tests.async_op.job.kit import Epochs, new_job, running, same


class Listings:
    """Notes when files were listed. A listing takes as long as the test says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at: list[float] = []
        self.seconds = 0.0
        files = FileAccess.files

        async def noted(access: FileAccess) -> dict[str, Stamp]:
            self.at.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self.seconds)
            return await files(access)

        patch.setattr(FileAccess, "files", noted)

    def within(self, seconds: float) -> int:
        return sum(at <= seconds for at in self.at)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> Listings:
    return Listings(monkeypatch)


def write(path: Path, number: int) -> None:
    path.write_text(f'{{"n": {number}}}\n')


def job_over(folder: Path, sink: Epochs, poll_interval: float) -> Any:
    source = FileSource(f"{folder}/*.jsonl", "json", bounded=False, poll_interval=poll_interval)
    return new_job(source, same, sink, snapshot_interval=0.1)


@pytest.mark.parametrize("poll_interval", [0.5, 1.0, 60.0])
def test_a_new_file_is_read_with_the_next_listing_and_there_is_one_in_each_interval(
    tmp_path: Path, listings: Listings, poll_interval: float
) -> None:
    async def follow() -> None:
        sink, loop = Epochs(), asyncio.get_running_loop()
        await asyncio.to_thread(write, tmp_path / "1.jsonl", 1)
        async with running(job_over(tmp_path, sink, poll_interval)):
            await asyncio.sleep(10 * poll_interval)
            await asyncio.to_thread(write, tmp_path / "2.jsonl", 2)
            written_at = loop.time()
            await sink.have(2)
            assert loop.time() - written_at <= poll_interval + 1
        # A few more at the start, while files are opened for the first time.
        assert 10 <= listings.within(10 * poll_interval) <= 14

    run(follow())


def test_listings_that_take_long_come_less_often(tmp_path: Path, listings: Listings) -> None:
    listings.seconds = 5.0

    async def follow() -> None:
        sink = Epochs()
        await asyncio.to_thread(write, tmp_path / "1.jsonl", 1)
        async with running(job_over(tmp_path, sink, 1.0)):
            await asyncio.sleep(1000)
        assert 30 <= len(listings.at) <= 2 * 40, "in a fifth of the time, by the job and by those who wait for a file"

    run(follow())


def test_the_pause_after_a_look() -> None:
    assert pause_between_looks(1.0, 0.0) == 1.0
    assert pause_between_looks(1.0, 0.2) == 1.0
    assert pause_between_looks(1.0, 5.0) == 20.0
    assert pause_between_looks(1.0, 1000.0) == 60.0
    assert pause_between_looks(300.0, 1000.0) == 300.0
