"""What the documentation says about the command line, compared with the command line."""

from __future__ import annotations

import datetime as dt
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from snapshots import SnapshotStore
from snapshots.cli import app
from snapshots.upkeep import rewrite
from tests.snapshot_kit import parts, record, words
from tests.snapshots.cli_kit import Cli

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
CLI = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]
PROGRAM = "from snapshots.cli import main; main()"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    made = SnapshotStore(tmp_path / "store", "enrich")
    profiles: dict[Any, Any] = {"a": {"n": 1}}
    made.write(parts({"count": dict.fromkeys(words(50), 1), "profile": profiles}, in_flight=[record("a", 0)]))
    made.write(parts({"count": dict.fromkeys(words(60), 2)}, in_flight=[record("a", 0)]))
    return made.uri


def section(command: str) -> str:
    """Return what the page says of a command."""
    return CLI.partition(f"\n## {command}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_as_it_helps(name: str) -> None:
    found, command = section(name), COMMANDS[name]

    assert " ".join(command.help.split()) in found
    options = {one.opts[-1]: one for one in command.params if one.param_type_name == "option" and one.name != "help"}
    assert set(re.findall(r"^\| .*?`(--[a-z-]+)`", found, re.MULTILINE)) == set(options)
    for option in options.values():
        assert " ".join(option.help.split()) in found
    for argument in command.params:
        if argument.param_type_name == "argument":
            assert argument.metavar in found.partition("\n\n| ")[0]


def keys_of(value: Any) -> set[str]:
    """Return the names of all fields of a JSON document, those by state, age and attempt excepted."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value) | set().union(*(keys_of(value[key]) for key in value if key not in FREE), set())


FREE = {
    *("largest_keys", "in_flight_by_age", "in_flight_by_attempt", "metrics", "source_position"),
    *("value", "outputs", "before", "after"),
}

CALLS: dict[str, list[str]] = {
    "ls": [],
    "get": ["a", "--version", "1"],
    "inspect": ["--largest", "1"],
    "top": ["--once"],
    "plan": ["--parallelism", "3"],
    "repartition": ["--parallelism", "3"],
    "diff": ["1", "2", "--rows"],
    "export": ["--state", "count", "--to", "TARGET.csv"],
    "report": ["-o", "TARGET.html"],
    "edit": ["--rename", "count=number"],
    "copy": ["TARGET"],
    "compact": [],
    "claim": [],
    "verify": [],
    "gc": [],
}


@pytest.mark.parametrize("name", CALLS)
def test_every_field_of_the_json_is_documented_and_there(cli: Cli, uri: str, tmp_path: Path, name: str) -> None:
    arguments = [one.replace("TARGET", str(tmp_path / "target")) for one in CALLS[name]]

    answer = cli(name, uri, *arguments, "--json")

    assert answer.code == 0
    documented = section(name).partition("JSON:")[2]
    fields = set(re.findall(r"`([a-z_]+)`", documented))
    found = keys_of(answer.json)
    assert found - fields == set()
    of_empty_lists = {"path", "first", "last", "what", "key", "key_group", "entries", "mode", "items"}
    of_one_process = {"number", "pid", "processor_seconds"}
    of_no_epoch_under_way = {
        "at",
        "seconds",
        "phase",
        "sink",
        "commit",
        "hosts",
        "waiting",
        "oldest_call_seconds",
        "calls",
    }
    assert fields - found <= of_empty_lists | (of_no_epoch_under_way | of_one_process if name == "top" else set())


EPOCH_MILLISECONDS = range(10**11, 10**14)
"""From 1973 on, and far beyond: no count or size of these tests is as large."""


def points_in_time(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return the fields of a JSON document that are points in time, by their names or by what they look like."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from points_in_time(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from points_in_time(one, name)
    elif name.endswith("_at") or (isinstance(value, int) and value in EPOCH_MILLISECONDS):
        yield name, value


@pytest.mark.parametrize("name", CALLS)
def test_points_in_time_have_the_forms_that_are_documented(cli: Cli, tmp_path: Path, name: str) -> None:
    made = SnapshotStore(tmp_path / "store", "enrich")
    for _ in range(2):
        made.write(parts({"count": {"a": 1}, "profile": {"a": 1}}, watermarks={0: 1_700_000_000_000}))
    arguments = [one.replace("TARGET", str(tmp_path / "target")) for one in CALLS[name]]

    for field, value in points_in_time(cli(name, made.uri, *arguments, "--json").json):
        if field == "created_at":
            assert dt.datetime.fromisoformat(value).utcoffset() == dt.timedelta(0)
        elif field == "expires_at":
            assert value is None
        else:
            assert (field, value) == ("watermarks", 1_700_000_000_000)
    assert "`created_at` is text in ISO 8601, in UTC. Watermarks and timestamps" in CLI


def test_every_command_with_json_is_called() -> None:
    with_json = {name for name, one in COMMANDS.items() if any("--json" in option.opts for option in one.params)}

    assert with_json == {*CALLS, "doctor", "logs"}  # which have no snapshot to show


def test_every_command_that_reads_a_snapshot_takes_storage_options() -> None:
    reading = {name for name, one in COMMANDS.items() if {"uri", "folder"} & {option.name for option in one.params}}

    assert reading == set(COMMANDS) - {"doctor", "run"}
    for name in reading:
        assert any("--storage-option" in option.opts for option in COMMANDS[name].params)


def test_the_exit_codes_are_those_that_are_documented(
    cli: Cli, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("verify", uri).code == 0
    assert cli("inspect", f"{tmp_path}/store/absent").code == 3
    assert cli("inspect", uri, "--version", "0").code == 2
    assert cli("inspect", uri, "--no-such-option").code == 2
    assert cli("inspect", "ftp://host/enrich").code == 1
    assert cli("copy", uri, uri).code == 4
    put = rewrite.put_manifest

    def overtaken(folder: Any, manifest: Any) -> None:
        monkeypatch.setattr(rewrite, "put_manifest", put)
        SnapshotStore.on(folder).repartition(1)
        put(folder, manifest)

    monkeypatch.setattr(rewrite, "put_manifest", overtaken)
    assert cli("repartition", uri, "--parallelism", "3").code == 4
    for file in Path(uri.removeprefix("file://")).glob("data/*/keyed-count-*.parquet"):
        file.write_bytes(b"damaged")
    assert cli("verify", uri).code == 1
    assert cli("export", uri, "--state", "count", "--to", tmp_path / "x.csv").code == 1
    for code in range(5):
        assert f"| {code} | " in CLI


SECRETS = ["s3cr3t-value", "hunter2"]


@pytest.mark.parametrize("command", [name for name in CALLS if name != "copy"])
@pytest.mark.parametrize("place", ["option", "no option", "uri"])
def test_credentials_are_never_echoed(cli: Cli, tmp_path: Path, command: str, place: str) -> None:
    arguments = [one.replace("TARGET", str(tmp_path / "target")) for one in CALLS[command]]
    uri = "s3://user:hunter2@absent/enrich" if place == "uri" else f"{tmp_path}/enrich"
    options = {"option": ["--storage-option", f"secret={SECRETS[0]}"], "no option": ["--storage-option", SECRETS[0]]}

    answer = cli(command, uri, *arguments, *options.get(place, []))

    assert answer.code in {2, 3} or (place == "option" and answer.code)
    assert not any(secret in answer.out + answer.err for secret in SECRETS)


def test_states_are_dropped_and_renamed(cli: Cli, uri: str) -> None:
    answer = cli("edit", uri, "--drop", "profile", "--rename", "count=number")

    assert answer.code == 0
    assert "the states count, profile become number; no file is written" in answer.err
    assert SnapshotStore.at(uri).load(3).state_names == ("number",)
    assert cli("edit", uri).code == 2
    assert cli("edit", uri, "--rename", "number").code == 2
    assert cli("edit", uri, "--drop", "absent").code == 2


def test_a_snapshot_is_copied(cli: Cli, uri: str, tmp_path: Path) -> None:
    answer = cli("copy", uri, f"{tmp_path}/store/other", "--version", "1")

    assert answer.code == 0
    assert "copied snapshot 1 to other" in answer.out
    assert cli("verify", f"{tmp_path}/store/other").code == 0


CODECS = """
from fractions import Fraction
from keygroups import register_codec
register_codec("fraction", Fraction, str, Fraction)
"""


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


WRITES_FRACTIONS = """
from fractions import Fraction
import codecs_of_mine
from keygroups import ValueState
from snapshots import SnapshotStore
SnapshotStore("store", "enrich").bootstrap({ValueState("part"): [("a", Fraction(1, 3))]}, parallelism=1)
"""


@pytest.mark.thorough
def test_a_module_with_codecs_is_imported(tmp_path: Path) -> None:
    (tmp_path / "codecs_of_mine.py").write_text(CODECS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", WRITES_FRACTIONS], cwd=tmp_path, env=environment, check=True)
    arguments = ("export", "store/enrich", "--state", "part", "--to", "part.jsonl")

    without = run(*arguments, cwd=tmp_path)
    ended = run("--import", "codecs_of_mine", *arguments, cwd=tmp_path)

    assert without.returncode == 1
    assert "codec 'fraction', which is not registered" in without.stderr
    assert "keygroups --import MODULE" in without.stderr
    assert ended.returncode == 0
    assert '"value": "1/3"' in (tmp_path / "part.jsonl").read_text()
    assert run("--import", "no_such_module", *arguments, cwd=tmp_path).returncode == 2


@pytest.mark.thorough
def test_the_shell_completes_commands_and_options(tmp_path: Path) -> None:
    def completed(words_: str, place: int) -> list[str]:
        environment = {"_KEYGROUPS_COMPLETE": "complete_bash", "COMP_WORDS": words_, "COMP_CWORD": str(place)}
        return run(cwd=tmp_path, **environment).stdout.split()

    assert set(completed("keygroups re", 1)) == {"repartition", "report"}
    assert "--parallelism" in completed("keygroups plan --par", 2)
    assert "--install-completion" in CLI


def shown_on_a_terminal(arguments: list[str], **environment: str) -> str:
    """Return what a command writes to a terminal."""
    main, other = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | environment
    command = [sys.executable, "-c", PROGRAM, *arguments]
    process = subprocess.Popen(command, stdout=other, stderr=other, env=environment)
    os.close(other)
    shown = b""
    # The kernel says that the other end is closed by an error.
    while True:
        try:
            shown += os.read(main, 65536)
        except OSError:
            break
    os.close(main)
    assert process.wait() == 0
    return shown.decode()


@pytest.mark.thorough
def test_colours_and_progress_are_for_terminals(cli: Cli, uri: str) -> None:
    piped = cli("verify", uri)
    terminal = shown_on_a_terminal(["verify", uri])
    plain = shown_on_a_terminal(["verify", uri], NO_COLOR="1", TERM="dumb")

    assert "\x1b" not in piped.out + piped.err
    assert piped.err == ""
    assert "\x1b[1m" in terminal
    assert "verifying" in terminal
    assert "\x1b[" not in plain
