"""What it costs to write the rows in flight into a file and to read them again: as columns, and each as msgpack.

msgpack is what columns replaced: a row of the table for each element, its key and value packed one by one. Both are
measured in one process by turns; the ratios hold for a busy machine, too.

    python -m benchmarks.queue_columns --json
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from keygroups import key_group_of
from keygroups.codec import pack, unpack
from snapshots import InFlightElement
from snapshots.commit.part_writer import encoded_in_flight
from snapshots.format.in_flight_columns import in_flight_elements, in_flight_schema, in_flight_table
from snapshots.format.subtask import ElementTypes

ROWS = 10_000
KNOWN = ElementTypes(value=pa.struct([("user_id", pa.int64()), ("city", pa.string())]), key=pa.int64())
PACKED_SCHEMA = in_flight_schema(None, None, None)


def waiting_rows(count: int) -> list[InFlightElement]:
    """Return rows of two columns that wait for their calls, with ids as a pipeline gives them."""
    made = []
    for number in range(count):
        user = number * 7919 % 100_003
        made.append(
            InFlightElement(
                *(0, number),
                value={"user_id": user, "city": f"city {number % 977}"},
                key=user,
                key_group=key_group_of(user, 128),
                element_id=f"{uuid.UUID(int=number * 2**97 + number * 12345678901234567).hex}-0",
            )
        )
    return made


def packed_table(elements: list[InFlightElement]) -> pa.Table:
    """Return elements as rows with msgpack."""
    ordered = sorted(elements, key=lambda element: (element.key_group, element.channel, element.sequence))
    rows = [
        element._asdict()
        | {"kind": "record", "key": pack(element.key, "a key"), "value": pack(element.value, "a value"), "rest": None}
        for element in ordered
    ]
    return pa.Table.from_pylist(rows, schema=PACKED_SCHEMA)


def unpacked(table: pa.Table) -> list[InFlightElement]:
    """Return the elements of `packed_table`."""
    made = []
    for row in table.to_pylist():
        fields = {name: row[name] for name in InFlightElement._fields if name in row}
        made.append(InFlightElement(**fields | {"key": unpack(row["key"]), "value": unpack(row["value"])}))
    return made


WAYS: dict[str, tuple[Callable[[list[InFlightElement]], pa.Table], Callable[[pa.Table], list[InFlightElement]]]] = {
    "msgpack": (packed_table, unpacked),
    "columns": (lambda elements: in_flight_table(elements, KNOWN), in_flight_elements),
    "columns, inferred": (lambda elements: in_flight_table(elements, ElementTypes()), in_flight_elements),
}


def measure(count: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return for each way the least processor time to write and to read, and the size of the file."""
    elements = waiting_rows(count)
    found: dict[str, dict[str, float]] = {name: {} for name in WAYS}
    for _ in range(repeats):
        for name, (encode, decode) in WAYS.items():
            started = time.process_time()
            data = encoded_in_flight(encode(elements)).finish({"keygroups.path": name}).data
            written = time.process_time()
            read = decode(pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False))
            ended = time.process_time()
            assert len(read) == count
            figures = {
                "write, ms": 1e3 * (written - started),
                "read, ms": 1e3 * (ended - written),
                "KB": data.size / 1e3,
            }
            found[name] = {what: min(figure, found[name].get(what, figure)) for what, figure in figures.items()}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue_columns", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows in flight (default: {ROWS})")
    parser.add_argument("--repeats", type=int, default=15, help="how often each way is measured (default: 15)")
    arguments = parser.parse_args()
    found: dict[str, Any] = measure(arguments.rows, arguments.repeats)
    if arguments.json:
        print(json.dumps({"results": found}, indent=2))
        return
    floor = found["msgpack"]
    for name, figures in found.items():
        print(f"{name:20}", *(f"{what} {figure:7.1f} ({figure / floor[what]:.2f})" for what, figure in figures.items()))


if __name__ == "__main__":
    main()
