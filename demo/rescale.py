"""The rescale between the two runs, by the command line, as you would."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rescale:
    """What `keygroups repartition` said.

    Attributes
    ----------
    command : str
        What was run.
    version : int
        The snapshot that it committed.
    milliseconds : float
        How long the commit took.
    """

    command: str
    version: int
    milliseconds: float


def repartition(operator: Path, parallelism: int) -> Rescale:
    """Change the parallelism of the newest snapshot.

    Parameters
    ----------
    operator : Path
        The operator's folder of snapshots.
    parallelism : int
        How many subtasks the pipeline shall have next.
    """
    # Beside the Python that runs, so that no other installation's command is taken.
    command = [str(Path(sys.executable).with_name("keygroups")), "repartition", str(operator)]
    arguments = ["--parallelism", str(parallelism)]
    answer = subprocess.run([*command, *arguments, "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
    report = json.loads(answer)
    shown = f"keygroups repartition {operator} --parallelism {parallelism}"
    return Rescale(shown, report["new_version"], report["milliseconds"])
