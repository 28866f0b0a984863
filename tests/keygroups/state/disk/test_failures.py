"""Failures of the disk or its store, named with the next step."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from keygroups import ConfigError
from keygroups.state import DiskStateBackend
from keygroups.state.errors import StateStoreFailed, StoreNotInstalled
from tests.keygroups.state.disk.kit import opened


class TestFailures:
    def test_a_store_that_is_not_installed_is_named_with_what_installs_it(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "rocksdict", None)
        with pytest.raises(StoreNotInstalled, match=r"pip install 'keygroups\[disk\]'") as refused:
            opened(directory)
        assert isinstance(refused.value, ImportError)
        assert not directory.exists()

    def test_a_full_disk_is_named(self, directory: Path) -> None:
        """A limit on the size of files stands for the disk."""
        program = """
            import os, resource, signal, sys
            from keygroups import KeyGroupRange, ValueState
            from keygroups.state import DiskStateBackend
            backend = DiskStateBackend(sys.argv[1]).open([ValueState("value")], KeyGroupRange(0, 3))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
            for number in range(2**20):
                backend.tables["value"].put(0, number, os.urandom(1000))
        """
        command = [sys.executable, "-c", textwrap.dedent(program), str(directory)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)

        assert "StateDiskFull: no space is left for the state in" in ended.stderr
        assert list(directory.iterdir()) == []

    def test_a_store_that_cannot_be_opened_is_named_and_leaves_no_directory(self, directory: Path) -> None:
        program = """
            import resource, signal, sys
            from keygroups import KeyGroupRange, ValueState
            from keygroups.state import DiskStateBackend
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            DiskStateBackend(sys.argv[1]).open([ValueState("value")], KeyGroupRange(0, 3))
        """
        command = [sys.executable, "-B", "-c", textwrap.dedent(program), str(directory)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)

        assert "StateDiskFull: no space is left for the state in" in ended.stderr
        assert list(directory.iterdir()) == []

    def test_a_directory_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match="file"):
            opened(tmp_path / "file" / "state")

    def test_a_closed_backend_is_not_an_empty_one(self, directory: Path) -> None:
        backend = opened(directory)
        backend.tables["value"].put(0, "a", 1)
        backend._store.flush()
        backend.close()
        with pytest.raises(StateStoreFailed):
            backend.tables["value"].get(0, "a")
        with pytest.raises(StateStoreFailed):
            backend._store.remove_range(b"", b"\xff")

    def test_a_cache_that_is_too_small_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="cache_bytes"):
            DiskStateBackend(cache_bytes=100)

    def test_the_choice_survives_pickling(self) -> None:
        chosen = DiskStateBackend("/fast/disk", cache_bytes=2**28)

        assert pickle.loads(pickle.dumps(chosen)) == chosen
