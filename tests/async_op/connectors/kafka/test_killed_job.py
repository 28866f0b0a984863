"""Exactly once from topic to topic: the job's process is killed at random moments, and started again.

A seeded sample runs by default; `--kills all` runs every seed.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from snapshots import SnapshotStore
from tests.async_op.connectors.kafka import killed_job
from tests.async_op.connectors.kafka.brokers import produce, read_all
from tests.quick import first_is_quick

SEEDS = 40
SAMPLE = 3
PARALLELISMS = (3, 4, 2)
RECORDS = 120
"""How many records come before each start: so many calls of each step follow at least, one cut and one epoch."""

USERS, GROUPS, PARTITIONS = 13, 5, 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        kills = metafunc.config.getoption("kills")
        seeds = range(SEEDS) if kills == "all" else sorted(random.Random(kills).sample(range(SEEDS), SAMPLE))
        metafunc.parametrize("seed", first_is_quick(seeds))


class World:
    """What outlives the job: topics, snapshots, and what was put into the topics."""

    def __init__(self, source: str, sink: str, topic: str, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.source, self.sink, self.topic, self.folder = source, sink, topic, folder
        self.records: list[dict[str, Any]] = []
        self.ends: Counter[int] = Counter()

    def put(self) -> None:
        """Put the next records into the topic; those of a user are in one partition."""
        fresh = []
        for number in range(len(self.records), len(self.records) + RECORDS):
            user = self.draw.randrange(USERS)
            record = {"number": number, "user": user, "group": self.draw.randrange(GROUPS)}
            partition = user % PARTITIONS
            fresh.append({"key": f"{user}", "value": json.dumps(record), "partition": partition})
            self.records.append(record)
            self.ends[partition] += 1
        produce(self.source, self.topic, fresh)

    def run(self, parallelism: int, moment: str = "") -> None:
        """Run the job until it dies at a moment, or to the end."""
        after = self.draw.randint(1, 2 * RECORDS) if moment == "called" else 1
        place = [self.source, self.sink, self.topic, str(self.folder)]
        command = [sys.executable, "-m", killed_job.__name__, *place, str(parallelism), moment, str(after)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        assert ended.returncode == (-signal.SIGKILL if moment else 0), ended.stderr

    def outputs(self) -> list[dict[str, Any]]:
        """Return what committed transactions have written."""
        committed = (self.folder / killed_job.TRANSACTIONS).read_text().split()
        records = [value.decode().partition(" ") for value in read_all(self.sink, self.topic)]
        return [json.loads(value) for transaction, _, value in records if transaction in committed]


@pytest.fixture
def world(cluster: str, server: str, served_topic: str, tmp_path: Path, seed: int) -> World:
    return World(cluster, server, served_topic, tmp_path, seed)


@pytest.mark.thorough
def test_a_job_that_is_killed_writes_each_output_once(world: World) -> None:
    moments = world.draw.sample(killed_job.MOMENTS, len(PARALLELISMS))
    for parallelism, moment in zip(PARALLELISMS, moments, strict=True):
        world.put()
        world.run(parallelism, moment)
    world.run(PARALLELISMS[0])

    assert_outputs(world)
    assert_snapshot(world)


def assert_outputs(world: World) -> None:
    """Each record came out once, with the right count of its user, and a place of its own in its group."""
    of_user: Counter[int] = Counter()
    expected = []
    for record in world.records:
        of_user[record["user"]] += 1
        expected.append(record | {"of_user": of_user[record["user"]]})
    outputs = world.outputs()
    places = sorted((one["group"], one.pop("of_group")) for one in outputs)
    assert sorted(outputs, key=lambda one: one["number"]) == expected
    sizes = Counter(record["group"] for record in world.records)
    assert places == [(group, place) for group in range(GROUPS) for place in range(1, sizes[group] + 1)]


def assert_snapshot(world: World) -> None:
    """State counts each record once, nothing is in flight, and positions are the ends of the partitions."""
    newest = SnapshotStore(world.folder, "job").load()
    for step, field in (("users", "user"), ("groups", "group")):
        counts = Counter(str(record[field]) for record in world.records)
        stored = newest.to_pandas(f"{step}.count")
        assert {str(key): value for key, value in zip(stored["key"], stored["value"], strict=True)} == counts
    assert newest.in_flight_count == 0
    shares = [newest.restore(subtask, step="source") for subtask in range(newest.parallelism)]
    assert dict(item for share in shares for item in share.operator_state("positions")) == world.ends
