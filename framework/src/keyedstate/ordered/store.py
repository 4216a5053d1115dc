"""The ordered byte store: what a backend implements whose state is in rows of bytes.

About a hundred lines make a backend: a space of rows per state (a column family, a database table), with
look-up, ordered scan, atomic write batch and consistent copy.  `keyedstate.ordered` derives the tables of
every kind of state, change tracking, snapshots and restores; a backend overrides what it does better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from keyedstate.backend.context import BackendContext

_RESOURCE = "ordered store"

S = TypeVar("S", bound="OrderedStore")


class RowReader(ABC):
    """Rows of bytes, found by key or scanned in the order of keys, which compare as unsigned bytes."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values under several keys, in their order, with None without a row."""

    @abstractmethod
    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows from `start` up to `end`, which is excluded; None for no end.

        The rows of a space must not be written until the iteration has ended.
        """


class RowCopy(RowReader):
    """The rows of a space as they were when the copy was made.

    Another thread may read it while the owner writes.  A backend whose copies do not allow that claims no
    asynchronous snapshots.

    A full snapshot reads all rows in one scan without an end: yield them as they are read.
    """

    @abstractmethod
    def release(self) -> None:
        """Free the copy; calling it again does nothing."""


class RowSpace(RowReader):
    """The rows of one state; belongs to the owner thread.

    `max_key_bytes` is the longest key of a row, at least 32, or None without a limit. A `WriteBuffer` over
    the space splits longer keys into several rows.
    """

    max_key_bytes: int | None = None

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value under a key, or None without a row."""

    @abstractmethod
    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Write values under keys and remove the rows whose value is None, atomically."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write values under keys as one batch; of a repeated key the last value counts."""
        self.write(dict(zip(keys, values, strict=True)))

    def trim(self) -> None:
        """Give back memory of written rows, if other spaces of the process lack it."""
        return

    @abstractmethod
    def copy(self) -> RowCopy:
        """Return a consistent copy, in time that does not depend on the number of rows."""


class OrderedStore(ABC):
    """The rows of one backend instance, in a space per state.

    Nothing has to survive the process: only snapshots are durable.
    """

    @abstractmethod
    def open_space(self, state: str) -> RowSpace:
        """Return the empty space of a state, whose name may contain any character."""

    @abstractmethod
    def close(self) -> None:
        """Free everything, but what live copies need: that is freed with the last of them."""


def store_of(context: BackendContext, open_store: Callable[[BackendContext], S]) -> S:
    """Return the store of an instance, opened at the first call and closed with the instance."""
    store: S | None = context.resources.get(_RESOURCE)
    if store is None:
        store = context.resources[_RESOURCE] = open_store(context)
        context.closing.callback(store.close)
    return store


def end_of(prefix: bytes) -> bytes | None:
    """Return the least key above all that begin with a prefix; None where none exists."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None
