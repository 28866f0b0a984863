"""The points of an epoch at which tests stop a pipeline, on the side of the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from async_op.spark.epoch import delivery
from async_op.spark.epoch import runner as runners
from snapshots import Snapshot

POINTS = [
    "before the subtasks",
    "after the subtasks",
    "after the manifest, reply lost",
    "before the sink",
    "in the sink",
    "after the sink",
    "after the delivery",
]


class CrashPoints:
    """Calls `crash` with the runner, once, at one point of one epoch: the first one, one with input, or a drain.

    `patch` replaces an attribute, as `setattr` does. The sink has to call `in_sink` before and after it has written.
    """

    def __init__(
        self,
        point: str,
        kind: str,
        crash: Callable[[runners.EpochRunner], None],
        patch: Callable[[Any, str, Any], None] = setattr,
    ) -> None:
        self.point = point
        self.wanted_kind = kind
        self.crash = crash
        self.happened = False
        self.kind = ""
        run, run_subtasks = runners.EpochRunner._run, runners.EpochRunner._run_subtasks
        commit = runners.EpochRunner._commit
        outputs_frame = delivery.outputs_frame

        def traced_run(runner: runners.EpochRunner, *arguments: Any) -> None:
            kind = arguments[2].position.kind
            self.kind = "first" if runner.epoch == 0 else kind
            self.runner = runner
            self.at("before the subtasks")
            run(runner, *arguments)
            self.at("after the delivery")

        def traced_subtasks(*arguments: Any) -> Any:
            reports = run_subtasks(*arguments)
            self.at("after the subtasks")
            return reports

        def traced_commit(*arguments: Any) -> Snapshot:
            snapshot = commit(*arguments)
            self.at("after the manifest, reply lost")
            return snapshot

        def traced_outputs_frame(*arguments: Any) -> DataFrame:
            self.at("before the sink")
            return outputs_frame(*arguments)

        patch(runners.EpochRunner, "_run", traced_run)
        patch(runners.EpochRunner, "_run_subtasks", traced_subtasks)
        patch(runners.EpochRunner, "_commit", traced_commit)
        patch(delivery, "outputs_frame", traced_outputs_frame)

    def at(self, point: str) -> None:
        if not self.happened and (point, self.kind) == (self.point, self.wanted_kind):
            self.happened = True
            self.crash(self.runner)

    def in_sink(self, is_written: bool) -> None:
        self.at("after the sink" if is_written else "in the sink")
