"""Golden files: state that earlier versions wrote, and what every backend must read in them.

``keyedstate/testing/golden/format-<n>/<uid>/`` is a folder of one operator as a job leaves it, with one
published checkpoint.  ``scripts/make_golden_files.py`` made each of them once; they are never written again,
since what they prove is that files of that time are read today.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from keyedstate import types
from keyedstate.backend import Capability, StateKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keyedstate.state.clock import Clock, ManualClock, system_clock
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.ttl import Ttl
from keyedstate.testing.contract.base import ContractBase, requires
from keyedstate.testing.contract.keyed import KeyedInstances

FOLDER = Path(__file__).parents[2] / "golden"
KEY = types.nullable(types.STRING)
PARALLELISM, MAX_PARALLELISM = 2, 16
KEYS: tuple[str | None, ...] = (None, "", "ü\U0001f600", *(f"key-{number}" for number in range(20)))
NAMESPACES = ("w1", "w2")
UTC = dt.timezone.utc


class Mean(AggregateFunction[int, tuple[int, int], float]):
    """Count and sum."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[1] / accumulator[0]


STATES: dict[StateKind, StateDescriptor[Any]] = {
    StateKind.VALUE: ValueState("state", types.STRING),
    StateKind.LIST: ListState("state", types.INT64),
    StateKind.MAP: MapState("state", types.STRING, types.nullable(types.FLOAT64)),
    StateKind.REDUCING: ReducingState("state", max, types.INT64),
    StateKind.AGGREGATING: AggregatingState("state", Mean(), types.tuple_of(types.INT64, types.INT64)),
}


#: When the files of states with a time to live were written, in milliseconds, and how long that is.
WRITTEN_MS, TTL = 1_700_000_000_000, Ttl.of("1 day")
#: The same states with it.
EXPIRING: dict[StateKind, StateDescriptor[Any]] = {
    StateKind.VALUE: ValueState("state", types.STRING, ttl=TTL),
    StateKind.LIST: ListState("state", types.INT64, ttl=TTL),
    StateKind.MAP: MapState("state", types.STRING, types.nullable(types.FLOAT64), ttl=TTL),
    StateKind.REDUCING: ReducingState("state", max, types.INT64, ttl=TTL),
    StateKind.AGGREGATING: AggregatingState(
        "state", Mean(), types.tuple_of(types.INT64, types.INT64), ttl=TTL
    ),
}


def write(kind: StateKind, handle: Any, number: int) -> None:
    """Write the entry of the golden file for the key and namespace of that number."""
    match kind:
        case StateKind.VALUE:
            handle.update(f"value-{number}")
        case StateKind.LIST:
            handle.add_all(range(number, number + 3))
        case StateKind.MAP:
            handle.put_all({"": None, f"entry-{number}": number / 4})
        case _:
            for value in (number, number + 3):
                handle.add(value)


def expected(kind: StateKind, number: int) -> Any:
    """Return what is read there."""
    match kind:
        case StateKind.VALUE:
            return f"value-{number}"
        case StateKind.LIST:
            return [number, number + 1, number + 2]
        case StateKind.MAP:
            return {"": None, f"entry-{number}": number / 4}
        case StateKind.REDUCING:
            return number + 3
        case StateKind.AGGREGATING:
            return number + 1.5


def read(kind: StateKind, handle: Any) -> Any:
    """Return what a handle shows."""
    match kind:
        case StateKind.VALUE:
            return handle.value()
        case StateKind.MAP:
            return dict(handle.items())
        case _:
            return handle.get()


class Color(enum.Enum):
    """An enum of a user."""

    RED = 1
    BLUE = 2


@dataclass
class Click:
    """A dataclass of a user."""

    url: str
    count: int = 0
    color: Color = Color.RED
    price: Annotated[Decimal, types.decimal(10, 2)] = Decimal(0)
    tags: list[str] = field(default_factory=list)
    referrer: str | None = None


@dataclass
class Event:
    """The base of a hierarchy."""

    user: str


@dataclass
class Login(Event):
    """A subclass that is written with a tag."""

    device: str = ""


@dataclass
class Logout(Event):
    """A subclass that is written with its name."""

    seconds: float = 0.0


