"""The figure of a soak: what was held, and how long epochs took, with what was done to it meanwhile."""

from __future__ import annotations

import json
import math
import sys
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

PANELS = {
    "Memory, MB": (
        *("JVM, MB", "heap of the JVM, MB", "driver, MB", "largest worker or host, MB"),
        *("parent, MB", "largest child, MB"),
    ),
    "Files and threads": (
        "open files",
        "threads of the JVM",
        "threads of a child",
        "files of snapshots",
        "files of hosts",
    ),
    "Processes": ("hosts", "workers", "children"),
    "An epoch, milliseconds": ("epoch, ms",),
    "Of an epoch": ("calls", "retries", "timeouts", "in flight"),
}
"""What may be drawn; a soak has some of it."""

EVENTS = {
    **dict.fromkeys(("driver killed", "parent killed"), "#c44e52"),
    **dict.fromkeys(("driver stopped", "parent stopped"), "#55a868"),
    **dict.fromkeys(("host killed", "child killed"), "#dd8452"),
    "rescale": "#bbbbbb",
}
_POINTS_MAX = 200


def plot(samples: list[dict[str, Any]], path: str) -> None:
    """Draw what was sampled; a point is the median of neighbours, so that a long run is a small file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "keygroups", "font.size": 9})
    from matplotlib import pyplot as plt

    sampled = {name for sample in samples for name in sample}
    panels = {title: [name for name in names if name in sampled] for title, names in PANELS.items()}
    panels = {title: names for title, names in panels.items() if names}
    # A reader may have a dark page.
    figure, axes = plt.subplots(
        len(panels) + 1, 1, sharex=True, figsize=(8, 11), layout="constrained", facecolor="white"
    )
    _draw_events(axes[0], samples)
    for axis, (title, names) in zip(axes[1:], panels.items(), strict=True):
        for name in names:
            axis.plot(*_points(samples, name), label=name, linewidth=1.2)
        axis.set_title(title, loc="left")
        axis.set_ylim(0, None)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes[-1].set_xlabel("minutes")
    figure.savefig(path, metadata={"Date": None})


def _draw_events(axis: Any, samples: list[dict[str, Any]]) -> None:
    happened = [(sample["seconds"] / 60, event) for sample in samples for event in sample["events"]]
    for before, after in pairwise(samples):
        if "parallelism" in before and before["parallelism"] != after.get("parallelism", before["parallelism"]):
            happened.append((after["seconds"] / 60, "rescale"))
    names = {name for _, name in happened}
    rows = {event: row for row, event in enumerate(event for event in EVENTS if event in names)}
    for event, row in rows.items():
        at = [minute for minute, name in happened if name == event]
        axis.plot(at, [row] * len(at), "|", color=EVENTS[event], markersize=9)
    axis.set_yticks(list(rows.values()), rows)
    axis.set_ylim(-0.5, len(rows) - 0.5)
    axis.set_title("What was done to it", loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _points(samples: list[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    times: list[float] = []
    values: list[float] = []
    size = -(-len(samples) // _POINTS_MAX)
    for _, run in groupby((sample for sample in samples if name in sample), key=itemgetter("run")):
        found = list(run)
        for group in (found[start : start + size] for start in range(0, len(found), size)):
            times.append(median(sample["seconds"] for sample in group) / 60)
            values.append(median(sample[name] for sample in group))
        times.append(times[-1])
        values.append(math.nan)  # nothing is drawn from one run to the next
    return times, values


if __name__ == "__main__":
    plot([json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()], sys.argv[2])
