"""The border between Python values and Arrow: a value is stored exactly, or refused with its row, column and reason.

Arrow itself cuts off fractions, makes dates of datetimes, drops time zones and fields, and takes text for a list. All
parts that hand Python values to Arrow, or Arrow data to a column of another type, do it here: state, snapshots, sinks,
exports, the data source and Spark's outputs.
"""

from __future__ import annotations

from keygroups.values.columns import ColumnEncoder, array_of, in_pieces, values_of
from keygroups.values.inference import check_complete, infer_schema
from keygroups.values.round_trip import exact_column, inferred_array, is_exact
from keygroups.values.rows import rows_to_batch
from keygroups.values.scalars import Misfit, TooLarge
from keygroups.values.type_checks import EXACT, SPARK, TABLES, Rules

__all__ = [
    "EXACT",
    "SPARK",
    "TABLES",
    "ColumnEncoder",
    "Misfit",
    "Rules",
    "TooLarge",
    "array_of",
    "check_complete",
    "exact_column",
    "in_pieces",
    "infer_schema",
    "inferred_array",
    "is_exact",
    "rows_to_batch",
    "values_of",
]
