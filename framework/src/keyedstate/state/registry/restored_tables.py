"""Restored tables, converted to the types that the running program declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from keyedstate.backend import AnyStateTable, StateKind, StateMeta
from keyedstate.errors import KeyedStateError, StateConversionError, StateKindMismatchError
from keyedstate.operator_state import OperatorStateMeta
from keyedstate.ordered import RewritingTable
from keyedstate.state.registry.serializer_provider import SerializerProvider
from keyedstate.state.ttl.layout import conversion_between, layout_of
from keyedstate.tables import converted_entries
from keyedstate.types import TypeSerializer
from keyedstate.types.collections.maps import MapSerializer
from keyedstate.types.collections.ttl import TimedSerializer, plain_type

Conversion: TypeAlias = "Callable[[Any], Any] | None"

#: Entries per conversion.
_BATCH_ENTRIES = 4096


def adapted(restored: StateMeta, requested: StateMeta) -> StateMeta:
    """Return the meta with which a restored state continues, or refuse it with a `StateError`.

    Values may migrate; keys, namespaces and map keys may not, since entries are found by them.  A time to
    live may come, change and go.
    """
    name = requested.name
    check_same_kind(restored, requested, restored=True)

    def resolved(
        part: str, written: TypeSerializer[Any], declared: TypeSerializer[Any], may_migrate: bool = False
    ) -> TypeSerializer[Any]:
        return SerializerProvider(
            name, part, restored=written, registered=declared, may_migrate=may_migrate
        ).current

    key = resolved("key", restored.key_serializer, requested.key_serializer)
    namespace = resolved("namespace", restored.namespace_serializer, requested.namespace_serializer)
    old, new = plain_type(restored.value_serializer), plain_type(requested.value_serializer)
    if isinstance(old, MapSerializer) and isinstance(new, MapSerializer) and requested.kind is StateKind.MAP:
        resolved("map key", old.key_serializer, new.key_serializer)
    plain = resolved("value", old, new, may_migrate=True)
    value = requested.value_serializer
    if plain is not new:
        clock = value.clock if isinstance(value, TimedSerializer) else None
        value = plain if clock is None else layout_of(requested.kind).timed_type(plain, clock)
    return StateMeta(name, requested.kind, key, namespace, value, requested.expiry)


def check_same_kind(
    known: StateMeta | OperatorStateMeta, requested: StateMeta | OperatorStateMeta, *, restored: bool
) -> None:
    """Refuse another kind of state under the name of one that was restored or registered."""
    if known.kind is not requested.kind:
        raise StateKindMismatchError(known.name, known.kind.value, requested.kind.value, restored=restored)


def check_keys(restored: StateMeta, key_serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the serializer with which the keys of a restored state continue, or raise `StateMigrationError`.

    It is known before any snapshot is opened, and long before states are registered.
    """
    written = restored.key_serializer
    return SerializerProvider(
        restored.name, "key", restored=written, registered=key_serializer, may_migrate=False
    ).current


def adopt(
    table: AnyStateTable, meta: StateMeta, stamp: int, create_table: Callable[[], AnyStateTable]
) -> AnyStateTable:
    """Return the table with which a restored state continues, with the types that the program declares.

    Restored objects were read without the user's classes and are converted
    (`TypeSerializer.conversion_from`). Bytes stay as they are where the types are the same. `meta` is what
    `adapted` returns, `stamp` that of `conversion_between`, and `create_table` makes an empty table of
    `meta`.

    Raises `StateConversionError` where a value cannot be converted; the table is unchanged.
    """
    old = table.meta
    if isinstance(table, RewritingTable):
        conversions = _conversions(old, meta, stamp)
        if _same_types(old, meta) and not (table.keeps_objects and any(conversions)):
            table.replace_meta(meta)
        else:
            with _named(meta):
                table.rewrite(meta, *conversions)
        return table.successor()
    made = _converted_table(table, meta, stamp, create_table)
    if made is not None:
        return made
    table.replace_meta(meta)
    return table


@contextmanager
def _named(meta: StateMeta) -> Iterator[None]:
    """Name the state in the error of a value that cannot be converted."""
    try:
        yield
    except KeyedStateError as error:
        raise StateConversionError(meta.name, str(error)) from error


def _same_types(old: StateMeta, new: StateMeta) -> bool:
    parts = ("key_serializer", "namespace_serializer", "value_serializer")
    return all(getattr(old, part).snapshot() == getattr(new, part).snapshot() for part in parts)


def _conversions(old: StateMeta, new: StateMeta, stamp: int) -> tuple[Conversion, Conversion, Conversion]:
    """Return what converts keys, namespaces and values."""
    return (
        new.key_serializer.conversion_from(old.key_serializer),
        new.namespace_serializer.conversion_from(old.namespace_serializer),
        conversion_between(new.kind, old.value_serializer, new.value_serializer, stamp),
    )


def _converted_table(
    table: AnyStateTable, meta: StateMeta, stamp: int, create_table: Callable[[], AnyStateTable]
) -> AnyStateTable | None:
    """Return a table of converted objects; None where none needs a conversion."""
    conversions = _conversions(table.meta, meta, stamp)
    if not any(conversions):
        return None
    made = create_table()
    snapshot = table.snapshot()
    try:
        with _named(meta):
            for key_group in snapshot.occupied(table.key_groups):
                for batch in snapshot.batches(key_group, _BATCH_ENTRIES):
                    made.restore_entries(key_group, converted_entries(batch, *conversions))
    finally:
        snapshot.release()
    return made
