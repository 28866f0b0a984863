"""What a job or a pipeline would find at the targets of its sinks, without a claim and without a write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from async_op.connectors.errors import TargetAhead
from async_op.connectors.sink import ShippedSink
from async_op.epochs.delivery import expect
from async_op.epochs.position import SinkEpochs
from async_op.explanation import Found
from keygroups.representation import short
from keygroups.safe_text import described
from snapshots import Snapshot
from snapshots.filesystem import Folder
from snapshots.folder_hints import newest_or_empty
from snapshots.format.sink_notes import SinkNotes
from snapshots.lineage import first_lineage

_LOOKS_MAX = 5
"""How often a target is looked at that is ahead, because another run of the job goes on meanwhile."""


def found_at_targets(folder: Folder, sinks: Mapping[str, object], namespace: str | None = None) -> Iterator[Found]:
    """Find what sinks of this package would refuse at the start of a run; blocks.

    Nothing is known about the target of another sink: its `open` is for a run.

    Parameters
    ----------
    folder : Folder
        Where the operator or job has its snapshots.
    sinks : mapping of str to object
        The sinks of the "outputs" and of the "dead_letters".
    namespace : str, optional
        The idempotency namespace that the user has chosen.
    """
    for role, sink in sinks.items():
        if isinstance(sink, ShippedSink):
            failure = _failure(folder, role, sink, namespace)
            if failure is not None:
                yield f"{short(sink)} cannot be written to", described(failure)


def _failure(folder: Folder, role: str, sink: ShippedSink, namespace: str | None) -> Exception | None:
    sink, latest = sink.for_another_run(), newest_or_empty(folder)  # a run may be using the object
    for _ in range(_LOOKS_MAX):
        expect(sink, role, SinkNotes(folder), _lineage(folder, latest, namespace), SinkEpochs.of(latest))
        try:
            sink.look_at_target()
        except TargetAhead as error:
            before, latest = latest, newest_or_empty(folder)
            if _version(before) == _version(latest):
                return error
            failure = error
        except Exception as error:  # noqa: BLE001 - told: whatever it is, a run would meet it
            return error
        else:
            return None
    return failure


def _lineage(folder: Folder, latest: Snapshot | None, namespace: str | None) -> str:
    found = None if latest is None else latest.manifest.lineage
    return found or namespace or first_lineage(folder)


def _version(latest: Snapshot | None) -> int:
    return 0 if latest is None else latest.version
