"""Jobs with real child processes: the same results as in one, and what happens when a process ends."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from async_op import ConnectorInterrupted, ElementFailed, Job, Step
from async_op.job.errors import ChildLost, NotSendable
from async_op.job.processes import child_handles
from async_op.job.processes import launch as launching
from async_op.job.processes.child_loop import ChildSpec
from async_op.job.processes.messages import Receiver
from async_op.job.progress import ChildProgress, JobProgress, line_of
from async_op.metrics.jobs import job_families
from async_op.resilience import Budget, Resilience
from keygroups import ConfigError
from snapshots import SnapshotStore
from snapshots.inspection import ChildActivity, RecentVersions
from tests.async_op.job.processes.steps import (
    Ending,
    Endless,
    Hanging,
    Interrupted,
    Kept,
    Said,
    WithFork,
    WithProgram,
    by_seven,
    plus_one,
    steps,
)
from tests.hosting.kit import wait_until
from tests.left_processes import LeavesProcesses
from tests.quick import first_is_quick

SECONDS = 120


def new_job(folder: Path, source: Any, given: Any, sink: Any, **options: Any) -> Job:
    options = {"processes": 2, "parallelism": 4, "snapshot_interval": 0.2, "job_id": "job"} | options
    return Job(source, given, sink, snapshots=folder, **options)


def have_ended(pids: list[int]) -> bool:
    """Whether all processes end soon."""
    for pid in pids:
        with suppress(ProcessLookupError):
            waited = os.pidfd_open(pid)
            try:
                if not select.select([waited], [], [], SECONDS)[0]:
                    return False
            finally:
                os.close(waited)
    return True


def pids_of(progress: JobProgress) -> list[int]:
    return [child.pid for child in progress.children]


def test_the_results_are_those_of_one_process(tmp_path: Path) -> None:
    found = []
    for processes in (1, 2):
        folder, sink = tmp_path / str(processes), Kept()
        job = new_job(folder, range(1000), steps(), sink, processes=processes, idempotency_namespace="name")
        job.run_sync()
        state = SnapshotStore(folder, "job").load().to_arrow("second.count").to_pydict()
        found.append((sorted(sink.values), sorted(zip(state["key"], state["value"], strict=True))))

    (one_values, one_state), (values, state) = found
    assert len(values) == 1000
    assert [(key, count) for key, count, *_ in values] == [(key, count) for key, count, *_ in one_values]
    assert {(key, name, value) for key, _, name, value in values} == {
        (key, name, value) for key, _, name, value in one_values
    }
    assert state == one_state


@pytest.mark.parametrize(
    ("how", "status"), first_is_quick([("kill", "by SIGKILL"), ("fault", "by SIGSEGV"), ("exit", "with status 3")])
)
def test_a_child_that_dies_ends_the_run_and_the_next_one_continues(tmp_path: Path, how: str, status: str) -> None:
    sink = Kept()
    given = [Step(plus_one, "first", key_by=by_seven), Step(Ending(how, tmp_path / "mended"), "ending")]
    job = new_job(tmp_path / "snapshots", range(200), given, sink)

    with pytest.raises(ChildLost, match=f"ended {status}; it ran subtasks .* of first, ending"):
        job.run_sync()
    assert have_ended(pids_of(job.progress()))

    (tmp_path / "mended").touch()
    new_job(tmp_path / "snapshots", range(200), given, sink).run_sync()
    assert sorted(sink.values) == list(range(1, 201))


def test_a_child_without_a_sign_of_life_is_told_of_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A child that is stopped would hold up all cuts for ever."""
    monkeypatch.setattr(child_handles, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(child_handles, "PATIENCE_SECONDS", 8.0)
    job = new_job(tmp_path / "snapshots", Endless(), Step(Ending("stop", tmp_path / "mended"), key_by=by_seven), Kept())

    with pytest.raises(ChildLost, match="ended by SIGKILL after 8 s without a sign of life"):
        job.run_sync()
    assert have_ended(pids_of(job.progress()))
    assert "has shown no sign of life for 5 s: it is stopped, or a function blocks its event loop" in caplog.text


@pytest.mark.thorough
def test_a_child_that_a_debugger_holds_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_handles, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(child_handles, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(launching, "_is_debugged", lambda: True)
    step = Step(Ending("stop", tmp_path / "mended"), key_by=by_seven)
    job = new_job(tmp_path / "snapshots", range(100), step, sink := Kept())
    running = threading.Thread(target=job.run_sync)
    running.start()
    try:
        wait_until(lambda: any(map(is_stopped, pids_of(job.progress()))))
        running.join(1.0)  # ten times as long as a child may be silent otherwise
        assert running.is_alive()
    finally:
        for pid in filter(is_stopped, pids_of(job.progress())):
            os.kill(pid, signal.SIGCONT)
        running.join(SECONDS)
    assert sorted(sink.values) == list(range(100))


def is_stopped(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    return False


def test_a_failed_element_fails_the_run_after_a_cut_and_tells_where_it_was(tmp_path: Path) -> None:
    sink, mended = Kept(), tmp_path / "mended"
    job = new_job(tmp_path / "snapshots", range(100), Step(Ending("raise", mended), key_by=by_seven), sink)

    with pytest.raises(ElementFailed, match="of no use") as raised:
        job.run_sync()
    assert isinstance(raised.value.__cause__, ValueError)
    assert re.search("in child [12]:", "".join(raised.value.__notes__))

    mended.touch()
    new_job(tmp_path / "snapshots", range(100), Step(Ending("raise", mended), key_by=by_seven), sink).run_sync()
    assert sorted(sink.values) == list(range(100))


@pytest.mark.parametrize("error", first_is_quick([GeneratorExit, BaseException, asyncio.CancelledError]))
def test_whatever_close_raises_in_a_child_ends_the_run(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(ConnectorInterrupted, match=f"closing the steps ended with {error.__name__}"):
        new_job(tmp_path, range(5), Step(Interrupted(error)), sink := Kept()).run_sync()
    assert sorted(sink.values) == list(range(5))


def test_a_child_that_dies_while_it_closes_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(ChildLost, match="look at what it has printed"):
        new_job(tmp_path, range(5), Step(Interrupted(KeyboardInterrupt)), sink := Kept()).run_sync()
    assert sorted(sink.values) == list(range(5))


def test_the_processes_of_a_function_end_with_its_child(tmp_path: Path) -> None:
    new_job(tmp_path, range(5), Step(LeavesProcesses(), key_by=by_seven), sink := Kept()).run_sync()
    assert have_ended(sorted(set(sink.values)))


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_process_that_a_function_has_forked_holds_up_no_end(tmp_path: Path, is_killed: bool) -> None:
    """A fork has its parent's descriptors, and so the connection by whose end the job hears of the child's."""
    step = Step(WithFork(tmp_path / "pid", is_killed), key_by=by_seven)
    try:
        with pytest.raises(ChildLost, match="by SIGKILL") if is_killed else nullcontext():
            new_job(tmp_path / "snapshots", range(5), step, Kept()).run_sync()
        assert not (tmp_path / "pid.ended").exists()
    finally:
        with suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_function_may_terminate_a_program_in_a_child(tmp_path: Path) -> None:
    """A program inherits that signals are ignored, and then it cannot be terminated."""
    step = Step(WithProgram(), timeout=60.0, on_error="skip")
    new_job(tmp_path, range(4), step, sink := Kept()).run_sync()
    assert sink.values == [-signal.SIGTERM] * 4


async def test_a_rescale_moves_key_groups_between_living_children(tmp_path: Path) -> None:
    sink = Kept()
    job = new_job(tmp_path, Endless(), steps(), sink, parallelism=2, max_parallelism=8)
    running = asyncio.create_task(job.run())
    pids: list[list[int]] = []
    for parallelism in (3, 1, 2):
        async with asyncio.timeout(SECONDS):
            while not sink.values or job.progress().state != "running":
                await asyncio.wait([running], timeout=0.01)
        pids.append(pids_of(job.progress()))
        sink.epochs[max(sink.epochs)] and job.rescale(parallelism)
        async with asyncio.timeout(SECONDS):
            while job.progress().parallelism != parallelism or job.progress().state != "running":
                await asyncio.wait([running], timeout=0.01)
        outputs = job.progress().outputs
        async with asyncio.timeout(SECONDS):
            while job.progress().outputs <= outputs:
                await asyncio.wait([running], timeout=0.01)
    job.stop()
    await running

    assert pids[0] == pids[1] == pids[2]
    values = sorted(value for *_, value in sink.values)
    counts: dict[int, list[int]] = {}
    for key, count, *_ in sink.values:
        counts.setdefault(key, []).append(count)
    assert len(values) == len(set(values)) == job.progress().records
    assert all(found == list(range(1, len(found) + 1)) for found in counts.values())


def test_every_child_has_a_row_in_the_progress_the_line_and_the_metrics(tmp_path: Path) -> None:
    job = new_job(tmp_path, range(100), steps(), Kept())
    job.run_sync()

    progress = job.progress()
    assert [child.number for child in progress.children] == [1, 2]
    assert sum(child.outputs for child in progress.children) == progress.outputs == 100
    first, *rows = line_of(progress, None).splitlines()
    assert first.startswith("job: ended, 100 in")
    assert [row.partition(":")[0] for row in rows] == ["  process 1", "  process 2"]
    (family,) = (one for one in job_families([progress]) if one.name == "keygroups_job_child_outputs")
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"job": "job", "child": str(child.number)}, child.outputs) for child in progress.children
    ]


def test_a_manifest_has_what_progress_says_of_every_child(tmp_path: Path) -> None:
    job = new_job(tmp_path, range(100), steps(), Kept(), snapshot_interval=3600.0)
    job.run_sync()

    progress = {child.number: child for child in job.progress().children}
    shown = RecentVersions(SnapshotStore(tmp_path, "job")).activity(0.0).children
    assert [field.name for field in fields(ChildActivity)] == [field.name for field in fields(ChildProgress)]
    assert [child.number for child in shown] == [1, 2]
    for child in shown:
        assert replace(child, processor_seconds=0) == ChildActivity(
            **asdict(progress[child.number]) | {"processor_seconds": 0}
        )
        assert 0 < child.processor_seconds <= progress[child.number].processor_seconds + 0.001  # rounded


async def test_a_cancelled_run_leaves_no_process_behind(tmp_path: Path) -> None:
    job = new_job(tmp_path / "snapshots", Endless(), Step(Hanging(tmp_path, blocks=False), key_by=by_seven), Kept())
    running = asyncio.create_task(job.run())
    async with asyncio.timeout(SECONDS):
        while job.progress().state != "running":
            await asyncio.wait([running], timeout=0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    assert have_ended(pids_of(job.progress()))


async def test_a_child_that_is_being_started_when_another_one_fails_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, end = launching.launch, child_handles.Child.end
    is_ending, started_late = asyncio.Event(), list[launching.StartedChild]()

    async def launch_second(spec: ChildSpec, receiver: Receiver) -> launching.StartedChild:
        if spec.number == 1:
            raise MemoryError("no room for a process")
        await is_ending.wait()
        started_late.append(await launch(spec, receiver))
        return started_late[0]

    async def noted_end(child: child_handles.Child) -> None:
        is_ending.set()
        await end(child)

    monkeypatch.setattr(launching, "launch", launch_second)
    monkeypatch.setattr(child_handles.Child, "end", noted_end)
    with pytest.raises(MemoryError, match="no room"):
        await new_job(tmp_path / "snapshots", range(10), steps(), Kept()).run()

    assert [have_ended([child.pid]) for child in started_late] == [True]


@pytest.mark.parametrize("how", first_is_quick(["blocks", "waits"]))
def test_children_end_with_a_parent_that_is_killed(tmp_path: Path, how: str) -> None:
    parent, pids = started(tmp_path, how)
    parent.kill()
    parent.wait(SECONDS)

    assert have_ended(pids)


def test_a_signal_to_the_whole_group_stops_the_job_at_a_cut(tmp_path: Path) -> None:
    parent, pids = started(tmp_path, "waits")
    os.killpg(parent.pid, signal.SIGTERM)

    assert parent.wait(SECONDS) == 0
    assert have_ended(pids)
    assert SnapshotStore(tmp_path / "snapshots", "job").load().manifest.in_flight_count > 0


def started(folder: Path, how: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start the program, and return it with its children, once both have had an element."""
    module = "tests.async_op.job.processes.steps"
    program = subprocess.Popen([sys.executable, "-m", module, str(folder), how], start_new_session=True)
    while len(pids := [int(one.name) for one in folder.iterdir() if one.name.isdecimal()]) < 2:
        with suppress(subprocess.TimeoutExpired):
            program.wait(0.02)
            pytest.fail("the program has ended")
    return program, pids


def said(folder: Path) -> set[tuple[int, str | None, str]]:
    new_job(folder, range(20), Step(Said(), key_by=by_seven), sink := Kept()).run_sync()
    return set(sink.values)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each child is a fresh interpreter")
def test_the_children_of_all_jobs_of_a_program_are_forked_from_one_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((fork_server, *first),) = said(tmp_path / "first")
    monkeypatch.setenv("SAID", "later")
    monkeypatch.chdir(tmp_path)
    ((same, *second),) = said(tmp_path / "second")

    assert same == fork_server != os.getpid()
    assert [first[0], *second] == [None, "later", str(tmp_path)]


def test_a_child_finds_a_module_in_a_folder_that_is_younger_than_its_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    monkeypatch.syspath_prepend(str(made))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # gives this test a fork server of its own
    said(tmp_path / "first")
    made.mkdir()
    (made / "made_later.py").write_text("async def same(value):\n    return value\n")
    importlib.invalidate_caches()
    same = importlib.import_module("made_later").same

    new_job(tmp_path / "second", range(5), Step(same), sink := Kept()).run_sync()
    assert sorted(sink.values) == list(range(5))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each child is a fresh interpreter")
async def test_children_outlive_a_fork_server_that_is_killed(tmp_path: Path) -> None:
    job = new_job(tmp_path / "snapshots", Endless(), steps(), sink := Kept(), parallelism=2)
    running = asyncio.create_task(job.run())
    await until(lambda: bool(sink.epochs), running)
    child = pids_of(job.progress())[0]
    fork_server = parent_of(child)
    os.kill(fork_server, signal.SIGKILL)
    assert have_ended([fork_server])

    count = len(sink.epochs)
    await until(lambda: len(sink.epochs) > count, running)
    os.kill(child, signal.SIGKILL)
    with pytest.raises(ChildLost, match="ended with an unknown status"):
        await running


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def until(condition: Callable[[], bool], running: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.wait([running], timeout=0.01)


def test_what_a_child_prints_comes_out_where_its_parent_prints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said(tmp_path)
    assert "printed by a child" in capfd.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("stream", first_is_quick([1, 2]))
def test_children_of_a_program_that_has_closed_its_output_run(tmp_path: Path, stream: int) -> None:
    """The next files that it opens get these numbers: here, files of the event loop, which a child must not get."""
    program = (
        f"import os; os.close({stream}); from pathlib import Path;"
        f"from tests.async_op.job.processes.test_processes import said; said(Path({str(tmp_path)!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=SECONDS)
    assert ended.returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("set_up", first_is_quick(["logging.basicConfig(level=logging.INFO)", "pass"]))
def test_children_log_with_the_levels_of_their_parent_if_it_has_set_up_logging(tmp_path: Path, set_up: str) -> None:
    program = (
        f"import logging; {set_up}; from async_op import Job; from tests.async_op.job.processes.steps import Logging;"
        f"Job(range(4), Logging(), print, snapshots={str(tmp_path)!r}, job_id='job', processes=2).run_sync()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=SECONDS)
    logged = [line for line in ended.stderr.splitlines() if "tests.steps" in line]
    assert len(logged) == (0 if set_up == "pass" else 4)
    assert all(re.fullmatch(r".* INFO tests\.steps: element \d", line) for line in logged)


@pytest.mark.thorough
def test_children_of_a_program_with_a_debugger_run_though_nobody_attaches(tmp_path: Path) -> None:
    pytest.importorskip("debugpy")
    program = (
        "import debugpy; debugpy.listen(0); from pathlib import Path;"
        f"from tests.async_op.job.processes.test_processes import said; print(said(Path({str(tmp_path)!r})))"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=SECONDS)
    assert ended.returncode == 0


@pytest.mark.thorough
def test_where_there_is_no_fork_server_a_child_is_a_fresh_interpreter_that_tells_how_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("async_op.hosting.process.fork_server.watch", lambda pid: None)
    assert {parent for parent, *_ in said(tmp_path / "said")} == {os.getpid()}

    given = Step(Ending("exit", tmp_path / "mended"), key_by=by_seven)
    with pytest.raises(ChildLost, match="ended with status 3"):
        new_job(tmp_path / "snapshots", range(200), given, Kept()).run_sync()


def test_functions_that_cannot_be_sent_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotSendable, match="key_by of step priced cannot be sent"):
        new_job(tmp_path, [1], Step(plus_one, "priced", key_by=lambda value: value), Kept())


OPTIONS = """
import sys
from pathlib import Path
from async_op import Job

async def options(value): return [sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions, __debug__]
async def check(values, epoch): Path("seen").write_text(str(values[0] == OWN))

OWN = [sys.flags.optimize, sys.flags.utf8_mode, sys.warnoptions, __debug__]

if __name__ == "__main__":
    Job([1], options, check, snapshots="snapshots", job_id="job", processes=1).run_sync()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given", first_is_quick([["-O", "-X", "utf8", "-W", "error::UserWarning"], ["-I"]]), ids=" ".join
)
def test_children_have_the_options_of_the_interpreter_that_starts_them(tmp_path: Path, given: list[str]) -> None:
    (tmp_path / "program.py").write_text(OPTIONS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(
        [sys.executable, *given, "program.py"],
        check=False,
        timeout=SECONDS,
        cwd=tmp_path,
        env=environment | ({"PYTHONPATH": str(Path.cwd())} if "-I" not in given else {}),
    )
    assert ended.returncode == 0
    assert (tmp_path / "seen").read_text() == "True"


PROGRAM = """
from async_op import Job
from async_op.job.errors import ProgramNotImported

async def same(value): return value
async def keep(values, epoch): pass

try:
    Job([1], same, keep, snapshots="snapshots", job_id="job", processes=3).run_sync()
except ProgramNotImported as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("arguments", "cause"),
    first_is_quick(
        [
            (["program.py"], "JobInsideEventLoop: "),
            (["-c", PROGRAM], "AttributeError: Can't get attribute 'same'"),
            (["-"], "FileNotFoundError: .*<stdin>"),
        ]
    ),
    ids=["without a guard", "as in a notebook", "from a pipe"],
)
def test_a_program_that_children_cannot_import_is_told_how_it_can_be(
    tmp_path: Path, arguments: list[str], cause: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        timeout=SECONDS,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        input=PROGRAM,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0
    assert not re.search("Fatal error|was destroyed", ended.stderr), ended.stderr
    assert re.match(
        rf'a child process imports .* if __name__ == "__main__".*ended with {cause}', ended.stdout.replace("`", "")
    )


def one_cent(value: int) -> int:
    return 1


def test_a_budget_is_spent_over_all_processes_and_restarts(tmp_path: Path) -> None:
    sink, mended = Kept(), tmp_path / "mended"
    costly = Resilience(budget=Budget(120, "cents", cost=one_cent))
    step = Step(Ending("kill", mended), key_by=by_seven, resilience=costly, on_error="skip")
    with pytest.raises(ChildLost):
        new_job(tmp_path / "snapshots", range(200), step, sink).run_sync()

    mended.touch()
    new_job(tmp_path / "snapshots", range(200), step, sink).run_sync()
    assert len(set(sink.values)) == len(sink.values) == 120


def test_snapshots_in_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot read the memory"):
        Job([1], plus_one, Kept(), snapshots="memory://jobs", job_id="job", processes=2)


@pytest.mark.parametrize("processes", [0, 1.5, "all", 5])
def test_the_number_of_processes_is_checked(tmp_path: Path, processes: Any) -> None:
    with pytest.raises(ConfigError, match="processes"):
        new_job(tmp_path, [1], plus_one, Kept(), processes=processes)


def test_auto_takes_a_process_for_each_processor_and_no_more_than_there_are_subtasks(tmp_path: Path) -> None:
    job = new_job(tmp_path, range(10), plus_one, Kept(), processes="auto", parallelism=1)
    job.run_sync()

    assert job.progress().children == ()


GROUPS = {
    "version 2, in a container": ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
    "version 2, a unit of systemd": (
        "0::/system.slice/a.service\n",
        {"system.slice/a.service/cpu.max": "300000 100000"},
        3,
    ),
    "version 2, limited from above": (
        "0::/a/b\n",
        {"cpu.max": "max 100000", "a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"},
        1,
    ),
    "version 1": (
        "2:cpuacct,cpu:/outside\n1:memory:/\n0::/\n",
        {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
        1,
    ),
    "no limit": ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    "nonsense": ("cpu\n", {"cpu.max": "many"}, 8),
    "no control groups": (None, {}, 8),
}


@pytest.mark.parametrize(("own", "files", "expected"), GROUPS.values(), ids=GROUPS)
def test_auto_takes_no_more_processes_than_the_limit_of_a_container_allows(
    own: str | None, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own is not None:
        (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    monkeypatch.setattr(launching, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(launching, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)

    assert launching.processes_of("auto", None) == (expected if expected > 1 else None)
