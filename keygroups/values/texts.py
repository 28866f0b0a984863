"""Python values as JSON, CSV and lines of text: written so that they can be read again, or refused."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from keygroups.representation import class_in_message
from keygroups.values.scalars import Refusal, without_numpy

_PLAIN = frozenset({str, int, float, bool, type(None)})
_TIMES = frozenset({dt.date, dt.datetime, dt.time})
_CELLS = frozenset({str, int, float, bool, Decimal, uuid.UUID})

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def json_of(value: Any, *, is_exact: bool = False) -> str:
    """Return a value as JSON in one line.

    Parameters
    ----------
    value : object
        Built from None, bool, int, float, str, list, and dict with text as keys.
    is_exact : bool
        Whether tuples, which become lists, and dates and times, which become ISO 8601 text, are refused, too.

    Raises
    ------
    Refusal
        JSON would change the value, or has no form for it. Its path leads to it.

    Examples
    --------
    >>> json_of({"on": dt.date(2026, 1, 2), "tags": ("a",)})
    '{"on": "2026-01-02", "tags": ["a"]}'
    """
    try:
        return _written(value, is_exact)
    except Refusal as refusal:
        if refusal.path or type(value) is not dict:
            raise
        raise Refusal(refusal.reason, _step_to_refused(value, is_exact)) from None


def _step_to_refused(value: dict[Any, Any], is_exact: bool) -> str:
    """Return the step to the first item for which a dict is refused; nothing if it is refused as a whole."""
    for name, item in value.items():
        try:
            _written({name: item}, is_exact)
        except Refusal:
            return f".{name}" if type(name) is str else ""
    return ""


def _written(value: Any, is_exact: bool) -> str:
    try:
        text = _encode(_json_form(value, is_exact))
        text.encode()
    except UnicodeEncodeError:
        raise half_of_a_pair() from None
    except ValueError:
        raise Refusal("it is no JSON: it holds infinity or no number, which JSON lacks; use None or text") from None
    except RecursionError:
        raise Refusal("it is no JSON: it is nested too deeply") from None
    return text


def _json_form(value: Any, is_exact: bool) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return _json_dict(value, is_exact)
    if kind is list or (kind is tuple and not is_exact):
        if _PLAIN.issuperset(map(type, value)):
            return value
        return [_inside(item, f"[{at}]", is_exact) for at, item in enumerate(value)]
    if kind in _TIMES and not is_exact:
        return _time_text(value)
    plain = without_numpy(value)
    if plain is not value:
        return _json_form(plain, is_exact)
    raise Refusal(f"it is no JSON: a {class_in_message(kind)} has no form in JSON; convert it to text or numbers")


def _json_dict(value: dict[Any, Any], is_exact: bool) -> dict[str, Any]:
    for key in value:
        if type(key) is not str:
            raise Refusal(f"it is no JSON: a key is a {class_in_message(type(key))}, and keys are text in JSON")
    if _PLAIN.issuperset(map(type, value.values())):
        return value
    return {key: _inside(item, f".{key}", is_exact) for key, item in value.items()}


def _inside(value: Any, step: str, is_exact: bool) -> Any:
    try:
        return _json_form(value, is_exact)
    except Refusal as refusal:
        raise refusal.inside(step) from None


def cell_of(value: Any) -> str | None:
    """Return a value as the text of a CSV cell, and None as it is.

    Raises
    ------
    Refusal
        The value is nested or binary, or its class has no text that stands for it.
    """
    kind = type(value)
    if value is None or kind is str:
        return value  # type: ignore[no-any-return]
    if kind in _CELLS:
        return str(value)
    if kind in _TIMES:
        return _time_text(value)
    if isinstance(value, dict | list | tuple | set | frozenset):
        raise Refusal("it is nested, and CSV is flat; write JSON, or convert it to text")
    plain = without_numpy(value)
    if plain is not value:
        return cell_of(plain)
    raise Refusal(f"a {class_in_message(kind)} has no form in CSV; convert it to text")


_QUOTED = re.compile(r'["\r\n\ufeff]')
"""What a cell needs quotes for.

`csv.writer` has none for a bare carriage return, which readers take for a line end, and for a byte order mark, which
they leave out at the beginning of a file.
"""


def csv_line(cells: Iterable[str | None], delimiter: str = ",") -> str:
    r"""Return cells as a line of CSV: None is an empty cell, and empty text is a pair of quotes.

    Examples
    --------
    >>> csv_line(["a,b", None, ""])
    '"a,b",,""\n'
    """
    written = [_quoted(cell, delimiter) for cell in cells]
    # Readers skip an empty line.
    return (delimiter.join(written) if len(written) != 1 else written[0] or '""') + "\n"


def _quoted(cell: str | None, delimiter: str) -> str:
    if cell is None:
        return ""
    needs_quotes = not cell or delimiter in cell or _QUOTED.search(cell)
    return f'"{cell.replace(chr(34), chr(34) * 2)}"' if needs_quotes else cell


def line_of(value: Any) -> str:
    """Return text as a line, without its end.

    Raises
    ------
    Refusal
        The value is not text, or its reader would find another text or several lines.
    """
    text = without_numpy(value)
    if type(text) is not str:
        raise Refusal(f"a {class_in_message(type(value))} is no line of text; convert it to text, or write JSON")
    if "\n" in text or text.endswith("\r"):
        raise Refusal("it holds the end of a line; split it, or write JSON")
    if text.startswith("\ufeff"):
        raise Refusal("it begins with a byte order mark, which readers leave out; remove it, or write JSON")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise half_of_a_pair() from None
    return text


def half_of_a_pair() -> Refusal:
    """Return the refusal of text that UTF-8 cannot encode."""
    return Refusal("it holds half of a surrogate pair, which UTF-8 cannot encode")


def _time_text(value: dt.date | dt.time) -> str:
    """Return a date or time as ISO 8601, which has no form for the second of two equal local times."""
    if isinstance(value, dt.datetime | dt.time) and value.fold and value.utcoffset() is None:
        raise Refusal("its fold would be lost; give it a time zone")
    return value.isoformat()
