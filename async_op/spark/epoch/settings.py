"""The settings that all epochs of a pipeline share."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.options import OperatorOptions
from async_op.threads.wait_strategies import WaitStrategies


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """What all epochs of a pipeline share.

    Attributes
    ----------
    options : OperatorOptions
        The options of the operator, with the user's function.
    barrier_timeout : float or None
        Seconds that an epoch waits for calls under way; None to wait for all.
    event_time : str or None
        The column with the timestamps of rows; None without event time.
    is_resident : bool
        Whether operators live on between epochs, in hosts.
    wait_strategies : WaitStrategies
        How tasks wait for hosts.
    """

    options: OperatorOptions
    barrier_timeout: float | None
    event_time: str | None
    is_resident: bool
    wait_strategies: WaitStrategies
