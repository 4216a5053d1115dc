"""Windows as they are declared: an assigner and what belongs to it, checked together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidWindowError, forgotten_call
from keyedstate.windows.declaration.assigners import MergingWindowAssigner, WindowAssigner
from keyedstate.windows.declaration.contents import WindowContents
from keyedstate.windows.declaration.evictors import Evictor
from keyedstate.windows.declaration.triggers import Trigger


@dataclass(frozen=True)
class WindowDefinition:
    """Which windows rows belong to, when these fire, and what they keep (Flink's ``WindowedStream``).

    Attributes
    ----------
    assigner : WindowAssigner
    trigger : Trigger
    evictor : Evictor or None
    allowed_lateness : int
        How long a window stays after its end, in milliseconds of event time.
    """

    assigner: WindowAssigner[Any]
    trigger: Trigger[Any]
    evictor: Evictor[Any] | None = None
    allowed_lateness: int = 0

    @classmethod
    def of(cls, assigner: WindowAssigner[Any]) -> WindowDefinition:
        """Return the windows of an assigner, with the trigger and the evictor that are its own.

        Raises
        ------
        InvalidWindowError
            For what is no assigner.
        """
        if not isinstance(assigner, WindowAssigner):
            raise InvalidWindowError(
                "the window",
                f"it is {assigner!r}, which is no assigner{forgotten_call(assigner)}",
                "Give one as Tumbling.of('1 hour').",
            )
        return cls(assigner, assigner.default_trigger(), assigner.default_evictor())

    @property
    def merges(self) -> bool:
        """Whether windows may become one."""
        return isinstance(self.assigner, MergingWindowAssigner)

    def with_trigger(self, trigger: Trigger[Any]) -> WindowDefinition:
        """Return the same with another trigger.

        Raises
        ------
        InvalidWindowError
            For what is no trigger, and for one that cannot merge where windows do.
        """
        if not isinstance(trigger, Trigger):
            raise InvalidWindowError(
                "the trigger",
                f"it is {trigger!r}, which is no trigger{forgotten_call(trigger)}",
                "Give one as CountTrigger.of(100).",
            )
        if self.merges and not trigger.can_merge:
            raise InvalidWindowError(
                repr(trigger),
                f"it cannot merge what it remembers, and windows of {self.assigner!r} merge",
                "Use a trigger with can_merge and on_merge(), or windows that do not merge.",
            )
        return replace(self, trigger=trigger)

    def with_evictor(self, evictor: Evictor[Any]) -> WindowDefinition:
        """Return the same with an evictor; all rows of a window are kept then.

        Raises
        ------
        InvalidWindowError
            For what is no evictor.
        """
        if not isinstance(evictor, Evictor):
            raise InvalidWindowError(
                "the evictor",
                f"it is {evictor!r}, which is no evictor{forgotten_call(evictor)}",
                "Give one as CountEvictor.of(100).",
            )
        return replace(self, evictor=evictor)

    def with_allowed_lateness(self, lateness: Duration) -> WindowDefinition:
        """Return the same with windows that stay for a while after their end, and fire again for late rows.

        Raises
        ------
        InvalidWindowError
            For a negative one, and in processing time, where no row is late.
        InvalidDurationError
        """
        ms = milliseconds(lateness)
        if ms < 0:
            raise InvalidWindowError("the allowed lateness", f"it is {lateness!r}", "Give 0 or more.")
        self.refuse_processing_time("the allowed lateness")
        return replace(self, allowed_lateness=ms)

    def refuse_processing_time(self, part: str) -> None:
        """Raise `InvalidWindowError` where rows are assigned by the clock, by which none is late."""
        if not self.assigner.is_event_time:
            raise InvalidWindowError(
                part,
                f"rows are assigned to {self.assigner!r} by the clock, so that none is late",
                "Leave it out, or use windows in event time.",
            )

    def check_contents(self, contents: WindowContents) -> None:
        """Raise `InvalidWindowError` where windows merge and what they keep cannot."""
        if self.merges and self.evictor is None and not contents.can_merge:
            raise InvalidWindowError(
                "aggregate()",
                f"its function has no merge(), and windows of {self.assigner!r} merge",
                "Define merge() on the function.",
            )
