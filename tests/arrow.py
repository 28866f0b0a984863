"""What only some of the supported releases of Arrow can do."""

from __future__ import annotations

import pyarrow as pa
import pytest

from keygroups.values.stored_types import reason_against

HAS_LISTS_OF_FIXED_SIZE = reason_against(pa.list_(pa.int8(), 1)) is None

stores_lists_of_fixed_size = pytest.mark.skipif(
    not HAS_LISTS_OF_FIXED_SIZE,
    reason="Arrow before 26 cannot read null in a list of fixed size, so no state is declared with one",
)
