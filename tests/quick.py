"""Which cases of a test `make test` runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_is_quick(cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test: all but the first are marked `thorough`."""
    first, *others = cases
    marked = [case if isinstance(case, tuple) else (case,) for case in others]
    return [first, *(pytest.param(*case, marks=pytest.mark.thorough) for case in marked)]
