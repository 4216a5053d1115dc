"""Time to live of state: the rules of Flink's, in processing time or event time."""

from keyedstate.state.ttl.config import IncrementalCleanup, Ttl, TtlClock, UpdateType, Visibility

__all__ = ["IncrementalCleanup", "Ttl", "TtlClock", "UpdateType", "Visibility"]
