"""Errors about sorters and their files."""

from __future__ import annotations

from pathlib import Path

from keyedstate.errors.base import KeyedStateError


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
