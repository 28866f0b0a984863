"""The exit code of each error, and what is printed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from keygroups.errors import ConfigError, KeyGroupsError
from snapshots.cli.output import exit_code_of
from snapshots.errors import CommitConflict, CommitOutcomeUnknown, SnapshotNotFound, WriterFenced
from snapshots.store import SnapshotStore
from tests.snapshots.cli_kit import Cli, G


@pytest.mark.parametrize(
    "command", [["inspect"], ["claim"], ["plan", "--parallelism", "3"], ["repartition", "--parallelism", "3"]]
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
