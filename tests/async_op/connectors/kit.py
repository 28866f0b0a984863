"""What the tests of sources share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import repeat
from typing import Any

from async_op.connectors import Item, PartitionId, Reached, Source, Undecodable
from async_op.job.source_items import Items


async def items_of(source: Source[Any], partition: PartitionId, position: Any = None) -> list[Item[Any]]:
    """Read a partition to its end; raises the error of a record that cannot be decoded, as a job does by default."""
    return [_good(item) async for block in source.read(partition, position) for item in listed(block)]


async def everything_of(source: Source[Any], partition: PartitionId, position: Any = None) -> list[Any]:
    """Read a partition to its end, with the records that cannot be decoded."""
    return [item async for block in source.read(partition, position) for item in listed(block)]


async def values_of(source: Source[Any], partition: PartitionId, position: Any = None) -> list[Any]:
    return [value for value, _, _ in await items_of(source, partition, position)]


async def first_items(source: Source[Any], partition: PartitionId, count: int, position: Any = None) -> list[Item[Any]]:
    """Read until there are that many items."""
    found: list[Item[Any]] = []
    async with aclosing(source.read(partition, position)) as blocks:
        async for block in blocks:
            found += map(_good, listed(block))
            if len(found) >= count:
                break
    return found


async def cuts_of(source: Source[Any], partition: PartitionId) -> list[Reached]:
    """Return all positions that a snapshot may have while a partition is read, with the content stored beside each."""
    cuts, content = [], None
    async for piece in everywhere(source.read(partition, None)):
        if isinstance(piece, Reached):
            content = piece.content if piece.content is not None else content
        cuts += [Reached(item[2], content) for item in listed(piece)]
        cuts += [Reached(piece.position, content)] if isinstance(piece, Reached) else []
    return [cut for cut in cuts if cut.position]


@asynccontextmanager
async def opened(source: Source[Any]) -> AsyncIterator[Source[Any]]:
    """Open a source, and close it."""
    await source.open()
    try:
        yield source
    finally:
        await source.close()


async def everywhere(pieces: Any) -> AsyncIterator[Any]:
    """Iterate what `read` has returned, whichever kind it is."""
    if isinstance(pieces, AsyncIterator):
        async for piece in pieces:
            yield piece
        return
    for piece in pieces:
        yield piece


async def next_items(blocks: AsyncIterator[Any]) -> list[Any]:
    """Return the items of the next block that has any."""
    while not (found := listed(await anext(blocks))):
        pass
    return found


def listed(block: Any) -> list[Any]:
    if isinstance(block, Reached):
        return []
    if isinstance(block, Items):
        return list(zip(block.values, block.timestamps or repeat(None), block.positions, strict=False))
    return block if isinstance(block, list) else [block]


def _good(item: Any) -> Item[Any]:
    if isinstance(item, Undecodable):
        raise item.error
    return item
