"""A job on two processes that is left running: whether it stays exact through kills and rescales, and whether it grows.

    python -m benchmarks.job_soak --epochs 200
    python -m benchmarks.job_soak --hours 1 --series soak.jsonl --plot docs/job-soak.svg

Records of a Kafka topic, in librdkafka's mock cluster, with pauses. The service is slow and down now and then, fails,
and for some rows never answers; a second step has other keys, so that rows go from child to child. Every second parent
is killed (`kill -9`), the others stop at a cut. Each begins with another parallelism, which changes now and then
meanwhile. Now and then a child is killed, after which the job restarts. Afterwards all outputs, the state of both steps
and all calls are compared with what they must be. Needs Linux, for /proc.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Producer

from benchmarks._job_soak_run import GROUPS, JOB_ID, TOPIC, JobSettings, group_of
from benchmarks._soak import Soak, main_of, state_of
from benchmarks._soak_service import user_of
from snapshots import Snapshot

_PARTITIONS = 4
_PARALLELISMS = (2, 3, 4)
_QUIET_SECONDS = 3
_QUIET_EVERY = 4
_PUT_SECONDS = 0.05
_END_SECONDS = 60
_PROGRAM = b"async_op."


class Rows(threading.Thread):
    """Puts rows into the topic, and nothing in the last of every four times three seconds.

    Attributes
    ----------
    count : int
        How many rows are in the topic; they are numbered from zero.
    servers : str
        The brokers, which live as long as this object.
    """

    def __init__(self, per_second: int) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._per_second = per_second
        self._ends = threading.Event()
        self._cluster = Producer({"test.mock.num.brokers": "1", "log_level": 0})
        brokers = self._cluster.list_topics(timeout=60).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})

    def run(self) -> None:
        """Put rows into the topic until `end`."""
        while not self._ends.wait(_PUT_SECONDS):
            if int(time.time()) // _QUIET_SECONDS % _QUIET_EVERY:
                for row in range(self.count, self.count + max(1, round(self._per_second * _PUT_SECONDS))):
                    self._producer.produce(TOPIC, key=user_of(row), value=str(row), partition=row % _PARTITIONS)
                    self.count = row + 1
            self._producer.poll(0)

    def end(self) -> None:
        """Put no more rows into the topic."""
        self._ends.set()
        self.join()
        if self._producer.flush(_END_SECONDS):
            raise RuntimeError("the brokers do not take the rows")


class JobSoak(Soak):
    """A job on two processes."""

    program = "benchmarks._job_soak_run"
    killed = "parent"
    operator_id = JOB_ID
    count_state = "lookup.count"
    slack: ClassVar = {
        "parent, MB": (1.1, 32),
        "largest child, MB": (1.1, 32),
        "threads": (1.1, 8),
        "threads of a child": (1.1, 8),
        "open files": (1.1, 16),
        "open files of a child": (1.1, 16),
        "files of snapshots": (1.25, 50),
    }
    shown = ("children", "in flight")
    over_all_runs = ("files of snapshots",)

    def __init__(self, folder: Path, rows_per_second: int, series: Path | None = None) -> None:
        super().__init__(folder, rows_per_second, series)
        self._rows = Rows(rows_per_second)

    def go(self, run_epochs: int, goes_on: Callable[[Soak], bool]) -> None:
        """Put rows into the topic meanwhile."""
        self._rows.start()
        super().go(run_epochs, goes_on)

    def settings(self, number: int, epochs: int, *, is_last: bool) -> JobSettings:
        """Return what a parent is told; the last one comes to the end of the topic."""
        if is_last:
            self._rows.end()
        parallelism = _PARALLELISMS[number % len(_PARALLELISMS)]
        return JobSettings(str(self.folder), self._rows.servers, parallelism, epochs, is_last)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a parent; its children have to end by themselves."""
        process.kill()

    def check_ended(self, samples: list[dict[str, Any]]) -> list[str]:
        """Return which children have outlived their parent."""
        pids = {pid for sample in samples for pid in sample["pids"]}
        left = sorted(pid for pid in pids if not _ends(pid))
        return [f"the children {left} have outlived their parent"] if left else []

    def expected(self) -> list[int]:
        """Return all rows."""
        return list(range(self._rows.count))

    def other_state(self, newest: Snapshot) -> list[str]:
        """Return what is wrong with the places that the second step has given."""
        places = defaultdict(list)
        for row, _, _, place in self.table():
            places[group_of(row)].append(place)
        sizes = Counter(map(group_of, self.expected()))
        wrong = [group for group in range(GROUPS) if sorted(places[group]) != list(range(1, sizes[group] + 1))]
        problems = [f"the places in the groups {wrong} are not one by one"] if wrong else []
        if state_of(newest, "placing.place") != sizes:
            problems.append("the state of the second step has other counts than the rows")
        return problems


def _ends(pid: int) -> bool:
    """Tell whether a child ends soon; another process may have its number by now."""
    with suppress(OSError):
        waited = os.pidfd_open(pid)
        try:
            if _PROGRAM in Path(f"/proc/{pid}/cmdline").read_bytes():
                return bool(select.select([waited], [], [], _END_SECONDS)[0])
        finally:
            os.close(waited)
    return True


if __name__ == "__main__":
    sys.exit(main_of(JobSoak, __doc__))
