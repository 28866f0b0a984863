"""The identity of a key: keys that are equal in Python only stay apart, the same ones do not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from keygroups import KeyGroupRange, UnstorableValue
from keygroups.state import MISSING, identity_of, original_of
from tests.backends import new_backend
from tests.snapshot_kit import COUNT, G, new_store, part

pytestmark = pytest.mark.usefixtures("each_backend")


class TestTypedKeys:
    SAME: tuple[Any, ...] = (
        *(1, 1.0, True, (1, "a"), (1.0, "a"), (True, "a")),
        *(Decimal(1), Decimal("1.0"), Decimal("1.00"), (Decimal("1.0"), "a")),
    )

    def test_keys_that_are_equal_in_python_stay_apart_in_one_key_group(self) -> None:
        backend = new_backend([COUNT], KeyGroupRange(0, G - 1))
        for number, key in enumerate(self.SAME):
            backend.tables["count"].put(3, identity_of(key), number)
        store = new_store()
        store.write([part(backend, 0, 1)])
        backend.tables["count"].put(3, identity_of(True), 10)
        backend.tables["count"].put(3, identity_of(1.0), MISSING)
        snapshot = store.write([part(backend, 0, 1)])
        found = snapshot.restore(0).states([COUNT])["count"][3].load()

        expected = dict(zip(map(identity_of, self.SAME), range(10), strict=True)) | {identity_of(True): 10}
        del expected[identity_of(1.0)]
        assert found == expected
        assert len(found) == 9

    def test_the_same_key_has_one_identity(self) -> None:
        moment = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
        other = moment.astimezone(dt.timezone(dt.timedelta(hours=5)))
        same: list[tuple[Any, Any]] = [
            (0.0, -0.0),
            (float("nan"), float("nan")),
            (1, np.int64(1)),
            (1.5, np.float64(1.5)),
            (dt.datetime(2026, 1, 2), np.datetime64("2026-01-02T00:00:00.000000000", "ns")),
            (moment, other),
            (("a", moment), ("a", other)),
            (Decimal("-0.00"), Decimal("0.00")),
            (Decimal("1E+2"), Decimal(100)),
        ]
        for one, two in same:
            assert {identity_of(one): 1}[identity_of(two)] == 1
        assert len({identity_of(key) for key in self.SAME}) == len(self.SAME)

    @pytest.mark.parametrize("number", ["NaN", "sNaN", "Infinity"])
    def test_a_decimal_that_is_no_number_is_no_key(self, number: str) -> None:
        with pytest.raises(UnstorableValue, match="infinite or no number"):
            identity_of(("a", Decimal(number)))

    def test_what_python_has_no_equal_of_keeps_its_identity(self) -> None:
        one, two = (np.datetime64(f"2026-01-02T00:00:00.00000000{n}", "ns") for n in (1, 2))
        assert identity_of(one) == one != identity_of(two)
        assert identity_of(np.longdouble("0.1")) == np.longdouble("0.1")


@pytest.mark.parametrize("zone", [None, dt.UTC])
def test_a_time_of_pandas_is_a_key_of_python_which_state_can_hold(zone: dt.tzinfo | None) -> None:
    time = dt.datetime(2026, 1, 2, tzinfo=zone)
    for key in (time, (time, "a")):
        of_pandas = (pd.Timestamp(time), "a") if isinstance(key, tuple) else pd.Timestamp(time)
        assert repr(original_of(identity_of(of_pandas))) == repr(key)
