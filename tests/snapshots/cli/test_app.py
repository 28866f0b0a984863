"""The program around the commands: its arguments, its options and its extra."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from snapshots.cli import app, main, options
from snapshots.errors import SnapshotNotFound
from snapshots.store import SnapshotStore
from tests.quick import first_is_quick
from tests.snapshots.cli_kit import Cli, subtask_snapshot


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


def run_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.modules[{package!r}] = None; from snapshots.cli import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", first_is_quick(["typer", "jinja2", "packaging", "rich"]))
def test_the_command_line_says_which_extra_is_missing(package: str) -> None:
    ended = run_without(package, "doctor")

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert f"needs {package}" in ended.stderr
    assert "pip install 'keygroups[cli]'" in ended.stderr


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_works_without_the_extra(option: str) -> None:
    ended = run_without("typer", option)

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


MAIN = "from snapshots.cli import main; main()"


def test_ctrl_c_while_it_starts_shows_no_traceback() -> None:
    program = f"""
import sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "snapshots.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
{MAIN}"""
    ended = subprocess.run([sys.executable, "-c", program, "doctor"], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.thorough
def test_characters_that_the_output_cannot_hold_are_escaped(uri: str) -> None:
    SnapshotStore.at(uri).write([subtask_snapshot(0, (), 0), subtask_snapshot(1, (), 0)], source_position={"file": "ü"})
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-c", MAIN, "inspect", uri]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\xfc" in ended.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("closed", first_is_quick([">&-", "2>&-"]))
def test_a_closed_output_is_none(uri: str, closed: str) -> None:
    command = f"{shlex.quote(sys.executable)} -c '{MAIN}' inspect {shlex.quote(uri)} {closed}"
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ended = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, env=ascii_only)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert bool(ended.stdout) == (closed == "2>&-")


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", first_is_quick([[], ["--json"]]), ids=["table", "json"])
@pytest.mark.parametrize("buffering", first_is_quick(["", "1"]), ids=["at the end", "at once"])
def test_a_reader_that_has_gone_is_no_failed_check(uri: str, arguments: list[str], buffering: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": buffering}
    command = [sys.executable, "-c", MAIN, "inspect", uri, *arguments]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    os.close(writing)

    assert (ended.returncode, ended.stderr) == (141, "")


COMMANDS = [str(command.callback.__name__) for command in app.app.registered_commands if command.callback]


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_is_whole_on_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    program: Any = typer.main.get_command(app.app)
    command = program if name is None else program.commands[name]

    answer = cli(*([] if name is None else [name]), "-h")

    assert answer.code == 0
    assert answer == cli(*([] if name is None else [name]), "--help")
    assert "…" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 60
    words = " ".join(answer.out.split())
    for param in command.params:
        assert param.opts[-1] in words if param.param_type_name == "option" else f" {param.metavar} " in words


def test_flags_take_no_value_and_arguments_have_no_marks(cli: Cli) -> None:
    answer = cli("get", "--help").out

    assert "Usage: keygroups get URI KEY... [OPTIONS]\n" in answer
    assert "{" not in answer
    (flag,) = [line for line in answer.splitlines() if " --json " in line]
    assert flag.split()[:2] == ["--json", "Print"]


def test_the_list_of_commands_has_whole_sentences(cli: Cli) -> None:
    listed = " ".join(cli("--help").out.split())

    for command in app.app.registered_commands:
        assert " ".join(str(getattr(command.callback, "__doc__", "")).split()) in listed


def test_next_steps_are_those_of_the_command_line(cli: Cli, uri: str, tmp_path: Path) -> None:
    unclaimed = cli("claim", tmp_path / "empty" / "new")
    kept = cli("repartition", uri, "--parallelism", "2", "--max-parallelism", "256")
    taken = cli("copy", uri, uri)

    assert (unclaimed.code, kept.code, taken.code) == (3, 2, 4)
    assert "or pass --parallelism to begin an operator there" in unclaimed.err
    assert "every row is written again: add --rewrite\n" in kept.err
    assert "choose a folder without snapshots" in taken.err
    assert not any("=None" in answer.err or "=True" in answer.err for answer in (unclaimed, kept, taken))
    assert SnapshotStore.at(uri).versions() == [1]
