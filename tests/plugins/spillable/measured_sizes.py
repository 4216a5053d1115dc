"""Fill maps in a process of its own, and write the estimated and the measured bytes of an entry as JSON."""

from __future__ import annotations

import gc
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyedstate_heap_cow.compiled_form import map_module
from keyedstate_spillable.container import SystemMemory
from keyedstate_spillable.sizes import EntrySizes

#: Enough that pages of the allocator do not matter.
ENTRIES = 200_000
MAPS = 16


@dataclass
class Visit:
    page: str
    seconds: float
    count: int


@dataclass(slots=True)
class Place:
    latitude: float
    longitude: float


def value_of(kind: str, number: int, generator: random.Random) -> Any:
    if kind == "integers":
        return 10**6 + number
    if kind == "strings":
        return f"a text of some length {number:>{generator.randrange(10, 60)}}"
    if kind == "dataclasses":
        return Visit(f"/pages/{number}", number / 7, 1_000 + number)
    if kind == "slotted dataclasses":
        return Place(number / 7, number / 11)
    if kind == "lists":
        return [10**6 + number + i for i in range(generator.randrange(20))]
    assert kind == "maps"
    return {f"key-{number}-{i}": number / (i + 1) for i in range(generator.randrange(8))}


def main(kind: str, compiled: bool) -> None:
    generator = random.Random(1)
    system = SystemMemory(Path("/"))
    maps = [map_module(compiled=compiled).CopyOnWriteStateMap(None) for _ in range(MAPS)]
    namespace = "one for all entries"
    EntrySizes(10).measure(maps, compiled=compiled)
    gc.collect()
    gc.freeze()
    before = system.process_bytes()
    assert before is not None
    for number in range(ENTRIES):
        maps[number % MAPS].put(f"key-{number}", namespace, value_of(kind, number, generator))
    after = system.process_bytes()
    assert after is not None
    measured = (after - before) / ENTRIES
    estimated = EntrySizes(1000).measure(maps, compiled=compiled)
    json.dump({"estimated": estimated, "measured": measured}, sys.stdout)


main(sys.argv[1], sys.argv[2] == "compiled")
