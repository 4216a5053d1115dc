"""Windows over the rows of a key: assigners, triggers and evictors, under Flink's names."""

from keyedstate.types import GLOBAL_WINDOW, TIME_WINDOW, GlobalWindow, TimeWindow
from keyedstate.window.assigners import (
    AssignerContext,
    Count,
    Global,
    MergingWindowAssigner,
    Sliding,
    Tumbling,
    Window,
    WindowAssigner,
    WindowStagger,
)
from keyedstate.window.combined import (
    AllTrigger,
    AnyTrigger,
    DeltaTrigger,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
)
from keyedstate.window.continuous import ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger
from keyedstate.window.errors import (
    InvalidGapError,
    InvalidWindowError,
    LateMergeError,
    MissingTimestampError,
    PerWindowStateError,
    WindowError,
)
from keyedstate.window.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    EvictorContext,
    TimeEvictor,
    TimestampedValue,
)
from keyedstate.window.merging import MergingWindowSet
from keyedstate.window.sessions import Session
from keyedstate.window.triggers import (
    CountTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    OnMergeContext,
    ProcessingTimeTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)

__all__ = [
    "GLOBAL_WINDOW",
    "TIME_WINDOW",
    "AllTrigger",
    "AnyTrigger",
    "AssignerContext",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "Count",
    "CountEvictor",
    "CountTrigger",
    "DeltaEvictor",
    "DeltaTrigger",
    "EndOfStreamTrigger",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
    "Global",
    "GlobalWindow",
    "InvalidGapError",
    "InvalidWindowError",
    "LateMergeError",
    "MergingWindowAssigner",
    "MergingWindowSet",
    "MissingTimestampError",
    "NeverTrigger",
    "OnMergeContext",
    "PerWindowStateError",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "Session",
    "Sliding",
    "TimeEvictor",
    "TimeWindow",
    "TimestampedValue",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "Tumbling",
    "Window",
    "WindowAssigner",
    "WindowError",
    "WindowStagger",
]
