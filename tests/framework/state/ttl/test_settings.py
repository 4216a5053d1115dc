"""The settings of a time to live, and the serializer of what it stores."""

from __future__ import annotations

import datetime as dt
import inspect
import threading

import pyarrow as pa
import pytest

from keyedstate import types
from keyedstate.backend import StateKind
from keyedstate.errors import (
    InvalidDescriptorError,
    InvalidDurationError,
    InvalidTtlError,
    UnsupportedTypeError,
    ValueTypeError,
)
from keyedstate.state import (
    IncrementalCleanup,
    ListState,
    MapState,
    Ttl,
    TtlClock,
    UpdateType,
    ValueState,
    Visibility,
)
from keyedstate.types import TimedDict, TimedList, TtlListSerializer, TtlMapSerializer, TtlSerializer


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("100 ms", 100),
        ("1 millisecond", 1),
        ("90s", 90_000),
        ("2 Minutes", 120_000),
        ("90 min", 5_400_000),
        ("1h", 3_600_000),
        ("7 days", 604_800_000),
        ("2 weeks", 1_209_600_000),
        (dt.timedelta(seconds=1.5), 1500),
        (42, 42),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_a_duration_is_given_as_text_timedelta_or_milliseconds(duration, ms):
    """TTL-18."""
    assert Ttl.of(duration) == Ttl(ms)


@pytest.mark.parametrize(
    "duration", [0, -1, "0 days", "-7 days", dt.timedelta(0), dt.timedelta(microseconds=999), 2**63]
)
def test_a_time_to_live_that_is_not_a_positive_number_is_refused(duration):
    """TTL-18."""
    with pytest.raises(InvalidTtlError, match=r"the time to live is invalid: .*milliseconds"):
        Ttl.of(duration)


@pytest.mark.parametrize("duration", ["", "days", "7", "7 fortnights", "1.5 h", None, b"7 days", True, 1.5])
def test_what_is_no_duration_is_refused_with_an_example_of_one(duration):
    with pytest.raises(InvalidDurationError, match="'7 days'"):
        Ttl.of(duration)


@pytest.mark.parametrize("name", ["update", "visibility", "clock"])
def test_a_wrong_setting_is_refused_with_the_right_ones(name):
    with pytest.raises(InvalidTtlError, match=rf"its {name} is 'x'; give \w+\.[A-Z_]+ or \w+\.[A-Z_]+"):
        Ttl.of("1 h", **{name: "x"})


@pytest.mark.parametrize("entries", [0, -5])
def test_a_clean_up_that_looks_at_nothing_is_refused(entries):
    """TTL-18."""
    with pytest.raises(InvalidTtlError, match="one at least"):
        IncrementalCleanup(entries)


def test_the_defaults_are_those_of_flink():
    """TTL-18."""
    ttl = Ttl.of("1 h")
    assert ttl.update is UpdateType.ON_CREATE_AND_WRITE
    assert ttl.visibility is Visibility.NEVER_RETURN_EXPIRED
    assert ttl.clock is TtlClock.PROCESSING_TIME
    assert ttl.background_cleanup and not ttl.full_snapshot and not ttl.expiry_index
    assert IncrementalCleanup() == IncrementalCleanup(5, every_record=False)


def test_of_takes_every_setting():
    ours, theirs = (list(inspect.signature(function).parameters.values()) for function in (Ttl.of, Ttl))
    assert [(p.name, p.default) for p in ours[1:]] == [(p.name, p.default) for p in theirs[1:]]


def test_the_text_of_a_time_to_live_shows_changed_settings():
    assert str(Ttl.of("1 s")) == "1000 ms"
    changed = Ttl(5, UpdateType.ON_READ_AND_WRITE, incremental=IncrementalCleanup(7), expiry_index=True)
    assert str(changed) == (
        "5 ms (update on read and write, incremental IncrementalCleanup(entries=7, every_record=False), "
        "expiry_index True)"
    )


@pytest.mark.parametrize("ttl", ["7 days", 100, dt.timedelta(days=7)])
def test_a_state_wants_a_ttl_and_nothing_like_it(ttl):
    with pytest.raises(InvalidDescriptorError, match=r"'v'.*Ttl\.of"):
        ValueState("v", types.INT64, ttl=ttl)


# -- the serializer ---------------------------------------------------------------------------------------

TIMED = TtlSerializer(types.nullable(types.STRING), "processing time")


def test_bytes_are_the_timestamp_and_then_the_value():
    """SER-09: golden bytes."""
    timed = TtlSerializer(types.STRING, "event time")
    assert timed.to_bytes((1, "a")).hex() == "0000000000000001" + "0261"
    assert timed.to_bytes((-2, "")).hex() == "fffffffffffffffe" + "01"
    for value in ((2**63 - 1, "x"), (-(2**63), "x" * 3000)):
        assert timed.from_bytes(timed.to_bytes(value)) == value


