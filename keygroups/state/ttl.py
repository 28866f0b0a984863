"""Values with a time to live, as they are stored, and the handles that give out only what has not expired."""

from __future__ import annotations

from typing import Any, NamedTuple


class Expiring(NamedTuple):
    """What a backend holds of a state with a time to live: of a list or a map, each element or value is one.

    Attributes
    ----------
    value : object
        What the function wrote.
    expires_at : int
        Milliseconds since the epoch; from then on it is never returned.
    """

    value: Any
    expires_at: int
