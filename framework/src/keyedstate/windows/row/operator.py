"""The window operator: adds rows to windows, and calls the function of those that their trigger fires.

Flink's ``WindowOperator`` and ``EvictingWindowOperator``, rule by rule, over the keyed state and the timers
of one task.  It works on the backend's current key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keyedstate.errors import InvalidWindowError
from keyedstate.state import ListState, StateAccessor, StateDescriptor, ValueState
from keyedstate.state.clock import END_OF_TIME
from keyedstate.state.kinds.merging import MergingStateAccessor
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import Timer, TimerService, TimerServices
from keyedstate.types import INT64, TypeSerializer, nullable, tuple_of
from keyedstate.windows.declaration.assigners import (
    MergingWindowAssigner,
    Sliding,
    Tumbling,
    window_start,
)
from keyedstate.windows.declaration.contents import CONTENTS, WindowContents
from keyedstate.windows.declaration.contexts import H, OnMergeContext, WindowContext
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.evictors import TimestampedValue
from keyedstate.windows.declaration.function import ProcessWindowFunction
from keyedstate.windows.declaration.triggers import EventTimeTrigger, Trigger, TriggerResult, named_within
from keyedstate.windows.row.merging import MergingWindowSet

#: Identical to no key.
_NO_KEY = object()
_ONLY_CONTINUE = {TriggerResult.CONTINUE}
#: What assigns windows that begin and end in steps.
_STEPPING = (Tumbling.assign_windows, Sliding.assign_windows)

#: The names of timers and states in checkpoints, Flink's where it has them.
TIMERS = "window-timers"
MERGING_SET = "merging-window-set"
FIRST_TIME = "window-first-time"
TRIGGER_STATE = "trigger."


def check_state_name(name: str) -> None:
    """Raise `InvalidWindowError` for a function's state under a name that windows use themselves."""
    if name in (CONTENTS, MERGING_SET, FIRST_TIME) or name.startswith(TRIGGER_STATE):
        raise InvalidWindowError(f"the state {name!r}", "windows use that name", "Give it another name.")


