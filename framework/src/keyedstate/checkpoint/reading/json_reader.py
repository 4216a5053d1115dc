"""All keyed states of an operator in one table, with namespaces and values as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.reading.json_values import json_converter, json_value
from keyedstate.checkpoint.reading.state_reader import SLICE_BYTES, KeyedStateReader, StateReader, StateSlice
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.keygroups import KeyGroupRange

_TYPES = {
    "namespace": pa.string(),
    "value": pa.string(),
    "expires_at": pa.timestamp("ms", "UTC"),
    "key_group": pa.int32(),
    "state": pa.string(),
}


class AllStatesReader(StateReader):
    """Reads all keyed states of an operator, which share the types of their keys and nothing else.

    The columns are those of `KeyedStateReader` without ``written_at``, with ``namespace`` and ``value`` as
    JSON.  Structs and maps with text keys are objects, other maps lists of pairs, bytes Base64; times,
    decimals and numbers that JSON lacks are strings.  Each value becomes a Python object: to read much, read
    a single state.  Raises `GenericStateRefusedError`.
    """

    def __init__(
        self, snapshot: OperatorSnapshot, metas: dict[str, StateMeta], allow_generic: bool = False
    ) -> None:
        self.name = ""
        self._snapshot = snapshot
        self._readers = {
            name: KeyedStateReader(snapshot, meta, allow_generic) for name, meta in metas.items()
        }
        self.key_names: list[str] = []
        self.own_names = dict(zip(_TYPES, _TYPES, strict=True))
        key: list[pa.Field] = []
        for reader in self._readers.values():
            # The same in all of them.
            self.key_names, self.own_names = reader.key_names, reader.own_names
            key = list(reader.schema)[: len(reader.key_names)]
        own = [pa.field(self.own_names[name], type_) for name, type_ in _TYPES.items()]
        self.schema = pa.schema([*key, *own])

    def slices(
        self, key_groups: KeyGroupRange | None = None, bytes_each: int = SLICE_BYTES
    ) -> list[StateSlice]:
        readers = self._readers.values()
        return list(dict.fromkeys(piece for one in readers for piece in one.slices(key_groups, bytes_each)))

    def read(self, piece: StateSlice) -> Iterator[pa.RecordBatch]:
        as_json = (self.own_names["namespace"], self.own_names["value"])
        for reader in self._readers.values():
            for batch in reader.read(piece):
                columns = [
                    _as_json(column) if name in as_json else column
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                    if name != self.own_names["written_at"]
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _as_json(column: pa.Array) -> pa.Array:
    convert = json_converter(column.type, _leaf)
    texts = [
        None if value is None else json.dumps(convert(value), ensure_ascii=False)
        for value in column.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _leaf(value: Any) -> Any:
    return str(value) if isinstance(value, timedelta) else json_value(value)
