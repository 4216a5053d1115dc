"""All keyed states of an operator in one table; with values of different types, these are read as JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.reading.state_reader import SLICE_BYTES, KeyedStateReader, StateReader, StateSlice
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.keygroups import KeyGroupRange


class AllStatesReader(StateReader):
    """Reads all keyed states of an operator, which share the types of their keys and of nothing else.

    The columns are those of `KeyedStateReader` without ``written_at``, with ``namespace`` and ``value`` as
    JSON: structs and maps with keys of strings are objects, other maps are lists of pairs, bytes are Base64,
    times, decimals and what JSON has no numbers for are strings.  Each value becomes a Python object on the
    way: to read much, read a single state.

    Parameters
    ----------
    metas : mapping of str to StateMeta
        Of `OperatorSnapshot.states`.

    Raises
    ------
    GenericStateRefusedError
    """

    def __init__(
        self, stored: OperatorSnapshot, metas: dict[str, StateMeta], allow_generic: bool = False
    ) -> None:
        self.name = ""
        self._stored = stored
        self._readers = {name: KeyedStateReader(stored, meta, allow_generic) for name, meta in metas.items()}
        key_names, own_names, key_types = _shared(stored, self._readers)
        self.key_names, self.own_names = key_names, own_names
        fields = [
            *zip(key_names, key_types, strict=True),
            (own_names["namespace"], pa.string()),
            (own_names["value"], pa.string()),
            (own_names["expires_at"], pa.timestamp("ms", "UTC")),
            (own_names["key_group"], pa.int32()),
            (own_names["state"], pa.string()),
        ]
        self.schema = pa.schema(fields)

    def slices(
        self, key_groups: KeyGroupRange | None = None, bytes_each: int = SLICE_BYTES
    ) -> list[StateSlice]:
        found = {
            piece: None
            for reader in self._readers.values()
            for piece in reader.slices(key_groups, bytes_each)
        }
        return list(found)

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


def _shared(
    stored: OperatorSnapshot, readers: dict[str, KeyedStateReader]
) -> tuple[list[str], dict[str, str], list[pa.DataType]]:
    """Return the names of the key's columns and of ours, and the types of the key's."""
    for reader in readers.values():
        return reader.key_names, reader.own_names, list(reader.schema.types[: len(reader.key_names)])
    names = ("namespace", "value", "written_at", "expires_at", "key_group", "state")
    return [], {name: name for name in names}, []


def _as_json(column: pa.Array) -> pa.Array:
    return pa.array(
        [
            None if value is None else json.dumps(_plain(value, column.type), ensure_ascii=False)
            for value in column.to_pylist()
        ],
        pa.string(),
    )


def _plain(value: Any, arrow_type: pa.DataType) -> Any:
    """Return a value of `to_pylist` as JSON has it."""
    if value is None:
        return None
    if pa.types.is_struct(arrow_type):
        return {field.name: _plain(value[field.name], field.type) for field in arrow_type}
    if pa.types.is_map(arrow_type):
        items = [
            (_plain(key, arrow_type.key_type), _plain(item, arrow_type.item_type)) for key, item in value
        ]
        return dict(items) if pa.types.is_string(arrow_type.key_type) else [list(pair) for pair in items]
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return [_plain(element, arrow_type.value_type) for element in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
