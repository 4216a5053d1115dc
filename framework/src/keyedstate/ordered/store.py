"""The ordered byte store: what a backend implements where its state lies in rows of bytes.

About a hundred lines make a backend: a space of rows per state (a column family, a database table), with
look-up, ordered scan, atomic write batch and consistent copy.  Tables of every kind of state, lists, maps,
changes of an epoch, snapshots and restores are derived from that (`keyedstate.ordered.table`); a
backend overrides what it does better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from keyedstate.backend.context import BackendContext

_RESOURCE = "ordered store"

S = TypeVar("S", bound="OrderedStore")


class RowReader(ABC):
    """Rows of bytes, found by their key or in the order of their keys, byte by byte without a sign."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values under several keys, in their order, with None where there is no row."""

    @abstractmethod
    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows from a key, included, to another, excluded; None for no end.

        The rows of a space must not be written before the scan is over or given up.
        """


class RowCopy(RowReader):
    """The rows of a space as they were when it was made; another thread may read it.

    The owner goes on writing meanwhile.  A backend whose copies cannot do so claims no asynchronous
    snapshots.
    """

    @abstractmethod
    def release(self) -> None:
        """Give the copy up; calling it again does nothing."""


class RowSpace(RowReader):
    """The rows of one state; belongs to the owner thread.

    Attributes
    ----------
    max_key_bytes : int or None
        The longest key that a row may have, at least 32; None without a limit.  A `WriteBuffer` over the
        space takes longer ones all the same, and splits them into several rows.
    """

    max_key_bytes: int | None = None

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value under a key, or None where there is no row."""

    @abstractmethod
    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Write values under keys, and remove the rows of those that are None: all of them or none."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write values under keys as one batch; of a repeated key the last value counts."""
        self.write(dict(zip(keys, values, strict=True)))

    @abstractmethod
    def copy(self) -> RowCopy:
        """Return a consistent copy, in time that does not follow the number of rows."""


class OrderedStore(ABC):
    """The rows of one backend instance, in a space per state.

    Nothing has to survive the process: what lasts is what a snapshot writes.
    """

    @abstractmethod
    def open_space(self, state: str) -> RowSpace:
        """Return the empty space of a state; its name may hold any character."""

    @abstractmethod
    def close(self) -> None:
        """Free everything; copies may still be read, and what they need is freed with the last of them."""


def store_of(context: BackendContext, open_store: Callable[[BackendContext], S]) -> S:
    """Return the store of an instance; it is opened at the first call and closed with the instance."""
    store: S | None = context.resources.get(_RESOURCE)
    if store is None:
        store = context.resources[_RESOURCE] = open_store(context)
        context.closing.callback(store.close)
    return store


def end_of(prefix: bytes) -> bytes | None:
    """Return the least key above all that begin with a prefix; None where there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None
