"""Spark's state objects over the accessors of keyedstate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

from keyedstate.spark.drop_in.state_values import StructValues
from keyedstate.state.kinds.list import ListStateAccessor
from keyedstate.state.kinds.map import MapStateAccessor
from keyedstate.state.kinds.value import ValueStateAccessor

_VALUE, _MAP = "Error updating value state", "Error updating map state value"


class KeyedValueState(ValueState):
    """The value of the current key."""

    def __init__(self, accessor: ValueStateAccessor[Any], values: StructValues) -> None:
        self._accessor = accessor
        self._encode, self._decode = values.encode, values.decode

    def exists(self) -> bool:
        return self._accessor.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        value = self._accessor.value()
        return value if value is None or self._decode is None else self._decode(value)

    def update(self, newValue: Any) -> None:
        self._accessor.update(self._encode(newValue, _VALUE))

    def clear(self) -> None:
        self._accessor.clear()


class KeyedListState(ListState):
    """The list of the current key."""

    def __init__(self, accessor: ListStateAccessor[Any], values: StructValues) -> None:
        self._accessor = accessor
        self._encode, self._decode = values.encode, values.decode

    def exists(self) -> bool:
        return bool(self._accessor.get())

    def get(self) -> Iterator[tuple[Any, ...]]:
        return _decoded(self._decode, self._accessor.get())

    def put(self, newState: Any) -> None:
        self._accessor.update(self._encoded(newState))

    def appendValue(self, newState: Any) -> None:
        self._accessor.add(self._encode(newState, _VALUE))

    def appendList(self, newState: Any) -> None:
        self._accessor.add_all(self._encoded(newState))

    def clear(self) -> None:
        self._accessor.clear()

    def _encoded(self, given: Any) -> list[tuple[Any, ...]]:
        elements = [self._encode(element, _VALUE) for element in given]
        if not elements:
            raise PySparkRuntimeError(
                f"{_VALUE}: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the State "
                f"Store Cannot write empty list values to State Store for StateName {self._accessor.name}. "
                "SQLSTATE: 42601"
            )
        return elements


class KeyedMapState(MapState):
    """The map of the current key."""

    def __init__(
        self, accessor: MapStateAccessor[Any, Any], map_keys: StructValues, values: StructValues
    ) -> None:
        self._accessor = accessor
        self._map_keys = map_keys
        self._values = values

    def exists(self) -> bool:
        return not self._accessor.is_empty()

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        value = self._accessor.get(self._map_keys.encode(key, _MAP))
        return None if value is None else self._values.row(value)

    def containsKey(self, key: Any) -> bool:
        return self._accessor.contains(self._map_keys.encode(key, _MAP))

    def updateValue(self, key: Any, value: Any) -> None:
        self._accessor.put(self._map_keys.encode(key, _MAP), self._values.encode(value, _MAP))

    # Each walks over a copy: the map may be changed meanwhile.

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return zip(self.keys(), self.values(), strict=True)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return _decoded(self._map_keys.decode, list(self._accessor.keys()))

    def values(self) -> Iterator[tuple[Any, ...]]:
        return _decoded(
            self._values.decode, [value for value in self._accessor.values() if value is not None]
        )

    def removeKey(self, key: Any) -> None:
        self._accessor.remove(self._map_keys.encode(key, _MAP))

    def clear(self) -> None:
        self._accessor.clear()


def _decoded(
    decode: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None, values: list[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    return iter(values) if decode is None else map(decode, values)
