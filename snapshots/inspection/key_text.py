"""The keys that a text may stand for, as a person types it."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import islice, product
from typing import Any

KEYS_MAX = 64
"""The most keys that one text is read as; each may need a request."""

_BOOLEANS = {"true": True, "false": False}


def _bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: dict[type, Callable[[str], Any]] = {
    int: int,
    str: str,
    float: float,
    bool: lambda text: _BOOLEANS[text.lower()],
    dt.date: dt.date.fromisoformat,
    dt.datetime: dt.datetime.fromisoformat,
    Decimal: Decimal,
    bytes: _bytes_of,
}
"""How a text becomes a value of each type of key, the likely ones first."""


def keys_from(texts: Sequence[str], like: type | tuple[type, ...] | None = None) -> Iterator[Hashable]:
    """Yield the keys that texts may stand for, the likely ones first, at most `KEYS_MAX`.

    Parameters
    ----------
    texts : sequence of str
        One text for each key column.
    like : type or tuple of types, optional
        The type of a key that is known; for several columns, the type of each.

    Examples
    --------
    >>> list(keys_from(["42"], like=int))[:2]
    [42, '42']
    >>> list(keys_from(["ann", "7"], like=(str, int)))[0]
    ('ann', 7)
    >>> list(keys_from(['"ann"']))
    ['"ann"', 'ann']
    """
    if len(texts) == 1 and not isinstance(like, tuple):
        yield from islice(readings(texts[0], like), KEYS_MAX)
        return
    kinds = like if isinstance(like, tuple) and len(like) == len(texts) else (None,) * len(texts)
    yield from islice(product(*map(readings, texts, kinds)), KEYS_MAX)


def readings(text: str, like: type | None = None) -> Iterator[Hashable]:
    """Yield the values that a text may stand for: as the type `like` if it can be, then as the other types.

    Text in quotes is also read as JSON, because commands show keys in that form. So is text with backslashes, because a
    shell removes the quotes.
    """
    for kind in dict.fromkeys([like, *_READERS]):
        read = None if kind is None else _READERS.get(kind)
        if read is None:
            continue
        try:
            yield read(text)
        except (ValueError, KeyError, InvalidOperation, binascii.Error, OverflowError):
            continue
    unquoted = _unquoted(text)
    if unquoted is not None:
        yield from readings(unquoted, like)


def _unquoted(text: str) -> str | None:
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    if not is_quoted and "\\" not in text:
        return None
    try:
        return str(json.loads(text if is_quoted else f'"{text}"'))
    except ValueError:
        return None