_CLICK = types.record_of(Click, fields={"color": types.enum_of(Color, name="Color")}, name="Click")
_EVENT = types.record_of(
    Event,
    tagged=[types.record_of(Login, name="Login")],
    subclasses=[types.record_of(Logout, name="Logout")],
    name="Event",
)
_ROW = types.row_of({"id": types.INT8, "name": types.nullable(types.STRING)})
#: A type, and a value of it, by the name of a state.
TYPES: dict[str, tuple[types.TypeSerializer[Any], Any]] = {
    "boolean": (types.BOOLEAN, True),
    "int8": (types.INT8, -128),
    "int16": (types.INT16, 32_767),
    "int32": (types.INT32, -(2**31)),
    "int64": (types.INT64, 2**63 - 1),
    "float32": (types.FLOAT32, 1.5),
    "float64": (types.FLOAT64, 0.1),
    "nan": (types.FLOAT64, math.nan),
    "decimal": (types.decimal(38, 3), Decimal("-12345678901234567890123456789012345.678")),
    "string": (types.STRING, "a\0\u6d4b\U0001f600"),
    "bytes": (types.BYTES, b"\x00\xff"),
    "date": (types.DATE, dt.date(1, 1, 1)),
    "time": (types.TIME, dt.time(23, 59, 58, 1)),
    "timestamp": (types.TIMESTAMP, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
    "timestamp_ntz": (types.TIMESTAMP_NTZ, dt.datetime(2400, 2, 29, 12, 0, 0, 1)),
    "duration": (types.DURATION, dt.timedelta(days=-1, microseconds=1)),
    "uuid": (types.UUID, uuid.UUID(int=2**127 + 1)),
    "enum": (types.enum_of(Color, name="Color"), Color.BLUE),
    "list": (types.list_of(types.nullable(types.INT16)), [1, None, -1]),
    "set": (types.set_of(types.STRING), {"a", "b"}),
    "map": (types.map_of(types.STRING, types.list_of(types.DATE)), {"": [], "x": [dt.date(2000, 1, 1)]}),
    "tuple": (types.tuple_of(types.STRING, types.nullable(types.FLOAT64)), ("a", None)),
    "row": (_ROW, _ROW.python_type(7, None)),
    "record": (
        _CLICK,
        Click("a", 3, Color.BLUE, Decimal("-1.50"), ["x", ""], None),
    ),
    "tagged": (_EVENT, Login("ada", "phone")),
    "named": (_EVENT, Logout("ada", 2.5)),
    "array": (types.array_of(types.FLOAT64), np.array([0.5, -1.0])),
    "numpy_scalar": (types.numpy_scalar("uint16"), np.uint16(65_535)),
    "pickled": (types.pickled(), {"complex": 1 + 2j}),
}


def pandas_types() -> dict[str, tuple[types.TypeSerializer[Any], Any]]:
    """Return the same of pandas, which not everybody has.

    Raises
    ------
    ModuleNotFoundError
    """
    import pandas as pd  # type: ignore[import-untyped]

    moment = pd.Timestamp(1_000_000_000_000_000_001, tz="Europe/Berlin")
    return {"pandas_timestamp": (types.pandas_timestamp("Europe/Berlin"), moment)}


def same(found: Any, wanted: Any) -> bool:
    """Return whether two values are of one type and equal; arrays and NaN, too."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, np.ndarray):
        return bool(found.dtype == wanted.dtype and np.array_equal(found, wanted))
    return bool(found == wanted) or (isinstance(wanted, float) and math.isnan(found) and math.isnan(wanted))


def numbered() -> Iterator[tuple[int, str | None, str]]:
    """Yield every address of the files of kinds, with a number of its own."""
    for index, key in enumerate(KEYS):
        for number, namespace in enumerate(NAMESPACES):
            yield 2 * index + number, key, namespace


def golden_files(uid: str) -> list[OperatorFolder]:
    """Return the operators' folders of one uid, those of the oldest format first."""
    formats = sorted(FOLDER.glob(f"format-*/{uid}"), key=lambda path: int(path.parent.name.split("-")[1]))
    return [OperatorFolder(CheckpointStorage.open(path.parent), uid) for path in formats]


class GoldenContract(ContractBase):
    """Tests that state of earlier format versions is restored."""

    def _restored(
        self,
        keyed: KeyedInstances,
        folder: OperatorFolder,
        parallelism: int = PARALLELISM,
        clock: Clock = system_clock,
    ) -> list[KeyedStateBackend]:
        metadata = folder.read_metadata(0)
        assert metadata is not None, folder.location
        handles = handles_for(metadata, folder.storage, KeyGroupRange(0, MAX_PARALLELISM - 1))
        try:
            return keyed.open_all(parallelism, handles, key=KEY, max_parallelism=MAX_PARALLELISM, clock=clock)
        finally:
            for handle in handles:
                handle.close()

    @pytest.mark.parametrize("kind", StateKind, ids=lambda kind: kind.value)
    def test_state_of_each_kind_is_restored_from_golden_files(
        self, keyed: KeyedInstances, kind: StateKind
    ) -> None:
        folders = golden_files(kind.value)
        assert folders, "the package was built without its golden files"
        for folder in folders:
            instances = self._restored(keyed, folder)
            wanted = {(key, namespace): number for number, key, namespace in numbered()}
            for instance in instances:
                for key, namespace in list(instance.get_keys_and_namespaces("state")):
                    instance.set_current_key(key)
                    handle = instance.get_state(STATES[kind], namespace, types.STRING)
                    assert read(kind, handle) == expected(kind, wanted.pop((key, namespace))), key
            assert not wanted

    @pytest.mark.parametrize("kind", StateKind, ids=lambda kind: kind.value)
    def test_state_with_a_time_to_live_is_restored_with_its_time_from_golden_files(
        self, keyed: KeyedInstances, kind: StateKind
    ) -> None:
        """A millisecond before its end all entries exist, and at its end none."""
        folders = golden_files(f"ttl-{kind.value}")
        assert folders, "the package was built without its golden files"
        for folder in folders:
            clock = ManualClock(WRITTEN_MS + TTL.ms - 1)
            instances = self._restored(keyed, folder, clock=clock)
            wanted = {(key, namespace): number for number, key, namespace in numbered()}
            for instance in instances:
                for key, namespace in list(instance.get_keys_and_namespaces("state")):
                    instance.set_current_key(key)
                    handle = instance.get_state(EXPIRING[kind], namespace, types.STRING)
                    assert read(kind, handle) == expected(kind, wanted.pop((key, namespace))), key
            assert not wanted
            clock.advance(1)
            for instance in self._restored(keyed, folder, clock=clock):
                for key, namespace in list(instance.get_keys_and_namespaces("state")):
                    instance.set_current_key(key)
                    assert not read(kind, instance.get_state(EXPIRING[kind], namespace, types.STRING))

    @requires(Capability.RESCALING)
    def test_golden_files_are_restored_by_other_numbers_of_instances(self, keyed: KeyedInstances) -> None:
        for folder in golden_files(StateKind.VALUE.value):
            for parallelism in (1, 5):
                instances = self._restored(keyed, folder, parallelism)
                found = [pair for one in instances for pair in one.get_keys_and_namespaces("state")]
                assert len(found) == len(set(found)) == len(KEYS) * len(NAMESPACES)

    @requires(StateKind.VALUE)
    def test_values_of_every_type_are_restored_from_golden_files(self, keyed: KeyedInstances) -> None:
        self._check_types(keyed, "types", TYPES)

    @requires(StateKind.VALUE)
    def test_pandas_timestamps_are_restored_from_golden_files(self, keyed: KeyedInstances) -> None:
        pytest.importorskip("pandas")
        self._check_types(keyed, "pandas", pandas_types())

    def _check_types(
        self, keyed: KeyedInstances, uid: str, known: dict[str, tuple[types.TypeSerializer[Any], Any]]
    ) -> None:
        folders = golden_files(uid)
        assert folders, "the package was built without its golden files"
        for folder in folders:
            instances = self._restored(keyed, folder)
            names = {meta.name for one in instances for meta in one.metas()}
            assert names and names <= known.keys(), "every type that was ever written is read here"
            for name in names:
                type_, value = known[name]
                for key in KEYS[:2]:
                    instance = next(one for one in instances if key in set(one.get_keys(name)))
                    instance.set_current_key(key)
                    found = instance.get_state(ValueState(name, type_)).value()
                    assert same(found, value), f"{name}: {found!r}, and {value!r} was written"
