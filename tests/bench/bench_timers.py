"""Timers of many keys: registered one by one and at once, written into the table, and fired.

    python tests/bench/bench_timers.py [--timers N] [--rounds N] [--backends NAME ...] [--markdown FILE]

- one by one: the current key is set and `register_event_time_timer` called, as a per-record function does,
  with one time for all keys;
- at once: one call of `register_event_time_timers`; *looked at* adds what makes timers of the columns, which
  happens when somebody looks at them: a single call for the same time, firing, or the end of the epoch;
- written: the end of the epoch, where timers become entries of the table;
- fired: a callback for each, or all that are due by columns.

Seconds are those of the processor: machines that run this have other work to do.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import VOID, Keys, medians, open_backend

from keyedstate.time import Timer, TimerService, TimerServices


class Silent:
    """Counts the timers that it is told of."""

    fired = 0

    def on_event_time(self, timer: Timer) -> None:
        self.fired += 1

    def on_processing_time(self, timer: Timer) -> None:
        self.fired += 1


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def measured(backend_name: str, keys: Keys, rounds: int) -> dict[str, float]:
    """Return the median seconds of each measure, all on new services with the timers of all keys."""
    count = len(keys.keys)

    def service() -> tuple[Any, TimerService, Silent]:
        backend = open_backend(backend_name)
        target = Silent()
        return backend, TimerServices(backend).service("bench", target), target

    def one_by_one() -> float:
        backend, timers, _ = service()
        # Made a moment ago and without a hash yet, as those of an Arrow batch are.
        names = [f"customer-{number:08}" for number in range(count)]

        def work() -> None:
            set_current_key, register = backend.set_current_key, timers.register_event_time_timer
            for key, key_group in zip(names, keys.groups, strict=True):
                set_current_key(key, key_group)
                register(VOID, 1000)

        return seconds(work)

    def at_once(*, look: bool) -> float:
        _, timers, _ = service()
        names = [f"customer-{number:08}" for number in range(count)]

        def work() -> None:
            timers.register_event_time_timers(names, keys.groups, VOID, 1000)
            if look:
                assert timers.num_event_time_timers() == count

        return seconds(work)

    def after_registering(work: Callable[[Any, TimerService, Silent], None]) -> float:
        backend, timers, target = service()
        timers.register_event_time_timers(keys.keys, keys.groups, VOID, 1000)
        assert timers.num_event_time_timers() == count
        return seconds(lambda: work(backend, timers, target))

    def fire(backend: Any, timers: TimerService, target: Silent) -> None:
        timers.advance_watermark(1000)
        assert target.fired == count

    def fire_together(backend: Any, timers: TimerService, target: Silent) -> None:
        backend.advance_watermark(1000)
        assert sum(map(len, timers.due_event_time_timers_together())) == count

    return medians(
        {
            "registered one by one": one_by_one,
            "registered at once": lambda: at_once(look=False),
            "registered at once and looked at": lambda: at_once(look=True),
            "written": lambda: after_registering(lambda backend, *_: backend.write_back()),
            "fired one by one": lambda: after_registering(fire),
            "fired by columns": lambda: after_registering(fire_together),
        },
        rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="*", default=["heap-cow", "nested-map"])
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    keys = Keys(arguments.timers)
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    lines = [f"{arguments.timers:,} timers. Here: {machine}.", ""]
    lines += ["| Backend | | ns per timer | times as fast as one by one |", "|---|---|---|---|"]
    for name in arguments.backends:
        found = measured(name, keys, arguments.rounds)
        for what, median in found.items():
            floor = found["fired one by one" if what.startswith("fired") else "registered one by one"]
            ratio = "" if what == "written" else f"{floor / median:.1f}"
            lines.append(f"| {name} | {what} | {median / arguments.timers * 1e9:,.0f} | {ratio} |")
    report = "\n".join(lines) + "\n"
    print(report)
    if arguments.markdown:
        arguments.markdown.write_text(report)


if __name__ == "__main__":
    main()
