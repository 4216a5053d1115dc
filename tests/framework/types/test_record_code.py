"""Functions written out for a dataclass do what a loop over its fields does, whatever the class is like."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.errors import ValueTypeError


@dataclass
class Plain:
    name: str
    tags: list[str]
    count: int

    def __post_init__(self) -> None:
        self.name = self.name or "a new one"


@dataclass(frozen=True)
class Frozen:
    name: str
    tags: list[str]
    count: int


@dataclass(slots=True)
class Slots:
    name: str
    tags: list[str]
    count: int


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    name: str
    tags: list[str]
    count: int


@dataclass(slots=True)
class SlotsBase:
    name: str


@dataclass
class DictOverSlots(SlotsBase):
    tags: list[str]
    count: int


@dataclass
class Base:
    name: str
    tags: list[str]


@dataclass
class Derived(Base):
    count: int


@dataclass
class OwnSetattr:
    name: str
    tags: list[str]
    count: int

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value.upper() if name == "name" else value)


@dataclass
class Computed:
    name: str
    tags: list[str]
    count: int

    @cached_property
    def doubled(self) -> int:
        return self.count * 2


@dataclass(init=False)
class Mangled:
    __name: str
    __tags: list[str]
    __count: int

    def __init__(self, name: str, tags: list[str], count: int) -> None:
        self.__name, self.__tags, self.__count = name, tags, count


@dataclass
class NamedAsLocals:
    """With the names that the written functions use themselves."""

    made: str
    value: list[str]
    cls: int


@dataclass
class Größe:
    größe: str
    μ: list[str]
    новый: int


@dataclass
class Checked:
    """Defaults in the class: an instance without the attribute still reads one."""

    name: str = "default"
    tags: Any = None
    count: int = 7


CLASSES = [
    Plain,
    Frozen,
    Slots,
    FrozenSlots,
    DictOverSlots,
    Derived,
    OwnSetattr,
    Computed,
    Mangled,
    NamedAsLocals,
    Größe,
]


def names_of(cls: type[Any]) -> list[str]:
    return [declared.name for declared in dataclasses.fields(cls)]


def values_of(value: Any) -> list[Any]:
    return [getattr(value, name) for name in names_of(type(value))]


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.__name__)
def cls(request: pytest.FixtureRequest) -> type[Any]:
    return request.param  # type: ignore[no-any-return]


def made(cls: type[Any], name: str = "a", tags: Any = None, count: int = 5) -> Any:
    return cls(name, ["x", "y"] if tags is None else tags, count)


@pytest.mark.parametrize("name", ["", "abc"])
def test_a_record_is_made_with_its_fields_as_they_are(cls: type[Any], name: str) -> None:
    """Neither ``__init__``, ``__post_init__`` nor the class's own way to set attributes has a part in it."""
    serializer = types.record_of(cls)
    fields: list[Any] = [name, ["x"], 3]
    value = serializer.make(fields)  # type: ignore[attr-defined]
    assert type(value) is cls
    assert values_of(value) == fields
    assert values_of(serializer.from_bytes(serializer.to_bytes(value))) == fields
    [again] = serializer.from_arrow(serializer.to_arrow([value]))
    assert values_of(again) == fields
    with pytest.raises(ValueError, match="unpack"):
        serializer.make(["", []])  # type: ignore[attr-defined]


def test_a_copy_has_fields_of_its_own_where_they_can_change(cls: type[Any]) -> None:
    serializer = types.record_of(cls)
    value = made(cls)
    copy = serializer.copy(value)
    assert type(copy) is cls and copy is not value
    assert values_of(copy) == values_of(value)
    tags = names_of(cls)[1]
    assert getattr(copy, tags) is not getattr(value, tags)
    getattr(value, tags).append("later")
    assert getattr(copy, tags) == ["x", "y"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, True),
        ({"tags": []}, True),
        ({"name": 5}, False),
        ({"tags": ("x",)}, False),
        ({"tags": ["x", None]}, False),
        ({"count": 2**63}, False),
        ({"count": True}, False),
        ({"count": None}, False),
    ],
)
def test_a_record_is_a_value_exactly_where_its_check_passes(
    cls: type[Any], arguments: dict[str, Any], expected: bool
) -> None:
    if cls is OwnSetattr and "name" in arguments:
        pytest.skip("this class takes no other names than strings")
    serializer = types.record_of(cls)
    value = made(cls, **arguments)
    assert serializer.is_value(value) is expected
    assert passes(serializer, value) is expected


def passes(serializer: Any, value: Any) -> bool:
    try:
        serializer.check(value)
    except ValueTypeError:
        return False
    return True


def test_what_is_no_instance_is_no_value(cls: type[Any]) -> None:
    serializer = types.record_of(cls)
    sub = type("Sub", (cls,), {})
    for stranger in (None, 5, "a", ("a", ["x"], 5), object(), cls, made(sub)):
        assert not serializer.is_value(stranger)
        assert not passes(serializer, stranger)


@pytest.mark.parametrize(
    "cls", [Plain, Frozen, DictOverSlots, Derived, Checked], ids=lambda cls: cls.__name__
)
def test_an_object_with_an_attribute_that_is_no_field_is_no_value(
    cls: type[Any],
) -> None:
    serializer = types.record_of(cls)
    value = made(cls, tags=[] if cls is Checked else None)
    assert serializer.is_value(value)
    object.__setattr__(value, "stranger", 1)
    assert not serializer.is_value(value) and not passes(serializer, value)
    object.__delattr__(value, "count")  # as many attributes as fields
    assert not serializer.is_value(value) and not passes(serializer, value)


