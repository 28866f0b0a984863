"""A kit to test functions without waiting: virtual time, a harness for one operator, and recorded services."""

from .errors import CallNotRecorded, HarnessNotEntered, InsideEventLoop, NotRecordable, Stalled
from .harness import OperatorHarness
from .recording import RecordedService
from .virtual_loop import VirtualLoop, run

__all__ = [
    "CallNotRecorded",
    "HarnessNotEntered",
    "InsideEventLoop",
    "NotRecordable",
    "OperatorHarness",
    "RecordedService",
    "Stalled",
    "VirtualLoop",
    "run",
]
