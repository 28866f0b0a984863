"""The command `verify`: it names what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.snapshots.cli_kit import Cli


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
    assert "bytes read" not in people.out
