"""Other operators beside those of a world: they call the same service for elements that have the same ids."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext, Watermark
from keygroups.state.timers import Timer
from snapshots import SnapshotStore
from snapshots.lineage import lineage_of
from tests.simulation.world.objects import Objects, ObjectsFolder

if TYPE_CHECKING:
    from tests.simulation.world.world import World

NEIGHBOURS_MAX = 3


class Neighbours:
    """All neighbours of a world: some have begun with nothing, others run on a copy of one of its versions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw = random.Random(f"{world.seed}/neighbours/steps")
        self.stores: list[SnapshotStore] = []
        self.keys: dict[Any, str] = {}
        """The idempotency keys of their elements."""

    async def step(self) -> None:
        """Let one of them live for a moment, which ends before it has committed anything."""
        if len(self.stores) < NEIGHBOURS_MAX and self.draw.random() < 0.5:
            self.stores.append(self._new())
        if self.stores:
            await self._live(self.draw.randrange(len(self.stores)))

    def _new(self) -> SnapshotStore:
        store = SnapshotStore.on(ObjectsFolder(Objects(), f"bucket/neighbour-{len(self.stores)}"))
        versions = self.world.oracle.live()
        if versions and self.draw.random() < 0.7:
            self.world.storage.met["copy"] += 1
            self.world.clean.copy_to(store, self.draw.choice(versions))
        return store

    async def _live(self, number: int) -> None:
        store, world = self.stores[number], self.world
        world.storage.met["neighbour"] += 1
        newest = store.latest()
        lineage = lineage_of(store.folder, None if newest is None else newest.manifest)
        function = _Pays(self, f"neighbour {number}")
        operator = AsyncWaitOperator(function, lambda output: None, idempotency_namespace=lineage)
        await operator.open()
        for value in self._elements(store):
            await operator.process(value, None, f"row-{value[0]}")
        await operator.finish()
        await operator.close()
        world.check_heard()

    def _elements(self, store: SnapshotStore) -> Iterable[Any]:
        """Return the records that a copy has in flight, or the first ones of the input."""
        newest = store.latest()
        if newest is None:
            return [item for item in self.world.items if not isinstance(item, Watermark)][:3]
        elements = newest.restore(0, 1).queue().elements
        return [one.value for one in elements if not one.is_watermark and not isinstance(one.value, Timer)]


class _Pays(AsyncFunction):
    """Calls the service of the world."""

    def __init__(self, neighbours: Neighbours, name: str) -> None:
        self.neighbours = neighbours
        self.name = name

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        world, key, own = self.neighbours.world, ctx.idempotency_key, (self.name, value[0])
        if world.payments.pay(key, own) != own:
            world.violations.append(AssertionError(world.payments.mistakes[-1]))
        if self.neighbours.keys.setdefault(own, key) != key:
            world.violations.append(AssertionError(f"{own} is paid for again, under another key"))
        return []
