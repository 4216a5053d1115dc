"""Converting the objects of entries to other types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def converted(objects: Sequence[Any], conversion: Callable[[Any], Any] | None) -> list[Any]:
    """Return objects, each but None converted where that is needed."""
    if conversion is None:
        return list(objects)
    return [None if found is None else conversion(found) for found in objects]