class WindowOperator:
    """Runs windows over the rows of the keys of one task.

    It calls `emit` with the rows of a firing, `output` with the name of a side output and a row for it, and
    `late` with a row that is too late for all of its windows.
    """

    def __init__(
        self,
        definition: WindowDefinition,
        contents: WindowContents,
        function: ProcessWindowFunction,
        element_type: TypeSerializer[Any],
        *,
        backend: KeyedStateBackend,
        timers: TimerServices,
        emit: Callable[[Iterable[Any]], None],
        output: Callable[[str, Any], None],
        late: Callable[[Any], None],
    ) -> None:
        definition.check_contents(contents)
        assigner = definition.assigner
        self._assigner = assigner
        #: The assigner, where windows may become one.
        self.merging = assigner if isinstance(assigner, MergingWindowAssigner) else None
        self._in_event_time = assigner.is_event_time
        self._lateness = definition.allowed_lateness
        self._trigger: Trigger[Any] = definition.trigger.for_elements(element_type)
        self._evictor = definition.evictor
        self._contents = contents
        self._function = function
        self._emit = emit
        self._late = late
        self._service = timers.service(TIMERS, self, assigner.window_serializer)
        self._register_cleanup, self._delete_cleanup = (
            (self._service.register_event_time_timer, self._service.delete_event_time_timer)
            if self._in_event_time
            else (self._service.register_processing_time_timer, self._service.delete_processing_time_timer)
        )
        self._ctx = _OperatorContext(self, backend, self._service, assigner.window_serializer, output)
        self._descriptor: StateDescriptor[Any]
        if self._evictor is None:
            self._descriptor = contents.descriptor(element_type)
        else:
            self._descriptor = ListState(CONTENTS, tuple_of(element_type, nullable(INT64)))
        fires_at_end = type(self._trigger) is EventTimeTrigger and self._in_event_time
        #: Whether the trigger's timer is also the one of the window's cleanup.
        self._fires_once = fires_at_end and not self._lateness
        #: The assigner, where the windows of the last row are remembered.
        self._stepping: Tumbling | Sliding | None = None
        if fires_at_end and self._evictor is None and type(assigner).assign_windows in _STEPPING:
            assert isinstance(assigner, (Tumbling, Sliding))
            self._stepping = assigner
        #: The windows of the last row, its key, and the accessor of their contents: a further row of the key
        #: from `_recent_start` to `_recent_end` is in the same ones, whose timers are registered.
        self._recent_key: object = _NO_KEY
        self._recent_start = self._recent_end = 0
        self._recent_windows: Sequence[Any] = ()
        self._recent_contents: Any = None
        self._current = backend.current
        self._mapping: Any = None
        if self.merging is not None:
            window = assigner.window_serializer
            self._mapping = backend.get_state(ListState(MERGING_SET, tuple_of(window, window)))

    # -- rows ---------------------------------------------------------------------------------------------

    def process(self, row: Any, timestamp: int | None) -> None:
        """Add a row of the current key, with its event time in milliseconds, to its windows."""
        if (
            self._recent_key is self._current.key
            and timestamp is not None
            and self._recent_start <= timestamp < self._recent_end
        ):
            contents = self._recent_contents
            if len(self._recent_windows) > 1:
                for window in self._recent_windows:
                    contents.set_namespace(window)
                    contents.add(row)
            else:
                # The accessor is at this window still.
                contents.add(row)
            return
        windows = self._assigner.assign_windows(row, timestamp, self._ctx)
        if self.merging is None:
            watermark = self._service.current_watermark if self._in_event_time else None
            live = [one for one in windows if watermark is None or self._cleanup_time(one) > watermark]
            skipped = not live
            results = {self._add(row, timestamp, window, window) for window in live}
            if self._stepping is not None and results == _ONLY_CONTINUE and timestamp is not None:
                self._remember(timestamp, live, self._stepping)
        else:
            skipped = self._process_merging(self.merging, row, timestamp, windows)
        # A row that is in no window at all is not late, unless it is late itself.
        if skipped and self._in_event_time and timestamp is not None:
            skipped = timestamp + self._lateness <= self._service.current_watermark
            if skipped:
                self._late(row)

    def _process_merging(
        self, assigner: MergingWindowAssigner[Any], row: Any, timestamp: int | None, windows: Iterable[Any]
    ) -> bool:
        merging = MergingWindowSet(assigner, self._mapping.get())
        skipped = True
        for window in windows:
            actual = merging.add(window, self._merge)
            if self._is_late(actual):
                merging.retire(actual)
                continue
            skipped = False
            self._add(row, timestamp, actual, merging.state_window(actual))
        self._keep(merging)
        return skipped

    def _merge(self, merged: Any, parts: list[Any], target: Any, others: list[Any]) -> None:
        """Merge the trigger's state, the timers and the contents of windows that have become one."""
        if self._is_over(merged):
            raise InvalidWindowError(
                repr(merged),
                f"it was merged of others, and it ended before the present time {self._now} of its time line",
                "Make merge_windows() of the assigner give windows that end no earlier than their parts.",
            )
        ctx = self._ctx
        ctx.window, ctx.merged = merged, parts
        self._trigger.on_merge(merged, ctx)
        for window in parts:
            self._clear_trigger(window)
        self._contents_at(target).merge_namespaces(target, others)

    def _remember(self, timestamp: int, windows: Sequence[Any], assigner: Tumbling | Sliding) -> None:
        # Between two times at which a window begins or ends, all rows are in the same ones.
        step, begin = assigner.step, assigner.offset
        began, ended = (window_start(timestamp, at, step) for at in (begin, begin + assigner.size))
        self._recent_start, self._recent_end = max(began, ended), min(began, ended) + step
        self._recent_key = self._current.key
        self._recent_windows = windows
        self._recent_contents = self._contents_at(windows[-1])

    def _add(self, row: Any, timestamp: int | None, window: Any, namespace: Any) -> TriggerResult:
        # Whatever fails here, the accessor is that of another window from now on.
        self._recent_key = _NO_KEY
        contents = self._contents_at(namespace)
        contents.add(row if self._evictor is None else (row, timestamp))
        ctx = self._ctx
        ctx.window = window
        result = self._trigger.on_element(row, timestamp, window, ctx)
        self._act(result, window, namespace)
        if not self._fires_once:
            cleanup = self._cleanup_time(window)
            if cleanup != END_OF_TIME:
                self._register_cleanup(window, cleanup)
        return result

    # -- timers -------------------------------------------------------------------------------------------

    def on_event_time(self, timer: Timer) -> None:
        """Call the trigger, and remove the window if this is its cleanup time."""
        self._on_timer(timer, self._trigger.on_event_time, in_event_time=True)

    def on_processing_time(self, timer: Timer) -> None:
        """Call the trigger, and remove the window if this is its cleanup time."""
        self._on_timer(timer, self._trigger.on_processing_time, in_event_time=False)

    def _on_timer(
        self, timer: Timer, trigger: Callable[[int, Any, Any], TriggerResult], *, in_event_time: bool
    ) -> None:
        window = namespace = timer.namespace
        self._recent_key = _NO_KEY
        merging = None
        if self.merging is not None:
            merging = MergingWindowSet(self.merging, self._mapping.get())
            namespace = merging.state_window(window)
            if namespace is None:
                return  # a trigger's timer of a window that was removed or merged into another one
        self._ctx.window = window
        self._act(trigger(timer.time, window, self._ctx), window, namespace)
        if self.is_cleanup_time(window, timer.time, in_event_time=in_event_time):
            self._contents_at(namespace).clear()
            self._clear_trigger(window)
            self._ctx.window = window
            self._function.clear(self._ctx)
            if merging is not None:
                merging.retire(window)
                self._keep(merging)

    # -- firing -------------------------------------------------------------------------------------------

    def _act(self, result: TriggerResult, window: Any, namespace: Any) -> None:
        if result.fires:
            self._ctx.window = window
            if self._evictor is None:
                contents = self._contents.read(self._contents_at(namespace))
                if contents is not None:
                    self._call(contents)
            else:
                self._fire_evicting(window, namespace)
        if result.purges:
            self._contents_at(namespace).clear()

    def _fire_evicting(self, window: Any, namespace: Any) -> None:
        evictor, ctx = self._evictor, self._ctx
        assert evictor is not None
        stored = [TimestampedValue(*element) for element in self._contents_at(namespace).get()]
        if not stored:
            return
        # A copy, because an evictor may change the list.
        elements = evictor.evict_before(stored.copy(), window, ctx)
        if elements:
            self._call(self._contents.of_rows([element.value for element in elements]))
        elements = evictor.evict_after(elements, window, ctx)
        if elements != stored:
            self._contents_at(namespace).update([tuple(element) for element in elements])

    def _call(self, contents: Any) -> None:
        rows = self._function.process(contents, self._ctx)
        if rows is not None:
            self._emit(rows)

    # -- the life of a window -----------------------------------------------------------------------------

    def _contents_at(self, namespace: Any) -> Any:
        return self._ctx.at(self._descriptor, namespace)

    def _cleanup_time(self, window: Any) -> int:
        end: int = window.max_timestamp
        return min(end + self._lateness, END_OF_TIME) if self._in_event_time else end

    @property
    def _now(self) -> int:
        service = self._service
        return service.current_watermark if self._in_event_time else service.current_processing_time

    def _is_over(self, window: Any) -> bool:
        """Return whether the cleanup time of a window has come."""
        return self._cleanup_time(window) <= self._now

    def _is_late(self, window: Any) -> bool:
        return self._in_event_time and self._is_over(window)

    def _clear_trigger(self, window: Any) -> None:
        """Remove the trigger's state of a window, its timers and those of the operator."""
        ctx = self._ctx
        ctx.window, ctx.clearing = window, True
        try:
            self._trigger.clear(window, ctx)
        finally:
            ctx.clearing = False
        self._delete_cleanup(window, self._cleanup_time(window))

    def is_cleanup_time(self, window: Any, time: int, *, in_event_time: bool) -> bool:
        """Return whether a timer of a window is its cleanup timer."""
        return in_event_time is self._in_event_time and time == self._cleanup_time(window)

    def _keep(self, merging: MergingWindowSet[Any]) -> None:
        if merging.changed:
            self._mapping.update(merging.entries)


