"""What a new type may do with values of an old one, and what snapshots say about it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.errors import (
    DuplicateSerializerError,
    InvalidSnapshotError,
    UnknownSerializerError,
    ValueTypeError,
)
from keyedstate.memory import DataInputView, DataOutputView
from keyedstate.types import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    compose,
    register_serializer_type,
)
from keyedstate.types.contract import registry


class LevelSerializer(TypeSerializer[str]):
    """One of several names, stored as its position: a type as a plugin would bring it.

    Its verdicts are those of Flink's ``EnumSerializer``; `lock` is state that threads cannot share.
    """

    type_name = "test-level"
    immutable = True

    def __init__(self, *names: str) -> None:
        self.names = names
        self.lock: object = None

    def parts(self) -> tuple[object, ...]:
        return self.names

    def snapshot_content(self) -> dict[str, Any]:
        return {"names": list(self.names)}

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.int8()

    def check(self, value: object) -> None:
        if value not in self.names:
            raise ValueTypeError.of(repr(self), value, "Use one of the names.")

    def serialize(self, value: str, out: DataOutputView) -> None:
        out.write_byte(self.names.index(value))

    def deserialize(self, source: DataInputView) -> str:
        return self.names[source.read_byte()]

    def to_arrow(self, values: Sequence[str | None]) -> pa.Array:
        return pa.array([None if value is None else self.names.index(value) for value in values], pa.int8())

    def from_arrow(self, array: pa.Array) -> list[str | None]:
        return [None if index is None else self.names[index] for index in array.to_pylist()]

    def duplicate(self) -> LevelSerializer:
        duplicate = LevelSerializer(*self.names)
        duplicate.lock = object()
        return duplicate

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        verdict = super().resolve_compatibility(old)
        if verdict.is_incompatible and old.type_name == self.type_name:
            added = [name for name in self.names if name not in old.content["names"]]
            return Compatibility.reconfigured_with(
                LevelSerializer(*old.content["names"], *added), "reordered"
            )
        return verdict


def restore_level(document: Mapping[str, Any]) -> LevelSerializer:
    return LevelSerializer(*document["names"])


@pytest.fixture(autouse=True)
def level_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registrations", dict(registry._registrations))
    register_serializer_type("test-level", restore_level, newest_version=1)


LOW_HIGH = LevelSerializer("low", "high")
HIGH_LOW = LevelSerializer("high", "mid", "low")
#: The old order first, the new names after it.
MERGED = LevelSerializer("low", "high", "mid")

AS_IS, AFTER_MIGRATION, INCOMPATIBLE = (
    Compatibility.AS_IS,
    Compatibility.AFTER_MIGRATION,
    Compatibility.INCOMPATIBLE,
)
reconfigured = Compatibility.reconfigured_with

TABLE: list[tuple[TypeSerializer[Any], TypeSerializer[Any], Compatibility]] = [
    (types.INT64, types.INT64, AS_IS),
    (types.INT8, types.INT16, AFTER_MIGRATION),
    (types.INT8, types.INT64, AFTER_MIGRATION),
    (types.INT32, types.INT64, AFTER_MIGRATION),
    (types.INT64, types.INT32, INCOMPATIBLE),
    (types.INT32, types.FLOAT64, INCOMPATIBLE),
    (types.BOOLEAN, types.INT64, INCOMPATIBLE),
    (types.FLOAT32, types.FLOAT64, AFTER_MIGRATION),
    (types.FLOAT64, types.FLOAT32, INCOMPATIBLE),
    (types.STRING, types.BYTES, INCOMPATIBLE),
    (types.TIMESTAMP, types.TIMESTAMP_NTZ, INCOMPATIBLE),
    (types.decimal(10, 2), types.decimal(10, 2), AS_IS),
    (types.decimal(10, 2), types.decimal(12, 2), INCOMPATIBLE),
    (types.INT32, types.nullable(types.INT32), AFTER_MIGRATION),
    (types.INT32, types.nullable(types.INT64), AFTER_MIGRATION),
    (types.STRING, types.nullable(types.INT64), INCOMPATIBLE),
    (types.nullable(types.INT32), types.INT32, INCOMPATIBLE),
    (types.nullable(types.INT32), types.nullable(types.INT32), AS_IS),
    (types.nullable(types.INT32), types.nullable(types.INT64), AFTER_MIGRATION),
    (LOW_HIGH, types.nullable(HIGH_LOW), AFTER_MIGRATION),
    (types.list_of(types.INT32), types.list_of(types.INT32), AS_IS),
    (types.list_of(types.INT32), types.list_of(types.INT64), AFTER_MIGRATION),
    (types.list_of(types.INT32), types.list_of(types.STRING), INCOMPATIBLE),
    (types.list_of(types.INT32), types.set_of(types.INT32), INCOMPATIBLE),
    (types.set_of(types.INT32), types.set_of(types.nullable(types.INT32)), AFTER_MIGRATION),
    (types.map_of(types.STRING, types.INT32), types.map_of(types.STRING, types.INT64), AFTER_MIGRATION),
    (types.map_of(types.STRING, types.INT32), types.map_of(types.BYTES, types.INT64), INCOMPATIBLE),
    (types.tuple_of(types.INT32), types.tuple_of(types.INT32, types.INT32), INCOMPATIBLE),
    (types.tuple_of(types.INT32, types.INT8), types.tuple_of(types.INT64, types.STRING), INCOMPATIBLE),
    (types.tuple_of(types.INT32, types.INT8), types.tuple_of(types.INT32, types.INT64), AFTER_MIGRATION),
    (LOW_HIGH, LOW_HIGH, AS_IS),
    (LOW_HIGH, HIGH_LOW, reconfigured(MERGED)),
    (types.list_of(LOW_HIGH), types.list_of(HIGH_LOW), reconfigured(types.list_of(MERGED))),
    (types.nullable(LOW_HIGH), types.nullable(HIGH_LOW), reconfigured(types.nullable(MERGED))),
    (
        types.tuple_of(types.INT8, LOW_HIGH, types.map_of(types.STRING, LOW_HIGH)),
        types.tuple_of(types.INT8, HIGH_LOW, types.map_of(types.STRING, HIGH_LOW)),
        reconfigured(types.tuple_of(types.INT8, MERGED, types.map_of(types.STRING, MERGED))),
    ),
    (types.tuple_of(types.INT8, LOW_HIGH), types.tuple_of(types.INT16, HIGH_LOW), AFTER_MIGRATION),
    (types.tuple_of(types.INT8, LOW_HIGH), types.tuple_of(types.STRING, HIGH_LOW), INCOMPATIBLE),
]


@pytest.mark.parametrize(("old", "new", "expected"), TABLE, ids=str)
def test_the_new_snapshot_judges_the_old_one(
    old: TypeSerializer[Any], new: TypeSerializer[Any], expected: Compatibility
) -> None:
    """SER-01: incompatible outranks migration, migration outranks reconfiguration; positions are kept."""
    written = SerializerSnapshot.from_json(json.loads(json.dumps(old.snapshot().to_json())))
    verdict = new.snapshot().resolve_compatibility(written)
    assert verdict == expected
    assert [
        verdict.is_as_is,
        verdict.is_after_migration,
        verdict.is_reconfigured,
        verdict.is_incompatible,
    ] == [
        expected.outcome is outcome
        for outcome in (Outcome.AS_IS, Outcome.AFTER_MIGRATION, Outcome.RECONFIGURED, Outcome.INCOMPATIBLE)
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [(old, new) for old, new, verdict in TABLE if verdict == AFTER_MIGRATION and old is not LOW_HIGH],
)
def test_values_read_by_the_old_type_are_values_of_the_new_one_after_migration(
    old: TypeSerializer[Any], new: TypeSerializer[Any]
) -> None:
    """What migration relies on: read with the old serializer, write with the new one."""

    def example(serializer: TypeSerializer[Any]) -> Any:
        inners = [example(inner) for inner in getattr(serializer, "inners", ())]
        return {
            "list": lambda: inners,
            "set": lambda: set(inners),
            "map": lambda: dict([inners]),
            "tuple": lambda: tuple(inners),
            "nullable": lambda: inners[0],
            "string": lambda: "a",
            "float32": lambda: 1.5,
            "test-level": lambda: "high",
        }.get(serializer.type_name, lambda: 7)()

    value = old.from_bytes(old.to_bytes(example(old)))
    new.check(value)
    assert new.from_bytes(new.to_bytes(value)) == value


def test_a_verdict_names_reason_and_part() -> None:
    new = types.map_of(types.STRING, types.list_of(types.STRING)).snapshot()
    verdict = new.resolve_compatibility(types.map_of(types.STRING, types.list_of(types.INT64)).snapshot())
    assert verdict.reason == "value: element: INT64 cannot be read as STRING"


@pytest.mark.parametrize(
    ("outer", "parts", "expected"),
    [
        (AS_IS, [], Outcome.AS_IS),
        (INCOMPATIBLE, [AS_IS, AFTER_MIGRATION], Outcome.INCOMPATIBLE),
        (AFTER_MIGRATION, [AS_IS, reconfigured(MERGED)], Outcome.AFTER_MIGRATION),
        (AFTER_MIGRATION, [INCOMPATIBLE], Outcome.INCOMPATIBLE),
        (AS_IS, [AS_IS, reconfigured(MERGED)], Outcome.RECONFIGURED),
    ],
)
def test_the_composites_own_verdict_takes_part(
    outer: Compatibility, parts: list[Compatibility], expected: Outcome
) -> None:
    """SER-01: an incompatible outer verdict wins over everything, an outer migration over reconfiguration."""
    nested = [(f"f{index}", HIGH_LOW, verdict) for index, verdict in enumerate(parts)]
    verdict = compose(nested, lambda inners: types.tuple_of(*inners), outer)
    assert verdict.outcome is expected
    if expected is Outcome.RECONFIGURED:
        assert verdict.serializer == types.tuple_of(HIGH_LOW, MERGED)


def test_a_verdict_carries_a_serializer_exactly_when_it_is_reconfigured() -> None:
    """SER-02: a reconfigured result without a serializer, or another result with one, cannot be had."""
    with pytest.raises(ValueError, match="reconfigured"):
        Compatibility(Outcome.RECONFIGURED)
    for outcome in (Outcome.AS_IS, Outcome.AFTER_MIGRATION, Outcome.INCOMPATIBLE):
        with pytest.raises(ValueError, match="no other one"):
            Compatibility(outcome, types.INT64)
    with pytest.raises(ValueError, match="through its parts"):
        compose([], lambda inners: types.INT64, reconfigured(types.INT64))


def test_a_duplicate_shares_no_part_that_has_state() -> None:
    """Composites duplicate every part: Flink's TTL serializer once forgot its timestamp's."""
    composite = types.map_of(
        types.STRING, types.nullable(types.tuple_of(types.INT64, types.list_of(LOW_HIGH)))
    )
    duplicate = composite.duplicate()
    assert duplicate == composite
    assert duplicate is not composite

    def level_of(serializer: Any) -> LevelSerializer:
        return serializer if isinstance(serializer, LevelSerializer) else level_of(serializer.inners[-1])

    assert level_of(duplicate).lock is not None
    assert level_of(composite).lock is None


def test_a_type_without_state_is_its_own_duplicate() -> None:
    for serializer in (
        types.INT64,
        types.set_of(types.STRING),
        types.tuple_of(types.INT8, types.nullable(types.DATE)),
    ):
        assert serializer.duplicate() is serializer


def test_types_are_equal_by_structure() -> None:
    assert types.list_of(types.INT64) == types.list_of(types.INT64)
    assert types.list_of(types.INT64) != types.set_of(types.INT64)
    assert types.list_of(types.INT64) != types.list_of(types.INT32)
    assert types.decimal(4, 2) != types.decimal(4, 3)
    assert types.INT64 != "INT64"
    assert len({types.tuple_of(types.INT8), types.tuple_of(types.INT8), types.tuple_of(types.INT16)}) == 2


def test_a_snapshot_has_a_json_face_that_stays_readable() -> None:
    """The JSON representation is in every checkpoint: a change here must come with a new version."""
    serializer = types.map_of(types.STRING, types.tuple_of(types.decimal(10, 2), types.nullable(types.INT64)))
    assert serializer.snapshot().to_json() == {
        "type": "map",
        "version": 1,
        "key": {"type": "string", "version": 1},
        "value": {
            "type": "tuple",
            "version": 1,
            "fields": [
                {"type": "decimal", "version": 1, "precision": 10, "scale": 2},
                {"type": "nullable", "version": 1, "inner": {"type": "int64", "version": 1}},
            ],
        },
    }
    names = [types.BOOLEAN, types.INT8, types.INT16, types.INT32, types.INT64, types.FLOAT32, types.FLOAT64]
    names += [types.STRING, types.BYTES, types.DATE, types.TIMESTAMP, types.TIMESTAMP_NTZ, types.VOID]
    assert [serializer.snapshot().type_name for serializer in names] == (
        [
            "boolean",
            "int8",
            "int16",
            "int32",
            "int64",
            "float32",
            "float64",
            "string",
            "bytes",
            "date",
            "timestamp",
            "timestamp_ntz",
            "void",
        ]
    )


def test_a_snapshot_cannot_be_changed_through_its_json_face() -> None:
    snapshot = types.list_of(types.INT64).snapshot()
    document = snapshot.to_json()
    again = SerializerSnapshot.from_json(document)
    document["element"]["type"] = "string"
    assert snapshot.restore_serializer() == again.restore_serializer() == types.list_of(types.INT64)


@pytest.mark.parametrize(
    "wrap",
    [lambda part: part, lambda part: {"type": "tuple", "version": 1, "fields": [part]}],
    ids=["alone", "nested"],
)
def test_an_unknown_type_is_refused_with_the_closest_name_and_the_way_out(wrap: Any) -> None:
    with pytest.raises(UnknownSerializerError, match=r"'int65'.*Did you mean 'int64'.*Install") as raised:
        SerializerSnapshot.from_json(wrap({"type": "int65", "version": 1}))
    assert (raised.value.name, raised.value.newest) == ("int65", None)


@pytest.mark.parametrize(
    "wrap",
    [lambda part: part, lambda part: {"type": "list", "version": 1, "element": part}],
    ids=["alone", "nested"],
)
def test_a_newer_version_is_refused_with_both_versions(wrap: Any) -> None:
    with pytest.raises(UnknownSerializerError, match=r"'int64' has version 2.*up to 1.*Upgrade") as raised:
        SerializerSnapshot.from_json(wrap({"type": "int64", "version": 2}))
    assert (raised.value.version, raised.value.newest) == (2, 1)


DEEP: dict[str, Any] = {"type": "int64", "version": 1}
for _ in range(2000):
    DEEP = {"type": "list", "version": 1, "element": DEEP}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "an object was expected"),
        ({}, "'type' with a name is missing"),
        ({"type": 5, "version": 1}, "'type' with a name is missing"),
        ({"type": "int64"}, "versions count from 1"),
        ({"type": "int64", "version": 0}, "versions count from 1"),
        ({"type": "int64", "version": True}, "versions count from 1"),
        ({"type": "int64", "version": "1"}, "versions count from 1"),
        ({"type": "list", "version": 1}, "KeyError: 'element'"),
        ({"type": "list", "version": 1, "element": 3}, "an object was expected"),
        ({"type": "tuple", "version": 1, "fields": []}, "no columns"),
        ({"type": "tuple", "version": 1, "fields": 3}, "TypeError"),
        ({"type": "decimal", "version": 1, "precision": 99, "scale": 0}, "precision from 1 to 38"),
        ({"type": "decimal", "version": 1, "precision": "9", "scale": 0}, "precision from 1 to 38"),
        (DEEP, "more than 50 deep"),
    ],
    ids=[f"malformed-{index}" for index in range(14)],
)
def test_a_malformed_snapshot_is_refused_with_the_reason(document: Any, reason: str) -> None:
    with pytest.raises(InvalidSnapshotError, match=reason):
        SerializerSnapshot.from_json(document).restore_serializer()


def test_a_malformed_old_snapshot_is_refused_when_it_is_judged() -> None:
    old = SerializerSnapshot.from_json({"type": "map", "version": 1, "key": {"type": "string", "version": 1}})
    with pytest.raises(InvalidSnapshotError, match="KeyError: 'value'"):
        types.map_of(types.STRING, types.INT64).snapshot().resolve_compatibility(old)


def test_a_registered_type_is_restored_by_its_name() -> None:
    assert types.list_of(LOW_HIGH).snapshot().restore_serializer() == types.list_of(LOW_HIGH)
    register_serializer_type("test-level", restore_level, newest_version=1)
    with pytest.raises(DuplicateSerializerError, match="Give one of the two types another name"):
        register_serializer_type("int64", restore_level)


def test_a_factory_without_a_version_judges_versions_itself() -> None:
    register_serializer_type("test-any-version", restore_level)
    snapshot = SerializerSnapshot.from_json({"type": "test-any-version", "version": 9, "names": ["a"]})
    assert snapshot.restore_serializer() == LevelSerializer("a")


def test_a_type_that_is_not_installed_can_still_be_named_in_a_verdict() -> None:
    old = SerializerSnapshot("gone", 1, {"x": 1})
    verdict = types.INT64.snapshot().resolve_compatibility(old)
    assert verdict.is_incompatible
    assert '"type": "gone"' in verdict.reason
