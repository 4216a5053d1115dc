"""The options of the backend; those of the classic policy have the defaults of FLIP-50."""

from __future__ import annotations

import re
from typing import Any

from keyedstate.config import ConfigOption, boolean, duration, fraction, integer, string

BACKEND = "spillable"
MIB = 1 << 20
_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])i?b?|b)?", re.IGNORECASE)
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate("kmgt", 1)}


def _size_or_fraction(value: object) -> int | float:
    """Return bytes as an int, or a fraction as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    size = _SIZE.fullmatch(str(value).strip())
    if size is None:
        part = float(value)
        if not 0.0 < part < 1.0:
            raise ValueError
        return part
    number = int(size[1]) * (_UNITS[size[2].lower()] if size[2] else 1)
    if number < 1:
        raise ValueError
    return number


POLICY = string(
    "spillable.policy",
    "adaptive",
    "What decides which entries are in memory: adaptive, classic (FLIP-50), or one that an installed "
    "distribution provides.",
    "the name of a policy",
)
MEMORY_BUDGET = ConfigOption[int | float](
    "spillable.memory-budget",
    _size_or_fraction,
    1024 * MIB,
    "a size such as 2g or 512 MiB, or a fraction of the machine's or container's memory such as 0.25",
    "Memory that a process may occupy, with all its state and everything else; an executor has a process for "
    "each of its cores. A lower limit of the resident set (ulimit -m) counts instead.",
)
DISK_MEMORY = integer(
    "spillable.disk-memory",
    None,
    "Bytes of the budget for block caches and write buffers, which all databases of a process share. Not "
    "set, they share the part `spill` of the managed memory, as memory.managed-size and memory.weights say.",
    low=8 * MIB,
)
CANCEL_SNAPSHOTS = boolean(
    "spillable.cancel-snapshots",
    True,
    "Whether full snapshots in the background are cancelled where entries are spilled and what they captured "
    "would stay in memory: always by the classic policy, and by the adaptive one in an emergency.",
)
SAMPLES = integer(
    "spillable.estimate-samples", 1000, "Entries of a state from which their size is estimated.", low=1
)
WEIGHT_SIZE = fraction(
    "spillable.weight-size", 0.7, "How much the size of a key group counts where key groups are chosen."
)
WEIGHT_REQUESTS = fraction(
    "spillable.weight-requests",
    0.3,
    "How much its requests count; the adaptive policy weighs them with the cost to load what they need.",
)

HIGH_MARK = fraction(
    "spillable.adaptive.high-mark",
    0.92,
    "Fraction of the memory for entries above which they are spilled: of the budget without what else the "
    "process occupies.",
)
LOW_MARK = fraction(
    "spillable.adaptive.low-mark", 0.88, "Fraction of the memory for entries to which they are spilled."
)
LOAD_MARK = fraction(
    "spillable.adaptive.load-mark",
    0.5,
    "Fraction of the memory for entries below which key groups are loaded again.",
)
ADAPTIVE_INTERVAL = duration(
    "spillable.adaptive.check-interval",
    200,
    "The time between two decisions; an emergency does not wait for it.",
    low_ms=1,
)
SAMPLE_INTERVAL = duration(
    "spillable.adaptive.sample-interval", 100, "The time between two measurements of memory.", low_ms=1
)
SLICE = duration(
    "spillable.adaptive.slice", 10, "How long a chunk of rows waits for entries that move.", low_ms=1
)

STATUS_INTERVAL = duration(
    "spillable.classic.heap-status-interval", 60_000, "The time between two measurements of memory.", low_ms=1
)
GC_THRESHOLD = duration(
    "spillable.classic.gc-time-threshold",
    2_000,
    "Average time of a garbage collection above which key groups are spilled.",
)
SPILL_RATIO = fraction("spillable.classic.spill-size-ratio", 0.2, "Fraction of the state that is spilled.")
LOAD_START = fraction(
    "spillable.classic.load-start-ratio", 0.1, "Fraction of the budget below which key groups are loaded."
)
LOAD_END = fraction(
    "spillable.classic.load-end-ratio", 0.3, "Fraction of the budget up to which they are loaded."
)
TRIGGER_INTERVAL = duration(
    "spillable.classic.trigger-interval", 60_000, "The time between two moves of key groups."
)
CHECK_INTERVAL = duration(
    "spillable.classic.resource-check-interval", 10_000, "The time between two looks at a measurement."
)

OPTIONS: tuple[ConfigOption[Any], ...] = (
    POLICY,
    MEMORY_BUDGET,
    DISK_MEMORY,
    CANCEL_SNAPSHOTS,
    SAMPLES,
    WEIGHT_SIZE,
    WEIGHT_REQUESTS,
    HIGH_MARK,
    LOW_MARK,
    LOAD_MARK,
    ADAPTIVE_INTERVAL,
    SAMPLE_INTERVAL,
    SLICE,
    STATUS_INTERVAL,
    GC_THRESHOLD,
    SPILL_RATIO,
    LOAD_START,
    LOAD_END,
    TRIGGER_INTERVAL,
    CHECK_INTERVAL,
)
