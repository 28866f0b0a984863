"""``keygroups gc``: expires old versions and removes unneeded files; ``pin`` and ``unpin`` control exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from snapshots.cli.options import AsJson, StorageOptions, Uri, open_store, seconds_of
from snapshots.cli.output import CHECK_FAILED, Table, output_for
from snapshots.upkeep.retention import KEEP_LAST, GarbageReport

_SHOWN_MAX = 20

Apply = Annotated[bool, typer.Option("--apply", help="Remove the files; without it, only show what would be removed.")]
KeepLast = Annotated[
    int, typer.Option("--keep-last", metavar="N", min=1, help="How many of the newest versions to keep.")
]
MinAge = Annotated[
    str, typer.Option("--min-age", metavar="DURATION", help="How old a file without a version must be: 90m, 36h, 7d.")
]
PinnedVersion = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A version.")]


def gc(
    uri: Uri,
    apply: Apply = False,
    keep_last: KeepLast = KEEP_LAST,
    min_age: MinAge = "24h",
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Expire old versions and remove files that no version needs; without --apply, this is a dry run."""
    store = open_store(uri, storage_option)
    report = store.collect_garbage(keep_last=keep_last, min_age=seconds_of(min_age, "--min-age"), dry_run=not apply)
    output = output_for(as_json=as_json)
    output.show(Collection(report))
    if report.dry_run and (report.expired or report.files):
        output.note("nothing was removed; to remove it: add --apply")
    if report.young:
        output.note(
            f"{report.young} files that no version needs stay: they are younger than --min-age ({min_age}), "
            "and may belong to a commit under way; if nothing writes here: lower it"
        )
    if report.undeleted:
        raise typer.Exit(CHECK_FAILED)


def pin(uri: Uri, version: PinnedVersion, storage_option: StorageOptions = None) -> None:
    """Keep a version from garbage collection."""
    store = open_store(uri, storage_option)
    store.pin(version)
    output_for(as_json=False).note(f"version {version} of {store.operator_id} is pinned: garbage collection keeps it")


def unpin(uri: Uri, version: PinnedVersion, storage_option: StorageOptions = None) -> None:
    """Allow garbage collection to remove a version again."""
    store = open_store(uri, storage_option)
    if was_pinned := version in store.pinned():
        store.unpin(version)
    else:
        store.load(version)  # whether there is such a version, for the user may have named the wrong one
    done = "is no longer pinned: garbage collection may remove it" if was_pinned else "was not pinned"
    output_for(as_json=False).note(f"version {version} of {store.operator_id} {done}")


@dataclass(frozen=True, slots=True)
class Collection:
    """The report of ``keygroups gc``."""

    report: GarbageReport

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        return asdict(self.report)

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        report = self.report
        verb = "garbage would be removed" if report.dry_run else "garbage removed"
        yield Table(
            verb if report.expired or report.files else "no garbage to remove",
            ("", "versions", "files", "bytes"),
            (
                ("goes", len(report.expired), len(report.files), report.bytes),
                ("stays", len(report.retained), None, None),
                ("  pinned", len(report.pinned), None, None),
                ("too young to remove", None, report.young, None),
            ),
        )
        yield from _some("versions that go", report.expired)
        yield from _some("files that go", report.files)
        yield from _some("not deleted by the storage", report.undeleted)


def _some(title: str, items: tuple[object, ...]) -> Iterable[Table]:
    if items:
        more = f" (the first {_SHOWN_MAX})" if len(items) > _SHOWN_MAX else ""
        yield Table(title + more, (), tuple((item,) for item in items[:_SHOWN_MAX]))
