"""The commands on the folder of a job: states are named by step and state, and elements say where they are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from async_op import Job
from keygroups import key_group_of
from snapshots import SnapshotStore
from tests.async_op.job.kit import Epochs, Log, running
from tests.async_op.kit import eventually
from tests.snapshot_kit import G, content_of, parts, record, watermark
from tests.snapshots.cli_kit import Cli
from tests.snapshots.job_kit import alone, source_parts

A = key_group_of("a", G)


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    store = SnapshotStore(tmp_path, "job")
    elements = [record("a", 0, element_id="first"), record("b", 0, element_id="second"), watermark(5, 1)]
    for number in (1, 2):
        store.write(
            {
                "source": source_parts(),
                "enrich": parts({"count": {"a": number, "b": 2}}, in_flight=elements, watermarks={0: 5, 1: 7}),
                "score": parts({"count": {"a": 3}}, in_flight=[record("a", 0, element_id="first")]),
            },
            source_position={"lag": number},
        )
    return store


def test_inspect_shows_the_steps(cli: Cli, store: SnapshotStore) -> None:
    report = cli("inspect", store.uri, "--json").json
    assert [(one["name"], one["states"], one["in_flight"], one["watermarks"]) for one in report["steps"]] == [
        ("source", [], 0, [None, None]),
        ("enrich", ["count", "profile"], 3, [5, 7]),
        ("score", ["count", "profile"], 1, [None, None]),
    ]
    assert [one["name"] for one in report["states"]] == [
        *("enrich.count", "enrich.profile"),
        *("score.count", "score.profile"),
    ]
    assert report["in_flight"]["elements"] == 4
    shown = cli("inspect", store.uri).out
    assert "steps of the job" in shown
    assert "lowest watermark" not in shown
    assert "1970-01-01 00:00:00 UTC" in shown


async def run_a_job(folder: Path) -> None:
    """Run a job that cuts before and after its elements come, and at its end, when two calls are under way."""

    async def slow(value: int) -> int:
        if value > 4:
            reached.append(value)
            await asyncio.Event().wait()
        return value

    reached: list[int] = []
    job = Job(source := Log([]), slow, Epochs(), snapshots=str(folder), job_id="orders")
    async with running(job):
        await eventually(lambda: job.progress().state == "running")
        await job.snapshot()
        await source.append(0, *range(7))
        await eventually(lambda: job.progress().outputs == 5 and len(reached) == 2)
        await job.snapshot()


def test_what_a_job_has_counted_is_shown(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(run_a_job(tmp_path))
    folder, page = tmp_path / "orders", tmp_path / "page.html"

    report = cli("top", folder, "--once", "--json").json
    assert {name: count for name, count in report["counts"].items() if count} == {"rows": 7, "outputs": 5, "calls": 7}
    assert [one["calls"] for one in report["recent"]] == [0, 7, 0]
    assert (report["epoch"]["resident"], report["in_flight"]) == (None, 2)
    assert report["epoch"]["oldest_call_milliseconds"] >= 0
    assert "calls" in cli("top", folder, "--once").out

    metrics = cli("inspect", folder, "--version", 2, "--json").json["metrics"]
    assert (metrics["calls"], metrics["in_flight"]) == (7, 2)
    assert "metric calls" in cli("inspect", folder).out

    assert cli("report", folder, "-o", page).code == 0
    assert "Calls per epoch" in page.read_text()


def test_one_key_is_shown_in_all_steps(cli: Cli, store: SnapshotStore) -> None:
    answer = cli("get", store.uri, "a", "--json").json
    assert [(one["name"], one["rows"][0]["value"]) for one in answer["states"]] == [
        ("enrich.count", 2),
        ("score.count", 3),
    ]
    assert [(one["step"], one["element_id"]) for one in answer["in_flight"]] == [
        ("enrich", "first"),
        ("score", "first"),
    ]
    assert "enrich" in cli("get", store.uri, "a", "--state", "score.count").out


def test_versions_are_compared_step_by_step(cli: Cli, store: SnapshotStore) -> None:
    report = cli("diff", store.uri, "1", "2", "--json").json
    changed = {one["name"]: one["changed"] for one in report["states"]}
    assert changed == {"enrich.count": 1, "enrich.profile": 0, "score.count": 0, "score.profile": 0}
    assert report["in_flight"]["still_pending"] == 3
    by_step = {step: one["still_pending"] for step, one in report["in_flight_by_step"].items()}
    assert by_step == {"source": 0, "enrich": 2, "score": 1}
    assert "still pending" in cli("diff", store.uri, "1", "2").out
    (listed,) = cli("ls", store.uri.rpartition("/")[0], "--json").json["operators"]
    assert (listed["kind"], listed["operator_id"]) == ("job", store.operator_id)


def test_states_and_elements_are_exported(cli: Cli, store: SnapshotStore, tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    assert cli("export", store.uri, "--state", "enrich.count", "--to", target).code == 0
    assert sorted(json.loads(line)["value"] for line in target.read_text().splitlines()) == [2, 2]
    assert cli("export", store.uri, "--in-flight", "--to", target).code == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted((one["step"], one["element_id"]) for one in found) == [
        *(("enrich", ""), ("enrich", "first"), ("enrich", "second")),
        ("score", "first"),
    ]
    assert cli("export", store.uri, "--in-flight", "--key-groups", A, "--to", target).code == 0
    assert [json.loads(line)["step"] for line in target.read_text().splitlines()] == ["enrich", "score"]


def test_states_are_edited_and_the_job_is_rescaled_checked_and_shown(
    cli: Cli, store: SnapshotStore, tmp_path: Path
) -> None:
    assert cli("edit", store.uri, "--drop", "score.profile", "--rename", "enrich.count=enrich.seen").code == 0
    assert cli("edit", store.uri, "--rename", "enrich.seen=seen").code == 2
    assert cli("repartition", store.uri, "--parallelism", "3").code == 0
    assert cli("compact", store.uri).code == 0
    assert cli("verify", store.uri).code == 0
    assert cli("copy", store.uri, tmp_path / "other").code == 0
    assert cli("top", store.uri, "--once").code == 0
    assert cli("ls", tmp_path).code == 0
    page = tmp_path / "page.html"
    assert cli("report", tmp_path / "other", "-o", page).code == 0
    assert "enrich.seen" in page.read_text()
    assert "<th>steps</th>" in page.read_text()
    copied = SnapshotStore(tmp_path, "other").load()
    assert (copied.parallelism, copied.step_names) == (3, ("source", "enrich", "score"))
    assert copied.state_names == ("enrich.seen", "enrich.profile", "score.count")
    assert content_of(alone(copied, "score"))["count"] == {"a": 3}
