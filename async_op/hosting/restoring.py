"""Which elements an operator takes over from a snapshot with more in flight than fit, and which ones wait."""

from __future__ import annotations

from async_op.elements import Element, Watermark
from async_op.options import OperatorOptions
from keygroups.state.timers import Timer
from snapshots import InFlightElement
from snapshots.format.in_flight_elements import RestoredQueue
from snapshots.format.subtask import NO_KEY_GROUP, RefusedValue

Waiting = Element | Watermark
"""An element or watermark that has been handed over and has no room yet."""


def fitting_part(queue: RestoredQueue, options: OperatorOptions) -> tuple[RestoredQueue, list[Waiting]]:
    """Return the part of a queue that goes back into the operator, and the other elements in their order."""
    refused = [element for element in queue.elements if _is_refused(element, options)]
    elements = tuple(element for element in queue.elements if not _is_refused(element, options))
    size = _begun(elements, options.capacity, has_budgets=options.timeout is not None)
    left_over = [_waiting_of(element) for element in (*refused, *elements[size:])]
    return RestoredQueue(elements[:size], queue.watermark), left_over


def _is_refused(element: InFlightElement, options: OperatorOptions) -> bool:
    """Tell whether an element waited with an invalid key or value; the error policy applies when it comes in.

    A completed element has met its policy already: a second time, its dead letter would be delivered twice.
    """
    if element.completed:
        return False
    if isinstance(element.value, RefusedValue):
        return True
    return options.key_by is not None and not element.is_watermark and element.key_group == NO_KEY_GROUP


def _begun(elements: tuple[InFlightElement, ...], capacity: int, *, has_budgets: bool) -> int:
    """Return how many elements go back into the operator: as many as fit, or more if calls had begun for later ones.

    Two queues merged by a rescale may hold more such elements than fit; the number of workers still bounds the calls.
    """
    behind = elements[capacity:]
    last = max((place for place, element in enumerate(behind) if _has_begun(element, has_budgets)), default=-1)
    return min(capacity, len(elements)) + last + 1


def _has_begun(element: InFlightElement, has_budgets: bool) -> bool:
    if element.is_watermark:
        return False
    used = element.completed or element.attempt > 1 or element.delay is not None
    return used or isinstance(element.value, Timer) or (has_budgets and element.remaining is not None)


def _waiting_of(element: InFlightElement) -> Waiting:
    if element.is_watermark:
        assert element.timestamp is not None, "a watermark has a timestamp"
        return Watermark(element.timestamp)
    return element.value, element.timestamp, element.element_id
