"""What a Python worker of Spark collects after a task: the garbage of each, and no module again."""

from __future__ import annotations

import subprocess
import sys

WORKER = """\
import gc, weakref
import async_op.spark.task.epoch_task
from async_op.threads.garbage import quick_collections


class Cycle:
    def __init__(self):
        self.itself = self


for task in range(2):
    with quick_collections():
        cycle = weakref.ref(Cycle())
    gc.collect()
    print(cycle() is None, len(gc.get_objects()) < 1_000)
"""


def test_a_worker_looks_at_no_module_after_its_first_task_and_collects_the_garbage_of_each() -> None:
    worker = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)

    assert worker.stdout == "True True\n" * 2
