"""A program that has ended ends, whatever hangs: real processes, their exit codes, and the signals of supervisors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.quick import first_is_quick

BEGIN = '''
import asyncio, sys, threading

class WithoutPandas:
    """Where pandas is installed, pyarrow loads it for its first array: a third of the time of such a program."""

    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ImportError(name)

sys.meta_path.insert(0, WithoutPandas())
from async_op import AsyncDataStream, AsyncWaitOperator, BlockingFunction, Job, Step, cancellation
from async_op.job import job as jobs

# In these programs, what ignores its cancellation is given up after 0.5 s, not 5.
cancellation._WAIT_SECONDS, jobs._THREADS_SECONDS = 0.05, 0.5

def hang(value=None):
    print("hangs", flush=True)
    threading.Event().wait()

def blocks(value):
    if value == 0:
        hang()
    if value == 2:
        raise ValueError("wrong")
    return value

async def stubborn():
    print("hangs", flush=True)
    while True:
        try:
            await asyncio.sleep(1000)
        except:
            pass

async def stream(values, **options):
    return [one async for one in AsyncDataStream.unordered_wait(values, blocks, **options)]

async def operator(values, **options):
    async with AsyncWaitOperator(blocks, print, **options) as operator:
        for value in values:
            await operator.process(value)
        await operator.finish()

def job(values, step=blocks, sink=lambda values, epoch: None, **options):
    step = Step(step, **options)
    return Job(values, step, sink, snapshots=sys.argv[1], job_id="job", snapshot_interval=0.05)

def endless():
    import itertools, time
    for value in itertools.count(3):
        time.sleep(0.01)
        yield value
'''

ENDS = {
    "a stream ends well": ("asyncio.run(stream([0, 1], timeout=0.2, on_error='skip'))", 0),
    "a stream fails": ("asyncio.run(stream([0, 1, 2]))", 1),
    "an operator ends well": ("asyncio.run(operator([0, 1], timeout=0.2, on_error='skip'))", 0),
    "an operator fails": ("asyncio.run(operator([0, 1, 2]))", 1),
    "a job ends well": ("asyncio.run(job([0, 1], timeout=0.2, on_error='skip').run())", 0),
    "a job fails": ("asyncio.run(job([0, 1, 2]).run())", 1),
    "run_sync ends well": ("job([0, 1], timeout=0.2, on_error='skip').run_sync()", 0),
    "run_sync fails": ("job([0, 1, 2]).run_sync()", 1),
    "a stream is left": (
        """
        async def main():
            async for value in AsyncDataStream.unordered_wait([1, 0], blocks, capacity=2):
                break
        asyncio.run(main())
        """,
        0,
    ),
    "a call ignores its cancellation when run_sync fails": (
        """
        async def step(value):
            if value == 2:
                raise ValueError("wrong")
            await stubborn()
        job([0, 2], step).run_sync()
        """,
        1,
    ),
    "a task that is left ignores its cancellation at the good end of run_sync": (
        """
        left = []
        async def step(value):
            left.append(asyncio.ensure_future(stubborn()))
        job([0], step).run_sync()
        """,
        0,
    ),
    "asyncio.to_thread hangs in run_sync": (
        """
        async def step(value):
            await asyncio.wait_for(asyncio.to_thread(hang), 0.2)
        job([0], step, on_error="skip").run_sync()
        """,
        0,
    ),
}


@contextmanager
def program(text: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and see to it that nothing of it is left."""
    code = BEGIN + textwrap.dedent(text)
    command = [sys.executable, "-c", code, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code; the limit is only there to end a test that fails."""
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"the program ended before {line!r}")


@pytest.mark.parametrize("name", first_is_quick(ENDS))
def test_a_blocking_call_that_hangs_keeps_no_program_alive(name: str, tmp_path: Path) -> None:
    text, expected = ENDS[name]
    with program(text, tmp_path) as process:
        code, errors = ended(process)
    assert code == expected, errors
    if expected:
        assert "ElementFailed" in errors


STOPPED = {
    "a blocking function": "job([1, 0]).run_sync()",
    "a source": """
        def source():
            yield 1
            hang()
        job(source()).run_sync()
        """,
    "asyncio.to_thread": """
        async def step(value):
            await asyncio.to_thread(hang)
        job([1], step).run_sync()
        """,
    "a call that ignores its cancellation": """
        async def step(value):
            await stubborn()
        job([1], step).run_sync()
        """,
    "nothing": """
        def step(value):
            print("hangs", flush=True)
        job(endless(), step).run_sync()
        """,
}


@pytest.mark.parametrize("number", first_is_quick([signal.SIGTERM, signal.SIGINT]))
@pytest.mark.parametrize("hanging", first_is_quick(STOPPED))
def test_the_first_signal_ends_run_sync_with_0(hanging: str, number: signal.Signals, tmp_path: Path) -> None:
    with program(STOPPED[hanging], tmp_path) as process:
        read_until(process, "hangs")
        process.send_signal(number)
        code, errors = ended(process)
    assert code == 0, errors


SINK_HANGS = """
    def sink(values, epoch):
        hang()
    made = job([1], sink=sink)
    stop = made._stop_at_cut
    def told():
        stop()
        print("stops", flush=True)
    made._stop_at_cut = told
    made.run_sync()
    """


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "expected"), first_is_quick([(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
)
def test_the_second_signal_ends_run_sync_though_its_sink_hangs(
    number: signal.Signals, expected: int, tmp_path: Path
) -> None:
    """Python ends a program with an uncaught `KeyboardInterrupt` by the signal itself, which shells show as 130."""
    with program(SINK_HANGS, tmp_path) as process:
        read_until(process, "hangs")
        process.send_signal(number)
        read_until(process, "stops")
        process.send_signal(number)
        code, errors = ended(process)
    assert code == expected, errors


THIRD_SIGNAL_ENDS = {
    "a commit hangs": """
        from async_op.job.committing import Committer
        Committer.commit_cut = lambda *arguments: hang()
        made = job([1])
        """,
    "a function blocks the event loop": """
        async def step(value):
            hang()
        made = job([1], step)
        """,
}
TOLD = """
    from async_op.job.signals import EndingSignals
    came = EndingSignals._came
    def told(self, *arguments):
        came(self, *arguments)
        print("told", flush=True)
    EndingSignals._came = told
    made.run_sync()
    """


@pytest.mark.thorough
@pytest.mark.parametrize("what", first_is_quick(THIRD_SIGNAL_ENDS))
def test_the_third_signal_ends_run_sync_whatever_hangs(what: str, tmp_path: Path) -> None:
    with program(textwrap.dedent(THIRD_SIGNAL_ENDS[what]) + textwrap.dedent(TOLD), tmp_path) as process:
        read_until(process, "hangs")
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            read_until(process, "told")
        process.send_signal(signal.SIGTERM)
        code, errors = ended(process)
    assert code == -signal.SIGTERM, errors
