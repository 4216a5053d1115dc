"""Sorting by normalized keys: in pages of memory, and in runs on disk."""

from keyedstate.memory.sorting.batch_sorter import BatchSorter
from keyedstate.memory.sorting.external_sorter import ExternalSorter
from keyedstate.memory.sorting.fixed_length_sorter import FixedLengthSorter
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.sorting.large_records import LargeRecords
from keyedstate.memory.sorting.normalized_key_sorter import NormalizedKeySorter
from keyedstate.memory.sorting.run_files import RunFile

__all__ = [
    "BatchSorter",
    "ExternalSorter",
    "FixedLengthSorter",
    "LargeRecords",
    "NormalizedKeySorter",
    "NormalizedKeys",
    "RunFile",
]
