"""The form of a manifest: whatever the checksum says, every field has its type, at every depth."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from snapshots.format.manifest import Channel, DataFile, Manifest, OperatorStateInfo, StateInfo
from snapshots.format.manifest_schema import wrong_field
from tests.snapshots.format.test_manifest import MISSING, body, refused, sealed

Place = tuple[str | int, ...]

PARTS: dict[str, type] = {
    "states": StateInfo,
    "operator_states": OperatorStateInfo,
    "files": DataFile,
    "channels": Channel,
}
OPEN: set[Place] = {("source_position",)}
"""What is any JSON value."""


def values(part: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Return every value in a JSON document, with its place."""
    if place:
        yield place, part
    if place in OPEN:
        return
    for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        yield from values(value, (*place, key))


def with_value(place: Place, value: object) -> dict[str, Any]:
    fields = copy.deepcopy(body())
    part: Any = fields
    for step in place[:-1]:
        part = part[step]
    if value is MISSING:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return fields


OTHERS: list[object] = [None, True, 2.0, -7, "text", [], {}, [[]], {"a": {}}]
NULLABLE = {"parent_version", "parent_id", "state", "type", "schema", "watermark", "cut_id", "output_schema"}


def may_be(place: Place, value: object, other: object) -> bool:
    """Return whether one value may stand for another, or the other tests ask for it."""
    if value is None or other is None:
        return place[-1] in NULLABLE
    return type(value) is type(other) or (place[0] == "metrics" and isinstance(other, float))


PLACES = [place for place, _ in values(body()) if place not in {*OPEN, ("format_version",)}]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_no_value_of_another_type_goes_unseen(place: Place) -> None:
    value = dict(values(body()))[place]
    for other in OTHERS:
        if not may_be(place, value, other):
            assert str(place[0]) in refused(sealed(with_value(place, other))).damage, other


@pytest.mark.parametrize(
    "place", [("watermark",), ("cut_id",), ("state",), ("type",), ("parent_id",), ("output_schema",)]
)
def test_null_or_a_text_or_number_is_no_list(place: Place) -> None:
    owner = {"watermark": ("channels", 0), "cut_id": ("channels", 0), "state": ("files", 0), "type": ("states", 0)}
    for other in ([], {}, True, 2.5):
        refused(sealed(with_value((*owner.get(str(place[0]), ()), *place), other)))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("parallelism",), 2.0),
        (("channels",), []),
        (("version",), 0),
        (("version",), 10**20),
        (("version",), True),
        (("hash",), "md5"),
        (("key_encoding",), "columns-2"),
        (("states", 0, "kind"), "queue"),
        (("states", 0, "codec"), "pickle"),
        (("states", 0, "schema"), "no base64!"),
        (("states", 0, "schema"), "AAAA"),
        (("states", 0, "field_ids"), {"value": "4"}),
        (("operator_states", 0, "mode"), "shared"),
        (("files", 0, "kind"), "another"),
        (("files", 0, "folds"), 1),
        (("files", 0, "version"), -1),
        (("files", 0, "subtask"), 32768),
        (("files", 0, "key_groups"), {"start": 64.0, "end": 127}),
        (("channels", 0, "watermark"), 2**63),
        (("channels", 0, "keyless"), -1),
        (("in_flight_count",), -1),
        (("required_features",), [["delta"]]),
        (("required_features",), [{}]),
        (("written_by",), {"pyarrow": 18}),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_is_named(place: Place, value: object) -> None:
    damage = refused(sealed(with_value(place, value))).damage

    assert "field" in damage
    assert len(damage) < 400


def test_the_form_knows_each_field_that_is_read() -> None:
    """A field that is added to a manifest, and not to its form, would be read unchecked."""
    for name, part in PARTS.items():
        for field in dataclasses.fields(part):
            refused(sealed(with_value((name, 0, field.name), object_of_no_field())))
    for field in dataclasses.fields(Manifest):
        if (field.name,) not in OPEN:
            refused(sealed(with_value((field.name,), object_of_no_field())))


def object_of_no_field() -> object:
    """A list in an object in a list is nothing that any field may be."""
    return [{"no": [{"such": "field"}]}]


def test_every_field_but_the_schema_of_outputs_is_required() -> None:
    for name in body():
        if name != "format_version":
            assert (wrong_field(with_value((name,), MISSING)) is None) is (name == "output_schema"), name


def test_the_place_of_what_is_wrong_is_said() -> None:
    assert wrong_field(body()) is None
    assert wrong_field(with_value(("channels", 1, "keyless"), 2.0)) == (
        "channels[1].keyless is 2.0, not an integer from 0 to 9223372036854775807"
    )
    assert wrong_field(with_value(("files", 2, "sha256"), MISSING)) == "files[2].sha256 is missing"
