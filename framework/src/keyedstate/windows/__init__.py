"""Windows over the rows of a key: assigners, triggers and evictors, under Flink's names."""

from keyedstate.runtime.event_time import MISSING
from keyedstate.types import GLOBAL_WINDOW, TIME_WINDOW, GlobalWindow, TimeWindow
from keyedstate.windows.builder import Windowed, WindowOutput, windowed
from keyedstate.windows.declaration.assigners import (
    Count,
    Global,
    MergingWindowAssigner,
    Sliding,
    Tumbling,
    Window,
    WindowAssigner,
    WindowStagger,
)
from keyedstate.windows.declaration.combined_triggers import (
    AllTrigger,
    AnyTrigger,
    DeltaTrigger,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
)
from keyedstate.windows.declaration.contexts import (
    AssignerContext,
    EvictorContext,
    OnMergeContext,
    TriggerContext,
)
from keyedstate.windows.declaration.continuous_triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
)
from keyedstate.windows.declaration.evictors import (
    CountEvictor,
    DeltaEvictor,
    Evictor,
    TimeEvictor,
    TimestampedValue,
)
from keyedstate.windows.declaration.function import ProcessWindowFunction
from keyedstate.windows.declaration.sessions import Session
from keyedstate.windows.declaration.triggers import (
    CountTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
    TriggerResult,
)
from keyedstate.windows.row.merging import MergingWindowSet
from keyedstate.windows.row.process_function import WINDOW_END, WINDOW_START, WindowedFunction

__all__ = [
    "GLOBAL_WINDOW",
    "MISSING",
    "TIME_WINDOW",
    "WINDOW_END",
    "WINDOW_START",
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
    "MergingWindowAssigner",
    "MergingWindowSet",
    "NeverTrigger",
    "OnMergeContext",
    "ProcessWindowFunction",
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
    "WindowOutput",
    "WindowStagger",
    "Windowed",
    "WindowedFunction",
    "windowed",
]
