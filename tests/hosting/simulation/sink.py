"""Where the epochs of simulated hosts go: a sink that refuses some outputs, and its dead letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from async_op.connectors.errors import UnwritableValue
from async_op.connectors.sink import ShippedSink, Sink
from async_op.dead_letters import letter_value
from async_op.epochs.coordinator import Coordinator
from async_op.epochs.delivery import Values
from async_op.epochs.position import SinkEpochs
from async_op.spark.epoch.delivery import _ShippedDelivery
from snapshots.format.delivered import Delivered
from tests.hosting.simulation.service import check

if TYPE_CHECKING:
    from tests.hosting.simulation.cluster import Cluster

Point = Callable[[str], None]
"""A point in a delivery at which a driver may die, or the sink may fail."""


class Target:
    """What outlives the drivers: what the sink and its dead letters have, by epoch.

    Attributes
    ----------
    is_mended : bool
        Whether it has a place for everything by now.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.scenario = cluster.scenario
        self.outputs: dict[int, list[Any]] = {}
        self.letters: dict[int, list[Any]] = {}
        self.is_mended = False

    def refuses(self, output: Any) -> bool:
        """Whether there is no place for an output now."""
        return not self.is_mended and self.scenario.is_refused(output)

    def check(self, epochs: dict[int, list[Any]]) -> None:
        """Check that each output is where the sink's policy wants it, once."""
        kept = self.scenario.on_error == "fail"
        rest = {epoch: [one for one in outputs if kept or not self._is_bad(one)] for epoch, outputs in epochs.items()}
        bad = {epoch: [one for one in outputs if self._is_bad(one)] for epoch, outputs in epochs.items()}
        expected = bad if self.scenario.on_error == "dead_letter" else {}
        check(self.outputs == _without_empty(rest), f"the sink has {self.outputs}, not {rest}")
        check(self.letters == _without_empty(expected), f"the dead letters are {self.letters}, not {expected}")

    def _is_bad(self, output: Any) -> bool:
        return self.scenario.is_refused(output)


class _Letters(Sink[Any]):
    """Keeps the dead letters of an epoch; the same epoch again must have the same."""

    def __init__(self, target: Target, point: Point) -> None:
        self.target = target
        self.point = point

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        self.point("before the dead letters")
        found = [tuple(letter_value(one)) for one in values]
        known = self.target.letters.setdefault(epoch, found)
        check(known == found, f"the dead letters of epoch {epoch} were {known}, and are {found}")
        self.point("after the dead letters")


class _Output(ShippedSink):
    """Writes the outputs of an epoch, all or none; the same epoch again must have the same."""

    place_of_notes = ("simulated",)

    def __init__(self, target: Target, point: Point) -> None:
        policy = target.scenario.on_error
        letters = _Letters(target, point) if policy == "dead_letter" else None
        super().__init__(on_error=policy, retry=None, dead_letters=letters)
        self.target = target
        self.point = point

    def check_target(self) -> None:
        newest = max(self.target.outputs, default=0)
        self.check_ahead("simulated", newest, "")
        self.check_behind("simulated", newest)

    def write_rows(self, rows: Any, epoch: int) -> None:
        self.check_target()  # each epoch was committed before it got here, whatever has happened
        self.point("before the outputs")
        errors = self._errors(rows)
        if errors:
            raise errors[0]
        known = self.target.outputs.setdefault(epoch, list(rows))
        check(known == list(rows), f"the outputs of epoch {epoch} were {known}, and are {rows}")
        self.point("after the outputs")

    def refused_rows(self, rows: Any) -> list[UnwritableValue]:
        self.point("between a refusal and what follows from it")
        return self._errors(rows)

    async def write(self, values: list[Any], epoch: int) -> None:
        self.write_rows(values, epoch)

    def _errors(self, rows: Sequence[Any]) -> list[UnwritableValue]:
        refused = [(index, one) for index, one in enumerate(rows) if self.target.refuses(one)]
        return [UnwritableValue(one, "there is no place for it", index=index) for index, one in refused]


class _Epoch(Values):
    """The outputs of an epoch."""

    def write(self, sink: Any, epoch: int) -> None:
        sink.write_rows(self.values, epoch)

    def refused(self, sink: Any) -> Any:
        return sink.refused_rows(self.values)


class SimulatedDelivery(_ShippedDelivery):
    """Gives epochs to a target as a pipeline on Spark gives them to a sink of this package."""

    def __init__(
        self, coordinator: Coordinator, lineage: str, target: Target, point: Point, epochs: SinkEpochs
    ) -> None:
        super().__init__(coordinator, lineage, _Output(target, point), threading.Event(), epochs)

    def give(self, outputs: list[Any], epoch: Delivered) -> None:
        """Deliver an epoch, or raise what the sink has raised."""
        self._done(self.written(self._sink, epoch, _Epoch(list(outputs), lambda: list(outputs))))


def _without_empty(epochs: dict[int, list[Any]]) -> dict[int, list[Any]]:
    return {epoch: outputs for epoch, outputs in epochs.items() if outputs}
