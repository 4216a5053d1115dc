"""Restored state in the hands of the running program: of the declared types, and in their form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from keyedstate.backend import AnyStateTable, EntryBatch, StateKind, StateMeta
from keyedstate.errors import KeyedStateError
from keyedstate.state.errors import StateConversionError, StateKindMismatchError, StateMigrationError
from keyedstate.state.ttl.layout import conversion_between, layout_of
from keyedstate.types import TypeSerializer
from keyedstate.types.maps import MapSerializer

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
    key = check_unchanged(name, "key", restored.key_serializer, requested.key_serializer)
    namespace = check_unchanged(
        name, "namespace", restored.namespace_serializer, requested.namespace_serializer
    )
    layout = layout_of(requested.kind)
    old, new = map(layout.plain_type, (restored.value_serializer, requested.value_serializer))
    if requested.kind is StateKind.MAP and isinstance(old, MapSerializer) and isinstance(new, MapSerializer):
        check_unchanged(name, "map key", old.key_serializer, new.key_serializer)
    verdict = new.resolve_compatibility(old.snapshot())
    if verdict.is_incompatible:
        raise StateMigrationError(name, "value", old, new, verdict.reason)
    value = requested.value_serializer
    if verdict.serializer is not None:
        value = verdict.serializer
        if layout.is_timed(requested.value_serializer):
            value = layout.timed_type(value, layout.clock_of(requested.value_serializer))
    return StateMeta(name, requested.kind, key, namespace, value, requested.expiry)


def check_unchanged(
    state: str, part: str, written: TypeSerializer[Any], requested: TypeSerializer[Any]
) -> TypeSerializer[Any]:
    """Return the serializer with which keys, namespaces or map keys go on, or refuse their new type.

    Raises
    ------
    StateMigrationError
    """
    # The declared serializer is asked, not its snapshot: a reconfigured one has to know the user's classes.
    verdict = requested.resolve_compatibility(written.snapshot())
    if verdict.is_after_migration:
        reason = f"a {part} type cannot migrate, since entries are found by it"
        raise StateMigrationError(state, part, written, requested, reason)
    if verdict.is_incompatible:
        raise StateMigrationError(state, part, written, requested, verdict.reason)
    return verdict.serializer or requested


def converted_table(
    table: AnyStateTable, meta: StateMeta, stamp: int, create_table: Callable[[], AnyStateTable]
) -> AnyStateTable | None:
    """Return a table whose objects are those of the registered types; None where they are so already.

    What is restored is read without the user's classes (`TypeSerializer.conversion_from`).  For tables of
    objects: one of bytes rewrites them itself in `StateTable.replace_meta`.

    Parameters
    ----------
    table : StateTable
        Restored and not registered yet; left as it is.
    meta : StateMeta
        As `adapted` gives it.
    stamp : int
        The time of values that get a time to live; see `conversion_between`.
    create_table : callable
        Makes an empty table of `meta`.

    Raises
    ------
    StateConversionError
        Where a value cannot be converted.
    """
    old = table.meta
    of_namespaces = meta.namespace_serializer.conversion_from(old.namespace_serializer)
    of_keys = meta.key_serializer.conversion_from(old.key_serializer)
    of_values = conversion_between(meta.kind, old.value_serializer, meta.value_serializer, stamp)
    if of_namespaces is None and of_keys is None and of_values is None:
        return None
    converted = create_table()
    snapshot = table.snapshot()
    try:
        for key_group in table.key_groups:
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
