"""A key group in two dicts, so that it can be written to while a cut holds it, without a copy."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from sys import getrefcount

from keygroups.state.backend import MISSING

FOLDED_AT_ONCE = 8
"""So many keys are folded by one access to a group: it must be more than the one that the access may write."""


class LayeredGroup:
    """A key group that a cut holds, and what was written since.

    Once nothing else holds the two dicts, which their reference counts tell, the newer one is folded into the older
    one, a few keys at a time. So neither the first write after a cut nor the end of a cut costs more than any other
    write. Only the thread that owns the operator may call it, but for `load` and `get` of a frozen one: any thread may.

    Parameters
    ----------
    base : dict
        What a cut holds.

    Examples
    --------
    >>> held = {"a": 1, "b": 2}
    >>> group = LayeredGroup(held)
    >>> group["a"] = 3
    >>> group.pop("b")
    >>> group.load(), held
    ({'a': 3}, {'a': 1, 'b': 2})
    """

    __slots__ = ("_base", "_count", "_written")

    def __init__(self, base: dict[Hashable, object]) -> None:
        self._base = base
        self._written: dict[Hashable, object] = {}
        self._count = len(base)

    def __len__(self) -> int:
        return self._count

    def get(self, key: Hashable, default: object) -> object:
        """Return the value of a key, or the default."""
        value = self._written.get(key, self)
        if value is self:
            return self._base.get(key, default)
        return default if value is MISSING else value

    def __setitem__(self, key: Hashable, value: object) -> None:
        self._count += self.get(key, MISSING) is MISSING
        self._written[key] = value

    def pop(self, key: Hashable, _default: None = None) -> None:
        """Remove a key, if it is there."""
        if self.get(key, MISSING) is not MISSING:
            self._count -= 1
            self._written[key] = MISSING

    def load(self) -> dict[Hashable, object]:
        """Return the values by the identity of their key, in a dict of its own."""
        merged = self._base | self._written
        for key in [key for key, value in self._written.items() if value is MISSING]:
            del merged[key]
        return merged

    def frozen(self) -> LayeredGroup:
        """Return what a cut is to hold: the same dicts, which are not changed as long as it does."""
        frozen = LayeredGroup(self._base)
        frozen._written, frozen._count = self._written, self._count
        return frozen

    @property
    def is_frozen(self) -> bool:
        """Whether a cut holds what was written, so that nothing more may be."""
        return _holders_of_written(self) > _ALONE

    def fold(self, keys_max: int = FOLDED_AT_ONCE) -> dict[Hashable, object] | None:
        """Fold so many keys, unless the dicts are held, and return the one that is left once all are folded."""
        if _holders_of_base(self) > _ALONE or _holders_of_written(self) > _ALONE:
            return None
        base, written = self._base, self._written
        for _ in range(min(keys_max, len(written))):
            key, value = written.popitem()
            if value is MISSING:
                base.pop(key, None)
            else:
                base[key] = value
        return None if written else base


def is_shared(groups: Mapping[int, object], key_group: int) -> bool:
    """Tell whether something else holds a key group, whoever that may be."""
    return _holders_of_group(groups, key_group) > _ALONE_IN_GROUPS


def _holders_of_group(groups: Mapping[int, object], key_group: int) -> int:
    return getrefcount(groups[key_group])


def _holders_of_base(group: LayeredGroup) -> int:
    return getrefcount(group._base)


def _holders_of_written(group: LayeredGroup) -> int:
    return getrefcount(group._written)


# What is counted of a group that nothing else holds differs between versions of Python.
_ALONE = _holders_of_written(LayeredGroup({}))
_ALONE_IN_GROUPS = _holders_of_group({0: {}}, 0)
