"""The picture of a run: what was in flight, and how fast flights were enriched, over time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_BIN_S = 1.0
_LABEL_WIDTH = 0.12
"""Of a label, as a share of the picture's."""
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
    capacity : int
        The calls that a subtask may have under way.
    """

    begun: float
    killed: float
    rescaled: float
    barriers: tuple[tuple[float, int], ...]
    parallelism: tuple[tuple[float, int], ...]
    capacity: int


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
    figure = Figure(figsize=(11, 8), layout="constrained")
    calls, rate, waiting = every_axes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    _draw_area(calls, samples["in_flight"], _BLUE)
    _draw_capacity(calls, timeline)
    calls.set_ylabel("calls in flight")
    _draw_area(rate, samples["rate"], _GREEN)
    rate.set_ylabel("calls completed a second")
    _draw_snapshots(waiting, timeline)
    waiting.set_ylabel("elements in a snapshot")
    waiting.set_xlabel("seconds since the first start of the pipeline")
    for axes in every_axes:
        _mark(axes, timeline)
        axes.set_xlim(0, samples.index[-1])
    _label(calls, timeline)
    _label_parallelism(rate, timeline, samples.index[-1])
    figure.savefig(path, dpi=130)


def _draw_capacity(axes: Axes, timeline: Timeline) -> None:
    """Draw how many calls all subtasks may make at once, from the first epoch of a parallelism to the next."""
    seconds = [at - timeline.begun for at, _ in timeline.parallelism]
    most = [parallelism * timeline.capacity for _, parallelism in timeline.parallelism]
    axes.step(seconds, most, where="post", color=_ORANGE, linestyle=":", linewidth=1.5, label="capacity")
    axes.legend(loc="upper right", frameon=False)


def _draw_snapshots(axes: Axes, timeline: Timeline) -> None:
    """Draw what each snapshot holds: called, or returned and waiting for their turn, or waiting for a call."""
    times, counts = zip(*timeline.barriers, strict=True)
    seconds = [at - timeline.begun for at in times]
    axes.plot(seconds, counts, "D", color=_ORANGE, markeredgecolor="white", markersize=6, clip_on=False)


def _draw_area(axes: Axes, values: pd.Series, color: str) -> None:
    axes.fill_between(values.index, values, step="post", color=color, alpha=0.35, linewidth=0)
    axes.step(values.index, values, where="post", color=color, linewidth=1)


def _mark(axes: Axes, timeline: Timeline) -> None:
    axes.margins(y=0.18)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(timeline.killed - timeline.begun, color=_RED, linewidth=1.5)
    axes.axvline(timeline.rescaled - timeline.begun, color="black", linewidth=1.5, linestyle="--")


def _label_parallelism(axes: Axes, timeline: Timeline, width_s: float) -> None:
    """Write how many subtasks there are where that changes; changes that are close together share a label."""
    labels: list[tuple[float, str]] = []
    previous = None
    for at, parallelism in timeline.parallelism:
        if parallelism == previous:
            continue
        seconds, previous = at - timeline.begun, parallelism
        if labels and seconds - labels[-1][0] < _LABEL_WIDTH * width_s:
            begun, text = labels.pop()
            labels.append((begun, f"{text} → {parallelism}"))
        else:
            labels.append((seconds, str(parallelism)))
    heights = axes.get_xaxis_transform()
    for seconds, text in labels:
        axes.text(seconds, 0.93, f"{text} subtasks", color=_BLUE, ha="left", transform=heights)


def _label(axes: Axes, timeline: Timeline) -> None:
    heights = axes.get_xaxis_transform()  # of the axes, whatever the data
    killed, rescaled = timeline.killed - timeline.begun, timeline.rescaled - timeline.begun
    axes.text(killed, 0.95, "SIGKILL  ", color=_RED, ha="right", transform=heights)
    axes.text(rescaled, 0.95, "  rescaled and restarted", color="black", ha="left", transform=heights)
