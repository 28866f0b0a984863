"""A key group in two dicts, which can be written without a copy while a cut holds it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

from keygroups.state.backend import MISSING
from keygroups.state.memory.cut_holds import Holds

FOLDED_AT_ONCE = 8
"""How many keys one access to a group folds: more than the one key that the access may write."""

Values: TypeAlias = dict[Hashable, object]
"""Values by the identity of their key."""


class LayeredGroup:
    """A key group that a cut holds, with newer writes on top. Only the thread that owns the operator may call it.

    Once no cut holds the two dicts (`holds` says how that is known), the newer one is folded into the older one, a few
    keys at a time. So neither the first write after a cut nor the end of a cut costs more than any other write. A cut
    that is held for long costs the memory of the writes since. Only if a second cut is held at the same time, `merged`,
    a copy, replaces both dicts.

    Parameters
    ----------
    base : dict
        The dict that a cut holds.
    age : int
        The number of cuts before it was created.
    holds : Holds
        The cuts that are still held.

    Examples
    --------
    >>> held, holds = {"a": 1, "b": 2}, Holds()
    >>> cut = holds.new()
    >>> group = LayeredGroup(held, 0, holds)
    >>> group["a"] = 3
    >>> group.pop("b")
    >>> group.merged(), held, group.fold()
    ({'a': 3}, {'a': 1, 'b': 2}, None)
    >>> del cut
    >>> group.fold() is held, held
    (True, {'a': 3})
    """

    __slots__ = ("_age", "_base", "_count", "_holds", "_written", "_written_age")

    def __init__(self, base: Values, age: int, holds: Holds) -> None:
        self._base = base
        self._age = age
        self._written: Values = {}
        self._written_age = holds.made
        self._count = len(base)
        self._holds = holds

    def __len__(self) -> int:
        return self._count

    def get(self, key: Hashable, default: object) -> object:
        """Return the value of a key, or the default."""
        # Not through `find`, which would be one more call for each access to a held group.
        value = self._written.get(key, self)
        if value is self:
            return self._base.get(key, default)
        return default if value is MISSING else value

    def __setitem__(self, key: Hashable, value: object) -> None:
        self._count += self.get(key, MISSING) is MISSING
        self._written[key] = value

    def pop(self, key: Hashable, _default: None = None) -> None:
        """Remove a key, if present."""
        if self.get(key, MISSING) is not MISSING:
            self._count -= 1
            self._written[key] = MISSING

    def values(self) -> Iterable[Any]:
        """Return all values."""
        return self.merged().values()

    def merged(self) -> Values:
        """Return the values by the identity of their key, in a new dict."""
        return merged(self._base, self._written)

    def frozen(self) -> tuple[Values, Values]:
        """Return both dicts for a cut; they do not change as long as the cut is held."""
        return self._base, self._written

    @property
    def is_frozen(self) -> bool:
        """Whether a cut also holds the newer dict, so that it must not be written any more."""
        return self._holds.hold_what_is_of(self._written_age)

    def fold(self, keys_max: int = FOLDED_AT_ONCE) -> Values | None:
        """Fold at most `keys_max` keys, unless the dicts are held; returns the single dict once all keys are folded."""
        # A cut that holds the newer dict also holds the base, because `frozen` returns both.
        if self._holds.hold_what_is_of(self._age):
            return None
        base, written = self._base, self._written
        for _ in range(min(keys_max, len(written))):
            key, value = written.popitem()
            if value is MISSING:
                base.pop(key, None)
            else:
                base[key] = value
        return None if written else base


def find(base: Values, written: Values, key: Hashable, default: object) -> object:
    """Return the value of a key from two layers, or the default."""
    value = written.get(key, base)
    if value is base:
        return base.get(key, default)
    return default if value is MISSING else value


def merged(base: Values, written: Values) -> Values:
    """Return the combined content of two layers, in a new dict."""
    both = base | written
    for key in [key for key, value in written.items() if value is MISSING]:
        del both[key]
    return both
