"""The function of the world: beside the history of a key there is a note that edits write, and state without a key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from async_op import InvocationContext
from async_op.functions.runtime import Runtime
from keygroups import OperatorListState, OperatorMapState, ValueState
from tests.simulation.histories import BatchHistorian, Event, Historian
from tests.simulation.wild import name_of

NOTE = ValueState("note", pa.int64(), default=0)
SEEN = OperatorListState("seen")
MARKS = OperatorListState("marks", mode="union")
RULES = OperatorMapState("rules")


class _InWorld:
    operator_states = (SEEN, MARKS, RULES)
    run: Any

    async def open(self, runtime: Runtime) -> None:
        self.seen = runtime.operator_state(SEEN)
        self.found_seen = [tuple(item) for item in self.seen.get()]
        self.found_marks = list(runtime.operator_state(MARKS).get())
        rules = runtime.operator_state(RULES)
        assert runtime.restored == self.run.is_restored, "the function is told whether it was restored"
        if runtime.restored:
            assert dict(rules) == {"rule": self.run.seed}, f"the rules are {dict(rules)}"
        else:
            rules.update({"rule": self.run.seed})
        self.begun: list[tuple[str, str, int]] = []

    async def _handle(self, event: Event, ctx: InvocationContext) -> list[Any]:
        # The write counts at once, whatever becomes of the call.
        key = name_of(ctx.key)
        self.begun.append((key, *event))
        self.seen.add([key, *event])
        outputs: list[Any] = await super()._handle(event, ctx)  # type: ignore[misc]
        self.run.answered.add((key, event))
        return outputs

    def _write(self, event: Event, ctx: InvocationContext, place: int, now: int) -> None:
        note = ctx.state(NOTE)
        expected = self.run.note(name_of(ctx.key), place - 1)
        assert note.value() == expected, f"the note of {name_of(ctx.key)} is {note.value()}, not {expected}"
        note.update(expected + 1)
        super()._write(event, ctx, place, now)  # type: ignore[misc]


class InWorld(_InWorld, Historian):
    """Calls for each element."""


class BatchInWorld(_InWorld, BatchHistorian):
    """Calls for several elements at once."""
