"""What is known of the hosts on a machine, while they come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from async_op.hosting.process.local_hosts import blocking_in, hosts_of
from snapshots.host_logs import digest_of, run_folder


def test_a_folder_that_its_last_host_removes_meanwhile_has_no_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder("run", str(tmp_path))
    folder.mkdir()
    (folder / f"{digest_of('generation')}-3.sock").touch()
    assert list(hosts_of("run", "generation", str(tmp_path))) == [3]

    def gone(path: Path, pattern: str) -> list[Path]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "glob", gone)
    assert hosts_of("run", "generation", str(tmp_path)) == {}
    assert blocking_in("run", str(tmp_path)) == []