class _OperatorContext(OnMergeContext, WindowContext):
    """The context of assigner, trigger, evictor and function, for the current key and window."""

    window: Any = None
    #: While windows merge, the parts of the present one.
    merged: Sequence[Any] = ()
    #: Whether the window is being removed, so that its cleanup timer may be deleted.
    clearing = False

    def __init__(
        self,
        operator: WindowOperator,
        backend: KeyedStateBackend,
        service: TimerService,
        serializer: TypeSerializer[Any],
        output: Callable[[str, Any], None],
    ) -> None:
        self._operator = operator
        self._backend = backend
        self._current = backend.current
        self._service = service
        self._serializer = serializer
        #: Accessors of states with the window as namespace, by the names in checkpoints.
        self._accessors: dict[str, Any] = {}
        self._first_time = ValueState(FIRST_TIME, INT64)
        self._output = output

    @property
    def key(self) -> Any:
        return self._current.key

    @property
    def key_group(self) -> int:
        group: int = self._current.key_group
        return group

    @property
    def current_watermark(self) -> int:
        return self._service.current_watermark

    @property
    def current_processing_time(self) -> int:
        return self._service.current_processing_time

    @property
    def first_processing_time(self) -> int:
        state = self._backend.get_state(self._first_time)
        time: int | None = state.value()
        if time is None:
            time = self.current_processing_time
            state.update(time)
        return time

    # -- timers -------------------------------------------------------------------------------------------

    def register_event_time_timer(self, time: int) -> None:
        self._service.register_event_time_timer(self.window, time)

    def register_processing_time_timer(self, time: int) -> None:
        self._service.register_processing_time_timer(self.window, time)

    # A trigger must not delete the operator's cleanup timer, which may be at the same time as its own.

    def delete_event_time_timer(self, time: int) -> None:
        if self.clearing or not self._operator.is_cleanup_time(self.window, time, in_event_time=True):
            self._service.delete_event_time_timer(self.window, time)

    def delete_processing_time_timer(self, time: int) -> None:
        if self.clearing or not self._operator.is_cleanup_time(self.window, time, in_event_time=False):
            self._service.delete_processing_time_timer(self.window, time)

    # -- states -------------------------------------------------------------------------------------------

    def at(self, descriptor: StateDescriptor[H], namespace: Any) -> H:
        """Return the accessor of a state at a window."""
        accessor: H | None = self._accessors.get(descriptor.name)
        if accessor is None:
            accessor = self._backend.get_state(descriptor, namespace, self._serializer)
            self._accessors[descriptor.name] = accessor
        else:
            accessor.set_namespace(namespace)
        return accessor

    def state(self, descriptor: StateDescriptor[H] | H) -> H:
        accessor: H | None = self._accessors.get(TRIGGER_STATE + descriptor.name)
        if accessor is None:
            return self.at(named_within(TRIGGER_STATE, descriptor), self.window)
        accessor.set_namespace(self.window)
        return accessor

    def merge_state(self, descriptor: StateDescriptor[Any] | StateAccessor) -> None:
        accessor = self.state(descriptor)
        if not isinstance(accessor, MergingStateAccessor):
            raise InvalidWindowError(
                f"the trigger's state {descriptor.name!r}",
                "its kind does not merge",
                "Use list, reducing or aggregating state.",
            )
        accessor.merge_namespaces(self.window, self.merged)

    def window_state(self, descriptor: StateDescriptor[H]) -> H:
        check_state_name(descriptor.name)
        if isinstance(descriptor, StateAccessor):
            raise InvalidWindowError(
                f"the state {descriptor.name!r}",
                "as a class attribute of the function it belongs to the key",
                "Declare state of a window elsewhere, as in ctx.window_state(ValueState(...)).",
            )
        if self._operator.merging is not None:
            raise InvalidWindowError(
                f"the state {descriptor.name!r} of one window",
                "these windows merge",
                "Use ctx.global_state(), which belongs to the key, or windows that do not merge.",
            )
        return self.at(descriptor, self.window)

    def global_state(self, descriptor: StateDescriptor[H] | H) -> H:
        if isinstance(descriptor, StateAccessor):
            return descriptor
        check_state_name(descriptor.name)
        return self._backend.get_state(descriptor)

    def output(self, name: str, row: Any) -> None:
        self._output(name, row)
