"""`FileSource` over files of JSON lines, CSV and lines: seconds of the processor for each row, without a job.

The floor is Python itself: `json.loads` for each line, `csv.DictReader`, and the lines of an open file.

    python -m benchmarks.files --json
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from async_op.connectors import FileSource, Reached

ROWS = 100_000


def write(folder: Path) -> dict[str, Path]:
    """Write the files; returns them by format."""
    rows = [{"id": n, "user": f"user-{n % 97}", "amount": n * 0.25, "text": "some words of text"} for n in range(ROWS)]
    texts = {
        "json": "".join(f"{json.dumps(row)}\n" for row in rows),
        "csv": "id,user,amount,text\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows),
        "lines": "".join(f"{row['id']} {row['user']} {row['text']}\n" for row in rows),
    }
    paths = {format: folder / f"rows.{format}" for format in texts}
    for format, path in paths.items():
        path.write_text(texts[format])
    return paths


async def read(path: Path, format: str) -> int:
    """Return how many rows the source reads."""
    source = FileSource(path, format)
    await source.open()
    [partition] = await source.partitions()
    count = 0
    async for block in source.read(partition, None):
        count += 0 if isinstance(block, Reached) else len(block)
    await source.close()
    return count


def read_plainly(path: Path, format: str) -> int:
    """Return how many rows Python reads."""
    with path.open(newline="") as file:
        match format:
            case "json":
                return sum(json.loads(line) is not None for line in file)
            case "csv":
                return sum(row is not None for row in csv.DictReader(file))
            case _:
                return sum(line.removesuffix("\n") is not None for line in file)


def least(run: Callable[[], int], repeats: int) -> float:
    """Return the least seconds of the processor."""
    found = []
    for _ in range(repeats):
        started = time.process_time()
        assert run() == ROWS
        found.append(time.process_time() - started)
    return min(found)


def main() -> None:
    """Measure all formats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case (default: 5)")
    arguments = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for format, path in write(Path(folder)).items():
            source = least(lambda path=path, format=format: asyncio.run(read(path, format)), arguments.repeats)  # type: ignore[misc]
            floor = least(lambda path=path, format=format: read_plainly(path, format), arguments.repeats)  # type: ignore[misc]
            found[format] = {"microseconds": round(source / ROWS * 1e6, 2), "of_python": round(source / floor, 2)}
    if arguments.json:
        json.dump(found, sys.stdout)
        return
    for format, one in found.items():
        sys.stdout.write(f"{format}: {one['microseconds']} µs for each row, {one['of_python']} times Python\n")


if __name__ == "__main__":
    main()
