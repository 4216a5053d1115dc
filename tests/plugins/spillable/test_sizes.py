"""Estimated sizes of entries against what the process occupies more with them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from keyedstate_heap_cow.compiled_form import map_module
from keyedstate_spillable.container import SystemMemory
from keyedstate_spillable.sizes import EntrySizes

MEASURED = Path(__file__).with_name("measured_sizes.py")


@pytest.mark.parametrize("form", ["compiled", pytest.param("plain", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind", ["integers", "strings", "dataclasses", "slotted dataclasses", "lists", "maps"]
)
def test_an_estimate_is_within_a_quarter_of_the_measured_memory(kind: str, form: str):
    if SystemMemory().process_bytes() is None:
        pytest.skip("this system does not tell what a process occupies")
    if form == "compiled" and not map_module(compiled=True).COMPILED:
        pytest.skip("the map is not compiled")
    # Its own process: what others have freed would be used first.
    ran = subprocess.run(
        [sys.executable, str(MEASURED), kind, form], capture_output=True, text=True, check=True
    )
    found = json.loads(ran.stdout)
    assert found["estimated"] == pytest.approx(found["measured"], rel=0.25)


def map_of(values: Iterable[Any]) -> Any:
    made = map_module(compiled=True).CopyOnWriteStateMap(None)
    for number, value in enumerate(values):
        made.put(f"key-{number}", "namespace", value)
    return made


def size_of(values: Iterable[Any]) -> float:
    return EntrySizes(1000).measure([map_of(values)], compiled=True)


def list_of(length: int, first: int) -> list[int]:
    return [10**6 + first + i for i in range(length)]


def test_an_empty_table_has_entries_of_no_size():
    assert size_of([]) == 0.0


def test_a_value_that_all_entries_share_counts_once():
    shared = "one text for all entries"
    nothing = size_of([None] * 500)
    assert size_of([shared] * 500) == pytest.approx(nothing, abs=1.0)
    assert size_of(f"a text of an entry of its own {i}" for i in range(500)) > nothing + 60


def test_a_long_collection_counts_in_full_though_few_elements_are_measured():
    short, long = (size_of(list_of(length, 1600 * i) for i in range(20)) for length in (16, 1600))
    assert (long - short) / (1600 - 16) == pytest.approx(8 + 32, rel=0.1)


def test_values_that_grow_move_the_average():
    made = map_of([] for _ in range(100))
    sizes = EntrySizes(128)
    before = sizes.measure([made], compiled=True)
    for number in range(100):
        made.put(f"key-{number}", "namespace", list_of(100, 1000 * number))
    for _ in range(4):
        after = sizes.measure([made], compiled=True)
    assert after > before + 3_000
