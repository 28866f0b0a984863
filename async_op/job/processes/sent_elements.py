"""Elements as bytes for another process: as pickles, which are fast, of values that snapshots can store."""

from __future__ import annotations

import datetime as dt
import io
import pickle
import uuid
from collections.abc import Sequence
from decimal import Decimal
from types import BuiltinFunctionType, FunctionType
from typing import Any

from async_op.elements import Element
from keygroups.codec import has_codec, pack, unpack
from keygroups.safe_text import described, repr_of
from keygroups.state.storable import StorableCheck
from snapshots.format.subtask import RefusedValue

_A_SENT_VALUE = "the value of an element"

_PICKLED_EXACTLY = frozenset(
    {
        *(Decimal, uuid.UUID, dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone, RefusedValue),
        *(type, FunctionType, BuiltinFunctionType),  # what a pickle says about how to make the others
    }
)
"""Types that are no builtin containers, numbers or text, and whose values pickle gives back as they were."""


def dumped_elements(elements: Sequence[Element]) -> bytes:
    """Return elements as bytes.

    A value that cannot be sent is sent as a `RefusedValue`, so that only its own element fails, by `on_error`. Without
    that it would end the job: a pickle has all elements or none, and some errors show only when it is read.
    """
    try:
        pickled, are_certain = _pickled(elements)
    except Exception:  # noqa: BLE001 - what a user's class raises; below, the value that has it is found
        return _pickled([_sendable(element) for element in elements])[0]
    if are_certain or StorableCheck(_A_SENT_VALUE).are_storable([value for value, _, _ in elements]):
        return pickled
    return _pickled([_sendable(element) for element in elements])[0]


def loaded_elements(data: bytes | memoryview) -> list[Element]:
    """Return the elements in bytes."""
    return pickle.loads(data)  # type: ignore[no-any-return]  # noqa: S301 - from a process of this run


class _Pickler(pickle.Pickler):
    """Pickles values with a codec by their codec, and notes whether there were any of other types."""

    has_others = False
    """Whether values of types were pickled that snapshots may not be able to hold."""

    def reducer_override(self, value: Any) -> Any:
        """Say how to pickle a value that is no builtin container, number or text."""
        kind = type(value)
        if kind in _PICKLED_EXACTLY:
            return NotImplemented
        if has_codec(kind):
            return _decoded, (kind, pack(value, _A_SENT_VALUE))
        self.has_others = True
        return NotImplemented


def _decoded(kind: type, packed: bytes) -> Any:
    """Return a value that has a codec; to read the pickle was to import its class, and so, usually, the codec."""
    del kind
    return unpack(packed)


def _pickled(elements: Sequence[Element]) -> tuple[bytes, bool]:
    """Return the pickle of elements, and whether all of their values are certainly given back as they are."""
    file = io.BytesIO()
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dump(elements)
    return file.getvalue(), not pickler.has_others


def _sendable(element: Element) -> Element:
    """Return an element that can be sent: itself, or with the reason why its value cannot."""
    value, timestamp, element_id = element
    if type(value) is RefusedValue:
        return element
    error = StorableCheck(_A_SENT_VALUE).error_of(value)
    if error is None:
        try:
            _pickled([element])
        except Exception as raised:  # noqa: BLE001 - what a user's class raises
            error = raised
    return element if error is None else (RefusedValue(repr_of(value), described(error)), timestamp, element_id)
