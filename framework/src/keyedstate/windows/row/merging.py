"""The merging window set: which state belongs to which window of a key, while windows become one.

Each window has a *state window*, the namespace of its contents.  When windows merge, the merged one takes
over the state window of one of them, so that a session that grows row by row never moves its contents.
Flink's ``MergingWindowSet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from keyedstate.windows.declaration.assigners import MergingWindowAssigner

W = TypeVar("W")

#: Called for a merge with the merged window, its parts, the state window that it takes over, and the state
#: windows whose contents are to be added to that one.
MergeFunction = Callable[[W, list[W], W, list[W]], None]


class MergingWindowSet(Generic[W]):
    """The windows of one key, each with its state window."""

    def __init__(self, assigner: MergingWindowAssigner[Any], entries: Iterable[tuple[W, W]] = ()) -> None:
        self._assigner = assigner
        self._mapping: dict[W, W] = dict(entries)
        self._initial = dict(self._mapping)

    @property
    def changed(self) -> bool:
        """Whether `entries` differ from those that the set was made with."""
        return self._mapping != self._initial

    @property
    def entries(self) -> list[tuple[W, W]]:
        """Each window and its state window; to be stored where `changed`."""
        return list(self._mapping.items())

    def state_window(self, window: W) -> W | None:
        """Return the namespace of a window's contents; None where the window is not in the set."""
        return self._mapping.get(window)

    def retire(self, window: W) -> None:
        """Remove a window from the set if it is in it."""
        self._mapping.pop(window, None)

    def add(self, new: W, merge: MergeFunction[W]) -> W:
        """Add a window and return it, or the window that it was merged into.

        `merge` is called for each merge that changes a window of the set, so not where one covers the new
        window already.
        """
        mapping = self._mapping
        result, absorbed = new, False
        for merged, parts in self._assigner.merge_windows([*mapping, new] if new not in mapping else mapping):
            before = [window for window in parts if window in mapping]
            if new in parts:
                result, absorbed = merged, True
            if not before:
                # The new window alone, which the assigner has replaced by another one.
                mapping[merged] = merged
                continue
            state_windows = [mapping.pop(window) for window in before]
            mapping[merged] = state_windows[0]
            if before != [merged]:
                merge(merged, before, state_windows[0], state_windows[1:])
        if not absorbed:
            mapping.setdefault(new, new)
        return result
