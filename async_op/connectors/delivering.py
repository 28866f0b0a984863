"""How an epoch gets into a sink, of a job or a pipeline on Spark: attempts, and outputs that are refused."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from async_op.connectors.errors import SinkUnavailable, UnwritableValue
from async_op.connectors.retrying import Attempts
from async_op.connectors.sink import Sink
from async_op.dead_letters import DeadLetter
from async_op.letter_rows import row_of
from snapshots.format.sink_notes import RefusedOutput

_log = logging.getLogger(__package__)


class SinkAttempts(Attempts):
    """The attempts at opening a sink, or at writing an epoch to it.

    Parameters
    ----------
    sink : Sink
        The sink.
    epoch : int or None
        The epoch that is written; None if the sink is being opened.
    """

    def __init__(self, sink: Sink[Any], epoch: int | None) -> None:
        doing = f"opening {sink!r}" if epoch is None else f"writing epoch {epoch} to {sink!r}"
        super().__init__(sink.retry, doing, sink.is_transient)
        self._sink = sink
        self._epoch = epoch

    def delay_after(self, error: Exception, *, is_last: bool = False) -> float:
        """Return the seconds until the next attempt, as `Attempts` does; an output that is refused learns its epoch."""
        if isinstance(error, UnwritableValue):
            error.epoch = self._epoch
        return super().delay_after(error, is_last=is_last)

    def unavailable(self, reason: str) -> SinkUnavailable:
        """Return the error that ends the attempts."""
        return SinkUnavailable(repr(self._sink), self._epoch, self.failed, reason)


class Refused:
    """The outputs of an epoch that a sink has refused, by their index in the epoch.

    Parameters
    ----------
    sink : Sink
        The sink, whose `on_error` decides.
    epoch : int
        The epoch.
    noted : mapping of int to RefusedOutput
        What an earlier delivery of the epoch has noted.
    """

    def __init__(self, sink: Sink[Any], epoch: int, noted: dict[int, RefusedOutput]) -> None:
        self._sink = sink
        self.epoch = epoch
        self.outputs = dict(noted)

    def left(self, values: list[Any]) -> list[Any]:
        """Return the outputs that have not been refused."""
        if not self.outputs:
            return values
        return [value for index, value in enumerate(values) if index not in self.outputs]

    def add(self, errors: Iterable[UnwritableValue], error: UnwritableValue) -> None:
        """Add what a sink has refused of what was left; raises the error if it names no output.

        Parameters
        ----------
        errors : iterable of UnwritableValue
            What `Sink.refused` has returned; their indexes, like that of the error, count what was left.
        error : UnwritableValue
            What `Sink.write` has raised.
        """
        found = [one for one in errors if one.index is not None] or [error]
        if error.index is None and found == [error]:
            raise error
        earlier = sorted(self.outputs)
        for one in found:
            assert one.index is not None, "only those"
            one.index, one.epoch = _place(one.index, earlier), self.epoch
            self.outputs[one.index] = RefusedOutput(error_type=type(one).__name__, error_message=str(one))
        doing = "left out" if self._sink.on_error == "skip" else "given to the dead letters"
        said = "epoch %d: %d outputs that %r refuses are %s; the first: %s"
        _log.warning(said, self.epoch, len(found), self._sink, doing, found[0])

    def letters(self, outputs: Sequence[Any] | Mapping[int, Any]) -> list[dict[str, Any]]:
        """Return the dead letters of the refused outputs."""
        return [self._letter(outputs[index], index, refused) for index, refused in sorted(self.outputs.items())]

    def _letter(self, value: Any, index: int, refused: RefusedOutput) -> dict[str, Any]:
        name = f"epoch-{self.epoch}-output-{index}"
        letter = DeadLetter(value=value, timestamp=None, key=None, idempotency_key=name, attempts=1, error=ValueError())
        said = {"error_type": refused.error_type, "error_message": refused.error_message}
        return row_of(letter, f"sink {type(self._sink).__name__}") | said


def _place(index: int, missing: Iterable[int]) -> int:
    """Return the place in the epoch of an output that has this index among those that were left."""
    for earlier in missing:
        if earlier <= index:
            index += 1
    return index
