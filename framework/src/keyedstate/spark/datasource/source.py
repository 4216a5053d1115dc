"""``spark.read.format("keyedstate").load(path)``: stored state of any backend as a DataFrame.

The driver reads metadata and nothing else; each task reads some key groups of the files.  Needs Spark 4: its
Python data sources.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from keyedstate.checkpoint import CheckpointMetadata, CheckpointStorage, OperatorSnapshot
from keyedstate.checkpoint.protocol.leases import lease
from keyedstate.checkpoint.reading.json_reader import AllStatesReader
from keyedstate.checkpoint.reading.state_reader import SLICE_BYTES, StateReader, StateSlice, reader_of
from keyedstate.durations import milliseconds
from keyedstate.errors import (
    CheckpointGoneError,
    InvalidDurationError,
    InvalidOptionError,
    MissingOptionError,
    UnknownOptionError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.spark.dataframe.state_columns import fitted, spark_type_of
from keyedstate.spark.schema import to_arrow
from keyedstate.spark.task.failures import told_without_trace

_SOURCE = "options of the data source 'keyedstate'"
_OPTIONS = ("path", "state", "uid", "epoch", "key-groups", "allow-generic", "lease", "slice-bytes")
#: How often the newest checkpoint of a running query is looked for.
_ATTEMPTS = 5


class KeyedStateDataSource(DataSource):
    """The format ``keyedstate`` of ``spark.read``.

    The options are ``path``, of a savepoint or of checkpoints; ``uid``, needed where there are several
    operators; ``epoch``, by default the newest; ``state``, by default the only one or, as JSON, all keyed
    ones; ``key-groups``, such as ``0-63``; ``allow-generic``, for pickled values; ``lease``, for how long the
    checkpoint is kept from being cleaned up, by default an hour; ``slice-bytes``, what one task reads.

    What is read is found when the DataFrame is made, and stays: a checkpoint that is newer then is another
    DataFrame.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "keyedstate"

    def schema(self) -> StructType:
        """Find what is to be read and return its columns.

        Raises
        ------
        CheckpointError, ConfigError
        """
        with told_without_trace():
            found: StructType = spark_type_of(pa.struct(list(self._source().reader.schema)))
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the columns; a schema of the user's own is refused."""
        with told_without_trace():
            if schema != self.schema():
                raise InvalidOptionError("schema", schema.simpleString(), "none: state has its own", _SOURCE)
            return _Reader(self._source(), schema)

    def _source(self) -> _Source:
        # The object goes from the process that finds the schema to the one that plans, with this attribute.
        found: _Source | None = getattr(self, "_found", None)
        if found is None:
            found = self._found = _Source.of({name.lower(): value for name, value in self.options.items()})
        return found


@dataclass(frozen=True)
class _Source:
    """What the options say, and what they lead to."""

    stored: OperatorSnapshot
    reader: StateReader
    key_groups: KeyGroupRange | None
    slice_bytes: int
    lease_ms: int

    @classmethod
    def of(cls, options: dict[str, str]) -> _Source:
        for name in options:
            if name not in _OPTIONS:
                raise UnknownOptionError(name, _SOURCE, _OPTIONS)
        if "path" not in options:
            raise MissingOptionError("path", "It says where the state is stored; give it to load().")
        epoch = None if "epoch" not in options else _number("epoch", options["epoch"], 0)
        lease_ms = _duration(options.get("lease", "1 hour"))
        stored = _opened(options["path"], options.get("uid"), epoch, lease_ms)
        reader = _reader(stored, options.get("state"), _flag("allow-generic", options.get("allow-generic")))
        key_groups = _key_groups(options.get("key-groups"), stored)
        slice_bytes = _number("slice-bytes", options.get("slice-bytes", str(SLICE_BYTES)), 1)
        return cls(stored, reader, key_groups, slice_bytes, lease_ms)


class _Piece(InputPartition):
    """What one task reads."""

    def __init__(self, piece: StateSlice) -> None:
        super().__init__(piece)


class _Reader(DataSourceReader):
    def __init__(self, source: _Source, schema: StructType) -> None:
        self._source = source
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with told_without_trace():
            return self._pieces()

    def _pieces(self) -> Sequence[InputPartition]:
        source = self._source
        # Once more: between load() and now may lie hours.
        if _leased(source.stored, source.lease_ms) != source.stored.metadata:
            metadata = source.stored.metadata
            what = "its batch has run again since the DataFrame was made"
            raise CheckpointGoneError(source.stored.location, metadata.uid, metadata.epoch, what)
        return [_Piece(piece) for piece in source.reader.slices(source.key_groups, source.slice_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        piece: Any = partition.value
        # Spark makes one partition without a value where there are none.
        if piece is not None:
            target = to_arrow(self._schema)
            with told_without_trace():
                for batch in self._source.reader.read(piece):
                    columns = [fitted(*pair) for pair in zip(batch.columns, target.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=target)


def _opened(path: str, uid: str | None, epoch: int | None, lease_ms: int) -> OperatorSnapshot:
    # No session reaches the processes in which Spark looks for columns and partitions; the environment does.
    storage = CheckpointStorage.open(path, Configuration(environ=os.environ))
    for _ in range(_ATTEMPTS - 1):
        stored = OperatorSnapshot.open(storage, uid, epoch)
        try:
            return replace(stored, metadata=_leased(stored, lease_ms))
        except CheckpointGoneError:
            # The query published a newer one and deleted this one in between.
            if epoch is not None:
                raise
    stored = OperatorSnapshot.open(storage, uid, epoch)
    return replace(stored, metadata=_leased(stored, lease_ms))


def _leased(stored: OperatorSnapshot, lease_ms: int) -> CheckpointMetadata:
    """Keep a checkpoint from being cleaned up while it is read; a savepoint is nobody's to clean up."""
    if stored.folder is None:
        return stored.metadata
    return lease(stored.folder, stored.metadata.epoch, lease_ms / 1000.0).metadata


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


def _number(name: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise InvalidOptionError(name, text, f"a whole number from {least}", _SOURCE)
    return number


def _flag(name: str, text: str | None) -> bool:
    if text is not None and text.lower() not in ("true", "false"):
        raise InvalidOptionError(name, text, "true or false", _SOURCE)
    return text is not None and text.lower() == "true"


def _duration(text: str) -> int:
    try:
        length = milliseconds(text)
    except InvalidDurationError:
        length = -1
    if length < 0:
        raise InvalidOptionError("lease", text, "a duration such as '2 hours'", _SOURCE)
    return length


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
