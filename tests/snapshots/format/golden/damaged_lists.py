"""The golden snapshots whose lists of files must be refused: each version of one folder has a damage of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from snapshots import SnapshotStore
from snapshots.commit import stored_lists
from snapshots.format.compression import compressed, decompressed
from snapshots.format.sealing import canonical, sealed
from tests.snapshots.format.golden.damaged import OPERATOR_ID, written


class Listed(NamedTuple):
    """The manifest of a version, its list of files, and its list of channels."""

    manifest: Path
    list: Path
    channels: Path

    def change(self, **fields: Any) -> None:
        """Change fields of the manifest."""
        body = _body(self.manifest)
        self.manifest.write_bytes(compressed(sealed(canonical(body | fields)), always=True))

    def change_info(self, number: int = 0, **fields: Any) -> None:
        """Change what the manifest says of a list."""
        infos = _body(self.manifest)["file_lists"]
        infos[number] |= fields
        self.change(file_lists=infos)

    def rewrite(self, number: int, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a list, as a writer with other ideas would have written it."""
        path = self[1 + number]
        body = _body(path)
        change(body)
        data = compressed(sealed(canonical(body)), always=True)
        path.write_bytes(data)
        self.change_info(number, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def flip(self, offset: int) -> None:
        """Turn one bit of the list over."""
        content = bytearray(self.list.read_bytes())
        content[offset] ^= 1
        self.list.write_bytes(content)


class ListDamage(NamedTuple):
    """A damage, and how it is refused."""

    name: str
    do: Callable[[Listed], object]
    says: str


DAMAGES = (
    ListDamage("a list is missing", lambda at: at.list.unlink(), "the file is missing"),
    ListDamage(
        "a list is cut short", lambda at: at.list.write_bytes(at.list.read_bytes()[:100]), "not what was written"
    ),
    ListDamage("a bit of a list", lambda at: at.flip(60), "not what was written"),
    ListDamage("a bit of a list that gzip ignores", lambda at: at.flip(5), "not what was written"),
    ListDamage(
        "a list of other key groups", lambda at: at.change_info(key_groups={"start": 0, "end": 3}), "outside of .*3"
    ),
    ListDamage("a list has fewer files", lambda at: at.rewrite(0, lambda body: body.update(files=[])), "0 files"),
    ListDamage(
        "a list has a channel with elements without a key",
        lambda at: at.rewrite(1, lambda body: body["channels"][0].update(keyless=1)),
        "every subtask needs",
    ),
    ListDamage("a list has no files", lambda at: at.rewrite(0, lambda body: body.pop("files")), "files is missing"),
    ListDamage(
        "the feature is not required",
        lambda at: at.change(required_features=[]),
        "the field file_lists and the feature",
    ),
    ListDamage("a path leads out", lambda at: at.change_info(path="data/../../x"), "no part of its path"),
    ListDamage("a list claims too much", lambda at: at.change_info(files=10**7), "files is 10000000"),
)


def write_damaged_lists(root: Path) -> None:
    """Write a sound version, and then one for each damage, which is its parent's content again."""
    store = SnapshotStore(root, OPERATOR_ID)
    with mock.patch.object(stored_lists, "INLINE_MAX", 0):
        snapshots = [written(store) for _ in range(len(DAMAGES) + 1)]
    folder = root / OPERATOR_ID
    for damage, snapshot in zip(DAMAGES, snapshots[1:], strict=True):
        files, channels = (folder / one.info.path for one in snapshot.manifest.file_lists)
        damage.do(Listed(folder / f"manifests/{snapshot.version:020d}.json", files, channels))
    (folder / "latest").unlink()


def _body(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(decompressed(path.read_bytes(), 2**20))["manifest"]
    return body
