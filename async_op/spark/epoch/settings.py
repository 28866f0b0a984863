"""What all epochs of a pipeline share."""

from __future__ import annotations

from dataclasses import dataclass

from async_op.options import OperatorOptions


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """What all epochs of a pipeline share.

    Attributes
    ----------
    options : OperatorOptions
        The operator's, with the user's function.
    barrier_timeout : float or None
        Seconds that an epoch waits for calls under way.
    event_time : str or None
        The column that has the timestamps of rows.
    is_resident : bool
        Whether operators live on between epochs.
    """

    options: OperatorOptions
    barrier_timeout: float | None
    event_time: str | None
    is_resident: bool
