"""Shows errors on the site as the classes that they are: with a constructor, and with a list of their fields.

The constructor is made when the module is imported (`keygroups.errors`), and the site is built without importing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


class DeclaredErrors(griffe.Extension):
    """Gives each error a constructor with its fields, and lists them in its docstring."""

    def __init__(self) -> None:
        self._errors = {"keygroups.errors.KeyGroupsError", "keygroups.errors.ConfigError"}

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete the errors of a package once all of its modules are read."""
        for error in list(self._errors_in(pkg)):
            if {"_template", "_message"} & set(error.members) and "__init__" not in error.members:
                error.set_member("__init__", _constructor(error))
            fields = [one for one in error.attributes.values() if one.docstring]
            if fields and error.docstring:
                error.docstring.value += "\n\nAttributes\n----------\n" + "\n".join(map(_entry, fields))
                for one in fields:
                    one.docstring = None

    def _errors_in(self, module: griffe.Module) -> Iterator[griffe.Class]:
        for inner in module.modules.values():
            if not inner.is_alias:
                yield from self._errors_in(inner)
        for one in module.classes.values():
            if not one.is_alias and any(str(getattr(base, "canonical_path", "")) in self._errors for base in one.bases):
                self._errors.add(one.canonical_path)
                yield one


def _constructor(error: griffe.Class) -> griffe.Function:
    fields = [one for base in (*reversed(error.mro()), error) for one in base.attributes.values() if one.annotation]
    parameters = {"self": griffe.Parameter("self")} | {
        one.name: griffe.Parameter(
            one.name,
            annotation=one.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=None if one.value is None else str(one.value),
        )
        for one in fields
        if not one.name.startswith("_")
    }
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters.values()))


def _entry(field: griffe.Attribute) -> str:
    lines = field.docstring.value.splitlines() if field.docstring else []
    return "\n".join([f"{field.name} : {field.annotation}", *(f"    {line}" for line in lines)])
