"""``spark.read.format("keyedstate").load(path)``: stored state of any backend as a DataFrame.

The driver reads metadata only; each task reads some key groups of the files.  Needs the Python data sources
of Spark 4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from keyedstate.checkpoint.protocol.leases import lease
from keyedstate.checkpoint.reading.json_reader import AllStatesReader
from keyedstate.checkpoint.reading.state_reader import SLICE_BYTES, StateReader, reader_of
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot, open_with_lease
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.config import boolean, duration, integer, string
from keyedstate.errors import CheckpointGoneError, InvalidOptionError, MissingOptionError, UnknownOptionError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.spark.dataframe.state_columns import fitted, spark_type_of
from keyedstate.spark.schema import to_arrow
from keyedstate.spark.task.failures import without_traceback

_SOURCE = "options of the data source 'keyedstate'"
_OPTIONS = (
    string("path", None, "A savepoint or checkpoints."),
    string("uid", None, "The operator; required with several."),
    integer("epoch", None, "By default the newest.", low=0),
    string("state", None, "By default the only one or, as JSON, all keyed ones."),
    string("key-groups", None, "A range such as 0-63; by default all."),
    boolean("allow-generic", False, "Whether pickled values are read, as bytes."),
    duration("lease", 3_600_000, "How long a lease keeps the checkpoint from clean-up."),
    integer("slice-bytes", SLICE_BYTES, "What one task reads at most.", low=1),
)


class KeyedStateDataSource(DataSource):
    """The format ``keyedstate`` of ``spark.read``; it chooses the checkpoint when the DataFrame is made."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "keyedstate"

    def schema(self) -> StructType:
        """Return the columns of the state; raises `CheckpointError` or `ConfigError`."""
        with without_traceback():
            found: StructType = spark_type_of(pa.struct(list(self._source().reader.schema)))
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; a schema of the user is refused."""
        with without_traceback():
            if schema != self.schema():
                raise InvalidOptionError("schema", schema.simpleString(), "none: state has its own", _SOURCE)
            return _Reader(self._source(), schema)

    def _source(self) -> _Source:
        # Spark pickles the object, with this attribute, from the process of the schema to that of the plan.
        found: _Source | None = getattr(self, "_found", None)
        if found is None:
            found = self._found = _Source.of({name.lower(): value for name, value in self.options.items()})
        return found


@dataclass(frozen=True)
class _Source:
    """The options, and the state that they refer to."""

    stored: OperatorSnapshot
    reader: StateReader
    key_groups: KeyGroupRange | None
    slice_bytes: int
    lease_ms: int

    @classmethod
    def of(cls, options: dict[str, str]) -> _Source:
        given = _parsed(options)
        # The processes in which Spark plans have the environment of the session, but not its configuration.
        storage = CheckpointStorage.open(given["path"], Configuration(environ=os.environ))
        stored, _ = open_with_lease(storage, given["uid"], given["epoch"], given["lease"] / 1000.0)
        reader = _reader(stored, given["state"], given["allow-generic"])
        key_groups = _key_groups(given["key-groups"], stored)
        return cls(stored, reader, key_groups, given["slice-bytes"], given["lease"])


class _Reader(DataSourceReader):
    def __init__(self, source: _Source, schema: StructType) -> None:
        self._source = source
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        source = self._source
        folder, metadata = source.stored.folder, source.stored.metadata
        with without_traceback():
            # Again, because hours may have passed since load().
            taken = None if folder is None else lease(folder, metadata.epoch, source.lease_ms / 1000.0)
            if taken is not None and taken.metadata != metadata:
                what = "its batch has run again since the DataFrame was made"
                raise CheckpointGoneError(source.stored.location, metadata.uid, metadata.epoch, what)
            slices = source.reader.slices(source.key_groups, source.slice_bytes)
            return [InputPartition(piece) for piece in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        piece: Any = partition.value
        # Without partitions Spark makes one without a value.
        if piece is not None:
            target = to_arrow(self._schema)
            with without_traceback():
                for batch in self._source.reader.read(piece):
                    columns = [fitted(*pair) for pair in zip(batch.columns, target.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=target)


def _parsed(options: dict[str, str]) -> dict[str, Any]:
    known = [option.name for option in _OPTIONS]
    for name in options:
        if name not in known:
            raise UnknownOptionError(name, _SOURCE, known)
    if "path" not in options:
        raise MissingOptionError("path", "It says where the state is stored; give it to load().")
    values: dict[str, Any] = {option.name: option.default for option in _OPTIONS}
    for option in _OPTIONS:
        if option.name in options:
            try:
                values[option.name] = option.parse(options[option.name])
            except ValueError:
                text = options[option.name]
                raise InvalidOptionError(option.name, text, option.expected, _SOURCE) from None
    return values


def _reader(stored: OperatorSnapshot, state: str | None, allow_generic: bool) -> StateReader:
    if state is not None:
        return reader_of(stored, state, allow_generic=allow_generic)
    keyed = stored.states()
    if not keyed:
        of_operator = stored.operator_states()
        if len(of_operator) == 1:
            return reader_of(stored, *of_operator, allow_generic=allow_generic)
    if len(keyed) == 1:
        return reader_of(stored, *keyed, allow_generic=allow_generic)
    return AllStatesReader(stored, keyed, allow_generic)


def _key_groups(text: str | None, stored: OperatorSnapshot) -> KeyGroupRange | None:
    if text is None:
        return None
    first, dash, last = text.partition("-")
    highest = stored.metadata.max_parallelism - 1
    try:
        start, end = int(first), int(last if dash else first)
    except ValueError:
        start, end = 1, 0
    if not 0 <= start <= end <= highest:
        expected = (
            f"one key group or a range of them such as 0-{highest}, of the {highest + 1} that there are"
        )
        raise InvalidOptionError("key-groups", text, expected, _SOURCE)
    return KeyGroupRange(start, end)
