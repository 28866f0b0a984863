"""How Flink's async operator, its queues and its mailbox behave, and that each behaviour is shown by a test here.

A test says by its mark which behaviour it shows; `pytest -m behaviour` runs them all. Some have no counterpart: there
are no latency markers, as latencies are counted in place; no idle status, as an idle source sends nothing; and no
mail runs in the middle of an action, so there are no priorities, no deferrable mail and no default action to suspend.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

AS_FLINK = (
    # how it is made, and by whom it is used
    "an argument that can never work is refused",
    "the default capacity is 100",
    "one thread owns the operator; other threads only leave mail for it",
    # queues and modes
    "a queue refuses what does not fit, and gives its content for a snapshot",
    "a watermark takes a place in the queue",
    "while the queue is full the input waits and everything else goes on",
    "of an ordered queue only the head leaves",
    "an unordered queue is free between watermarks, which no record passes",
    "a watermark with nothing before it leaves at once",
    "adjacent watermarks leave in their order",
    "outputs carry the timestamp of their input",
    "event time, ordered: records and watermarks leave in exactly their order",
    "event time, unordered: the watermark stays in its place, records before it leave in any order",
    "processing time, ordered: more records than fit leave in order",
    "processing time, unordered: more records than fit leave in any order",
    "results and errors may be made on the owner's thread",
    "what completes after the end is dropped, and comes back with the restore",
    "a call that fails after the end is not tried again",
    # timeouts
    "a timeout asks the function, and fails the job by default",
    "a timeout covers all attempts and the delays between them",
    "after a timeout no further attempt is made",
    "what comes after a timeout or a first completion is ignored",
    "a timer that fires after the completion does nothing",
    "a timeout() that neither returns nor fails keeps its place for ever",
    "a function that never completes is ended by its timeout, and close returns",
    # failures
    "a failure names the input and frees whoever waits; the first one counts",
    "a result that is no collection is refused",
    "after an error of the function close does not hang",
    "after an error of the function, with retries, close does not hang",
    # retries
    "a strategy decides by attempts, result and error",
    "the outcome of the last attempt is final",
    "a function that completes repeatedly has one result for each element",
    "an element keeps its place during the delay",
    # snapshots
    "a snapshot holds every element as it came in, in the order of the queue",
    "each snapshot replaces the one before as a whole",
    "what cannot be stored is an error, and nothing is stored",
    "elements are processed again during open, which may emit",
    "more elements than fit can be restored",
    "a full queue is restored whole",
    "elements tried before and never tried are restored together",
    "a snapshot is restored into another capacity and followed by another one",
    "results are emitted exactly once, calls are made at least once",
    # batches
    "a batch is called when it is full, after its delay, and at the end of the input",
    "at most one timer runs for a batch",
    "the size of a batch must be positive",
    "batches are unordered, with another operator ordered",
    "a batch is retried after a fixed delay",
    "a batch is retried after growing delays",
    "a batch is retried for its result",
    "a batch that was retried too often keeps the cause",
    "an error of a batch that does not match is final",
    "a batch that times out fails the job",
    "a batch that times out may give a part of its results, or none",
    "a batch in time does not time out",
    # the mailbox
    "mail is taken first in, first out",
    "many threads may write mail, blocking or not",
    "closing ends the writers",
    "a closed mailbox is neither filled nor emptied",
    "urgent mail overtakes the rest of a batch of mail",
    "single urgent mails each come first",
    "closing cancels the mail that is left",
    "mail that comes while a batch is read waits for the next: mail that causes mail starves nobody",
    "mail of another thread is run by who takes it",
)

OTHERWISE = {
    "a policy without a predicate retries every error and no result": "only a strategy with a predicate retries",
    "a timeout of None means none; zero or less is refused": "zero or less means none",
    "operators are joined as streams, and the taker is ready before the giver": (
        "they are chained into one thread and opened from tail to head"
    ),
    "all that may leave leaves together": (
        "one element leaves for each mail; but here the output does not block, and a turn of the loop each costs more"
    ),
    "an element that can change is copied for its call, an immutable one is not": (
        "where objects are reused, a record is copied before it is queued"
    ),
    "one timer serves all elements, and may fire once in vain after the last": (
        "each record has one, from its acceptance to its completion"
    ),
    "after a restore an element keeps its attempts, its time and the rest of its delay": (
        "timers and attempts start anew"
    ),
    "a maximum of n makes n calls, the first included": "it makes one call and n retries",
    "the delay is computed from the attempt: fixed, or exponential with full jitter": (
        "a strategy remembers its last delay, so that elements make each other wait"
    ),
    "in a hurry, at the end of the input, what waits is tried once more at once, for good": (
        "at every end; but then an input smaller than the capacity has no retries"
    ),
    "at the end of the input a running attempt is not made a second time": "it may be",
    "after a rescale an element is where its key is; only those without one are dealt": (
        "the queue is operator state, distributed round-robin"
    ),
    "results that have not left are stored and emitted: no finished call is made again": (
        "they are not stored, and their calls are made again"
    ),
    "after a rescale the order of a key and the place of a watermark are kept": (
        "both are lost; here an old subtask is a channel, and the watermark is the least of its channels"
    ),
    "a snapshot never waits for a call, although the queue is full": "a full queue delays it",
    "the capacity bounds batches, too": "there is no bound on what is in flight",
    "what waits for its batch survives a failure, and outputs keep their timestamps": "neither does",
    "the close cancels what is left and raises the first of its errors": "it gathers the errors",
    "mails, the latency of calls, the size of the queue and the time suspended are measured": (
        "the latency is that of mails"
    ),
}
"""What is done otherwise on purpose, and what Flink does."""


def marks(module: ast.Module) -> Iterator[str]:
    """Yield the behaviours that the tests of a module are marked with."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for decorator in node.decorator_list:
                match decorator:
                    case ast.Call(func=ast.Attribute(attr="behaviour"), args=[ast.Constant(value=str(sentence))]):
                        yield sentence


def test_every_behaviour_is_shown_by_a_test_and_no_test_names_another() -> None:
    modules = Path(__file__).parent.rglob("test_*.py")
    shown = {sentence for path in modules for sentence in marks(ast.parse(path.read_text(encoding="utf-8")))}

    assert shown == {*AS_FLINK, *OTHERWISE}
