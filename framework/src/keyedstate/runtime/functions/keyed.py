"""Process functions, which users write: Flink's ``KeyedProcessFunction`` and its broadcast sibling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

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
O = TypeVar("O", bound=OperatorStateAccessor)  # noqa: E741 - the accessor of an operator state


class Context:
    """What a process function is given with its row.

    Attributes
    ----------
    key : object
        The current key: the value of the key column, or a tuple of several columns. None is a key.
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
        #: Rows of the epoch that were dropped, by reason.
        self._dropped: Counter[str] = Counter()
        self._side_rows = side_rows
        self._key_timers: KeyTimers | None = None
        #: The keyed states that were registered, by name.
        self._states: dict[str, StateDescriptor[Any]] = {}
        self.key: Any = None
        self.epoch = epoch
        self.task = task
        self.parallelism = parallelism

    @property
    def timestamp(self) -> int | None:
        """The event time of the row in milliseconds since 1970 UTC; None if it has none."""
        return self._backend.current.timestamp

    @property
    def watermark(self) -> int:
        """The event time in milliseconds up to which all rows have come; -2**63 while it is unknown."""
        return self._timers.clock.watermark

    @property
    def timer_service(self) -> KeyTimers:
        """The timers of the current key.

        Raises
        ------
        InvalidFunctionError
            Where the function has no method that handles them.
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

        A row is a tuple, list or dict; a `VectorizedProcessFunction` gives a pyarrow.RecordBatch or Table.

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
        """Register a state and return its accessor; for states that are not class attributes, in `open`.

        A class attribute is registered already: ``ctx.state(self.count)`` is ``self.count``.

        Raises
        ------
        InvalidFunctionError
            For broadcast state in a function that has no broadcast side.
        StateError
            Where another state has the name, in this function or in the restored checkpoint.
        """
        if isinstance(descriptor, (StateAccessor, OperatorStateAccessor)):
            return descriptor
        if isinstance(descriptor, OperatorStateDescriptor):
            refuse_lone_broadcast_state(self._function, descriptor)
            return self._operator_states.get_state(descriptor)
        accessor = self._backend.get_state(descriptor)
        self._states[descriptor.name] = descriptor
        return accessor


class OnTimerContext(Context):
    """What a process function is given with the time of its timer; `time_domain` is the timer's."""

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
    """What ``process_broadcast`` is given with rows of the broadcast side; there is no current key.

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
        """Put a row out to a side output, as `Context.output`; every task does."""
        self._context._side_rows.put(name, row, None)

    def apply_to_keyed_state(self, state: H, function: Callable[[Any, H], None]) -> None:
        """Call ``function(key, state)`` for each key of this task that has the state, as the current key.

        `state` is a keyed state of the function, such as ``self.count``. `function` may read, change and
        clear every state of the key.

        Raises
        ------
        TypeError
            Where `state` is no keyed state of the function.
        """
        descriptor = self._context._states.get(getattr(state, "name", ""))
        if descriptor is None:
            raise TypeError(f"{state!r} is no keyed state of the function; give one such as self.count")
        self._context._backend.apply_to_all_keys(descriptor, function)


class KeyedFunction:
    """The base of all functions over rows with keys; derive from one of its subclasses.

    States are declared as class attributes (`keyedstate.state.ValueState`, `keyedstate.state.MapState`) or
    registered in `open`. One instance serves many keys: what belongs to a key goes into state. Any other
    attribute of ``self`` may live longer than an epoch, and may be lost at any time.

    Attributes
    ----------
    side_outputs : mapping of str to str or StructType
        The columns of each side output by its name, for `Context.output`; None for those of the input. With
        side outputs the DataFrame has a column ``output`` that names the output of each row, and a struct
        column for each output: ``main`` for the rows that the function yields.
    """

    side_outputs: Mapping[str, Any] = MappingProxyType({})
    #: Whether every task runs the function for each row of a second, small input.
    _has_broadcast_side: ClassVar[bool] = False

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> KeyedFunction:
        """Return the function for rows of these columns; itself, unless it depends on them."""
        return self

    def for_broadcast(self, schema: pa.Schema) -> KeyedFunction:
        """Return the function for broadcast rows of these columns; itself, unless it depends on them."""
        return self

    def open(self, ctx: Context) -> None:
        """Prepare; called once before the first row. Declared states are bound already."""

    def close(self) -> None:
        """Clean up; called once after the last row and after an error."""


class KeyedProcessFunction(KeyedFunction, Generic[R]):
    """Reads the rows of one key after the other, keeps state per key, and yields output rows.

    The rows of one key come in the order in which they reached the task, those of different keys in any
    order; with operator state all rows keep their order.

    ``KeyedProcessFunction[Visit]`` gets rows that are instances of `Visit`, a dataclass or NamedTuple with a
    field for each column that it needs; names and types are checked when the job is built.
    """

    def process(self, row: R, ctx: Context) -> Iterable[Any] | None:
        """Handle one row.

        Parameters
        ----------
        row : tuple
            The values, also by column name (``row.origin``) and as a dict (``row.as_dict()``). Structs are
            such rows too, arrays are lists and maps dicts.
        ctx : Context

        Returns
        -------
        iterable of rows, or None
            Usually a generator. A row is a tuple, list or dict of the declared columns.
        """
        raise NotImplementedError

    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer that was registered for the key, at its time or later; returns rows as `process`.

        Due timers fire before the rows of an epoch, those of event time first, each in the order of their
        times; and again at its end, when its rows have registered timers whose time has passed. A timer that
        is registered here and due fires in the same epoch. Without this method a function has no timers.

        Parameters
        ----------
        time : int
            The timer's, in milliseconds since 1970 UTC.
        ctx : OnTimerContext
            With the timer's key.
        """
        raise NotImplementedError

    def end_epoch(self, ctx: Context) -> Iterable[Any] | None:
        """End the epoch of one key, after its rows and timers; returns rows as `process`.

        Called once for each key that had a row or a timer in the epoch, in the order in which they came. The
        task remembers the keys until the end of the epoch if later rows or timers of these keys are possible.
        Otherwise it calls this method after the last rows of the key, and rows of other keys may follow. It
        may change state and register timers; those that are due fire in a later epoch. At the end of a batch
        DataFrame it is called after all timers, and timers that it registers never fire. Without this method
        nothing is remembered.

        Parameters
        ----------
        ctx : Context
            With the key. Its ``timestamp`` is the largest event time of the epoch's rows in this task.
        """
        raise NotImplementedError


