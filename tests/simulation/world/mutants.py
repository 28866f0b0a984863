"""Each defence of snapshots and operators, taken out; what the docstring says is then so."""

from __future__ import annotations

from typing import Any

import pytest

from async_op.timers.service import TimerService
from snapshots import versions
from snapshots.commit import creation
from snapshots.errors import CommitConflict
from snapshots.filesystem import is_transient, local
from snapshots.format import in_flight_elements
from snapshots.format.manifest import Manifest, manifest_name
from snapshots.format.parquet import ParquetReader
from snapshots.upkeep import retention

Patch = pytest.MonkeyPatch


# Commits.


def a_manifest_is_a_file_like_any_other(patch: Patch) -> None:
    """A manifest is written, and not created in one step."""
    patch.setattr(creation, "_create", lambda folder, one, data: folder.write(manifest_name(one.version), data))


def no_answer_means_done(patch: Patch) -> None:
    """A request that nobody has answered is taken for done."""

    def create(folder: Any, manifest: Any, data: bytes) -> None:
        try:
            folder.create(manifest_name(manifest.version), data)
        except OSError as error:
            if not is_transient(error):
                raise CommitConflict(folder.uri, manifest.version) from error

    patch.setattr(creation, "_create", create)
    patch.setattr(creation, "_verify", lambda *_: None)


def a_lost_reply_means_a_lost_race(patch: Patch) -> None:
    """A writer does not recognize its own manifest when it reads it back."""
    winner = creation._winner
    patch.setattr(creation, "_winner", lambda folder, one: winner(folder, one) and "another's")


# Finding versions.


def a_hint_is_the_truth(patch: Patch) -> None:
    """The hint at the newest version is believed, also if it is old."""
    newest = versions._from_hint

    def believed(folder: Any, hint: int) -> int | None:
        return None if newest(folder, hint) is None else hint

    patch.setattr(versions, "_from_hint", believed)


# The disk.


def content_is_not_synced(patch: Patch) -> None:
    """A file is written without a sync."""

    def write(path: Any, data: bytes) -> None:
        local._make_directories(path.parent)
        with path.open("xb") as file:
            file.write(data)

    patch.setattr(local, "_write_durably", write)


def names_are_not_synced(patch: Patch) -> None:
    """A directory is not synced after a file in it has got its name."""
    patch.setattr(local, "_sync_directory", lambda directory: None)


# Damage.


def row_groups_have_no_digests(patch: Patch) -> None:
    """A row group is read without a look at its digest."""
    patch.setattr(ParquetReader, "_check_digests", lambda *_: None)


# Retention.


def all_files_are_old(patch: Patch) -> None:
    """A collection removes what a running commit has just written."""
    patch.setattr(retention, "_storage_now", lambda folder: float("inf"))


def lists_are_garbage(patch: Patch) -> None:
    """A collection removes the lists of files that a version names."""
    patch.setattr(Manifest, "objects", Manifest.whole_files)


# Operators.


def attempts_are_forgotten(patch: Patch) -> None:
    """A restored element begins with its first attempt."""
    from_row = in_flight_elements._from_row
    patch.setattr(in_flight_elements, "_from_row", lambda row: from_row({**row, "attempt": 1}))


def the_fastest_channel_leads(patch: Patch) -> None:
    """The watermark of a restored subtask is the largest of its channels."""
    order = in_flight_elements._order
    patch.setattr(in_flight_elements, "_minimum", lambda found: max(found, key=order, default=None))


def timers_follow_the_time_that_has_passed(patch: Patch) -> None:
    """A clock that was set back does not hold timers back."""

    def now(service: Any) -> int:
        passed = round(1000 * service._clock.time() + service._ahead)
        return passed if service._last is None else service._last

    patch.setattr(TimerService, "_now", now)
