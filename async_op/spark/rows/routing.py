"""How rows find their subtask: by their key, or without keys by a hash of the whole row."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from async_op.epochs.position import StoredKey
from async_op.spark.rows.keys import KeyColumn, column_named, sql_name
from keygroups.hashes.flink import NAME as FLINK
from keygroups.spark.columns import subtask_column, subtask_expression

_ANY_KEY = {"bigint": 0, "double": 0.0, "string": "", "boolean": False}
"""What stands for a null in a Python function, which computes the hash also of rows that do not need it."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Sends the rows of an epoch to their subtasks.

    Attributes
    ----------
    keys : tuple of KeyColumn
        The key columns; empty if rows have no keys.
    hash : str
        The hash that maps keys to key groups.
    max_parallelism : int
        The number of key groups.
    order_by : list of str
        The columns by which a subtask's rows are sorted.
    schema : StructType
        All columns of the rows.
    """

    keys: tuple[KeyColumn, ...]
    hash: str
    max_parallelism: int
    order_by: list[str]
    schema: StructType

    @property
    def stored_keys(self) -> tuple[StoredKey, ...]:
        """The key columns as a source position stores them."""
        return tuple(StoredKey(key.name, key.type) for key in self.keys)

    def route(self, frame: DataFrame, parallelism: int) -> DataFrame:
        """Send every row to its subtask; Spark's partition id is then the subtask index."""
        subtask = self._of_key(parallelism) if self.keys else _of_row(frame.schema, parallelism)
        routed = frame.repartitionById(parallelism, subtask)
        return routed.sortWithinPartitions(*self.order_by) if self.order_by else routed

    def _of_key(self, parallelism: int) -> Column:
        keys = [(sql_name(*key.path), key.type) for key in self.keys]
        expression = None if self.hash == FLINK else subtask_expression(keys, parallelism, self.max_parallelism)
        return self._of_any_key(parallelism) if expression is None else F.expr(expression)

    def _of_any_key(self, parallelism: int) -> Column:
        no_key = F.greatest(*[key.column.isNull() for key in self.keys], F.lit(False))
        columns = [_for_flink(key) if self.hash == FLINK else key.column for key in self.keys]
        # A row with a null key goes to subtask 0: there the error policy applies, and an error names the row.
        return F.when(no_key, 0).otherwise(subtask_column(columns, parallelism, self.max_parallelism, self.hash))


def _for_flink(key: KeyColumn) -> Column:
    """Return a key column as the function's process hashes it: an int, of any width, is a Long there."""
    return F.coalesce(key.column.cast(key.type), F.lit(_ANY_KEY[key.type]))


def _of_row(schema: StructType, parallelism: int) -> Column:
    """Return the subtask of a row without a key. Equal rows meet, so they can be numbered to have ids of their own."""
    columns = [column_named(field.name) for field in schema if _has_hash(field.dataType)]
    return F.pmod(F.xxhash64(*columns, F.lit(0)), F.lit(parallelism)).cast("int")


def _has_hash(kind: DataType) -> bool:
    """Tell whether Spark hashes a type: maps and variants, also inside of others, it does not."""
    if isinstance(kind, StructType):
        return all(_has_hash(field.dataType) for field in kind)
    return _has_hash(kind.elementType) if isinstance(kind, ArrayType) else not isinstance(kind, MapType | VariantType)