def test_a_missing_field_makes_it_no_value_and_is_named_by_each_face(cls: type[Any]) -> None:
    serializer = types.record_of(cls)
    value = made(cls)
    missing = names_of(cls)[2]
    object.__delattr__(value, missing)
    assert not serializer.is_value(value)
    for use in (serializer.check, serializer.copy, serializer.to_bytes, lambda v: serializer.to_arrow([v])):
        with pytest.raises(ValueTypeError, match=f"Set the field first: .*{missing}"):
            use(value)


def test_a_field_that_only_the_class_has_is_that_of_the_class() -> None:
    """An attribute that was deleted shows the default again, here as anywhere in Python."""
    serializer = types.record_of(Checked, fields={"tags": types.nullable(types.STRING)})
    value = Checked("a", None, 5)
    del value.count
    assert serializer.is_value(value) and passes(serializer, value)
    assert (
        serializer.copy(value) == serializer.from_bytes(serializer.to_bytes(value)) == Checked("a", None, 7)
    )


def test_what_was_computed_once_does_not_matter_and_is_not_copied() -> None:
    serializer = types.record_of(Computed)
    value = made(Computed)
    assert value.doubled == 10
    assert serializer.is_value(value)
    value.tags.append("z")
    copy = serializer.copy(value)
    assert "doubled" not in vars(copy)
    assert copy == value


def test_records_of_no_field_one_field_and_very_many_are_as_others() -> None:
    many = dataclasses.make_dataclass("Many", [(f"f{index}", int) for index in range(400)])
    one = dataclasses.make_dataclass("One", [("only", list[int])])
    none = dataclasses.make_dataclass("Nothing", [])
    for cls, value in ((many, many(*range(400))), (one, one([1])), (none, none())):
        serializer = types.record_of(cls)
        assert serializer.is_value(value)
        assert serializer.copy(value) == value
        assert serializer.from_bytes(serializer.to_bytes(value)) == value
        assert serializer.from_arrow(serializer.to_arrow([value, None, value])) == [value, None, value]
        assert not serializer.is_value(none() if cls is not none else one([1]))


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=lambda module: module.__name__)
def test_a_pickled_serializer_compiles_its_functions_again(cls: type[Any], pickler: Any) -> None:
    serializer = pickler.loads(pickler.dumps(types.record_of(cls)))
    value = made(cls)
    assert serializer == types.record_of(cls)
    assert serializer.is_value(value)
    assert values_of(serializer.copy(value)) == values_of(value)


class _Even(type(types.INT64)):
    """A type of somebody else, derived from one that has its check written out."""

    def __init__(self) -> None:
        super().__init__(64, pa.int64(), "q")

    def is_value(self, value: object) -> bool:
        return super().is_value(value) and value % 2 == 0


@pytest.mark.parametrize(
    "serializer",
    [_Even(), types.tuple_of(_Even()), types.nullable(_Even()), types.row_of({"even": _Even()})],
)
def test_an_overridden_check_is_called_instead_of_the_inherited_one(serializer):
    check = types.value_checker(serializer)

    def wrapped(value):
        if isinstance(serializer, types.RowSerializer):
            return serializer.python_type(value)
        return (value,) if isinstance(serializer, types.TupleSerializer) else value

    assert check(wrapped(2)) and not check(wrapped(3))


def test_checks_within_checks_do_not_confuse_their_parts():
    inner = types.tuple_of(types.INT8, types.nullable(types.STRING))
    serializer = types.tuple_of(
        inner, types.nullable(inner), types.tuple_of(inner, types.BOOLEAN), types.BYTES
    )
    check = types.value_checker(serializer)
    good = ((1, None), None, ((2, "two"), True), b"")
    assert check(good)
    assert check(((1, "a"), (3, None), *good[2:]))
    for bad in (
        ((1, None), None, ((200, "two"), True), b""),
        ((1, None), (1,), ((2, "two"), True), b""),
        ((1, None), (1, 2), ((2, "two"), True), b""),
        ((1, "\ud800"), None, ((2, "two"), True), b""),
        ((1, None), None, ((2, "two"), 1), b""),
        ((True, None), None, ((2, "two"), True), b""),
        good[:3],
        list(good),
    ):
        assert not check(bad) and not serializer.is_value(bad)


@pytest.mark.parametrize("of", [types.row_of, types.accumulators_of])
def test_checks_of_rows_look_at_the_class_the_length_and_each_field(of):
    serializer = of({"id": types.nullable(types.INT8), "name": types.nullable(types.STRING)})
    check = types.value_checker(serializer)
    nested = types.value_checker(types.tuple_of(serializer, serializer))
    make = tuple.__new__
    for good in ((1, "one"), (None, None)):
        value = make(serializer.python_type, good)
        assert check(value) and serializer.is_value(value) and nested((value, value))
    other = types.row_of({"id": types.INT8, "text": types.STRING}).python_type
    bad = [
        make(serializer.python_type, each) for each in ((200, "x"), (1, b"x"), (1,), (1, "x", 2), ("x", 1))
    ]
    for value in [*bad, other(1, "one"), [1, "one"], None]:
        assert not check(value) and not serializer.is_value(value)
        assert not nested((value, value))
