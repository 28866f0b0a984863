"""Shows the options that all entry points share by name, in place of `**options`, as `inspect.signature` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe

_OPTIONS, _SHARED = "Unpack[CallOptions]", "options.SharedOptions"


class CallOptionsByName(griffe.Extension):
    """Replaces `**options: Unpack[CallOptions]` by the fields of `SharedOptions`, with their types and defaults."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete the signatures of a package once all of its modules are read."""
        for function in _functions_in(pkg):
            own = [one for one in function.parameters if str(one.annotation) != _OPTIONS]
            if len(own) < len(function.parameters):
                function.parameters = griffe.Parameters(*own, *_shared(pkg))


def _functions_in(owner: griffe.Module | griffe.Class) -> Iterator[griffe.Function]:
    for member in owner.members.values():
        if isinstance(member, griffe.Function):
            yield member
        elif isinstance(member, griffe.Module | griffe.Class):
            yield from _functions_in(member)


def _shared(package: griffe.Module) -> list[griffe.Parameter]:
    return [
        griffe.Parameter(
            one.name,
            annotation=one.annotation,
            kind=griffe.ParameterKind.keyword_only,
            default=None if one.value is None else str(one.value),
        )
        for one in package[_SHARED].attributes.values()
    ]
