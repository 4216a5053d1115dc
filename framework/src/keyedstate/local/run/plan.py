"""The plan of an operator: its inputs, its options, and what its partitions run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.columns.connected import ConnectedColumns
from keyedstate.columns.declared import output_schema
from keyedstate.columns.keyed import KeyedColumns
from keyedstate.columns.spark_types import schema_as_spark_reads, spark_name
from keyedstate.epoch.configuration import choose_backend, choose_max_parallelism, frozen
from keyedstate.epoch.event_time import EventTimes
from keyedstate.epoch.function_transport import pack_function
from keyedstate.epoch.operator_checks import check_sides, check_states
from keyedstate.epoch.partition_plan import PartitionPlan, StateLocation
from keyedstate.errors import EventTimeError
from keyedstate.local.sources.source import Source
from keyedstate.options import CHECKPOINT_COMPRESSION, CHECKPOINT_DIR, PARALLELISM, Configuration
from keyedstate.runtime import KeyedCoProcessFunction, KeyedFunction
from keyedstate.runtime.functions.checks import BROADCAST, ROWS, check_function, check_row_classes
from keyedstate.runtime.functions.connected_inputs import input_of_side_output
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.side_outputs import Outputs, check_name


class Upstream(Protocol):
    """Rows that another operator yields."""

    @property
    def schema(self) -> pa.Schema:
        """Their columns."""

    @property
    def plan(self) -> OperatorPlan:
        """The operator."""


@dataclass(frozen=True)
class Input:
    """One input of an operator.

    Its columns have the types that Spark would give them, so that keys hash alike there.
    """

    rows: Source | Upstream
    columns: KeyedColumns


@dataclass(frozen=True)
class OperatorInputs:
    """What an operator reads, one input or several that are connected, and its settings."""

    inputs: tuple[Input, ...]
    uid: str | None
    config: Mapping[str, object] | None
    broadcast: Source | None = None

    def columns_of(self, sort: str) -> pa.Schema:
        """Return the columns of a kind of rows, as `check_row_classes` asks for them."""
        if sort == BROADCAST:
            assert self.broadcast is not None, "checked"
            return self.broadcast.schema
        return self.inputs[0 if sort == ROWS else int(sort) - 1].columns.schema

    def broadcast_rows(self) -> Iterator[pa.RecordBatch]:
        """Read all rows of the broadcast side."""
        for channel in () if self.broadcast is None else self.broadcast.channels():
            yield from iter(channel.read, None)

    @property
    def event_times(self) -> EventTimes:
        """The event time of each input; empty without event time."""
        return tuple(each.columns.event_time for each in self.inputs if each.columns.event_time is not None)


@dataclass(frozen=True, eq=False)
class OperatorPlan:
    """An operator that can run; one without a uid keeps no state, and has no folder."""

    read: OperatorInputs
    config: Configuration
    partitions: PartitionPlan
    connected: ConnectedColumns | None = None
    folder: OperatorFolder | None = field(default=None)

    @property
    def name(self) -> str:
        """The uid, or the class of the function."""
        return self.partitions.function_name if self.folder is None else self.folder.uid

    @property
    def outputs(self) -> Outputs:
        """The columns of the rows that leave the operator."""
        return Outputs(self.partitions.output, self.partitions.side_outputs)

    @classmethod
    def of(cls, read: OperatorInputs, function: KeyedFunction, schema: object) -> OperatorPlan:
        """Check a function and the options of its operator, and return the plan.

        Raises as `keyedstate.local.KeyedStream.process`.
        """
        check_function(function)
        check_sides(function, inputs=len(read.inputs), broadcast=read.broadcast is not None)
        connected = None
        if len(read.inputs) > 1:
            connected = ConnectedColumns(*(each.columns for each in read.inputs))
        output = output_schema(schema)
        sides = _side_outputs(function, read)
        _check_event_times(read.event_times)
        check_row_classes(function, read.columns_of)
        columns = read.inputs[0].columns
        if connected is not None:
            assert isinstance(function, KeyedCoProcessFunction), "checked"
            function = function.for_inputs(connected.inputs)
        else:
            function = function.for_rows(columns.schema, columns.key_columns, columns.time_column)
        if read.broadcast is not None:
            function = function.for_broadcast(schema_as_spark_reads(read.broadcast.schema))
        config = Configuration(read.config, environ=os.environ)
        chosen = choose_backend(config)
        check_states(function, generic_types=chosen.generic_types, event_times=read.event_times)
        folder, location = None, None
        if read.uid is not None:
            storage = CheckpointStorage.open(config[CHECKPOINT_DIR], config)
            folder = OperatorFolder(storage, read.uid)
            location = StateLocation(
                uid=folder.uid,
                directory=storage.uri,
                compression=config[CHECKPOINT_COMPRESSION],
                each_epoch=True,
            )
        parallelism = config.get(PARALLELISM) or 1
        partitions = PartitionPlan(
            function=pack_function(function),
            function_name=type(function).__name__,
            key_columns=tuple(
                (name, spark_name(type_))
                for name, type_ in zip(columns.key_columns, columns.key_types, strict=True)
            ),
            key_types=tuple(columns.key_types),
            output=output,
            side_outputs=sides,
            parallelism=parallelism,
            max_parallelism=choose_max_parallelism(config, parallelism, folder),
            settings=frozen(config),
            location=location,
            event_times=read.event_times,
            connected=None if connected is None else connected.inputs,
        )
        return cls(read, config, partitions, connected, folder)


def _side_outputs(function: KeyedFunction, read: OperatorInputs) -> dict[str, OutputSchema]:
    found = {}
    for name, columns in function.side_outputs.items():
        check_name(name)
        if columns is None:
            columns = read.inputs[input_of_side_output(function, name)].columns.schema
        found[name] = output_schema(columns, name)
    return found


def _check_event_times(event_times: EventTimes) -> None:
    for each in event_times:
        if each.follows is not None:
            raise EventTimeError(
                each.column,
                f"it follows the operator {each.follows!r}, and in a local run the watermark moves within "
                "the epoch with the rows themselves; leave follows= out and give a delay, as in delay=0",
            )
        if each.delay is None:
            raise EventTimeError(
                each.column,
                "no delay is given; say how late rows may come, as in delay='10 minutes', or delay=0",
            )
        if each.inputs is not None and len(event_times) > 1:
            reason = "inputs= distinguishes inputs of one stream, and several are connected"
            raise EventTimeError(each.column, f"{reason}; leave inputs= out")
