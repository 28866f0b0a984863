"""What each system has to offer to the command. Imports only the standard library."""

from __future__ import annotations

import importlib
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.cases import Case, Outcome

SYSTEMS = (
    "stream",
    "transform",
    "pipeline",
    "threads",
    "map_in_arrow",
    "map_in_pandas",
    "daft",
    "ray",
    "flink",
    "pyflink",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "apply_in_pandas_with_state",
    "offline_repartition",
)


class Unavailable(Exception):
    """A system cannot run here; the text says why."""


class Peer(ABC):
    """A system that does the work of some cases.

    Attributes
    ----------
    title : str
        Its name in the table.
    cases : tuple of str
        The names of the cases that it can do.
    requirements : tuple of str
        What is installed into an environment of its own; without any it runs in that of the command.
    packages : tuple of str
        The packages whose versions are stated.
    lacks : str
        What it does not do that others in the table do.
    """

    title: ClassVar[str]
    cases: ClassVar[tuple[str, ...]]
    requirements: ClassVar[tuple[str, ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    lacks: ClassVar[str]

    def versions(self) -> dict[str, str]:
        """Return the versions of what does the work."""
        return {"Python": platform.python_version()} | {name: metadata.version(name) for name in self.packages}

    @abstractmethod
    def prepare(self, case: Case, folder: Path) -> Callable[[], Outcome]:
        """Do what is not measured, such as starting an engine and writing input; return the work itself."""

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what was started."""


def load(name: str) -> Peer:
    """Return the system of a module."""
    peer = importlib.import_module(f"benchmarks.peers.systems.{name}").PEER
    assert isinstance(peer, Peer)
    return peer
