"""What an autoscaler has measured and decided, beside the snapshots: a run of one micro-batch goes on from the last."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from async_op.epochs.position import SourcePosition
from async_op.spark.autoscale import AutoscalePolicy, EpochMeasurement, ScalingDecision
from snapshots import Snapshot
from snapshots.filesystem import Folder

_log = logging.getLogger(__package__)

NAME = "scaling"

_MEASURED_MAX = 16
"""How many micro-batches the autoscaler looks at."""

_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """The newest micro-batches of an operator, and the parallelism that was decided on after the last of them.

    Attributes
    ----------
    measurements : tuple of EpochMeasurement
        Oldest first.
    parallelism : int or None
        What was decided; None before the first micro-batch.
    """

    measurements: tuple[EpochMeasurement, ...] = ()
    parallelism: int | None = None


def measured_in(folder: Folder, lineage: str | None) -> Measured:
    """Return what earlier runs have stored; nothing if that cannot be read, or belongs to another lineage."""
    try:
        stored = json.loads(folder.read(NAME, 0, _BYTES_MAX))
        if stored["lineage"] != lineage:
            return Measured()
        return Measured(tuple(EpochMeasurement(**one) for one in stored["measurements"]), stored["parallelism"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return Measured()  # measuring again costs some epochs, and no result depends on it


def first_decision(
    policy: AutoscalePolicy, measured: Measured, latest: Snapshot | None, otherwise: int
) -> ScalingDecision:
    """Return the parallelism that a run begins with.

    It is what the last run has decided, unless another one was chosen since: then the snapshot's. Without a
    snapshot it is `otherwise`. The bounds hold in any case.
    """
    start = otherwise if latest is None else latest.parallelism
    if latest is not None and measured.measurements and measured.parallelism is not None:
        was = measured.measurements[-1].parallelism
        if latest.parallelism == was == SourcePosition.of(latest).parallelism:
            start = measured.parallelism
    return policy.decide(measured.measurements, start)


class Scaling:
    """Decides after each micro-batch, and stores what it has measured. One thread at a time may call it.

    Parameters
    ----------
    policy : AutoscalePolicy
        Decides.
    folder : Folder
        The operator's folder.
    lineage : str
        The lineage of the operator: the measurements of another one say nothing.
    """

    def __init__(self, policy: AutoscalePolicy, folder: Folder, lineage: str) -> None:
        self.policy = policy
        self._folder = folder
        self._lineage = lineage
        self._measurements: Sequence[EpochMeasurement] = measured_in(folder, lineage).measurements

    def after(self, measurement: EpochMeasurement, parallelism: int) -> ScalingDecision:
        """Return the decision after a micro-batch, and store both; `parallelism` is the next epoch's without it."""
        self._measurements = (*self._measurements, measurement)[-_MEASURED_MAX:]
        decision = self.policy.decide(self._measurements, parallelism)
        stored = {
            "lineage": self._lineage,
            "parallelism": decision.parallelism,
            "measurements": [asdict(one) for one in self._measurements],
        }
        try:
            self._folder.replace(NAME, json.dumps(stored).encode())
        except OSError as error:
            _log.warning("what the autoscaler has measured was not stored, so the next run measures again: %s", error)
        return decision
