"""What the tests of sources share."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from async_op.connectors import Item, PartitionId, Reached, Source


async def items_of(source: Source[Any], partition: PartitionId, position: Any = None) -> list[Item[Any]]:
    """Read a partition to its end."""
    blocks = source.read(partition, position)
    return [item async for block in blocks if not isinstance(block, Reached) for item in block]


async def values_of(source: Source[Any], partition: PartitionId, position: Any = None) -> list[Any]:
    return [value for value, _, _ in await items_of(source, partition, position)]


async def first_items(source: Source[Any], partition: PartitionId, count: int, position: Any = None) -> list[Item[Any]]:
    """Read until there are that many items."""
    found: list[Item[Any]] = []
    async with aclosing(source.read(partition, position)) as blocks:
        async for block in blocks:
            found += [] if isinstance(block, Reached) else block
            if len(found) >= count:
                break
    return found