class KeyedBroadcastProcessFunction(KeyedProcessFunction[R], Generic[R, B]):
    """Reads the rows of one key after the other, and every row of a second, small DataFrame.

    The second one is the broadcast side: rules, prices, a list of sensors. Every task runs
    `process_broadcast` for each of its rows, so its `keyedstate.state.BroadcastState` is the same in all
    tasks; `process` reads it and cannot change it.

    ``KeyedBroadcastProcessFunction[Visit, Rule]`` names the classes of rows with keys and of broadcast rows.
    """

    _has_broadcast_side = True

    def process_broadcast(self, row: B, ctx: BroadcastContext) -> Iterable[Any] | None:
        """Handle one row of the broadcast side; takes and returns rows as `process`.

        It may depend only on the row and the broadcast state, or the tasks would differ. Every task puts out
        the rows that it yields.
        """
        raise NotImplementedError


def refuse_lone_broadcast_state(function: KeyedFunction, state: OperatorStateDescriptor[Any]) -> None:
    """Refuse broadcast state in a function that has no broadcast side; raises `InvalidFunctionError`."""
    if state.meta.kind is OperatorStateKind.BROADCAST and not function._has_broadcast_side:
        raise InvalidFunctionError(
            type(function).__name__,
            f"its broadcast state {state.name!r} could never be written; derive the class from "
            "KeyedBroadcastProcessFunction, and give it rows with keyed(...).broadcast(rows)",
        )
