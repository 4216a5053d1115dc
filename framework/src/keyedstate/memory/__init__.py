"""Managed memory: pages, their budget, and the views through which serializers write and read."""

from keyedstate.memory.manager import MemoryManager
from keyedstate.memory.page_sources import ListedPages, ManagedPages, PageSource
from keyedstate.memory.paged_views import PagedInputView, PagedOutputView
from keyedstate.memory.process import (
    DEFAULT_MANAGED_BYTES,
    DEFAULT_WEIGHTS,
    SORT,
    SPILL,
    STATE_BACKEND,
    ProcessMemory,
    process_memory,
)
from keyedstate.memory.segments import (
    DEFAULT_PAGE_BYTES,
    MIN_PAGE_BYTES,
    MemorySegment,
    SegmentKind,
    file_segment,
    heap_segment,
    off_heap_segment,
)
from keyedstate.memory.views import DataInputView, DataOutputView

__all__ = [
    "DEFAULT_MANAGED_BYTES",
    "DEFAULT_PAGE_BYTES",
    "DEFAULT_WEIGHTS",
    "MIN_PAGE_BYTES",
    "SORT",
    "SPILL",
    "STATE_BACKEND",
    "DataInputView",
    "DataOutputView",
    "ListedPages",
    "ManagedPages",
    "MemoryManager",
    "MemorySegment",
    "PageSource",
    "PagedInputView",
    "PagedOutputView",
    "ProcessMemory",
    "SegmentKind",
    "file_segment",
    "heap_segment",
    "off_heap_segment",
    "process_memory",
]
