"""Restored state in the hands of the running program: of the declared types, and in their form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from keyedstate.backend import AnyStateTable, EntryBatch, StateKind, StateMeta
from keyedstate.errors import KeyedStateError, StateConversionError, StateKindMismatchError
from keyedstate.ordered import RewritingTable
from keyedstate.state.registry.serializer_provider import SerializerProvider
from keyedstate.state.ttl.layout import conversion_between, layout_of
from keyedstate.types import TypeSerializer
from keyedstate.types.collections.maps import MapSerializer

Conversion: TypeAlias = "Callable[[Any], Any] | None"

#: Entries that are converted at once.
_BATCH_ENTRIES = 4096


def adapted(restored: StateMeta, requested: StateMeta) -> StateMeta:
    """Return the meta under which a restored state goes on, or refuse it.

    Values may migrate; keys, namespaces and map keys may not, since entries are found by them.  A time to
    live may come, change and go.

    Raises
    ------
    StateKindMismatchError, StateMigrationError
    """
    name = requested.name
    if restored.kind is not requested.kind:
        raise StateKindMismatchError(name, restored.kind.value, requested.kind.value, restored=True)

    def going_on(
        part: str, written: TypeSerializer[Any], declared: TypeSerializer[Any], may_migrate: bool = False
    ) -> TypeSerializer[Any]:
        provider = SerializerProvider(name, part, restored=written, may_migrate=may_migrate)
        provider.register(declared)
        return provider.current

    key = going_on("key", restored.key_serializer, requested.key_serializer)
    namespace = going_on("namespace", restored.namespace_serializer, requested.namespace_serializer)
    layout = layout_of(requested.kind)
    old, new = map(layout.plain_type, (restored.value_serializer, requested.value_serializer))
    if isinstance(old, MapSerializer) and isinstance(new, MapSerializer) and requested.kind is StateKind.MAP:
        going_on("map key", old.key_serializer, new.key_serializer)
    plain = going_on("value", old, new, may_migrate=True)
    value = requested.value_serializer
    if plain is not new:
        value = plain
        if layout.is_timed(requested.value_serializer):
            value = layout.timed_type(plain, layout.clock_of(requested.value_serializer))
    return StateMeta(name, requested.kind, key, namespace, value, requested.expiry)


def check_keys(restored: StateMeta, key_serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the serializer with which the keys of a restored state go on, or refuse that of the program.

    The program's is known before any snapshot is opened, and long before its states are registered.

    Raises
    ------
    StateMigrationError
    """
    provider = SerializerProvider(restored.name, "key", registered=key_serializer, may_migrate=False)
    provider.restore(restored.key_serializer)
    return provider.current


def adopt(
    table: AnyStateTable, meta: StateMeta, stamp: int, create_table: Callable[[], AnyStateTable]
) -> AnyStateTable:
    """Return the table under which a restored state goes on, with what the running program declared.

    What is restored is read without the user's classes (`TypeSerializer.conversion_from`).  Objects are made
    anew; bytes are left as they are where the types are the same, for then they read what is there.

    Parameters
    ----------
    table : StateTable
        Restored and not registered yet.
    meta : StateMeta
        As `adapted` gives it.
    stamp : int
        The time of values that get a time to live; see `conversion_between`.
    create_table : callable
        Makes an empty table of `meta`.

    Raises
    ------
    StateConversionError
        Where a value cannot be converted; the table stays as it was.
    """
    old = table.meta
    if isinstance(table, RewritingTable):
        if _same_types(old, meta):
            table.replace_meta(meta)
        else:
            try:
                table.rewrite(meta, *_conversions(old, meta, stamp))
            except KeyedStateError as error:
                raise StateConversionError(meta.name, str(error)) from error
        return table.going_on()
    converted = _converted_table(table, meta, stamp, create_table)
    if converted is not None:
        return converted
    table.replace_meta(meta)
    return table


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
    """Return a table whose objects are those of the registered types; None where they are so already."""
    of_keys, of_namespaces, of_values = conversions = _conversions(table.meta, meta, stamp)
    if not any(conversions):
        return None
    converted = create_table()
    snapshot = table.snapshot()
    try:
        for key_group in snapshot.occupied(table.key_groups):
            for batch in snapshot.batches(key_group, _BATCH_ENTRIES):
                converted.restore_entries(
                    key_group,
                    EntryBatch(
                        _converted(batch.namespaces, of_namespaces),
                        _converted(batch.keys, of_keys),
                        _converted(batch.values, of_values),
                    ),
                )
    except KeyedStateError as error:
        raise StateConversionError(meta.name, str(error)) from error
    finally:
        snapshot.release()
    return converted


def _converted(objects: Sequence[Any], conversion: Conversion) -> Sequence[Any]:
    if conversion is None:
        return objects
    return [None if found is None else conversion(found) for found in objects]
