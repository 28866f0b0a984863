"""Tables on narrow terminals: no line is wrapped, no number is broken, and what matters most stays."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console
from rich.text import Text

from snapshots import SnapshotStore
from snapshots.cli import output
from snapshots.cli.output import ConsoleOutput, Table
from tests.snapshot_kit import parts, record, words
from tests.snapshots.cli_kit import Cli

WIDTHS = pytest.mark.parametrize("width", [60, 80])


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A long history of large numbers, with a pin, a delta, a repartition and elements in flight."""
    store = SnapshotStore(tmp_path_factory.mktemp("state"), "enrich_orders_of_the_day")
    content = {"count": dict.fromkeys(words(20_000), 1), "profile": dict.fromkeys(words(500), "x" * 50)}
    store.write(parts(content, in_flight=[record(key, at) for at, key in enumerate(words(1200))]))
    store.pin(1)
    store.repartition(16)
    store.write(parts(content))
    return store.uri


@pytest.fixture
def narrow(width: int, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(output, "new_console", lambda: Console(width=width, file=file))
    return file


@WIDTHS
@pytest.mark.parametrize("command", ["inspect", "plan", "diff", "ls", "get"])
def test_reports_fit_narrow_terminals(cli: Cli, uri: str, narrow: io.StringIO, width: int, command: str) -> None:
    arguments = {"plan": ["--parallelism", "5"], "diff": ["1", "3"], "get": ["key 7"]}.get(command, [])
    address = uri.rpartition("/")[0] if command == "ls" else uri

    assert cli(command, address, *arguments).code == 0

    lines = narrow.getvalue().splitlines()
    # Titles are not wrapped by us, but by the terminal.
    titles = ("snapshots in", "from parallelism", "owners of the key groups", "from snapshot", "bytes by key group")
    assert not [line for line in lines if len(line) > width and not line.startswith(titles)]


@WIDTHS
def test_the_history_of_a_narrow_terminal_has_what_matters(cli: Cli, uri: str, narrow: io.StringIO, width: int) -> None:
    assert cli("inspect", uri).code == 0

    history = narrow.getvalue().rpartition("history")[2].splitlines()[1:]
    heading, *rows = [line.strip(" ┃│") for line in history if any(character.isalnum() for character in line)]
    assert heading.startswith("version")
    assert "created" in heading
    assert "size" in heading
    assert len(rows) == 3  # one line each
    assert all((" ago" in row and " MiB" in row) or " KiB" in row for row in rows)
    assert "pinned" in rows[-1]


@pytest.mark.parametrize("width", [40, 60, 77, 200])
def test_a_plan_draws_each_side_on_one_line(cli: Cli, tmp_path: Path, narrow: io.StringIO, width: int) -> None:
    store = SnapshotStore(tmp_path, "enrich")
    store.claim(parallelism=3, max_parallelism=128)

    assert cli("plan", store.uri, "--parallelism", "40").code == 0

    title, *lines = narrow.getvalue().partition("from parallelism")[0].splitlines()
    drawn = [line.replace("│", " ").split() for line in lines if any(character.isalnum() for character in line)]
    assert [words_[0] for words_ in drawn] == ["before", "after", "moves"]
    assert {len(words_[1]) for words_ in drawn} == {min(width - 13, 64)}
    assert ". stays, ^ moves" in title
    assert "a is subtask 10, b 11 and so on, and after z, subtask 36 is 0 again" in title


def test_a_table_loses_its_lines_first_and_then_what_it_can_spare() -> None:
    table = Table(
        "t", ("name", "rows", "bytes", "note"), (("abc", 1_000_000, 2_000_000, "long text"),), ("note", "rows")
    )

    def heading(width: int) -> str:
        console = Console(width=width, file=io.StringIO())
        with console.capture() as captured:
            console.print(output.fitted(table, console))
        return captured.get().splitlines()[1 if "┏" in captured.get() else 0]

    assert heading(80).split() == ["┃", "name", "┃", "rows", "┃", "bytes", "┃", "note", "┃"]
    assert heading(40).split() == ["name", "rows", "bytes", "note"]
    assert heading(30).split() == ["name", "rows", "bytes"]
    assert heading(16).split() == ["name", "bytes"]


def test_pipes_get_the_whole_tables(cli: Cli, uri: str) -> None:
    assert isinstance(output.output_for(as_json=False), ConsoleOutput)
    shown = cli("inspect", uri).out

    for column in ("subtasks", "deltas", "added", "in flight", "pinned"):
        assert column in shown


def test_people_get_times_and_sizes_and_programs_get_exact_ones(cli: Cli, uri: str) -> None:
    people, programs = cli("inspect", uri).out, cli("inspect", uri, "--json").json

    assert " UTC (" in people
    assert " ago)" in people
    assert programs["created_at"] not in people
    assert programs["history"][0]["bytes"] == programs["bytes"]


def test_kept_outputs_are_shown_as_such(cli: Cli, tmp_path: Path) -> None:
    pending = SnapshotStore(tmp_path, "enrich").begin()
    table = pa.table({"user": ["a", "b", "c"]})
    handles = [pending.write_subtask(part, table) for part in parts({"count": {"a": 1}})]
    snapshot = pending.commit(handles)

    assert cli("inspect", snapshot.folder.uri, "--json").json["output_rows"] == 6
    assert "of outputs that are kept" in cli("inspect", snapshot.folder.uri).out
    assert Text(str(snapshot.manifest.rows_total)).plain in cli("inspect", snapshot.folder.uri).out
