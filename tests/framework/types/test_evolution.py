"""Records, rows, enums and arrays that changed between two runs: verdicts, and old values in the new form."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest

from keyedstate import errors, types
from keyedstate.errors import UnsupportedTypeError
from keyedstate.types import Compatibility, Outcome, SerializerSnapshot, TypeSerializer


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class MoreLevels(enum.Enum):
    HIGH = 2
    MIDDLE = 3
    LOW = 1


class OnlyLow(enum.Enum):
    LOW = 1


@dataclass
class V1:
    name: str
    count: Annotated[int, types.INT32]
    level: Level = Level.LOW


@dataclass
class Reordered:
    count: Annotated[int, types.INT32]
    name: str
    level: Level = Level.LOW


@dataclass
class Grown:
    name: str
    count: Annotated[int, types.INT32]
    level: Level = Level.LOW
    tags: list[str] = field(default_factory=lambda: ["new"])
    price: Annotated[Decimal, types.decimal(4, 2)] = Decimal("1.50")
    note: str | None = None
    owner: str | None = "nobody"


@dataclass
class GrownWithoutDefault:
    name: str
    count: Annotated[int, types.INT32]
    owner: str
    level: Level = Level.LOW


@dataclass
class GrownWithWrongDefault:
    name: str
    count: Annotated[int, types.INT32]
    level: Level = Level.LOW
    owner: str = None  # type: ignore[assignment]


@dataclass
class Shrunk:
    name: str


@dataclass
class Both:
    name: str
    id: int = 0


@dataclass
class Widened:
    name: str
    count: int
    level: Level = Level.LOW


@dataclass
class Nullable:
    name: str | None
    count: Annotated[int | None, types.nullable(types.INT32)]
    level: Level = Level.LOW


@dataclass
class Retyped:
    name: str
    count: str
    level: Level = Level.LOW


@dataclass
class NewLevels:
    name: str
    count: Annotated[int, types.INT32]
    level: MoreLevels = MoreLevels.LOW


@dataclass
class NewLevelsWidened:
    name: str
    count: int
    level: MoreLevels = MoreLevels.LOW


@dataclass(frozen=True)
class Frozen:
    name: str
    count: Annotated[int, types.INT32]
    level: Level = Level.LOW


def level(cls: Any) -> TypeSerializer[Any]:
    return types.enum_of(cls, name="Level")


def click(cls: type[Any]) -> TypeSerializer[Any]:
    """The record as each version of the program declares it: one class, with one enum, that has changed."""
    levels = {"level": level(MoreLevels if cls.__name__.startswith("NewLevels") else Level)}
    has_level = "level" in cls.__dataclass_fields__
    return types.record_of(cls, fields=levels if has_level else {}, name="Click")


def written(serializer: TypeSerializer[Any]) -> SerializerSnapshot:
    """Return the snapshot as another process reads it."""
    return SerializerSnapshot.from_json(json.loads(json.dumps(serializer.snapshot().to_json())))


def restored_values(old: TypeSerializer[Any], new: TypeSerializer[Any], values: list[Any]) -> list[list[Any]]:
    """Write with one program, read with the next: columns, columns kept by a run in between, and bytes."""
    reader = written(old).restore_serializer()
    conversion = new.conversion_from(reader) or (lambda value: value)
    column = old.to_arrow(values)
    kept = reader.from_arrow(reader.to_arrow(reader.from_arrow(column)))
    data = [reader.from_bytes(old.to_bytes(value)) for value in values]
    return [[conversion(value) for value in found] for found in (reader.from_arrow(column), kept, data)]


NEW = {"level": MoreLevels.LOW}
VERDICTS: list[tuple[type[Any], Outcome, Any, str]] = [
    (V1, Outcome.AS_IS, V1("a", 1, Level.HIGH), ""),
    (Reordered, Outcome.AS_IS, Reordered(1, "a", Level.HIGH), ""),
    (Frozen, Outcome.AS_IS, Frozen("a", 1, Level.HIGH), ""),
    (Grown, Outcome.AFTER_MIGRATION, Grown("a", 1, Level.HIGH), "added or removed"),
    (Shrunk, Outcome.AFTER_MIGRATION, Shrunk("a"), "added or removed"),
    (Both, Outcome.AFTER_MIGRATION, Both("a", 0), "added or removed"),
    (Widened, Outcome.AFTER_MIGRATION, Widened("a", 1, Level.HIGH), "the field 'count': INT32 was widened"),
    (Nullable, Outcome.AS_IS, Nullable("a", 1, Level.HIGH), ""),
    (NewLevels, Outcome.RECONFIGURED, NewLevels("a", 1, MoreLevels.HIGH), "keep their old positions"),
    (NewLevelsWidened, Outcome.AFTER_MIGRATION, NewLevelsWidened("a", 1, MoreLevels.HIGH), "widened"),
    (Retyped, Outcome.INCOMPATIBLE, None, "the field 'count': INT32 cannot be read as STRING"),
    (GrownWithoutDefault, Outcome.INCOMPATIBLE, None, "the field 'owner': it was added without a default"),
    (GrownWithWrongDefault, Outcome.INCOMPATIBLE, None, "the field 'owner': it was added without a default"),
]


@pytest.mark.parametrize(("cls", "outcome", "expected", "reason"), VERDICTS)
def test_a_dataclass_that_changed_is_judged_field_by_field(
    cls: type[Any], outcome: Outcome, expected: Any, reason: str
) -> None:
    """SER-03, with the names that a user needs."""
    new, old = click(cls), click(V1)
    verdict = new.resolve_compatibility(written(old))
    assert verdict.outcome is outcome
    assert reason in verdict.reason
    # The snapshot knows no class, and comes to the same verdict.
    assert written(new).resolve_compatibility(written(old)).outcome is outcome
    if outcome is not Outcome.INCOMPATIBLE:
        used = verdict.serializer or new
        for values in restored_values(old, used, [V1("a", 1, Level.HIGH)]):
            assert values == [expected]
            assert type(values[0]) is cls
            used.check(values[0])
            assert used.from_bytes(used.to_bytes(values[0])) == expected


def test_a_record_of_another_class_is_incompatible_and_the_error_names_the_old_one() -> None:
    old, new = types.record_of(V1), types.record_of(Reordered)
    verdict = new.resolve_compatibility(written(old))
    assert verdict.is_incompatible
    name = f"{V1.__module__}.V1"
    assert f"name={name!r}" in verdict.reason
    moved = types.record_of(Reordered, name=name)
    assert moved.resolve_compatibility(written(old)).is_as_is
    assert restored_values(old, moved, [V1("a", 1)])[0] == [Reordered(1, "a")]


def test_a_field_that_may_not_be_none_any_more_is_incompatible() -> None:
    verdict = click(V1).resolve_compatibility(written(click(Nullable)))
    assert verdict.is_incompatible
    assert "may not be None any more" in verdict.reason


def test_defaults_are_created_for_each_old_value() -> None:
    [first, second] = restored_values(click(V1), click(Grown), [V1("a", 1), V1("b", 2)])[0]
    assert first.tags == second.tags == ["new"]
    assert first.tags is not second.tags


def test_a_restored_record_is_a_named_tuple_with_all_stored_fields() -> None:
    """SER-03: old bytes are read whole, and removed fields are dropped by the conversion alone."""
    old = click(V1)
    reader = written(old).restore_serializer()
    [value] = reader.from_arrow(old.to_arrow([V1("a", 1, Level.HIGH)]))
    assert (value.name, value.count, value.level) == ("a", 1, "HIGH")
    assert value.as_dict() == {"name": "a", "count": 1, "level": "HIGH"}
    assert reader.to_bytes(value) == old.to_bytes(V1("a", 1, Level.HIGH))
    with pytest.raises(errors.ValueTypeError):
        reader.check(V1("a", 1))


def test_only_the_class_makes_the_defaults_of_new_fields() -> None:
    reader = written(click(Grown)).restore_serializer()
    conversion = reader.conversion_from(written(click(V1)).restore_serializer())
    assert conversion is not None
    with pytest.raises(UnsupportedTypeError, match="only the class knows it"):
        conversion(reader.make(("a", 1, "LOW", [], Decimal(1), None, None)))


# -- enums ------------------------------------------------------------------------------------------


def test_new_and_reordered_constants_keep_the_positions_of_the_checkpoint() -> None:
    """SER-08: the old order first, new constants after it."""
    old, new = level(Level), level(MoreLevels)
    verdict = new.resolve_compatibility(written(old))
    assert verdict.is_reconfigured
    assert verdict.serializer is not None
    assert verdict.serializer.constants == ("LOW", "HIGH", "MIDDLE")
    assert verdict.serializer.from_bytes(old.to_bytes(Level.HIGH)) is MoreLevels.HIGH
    assert verdict.serializer.to_bytes(MoreLevels.MIDDLE).hex() == "00000002"
    assert new.to_bytes(MoreLevels.MIDDLE).hex() == "00000001"
    # From then on the checkpoint has all of them.
    again = new.resolve_compatibility(written(verdict.serializer))
    assert again.serializer == verdict.serializer
    assert level(Level).resolve_compatibility(written(old)).is_as_is


def test_a_removed_constant_is_refused_by_its_name() -> None:
    verdict = level(OnlyLow).resolve_compatibility(written(level(Level)))
    assert verdict.is_incompatible
    assert "HIGH" in verdict.reason


def test_another_enum_is_incompatible_and_the_way_out_is_its_old_name() -> None:
    """SER-08."""
    verdict = types.enum_of(MoreLevels).resolve_compatibility(written(types.enum_of(Level)))
    assert verdict.is_incompatible
    assert f"name='{Level.__module__}.Level'" in verdict.reason


def test_constants_inside_of_containers_are_converted_also_as_keys() -> None:
    old = types.map_of(level(Level), types.tuple_of(types.list_of(level(Level)), types.set_of(level(Level))))
    new = types.map_of(
        level(MoreLevels), types.tuple_of(types.list_of(level(MoreLevels)), types.set_of(level(MoreLevels)))
    )
    verdict = new.resolve_compatibility(written(old))
    assert verdict.is_reconfigured
    values = [{Level.HIGH: ([Level.LOW], {Level.HIGH}), Level.LOW: None}, {}]
    expected = [
        {MoreLevels.HIGH: ([MoreLevels.LOW], {MoreLevels.HIGH}), MoreLevels.LOW: None},
        {},
    ]
    assert verdict.serializer is not None
    for found in restored_values(old, verdict.serializer, values):
        assert found == expected


# -- subclasses -------------------------------------------------------------------------------------


@dataclass
class Event:
    at: int


@dataclass
class Login(Event):
    user: str


@dataclass
class Logout(Event):
    pass


@dataclass
class Purchase(Event):
    price: float


@dataclass
class LoginWithDevice(Event):
    user: str
    device: str = "unknown"


@dataclass
class LoginById(Event):
    user: int


EVENTS = [Event(1), Login(2, "a"), Logout(3), Purchase(4, 1.5)]
#: Names of what the subclasses are tagged with in the checkpoint that a new declaration is asked about.
TAGS = types.record_of(Event, tagged=[Login, Logout], subclasses=[Purchase])


def names(records: Any) -> list[str]:
    return [record.name.rpartition(".")[2] for record in records]


@pytest.mark.parametrize(
    ("tagged", "subclasses", "outcome", "tags", "named"),
    [
        ([Login, Logout], [Purchase], Outcome.AS_IS, [], []),
        ([Logout, Login], [Purchase], Outcome.RECONFIGURED, ["Login", "Logout"], ["Purchase"]),
        ([Login, Logout, Purchase], [], Outcome.RECONFIGURED, ["Login", "Logout", "Purchase"], []),
        ([], [Purchase, Logout, Login], Outcome.RECONFIGURED, ["Login", "Logout"], ["Purchase"]),
        ([Login], [Purchase], Outcome.INCOMPATIBLE, [], []),
        ([Login, Logout], [], Outcome.INCOMPATIBLE, [], []),
    ],
)
def test_tags_of_subclasses_stay_new_ones_follow_and_none_may_be_missing(
    tagged: list[Any], subclasses: list[Any], outcome: Outcome, tags: list[str], named: list[str]
) -> None:
    """SER-03: another order is reconfigured with the old tags; a missing subclass is incompatible."""
    new = types.record_of(Event, tagged=tagged, subclasses=subclasses)
    verdict = new.resolve_compatibility(written(TAGS))
    assert verdict.outcome is outcome
    if outcome is Outcome.RECONFIGURED:
        used: Any = verdict.serializer
        assert (names(used.tagged), names(used.named)) == (tags, named)
        assert [used.from_bytes(TAGS.to_bytes(event)) for event in EVENTS] == EVENTS
        assert used.resolve_compatibility(written(used)).is_as_is
    if outcome is Outcome.INCOMPATIBLE:
        assert "no longer declared" in verdict.reason
    else:
        for found in restored_values(TAGS, verdict.serializer or new, EVENTS):
            assert found == EVENTS


def test_subclasses_can_be_declared_for_records_that_had_none() -> None:
    old = types.record_of(Event)
    verdict = TAGS.resolve_compatibility(written(old))
    assert verdict.is_reconfigured
    assert verdict.serializer == TAGS
    assert TAGS.from_bytes(old.to_bytes(Event(1))) == Event(1)
    for found in restored_values(old, TAGS, [Event(1)]):
        assert found == [Event(1)]
    assert old.resolve_compatibility(written(TAGS)).is_incompatible


def test_a_subclass_evolves_like_any_record() -> None:
    name = f"{Login.__module__}.Login"
    old = types.record_of(Event, tagged=[Login])
    grown = types.record_of(Event, tagged=[types.record_of(LoginWithDevice, name=name)])
    assert grown.resolve_compatibility(written(old)).is_after_migration
    for found in restored_values(old, grown, [Login(1, "a"), Event(2)]):
        assert found == [LoginWithDevice(1, "a", "unknown"), Event(2)]
    retyped = types.record_of(Event, tagged=[types.record_of(LoginById, name=name)])
    verdict = retyped.resolve_compatibility(written(old))
    assert verdict.is_incompatible
    assert f"the subclass {name}: the field 'user': STRING cannot be read as INT64" in verdict.reason


@pytest.mark.parametrize(
    "make",
    [
        lambda: types.record_of(Event, tagged=[Login], subclasses=[Login]),
        lambda: types.record_of(Event, tagged=[Login, Login]),
        lambda: types.record_of(Login, tagged=[Event]),
        lambda: types.record_of(Event, tagged=[Event]),
        lambda: types.record_of(Event, tagged=[V1]),
        lambda: types.record_of(Event, subclasses=["Login"]),
    ],
)
def test_subclasses_that_cannot_be_distinguished_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedTypeError):
        make()


# -- rows, arrays and numbers -----------------------------------------------------------------------


def row(**fields: TypeSerializer[Any]) -> Any:
    return types.row_of(fields)


OLD_ROW = row(a=types.INT32, b=types.nullable(types.STRING))


@pytest.mark.parametrize(
    ("new", "outcome", "expected"),
    [
        (OLD_ROW, Outcome.AS_IS, (1, None)),
        (row(b=types.nullable(types.STRING), a=types.INT32), Outcome.AFTER_MIGRATION, (None, 1)),
        (row(a=types.INT64, b=types.nullable(types.STRING)), Outcome.AFTER_MIGRATION, (1, None)),
        (
            row(a=types.nullable(types.INT32), b=types.nullable(types.STRING)),
            Outcome.AS_IS,
            (1, None),
        ),
        (
            row(a=types.INT32, c=types.nullable(types.INT8), b=types.nullable(types.STRING)),
            Outcome.AFTER_MIGRATION,
            (1, None, None),
        ),
        (row(a=types.INT32), Outcome.AFTER_MIGRATION, (1,)),
        (
            row(a=types.INT32, c=types.INT8, b=types.nullable(types.STRING)),
            Outcome.INCOMPATIBLE,
            "the field 'c': it was added without a default",
        ),
        (row(a=types.INT32, b=types.STRING), Outcome.INCOMPATIBLE, "the field 'b': it was nullable(STRING)"),
        (
            row(b=types.STRING, a=types.STRING),
            Outcome.INCOMPATIBLE,
            "the field 'b'",
        ),
        (types.tuple_of(types.INT32, types.nullable(types.STRING)), Outcome.INCOMPATIBLE, "cannot be read"),
    ],
    ids=str,
)
def test_a_row_evolves_by_the_names_of_its_fields(
    new: TypeSerializer[Any], outcome: Outcome, expected: Any
) -> None:
    """Flink finds fields of rows by position, and refuses another number of them."""
    verdict = new.resolve_compatibility(written(OLD_ROW))
    assert verdict.outcome is outcome
    if outcome is Outcome.INCOMPATIBLE:
        assert expected in verdict.reason
        return
    for found in restored_values(OLD_ROW, new, [OLD_ROW.make((1, None))]):
        assert found == [expected]
        new.check(found[0])
    if outcome is Outcome.AS_IS:
        assert new.from_bytes(OLD_ROW.to_bytes(OLD_ROW.make((1, "x")))) == (1, "x")


def test_an_array_whose_elements_were_widened_is_converted() -> None:
    old, new = types.array_of(types.INT16), types.array_of(types.INT64)
    assert new.resolve_compatibility(written(old)).is_after_migration
    assert old.resolve_compatibility(written(new)).is_incompatible
    for [found] in restored_values(old, new, [np.array([1, -2], np.int16)]):
        new.check(found)
        assert found.tolist() == [1, -2]
    nested = types.map_of(types.STRING, types.nullable(new))
    old_nested = types.map_of(types.STRING, old)
    assert nested.resolve_compatibility(written(old_nested)).is_after_migration
    for [found] in restored_values(old_nested, nested, [{"a": np.array([1], np.int16), "b": None}]):
        nested.check(found)
        assert found["b"] is None


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("int16", "int64", Outcome.AFTER_MIGRATION),
        ("float32", "float64", Outcome.AFTER_MIGRATION),
        ("uint8", "uint16", Outcome.AFTER_MIGRATION),
        ("int64", "int64", Outcome.AS_IS),
        ("uint8", "int16", Outcome.INCOMPATIBLE),
        ("int64", "int32", Outcome.INCOMPATIBLE),
        ("int32", "float64", Outcome.INCOMPATIBLE),
        ("bool", "int8", Outcome.INCOMPATIBLE),
    ],
)
def test_a_numpy_number_can_only_be_widened(old: str, new: str, outcome: Outcome) -> None:
    before, after = types.numpy_scalar(old), types.numpy_scalar(new)
    assert after.resolve_compatibility(written(before)).outcome is outcome
    assert after.resolve_compatibility(written(types.INT64)).is_incompatible
    if outcome is Outcome.AFTER_MIGRATION:
        for [found] in restored_values(before, after, [before.python_type(7)]):
            after.check(found)
            assert found == 7


def test_pandas_timestamps_can_move_to_another_zone_but_not_get_or_lose_one() -> None:
    utc, berlin, naive = (types.pandas_timestamp(tz) for tz in ("UTC", "Europe/Berlin", None))
    assert berlin.resolve_compatibility(written(utc)).is_after_migration
    assert berlin.resolve_compatibility(written(berlin)) == Compatibility.AS_IS
    assert naive.resolve_compatibility(written(naive)) == Compatibility.AS_IS
    assert naive.resolve_compatibility(written(utc)).is_incompatible
    assert utc.resolve_compatibility(written(naive)).is_incompatible
    for [found] in restored_values(utc, berlin, [pd.Timestamp("2024-01-01", tz="UTC")]):
        berlin.check(found)
        assert found == pd.Timestamp("2024-01-01 01:00", tz="Europe/Berlin")


def test_a_record_that_becomes_nullable_needs_no_migration() -> None:
    record = types.record_of(Event)
    assert types.nullable(record).resolve_compatibility(written(record)).is_as_is
    assert types.nullable(record).from_bytes(record.to_bytes(Event(1))) == Event(1)
    assert types.nullable(TAGS).resolve_compatibility(written(record)).is_reconfigured
    for found in restored_values(record, types.nullable(TAGS), [Event(1)]):
        assert found == [Event(1)]


def test_a_plain_type_needs_no_conversion() -> None:
    """Hot paths skip it: only what depends on a class, or changes its Python type, is converted."""
    for serializer in (
        types.map_of(types.STRING, types.list_of(types.INT64)),
        types.nullable(types.tuple_of(types.DATE, types.set_of(types.UUID))),
        row(a=types.INT64),
    ):
        assert serializer.conversion_from(written(serializer).restore_serializer()) is None
    assert types.list_of(types.INT64).conversion_from(types.list_of(types.INT32)) is None
    assert types.record_of(Event).conversion_from(types.record_of(Event)) is None


def test_a_composite_of_a_plugin_that_forgot_conversion_is_named() -> None:
    class Pair(types.TupleSerializer):
        def convert(self, conversions: Any, value: Any) -> Any:
            return super(types.TupleSerializer, self).convert(conversions, value)

    conversion = Pair(level(Level)).conversion_from(Pair(written(level(Level)).restore_serializer()))
    assert conversion is not None
    with pytest.raises(NotImplementedError, match=r"Pair\.convert"):
        conversion(("LOW",))


# -- snapshots --------------------------------------------------------------------------------------


def test_the_json_representations_stay_readable() -> None:
    """They are in every checkpoint: a change here must come with a new version."""
    string = {"type": "string", "version": 1}
    assert click(Both).snapshot().to_json() == {
        "type": "record",
        "version": 1,
        "class": "Click",
        "names": ["name", "id"],
        "fields": [string, {"type": "int64", "version": 1}],
        "defaults": ["id"],
    }
    assert types.record_of(
        Event,
        name="E",
        tagged=[types.record_of(Logout, name="L")],
        subclasses=[types.record_of(Login, name="I")],
    ).snapshot().to_json() == {
        "type": "record",
        "version": 1,
        "class": "E",
        "names": ["at"],
        "fields": [{"type": "int64", "version": 1}],
        "defaults": [],
        "tagged": [
            {
                "type": "record",
                "version": 1,
                "class": "L",
                "names": ["at"],
                "fields": [{"type": "int64", "version": 1}],
                "defaults": [],
            }
        ],
        "subclasses": [
            {
                "type": "record",
                "version": 1,
                "class": "I",
                "names": ["at", "user"],
                "fields": [{"type": "int64", "version": 1}, string],
                "defaults": [],
            }
        ],
    }
    assert level(Level).snapshot().to_json() == {
        "type": "enum",
        "version": 1,
        "enum": "Level",
        "constants": ["LOW", "HIGH"],
    }
    assert row(a=types.STRING, b=types.nullable(types.STRING)).snapshot().to_json() == {
        "type": "row",
        "version": 1,
        "names": ["a", "b"],
        "fields": [string, {"type": "nullable", "version": 1, "inner": string}],
    }
    assert types.array_of(types.INT8).snapshot().to_json() == {
        "type": "array",
        "version": 1,
        "element": {"type": "int8", "version": 1},
    }
    assert types.numpy_scalar("int8").snapshot().to_json() == {"type": "numpy", "version": 1, "dtype": "int8"}
    assert types.pandas_timestamp("UTC").snapshot().to_json() == {
        "type": "pandas_timestamp",
        "version": 1,
        "tz": "UTC",
    }
    assert types.pickled().snapshot().to_json() == {"type": "pickled", "version": 1}
    assert [
        serializer.snapshot().to_json()["type"] for serializer in (types.TIME, types.DURATION, types.UUID)
    ] == ["time", "duration", "uuid"]


@pytest.mark.parametrize(
    "serializer",
    [
        TAGS,
        click(V1),
        level(Level),
        OLD_ROW,
        types.array_of(types.INT8),
        types.numpy_scalar("int8"),
        types.pandas_timestamp(),
        types.pickled(),
        types.TIME,
        types.DURATION,
        types.UUID,
    ],
    ids=str,
)
def test_a_snapshot_of_a_newer_version_is_refused(serializer: TypeSerializer[Any]) -> None:
    document = {**serializer.snapshot().to_json(), "version": 2}
    with pytest.raises(errors.UnknownSerializerError, match=r"version 2.*up to 1.*Upgrade"):
        SerializerSnapshot.from_json(document)
    nested = {"type": "list", "version": 1, "element": document}
    with pytest.raises(errors.UnknownSerializerError, match=r"version 2.*up to 1.*Upgrade"):
        SerializerSnapshot.from_json(nested)


STRING = {"type": "string", "version": 1}
RECORD = {"type": "record", "version": 1, "class": "C", "names": ["a"], "fields": [STRING], "defaults": []}


@pytest.mark.parametrize(
    "document",
    [
        {**RECORD, "class": 5},
        {**RECORD, "names": ["a", "b"]},
        {**RECORD, "names": ["a", "a"], "fields": [STRING, STRING]},
        {**RECORD, "names": [1]},
        {**RECORD, "defaults": None},
        {**RECORD, "tagged": [STRING], "subclasses": []},
        {**RECORD, "tagged": [RECORD]},
        {**RECORD, "tagged": 3},
        {key: value for key, value in RECORD.items() if key != "fields"},
        {"type": "row", "version": 1, "names": [], "fields": []},
        {"type": "row", "version": 1, "names": ["a"], "fields": []},
        {"type": "row", "version": 1, "names": [None], "fields": [STRING]},
        {"type": "enum", "version": 1, "enum": "E", "constants": ["A", "A"]},
        {"type": "enum", "version": 1, "enum": "E", "constants": [1]},
        {"type": "enum", "version": 1, "enum": "E"},
        {"type": "array", "version": 1, "element": STRING},
        {"type": "numpy", "version": 1, "dtype": "object"},
        {"type": "numpy", "version": 1, "dtype": ["int8"]},
        {"type": "pandas_timestamp", "version": 1, "tz": 1},
    ],
    ids=range(19),
)
def test_a_malformed_snapshot_is_refused_and_loads_no_class(document: Any) -> None:
    with pytest.raises(errors.InvalidSnapshotError):
        SerializerSnapshot.from_json(document).restore_serializer()


def test_a_duplicate_of_a_record_shares_no_part_that_has_state() -> None:
    class Stateful(type(types.STRING)):  # type: ignore[misc]
        def duplicate(self) -> Any:
            return Stateful()

    record = types.record_of(V1, fields={"name": Stateful(), "level": level(Level)}, name="Click")
    duplicate: Any = record.duplicate()
    assert duplicate is not record
    assert duplicate.python_type is V1
    assert duplicate.field_serializers[0] is not record.field_serializers[0]
    assert duplicate.field_serializers[1] is record.field_serializers[1]
    hierarchy: Any = types.record_of(V1, fields={"name": Stateful()}, tagged=[]).duplicate()
    assert hierarchy.python_type is V1
    assert TAGS.duplicate() is TAGS
    assert click(V1).duplicate() is not None
