"""What a few entries cost in very many key groups, against the same in 128.

    python tests/bench/bench_keygroups.py [--groups N] [--entries N] [--rounds N] [--backends NAME ...]

Each line is the median of one step: the time in many key groups, in 128, and the ratio of the two.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keyedstate import types
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.time import TimerServices

FEW = 128


class _Silent:
    def on_event_time(self, timer: Any) -> None:
        pass

    def on_processing_time(self, timer: Any) -> None:
        pass


def measured(name: str, groups: int, entries: int) -> dict[str, float]:
    """Return the seconds of each step."""
    found: dict[str, float] = {}

    def timed(step: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        found[step] = time.perf_counter() - began
        return result

    with tempfile.TemporaryDirectory() as folder:
        keyed = KeyedInstances(name, Path(folder), {})
        backend = keyed.open(max_parallelism=groups)
        timers = timed("new service", lambda: TimerServices(backend).service("user", _Silent()))
        for key in range(entries):
            backend.set_current_key(key)
            timers.register_event_time_timer(types.VOID_NAMESPACE, key)
        handle = timed("snapshot", lambda: keyed.snapshot(backend))
        restored = timed("restore", lambda: keyed.open([handle], max_parallelism=groups))
        restored_timers = timed(
            "restored service", lambda: TimerServices(restored).service("user", _Silent())
        )
        restored.advance_watermark(entries)
        timed("fire", lambda: list(restored_timers.due_timers(in_event_time=True)))
        keyed.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=32_767)
    parser.add_argument("--entries", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", nargs="+", default=["heap-cow", "nested-map", "rocksdb"])
    settings = parser.parse_args()
    for name in settings.backends:
        measured(name, FEW, settings.entries)
        times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for _ in range(settings.rounds):
            for groups in (settings.groups, FEW):
                for step, seconds in measured(name, groups, settings.entries).items():
                    times[step, groups].append(seconds)
        for step in dict.fromkeys(step for step, _ in times):
            many, few = (statistics.median(times[step, groups]) for groups in (settings.groups, FEW))
            print(f"{name:12} {step:18} {many * 1000:9.2f} ms {few * 1000:9.2f} ms {many / few:8.1f} x")


if __name__ == "__main__":
    main()
