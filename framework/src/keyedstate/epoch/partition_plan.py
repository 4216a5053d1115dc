"""The plan of an operator's partitions: function, columns, settings and the location of the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from keyedstate.backend import StateHandle
from keyedstate.checkpoint.format.manifest import AttemptManifest, TaskIdentity
from keyedstate.epoch.configuration import backend_in_task
from keyedstate.epoch.epoch_writer import EpochFiles, state_manifest
from keyedstate.epoch.event_time import EventTimes, FollowedOperators
from keyedstate.epoch.function_transport import unpack_function
from keyedstate.epoch.local_folders import local_folder, sweep_once
from keyedstate.keygroups import KEY_GROUP_COLUMN, KeyGroupRange, key_group_range_for
from keyedstate.operator_state import RestoredOperatorState
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import KeyedOperator, OperatorSpec, keyed_operator
from keyedstate.state.clock import Clock, system_clock
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend


@dataclass(frozen=True)
class StateLocation:
    """Where the state of an operator in a streaming query is stored."""

    uid: str
    #: URI of the folder with the folders of all operators.
    directory: str
    #: The option ``checkpoint.compression``.
    compression: str
    #: Whether Spark evaluates the operator in each epoch: it is not built inside ``foreachBatch``.
    each_epoch: bool
    #: URI of Spark's log of offsets, where the operator needs it; empty until a task fills it in.
    offsets: str | None = None
    #: Whether processing time is that of the micro-batch, from that log.
    time_of_query: bool = False
    #: Whether event-time timers fire after all input of ``trigger(availableNow=True)``, which that log tells.
    fires_at_end: bool = False
    #: Whether tasks publish the checkpoints of their epochs, because no driver receives acknowledgements.
    published_by_tasks: bool = False
    #: Then: how long an attempt waits to be killed if another one at its partition has finished, in seconds.
    #: Above 0 where Spark speculates.
    time_to_be_killed_s: float = 0.0


@dataclass(frozen=True)
class PartitionPlan:
    """Everything to run any partition of an operator."""

    #: The process function, pickled, and the name of its class.
    function: bytes
    function_name: str
    #: Names and Spark types.
    key_columns: tuple[tuple[str, str], ...]
    key_types: tuple[pa.DataType, ...]
    output: OutputSchema
    parallelism: int
    max_parallelism: int
    #: The configuration, as `keyedstate.epoch.configuration.frozen` gives it.
    settings: tuple[tuple[str, Any], ...]
    #: None for a batch DataFrame: the operator begins without state and stores none.
    location: StateLocation | None
    #: Of the rows, or of each connected input; empty without event time.
    event_times: EventTimes
    #: The inputs of a function of two; the rows are then their union.
    connected: ConnectedInputs | None = None
    side_outputs: Mapping[str, OutputSchema] = field(default_factory=dict)
    #: The operators whose watermarks the inputs follow.
    followed: FollowedOperators = ()

    def key_groups(self, partition: int) -> KeyGroupRange:
        """Return the key groups of a partition."""
        return key_group_range_for(partition, self.parallelism, self.max_parallelism)

    def open_backend(
        self,
        key_groups: KeyGroupRange,
        handles: Sequence[StateHandle] = (),
        *,
        track_changes: bool = False,
        clock: Clock = system_clock,
    ) -> KeyedStateBackend:
        """Open the keyed state of some key groups, empty or restored; raises as `KeyedStateBackend.open`."""
        sweep_once()
        return KeyedStateBackend.open(
            backend_in_task(self.settings),
            KeySpace(key_serializer_for(self.key_types), key_groups, self.max_parallelism),
            handles,
            local_base=local_folder(),
            track_changes=track_changes,
            clock=clock,
            event_time=bool(self.event_times),
        )

    def operator_states(self, restored: Iterable[RestoredOperatorState] = ()) -> OperatorStateBackend:
        """Return the operator state of one task."""
        generic_types = backend_in_task(self.settings).generic_types
        return OperatorStateBackend(restored, generic_types=generic_types)

    def operator(
        self,
        backend: KeyedStateBackend,
        operator_states: OperatorStateBackend,
        partition: int,
        epoch: int | None,
    ) -> KeyedOperator:
        """Return the operator of one partition, with its own function; raises as `unpack_function`."""
        function, row_classes = unpack_function(self.function, self.function_name)
        return keyed_operator(
            function,
            backend,
            OperatorSpec(
                key_columns=[name for name, _ in self.key_columns],
                key_group_column=KEY_GROUP_COLUMN,
                output=self.output,
                side_outputs=self.side_outputs,
                row_classes=row_classes,
                epoch=epoch,
                operator_states=operator_states,
                task=partition,
                parallelism=self.parallelism,
                event_time=self.event_times[0] if len(self.event_times) == 1 else None,
                connected=self.connected,
            ),
        )

    def manifest(
        self, identity: TaskIdentity, keyed: KeyedStateBackend, operator: KeyedOperator, files: EpochFiles
    ) -> AttemptManifest:
        """Return the manifest of an attempt, to which the caller adds times, watermark and hosts."""
        return replace(
            state_manifest(identity, backend_in_task(self.settings).backend, keyed, files),
            rows_in=operator.rows_in,
            rows_out=operator.rows_out,
            inputs={name: (time, 0) for name, time in operator.largest_event_times.items()},
            rows_by_input=operator.rows_by_input,
            rows_dropped=dict(operator.rows_dropped),
            largest_event_time=operator.largest_event_time,
            key_columns=self.key_columns,
        )
