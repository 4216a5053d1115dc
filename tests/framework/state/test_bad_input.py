"""What a user may do wrong with state: refused by the state's name, with a way out, and nothing changes."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import pytest
from support.inside import state_tables

from keyedstate import types
from keyedstate.checkpoint.format.json_document import decode_document, encode_document
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.errors import (
    FormatVersionError,
    InvalidDescriptorError,
    KeyedStateError,
    NullNamespaceError,
    StateMigrationError,
    StateValueError,
    UnorderedKeyError,
    UnreadableStateError,
    UnwritableEntryError,
    ValueTypeError,
)
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    FoldingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)


class Total(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


VALUE = ValueState("count", types.INT64)
LIST = ListState("count", types.INT64)
MAP = MapState("count", types.STRING, types.INT64)
REDUCING = ReducingState("count", int.__add__, types.INT64)
AGGREGATING = AggregatingState("count", Total(), types.INT64)
FOLDING = FoldingState("count", 0, int.__add__, types.INT64)

#: How each kind gets something to hold.
FILL = {
    VALUE: lambda handle: handle.update(7),
    LIST: lambda handle: handle.add(7),
    MAP: lambda handle: handle.put("a", 7),
    REDUCING: lambda handle: handle.add(7),
    AGGREGATING: lambda handle: handle.add(7),
    FOLDING: lambda handle: handle.add(7),
}
INT64 = "expected INT64 (an int from -9223372036854775808 to 9223372036854775807)"
STRING = "expected STRING (a str without lone surrogates)"
CONVERT = "Convert the value, or declare the state with the type that it has."


def cases(*rows):
    """Return parameters whose ids are the kind of state and the source of the call."""
    return [pytest.param(*row[1:], id=f"{type(row[1]).__name__}-{row[0]}") for row in rows]


@pytest.fixture
def filled(backend):
    """Makes a state of a kind that holds something under key 1."""

    def fill(state):
        backend.set_current_key(1)
        handle = backend.get_state(state)
        FILL[state](handle)
        return handle

    return fill


def content(backend):
    """Return everything that a backend holds, as its snapshot shows it."""
    return {
        (name, key, namespace): repr(table.get(group, key, namespace))
        for name, table in state_tables(backend).items()
        for key, namespace in table.keys_and_namespaces()
        for group in [backend.current.key_group_of(key)]
    }


# -- None ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "call"),
    cases(
        ("update", VALUE, lambda handle: handle.update(None)),
        ("update_many", VALUE, lambda handle: handle.update_many([1], [None])),
        ("add", REDUCING, lambda handle: handle.add(None)),
        ("add_many", REDUCING, lambda handle: handle.add_many([1], [None])),
        ("update_internal", REDUCING, lambda handle: handle.update_internal(None)),
        ("add", AGGREGATING, lambda handle: handle.add(None)),
        ("add_many", AGGREGATING, lambda handle: handle.add_many([1], [None])),
        ("update_internal", AGGREGATING, lambda handle: handle.update_internal(None)),
        ("add", FOLDING, lambda handle: handle.add(None)),
        ("update_internal", LIST, lambda handle: handle.update_internal(None)),
        ("update_nothing", LIST, lambda handle: handle.update([])),
    ),
)
def test_none_clears_where_flink_clears(backend, filled, state, call):
    handle = filled(state)
    assert backend.num_entries() == 1
    call(handle)
    assert backend.num_entries() == 0
    call(handle)  # what is not there can be cleared too


@pytest.mark.parametrize(
    ("state", "call", "message"),
    cases(
        ("add", LIST, lambda h: h.add(None), "None is no element of a list. Leave it out."),
        (
            "add_all",
            LIST,
            lambda h: h.add_all([1, None]),
            "None at [1] is no element of a list. Leave it out.",
        ),
        ("update", LIST, lambda h: h.update([None, 1]), "None at [0] is no element of a list. Leave it out."),
        (
            "add_all_none",
            LIST,
            lambda h: h.add_all(None),
            "a list is needed, got None. Give a list; add() takes one element, and clear() removes all.",
        ),
        (
            "update_none",
            LIST,
            lambda h: h.update(None),
            "a list is needed, got None. Give a list; add() takes one element, and clear() removes all.",
        ),
        (
            "put",
            MAP,
            lambda h: h.put(None, 1),
            f"{STRING} at the map key, got None. Declare the type as nullable(STRING) if None is a value.",
        ),
        (
            "put_all",
            MAP,
            lambda h: h.put_all({"b": 1, None: 1}),
            f"{STRING} at the map key, got None. Declare the type as nullable(STRING) if None is a value.",
        ),
        (
            "put_all_none",
            MAP,
            lambda h: h.put_all(None),
            "a dict of entries is needed, got None. Give a dict; put() takes one entry.",
        ),
        (
            "put_many",
            MAP,
            lambda h: h.put_many([1], [None], [1]),
            f"{STRING} at the map key, got None. Declare the type as nullable(STRING) if None is a value.",
        ),
        (
            "get",
            MAP,
            lambda h: h.get(None),
            f"{STRING} at the map key, got None. Declare the type as nullable(STRING) if None is a value.",
        ),
        (
            "remove_all_none",
            MAP,
            lambda h: h.remove_all(None),
            "a list of map keys is needed, got None. Give a list, also for one.",
        ),
        (
            "update_many_none",
            VALUE,
            lambda h: h.update_many([1], None),
            "a list of values is needed, got None. Give a list, also for one.",
        ),
    ),
)
def test_none_is_refused_where_it_means_nothing(backend, filled, state, call, message):
    handle = filled(state)
    before = content(backend)
    with pytest.raises(StateValueError) as caught:
        call(handle)
    assert str(caught.value) == f"the state 'count' refuses the value: {message}"
    assert content(backend) == before


def test_none_is_a_value_of_a_map(backend, filled):
    handle = filled(MAP)
    handle.put("a", None)
    handle.put_all({"b": None})
    handle.put_many([1], ["c"], [None])
    assert dict(handle.items()) == {"a": None, "b": None, "c": None}
    assert handle.contains("a") and handle.get("a") is None


@pytest.mark.parametrize("state", [VALUE, LIST, MAP, REDUCING, AGGREGATING], ids=lambda s: type(s).__name__)
def test_a_namespace_of_none_is_refused_wherever_one_is_given(backend, filled, state):
    handle = filled(state)
    before = content(backend)
    calls = [
        lambda: backend.get_state(state, None),
        lambda: backend.get_state(state, types.VOID_NAMESPACE, None),
        lambda: handle.set_namespace(None),
        lambda: backend.get_keys("count", None),
        lambda: backend.apply_to_all_keys(state, print, None),
    ]
    if hasattr(handle, "merge_namespaces"):
        calls += [lambda: handle.merge_namespaces(None, []), lambda: handle.merge_namespaces("a", [None])]
    for call in calls:
        with pytest.raises(NullNamespaceError) as caught:
            call()
        assert str(caught.value) == (
            "the namespace of the state 'count' and its serializer may not be None. Use VOID_NAMESPACE with "
            "types.VOID where the state has no namespaces."
        )
    assert content(backend) == before


# -- values, keys and namespaces of another type -------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "call", "message"),
    cases(
        ("update", VALUE, lambda h: h.update("x"), f"{INT64}, got str 'x'. {CONVERT}"),
        ("update_many", VALUE, lambda h: h.update_many([1, 2], [1, "x"]), f"{INT64}, got str 'x'. {CONVERT}"),
        ("add", LIST, lambda h: h.add("x"), f"{INT64}, got str 'x'. {CONVERT}"),
        ("add_all", LIST, lambda h: h.add_all([1, "x"]), f"{INT64} at [1], got str 'x'. {CONVERT}"),
        ("update", LIST, lambda h: h.update(["x", 1]), f"{INT64} at [0], got str 'x'. {CONVERT}"),
        ("add_many", LIST, lambda h: h.add_many([1, 2], [1, "x"]), f"{INT64} at [1], got str 'x'. {CONVERT}"),
        ("update_many", LIST, lambda h: h.update_many([1], [["x"]]), f"{INT64}, got str 'x'. {CONVERT}"),
        (
            "add_all_text",
            LIST,
            lambda h: h.add_all("abc"),
            "a list is needed, got 'abc'. Give a list; add() takes one element, and clear() removes all.",
        ),
        (
            "add_all_number",
            LIST,
            lambda h: h.add_all(5),
            "a list of elements is needed, got 5. Give a list, also for one.",
        ),
        ("put", MAP, lambda h: h.put("b", "x"), f"{INT64}, got str 'x'. {CONVERT}"),
        ("put_key", MAP, lambda h: h.put(5, 1), f"{STRING} at the map key, got int 5. {CONVERT}"),
        ("put_all", MAP, lambda h: h.put_all({"b": 1, "c": "x"}), f"{INT64}, got str 'x'. {CONVERT}"),
        (
            "put_all_pairs",
            MAP,
            lambda h: h.put_all([("b", 1)]),
            "a dict of entries is needed, got [('b', 1)]. Give a dict; put() takes one entry.",
        ),
        ("put_many", MAP, lambda h: h.put_many([1], ["b"], ["x"]), f"{INT64}, got str 'x'. {CONVERT}"),
        ("entry", MAP, lambda h: next(h.entries()).set_value("x"), f"{INT64}, got str 'x'. {CONVERT}"),
        ("get", MAP, lambda h: h.get(5), f"{STRING} at the map key, got int 5. {CONVERT}"),
        (
            "get_unhashable",
            MAP,
            lambda h: h.get(["a"]),
            f"{STRING} at the map key, got list ['a']. {CONVERT}",
        ),
        ("contains", MAP, lambda h: h.contains(5), f"{STRING} at the map key, got int 5. {CONVERT}"),
        (
            "contains_unhashable",
            MAP,
            lambda h: h.contains({}),
            f"{STRING} at the map key, got dict {{}}. {CONVERT}",
        ),
        ("remove", MAP, lambda h: h.remove(5), f"{STRING} at the map key, got int 5. {CONVERT}"),
        ("get_all", MAP, lambda h: h.get_all(["a", 5]), f"{STRING} at the map key, got int 5. {CONVERT}"),
        (
            "remove_all",
            MAP,
            lambda h: h.remove_all(["a", 5]),
            f"{STRING} at the map key, got int 5. {CONVERT}",
        ),
        ("add", REDUCING, lambda h: h.add("x"), f"{INT64}, got str 'x'. {CONVERT}"),
        ("add_many", REDUCING, lambda h: h.add_many([1, 2], [1, "x"]), f"{INT64}, got str 'x'. {CONVERT}"),
        ("update_internal", REDUCING, lambda h: h.update_internal("x"), f"{INT64}, got str 'x'. {CONVERT}"),
        (
            "update_internal",
            AGGREGATING,
            lambda h: h.update_internal("x"),
            f"{INT64}, got str 'x'. {CONVERT}",
        ),
        (
            "update_internal",
            LIST,
            lambda h: h.update_internal([1, "x"]),
            f"{INT64} at [1], got str 'x'. {CONVERT}",
        ),
    ),
)
def test_what_is_not_of_the_declared_type_is_refused_by_state_and_place(
    backend, filled, state, call, message
):
    handle = filled(state)
    before = content(backend)
    with pytest.raises(StateValueError) as caught:
        call(handle)
    assert str(caught.value) == f"the state 'count' refuses the value: {message}"
    assert caught.value.state == "count"
    assert content(backend) == before


@pytest.mark.parametrize("filled_before", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize("key_type", [types.FLOAT64, types.FLOAT32, types.tuple_of(types.FLOAT64)], ids=repr)
def test_nothing_but_a_number_is_a_number_of_a_map_key(backend, key_type, filled_before):
    """None, empty strings and the like are false, as 0.0 is, and are not 0.0."""
    backend.set_current_key(1)
    handle = backend.get_state(MapState("weights", key_type, types.STRING))
    zero = key_type.from_bytes(key_type.to_bytes((0.0,) if key_type.parts() else 0.0))
    if filled_before:
        handle.put(zero, "zero")
    for stranger in (
        None,
        "",
        [],
        {},
        0,
        False,
        "x",
        (None,),
        ("",),
        1e300 if key_type is types.FLOAT32 else 1,
    ):
        for call in (handle.get, handle.contains, handle.remove):
            with pytest.raises(StateValueError, match=r"'weights' refuses the value: .* at the map key"):
                call(stranger)
        for call in (handle.get_all, handle.remove_all):
            with pytest.raises(StateValueError, match="'weights'"):
                call([stranger])
    assert handle.get(zero) == ("zero" if filled_before else None)


@pytest.mark.parametrize(
    ("key_type", "stranger", "message"),
    [
        (types.INT64, "x", f"{INT64} at the key, got str 'x'. {CONVERT}"),
        (
            types.INT64,
            None,
            f"{INT64} at the key, got None. Declare the type as nullable(INT64) if None is a value.",
        ),
        (
            types.FLOAT64,
            None,
            (
                "expected FLOAT64 (a float) at the key, got None. Declare the type as nullable(FLOAT64) if "
                "None is a value."
            ),
        ),
        (types.FLOAT64, "", f"expected FLOAT64 (a float) at the key, got str ''. {CONVERT}"),
        (
            types.FLOAT32,
            1e300,
            f"expected FLOAT32 (a float that fits into 32 bits) at the key, got float 1e+300. {CONVERT}",
        ),
        (
            types.tuple_of(types.STRING, types.FLOAT64),
            ("a", None),
            (
                "expected FLOAT64 (a float) at the key[1], got None. Declare the type as nullable(FLOAT64) "
                "if None is a value."
            ),
        ),
    ],
    ids=repr,
)
def test_a_key_of_another_type_is_refused_as_a_key_alone_and_among_many(
    instances, key_type, stranger, message
):
    backend = instances.open(key=key_type)
    handle = backend.get_state(VALUE)
    for call in (
        lambda: backend.set_current_key(stranger),
        lambda: backend.set_current_key(stranger, 0),
        lambda: handle.get_many([stranger]),
        lambda: handle.update_many([stranger], [1]),
        lambda: handle.clear_many([stranger], [0]),
    ):
        with pytest.raises(ValueTypeError) as caught:
            call()
        assert str(caught.value) == message
    assert backend.num_entries() == 0


def test_a_namespace_of_another_type_is_refused_at_a_lookup_or_a_write(instances):
    backend = instances.open()
    backend.set_current_key(1)
    with pytest.raises(StateValueError) as caught:
        backend.get_state(VALUE, 5, types.STRING)
    assert str(caught.value) == (
        f"the state 'count' refuses the value: {STRING} at the namespace, got int 5. {CONVERT}"
    )
    assert backend.metas() == []
    handle = backend.get_state(VALUE, "w", types.STRING)
    handle.set_namespace(5)  # per record, so it is not checked before a snapshot
    handle.update(1)
    with pytest.raises(
        UnwritableEntryError, match=r"the namespace of the key 1 .* of the state 'count' cannot"
    ):
        instances.snapshot(backend)


# -- declarations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda: ValueState("", types.INT64),
            "the declaration of the state '' is invalid: its name must be a non-empty string.",
        ),
        (
            lambda: ListState(5, types.INT64),
            "the declaration of the state 5 is invalid: its name must be a non-empty string.",
        ),
        (
            lambda: MapState(None, types.INT64, types.INT64),
            "the declaration of the state None is invalid: its name must be a non-empty string.",
        ),
        (
            lambda: ValueState("s", types.INT64, default="x"),
            (
                f"the declaration of the state 's' is invalid: its default does not have its type: {INT64}, "
                f"got str 'x'. {CONVERT}"
            ),
        ),
        (
            lambda: MapState("s", types.INT64, int),
            (
                "the declaration of the state 's' is invalid: its value type is <class 'int'>; give one of "
                "keyedstate.types, for example types.INT64."
            ),
        ),
    ],
)
def test_a_declaration_that_no_state_can_have_is_refused(declare, message):
    with pytest.raises(InvalidDescriptorError) as caught:
        declare()
    assert str(caught.value) == message


def test_a_range_scan_over_keys_without_an_order_is_refused(backend):
    @dataclass(frozen=True)
    class Colour:
        name: str

    backend.set_current_key(1)
    handle = backend.get_state(MapState("by_colour", types.record_of(Colour, name="Colour"), types.INT64))
    for call in (handle.first, handle.last, handle.between):
        with pytest.raises(UnorderedKeyError) as caught:
            call()
        assert str(caught.value) == (
            "the map state 'by_colour' has keys of the type record_of(Colour), which has no order, so "
            "first(), last() and between() are not defined. Iterate over items(), or declare map keys "
            "that have an order, such as numbers, strings, times or tuples of them."
        )


# -- generic values ----------------------------------------------------------------------------------------


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_that_cannot_be_pickled_is_refused_with_its_reason(backend):
    backend.set_current_key(1)
    handle = backend.get_state(ValueState("anything", types.pickled()))
    with pytest.raises(StateValueError, match="cannot be pickled") as caught:
        handle.update({"open": (number for number in range(3))})
    assert str(caught.value).startswith(
        "the state 'anything' refuses the value: expected pickled() (an object that can be pickled), got "
    )
    assert str(caught.value).endswith(
        "Keep what it is made from in the state, and create it again in open()."
    )
    assert backend.num_entries() == 0


def test_a_value_that_is_nested_too_deeply_is_refused(backend):
    backend.set_current_key(1)
    handle = backend.get_state(ListState("anything", types.pickled()))
    with pytest.raises(StateValueError, match="'anything'") as caught:
        handle.add(nested(100_000))
    assert str(caught.value).endswith(
        "It is nested too deeply: flatten it, or keep its parts in a list or map state."
    )
    assert backend.num_entries() == 0


def test_only_the_generic_type_stores_a_value_that_contains_itself(instances):
    backend = instances.open()
    backend.set_current_key(1)
    itself: list[Any] = [1]
    itself.append(itself)
    state = ValueState("anything", types.pickled())
    backend.get_state(state).update(itself)
    restored = instances.open([instances.snapshot(backend)])
    restored.set_current_key(1)
    found = restored.get_state(state).value()
    assert found[0] == 1 and found[1] is found
    with pytest.raises(StateValueError, match=r"'lists' refuses the value: .* at \[0\]"):
        backend.get_state(ValueState("lists", types.list_of(types.list_of(types.INT64)))).update(itself)


# -- what a newer program or a newer keyedstate wrote -------------------------------------------------------


@dataclass
class Click:
    url: str
    count: int


@dataclass
class ChangedClick:
    url: str
    count: str


def test_a_dataclass_whose_field_changed_its_type_is_refused_by_state_and_field(instances):
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(ValueState("clicks", types.record_of(Click, name="Click"))).update(Click("/", 1))
    restored = instances.open([instances.snapshot(backend)])
    with pytest.raises(StateMigrationError) as caught:
        restored.get_state(ValueState("clicks", types.record_of(ChangedClick, name="Click")))
    assert str(caught.value) == (
        "the value type of the state 'clicks' is now record_of(Click), but it was record_of('Click'): the "
        "field 'count': INT64 cannot be read as STRING. Declare it as record_of('Click') again, or register "
        "the new type under another name."
    )


class NewerString(type(types.STRING)):
    """Strings as a newer keyedstate may write them."""

    snapshot_version = 2


class UnknownType(type(types.STRING)):
    """A type that a plugin brings, which is not installed where the state is read."""

    type_name = "geohash"


@pytest.mark.parametrize(
    ("type_", "reason"),
    [
        (
            types.list_of(NewerString()),
            (
                "the snapshot of serializer type 'string' has version 2; this installation reads versions "
                "up to 1. Upgrade keyedstate, or the plugin that provides the type."
            ),
        ),
        (
            UnknownType(),
            (
                "unknown serializer type 'geohash'. Install the keyedstate version or the plugin that "
                "provides it, or register it with register_serializer_type."
            ),
        ),
    ],
    ids=["newer", "unknown"],
)
def test_a_type_of_a_newer_version_is_refused_by_file_and_state(instances, type_, reason):
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(ValueState("fine", types.INT64)).update(1)
    backend.get_state(ValueState("newer", type_)).update(["a"] if type_.parts() else "a")
    handle = instances.snapshot(backend)
    with pytest.raises(UnreadableStateError) as caught:
        instances.open([handle])
    assert caught.value.state == "newer"
    assert str(caught.value) == (
        f"the state 'newer' in the file {caught.value.path} cannot be read, and none of the file was "
        f"used: {reason}"
    )


def test_an_unknown_kind_of_state_is_refused_by_file_and_state(instances):
    writer = instances.writer(instances.open())

    class Meta:
        name = "timers"
        namespace_serializer = key_serializer = value_serializer = types.STRING

        def to_json(self):
            part = types.STRING.snapshot().to_json()
            return {"name": "timers", "kind": "timer", "key": part, "namespace": part, "value": part}

    writer.begin_state(Meta())
    with pytest.raises(
        UnreadableStateError, match=r"the state 'timers' in the file .*'timer' is not a valid"
    ):
        instances.open([instances.finish(writer)])


def test_a_segment_file_of_a_newer_version_is_refused_by_file_and_versions(instances):
    backend = instances.open()
    writer = instances.writer(backend)
    backend.snapshot(1).run(writer)
    segment = writer.finish()
    data = bytearray(instances.storage.read(segment.path))
    footer = bytearray(data[-36:])
    footer[20:24] = struct.pack("<I", 7)
    footer[24:28] = struct.pack("<I", zlib.crc32(footer[:24]))
    data[-36:] = footer
    instances.storage.write_atomic(segment.path, bytes(data))
    with pytest.raises(FormatVersionError) as caught:
        SegmentHandle.open(instances.storage, segment)
    assert str(caught.value) == (
        f"the file {instances.storage.location(segment.path)} has the format version 7, and this keyedstate "
        "reads versions up to 1. Upgrade keyedstate on the driver and on every executor."
    )


def test_a_manifest_of_a_newer_version_is_refused_by_file_and_versions():
    with pytest.raises(FormatVersionError) as caught:
        decode_document("file:/state/chk-1/_metadata", "checkpoint", 1, encode_document("checkpoint", 7, {}))
    assert str(caught.value) == (
        "the file file:/state/chk-1/_metadata has the format version 7, and this keyedstate reads versions "
        "up to 1. Upgrade keyedstate on the driver and on every executor."
    )


def test_every_error_about_state_survives_the_way_to_the_driver(backend, filled):
    import pickle

    handle = filled(MAP)
    for call in (
        lambda: handle.put("a", "x"),
        lambda: backend.set_current_key("x"),
        lambda: ListState("", int),
    ):
        with pytest.raises(KeyedStateError) as caught:
            call()
        again = pickle.loads(pickle.dumps(caught.value))
        assert (type(again), str(again)) == (type(caught.value), str(caught.value))
        assert vars(again) == vars(caught.value)
