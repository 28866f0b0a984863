"""The driver of a bounded run through a chain is killed, more than once; whoever comes next goes on exactly once.

As a program it makes the run, in a process of its own that a test may kill.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.exactly_once import session
from tests.spark.test_chain import KEYS, ROWS, Run


def main() -> None:
    """Make the run; tells about each epoch on stdout when it comes to the sink."""
    folder, parallelism = Path(sys.argv[1]), int(sys.argv[2])
    spark = session("local[2]")
    run = Run(spark, folder)

    def sink(batch: DataFrame, epoch: int) -> None:
        run.gate.count()
        rows = [list(row) for row in batch.collect()]
        sys.stdout.write(f"{epoch}\n")
        sys.stdout.flush()
        written = folder / f"table-{epoch}"
        written.write_text(json.dumps(rows))
        written.replace(folder / "table" / f"{epoch:04d}")

    rows = spark.range(ROWS).selectExpr("id", f"concat('u', id % {KEYS}) as user")
    run.chain(parallelism, 3 - parallelism % 2).run(rows, sink, run_id="history", chunk_rows=25)
    spark.stop()


def start(folder: Path, parallelism: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.spark.test_kill_chain", str(folder), str(parallelism)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.thorough
@pytest.mark.timeout(2400)
def test_the_driver_of_a_run_through_a_chain_is_killed_in_the_sink_of_its_last_pipeline(
    java: None, tmp_path: Path
) -> None:
    (tmp_path / "table").mkdir()
    run = Run(cast("SparkSession", None), tmp_path)
    for parallelism in (2, 3):
        with start(tmp_path, parallelism) as killed:
            assert killed.stdout is not None
            # The first epoch of the second process may be the one that the first was killed in.
            told = [line for line, _ in zip(killed.stdout, range(2), strict=False)]
            assert len(told) == 2, "it was killed before the end"
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()
    with start(tmp_path, 1) as restarted:
        restarted.communicate()
    assert restarted.returncode == 0
    tables = sorted((tmp_path / "table").iterdir())
    run.delivered = {int(path.name): _rows(path) for path in tables}
    run.assert_exact()
    assert not list((tmp_path / "snapshots" / "count" / "inputs").glob("*"))


def _rows(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in json.loads(path.read_text())]


if __name__ == "__main__":
    main()
