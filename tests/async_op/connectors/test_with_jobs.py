"""Sources without an end and sinks, run by jobs that are stopped and go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from async_op import Job
from async_op.connectors import FileSink, FileSource


async def double(number: int) -> int:
    return number * 2


def written(folder: Path) -> list[int]:
    return sorted(json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines())


async def run_until(job: Job, folder: Path, wanted: list[int]) -> None:
    running = asyncio.create_task(job.run())
    while written(folder) != wanted:
        assert not running.done(), running.result()
        await asyncio.sleep(0.01)
    job.stop(drain=False)
    await running


async def test_a_job_that_is_stopped_reads_on_in_files_that_grow(tmp_path: Path) -> None:
    incoming, outgoing = tmp_path / "in", tmp_path / "out"
    incoming.mkdir()

    def job() -> Job:
        source = FileSource(str(incoming / "*"), "json", bounded=False, poll_interval=0.01)
        sink = FileSink(str(outgoing), "json")
        return Job(source, double, sink, snapshots=str(tmp_path / "s"), job_id="job", snapshot_interval=0.05)

    (incoming / "a").write_text("1\n2\n3")
    await run_until(job(), outgoing, [2, 4])
    (incoming / "a").write_text("1\n2\n30\n")
    (incoming / "b").write_text("5\n")
    await run_until(job(), outgoing, [2, 4, 10, 60])


async def test_a_bounded_job_that_runs_again_reads_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("1\n2\n")
    for _ in range(2):
        source, sink = FileSource(str(tmp_path / "in.jsonl"), "json"), FileSink(str(tmp_path / "out"), "json")
        await Job(source, double, sink, snapshots=str(tmp_path / "s"), job_id="job").run()

    assert written(tmp_path / "out") == [2, 4]
