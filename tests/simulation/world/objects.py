"""An object store in this process: objects that are put whole, under a condition or not, and have no folders."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from fsspec import AbstractFileSystem

from snapshots.filesystem.objects import ObjectFolder


class Objects(AbstractFileSystem):  # type: ignore[misc]
    """What `ObjectFolder` needs of an fsspec filesystem."""

    protocol = "objects"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if mode == "create" and path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = bytes(value)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        return self._get(path)[start:end]

    def open(self, path: str, mode: str = "rb", **options: Any) -> io.BytesIO:
        return io.BytesIO(self._get(path))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self._get(path)), "type": "file", "LastModified": 0.0}

    def find(self, path: str, detail: bool = False, prefix: str = "", **options: Any) -> Any:
        found = {name: self.info(name) for name in sorted(self.objects) if name.startswith(f"{path}/{prefix}")}
        return found if detail else list(found)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        below = {f"{path}/{name[len(path) + 1 :].split('/')[0]}" for name in self.find(path)}
        if not below:
            raise FileNotFoundError(path)
        return sorted(below) if not detail else [{"name": name, "size": 0, "type": "other"} for name in sorted(below)]

    def rm(self, path: Sequence[str], **options: Any) -> None:
        for name in path:
            self.objects.pop(name, None)

    def rm_file(self, path: str) -> None:
        self.objects.pop(path, None)

    def _get(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None


class ObjectsFolder(ObjectFolder):
    """A folder on a store whose conditions hold, which is tried out elsewhere."""

    is_known_to_be_safe = True
