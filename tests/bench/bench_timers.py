"""Timers of many keys: registered one by one and at once, written into the table, and fired.

    python tests/bench/bench_timers.py [--timers N] [--rounds N] [--backends NAME ...] [--markdown FILE]

- one by one: the current key is set and `register_event_time_timer` called, as a per-record function does,
  with one time for all keys;
- at once: one call of `register_event_time_timers`; *looked at* adds what makes timers of the columns, which
  happens when somebody looks at them: a single call for the same time, firing, or the end of the epoch;
- written: the end of the epoch, where timers become entries of the table;
- fired: a callback for each, or all that are due by columns.

Then each of a new lot of timers has a time of its own, and they are registered in epochs of 100,000, in a
process of their own whose memory is looked at: `--lives BACKEND/QUEUE ...`, `none` for none.

Seconds are those of the processor: machines that run this have other work to do.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring import VOID, Keys, medians, open_backend

from keyedstate.time import Timer, TimerService, TimerServices


class Silent:
    """Counts the timers that fire."""

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
        assert sum(map(len, timers.due_timers_together(in_event_time=True))) == count

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


#: Timers of one epoch of a life, and a time before which half of all are due.
EPOCH, HALF = 100_000, 500_000_000


def resident_bytes() -> int:
    """Return the memory of this process that is not shared with files."""
    gc.collect()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def life(backend_name: str, queue: str, count: int) -> dict[str, float]:
    """Register timers with a time each, epoch by epoch, and fire half of them singly, and half by columns."""
    keys, generator = Keys(count), random.Random(1)
    times = [generator.randrange(2 * HALF) for _ in range(count)]
    before = resident_bytes()
    backend = open_backend(backend_name, track_changes=True, **{"timers.queue": queue})
    target = Silent()
    timers = TimerServices(backend).service("bench", target)
    registering = writing = 0.0

    def register(start: int, end: int) -> None:
        set_current_key, add = backend.set_current_key, timers.register_event_time_timer
        for place in range(start, end):
            set_current_key(keys.keys[place], keys.groups[place])
            add(VOID, times[place])

    epochs = range(0, count, EPOCH)
    for epoch, start in enumerate(epochs):
        backend.begin_epoch(epoch)
        backend.forget_changes(epoch - 1)
        registering += seconds(lambda start=start: register(start, min(start + EPOCH, count)))
        writing += seconds(backend.write_back)
    backend.begin_epoch(len(epochs))
    backend.forget_changes(len(epochs) - 1)
    held = resident_bytes() - before
    # What a new queue has to do before the first timer fires.
    services = TimerServices(backend)

    def begin() -> None:
        nonlocal timers
        timers = services.service("bench", target)
        services.advance_watermark(0)

    beginning = seconds(begin)
    one_by_one = seconds(lambda: timers.advance_watermark(HALF))
    singly = target.fired
    backend.advance_watermark(2 * HALF)
    together = 0

    def fire_together() -> None:
        nonlocal together
        together = sum(map(len, timers.due_timers_together(in_event_time=True)))

    by_columns = seconds(fire_together)
    assert singly + together == count, (singly, together)
    ended = seconds(backend.write_back)
    backend.close()
    return {
        "registered one by one, ns": registering / count * 1e9,
        "written at the end of epochs, ns": writing / count * 1e9,
        "bytes in memory": held / count,
        "fired one by one, ns": one_by_one / max(1, singly) * 1e9,
        "fired by columns, ns": by_columns / max(1, together) * 1e9,
        "written after that, ns": ended / count * 1e9,
        "a new queue until the first timer fires, ms": beginning * 1e3,
    }


def lives(names: list[str], count: int) -> list[str]:
    """Return a table of lives, each in a process of its own."""
    found = {}
    for name in names:
        command = [sys.executable, __file__, "--timers", str(count), "--life", name]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(ran.stdout)
    lines = ["", f"{count:,} timers with a time each, per timer:", ""]
    lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for what in next(iter(found.values())):
        lines.append(f"| {what} | " + " | ".join(f"{found[name][what]:,.0f}" for name in names) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--timers", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="*", default=["heap-cow", "nested-map", "rocksdb"])
    parser.add_argument("--lives", nargs="*", default=["heap-cow/heap", "rocksdb/heap", "rocksdb/ordered"])
    parser.add_argument("--life", help=argparse.SUPPRESS)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    if arguments.life:
        print(json.dumps(life(*arguments.life.split("/"), arguments.timers)))
        return
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
    if arguments.lives != ["none"]:
        lines += lives(arguments.lives, arguments.timers)
    report = "\n".join(lines) + "\n"
    print(report)
    if arguments.markdown:
        arguments.markdown.write_text(report)


if __name__ == "__main__":
    main()
