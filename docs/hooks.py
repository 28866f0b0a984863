"""What the site makes of the code itself: the page of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from snapshots.cli.app import app

_MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the commands and their options where a page asks for them."""
    return markdown.replace(_MARK, "\n".join(_commands())) if _MARK in markdown else markdown


def _commands() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
        usage = " ".join(["keygroups", name, "[OPTIONS]", *(argument.name.upper() for argument in arguments)])
        yield f"## {name}\n\n{command.help}\n\n```text\n{usage}\n```\n\n| | |\n| --- | --- |"
        yield from (_row(parameter) for parameter in command.params)
        yield ""


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = parameter.name.upper() if is_argument else ", ".join(parameter.opts)
    default = f" Default: {parameter.default}." if parameter.default not in (None, False) and not is_argument else ""
    needed = " Required." if parameter.required and not is_argument else ""
    return f"| `{name}` | {parameter.help or ''}{needed}{default} |"
