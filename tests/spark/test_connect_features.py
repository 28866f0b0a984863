"""What a pipeline can do, all over one Spark Connect server. Server and clients are processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark import connect_processes as processes

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(2400)]


@pytest.mark.parametrize("case", ["event time", "timers", "chain", "tables", "short runs", "upgrade"])
def test_it_works_as_on_a_classic_session(connect_url: str, tmp_path: Path, case: str) -> None:
    processes.told(processes.client("connect_features", connect_url, tmp_path, case))
