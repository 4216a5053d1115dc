"""The harness: a process function run as Spark would run it, without Spark and without Java.

It uses the operator of `keyedstate.runtime` over a backend chosen by name, Arrow batches, key groups by
Spark's hash over contiguous ranges, and segment files. Only the transport of rows is missing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

from keyedstate.durations import Duration
from keyedstate.errors import HarnessSettingError, StateNotRegisteredError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.runtime import KeyedFunction
from keyedstate.state import StateAccessor, StateDescriptor
from keyedstate.state.clock import Clock
from keyedstate.state.context import KeyContext
from keyedstate.testing.harness.connected_inputs import ConnectedInputRows, Input
from keyedstate.testing.harness.instance import HarnessInstance
from keyedstate.testing.harness.instances import RunningInstances
from keyedstate.testing.harness.outputs import HarnessOutputs
from keyedstate.testing.harness.plan import InstancePlan
from keyedstate.testing.harness.rows import InputRows, KeyedInputRows, checked_schema
from keyedstate.testing.harness.snapshot import HarnessSnapshot
from keyedstate.testing.harness.time import HarnessTime
from keyedstate.time import EventTime
from keyedstate.types import VOID_NAMESPACE

H = TypeVar("H", bound=StateAccessor)

#: Flink's and Spark's default for an operator of modest parallelism.
DEFAULT_MAX_PARALLELISM = 128


class Harness(HarnessOutputs):
    """Runs a process function over rows that a test gives it.

    Parameters
    ----------
    function : KeyedProcessFunction, VectorizedProcessFunction or KeyedCoProcessFunction
        Every instance runs a copy of it, and another one in each epoch, as embedded tasks do; see
        `HarnessInstance.function`.
    key : str or sequence of str
        The key columns, as in ``keyed(df, "user")``. A field of a struct, ``"place.city"``, becomes a column
        of the rows, as on Spark. Spark's expressions are not supported: give the rows a column.
    schema : str, mapping, pyarrow.Schema or StructType
        The columns of the rows: ``"user string, seconds long"``, ``{"user": types.STRING, "seconds": int}``.
    output : str, mapping, pyarrow.Schema or StructType
        The columns of the rows that the function yields, as in ``process(function, "user string, views
        long")``. Rows of side outputs are in `side_output`.
    event_time : EventTime, optional
        The event time of the rows, as in ``keyed(df, "user", event_time=EventTime("ts", "10 minutes"))``.
        With a delay the watermark follows when an epoch ends; without one only `advance_watermark` moves it.
    row_kind : str, optional
        The column of row kinds of the first of several inputs, as in ``keyed(df, "user", row_kind="kind")``.
    broadcast : str, mapping, pyarrow.Schema or StructType, optional
        The columns of the broadcast side, if the function has one.
    second : Input, optional
        The second input of a `KeyedCoProcessFunction`; `key`, `schema` and `event_time` are then those of the
        first, and rows are given to `process1` and `process2`.
    further : sequence of Input, optional
        The third input and those that follow; their rows are given to `process_input`.
    backend : str, default "heap-cow"
    options : mapping, optional
        Options by name without ``spark.keyedstate.``.  Neither Spark's configuration nor the environment is
        read.
    parallelism : int, default 1
        The number of instances, which share the key groups as the tasks of a job do.
    max_parallelism : int, optional
        The number of key groups; by default that of `restore`, or 128.
    clock : callable, optional
        Returns processing time in milliseconds since 1970 UTC. By default a `ManualClock` that begins at 0
        and is moved by `advance_processing_time` and `set_processing_time`.
    restore : HarnessSnapshot, optional
        The state to begin with.

    Raises
    ------
    HarnessSchemaError, HarnessSettingError
    InvalidFunctionError, FunctionTransportError
        For an object that is no function or could not be sent to a task.
    ConfigError, PluginError
        For options and backends.
    InvalidParallelismError
    UserFunctionError
        Where its ``open`` raises.
    SnapshotMismatchError, StateError
        Where the snapshot cannot be restored, or its states are not those of the function.

    Notes
    -----
    Not safe for threads. Close it, or use it in a ``with`` statement.
    """

    def __init__(
        self,
        function: KeyedFunction,
        *,
        key: str | Sequence[str],
        schema: object,
        output: object,
        event_time: EventTime | None = None,
        row_kind: str | None = None,
        broadcast: object = None,
        second: Input | None = None,
        further: Sequence[Input] = (),
        backend: str = "heap-cow",
        options: Mapping[str, object] | None = None,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        clock: Clock | None = None,
        restore: HarnessSnapshot | None = None,
    ) -> None:
        if max_parallelism is None:
            max_parallelism = DEFAULT_MAX_PARALLELISM if restore is None else restore.max_parallelism
        first = KeyedInputRows(schema, key, event_time, row_kind)
        if second is None and further:
            raise HarnessSettingError("further", "was given without a second input", "Give second=, too.")
        self._rows = first if second is None else ConnectedInputRows(first, (second, *further))
        self._time = HarnessTime(clock, self._rows.event_times)
        self._max_parallelism = max_parallelism
        self._broadcast_rows = _broadcast_rows(function, broadcast)
        plan = InstancePlan.of(
            function,
            self._rows,
            checked_schema(output, "output"),
            backend,
            options or {},
            max_parallelism,
            self._time,
            self._broadcast_rows,
        )
        super().__init__(plan.outputs, plan.side_rows)
        self._running = RunningInstances(plan, parallelism, restore)
        #: Locates the keys of all instances: which key group, and with it which instance.
        self._keys = KeyContext(
            self._rows.key_serializer, KeyGroupRange(0, max_parallelism - 1), max_parallelism
        )

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The first error is the one to report.
            with contextlib.suppress(Exception):
                self.close()

    def close(self) -> None:
        """Close the function of every instance and free everything; calling it again does nothing.

        Raises
        ------
        UserFunctionError
            Where the function's ``close`` raises; every instance is closed nevertheless.
        """
        self._running.close()

    # -- rows ---------------------------------------------------------------------------------------------

    def process(self, row: Any) -> list[tuple[Any, ...]]:
        """Process one row and return what the function yields for it; see `process_all`."""
        return self.process_all([row])

    def process_all(self, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Process rows, neighbours of one instance as one Arrow batch, and return what the function yields.

        Parameters
        ----------
        rows : iterable of dict, tuple or list

        Returns
        -------
        list of tuple
            In the order of the rows; each is a named tuple that equals a plain one, with ``as_dict()``.

        Raises
        ------
        InputRowError
            Where a row has other columns or types than the schema; no row was processed.
        UserFunctionError
            Where the function raises. The state is as the function left it; a Spark job would return to the
            state before the epoch, and so can a test, with `snapshot` and `restore`.
        OutputRowError, OutputTypeError
            Where it yields rows that are not of `output`.
        """
        instances = self._running.open
        if isinstance(self._rows, ConnectedInputRows):
            raise _wrong_input("process()", "one input", "several", "process1(), process2() and so on")
        parts = self._rows.by_instance(list(rows), len(instances), self._max_parallelism)
        return self._collect(instances[index].process(part) for index, part in parts)

    def process1(self, row: Any) -> list[tuple[Any, ...]]:
        """Process one row of the first of several inputs; see `process_all`."""
        return self._process_of(0, [row])

    def process1_all(self, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Process rows of the first of several inputs; see `process_all`."""
        return self._process_of(0, rows)

    def process2(self, row: Any) -> list[tuple[Any, ...]]:
        """Process one row of the second input; see `process_all`."""
        return self._process_of(1, [row])

    def process2_all(self, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Process rows of the second input; see `process_all`."""
        return self._process_of(1, rows)

    def process_input(self, number: int, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Process rows of an input by its number, which is 3 for the third one; see `process_all`.

        Raises
        ------
        HarnessSettingError
            Where there is no such input.
        """
        if isinstance(self._rows, ConnectedInputRows) and not 1 <= number <= len(self._rows.event_times):
            count = len(self._rows.event_times)
            raise HarnessSettingError(
                f"input {number}",
                f"is none of the {count} of this harness",
                f"Give a number from 1 to {count}.",
            )
        return self._process_of(number - 1, rows)

    def _process_of(self, number: int, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        instances = self._running.open
        if not isinstance(self._rows, ConnectedInputRows):
            raise _wrong_input(f"process{number + 1}()", "several inputs", "one", "process()")
        parts = self._rows.by_instance(number, list(rows), len(instances), self._max_parallelism)
        return self._collect(instances[index].process(part) for index, part in parts)

    def process_broadcast(self, row: Any) -> list[tuple[Any, ...]]:
        """Process one row of the broadcast side on every instance; see `process_broadcast_all`."""
        return self.process_broadcast_all([row])

    def process_broadcast_all(self, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Process rows of the broadcast side on every instance, and return the output, instance by instance.

        Raises
        ------
        HarnessSettingError
            Where the function has no broadcast side, or its columns were not given.
        InputRowError, UserFunctionError, OutputRowError, OutputTypeError
            As in `process_all`.
        """
        instances = self._running.open
        if self._broadcast_rows is None:
            raise HarnessSettingError(
                "the broadcast side of this harness",
                "was given no columns",
                "Run a KeyedBroadcastProcessFunction, and give the columns as broadcast='name string, ...'.",
            )
        batch = self._broadcast_rows.to_batch(list(rows))
        return self._collect(instance.process_broadcast(batch) for instance in instances)

    @property
    def rows_dropped(self) -> dict[str, int]:
        """The number of rows that windows or a join dropped since the harness was opened, by reason."""
        return dict(self._running.rows_dropped)

    # -- time ---------------------------------------------------------------------------------------------

    @property
    def processing_time(self) -> int:
        """The time of the clock, in milliseconds since 1970 UTC."""
        return self._time.clock()

    def advance_processing_time(self, duration: Duration) -> list[tuple[Any, ...]]:
        """Move the clock by ``"30 min"``, a timedelta or milliseconds; negative ones move it back.

        Returns
        -------
        list of tuple
            The output of the timers that are due.

        Raises
        ------
        InvalidDurationError
        HarnessSettingError
            Where the clock is not a `ManualClock`.
        UserFunctionError, OutputRowError, OutputTypeError
            As in `process_all`, for timers.
        """
        return self._move_time(lambda moved: moved.advance(duration))

    def set_processing_time(self, time: int | dt.datetime) -> list[tuple[Any, ...]]:
        """Set the clock to milliseconds since 1970 UTC, or to a datetime with a time zone.

        Returns as `advance_processing_time`.
        """
        return self._move_time(lambda moved: moved.set(time))

    @property
    def watermark(self) -> int:
        """Event time in milliseconds since 1970 UTC; ``clock.BEFORE_TIME`` before the first watermark."""
        return self._time.watermark

    def advance_watermark(self, time: int | dt.datetime) -> list[tuple[Any, ...]]:
        """Move event time forward to a time; an earlier one changes nothing, as in a job.

        Parameters
        ----------
        time : int or datetime
            In milliseconds since 1970 UTC, or with a time zone.

        Returns
        -------
        list of tuple
            The output of the timers that are due, those of processing time too.

        Raises
        ------
        HarnessSettingError
            Where the rows have no event time.
        UserFunctionError, OutputRowError, OutputTypeError
            As in `process_all`, for timers.
        """
        self._check_event_time()
        return self._move_time(lambda moved: moved.advance_watermark(time))

    def end_input(self) -> list[tuple[Any, ...]]:
        """Move event time and processing time to their end, as the end of a batch DataFrame does.

        Every timer fires, except those registered meanwhile; returns their output. The clock does not move.
        Afterwards only reading state and `restore` are of use.
        """
        return self._collect(instance.end_input() for instance in self._running.open)

    # -- epochs -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the present epoch, from 0, as in ``ctx.epoch``."""
        return self._running.epoch

    def end_epoch(self) -> list[tuple[Any, ...]]:
        """End the epoch and begin the next: functions are closed and new copies opened, the state continues.

        Attributes of ``self`` are lost, as after a micro-batch of Spark. With a delay the watermark follows
        the rows of the epoch.

        Returns
        -------
        list of tuple
            The output of a `VectorizedProcessFunction` at the end of the epoch, and of timers that are due.

        Raises
        ------
        UserFunctionError
            Where ``close`` or ``open`` raises; the harness is closed then.
        """
        return self._collect(self._running.end_epoch())

    # -- instances, snapshots -----------------------------------------------------------------------------

    @property
    def instances(self) -> tuple[HarnessInstance, ...]:
        """The instances by number, each with its key groups, its states and its function."""
        return self._running.open

    @property
    def parallelism(self) -> int:
        """The number of instances."""
        return len(self._running.open)

    def snapshot(self) -> HarnessSnapshot:
        """Write the state of every instance into segment files.

        Raises
        ------
        UnwritableEntryError
            Where a value in the state is one that its type cannot write.
        """
        return self._running.snapshot()

    def restore(self, snapshot: HarnessSnapshot, parallelism: int | None = None) -> None:
        """Restore the state of a snapshot, as a restarted job does.

        The functions are closed and new copies opened; state, epoch and watermark are those of the snapshot.
        The clock and the outputs do not change.

        Parameters
        ----------
        snapshot : HarnessSnapshot
            Of this harness or another one, with any backend and parallelism.
        parallelism : int, optional
            The number of instances from now on; by default as many as now.

        Raises
        ------
        InvalidParallelismError, SnapshotMismatchError
            The harness stays as it was.
        UserFunctionError, StateError, PluginError
            Where a function cannot be closed or opened, or the states are not those of the function; the
            harness is closed then.
        """
        self._running.restore(snapshot, self.parallelism if parallelism is None else parallelism)

    def rescale(self, parallelism: int) -> None:
        """Change the number of instances by a snapshot and its restore; raises as both."""
        self._running.check_parallelism(parallelism)
        self.restore(self.snapshot(), parallelism)

    # -- state --------------------------------------------------------------------------------------------

    @overload
    def state(self, state: StateDescriptor[H], key: object, namespace: object = VOID_NAMESPACE) -> H: ...
    @overload
    def state(self, state: str, key: object, namespace: object = VOID_NAMESPACE) -> Any: ...
    def state(self, state: Any, key: object, namespace: object = VOID_NAMESPACE) -> Any:
        """Return an accessor of one key's state, with every method of its kind, reading and writing.

        Parameters
        ----------
        state : str or StateDescriptor
            A name or a declaration: ``harness.state(PageViews.views, "ann").value()``.
        key : object
            A tuple where there are several key columns.
        namespace : object, optional

        Returns
        -------
        StateAccessor
            It stays at this key, and is valid until the next `restore` or `rescale`. Its reads and writes are
            those of the function, with the time to live.

        Raises
        ------
        StateNotRegisteredError
        ValueTypeError
            For a key of another type.
        """
        name = state.name if isinstance(state, StateDescriptor) else state
        (key,), (key_group,) = self._keys.locate([key])
        instance = self._running.owner_of(key_group)
        instance.show_time()
        registered = instance.backend.registered_states()
        if name not in registered:
            restored = name in instance.backend.entries_by_state()
            raise StateNotRegisteredError(name, sorted(registered), restored)
        return instance.backend.accessor_at(name, key, key_group, namespace)

    def keys(self, state: str | StateDescriptor[Any], namespace: object = VOID_NAMESPACE) -> list[Any]:
        """Return the keys that have an entry in one namespace of a state, in no order.

        The state may be restored without being registered; an unknown one has no key. Expired entries count
        until they are removed.
        """
        name = state.name if isinstance(state, StateDescriptor) else state
        return [key for instance in self._running.open for key in instance.backend.get_keys(name, namespace)]

    def num_entries(self, state: str | StateDescriptor[Any] | None = None) -> int:
        """Return the number of entries of a keyed state, or of all, with expired ones not yet removed."""
        if state is None:
            return sum(instance.backend.num_entries() for instance in self._running.open)
        name = state.name if isinstance(state, StateDescriptor) else state
        return sum(instance.backend.entries_by_state().get(name, 0) for instance in self._running.open)

    def _check_event_time(self) -> None:
        if not self._rows.have_event_time:
            raise HarnessSettingError(
                "the event time of the rows",
                "is not known",
                "Name the column that has it, as in event_time=EventTime('ts').",
            )

    def _move_time(self, move: Callable[[HarnessTime], None]) -> list[tuple[Any, ...]]:
        """Move the time, show it to every instance, and return the output of timers."""
        instances = self._running.open
        move(self._time)
        for instance in instances:
            instance.show_time()
        return self._collect(instance.fire_timers() for instance in instances)


def _wrong_input(method: str, of: str, given: str, instead: str) -> HarnessSettingError:
    return HarnessSettingError(method, f"is for {of}, and the function has {given}", f"Use {instead}.")


def _broadcast_rows(function: KeyedFunction, declared: object) -> InputRows | None:
    if declared is None:
        return None
    if not function._has_broadcast_side:
        raise HarnessSettingError(
            "broadcast",
            f"was given, and {type(function).__name__} has no broadcast side",
            "Derive it from KeyedBroadcastProcessFunction, or leave the columns out.",
        )
    return InputRows(declared, "broadcast")
