"""Key groups and subtasks as Spark columns."""

from .columns import KeyColumns, hashed_type, key_group_column, subtask_column

__all__ = [
    "KeyColumns",
    "hashed_type",
    "key_group_column",
    "subtask_column",
]
