"""Lists every error by its name: what it means, what its message says, and whether a restart helps.

The page is made from the classes each time the site is built; they are read, not imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_PACKAGES = ("keygroups", "snapshots", "async_op")
_HEAD = """# Errors by name

Find the name at the end of a traceback or in a log. Below the name stand its meaning and its message, which says what
to do; `…` stands for what your case fills in. [Errors](errors.md) has their fields and constructors.

"""


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the page."""
    root = Path(config.config_file_path).parent
    sections = [_section(error) for error in sorted(errors(root), key=lambda error: error.name)]
    content = _HEAD + "\n\n".join(sections) + "\n"
    files.append(File.generated(config, "reference/errors-by-name.md", content=content))


def errors(root: Path) -> Iterator[ast.ClassDef]:
    """Yield the classes of all errors that a user can meet."""
    classes = [
        node
        for package in _PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    known = {"KeyGroupsError"}
    while more := {node.name for node in classes if known & {ast.unparse(base) for base in node.bases}} - known:
        known |= more
    return (node for node in classes if node.name in known - {"KeyGroupsError"})


def _section(error: ast.ClassDef) -> str:
    parts = [f"## {error.name}", ast.get_docstring(error) or ""]
    if message := " ".join(_message(error).split()):
        parts.append(f"> {message}")
    if "is_permanent = True" in map(ast.unparse, error.body):
        parts.append("A restart without a change raises it again.")
    return "\n\n".join(parts)


def _message(error: ast.ClassDef) -> str:
    """Return the text of the message: a template, or the longest text that a method puts together."""
    for node in error.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_template":
            return _text(node.value)
    methods = (
        node for node in error.body if isinstance(node, ast.FunctionDef) and node.name in ("_message", "__init__")
    )
    texts = (_text(node) for method in methods for node in ast.walk(method) if isinstance(node, ast.JoinedStr))
    return max(texts, key=len, default="")


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return _without_fields(text)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue():
            return "…"
        case _:
            return ""


def _without_fields(template: str) -> str:
    text, depth = "", 0
    for character in template:
        depth += character == "{"
        text += "…" if character == "{" else "" if depth else character
        depth -= character == "}"
    return text
