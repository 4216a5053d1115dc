"""Converting the objects of entries to other types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keyedstate.backend import EntryBatch


def converted(objects: Sequence[Any], conversion: Callable[[Any], Any] | None) -> Sequence[Any]:
    """Return objects, each but None converted where there is a conversion."""
    if conversion is None:
        return objects
    return [None if found is None else conversion(found) for found in objects]


def converted_entries(
    batch: EntryBatch[Any, Any, Any],
    of_keys: Callable[[Any], Any] | None,
    of_namespaces: Callable[[Any], Any] | None,
    of_values: Callable[[Any], Any] | None,
) -> EntryBatch[Any, Any, Any]:
    """Return entries whose parts are converted where there is a conversion; the batch itself without any."""
    if of_keys is None and of_namespaces is None and of_values is None:
        return batch
    return EntryBatch(
        converted(batch.namespaces, of_namespaces),
        converted(batch.keys, of_keys),
        converted(batch.values, of_values),
    )
