"""Declarations of keyed state: its name, its kind and, if known, its Arrow type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from keygroups.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

# A state's name is part of a file name in every snapshot.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class ValueState:
    """One value per key.

    Parameters
    ----------
    name : str
        Unique within a function: letters, digits and underscores.
    type : pyarrow.DataType, optional
        Stored as a Parquet column of this type; without it the value is msgpack in a binary column.
    default : object, optional
        What `value()` returns for a key that has none. Must not be changed by the function.

    Raises
    ------
    ConfigError
        The name cannot be part of a file name.

    Examples
    --------
    >>> import pyarrow as pa
    >>> ValueState("visits", pa.int64(), default=0).name
    'visits'
    """

    kind: ClassVar[str] = "value"

    name: str
    type: pa.DataType | None = None
    default: object = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError("name", self.name, "a state is named by letters, digits and underscores, 128 at most")
