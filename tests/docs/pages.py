"""Pages of the documentation whose code runs.

- A block with `title="name.py"` is written to that file.
- Any other block of `python` runs in the namespace of its page.
- A block of `console` is a terminal session: each line after `$ ` is run by bash, and what it prints is compared with
  what stands below it, but for what differs from run to run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

ROOT = Path(__file__).parents[2]
LANGUAGES = {"python", "console", "mermaid", "sh", "text", "json", "yaml", "dockerfile"}
FOLDER = "/home/you/folder"
"""What a page shows in the place of the folder in which it ran; as long as that of `tempfile`, so that tables fit."""
_FENCE = RawFencedCodeBlockLexer(re.compile(r'(?P<language>\w*)(?: title="(?P<title>[^"]+)")?[^\n]*\n'))

_VOLATILE = (
    (re.compile(r"\b(?:[0-9a-f]{32}|[0-9a-f]{24})\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"), "<time>"),
    (re.compile(r"(\d+ min )?\d+(\.\d+)? (s|min|h|d) ago"), "<age>"),
    (re.compile(r"\d[\d,]*(\.\d)? ([KMG]i)?B\b"), "<size>"),
    (re.compile(r"(\d+ min )?\d+(\.\d+)? (µs|ms|s)\b"), "<seconds>"),
    (re.compile(r"\d[\d,]*(\.\d+)?/(s|min)\b"), "<rate>"),
    (re.compile(r"~?\d[\d,]*\d\d"), "<number>"),
    (re.compile(r"[█▉▊▋▌▍▎▏]+"), "<bar>"),
    (re.compile(r"[─━═]+"), "-"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" $", re.MULTILINE), ""),
)


class Command(NamedTuple):
    """A command of a terminal session, and what it printed."""

    line: str
    output: str


def normalised(output: str) -> str:
    """Return an output without what differs from run to run: ids, times, folders, sizes, and what follows from them."""
    for pattern, word in _VOLATILE:
        output = pattern.sub(word, output)
    lines = output.strip("\n").split("\n")
    # Files are listed in the order of their ids.
    files = iter(sorted(line for line in lines if "<id>/" in line))
    return "\n".join(next(files) if "<id>/" in line else line for line in lines)


def commands(session: str) -> list[Command]:
    """Split a terminal session."""
    parts = re.split(r"^\$ (.*)\n?", session, flags=re.MULTILINE)
    assert not parts[0].strip(), f"a session begins with a command, not with {parts[0]!r}"
    return [Command(line, output.strip("\n")) for line, output in zip(parts[1::2], parts[2::2], strict=True)]


def run_command(line: str) -> str:
    """Run a line in the current folder, as a terminal would show it."""
    # The interpreter that runs the tests, with the packages of this working tree, whatever is installed.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    ended = subprocess.run(
        ["bash", "-c", line],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    code = f"\n(exit code {ended.returncode})" if ended.returncode else ""
    output = ended.stdout.replace(str(Path.cwd()), FOLDER)
    return re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE).strip("\n") + code


class Page:
    """A page, and what its sessions printed when they ran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.recorded: list[tuple[Region, str]] = []

    def blocks(self) -> Iterator[Region]:
        """Return the fenced blocks."""
        return iter(_FENCE(Document(self.text, str(self.path))))

    def run(self, *, record: bool) -> None:
        """Run the blocks from top to bottom in the current folder; with `record`, sessions may print what they like."""
        document = Document(self.text, str(self.path))
        # Classes of `__main__` are pickled to Spark's workers by value.
        document.namespace["__name__"] = "__main__"
        for region in self.blocks():
            region.parsed = region.lexemes["source"]
            region.evaluator = self._evaluator_of(region, record=record)
            document.add(region)
        for example in document.examples():
            example.evaluate()

    def write(self) -> None:
        """Put what the sessions printed into the page."""
        for region, session in reversed(self.recorded):
            whole = self.text[region.start : region.end]
            self.text = self.text[: region.start] + whole.replace(str(region.parsed), session) + self.text[region.end :]
        self.path.write_text(self.text, encoding="utf-8")

    def _evaluator_of(self, region: Region, *, record: bool) -> object:
        match region.lexemes["language"], region.lexemes["title"]:
            case _, str(title):
                return lambda example: Path(title).write_text(example.parsed, encoding="utf-8") and None
            case "python", _:
                return PythonEvaluator()
            case "console", _:
                return lambda example: self._run_session(example, record=record)
            case "yaml", _:
                return lambda example: [*yaml.safe_load_all(example.parsed)] and None
            case _:
                return lambda example: None

    def _run_session(self, example: Example, *, record: bool) -> str | None:
        session = ""
        for expected in commands(str(example.parsed)):
            output = run_command(expected.line)
            is_same = normalised(output) == normalised(expected.output)
            if not record and not is_same:
                return f"$ {expected.line}\nprints\n{output}\nand not\n{expected.output}"
            # What differs in nothing that counts stays as it was.
            kept = expected.output if is_same else output
            session += f"$ {expected.line}\n" + (f"{kept}\n" if kept else "")
        if record:
            self.recorded.append((example.region, session))
        return None


def main(path: str, *options: str) -> None:
    """Run one page in this process."""
    page = Page(Path(path))
    page.run(record="--record" in options)
    if options:
        page.write()


if __name__ == "__main__":
    main(*sys.argv[1:])
