"""The harness: a process function run as Spark would run it, without Spark and without Java.

What runs is the real thing: the operator of `keyedstate.runtime` over a backend chosen by name, Arrow
batches, key groups by Spark's hash over contiguous ranges, segment files.  Only what carries rows from one
place to another is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, overload

import cloudpickle

from keyedstate.config import BACKEND, MAX_PARALLELISM, PARALLELISM, TYPES_GENERIC, Configuration
from keyedstate.keygroups import (
    KeyGroupRange,
    check_parallelism,
    key_group_ranges,
    operator_index_for_key_group,
)
from keyedstate.plugins import PluginRegistry
from keyedstate.runtime import InvalidFunctionError, KeyedProcessFunction
from keyedstate.state import KeyContext, StateDescriptor, StateHandle
from keyedstate.testing.harness.errors import (
    FunctionCopyError,
    HarnessClosedError,
    HarnessSettingError,
    SnapshotMismatchError,
    StateNotRegisteredError,
)
from keyedstate.testing.harness.instance import HarnessInstance, InstancePlan
from keyedstate.testing.harness.rows import InputRows, by_instance, checked_schema
from keyedstate.testing.harness.schema import arrow_schema
from keyedstate.testing.harness.snapshot import HarnessSnapshot
from keyedstate.types import VOID_NAMESPACE

H = TypeVar("H", bound=StateHandle)

#: Flink's and Spark's default for an operator of modest parallelism.
DEFAULT_MAX_PARALLELISM = 128
#: Options that are parameters of the harness.
_PARAMETERS = {BACKEND: "backend", PARALLELISM: "parallelism", MAX_PARALLELISM: "max_parallelism"}


class Harness:
    """Runs a process function over rows that a test gives it.

    Parameters
    ----------
    function : KeyedProcessFunction
        It is not opened itself.  Every instance runs a copy of it, and another one in each epoch, as Spark's
        tasks do; see `HarnessInstance.function`.
    key : str or sequence of str
        The column, or columns, that make the key; as in ``keyed(df, "user")``.
    schema : str, mapping, pyarrow.Schema or StructType
        The columns of the rows: ``"user string, seconds long"``, ``{"user": types.STRING, "seconds": int}``.
    output : str, mapping, pyarrow.Schema or StructType
        The columns of what the function yields; as in ``process(function, "user string, views long")``.
    backend : str, default "heap-cow"
    options : mapping, optional
        Options by name without ``spark.keyedstate.``.  Neither Spark's configuration nor the environment is
        read.
    parallelism : int, default 1
        The number of instances, which share the key groups as the tasks of a job do.
    max_parallelism : int, optional
        The number of key groups; by default that of `restore`, or 128.
    restore : HarnessSnapshot, optional
        The state to begin with.

    Raises
    ------
    HarnessSchemaError, HarnessSettingError
    InvalidFunctionError, FunctionCopyError
        For a function that is none or could not be sent to a task.
    ConfigError, PluginError
        For options and backends.
    InvalidParallelismError, InvalidMaxParallelismError
    ProcessFunctionError
        Where its ``open`` raises.
    SnapshotMismatchError, StateError
        Where the snapshot cannot be restored, or its states are not those of the function.

    Notes
    -----
    One thread at a time.  Close it, or use it in a ``with`` statement.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        *,
        key: str | Sequence[str],
        schema: object,
        output: object,
        backend: str = "heap-cow",
        options: Mapping[str, object] | None = None,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        restore: HarnessSnapshot | None = None,
    ) -> None:
        _check_function(function)
        if max_parallelism is None:
            max_parallelism = DEFAULT_MAX_PARALLELISM if restore is None else restore.max_parallelism
        check_parallelism(parallelism, max_parallelism)
        self._rows = InputRows(arrow_schema(schema, "schema"), key)
        config = _configuration(backend, options or {})
        registry = PluginRegistry(config)
        plugin = registry.choose()
        self._plan = InstancePlan(
            function=function,
            plugin=plugin,
            options=config.plugin_options(registry.options, plugin.name),
            generic_types=config[TYPES_GENERIC] == "allow",
            key_columns=self._rows.key_columns,
            key_serializer=self._rows.key_serializer,
            output=checked_schema(arrow_schema(output, "output"), "output"),
            max_parallelism=max_parallelism,
        )
        #: Locates the keys of all instances: which key group, and with it which instance.
        self._keys = KeyContext(
            self._rows.key_serializer, KeyGroupRange(0, max_parallelism - 1), max_parallelism
        )
        self._outputs: list[tuple[Any, ...]] = []
        self._snapshots = 0
        self._closed: str | None = None
        self._instances: tuple[HarnessInstance, ...] = ()
        self._epoch = 0
        self._start(restore, parallelism)

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
        ProcessFunctionError
            Where the function's ``close`` raises; every instance is closed nevertheless.
        """
        self._closed = self._closed or "is closed"
        self._stop()

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
        ProcessFunctionError
            Where the function raises.  The state is as the function left it; a Spark job would go back to
            the state before the epoch, and so can a test, with `snapshot` and `restore`.
        OutputRowError, OutputTypeError
            Where it yields something else than `output`.
        """
        self._check_open()
        max_parallelism = self._plan.max_parallelism
        batch = self._rows.to_batch(list(rows), max_parallelism)
        found: list[tuple[Any, ...]] = []
        for index, part in by_instance(batch, self.parallelism, max_parallelism):
            found += self._instances[index].process(part)
        self._outputs += found
        return found

    @property
    def outputs(self) -> list[tuple[Any, ...]]:
        """Everything that the function yielded since the beginning or the last `take_outputs`."""
        return list(self._outputs)

    def take_outputs(self) -> list[tuple[Any, ...]]:
        """Return `outputs` and forget them."""
        taken, self._outputs = self._outputs, []
        return taken

    # -- epochs -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the present epoch, from 0: what the function sees as ``ctx.epoch``."""
        return self._epoch

    def end_epoch(self) -> None:
        """End the epoch and begin the next: functions are closed, new copies opened, the state goes on.

        What a function keeps on ``self`` is gone, as after a micro-batch of Spark.

        Raises
        ------
        ProcessFunctionError
            Where ``close`` or ``open`` raises; the harness is closed then.
        """
        self._check_open()
        with self._closed_on_error("is closed: the last end_epoch() failed"):
            for instance in self._instances:
                instance.end_epoch()
            self._epoch += 1
            for instance in self._instances:
                instance.begin_epoch(self._epoch)

    # -- instances, snapshots -----------------------------------------------------------------------------

    @property
    def instances(self) -> tuple[HarnessInstance, ...]:
        """The instances by number, each with its key groups, its keyed backend and its function."""
        return self._instances

    @property
    def parallelism(self) -> int:
        """The number of instances."""
        return len(self._instances)

    def snapshot(self) -> HarnessSnapshot:
        """Write the state of every instance into segment files, between two rows; nothing else changes.

        Raises
        ------
        UnwritableEntryError
            Where a value in the state has become one that its type cannot write.
        """
        self._check_open()
        self._snapshots += 1
        return HarnessSnapshot.write(
            self._snapshots,
            self._epoch,
            self._plan.max_parallelism,
            self._plan.key_columns,
            [instance.backend for instance in self._instances],
        )

    def restore(self, snapshot: HarnessSnapshot, parallelism: int | None = None) -> None:
        """Go back, or over, to the state of a snapshot, as a job does that is started again.

        The functions are closed and new copies opened; epoch and state are those of the snapshot.  The clock
        and the outputs stay.

        Parameters
        ----------
        snapshot : HarnessSnapshot
            Of this harness or another one, with any backend and parallelism.
        parallelism : int, optional
            The number of instances from now on; by default as many as now.

        Raises
        ------
        InvalidParallelismError, SnapshotMismatchError
            The harness goes on as it was.
        ProcessFunctionError, StateError, PluginError
            Where a function cannot be closed or opened, or the states are not those of the function; the
            harness is closed then.
        """
        self._check_open()
        parallelism = self.parallelism if parallelism is None else parallelism
        check_parallelism(parallelism, self._plan.max_parallelism)
        self._check_same_keys(snapshot)
        with self._closed_on_error("is closed: the last restore() failed"):
            self._stop()
            self._start(snapshot, parallelism)

    def rescale(self, parallelism: int) -> None:
        """Go on with another number of instances: a snapshot, and its restore; errors are those of both."""
        self._check_open()
        check_parallelism(parallelism, self._plan.max_parallelism)
        self.restore(self.snapshot(), parallelism)

    # -- state --------------------------------------------------------------------------------------------

    @overload
    def state(self, state: StateDescriptor[H], key: object, namespace: object = VOID_NAMESPACE) -> H: ...
    @overload
    def state(self, state: str, key: object, namespace: object = VOID_NAMESPACE) -> Any: ...
    def state(self, state: Any, key: object, namespace: object = VOID_NAMESPACE) -> Any:
        """Return a handle of one key's state, with every method of its kind, reading and writing.

        Parameters
        ----------
        state : str or StateDescriptor
            A name or a declaration: ``harness.state(PageViews.views, "ann").value()``.
        key : object
            A tuple where there are several key columns.
        namespace : object, optional

        Returns
        -------
        StateHandle
            It stays at this key, and is of use until the next `restore` or `rescale`.

        Raises
        ------
        StateNotRegisteredError
        ValueTypeError
            For a key of another type.
        """
        name = state.name if isinstance(state, StateDescriptor) else state
        self._check_open()
        (key,), (key_group,) = self._keys.locate([key])
        owner = operator_index_for_key_group(key_group, self.parallelism, self._plan.max_parallelism)
        instance = self._instances[owner]
        registered = instance.backend.registered_states()
        if name not in registered:
            restored = name in instance.backend.entries_by_state()
            raise StateNotRegisteredError(name, registered, restored)
        return instance.backend.handle_at(name, key, key_group, namespace)

    def keys(self, state: str | StateDescriptor[Any], namespace: object = VOID_NAMESPACE) -> list[Any]:
        """Return the keys that have an entry in one namespace of a state, in no order.

        None for a state that nobody knows.  One that was restored need not be registered.
        """
        self._check_open()
        name = state.name if isinstance(state, StateDescriptor) else state
        return [key for instance in self._instances for key in instance.backend.get_keys(name, namespace)]

    def num_entries(self, state: str | StateDescriptor[Any] | None = None) -> int:
        """Return the number of entries of a state, or of all states, over all instances."""
        self._check_open()
        if state is None:
            return sum(instance.backend.num_entries() for instance in self._instances)
        name = state.name if isinstance(state, StateDescriptor) else state
        return sum(instance.backend.entries_by_state().get(name, 0) for instance in self._instances)

    # -- inside -------------------------------------------------------------------------------------------

    def _start(self, snapshot: HarnessSnapshot | None, parallelism: int) -> None:
        """Open all instances, empty or restored, and begin their epoch; on an error none stays open."""
        if snapshot is not None:
            self._check_same_keys(snapshot)
            self._epoch = snapshot.epoch
        opened: list[HarnessInstance] = []
        try:
            for key_groups in key_group_ranges(parallelism, self._plan.max_parallelism):
                with contextlib.ExitStack() as files:
                    handles = () if snapshot is None else files.enter_context(snapshot.handles(key_groups))
                    opened.append(HarnessInstance(self._plan, key_groups, handles))
            for instance in opened:
                instance.begin_epoch(self._epoch)
        except BaseException:
            for instance in opened:
                with contextlib.suppress(Exception):
                    instance.close()
            raise
        self._instances = tuple(opened)

    def _stop(self) -> None:
        """Close all instances; the first error is raised when every one is closed."""
        instances, self._instances = self._instances, ()
        with contextlib.ExitStack() as closing:
            for instance in reversed(instances):
                closing.callback(instance.close)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise HarnessClosedError(self._closed)

    @contextlib.contextmanager
    def _closed_on_error(self, reason: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._closed = reason
            with contextlib.suppress(Exception):
                self._stop()
            raise

    def _check_same_keys(self, snapshot: HarnessSnapshot) -> None:
        """Refuse a snapshot whose keys lie elsewhere here; that their types fit is seen when it is read."""
        if snapshot.max_parallelism != self._plan.max_parallelism:
            raise SnapshotMismatchError(
                "max parallelism", snapshot.max_parallelism, self._plan.max_parallelism
            )
        before, now = snapshot.key_columns, self._plan.key_columns
        if before != now and sorted(before) == sorted(now):
            raise SnapshotMismatchError("order of key columns", before, now)


def _check_function(function: object) -> None:
    """Refuse what is no process function, or could not be sent to Spark's tasks."""
    if not isinstance(function, KeyedProcessFunction):
        raise InvalidFunctionError(
            repr(function), "it is not a KeyedProcessFunction; derive its class from it and pass an instance"
        )
    try:
        cloudpickle.dumps(function)
    except Exception as error:  # whatever an object's own way of being pickled raises
        raise FunctionCopyError(type(function).__name__, error) from error


def _configuration(backend: str, options: Mapping[str, object]) -> Configuration:
    for option, parameter in _PARAMETERS.items():
        if option.name in options:
            raise HarnessSettingError(
                f"the option {option.name!r}",
                "is a parameter of the harness",
                f"Give it as {parameter}=... instead.",
            )
    return Configuration({**options, BACKEND.name: backend})
