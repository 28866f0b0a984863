from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest

from keygroups import ConfigError, KeyGroupRange, ListState, ValueState
from snapshots import Snapshot, SnapshotStore
from snapshots.inspection import KeyGroupSizes, key_group_sizes
from snapshots.report import render
from snapshots.report.page import HeatMap, Ownership, Rescale
from tests.snapshot_kit import COUNT, PROFILE, G, new_store, parts, record, watermark, words
from tests.snapshots.cli_kit import runner

HOSTILE = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "</style><style>body{display:none}",
    "\u202egnp.exe\x00\x1b[31m",
    "x" * 5000,
]


class Elements(HTMLParser):
    """Collects the elements of a page, its text, and whether each is closed."""

    VOID = frozenset({"meta", "link", "rect", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def hostile_store() -> tuple[SnapshotStore, Snapshot]:
    """A snapshot whose keys would like to be more than text."""
    store = new_store()
    content = {"profile": {key: {"n": n} for n, key in enumerate(HOSTILE)}, "count": dict.fromkeys(HOSTILE, 1)}
    elements = [record("a", 0), record("b", 1, attempt=3), watermark(5, 2)]
    store.write(parts(content, in_flight=elements, watermarks={0: 1_700_000_000_000, 1: 2**62}))
    return store, store.repartition(3)


def test_a_page_holds_what_the_snapshot_holds() -> None:
    store = new_store()
    content = {"count": dict(zip(words(200), range(200), strict=True)), "profile": {"a": 1}}
    store.write(parts(content, in_flight=[record("a", 0), record("b", 1, attempt=3)]), source_position={"batch_id": 7})
    snapshot = store.repartition(3)
    store.pin(1)

    page = Elements(render(store, snapshot, parallelism=5))

    assert page.open == []
    text = " ".join(" ".join(page.text).split())
    for expected in (
        "enrich, snapshot 2",
        "3 of at most 16",
        "2 pending, 0 completed",
        "From parallelism 3 to 5",
        "Largest keys of count",
        "over 1 day",
        "attempt 3",
        "repartition",
        "pinned",
        '"batch_id": 7',
        "xxhash64",
        snapshot.manifest.snapshot_id,
    ):
        assert expected in text
    assert page.tags.count("svg") == 4
    # Two heat maps of G squares, the moves of the rescale, and two rectangles for each version.
    moves = len(Rescale.of(sizes_of(snapshot), 3, 5).flows)
    assert page.tags.count("rect") == 2 * G + moves + 2 * 2


def sizes_of(snapshot: Snapshot) -> KeyGroupSizes:
    return KeyGroupSizes.sum_of(key_group_sizes(snapshot).values(), snapshot.max_parallelism)


def test_a_page_needs_nothing_but_itself() -> None:
    store, snapshot = hostile_store()

    page = render(store, snapshot)
    assert " 1 watermark." in page

    elements = Elements(page)
    assert not {"script", "img", "iframe", "object", "form"} & set(elements.tags)
    links = [value for name, value in elements.attributes if name in {"src", "href", "action", "srcset"}]
    assert links == ["data:,"]
    assert not any(name.startswith("on") for name, _ in elements.attributes)
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_hostile_keys_are_text() -> None:
    store, snapshot = hostile_store()

    page = render(store, snapshot)

    elements = Elements(page)
    assert elements.open == []
    text = "".join(elements.text)
    for key in HOSTILE[:4]:
        assert json.dumps(key) in text
    assert "49" not in re.findall(r'"\d+"', text)
    assert not set("\u202e\x00\x1b") & set(page)
    assert "… (5,002 characters)" in text
    assert len(page) < 200_000


def test_a_page_of_an_empty_snapshot_is_whole() -> None:
    store = new_store()
    store.claim(parallelism=2, max_parallelism=4)
    snapshot = store.latest()
    assert snapshot is not None

    page = Elements(render(store, snapshot, parallelism=4))

    assert page.open == []


def test_no_row_is_read_if_no_key_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    store, snapshot = hostile_store()
    monkeypatch.setattr(sys.modules["snapshots.report.page"], "largest_keys", None)

    assert "Largest keys" not in render(store, snapshot, largest=0)


def test_the_parallelism_of_a_plan_must_fit() -> None:
    store, snapshot = hostile_store()

    with pytest.raises(ConfigError, match="parallelism"):
        render(store, snapshot, parallelism=G + 1)


@pytest.mark.parametrize("count", [1, 16, 128, 300, 1024, 1025, 32768])
def test_a_heat_map_has_every_key_group_once(count: int) -> None:
    amounts = list(range(count))

    found = HeatMap.of(amounts)

    assert [group for cell in found.cells for group in cell.key_groups] == amounts
    assert sum(cell.amount for cell in found.cells) == sum(amounts)
    assert len({(cell.x, cell.y) for cell in found.cells}) == len(found.cells) <= 1024
    assert all(cell.x < found.columns and cell.y < found.rows and 0 <= cell.strength <= 1 for cell in found.cells)


def test_a_rescale_moves_and_keeps_all_bytes() -> None:
    snapshot = new_store().write(parts({"count": dict.fromkeys(words(100), 1)}))
    total = sizes_of(snapshot)

    rescale = Rescale.of(total, 2, 5)

    assert rescale.bytes_that_stay + rescale.bytes_that_move == total.bytes.sum()
    assert [flow.start for flow in rescale.flows[1:]] == [flow.end for flow in rescale.flows[:-1]]
    assert sum(share.width for share in rescale.after.shares) == pytest.approx(100)
    assert [share.key_groups for share in Ownership.of(total, 2).shares] == [KeyGroupRange(0, 7), KeyGroupRange(8, 15)]


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = runner(capsys)
    store = SnapshotStore(tmp_path / "store", "enrich")
    states = [COUNT, PROFILE, ListState("clicks", pa.string()), ValueState("empty")]
    store.bootstrap({state: [] for state in states} | {COUNT: [("a", 1)]}, parallelism=2)
    target = tmp_path / "report.html"

    answer = cli("report", store.uri, "-o", target, "--parallelism", 3, "--json")

    assert (answer.code, answer.err) == (0, "")
    report = json.loads(answer.out)
    assert report == {"version": 1, "path": str(target), "bytes": target.stat().st_size}
    assert Elements(target.read_text(encoding="utf-8")).open == []
    assert cli("report", store.uri, "-o", tmp_path / "gone" / "report.html").code == 2
    assert cli("report", store.uri, "-o", target, "--version", 9).code == 3
    assert cli("report", store.uri, "-o", target, "--parallelism", 1000).code == 2
