"""Errors about memory segments, the memory manager, and the sorters that use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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


# -- sorters and their files -----------------------------------------------------------------------


class SortMemoryError(KeyedStateError, ValueError):
    """Less memory than a sorter needs."""

    given: int  # Bytes
    least: int  # Bytes
    message = (
        "a sorter with {given} bytes of memory: it needs at least {least}. Give it more; a share of "
        "the managed memory grows with the options memory.managed-size and memory.weights."
    )


class RecordTooLargeError(KeyedStateError, ValueError):
    """A record that does not fit into a page, in a sorter without a file for such records."""

    size: int  # Bytes
    page_bytes: int
    message = (
        "a record of {size} bytes does not fit into a page of {page_bytes} bytes. Use larger pages, or an "
        "ExternalSorter, which has a file for large records."
    )


class RecordLengthError(KeyedStateError, ValueError):
    """A record of another length in a sorter of records of one length."""

    length: int  # Bytes
    expected: int  # Bytes
    message = (
        "a record of {length} bytes in a sorter of records of {expected} bytes each. Use a "
        "NormalizedKeySorter for records whose lengths differ."
    )


class SorterClosedError(KeyedStateError, RuntimeError):
    """A call on a sorter that was closed, or that has no memory for more records."""

    reason: str
    message = "this sorter {reason}. Make a new one for other records."


class SpillError(KeyedStateError):
    """A file of a sorter that cannot be written; the files of the sorter are deleted."""

    path: Path
    reason: str
    message = (
        "the sorter's file {path} cannot be written: {reason}. Make room on that disk, choose a folder on "
        "another one, or give the sorter more memory; then sort again."
    )


class RunFileError(KeyedStateError):
    """A file of a sorter that is missing or damaged."""

    path: Path
    reason: str
    message = (
        "the sorter's file {path} cannot be read: {reason}. Nothing after the records that were returned is "
        "known; sort again."
    )
