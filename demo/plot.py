"""The picture of a run: what was in flight, and how fast flights were enriched, over time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_BIN_S = 1.0
_BLUE, _ORANGE, _RED, _GREEN = "#3b6fb6", "#e08a1e", "#c0392b", "#2e8b57"


@dataclass(frozen=True, slots=True)
class Timeline:
    """When things happened, in seconds since 1970.

    Attributes
    ----------
    begun : float
        The first start of the pipeline; the picture's nought.
    killed : float
        The SIGKILL.
    rescaled : float
        The commit that changed the parallelism.
    barriers : tuple of (float, int)
        The commit of each epoch, and how many elements were in flight at its barrier.
    parallelism : tuple of (float, int)
        The commit of each epoch, and how many subtasks it had.
    """

    begun: float
    killed: float
    rescaled: float
    barriers: tuple[tuple[float, int], ...]
    parallelism: tuple[tuple[float, int], ...]


def read_samples(folder: Path, begun: float) -> pd.DataFrame:
    """Add up the workers' samples: calls in flight and completions a second, in bins of a second."""
    frames = [_read_worker(path) for path in sorted(folder.glob("*.jsonl"))]
    samples = pd.concat(frames)
    samples["bin"] = ((samples["at"] - begun) // _BIN_S).astype(int)
    in_flight = samples.groupby(["bin", "worker"])["in_flight"].mean().groupby("bin").sum()
    rate = samples.groupby("bin")["done"].sum() / _BIN_S
    every_bin = range(samples["bin"].max() + 2)
    joined = pd.DataFrame({"in_flight": in_flight, "rate": rate}).reindex(every_bin, fill_value=0)
    joined.index = joined.index * _BIN_S
    return joined


def _read_worker(path: Path) -> pd.DataFrame:
    # A kill may cut the last line short.
    lines = path.read_text().splitlines(keepends=True)
    samples = pd.DataFrame([json.loads(line) for line in lines if line.endswith("\n")])
    return samples.assign(worker=path.stem, done=samples["completed"].diff().fillna(samples["completed"]))


def draw(samples: pd.DataFrame, timeline: Timeline, path: Path) -> None:
    """Draw the run into a PNG file."""
    # Without pyplot: no window system is asked for, and no figure outlives this function.
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_in_flight(above, samples, timeline)
    _draw_area(below, samples["rate"], _GREEN)
    below.set_ylabel("calls completed a second")
    below.set_xlabel("seconds since the first start of the pipeline")
    for axes in (above, below):
        _mark(axes, timeline)
        axes.set_xlim(0, samples.index[-1])
    _label(above, timeline)
    _label_parallelism(below, timeline)
    figure.savefig(path, dpi=130)


def _draw_in_flight(axes: Axes, samples: pd.DataFrame, timeline: Timeline) -> None:
    _draw_area(axes, samples["in_flight"], _BLUE, label="calls in flight")
    times, counts = zip(*timeline.barriers, strict=True)
    seconds = [at - timeline.begun for at in times]
    label = "elements in flight in a snapshot: called, or returned and waiting for their turn"
    axes.plot(seconds, counts, "D", color=_ORANGE, markeredgecolor="white", markersize=8, clip_on=False, label=label)
    axes.set_ylabel("in flight")
    axes.figure.legend(loc="outside upper left", frameon=False, ncols=2)


def _draw_area(axes: Axes, values: pd.Series, color: str, label: str | None = None) -> None:
    axes.fill_between(values.index, values, step="post", color=color, alpha=0.35, linewidth=0)
    axes.step(values.index, values, where="post", color=color, linewidth=1, label=label)


def _mark(axes: Axes, timeline: Timeline) -> None:
    axes.margins(y=0.18)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(timeline.killed - timeline.begun, color=_RED, linewidth=1.5)
    axes.axvline(timeline.rescaled - timeline.begun, color="black", linewidth=1.5, linestyle="--")


def _label_parallelism(axes: Axes, timeline: Timeline) -> None:
    heights = axes.get_xaxis_transform()
    previous = None
    for at, parallelism in timeline.parallelism:
        if parallelism != previous:
            text = f"{parallelism} subtasks"
            axes.text(at - timeline.begun, 0.93, text, color=_BLUE, ha="center", transform=heights)
        previous = parallelism


def _label(axes: Axes, timeline: Timeline) -> None:
    heights = axes.get_xaxis_transform()  # of the axes, whatever the data
    killed, rescaled = timeline.killed - timeline.begun, timeline.rescaled - timeline.begun
    axes.text(killed, 0.95, "SIGKILL  ", color=_RED, ha="right", transform=heights)
    axes.text(rescaled, 0.95, "  rescaled and restarted", color="black", ha="left", transform=heights)
