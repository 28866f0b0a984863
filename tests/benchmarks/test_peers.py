"""The command that compares systems: what it counts, what it refuses, and its own side with tiny sizes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.__main__ import main
from benchmarks.peers.cases import CASES, Case, Digest, KeyedCount, counted
from benchmarks.peers.child import WrongOutputs, run_once
from benchmarks.peers.measuring import RunFailed, run_apart
from benchmarks.peers.peer import SYSTEMS, Peer, load
from benchmarks.peers.process_tree import cpu_seconds_of, kill_descendants, memory_bytes_of, processes_of

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="what processes use is read from /proc")

BURN = "import time\nwhile time.process_time() < 0.3: pass"
# A child that has used the processor ends and is waited for; an orphan stays.
FAMILY = f"""
import subprocess, sys
from benchmarks.peers.process_tree import adopt_orphans
adopt_orphans()
subprocess.run([sys.executable, "-c", {BURN!r}], check=True)
orphan = subprocess.run(["sh", "-c", "sleep 1000 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True, check=True)
print(orphan.stdout.strip(), flush=True)
sys.stdin.read()
"""


@contextmanager
def family() -> Iterator[tuple[int, int]]:
    """Start a process with an orphan; the pids of both."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            kill_descendants(process.pid)
            process.communicate()


@needs_proc
def test_a_tree_has_the_processor_time_of_children_that_ended_and_of_orphans() -> None:
    with family() as (root, orphan):
        assert {process.pid for process in processes_of(root)} == {root, orphan}
        assert cpu_seconds_of(root) >= 0.3
        assert memory_bytes_of(root) > memory_bytes_of(orphan) > 0

        kill_descendants(root)

        # Until its new parent ends it is a zombie, which has no memory.
        while memory_bytes_of(orphan):
            time.sleep(0.01)


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_a_digest_knows_no_order_but_every_loss_repetition_and_change(values: list[int]) -> None:
    digest = Digest.of(values)

    assert Digest.of(reversed(values)) == digest
    assert Digest.of(values[1:]) != digest
    assert Digest.of([*values, values[0]]) != digest
    assert Digest.of([values[0] + 1, *values[1:]]) != digest


@given(st.integers(1, 30_000), st.integers(1, 5_000))
def test_the_right_counts_are_those_of_the_events(rows: int, batch_rows: int) -> None:
    case = KeyedCount("count", rows, batch_rows)
    seen: Counter[int] = Counter()
    counts = []
    for batch in case.batches():
        assert len(batch) <= batch_rows
        for key in batch:
            seen[key] += 1
            counts.append(counted(key, seen[key]))

    assert sorted(case.outputs()) == sorted(counts)
    assert len(counts) == rows


def test_every_system_loads_without_its_packages_and_does_cases_that_exist() -> None:
    for name in SYSTEMS:
        peer = load(name)
        assert set(peer.cases) <= set(CASES), name
        assert peer.title, name


class Loses(Peer):
    """A system that loses an output."""

    title, cases, lacks = "one that loses", ("enrichment",), "an output"

    def prepare(self, case: Case, folder: Path) -> Callable[[], Iterable[int]]:
        return lambda: list(case.outputs())[1:]


@needs_proc
def test_outputs_that_are_not_exact_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongOutputs, match="count=9"):
        run_once(Loses(), CASES["enrichment"].with_rows(10), tmp_path / "run")


@needs_proc
def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(RunFailed, match="No module named"):
        run_apart(Path(sys.executable), "no_such_system", CASES["enrichment"].with_rows(1))


@needs_proc
def test_a_system_that_cannot_be_installed_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    ended = main(["--only", "daft", "--case", "enrichment", "--rows", "1"])

    assert ended == 0
    assert "Daft, `daft.func`: skipped: cannot be installed" in capsys.readouterr().out


@pytest.mark.thorough
@needs_proc
def test_the_command_measures_systems_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    systems = ["--only", "stream", "--only", "threads"]

    ended = main([*systems, "--case", "enrichment", "--rows", "30", "--repeats", "2", "--json"])

    printed = capsys.readouterr()
    [case] = json.loads(printed.out)["cases"]
    assert ended == 0
    assert [result["system"] for result in case["results"]] == ["stream", "threads"]
    assert [len(result["seconds_of_runs"]) for result in case["results"]] == [2, 2]
    assert [line.split(":")[:2] for line in printed.err.splitlines()] == [
        [f"enrichment, {number} of 2", f" {system}"] for number in (1, 2) for system in ("stream", "threads")
    ]
