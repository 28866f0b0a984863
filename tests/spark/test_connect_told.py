"""What clients of a Spark Connect server are told when something is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.spark.connect_processes import client, told

pytestmark = pytest.mark.spark


def answer(url: str, folder: Path, case: str) -> Any:
    return told(client("connect_told", url, folder, case))


def test_a_module_that_the_server_cannot_import_is_named_before_anything_is_claimed(
    connect_url: str, tmp_path: Path
) -> None:
    assert answer(connect_url, tmp_path, "a module beside the script") == {"claimed": []}


@pytest.mark.thorough
def test_a_client_sees_the_lines_that_have_failed_beside_the_server(connect_url: str, tmp_path: Path) -> None:
    reasons = answer(connect_url, tmp_path, "tracebacks")
    assert "NameError: name 'valeu' is not defined" in reasons["function"]
    assert "OSError: the disk is full" in reasons["sink"]
    assert "OSError: the disk is full" in reasons["sink of an epoch without input"]


@pytest.mark.thorough
def test_a_client_learns_how_open_or_the_process_of_its_function_has_ended(connect_url: str, tmp_path: Path) -> None:
    reasons = answer(connect_url, tmp_path, "ends")
    assert re.match(r"OpenFailed: open\(\) of Opens has failed at \".*\", line \d+: KeyError: 'TOKEN'", reasons["open"])
    assert "open() of Opens has failed at" in reasons["exit in open"]
    assert "SystemExit: 3" in reasons["exit in open"]
    assert "the operator's host has ended with status 3" in reasons["dead process"]


@pytest.mark.thorough
def test_a_client_sees_what_an_epoch_under_way_does_and_what_its_function_prints(
    connect_url: str, tmp_path: Path
) -> None:
    assert answer(connect_url, tmp_path, "sight") == dict.fromkeys(
        ["calls", "status", "printed", "logged", "blocks"], True
    )


@pytest.mark.thorough
def test_a_query_says_who_has_taken_over_from_it_and_the_newer_one_from_whom(connect_url: str, tmp_path: Path) -> None:
    told = answer(connect_url, tmp_path, "taken over")
    assert re.search(r"WriterFenced: .*\(\w+ by process \d+ on ", told["old"])  # its claim, or an epoch after it
    (logged,) = told["logged"]
    assert f"takes over from query {told['id']} of this process" in logged


@pytest.mark.thorough
def test_a_query_that_spark_stops_for_another_start_with_its_checkpoint_says_so_and_the_other_one_goes_on(
    connect_url: str, tmp_path: Path
) -> None:
    told = answer(connect_url, tmp_path, "taken over with its checkpoint")
    assert re.search(r"WriterFenced: .*\(\w+ by process \d+ on ", told["old"])
    assert told["is_active"]


@pytest.mark.thorough
def test_an_error_that_no_text_can_hold_is_a_dead_letter_and_a_name_that_comes_twice_is_refused(
    connect_url: str, tmp_path: Path
) -> None:
    told = answer(connect_url, tmp_path, "bad values")
    assert told["letters"] == [r"half an emoji \ud83d"] * 3
    assert "ID" in told["twice"]


def test_explain_finds_an_input_whose_rows_change_when_they_are_read_again(connect_url: str, tmp_path: Path) -> None:
    assert answer(connect_url, tmp_path, "volatile") == {"uuid": True, "rand": True, "a name": False}


@pytest.mark.thorough
def test_what_would_wait_for_the_sink_is_refused_in_it_and_the_rest_is_done(connect_url: str, tmp_path: Path) -> None:
    told = answer(connect_url, tmp_path, "in the sink")
    refused = dict.fromkeys(["drain", "run", "start", "start of another"], "CalledInSink")
    copied = {"drain on a thread": "ConfigError"}
    done = {"rescale": None, "rescale above the maximum": "ConfigError", "explain": None}
    assert len(told["said"]) > 1, "there are a micro-batch and an epoch without input"
    assert told["said"] == [refused | copied | done | {"progress": before} for before in range(len(told["said"]))]
    assert told["parallelism"] == 3
    assert "cannot be sent there" in told["of a query"]


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_the_log_beside_the_server_tells_of_a_host_that_hangs_and_is_replaced(
    connect_url: str, server_log: Path, tmp_path: Path
) -> None:
    assert answer(connect_url, tmp_path, "hangs") == [0, 1, 2, 3, 4, 5]
    log = server_log.read_text()
    assert re.search(r"the host of subtask 0 \(process \S+\) has not answered for 5 s: .* its log, /\S+\.log;", log)
    assert re.search(r"look: epoch 2 has been under way for \d+ s and waits for its tasks: no host answers", log)
