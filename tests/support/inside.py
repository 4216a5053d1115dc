"""What tests look at inside of the framework and of plugins, each private name in one place."""

from __future__ import annotations

from typing import Any

from keyedstate.types.contract import registry


def state_tables(backend: Any) -> dict[str, Any]:
    """Return the tables of an opened keyed backend by the names of their states."""
    return backend._tables


def accessor_of(backend: Any, name: str) -> Any:
    """Return the accessor of a state that an opened keyed backend gave out, under its current namespace."""
    return backend._states.accessors[name]


def context_of(backend: Any) -> Any:
    """Return the context that an opened keyed backend gave its plugin."""
    return backend._context


def registrations() -> dict[str, Any]:
    """Return the registered types of serializers by name."""
    return registry._registrations


def rocksdb_space(table: Any) -> Any:
    """Return the key space of a table of the RocksDB backend."""
    return table.buffer._space


def rocksdb_rows(table: Any) -> Any:
    """Return the column family that a table of the RocksDB backend writes to."""
    return rocksdb_space(table).rows


def rocksdb_store(backend: Any) -> Any:
    """Return the database of an opened keyed backend on RocksDB."""
    return next(iter(context_of(backend).resources.values()))
