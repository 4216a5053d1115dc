"""Triggers made of others, and the one that compares rows: purging, timeout, any, all, delta."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

from keyedstate.durations import Duration
from keyedstate.errors import InvalidWindowError
from keyedstate.state import ReducingState, StateAccessor, StateDescriptor, ValueState
from keyedstate.types import INT64, TypeSerializer
from keyedstate.windows.declaration.checks import check_delta, check_instance, positive
from keyedstate.windows.declaration.contexts import H, OnMergeContext, TriggerContext
from keyedstate.windows.declaration.triggers import Trigger, TriggerResult, named_within

C = TypeVar("C", bound="_Combined")


class PurgingTrigger(Trigger[Any]):
    """Removes the contents of a window whenever another trigger fires; use `of`."""

    def __init__(self, nested: Trigger[Any]) -> None:
        self.nested = nested
        self.can_merge = nested.can_merge

    @classmethod
    def of(cls, nested: Trigger[Any]) -> PurgingTrigger:
        """Return the trigger around another one."""
        _check_trigger(cls.__name__, nested)
        return cls(nested)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        return _purging(self.nested.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested.on_processing_time(time, window, ctx))

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        self.nested.on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        self.nested.clear(window, ctx)

    def for_elements(self, element_type: TypeSerializer[Any]) -> PurgingTrigger:
        return type(self)(self.nested.for_elements(element_type))

    def __repr__(self) -> str:
        return f"PurgingTrigger.of({self.nested!r})"


class ProcessingTimeoutTrigger(Trigger[Any]):
    """Fires when another trigger does, or after a timeout by the clock; use `of`."""

    def __init__(
        self,
        nested: Trigger[Any],
        timeout: int,
        reset_timer_on_new_record: bool,
        should_clear_on_timeout: bool,
    ) -> None:
        self.nested = nested
        self.timeout = timeout
        self._resets = reset_timer_on_new_record
        self._clears = should_clear_on_timeout
        self._due = ValueState("timeout", INT64)

    @classmethod
    def of(
        cls,
        nested: Trigger[Any],
        timeout: Duration,
        *,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> ProcessingTimeoutTrigger:
        """Return the trigger around another one.

        Parameters
        ----------
        nested : Trigger
        timeout : str, timedelta or int
        reset_timer_on_new_record : bool, default False
            Whether the timeout counts from the last row and not from the first one.
        should_clear_on_timeout : bool, default True
            Whether the other trigger is cleared after a timeout.
        """
        _check_trigger(cls.__name__, nested)
        timeout_ms = positive(cls.__name__, "the timeout", timeout)
        return cls(nested, timeout_ms, reset_timer_on_new_record, should_clear_on_timeout)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        result = self.nested.on_element(element, timestamp, window, ctx)
        if result.fires:
            self.clear(window, ctx)
            return result
        state = ctx.state(self._due)
        # The old timer stays, since the other trigger may have one of the same time; this one ignores it.
        if self._resets or state.value() is None:
            due = ctx.current_processing_time + self.timeout
            state.update(due)
            ctx.register_processing_time_timer(due)
        return result

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._clear_if_fired(self.nested.on_event_time(time, window, ctx), window, ctx)

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        result = self.nested.on_processing_time(time, window, ctx)
        if ctx.state(self._due).value() != time:
            return self._clear_if_fired(result, window, ctx)
        ctx.state(self._due).clear()
        if self._clears:
            self.nested.clear(window, ctx)
        return TriggerResult.of(True, result.purges)

    def _clear_if_fired(self, result: TriggerResult, window: Any, ctx: TriggerContext) -> TriggerResult:
        if result.fires and self._clears:
            self.clear(window, ctx)
        return result

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        state = ctx.state(self._due)
        due: int | None = state.value()
        if due is not None:
            ctx.delete_processing_time_timer(due)
            state.clear()
        self.nested.clear(window, ctx)

    def for_elements(self, element_type: TypeSerializer[Any]) -> ProcessingTimeoutTrigger:
        nested = self.nested.for_elements(element_type)
        return type(self)(nested, self.timeout, self._resets, self._clears)

    def __repr__(self) -> str:
        return f"ProcessingTimeoutTrigger.of({self.nested!r}, {self.timeout})"


class DeltaTrigger(Trigger[Any]):
    """Fires when a row is far from the row at which the window fired last; use `of`."""

    def __init__(
        self,
        threshold: float,
        delta_function: Callable[[Any, Any], float],
        element_type: TypeSerializer[Any] | None = None,
    ) -> None:
        self.threshold = threshold
        self.delta_function = delta_function
        self._last = None if element_type is None else ValueState("last-element", element_type)

    @classmethod
    def of(cls, threshold: float, delta_function: Callable[[Any, Any], float]) -> DeltaTrigger:
        """Return a trigger that fires where ``delta_function(last, row)`` is above the threshold.

        The first row of a window is the first to compare with.
        """
        check_delta(cls.__name__, threshold, delta_function)
        return cls(threshold, delta_function)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        assert self._last is not None, "for_elements() comes first"
        state = ctx.state(self._last)
        last = state.value()
        if last is None:
            state.update(element)
            return TriggerResult.CONTINUE
        if self.delta_function(last, element) > self.threshold:
            state.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        assert self._last is not None, "for_elements() comes first"
        ctx.state(self._last).clear()

    def for_elements(self, element_type: TypeSerializer[Any]) -> DeltaTrigger:
        return type(self)(self.threshold, self.delta_function, element_type)

    def __repr__(self) -> str:
        return f"DeltaTrigger.of({self.threshold}, {self.delta_function!r})"


class _Combined(Trigger[Any]):
    """Several triggers, each with state of its own, called for every row and timer in their order."""

    def __init__(self, triggers: tuple[Trigger[Any], ...]) -> None:
        self.triggers = triggers
        self.can_merge = all(trigger.can_merge for trigger in triggers)

    @classmethod
    def of(cls: type[C], *triggers: Trigger[Any]) -> C:
        """Return the trigger of several."""
        if len(triggers) < 2:
            way_out = "Give two at least, or use the one itself."
            raise InvalidWindowError(cls.__name__, f"it has {len(triggers)} trigger(s)", way_out)
        for trigger in triggers:
            _check_trigger(cls.__name__, trigger)
        return cls(triggers)

    def _combine(self, results: list[TriggerResult], ctx: TriggerContext) -> TriggerResult:
        raise NotImplementedError

    def _call_all(
        self, ctx: TriggerContext, call: Callable[[Trigger[Any], TriggerContext], TriggerResult]
    ) -> TriggerResult:
        results = [call(trigger, _OwnContext(ctx, number)) for number, trigger in enumerate(self.triggers)]
        return self._combine(results, ctx)

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        return self._call_all(ctx, lambda trigger, own: trigger.on_element(element, timestamp, window, own))

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._call_all(ctx, lambda trigger, own: trigger.on_event_time(time, window, own))

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._call_all(ctx, lambda trigger, own: trigger.on_processing_time(time, window, own))

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        for number, trigger in enumerate(self.triggers):
            trigger.on_merge(window, _OwnOnMergeContext(ctx, number))

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        for number, trigger in enumerate(self.triggers):
            trigger.clear(window, _OwnContext(ctx, number, clearing=True))

    def for_elements(self, element_type: TypeSerializer[Any]) -> Trigger[Any]:
        return type(self)(tuple(trigger.for_elements(element_type) for trigger in self.triggers))

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({', '.join(map(repr, self.triggers))})"


class AnyTrigger(_Combined):
    """Fires when one of several triggers does; the others keep their state.  Use `of`."""

    def _combine(self, results: list[TriggerResult], ctx: TriggerContext) -> TriggerResult:
        fires = any(result.fires for result in results)
        return TriggerResult.of(fires, any(result.purges for result in results))


class AllTrigger(_Combined):
    """Fires when each of several triggers has fired since its own last firing; use `of`.

    It purges where one of them does, but not before it fires.
    """

    def __init__(self, triggers: tuple[Trigger[Any], ...]) -> None:
        super().__init__(triggers)
        #: One bit for each trigger that has fired, and those above for each that wants to purge.
        self._fired = ReducingState("fired", operator.or_, INT64)

    @classmethod
    def of(cls, *triggers: Trigger[Any]) -> AllTrigger:
        if len(triggers) > _MOST:
            raise InvalidWindowError(
                cls.__name__, f"it has {len(triggers)} triggers", f"Give {_MOST} at most."
            )
        return super().of(*triggers)

    def _combine(self, results: list[TriggerResult], ctx: TriggerContext) -> TriggerResult:
        fired = purging = 0
        for number, result in enumerate(results):
            fired |= result.fires << number
            purging |= result.purges << number
        if not fired and not purging:
            return TriggerResult.CONTINUE
        state, number = ctx.state(self._fired), len(results)
        before = state.get() or 0
        bits = before | fired | purging << number
        everyone = (1 << number) - 1
        if bits & everyone == everyone:
            state.clear()
            return TriggerResult.of(True, bits > everyone)
        if bits != before:
            state.add(bits)
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        """Merge all; a trigger that fired for one of the windows has fired for the merged one."""
        ctx.merge_state(self._fired)
        super().on_merge(window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.state(self._fired).clear()
        super().clear(window, ctx)


#: Two bits for each trigger in a signed 64-bit number.
_MOST = 31


class _OwnContext(TriggerContext):
    """The context of one of several triggers of a window."""

    def __init__(self, ctx: TriggerContext, number: int, *, clearing: bool = False) -> None:
        self._ctx = ctx
        self._prefix = f"{number}."
        self._clearing = clearing

    @property
    def current_watermark(self) -> int:
        return self._ctx.current_watermark

    @property
    def current_processing_time(self) -> int:
        return self._ctx.current_processing_time

    def register_event_time_timer(self, time: int) -> None:
        self._ctx.register_event_time_timer(time)

    def register_processing_time_timer(self, time: int) -> None:
        self._ctx.register_processing_time_timer(time)

    # Another trigger may have a timer of the same time, so timers are deleted with the window only.

    def delete_event_time_timer(self, time: int) -> None:
        if self._clearing:
            self._ctx.delete_event_time_timer(time)

    def delete_processing_time_timer(self, time: int) -> None:
        if self._clearing:
            self._ctx.delete_processing_time_timer(time)

    def state(self, descriptor: StateDescriptor[H] | H) -> H:
        return self._ctx.state(named_within(self._prefix, descriptor))


class _OwnOnMergeContext(_OwnContext, OnMergeContext):
    _ctx: OnMergeContext

    def merge_state(self, descriptor: StateDescriptor[Any] | StateAccessor) -> None:
        self._ctx.merge_state(named_within(self._prefix, descriptor))


def _check_trigger(part: str, given: object) -> None:
    check_instance(Trigger, part, given, "trigger", "CountTrigger.of(100)")


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.fires else result
