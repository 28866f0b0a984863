"""The directory: each backend has one of its own, which goes with it."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from keygroups.state import StateCut
from keygroups.state.errors import StateDirectoryNotLocked, StateDirectoryRefused
from tests.backends import contents
from tests.keygroups.state.disk.kit import fill, opened


class TestDirectory:
    def test_each_backend_has_one_of_its_own_until_it_is_closed(self, directory: Path) -> None:
        one, other = opened(directory), opened(directory)
        one.tables["value"].put(0, "a", 1)
        other.tables["value"].put(0, "a", 2)

        assert len(list(directory.iterdir())) == 2
        assert [one.tables["value"].get(0, "a"), other.tables["value"].get(0, "a")] == [1, 2]
        one.close()
        assert len(list(directory.iterdir())) == 1
        assert other.tables["value"].get(0, "a") == 2
        other.close()
        assert list(directory.iterdir()) == []

    def test_a_cut_is_whole_after_the_close_and_the_files_go_with_it(self, directory: Path) -> None:
        backend = opened(directory)
        fill(backend, 100)
        cut: tuple[StateCut, ...] | None = backend.cut()
        backend.close()

        assert cut is not None
        assert sum(len(group) for group in contents(cut[0].groups).values()) == 100
        assert len(list(directory.iterdir())) == 1
        cut = None
        assert list(directory.iterdir()) == []

    def test_a_cut_that_nobody_writes_releases_its_view(self, directory: Path) -> None:
        backend = opened(directory)
        for number in range(3):
            backend.tables["value"].put(0, "a", number)
            backend.cut()

        assert backend._store._views == 0
        backend.close()
        assert list(directory.iterdir()) == []

    def test_a_link_with_the_name_of_a_directory_that_was_left_is_not_followed(
        self, directory: Path, tmp_path: Path
    ) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for name in ("in_use", "precious"):
            (elsewhere / name).touch()
        directory.mkdir()
        (directory / "keygroups-state-link").symlink_to(elsewhere)
        real = directory / "keygroups-state-real"
        real.mkdir()
        (real / "in_use").symlink_to(elsewhere / "in_use")

        opened(directory).close()

        assert sorted(path.name for path in elsewhere.iterdir()) == ["in_use", "precious"]
        assert (real / "in_use").is_symlink()

    def test_what_a_dead_process_has_left_is_removed_and_what_lives_is_not(self, directory: Path) -> None:
        program = """
            import os, signal, sys
            from keygroups import KeyGroupRange, ValueState
            from keygroups.state import DiskStateBackend
            backend = DiskStateBackend(sys.argv[1]).open([ValueState("value")], KeyGroupRange(0, 3))
            backend.tables["value"].put(0, "a", 1)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        living = opened(directory)
        ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(directory)], check=False)
        assert ended.returncode == -signal.SIGKILL
        assert len(list(directory.iterdir())) == 2

        new = opened(directory)
        assert len(list(directory.iterdir())) == 2
        living.tables["value"].put(0, "a", 1)
        assert living.tables["value"].get(0, "a") == 1
        living.close()
        new.close()

    def test_what_is_not_ours_stays(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "notes.txt").write_text("mine")
        (directory / "keygroups-state-without-a-lock").mkdir()
        opened(directory).close()

        assert sorted(path.name for path in directory.iterdir()) == ["keygroups-state-without-a-lock", "notes.txt"]

    @pytest.mark.parametrize("place", ["a file", "below a file", "read-only"])
    def test_a_directory_in_which_nothing_can_be_made_is_refused_by_name(
        self, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(**_: object) -> str:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        taken = tmp_path / "taken"
        if place == "read-only":
            monkeypatch.setattr(tempfile, "mkdtemp", refused)
        else:
            taken.touch()
        parent = taken / "below" if place == "below a file" else taken
        with pytest.raises(StateDirectoryRefused, match=r"DiskStateBackend\(directory=") as raised:
            opened(parent)

        error = pickle.loads(pickle.dumps(raised.value))
        assert error.parent == str(parent)
        assert error.reason in str(error)

    def test_a_directory_without_locks_is_refused_and_nothing_is_left_there(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unsupported(lock: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", unsupported)
        with pytest.raises(StateDirectoryNotLocked, match="choose a directory on a local disk") as refused:
            opened(directory)

        assert refused.value.parent == str(directory)
        assert list(directory.iterdir()) == []
