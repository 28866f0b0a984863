"""Shows the notebooks on the site, with the outputs that are stored in them; nothing is executed.

A page of Markdown is made of each notebook, so it looks like every other page: in both themes, with search and copying.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_FOLDER = "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page for each notebook, and a file for each of its pictures."""
    for path in sorted((Path(config.config_file_path).parent / _FOLDER).glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        markdown = "\n\n".join(
            text for cell in notebook["cells"] for text in _cell(cell, f"{_FOLDER}/{path.stem}", files, config)
        )
        files.append(File.generated(config, f"{_FOLDER}/{path.stem}.md", content=markdown))


def _cell(cell: dict[str, Any], folder: str, files: Files, config: MkDocsConfig) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        # From the repository's folder of notebooks to the site's.
        yield source.replace("](../docs/", "](../")
        return
    yield f"```python\n{source}\n```"
    for number, output in enumerate(cell["outputs"]):
        # Printed text comes without a type.
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            picture = f"{folder}/{cell['id']}-{number}.png"
            files.append(File.generated(config, picture, content=base64.b64decode(data["image/png"])))
            yield f"![Output of the code above]({picture.removeprefix(_FOLDER + '/')})"
        elif "text/html" in data:
            yield f'<div class="output">{_in_one_block("".join(data["text/html"]))}</div>'
        else:
            yield f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def _in_one_block(page: str) -> str:
    """Leave out what ends a block of HTML in Markdown, and the styles of the notebook's own page."""
    return re.sub(r"\n\s*(?=\n)", "", re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL))