def test_columns_show_the_timestamp_with_the_value():
    values = [(1_700_000_000_000, "a"), (2**63 - 1, None), (-(2**63), "c")]
    column = TIMED.to_arrow(values)
    assert column.type == pa.struct([("timestamp", pa.timestamp("ms", "UTC")), ("value", pa.string())])
    assert column.field("timestamp")[0].as_py() == dt.datetime(
        2023, 11, 14, 22, 13, 20, tzinfo=dt.timezone.utc
    )
    assert TIMED.from_arrow(column) == values
    assert TIMED.from_arrow(column.slice(1)) == values[1:]
    assert TIMED.from_arrow(pa.chunked_array([column, column])) == values * 2
    assert TIMED.from_arrow(TIMED.to_arrow([])) == []


@pytest.mark.parametrize(
    "wrong", [None, 1, (1,), (1, "a", 2), ("a", 1), (2**63, "a"), (1, 2), [1, "a"], (True, "a")]
)
def test_anything_but_a_timestamp_and_a_value_is_refused(wrong):
    assert not TIMED.is_value(wrong)
    with pytest.raises(ValueTypeError):
        TIMED.check(wrong)


def test_a_copy_shares_nothing_that_can_change():
    timed = TtlSerializer(types.list_of(types.INT64), "processing time")
    value = (1, [1])
    copied = timed.copy(value)
    copied[1].append(2)
    assert value == (1, [1])
    assert TIMED.copy(pair := (1, "a")) is pair


def test_a_time_to_live_of_a_time_to_live_is_refused():
    """SER-09."""
    for nested in (TIMED, types.list_of(TIMED), types.tuple_of(types.INT64, TIMED)):
        with pytest.raises(UnsupportedTypeError, match="time to live"):
            TtlSerializer(nested, "processing time")


def test_equality_covers_clock_and_value():
    """SER-09."""
    same = TtlSerializer(types.nullable(types.STRING), "processing time")
    assert same == TIMED and hash(same) == hash(TIMED)
    assert TIMED.snapshot().restore_serializer() == TIMED
    assert TtlSerializer(types.STRING, "processing time") != TIMED
    assert TtlSerializer(types.nullable(types.STRING), "event time") != TIMED


class _Buffered(types.TypeSerializer):
    """Keeps a buffer between calls, as a serializer may: two threads must not share one."""

    type_name = "test-buffered"
    immutable = True
    arrow_type = pa.string()

    def __init__(self):
        self.buffer = []

    def duplicate(self):
        return _Buffered()

    def serialize(self, value, out):
        self.buffer.append(value)
        types.STRING.serialize(value, out)

    def deserialize(self, source):
        return types.STRING.deserialize(source)

    def to_arrow(self, values):
        return types.STRING.to_arrow(values)

    def from_arrow(self, array):
        return types.STRING.from_arrow(array)

    def check(self, value):
        types.STRING.check(value)


@pytest.mark.parametrize(
    "descriptor",
    [
        ValueState("s", _Buffered(), ttl=Ttl(100)),
        ListState("s", _Buffered(), ttl=Ttl(100)),
        MapState("s", types.STRING, _Buffered(), ttl=Ttl(100)),
    ],
    ids=lambda descriptor: descriptor.kind.value,
)
def test_a_duplicated_serializer_keeps_timestamp_and_value_and_shares_no_buffer(descriptor):
    """SER-07, SER-09: Flink 1.6.2 lost the timestamp's part when it duplicated the value's."""
    original = descriptor.serializer
    duplicate = original.duplicate()
    assert duplicate is not original and type(duplicate) is type(original)
    assert duplicate.snapshot() == original.snapshot()
    value = {
        StateKind.VALUE: (1, "a"),
        StateKind.LIST: TimedList.of(["a"], [1]),
        StateKind.MAP: TimedDict.of({"k": "a"}, {"k": 1}),
    }[descriptor.kind]
    copied = duplicate.from_bytes(original.to_bytes(value))
    assert copied == value
    if descriptor.kind is not StateKind.VALUE:
        assert copied.stamps == value.stamps
    assert duplicate.to_bytes(value) == original.to_bytes(value)
    results = []

    def work(serializer):
        results.append([serializer.from_bytes(serializer.to_bytes(value)) for _ in range(200)])

    threads = [threading.Thread(target=work, args=(serializer,)) for serializer in (original, duplicate)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[value] * 200] * 2


