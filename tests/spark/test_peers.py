"""Our own side of the comparison of systems, with tiny sizes: whoever changes a public name sees it here."""

from __future__ import annotations

import sys

import pytest

from benchmarks.peers.__main__ import main
from tests.quick import first_is_quick


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="what processes use is read from /proc")
@pytest.mark.parametrize(
    ("system", "case"), first_is_quick([("pipeline", "count"), ("transform", "enrichment"), ("pipeline", "rescale")])
)
def test_our_own_side_is_exact(java: None, system: str, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = main(["--only", system, "--case", case, "--rows", "30", "--repeats", "1"])

    assert ended == 0, capsys.readouterr().out
