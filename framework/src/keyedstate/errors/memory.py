"""Errors about memory segments and the memory manager."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError


class PageSizeError(KeyedStateError, ValueError):
    """A page size that is no power of two from 4 KiB on."""

    size: int
    least: int
    message = "a page of {size} bytes: the size must be a power of two of at least {least} bytes. Change it."


class SegmentBoundsError(KeyedStateError, IndexError):
    """An access to bytes outside of a memory segment."""

    offset: int
    size: int  # Bytes that were wanted
    segment_size: int
    message = (
        "{size} bytes at offset {offset} are not within a memory segment of {segment_size} bytes. Use an "
        "offset from 0 to the segment's size minus the size of the access."
    )


class FreedSegmentError(KeyedStateError):
    """An access to a memory segment after it was freed."""

    size: int
    message = (
        "a memory segment of {size} bytes is used after it was freed. Release a page only when nothing reads "
        "or writes it any more, and allocate another one."
    )


class MemoryBudgetError(KeyedStateError):
    """A request for managed memory that the budget does not allow."""

    owner: str
    wanted: int  # Bytes
    available: int  # Bytes
    budget: int  # Bytes
    used_by: Sequence[str]  # Each owner with its bytes
    message = (
        "{owner} wants {wanted} bytes of managed memory, and {available} of {budget} are available."
        "{used_by:? In use by }{used_by:...}{used_by:?.} Raise the option memory.managed-size, or lower what "
        "the owners may use."
    )


class MemoryLeakError(KeyedStateError):
    """Owners that did not release their managed memory before the manager was closed."""

    owners: Sequence[str]  # Each owner with its bytes
    message = (
        "managed memory was not released before the memory manager was closed, by {owners:...}. Release "
        "pages and reservations where their use ends."
    )


class MemoryManagerClosedError(KeyedStateError):
    """A request to a memory manager that was closed."""

    owner: str
    message = "{owner} wants managed memory of a manager that is closed. Ask before it is closed."
