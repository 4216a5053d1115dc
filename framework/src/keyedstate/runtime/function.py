"""Process functions: what a user writes.

Flink's ``KeyedProcessFunction`` and ``KeyedBroadcastProcessFunction``, under their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pyarrow as pa

from keyedstate.errors import InvalidFunctionError
from keyedstate.operator_state import OperatorStateKind
from keyedstate.runtime.side_outputs import SideRows
from keyedstate.runtime.timers import KeyTimers, TimeDomain
from keyedstate.state import StateAccessor, StateDescriptor
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.operator.list_states import OperatorStateAccessor, OperatorStateDescriptor
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import TimerServices

if TYPE_CHECKING:
    # With defaults, which the typing module has from Python 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    R = TypeVarWithDefault("R", default=Any)
    B = TypeVarWithDefault("B", default=Any)
else:
    R, B = TypeVar("R"), TypeVar("B")

H = TypeVar("H", bound=StateAccessor)
O = TypeVar("O", bound=OperatorStateAccessor)  # noqa: E741 - the handle of an operator state


class Context:
    """What a process function is told beside its row.

    Attributes
    ----------
    key : object
        The current key: the value of the key column, or a tuple where there are several. None is a key.
    epoch : int or None
        The micro-batch; None for a batch DataFrame.
    task : int
        The task that runs the function, from 0 (Flink's ``getIndexOfThisSubtask``).
    parallelism : int
        The number of tasks.
    """

    __slots__ = (
        "_backend",
        "_dropped",
        "_function",
        "_key_timers",
        "_operator_states",
        "_side_rows",
        "_states",
        "_timers",
        "epoch",
        "key",
        "parallelism",
        "task",
    )

    def __init__(
        self,
        function: KeyedFunction,
        backend: KeyedStateBackend,
        operator_states: OperatorStateBackend,
        epoch: int | None,
        task: int,
        parallelism: int,
        side_rows: SideRows,
    ) -> None:
        self._function = function
        self._backend = backend
        self._operator_states = operator_states
        self._timers = TimerServices(backend)
        #: Rows of the epoch that were dropped, by why.
        self._dropped: Counter[str] = Counter()
        self._side_rows = side_rows
        self._key_timers: KeyTimers | None = None
        #: The keyed states that were registered, by which their handles are told.
        self._states: dict[str, StateDescriptor[Any]] = {}
        self.key: Any = None
        self.epoch = epoch
        self.task = task
        self.parallelism = parallelism

    @property
    def timestamp(self) -> int | None:
        """The event time of the row in milliseconds since 1970 UTC; None where it has none."""
        return self._backend.current.timestamp

    @property
    def watermark(self) -> int:
        """The event time in milliseconds up to which all rows have come; -2**63 where none is known."""
        return self._timers.watermark

    @property
    def timer_service(self) -> KeyTimers:
        """The timers of the current key.

        Raises
        ------
        InvalidFunctionError
            Where the function does not say what shall happen when one fires.
        """
        if self._key_timers is None:
            raise InvalidFunctionError(
                type(self._function).__name__,
                "it uses timers and does not handle any; define on_timer(self, time, ctx), or "
                "on_timers(self, timers, ctx) where it derives from VectorizedProcessFunction",
            )
        return self._key_timers

    def output(self, name: str, row: Any) -> None:
        """Put a row out to a side output, which the function declares in `KeyedFunction.side_outputs`.

        Parameters
        ----------
        name : str
        row : tuple, list or dict
            Of a `VectorizedProcessFunction` a pyarrow.RecordBatch or pyarrow.Table.

        Raises
        ------
        UndeclaredSideOutputError
        """
        self._side_rows.put(name, row, self.key)

    def _set_aside(self, output: str | None, reason: str, rows: Any, count: int = 1) -> None:
        """Put rows that cannot be processed out to a side output, or count them as dropped without one."""
        if output is None:
            self._dropped[reason] += count
        else:
            self.output(output, rows)

    @overload
    def state(self, descriptor: StateDescriptor[H] | H) -> H: ...
    @overload
    def state(self, descriptor: OperatorStateDescriptor[O] | O) -> O: ...
    def state(self, descriptor: Any) -> Any:
        """Register a state and return its handle; for states that are not class attributes, in `open`.

        A class attribute is registered already: ``ctx.state(self.count)`` is ``self.count``.

        Raises
        ------
        InvalidFunctionError
            For broadcast state in a function that has no broadcast side.
        StateError
            Where the name holds another state already, here or in the restored checkpoint.
        """
        if isinstance(descriptor, (StateAccessor, OperatorStateAccessor)):
            return descriptor
        if isinstance(descriptor, OperatorStateDescriptor):
            refuse_lone_broadcast_state(self._function, descriptor)
            return self._operator_states.get_state(descriptor)
        handle = self._backend.get_state(descriptor)
        self._states[descriptor.name] = descriptor
        return handle


class OnTimerContext(Context):
    """What a process function is told beside the time of its timer.

    Attributes
    ----------
    time_domain : TimeDomain
        By which time the timer has fired.
    """

    __slots__ = ("_time", "time_domain")

    def __init__(self, context: Context) -> None:
        for name in Context.__slots__:
            setattr(self, name, getattr(context, name))
        self._time: int | None = None
        self.time_domain = TimeDomain.EVENT_TIME

    @property
    def timestamp(self) -> int | None:
        """The time of the timer in milliseconds since 1970 UTC."""
        return self._time


class BroadcastContext:
    """What `KeyedBroadcastProcessFunction.process_broadcast` is told beside its row; there is no current key.

    Attributes
    ----------
    epoch : int or None
        The micro-batch; None for a batch DataFrame.
    task, parallelism : int
        The task that runs the function, from 0, and the number of tasks.
    """

    __slots__ = ("_context", "epoch", "parallelism", "task")

    def __init__(self, context: Context) -> None:
        self._context = context
        self.epoch = context.epoch
        self.task = context.task
        self.parallelism = context.parallelism

    def output(self, name: str, row: Any) -> None:
        """Put a row out to a side output, as `Context.output` does; every task does so."""
        self._context._side_rows.put(name, row, None)

    def apply_to_keyed_state(self, state: H, function: Callable[[Any, H], None]) -> None:
        """Call ``function(key, state)`` with each key of this task that has the state as the current key.

        Parameters
        ----------
        state : StateAccessor
            A keyed state of the function: ``self.count``.
        function : callable
            May read, change and clear state of the key, that of other states too.

        Raises
        ------
        TypeError
            For what is no keyed state of the function.
        """
        descriptor = self._context._states.get(getattr(state, "name", ""))
        if descriptor is None:
            raise TypeError(f"{state!r} is no keyed state of the function; give one such as self.count")
        self._context._backend.apply_to_all_keys(descriptor, function)


class KeyedFunction:
    """What all functions over rows with keys share; derive from one of its subclasses.

    States are declared as class attributes (`keyedstate.state.ValueState`, `keyedstate.state.MapState`) or
    registered in `open`.  One instance serves many keys, so anything that belongs to a key goes into
    state; anything else on ``self`` may live longer than an epoch and may be gone at any time.

    Attributes
    ----------
    side_outputs : mapping of str to str or StructType
        The columns of each side output by its name, for `Context.output`; None for those of the input.
        Where there are any, the DataFrame has a column ``output`` that names the output of each row, and for
        each output a struct column with its columns: ``main`` for the rows that the function yields.
    """

    side_outputs: Mapping[str, Any] = MappingProxyType({})

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> KeyedFunction:
        """Return the function for rows of these columns; itself, unless it has to know them.

        Parameters
        ----------
        schema : pyarrow.Schema
        key_columns : sequence of str
        time_column : str or None
            The one with the event time.
        """
        return self

    def open(self, ctx: Context) -> None:
        """Prepare; called once before the first row. Declared states are bound already."""

    def close(self) -> None:
        """Clean up; called once after the last row and after an error."""


class KeyedProcessFunction(KeyedFunction, Generic[R]):
    """Reads the rows of one key after the other, keeps state per key, and yields output rows.

    The rows of one key come in the order in which they reached the task, those of different keys in any
    order, unless the function has operator state, which would show it.

    ``KeyedProcessFunction[Visit]`` is given rows that are instances of `Visit`, a dataclass or NamedTuple
    with a field for each column that it needs; names and types are checked when the job is built.
    """

    def process(self, row: R, ctx: Context) -> Iterable[Any] | None:
        """Handle one row.

        Parameters
        ----------
        row : tuple
            The row's values, also by column name (``row.origin``) and as a dict (``row.as_dict()``).
            Structs are such rows too, arrays lists and maps dicts.
        ctx : Context

        Returns
        -------
        iterable of rows, or None
            Usually a generator. A row is a tuple, list or dict of the declared columns.
        """
        raise NotImplementedError

    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer that ``ctx.timer_service`` was given for the key, at its time or later.

        Timers fire before the rows of an epoch, in the order of their times, those of event time first; at
        its end those fire that its rows have registered for a time that has passed.  What is registered here
        and is due fires in the same epoch.  Without this method a function has no timers.

        Parameters
        ----------
        time : int
            The timer's, in milliseconds since 1970 UTC.
        ctx : OnTimerContext
            Its key is the timer's.

        Returns
        -------
        iterable of rows, or None
            As of `process`.
        """
        raise NotImplementedError


class KeyedBroadcastProcessFunction(KeyedProcessFunction[R], Generic[R, B]):
    """Reads the rows of one key after the other, and every row of a second, small DataFrame.

    The second one is the broadcast side: rules, prices, a list of sensors.  Every task runs
    `process_broadcast` for each of its rows, so what that puts into `keyedstate.state.BroadcastState` is the
    same everywhere; `process` reads it, and cannot change it.

    ``KeyedBroadcastProcessFunction[Visit, Rule]`` names the classes of rows with keys and of the others.
    """

    def process_broadcast(self, row: B, ctx: BroadcastContext) -> Iterable[Any] | None:
        """Handle one row of the broadcast side.

        Whatever it does must depend on nothing but the row and the broadcast state: the tasks would differ.
        What it yields is put out by every task.

        Parameters
        ----------
        row : tuple
            As in `process`.
        ctx : BroadcastContext

        Returns
        -------
        iterable of rows, or None
        """
        raise NotImplementedError


def refuse_lone_broadcast_state(function: KeyedFunction, state: OperatorStateDescriptor[Any]) -> None:
    """Refuse broadcast state in a function that has no broadcast side.

    Raises
    ------
    InvalidFunctionError
    """
    if state.meta.kind is OperatorStateKind.BROADCAST and not isinstance(
        function, KeyedBroadcastProcessFunction
    ):
        raise InvalidFunctionError(
            type(function).__name__,
            f"its broadcast state {state.name!r} could never be written; derive the class from "
            "KeyedBroadcastProcessFunction, and give it rows with keyed(...).broadcast(rows)",
        )
