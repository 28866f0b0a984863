"""How Flink's async operator, its queues and its mailbox behave, and the tests that show how this project does.

Each row is one behaviour in our own words. `differs` tells where the project does otherwise on purpose; the tests then
show what it does instead. A row without tests is for what does not exist here, and says why.
"""

from __future__ import annotations

from tests.operator.catalogue.attempts import RETRIES, TIMEOUTS
from tests.operator.catalogue.batches import BATCHES
from tests.operator.catalogue.behaviour import Behaviour
from tests.operator.catalogue.mailbox import EXECUTOR_TESTS, MAILBOX_RULES, MAILBOX_TESTS, PROCESSOR_TESTS
from tests.operator.catalogue.operator import CONSTRUCTION, FAILURES, OTHER_ELEMENTS, QUEUE_AND_MODES
from tests.operator.catalogue.operator_tests import OPERATOR_TESTS, QUEUE_TESTS
from tests.operator.catalogue.snapshots import SNAPSHOTS

__all__ = ["CATALOGUE", "Behaviour"]

CATALOGUE: dict[str, tuple[Behaviour, ...]] = {
    "construction": CONSTRUCTION,
    "queue and modes": QUEUE_AND_MODES,
    "timeouts": TIMEOUTS,
    "failures": FAILURES,
    "retries": RETRIES,
    "snapshots": SNAPSHOTS,
    "other elements": OTHER_ELEMENTS,
    "batches": BATCHES,
    "tests of the operator": OPERATOR_TESTS,
    "tests of the queues": QUEUE_TESTS,
    "tests of the mailbox": MAILBOX_TESTS,
    "tests of the processor": PROCESSOR_TESTS,
    "tests of the executor": EXECUTOR_TESTS,
    "rules of the mailbox": MAILBOX_RULES,
}
