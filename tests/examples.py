"""How many examples a property test runs."""

from __future__ import annotations

from hypothesis import settings

_ALL = 100


def scaled(count: int) -> int:
    """Return the share of a number of examples that the Hypothesis profile runs.

    That is all of them in CI, else a quarter, or a tenth with --quick.
    """
    return max(count * settings.default.max_examples // _ALL, 1)
