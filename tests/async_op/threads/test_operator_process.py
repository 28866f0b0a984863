"""How a process ends in which functions have left something behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hosting.kit import is_running, wait_until

LEAVES = """
import logging, logging.handlers, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Process
from async_op.threads import operator_process

status, seconds = int(sys.argv[1]), float(sys.argv[2])
operator_process._TIDY_SECONDS = 60.0 if seconds < 60 else 3.0
executor = ProcessPoolExecutor(1)
working = executor.submit(time.sleep, seconds)
while not executor._processes:
    pass
left = [Process(target=time.sleep, args=(1000,), daemon=True), *executor._processes.values()]
left[0].start()
threading.Thread(target=time.sleep, args=(1000,)).start()
kept = logging.handlers.MemoryHandler(1000, target=logging.StreamHandler(sys.stdout))
logging.getLogger().addHandler(kept)
logging.getLogger().warning(" ".join(str(one.pid) for one in left))
operator_process.end_process(status)
"""


@pytest.mark.parametrize(("status", "seconds"), [(0, 0.0), (0, 1000.0), (3, 1000.0)])
def test_nothing_that_was_started_outlives_a_process_or_keeps_it_alive(status: int, seconds: float) -> None:
    command = [sys.executable, "-c", LEAVES, str(status), str(seconds)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=120)

    assert ended.returncode == status
    pids = [int(pid) for pid in ended.stdout.split()]  # a record that a handler had not written yet
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_running, pids)))
