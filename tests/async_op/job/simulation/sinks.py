"""Where the outputs and the dead letters of the simulated job go: a sink that has no place for some outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from async_op import ExponentialBackoffRetry
from async_op.connectors import Sink, UnwritableValue
from async_op.dead_letters import letter_value
from tests.async_op.job.simulation.world import World


class Letters(Sink[Any]):
    """Keeps dead letters; the same epoch again must have the same."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        world = self.world
        world.note("dead letters", epoch, values)
        world.crash_point("before the dead letters")
        known = world.letters.setdefault(epoch, list(values))
        world.check(known == list(values), f"the dead letters of epoch {epoch} have changed")
        world.crash_point("after the dead letters")


class Output(Sink[Any]):
    """Keeps outputs, or refuses an epoch; the same epoch again must have the same outputs."""

    retry = ExponentialBackoffRetry(20, 0.5, 15.0, jitter=False)  # jitter is another one in each run

    def __init__(self, world: World) -> None:
        self.world = world
        self.on_error = world.scenario.on_error

    async def open(self) -> None:
        self._check_newest()

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        world = self.world
        self._check_newest()
        world.check((world.store.newest_version() or 0) >= epoch, f"epoch {epoch} was delivered before its commit")
        world.note("outputs", epoch, values)
        world.crash_point("before the outputs")
        if world.draw.random() < 0.1:
            raise ConnectionError("the target is away")
        if world.draw.random() < 0.3:
            await asyncio.sleep(3 * world.draw.random())
        errors = self._errors(values)
        if errors:
            world.has_refused = True
            raise errors[0]
        world.writes[epoch] += 1
        world.check(world.epochs.setdefault(epoch, list(values)) == list(values), f"epoch {epoch} has changed")
        world.note("delivered", epoch)
        world.crash_point("after the outputs")

    async def refused(self, values: Sequence[Any]) -> list[UnwritableValue]:
        self.world.crash_point("between a refusal and its note")
        return self._errors(values) if self.world.scenario.finds_all_refused else []

    def _check_newest(self) -> None:
        newest, known = max(self.world.epochs, default=0), self.newest_known
        self.world.check(known is not None and newest <= known, f"the target has epoch {newest}, and may have {known}")
        written = self.newest_written or 0
        self.world.check(newest >= written, f"the target has epoch {newest}, and epoch {written} was written to it")

    def _errors(self, values: Sequence[Any]) -> list[UnwritableValue]:
        is_named = self.world.scenario.names_refused
        errors = []
        for index, value in enumerate(values):
            if self.world.refuses(value[3]):
                self.world.refused[value[3]] = value
                errors.append(UnwritableValue(value, "there is no place for it", index=index if is_named else None))
        return errors


def is_of_sink(letter: dict[str, Any]) -> bool:
    """Whether a dead letter is an output that the sink has refused."""
    return bool(letter["step"] == "sink Output")


def output_in(letter: dict[str, Any]) -> Any:
    """Return the output that a sink has refused."""
    return letter_value(letter)
