"""Writes the items of an operator state that somebody brings."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from keygroups.descriptors import OperatorStateDescriptor
from keygroups.operator_state import split
from keygroups.state import OperatorStates
from snapshots.filesystem import Folder
from snapshots.format.files import FileLabel, FileWriter
from snapshots.format.manifest import DataFile, Manifest
from snapshots.format.operator_state import OPERATOR_STATE_SCHEMA, operator_state_table
from snapshots.format.parquet import ParquetEncoder
from snapshots.format.steps import files_in_step
from snapshots.format.subtask import OperatorStateCut


def write_items(
    folder: Folder,
    manifest: Manifest,
    descriptor: OperatorStateDescriptor,
    items: Iterable[Any] | Mapping[Any, Any],
    step: str | None,
) -> tuple[DataFile, ...]:
    """Deal items out to the subtasks of a snapshot, and write one file for each subtask that gets any.

    Raises
    ------
    UnstorableValue
        An item cannot be stored, or does not fit the declared type.
    """
    states = OperatorStates((descriptor,))
    states.handle(descriptor).update(items)
    checked = states.cut("an edit")[descriptor.name]
    channels = [channel for channel in manifest.channels if channel.step == step]
    shares = [list(checked)] * len(channels)
    if descriptor.mode != "broadcast":
        shares = split({descriptor.name: [checked]}, len(channels))[descriptor.name]
    with FileWriter(folder, uuid.uuid4().hex) as files:
        for channel, share in zip(channels, shares, strict=True):
            if share:
                cut = OperatorStateCut(descriptor.name, descriptor.mode, tuple(share))
                encoder = ParquetEncoder(OPERATOR_STATE_SCHEMA)
                encoder.write(operator_state_table(cut))
                label = FileLabel(
                    kind="operator", state=cut.name, subtask=channel.subtask, version=manifest.version + 1
                )
                files.write(label, f"operator-{cut.name}-{channel.subtask}", channel.key_groups, encoder)
        stored = files.stored()
    return stored if step is None else files_in_step(step, stored)
