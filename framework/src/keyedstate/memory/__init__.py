"""Managed memory: pages, their budget, and the views through which serializers write and read."""

from keyedstate.memory.manager import MemoryManager
from keyedstate.memory.page_sources import ListedPages, ManagedPages, PageSource
from keyedstate.memory.paged_views import PagedInputView, PagedOutputView
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
    "DEFAULT_PAGE_BYTES",
    "MIN_PAGE_BYTES",
    "DataInputView",
    "DataOutputView",
    "ListedPages",
    "ManagedPages",
    "MemoryManager",
    "MemorySegment",
    "PageSource",
    "PagedInputView",
    "PagedOutputView",
    "SegmentKind",
    "file_segment",
    "heap_segment",
    "off_heap_segment",
]
