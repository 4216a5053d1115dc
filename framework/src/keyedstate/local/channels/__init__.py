"""The channels between tasks: elements, the input gates that align or track barriers, and watermarks.

Everything here is single-threaded and has no processes, files or clocks: time is passed in.
"""

from keyedstate.local.channels.actions import (
    AbortCheckpoint,
    AbortReason,
    Action,
    CompleteCheckpoint,
    Process,
    TakeSnapshot,
)
from keyedstate.local.channels.barrier_aligner import BarrierAligner
from keyedstate.local.channels.barrier_tracker import BarrierTracker
from keyedstate.local.channels.elements import (
    Barrier,
    BarrierAnnouncement,
    CancellationBarrier,
    Element,
    EndOfChannel,
    InFlight,
    Watermark,
    WatermarkStatus,
)
from keyedstate.local.channels.input_gate import InputGate
from keyedstate.local.channels.watermark_alignment import WatermarkAlignment
from keyedstate.local.channels.watermark_valve import WatermarkValve

__all__ = [
    "AbortCheckpoint",
    "AbortReason",
    "Action",
    "Barrier",
    "BarrierAligner",
    "BarrierAnnouncement",
    "BarrierTracker",
    "CancellationBarrier",
    "CompleteCheckpoint",
    "Element",
    "EndOfChannel",
    "InFlight",
    "InputGate",
    "Process",
    "TakeSnapshot",
    "Watermark",
    "WatermarkAlignment",
    "WatermarkStatus",
    "WatermarkValve",
]
