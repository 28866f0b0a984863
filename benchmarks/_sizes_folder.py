"""A folder in memory of which only manifests have a content."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from snapshots.filesystem import FileInfo, Folder, open_folder

_folders: dict[str, SizesFolder] = {}


class SizesFolder(Folder):
    """Keeps manifests, and of data files the sizes; counts requests and bytes. A listing has 1,000 names a request."""

    def __init__(self) -> None:
        inner = open_folder(f"memory://scale-{uuid.uuid4().hex}/scale")
        super().__init__(inner.filesystem, inner.root)
        self.contents: dict[str, bytes] = {}
        self.sizes_by_name: dict[str, int] = {}
        self.requests: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    def __reduce__(self) -> tuple[Any, ...]:
        # As a real one: where it is, not what is in it.
        _folders[self.root] = self
        return _folder_at, (self.root,)

    def create(self, name: str, data: bytes) -> None:
        if name in self.contents:
            raise FileExistsError(name)
        self.write(name, data)

    def write(self, name: str, data: bytes) -> None:
        self.requests["put"] += 1
        self.moved["written"] += len(data)
        self.contents[name] = bytes(data)

    replace = write

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        self.requests["get"] += 1
        if name not in self.contents:
            raise FileNotFoundError(name)
        data = self.contents[name][start:end]
        self.moved["read"] += len(data)
        return data

    def size(self, name: str) -> int:
        self.requests["head"] += 1
        if name not in self.contents and name not in self.sizes_by_name:
            raise FileNotFoundError(name)
        return self.sizes_by_name[name] if name in self.sizes_by_name else len(self.contents[name])

    def names(self, folder: str) -> list[str]:
        found = sorted(name[len(folder) + 1 :] for name in self.contents if name.startswith(f"{folder}/"))
        self.requests["list"] += 1 + len(found) // 1000
        return found

    def files(self, folder: str = "") -> list[FileInfo]:
        sizes = self.sizes_by_name | {name: len(data) for name, data in self.contents.items()}
        found = [FileInfo(name, size, 0.0) for name, size in sizes.items() if name.startswith(folder)]
        self.requests["list"] += 1 + len(found) // 1000
        return sorted(found)

    def sizes(self, prefix: str) -> dict[str, int]:
        found = {name: size for name, size in self.sizes_by_name.items() if name.startswith(prefix)}
        self.requests["list"] += 1 + len(found) // 1000
        return found

    def delete(self, names: Sequence[str]) -> None:
        self.requests["delete"] += 1 + (len(names) - 1) // 1000
        for name in names:
            self.contents.pop(name, None)
            self.sizes_by_name.pop(name, None)


def _folder_at(root: str) -> SizesFolder:
    return _folders[root]
