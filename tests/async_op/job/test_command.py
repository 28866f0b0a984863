"""`keygroups run` finds a job in a module and runs it, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from async_op.job.command import job_in
from async_op.threads.garbage import GARBAGE_MIN
from keygroups import ConfigError
from snapshots import SnapshotStore
from tests.quick import first_is_quick

ROOT = Path(__file__).parents[3]

ORDERS = """
from pathlib import Path
import asyncio
import gc
from async_op import Job
from async_op.connectors import FileSource

async def price(order):
    return {"item": order, "price": len(order)}

async def stuck(order):
    print("called", flush=True)
    await asyncio.sleep(3600)

async def fail(order):
    raise OSError("the service is away")

async def threshold(order):
    return gc.get_threshold()[0]

def keep(values, epoch):
    Path(f"epoch-{epoch}").write_text(repr(values))

job = Job(["tea", "salt"], price, keep, snapshots="state", job_id="prices")
endless = Job(["tea"], stuck, keep, snapshots="state", job_id="endless")
failing = Job(["tea"], fail, keep, snapshots="state", job_id="failing")
rare = Job(["tea"], threshold, keep, snapshots="state", job_id="rare")
wrong = Job(["tea"], price, keep, snapshots="state", job_id="prices", max_parallelism=64)
other = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.py").write_text(ORDERS)
    return tmp_path


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from snapshots.cli import main; sys.exit(main())", "run", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_job_runs_to_its_end(folder: Path) -> None:
    process = started(folder, "orders:job", "--serve", "127.0.0.1:0")
    _, log = process.communicate()
    assert process.returncode == 0, log
    assert "the probes, metrics and page" in log
    assert "salt" in (folder / "epoch-1").read_text()


@pytest.mark.thorough
def test_python_looks_for_cyclic_garbage_less_often(folder: Path) -> None:
    process = started(folder, "orders:rare")
    _, log = process.communicate()
    assert process.returncode == 0, log
    assert (folder / "epoch-1").read_text() == f"[{GARBAGE_MIN}]"


def test_sigterm_stops_it_with_a_snapshot_of_what_is_in_flight(folder: Path) -> None:
    process = started(folder, "orders:endless")
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
    newest = SnapshotStore(str(folder / "state"), "endless").latest()
    assert newest is not None
    assert newest.in_flight_count == 1


@pytest.mark.thorough
def test_it_restarts_as_often_as_it_is_told_and_ends_with_the_failure(folder: Path) -> None:
    process = started(folder, "orders:failing", "--restart", "1")
    _, log = process.communicate()
    assert process.returncode == 1
    assert "restart 1 of 1" in log
    assert log.rstrip().splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("orders", "name a module and its job"),
        ("no_such_module:job", "run it in the module's folder"),
        ("orders:other", "it has endless, failing, job"),
        ("json:job", "it has none"),
    ],
)
def test_a_target_without_a_job_is_refused(
    target: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ConfigError, match=reason):
        job_in(target)
    sys.modules.pop("orders", None)


def test_it_runs_in_worker_processes(folder: Path) -> None:
    process = started(folder, "orders:job", "--processes", "1")
    _, log = process.communicate()
    assert process.returncode == 0, log
    assert "salt" in (folder / "epoch-1").read_text()


@pytest.mark.parametrize("number", first_is_quick(["0", "many"]))
def test_a_number_of_processes_that_is_none_is_a_usage_error(folder: Path, number: str) -> None:
    process = started(folder, "orders:job", "--processes", number)
    _, log = process.communicate()
    assert process.returncode == 2, log
    assert "processes" in log


@pytest.mark.thorough
def test_it_says_what_it_would_do_and_whether_it_would_run(folder: Path) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        process = started(folder, *arguments)
        out, _ = process.communicate(timeout=120)
        return process.returncode, out

    code, told = said("orders:job", "--explain")
    assert (code, told.splitlines()[-1]) == (0, "nothing looks wrong")
    assert not (folder / "state").exists()

    assert said("orders:job") == (0, "")
    code, told = said("orders:wrong", "--explain")
    assert code == 1
    assert "run refuses the newest snapshot; max parallelism of the snapshot is 128, but 64 is needed" in told
