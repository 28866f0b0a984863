"""Epochs as a pipeline commits them: with counters, at times that a test sets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from snapshots import InFlightElement, Snapshot, SnapshotStore
from snapshots.commit import manifest_creation, pending_snapshot
from tests.snapshot_kit import parts, words


@dataclass
class Time:
    """The time at which versions are committed."""

    seconds: float = 1_800_000_000.0

    def text(self) -> str:
        return dt.datetime.fromtimestamp(self.seconds, dt.UTC).isoformat(timespec="milliseconds")

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (manifest_creation, pending_snapshot):
            monkeypatch.setattr(module, "now_text", self.text)


def commit_epoch(
    store: SnapshotStore,
    keys: int = 10,
    parallelism: int = 2,
    in_flight: Iterable[InFlightElement] = (),
    **metrics: int,
) -> Snapshot:
    """Commit an epoch that has counted something."""
    begun = store.begin()
    content = {"count": dict.fromkeys(words(keys), 1)}
    made = parts(content, parallelism=parallelism, in_flight=in_flight)
    return begun.commit([begun.write_subtask(one) for one in made], metrics=metrics)