def test_a_serializer_without_parts_of_its_own_need_not_be_duplicated():
    assert TIMED.duplicate() is TIMED


# -- lists and maps ---------------------------------------------------------------------------------------

LISTS = TtlListSerializer(types.STRING, "processing time")
MAPS = TtlMapSerializer(types.FLOAT64, types.list_of(types.INT64), "event time")


def parts(value):
    """Return a value with its timestamps, which its own equality leaves out."""
    return None if value is None else (value, value.stamps)


TIMED_LISTS = [
    TimedList.of(["a", "b"], [1, 2**63 - 1]),
    None,
    TimedList.of([], []),
    TimedList.of(["c"], [-5]),
]
TIMED_MAPS = [
    TimedDict.of({1.0: [1], 2.0: None}, {1.0: 7, 2.0: -8}),
    TimedDict.of({}, {}),
    None,
    TimedDict.of({0.5: []}, {0.5: 9}),
]


@pytest.mark.parametrize(("serializer", "values"), [(LISTS, TIMED_LISTS), (MAPS, TIMED_MAPS)])
def test_columns_of_lists_and_maps_keep_each_timestamp(serializer, values):
    column = serializer.to_arrow(values)
    assert column.type == serializer.arrow_type
    for found, expected in (
        (serializer.from_arrow(column), values),
        (serializer.from_arrow(column.slice(1, 2)), values[1:3]),
        (serializer.from_arrow(pa.chunked_array([column, column])), values * 2),
        (serializer.from_arrow(serializer.to_arrow([])), []),
    ):
        assert list(map(parts, found)) == list(map(parts, expected))
    pairs = {"timestamp": pa.timestamp("ms", "UTC")}
    struct = column.type.value_type if serializer is LISTS else column.type.item_type
    assert struct.field("timestamp").type == pairs["timestamp"] and struct.num_fields == 2


@pytest.mark.parametrize(("serializer", "values"), [(LISTS, TIMED_LISTS), (MAPS, TIMED_MAPS)])
def test_bytes_of_lists_and_maps_have_each_timestamp_before_its_value(serializer, values):
    """SER-09."""
    for value in filter(None, values):
        assert parts(serializer.from_bytes(serializer.to_bytes(value))) == parts(value)
    assert LISTS.to_bytes(TimedList.of(["a"], [1])).hex() == "00000001" + "0000000000000001" + "0261"
    key = "3ff0000000000000"
    assert (
        MAPS.to_bytes(TimedDict.of({1.0: [1]}, {1.0: 2})).hex()
        == "00000001" + key + "00" + "0000000000000002" + "00" + "00000001" + "0000000000000001"
    )


def test_copies_of_lists_and_maps_share_neither_values_nor_timestamps():
    elements, entries = TimedList.of(["a"], [1]), TimedDict.of({1.0: [1]}, {1.0: 1})
    copied_list, copied_map = LISTS.copy(elements), MAPS.copy(entries)
    copied_list.append("b")
    copied_list.stamps.append(2)
    copied_map[1.0].append(2)
    copied_map.stamps[1.0] = 5
    assert parts(elements) == (["a"], TimedList.of([], [1]).stamps) and parts(entries) == (
        {1.0: [1]},
        {1.0: 1},
    )
    assert type(elements.copy()) is list and type(entries.copy()) is dict


def test_a_map_forgets_a_timestamp_with_its_entry():
    entries = TimedDict.of({1.0: 1, 2.0: 2, 3.0: 3}, {1.0: 1, 2.0: 2, 3.0: 3})
    assert entries.pop(1.0) == 1 and entries.pop(9.0, None) is None
    del entries[2.0]
    with pytest.raises(KeyError):
        entries.pop(9.0)
    assert parts(entries) == ({3.0: 3}, {3.0: 3})


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        ["a"],
        TimedList.of(["a"], []),
        TimedList.of([1], [1]),
        {1.0: None},
        TimedDict.of({1.0: None}, {}),
    ],
)
def test_what_lacks_a_timestamp_or_has_another_type_is_refused(wrong):
    for serializer in (LISTS, MAPS):
        assert not serializer.is_value(wrong)
        with pytest.raises(ValueTypeError):
            serializer.check(wrong)


def test_lists_and_maps_are_equal_by_clock_and_types():
    """SER-09."""
    for serializer in (LISTS, MAPS):
        assert serializer.snapshot().restore_serializer() == serializer
    assert TtlListSerializer(types.STRING, "event time") != LISTS
    with pytest.raises(UnsupportedTypeError, match="time to live"):
        TtlListSerializer(TIMED, "event time")
    with pytest.raises(UnsupportedTypeError, match="time to live"):
        TtlMapSerializer(types.STRING, LISTS, "event time")
