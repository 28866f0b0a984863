"""``keygroups verify``, ``copy``, ``compact``, ``claim``, ``gc``, ``pin`` and ``unpin``: upkeep of snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from keygroups.errors import ConfigError
from snapshots.cli.live import progress_bar
from snapshots.cli.options import AsJson, StorageOptions, Uri, Version, open_store, seconds_of
from snapshots.cli.output import CHECK_FAILED, FlatReport, Table, output_for
from snapshots.errors import SnapshotNotFound
from snapshots.upkeep.retention import KEEP_LAST, GarbageReport
from snapshots.upkeep.verify import VerifyReport

_SHOWN_MAX = 20

Apply = Annotated[bool, typer.Option("--apply", help="Remove the files; without it, only show what would be removed.")]
KeepLast = Annotated[
    int, typer.Option("--keep-last", metavar="N", min=1, help="How many of the newest versions to keep.")
]
MinAge = Annotated[
    str, typer.Option("--min-age", metavar="DURATION", help="How old a file without a version must be: 90m, 36h, 7d.")
]
PinnedVersion = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A version.")]

AcceptLoss = Annotated[
    bool,
    typer.Option("--accept-loss", help="Give up the newest state, whose manifest is missing, and continue without it."),
]
FirstParallelism = Annotated[
    int | None,
    typer.Option("--parallelism", metavar="N", min=1, help="The number of subtasks, if there is no snapshot yet."),
]
FirstMaxParallelism = Annotated[
    int | None,
    typer.Option(
        "--max-parallelism", metavar="N", min=1, help="The number of key groups, if there is no snapshot yet."
    ),
]

_NOTHING = "; check the URI (it names one operator's folder), or pass --parallelism to begin an operator there"

To = Annotated[str, typer.Argument(metavar="TO", help="The other operator's folder, which has no snapshot yet.")]

KeepLineage = Annotated[
    bool, typer.Option("--keep-lineage", help="Keep the idempotency keys: the copy takes the place of the original.")
]


def verify(uri: Uri, version: Version = None, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Read every file of a snapshot and compare it with the manifest."""
    store = open_store(uri, storage_option)
    with progress_bar("verifying") as progress:
        report = store.verify(version, progress=progress)
    output_for(as_json=as_json).show(Verification(report))
    if not report.ok:
        raise typer.Exit(CHECK_FAILED)


@dataclass(frozen=True, slots=True)
class Verification:
    """The report of ``keygroups verify``."""

    report: VerifyReport

    def to_json(self) -> dict[str, Any]:
        """Return the report as data for JSON, in a stable form."""
        report = self.report
        return {
            "version": report.version,
            "ok": report.ok,
            "files": report.files,
            "bytes": report.bytes,
            "problems": [
                {
                    "path": problem.path,
                    "first": problem.key_groups.start if problem.key_groups else None,
                    "last": problem.key_groups.end if problem.key_groups else None,
                    "what": problem.what,
                }
                for problem in report.problems
            ],
        }

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        report = self.report
        verdict = "every file is whole" if report.ok else f"{len(report.problems)} damaged or missing"
        yield Table(f"snapshot {report.version}: {verdict}", (), (("files", report.files), ("bytes", report.bytes)))
        if report.problems:
            yield Table(
                "damage",
                ("file", "first", "last", "what"),
                tuple(
                    (
                        problem.path,
                        problem.key_groups.start if problem.key_groups else None,
                        problem.key_groups.end if problem.key_groups else None,
                        problem.what,
                    )
                    for problem in report.problems
                ),
            )


def copy(
    uri: Uri,
    to: To,
    version: Version = None,
    keep_lineage: KeepLineage = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Copy a snapshot to the folder of another operator: to run beside the original, or to take its place."""
    store, other = open_store(uri, storage_option), open_store(to, storage_option)
    source = store.load(version).manifest
    with progress_bar("copying"):
        copied = store.copy_to(other, source.version, keep_lineage=keep_lineage).manifest
    report = Copied(
        version=source.version,
        new_version=copied.version,
        operator_id=copied.operator_id,
        files=len(copied.whole_files),
        bytes=copied.bytes_total,
        lineage=copied.lineage,
        keeps_lineage=copied.lineage == source.lineage,
    )
    output_for(as_json=as_json).show(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(FlatReport):
    """The report of ``keygroups copy``."""

    version: int
    new_version: int
    operator_id: str
    files: int
    bytes: int
    lineage: str | None
    keeps_lineage: bool

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        rows = (("as version", self.new_version), ("files", self.files), ("bytes", self.bytes))
        keys = "the original's" if self.keeps_lineage else "its own"
        yield Table(f"copied snapshot {self.version} to {self.operator_id}", (), (*rows, ("idempotency keys", keys)))


def compact(uri: Uri, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Commit a snapshot with the same content in fewer files."""
    store = open_store(uri, storage_option)
    old = store.load().manifest
    with progress_bar("compacting"):
        new = store.compact().manifest
    report = Compaction(
        old_version=old.version,
        new_version=new.version,
        old_files=len(old.whole_files),
        new_files=len(new.whole_files),
        old_bytes=old.bytes_total,
        new_bytes=new.bytes_total,
    )
    output_for(as_json=as_json).show(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(FlatReport):
    """The report of ``keygroups compact``; if there was nothing to fold, the new version equals the old one."""

    old_version: int
    new_version: int
    old_files: int
    new_files: int
    old_bytes: int
    new_bytes: int

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        title = "compacted" if self.new_version != self.old_version else "nothing to fold"
        rows = (
            ("snapshot", self.old_version, self.new_version),
            ("files", self.old_files, self.new_files),
            ("bytes", self.old_bytes, self.new_bytes),
        )
        yield Table(title, ("", "from", "to"), rows)


def claim(
    uri: Uri,
    accept_loss: AcceptLoss = False,
    parallelism: FirstParallelism = None,
    max_parallelism: FirstMaxParallelism = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Commit the newest snapshot again, which fences every earlier writer."""
    store = open_store(uri, storage_option)
    try:
        claimed = store.claim(parallelism=parallelism, max_parallelism=max_parallelism, accept_loss=accept_loss)
    except ConfigError as error:
        if error.name != "parallelism" or parallelism is not None:
            raise
        raise SnapshotNotFound(store.uri, advice=_NOTHING) from None  # the URI may be mistyped
    manifest = claimed.snapshot.manifest
    report = ClaimReport(
        version=manifest.version, parent_version=manifest.parent_version, operator_id=manifest.operator_id
    )
    output_for(as_json=as_json).show(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimReport(FlatReport):
    """The report of ``keygroups claim``."""

    version: int
    parent_version: int | None
    operator_id: str

    def tables(self) -> Iterable[Table]:
        """Return the report as tables for people."""
        rows = (("as version", self.version), ("content of version", self.parent_version))
        yield Table(f"claimed {self.operator_id}", (), rows)


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
