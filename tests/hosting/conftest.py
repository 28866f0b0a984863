"""A machine for hosts, of which nothing may be left."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from async_op.hosting import supervisor
from async_op.hosting.process.host_files import files_of
from async_op.hosting.process.host_process import Instructions
from tests.hosting.kit import GENERATION, SECRET, Machine, OperatorFactory, is_running, pid_of, settings, wait_until


@pytest.fixture(autouse=True)
def patient_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no host be left out because the machine is busy."""
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 120.0)


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("h")

    def instructions(
        factory: Any = None,
        interface: str | None = None,
        watched: int | None = None,
        given_up: str = "",
        **changes: Any,
    ) -> Instructions:
        return Instructions(
            place=files_of("run", GENERATION, 0, str(folder)),
            secret=SECRET,
            factory=pickle.dumps(factory or OperatorFactory()),
            settings=settings(**changes),
            interface=interface,
            watched=watched,
            given_up=given_up,
        )

    yield Machine(Path(folder), instructions)
    pid = pid_of(instructions().place)
    if pid is not None:
        os.kill(pid, 15)
        wait_until(lambda: not is_running(pid))
