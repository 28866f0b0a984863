"""The picture of a run: what was in flight, and how fast flights were enriched, over time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_BIN_S = 0.5
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
    old_parallelism, new_parallelism : int
        Before and after.
    """

    begun: float
    killed: float
    rescaled: float
    barriers: tuple[tuple[float, int], ...]
    old_parallelism: int
    new_parallelism: int


def read_samples(folder: Path, begun: float) -> pd.DataFrame:
    """Add up the workers' samples: calls in flight and completions a second, in bins of half a second."""
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
    above.fill_between(samples.index, samples["in_flight"], step="post", color=_BLUE, alpha=0.35, linewidth=0)
    above.step(samples.index, samples["in_flight"], where="post", color=_BLUE, linewidth=1, label="calls in flight")
    times = [at - timeline.begun for at, _ in timeline.barriers]
    above.plot(times, [count for _, count in timeline.barriers], "D", color=_ORANGE, label="in flight in a snapshot")
    above.set_ylabel("elements")
    below.step(samples.index, samples["rate"], where="post", color=_GREEN, linewidth=1)
    below.fill_between(samples.index, samples["rate"], step="post", color=_GREEN, alpha=0.3, linewidth=0)
    below.set_ylabel("calls completed a second")
    below.set_xlabel("seconds since the pipeline's first start")
    for axes in (above, below):
        _mark(axes, timeline)
    above.legend(loc="upper left", frameon=False)
    above.set_title(f"{timeline.old_parallelism} subtasks, SIGKILL, {timeline.new_parallelism} subtasks")
    figure.savefig(path, dpi=130)


def _mark(axes: Axes, timeline: Timeline) -> None:
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(timeline.killed - timeline.begun, color=_RED, linewidth=1.5)
    axes.axvline(timeline.rescaled - timeline.begun, color="black", linewidth=1.5, linestyle="--")
