"""Windows as they are declared: an assigner, a trigger, an evictor and a lateness, checked together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidWindowError
from keyedstate.types import TIME_WINDOW
from keyedstate.windows.declaration.assigners import Global, MergingWindowAssigner, WindowAssigner
from keyedstate.windows.declaration.checks import check_instance
from keyedstate.windows.declaration.contents import WindowContents
from keyedstate.windows.declaration.evictors import Evictor
from keyedstate.windows.declaration.triggers import Trigger


@dataclass(frozen=True)
class WindowDefinition:
    """Which windows rows belong to, when these fire, and what they keep (Flink's ``WindowedStream``).

    Every method that is given something unusable raises `InvalidWindowError`.
    """

    assigner: WindowAssigner[Any]
    trigger: Trigger[Any]
    evictor: Evictor[Any] | None = None
    #: How long a window is kept after its end, in milliseconds of event time.
    allowed_lateness: int = 0

    @classmethod
    def of(cls, assigner: WindowAssigner[Any]) -> WindowDefinition:
        """Return the windows of an assigner, with its default trigger and evictor."""
        check_instance(WindowAssigner, "the window", assigner, "assigner", "Tumbling.of('1 hour')")
        return cls(assigner, assigner.default_trigger(), assigner.default_evictor())

    @property
    def merges(self) -> bool:
        """Whether windows may become one."""
        return isinstance(self.assigner, MergingWindowAssigner)

    @property
    def has_bounds(self) -> bool:
        """Whether windows have a start and an end, so that their results have columns for these."""
        return bool(self.assigner.window_serializer == TIME_WINDOW)

    def with_trigger(self, trigger: Trigger[Any]) -> WindowDefinition:
        """Return the same windows with another trigger, which must merge where the windows do."""
        check_instance(Trigger, "the trigger", trigger, "trigger", "CountTrigger.of(100)")
        if self.merges and not trigger.can_merge:
            raise InvalidWindowError(
                repr(trigger),
                f"it cannot merge what it remembers, and windows of {self.assigner!r} merge",
                "Use a trigger with can_merge and on_merge(), or windows that do not merge.",
            )
        return replace(self, trigger=trigger)

    def with_evictor(self, evictor: Evictor[Any]) -> WindowDefinition:
        """Return the same windows with an evictor; they keep all of their rows then."""
        check_instance(Evictor, "the evictor", evictor, "evictor", "CountEvictor.of(100)")
        return replace(self, evictor=evictor)

    def with_allowed_lateness(self, lateness: Duration) -> WindowDefinition:
        """Return the same windows, kept for a while after their end and fired again for late rows."""
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

    def check_event_time(self, *, known: bool) -> None:
        """Raise `InvalidWindowError` for windows in event time over rows without one."""
        assigner = self.assigner
        if not known and assigner.is_event_time and not isinstance(assigner, Global):
            raise InvalidWindowError(
                repr(assigner),
                "it assigns rows by their event time, and they have none",
                "Name the column, as in keyed(..., event_time=EventTime('ts', delay='10 minutes')), or use "
                "processing_time=True.",
            )

    def check_contents(self, contents: WindowContents) -> None:
        """Raise `InvalidWindowError` where windows merge and their contents cannot."""
        if self.merges and self.evictor is None and not contents.can_merge:
            raise InvalidWindowError(
                "aggregate()",
                f"its function has no merge(), and windows of {self.assigner!r} merge",
                "Define merge() on the function.",
            )
