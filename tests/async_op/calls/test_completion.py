"""The results of a whole batch: taken at once, or one by one where the retry policy wants something of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from async_op import FixedDelayRetry
from async_op.calls.completion import Completion
from async_op.in_flight.entries import Block, Entry, WatermarkEntry
from async_op.in_flight.queues import UnorderedQueue
from async_op.lifecycle import Lifecycle
from async_op.retry import RetryIfResult, RetryPolicy


class Left:
    """The exit of the queue: keeps the blocks that have left."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def leave(self, entry: Entry) -> None:
        raise AssertionError(entry)

    def leave_block(self, block: Block) -> None:
        self.blocks.append(block)

    def leave_watermark(self, watermark: WatermarkEntry) -> None:
        raise AssertionError(watermark)

    def is_held(self, watermark: WatermarkEntry) -> bool:
        raise AssertionError(watermark)


def with_block(retry: RetryPolicy | None) -> tuple[Completion, Block, Left]:
    """Return what completes a queue with one block in it, the block, and the exit."""
    left = Left()
    queue = UnorderedQueue(left)
    block = Block(1)
    block.elements = [("a", None, None), ("b", None, None)]
    queue.put_block(block)

    def unexpected(*given: Any) -> Any:
        raise AssertionError(given)

    unneeded: Any = None  # nothing fails or is retried
    made = Completion(queue, None, retry, None, None, unneeded, unneeded, Lifecycle(), unexpected)
    return made, block, left


@pytest.mark.parametrize("retry_if_result", [None, lambda outputs: not outputs], ids=["errors only", "results"])
@pytest.mark.parametrize("attempts", [1, 2])
def test_results_that_are_not_requested_again_leave_as_one(
    retry_if_result: RetryIfResult | None, attempts: int
) -> None:
    completion, block, left = with_block(FixedDelayRetry(attempts, 0, retry_if_result=retry_if_result))

    assert completion.complete_block(block, outputs := [["A"], ["B"]])
    assert left.blocks == [block]
    assert block.outputs is outputs


@pytest.mark.parametrize("outputs", [[[], ["B"]], [["A"], []]])
def test_one_result_that_is_asked_for_again_parts_the_batch(outputs: Sequence[Sequence[str]]) -> None:
    completion, block, left = with_block(FixedDelayRetry(2, 0, retry_if_result=lambda one: not one))

    assert not completion.complete_block(block, outputs)
    assert (left.blocks, block.outputs) == ([], None)


def test_a_policy_that_fails_parts_the_batch() -> None:
    completion, block, left = with_block(FixedDelayRetry(2, 0, retry_if_result=lambda one: one[1] == "B"))

    assert not completion.complete_block(block, [["A"], ["B"]])
    assert left.blocks == []


def test_once_every_outcome_is_final_no_policy_is_asked() -> None:
    completion, block, left = with_block(FixedDelayRetry(2, 0, retry_if_result=lambda one: not one))
    completion.take_all_as_final()

    assert completion.complete_block(block, [[], []])
    assert left.blocks == [block]


def test_what_comes_after_the_stop_leaves_nothing() -> None:
    completion, block, left = with_block(None)
    completion.stop()

    assert completion.complete_block(block, [["A"], ["B"]])
    assert (left.blocks, block.outputs) == ([], None)
