"""The merging window set: which state belongs to which window of a key, while windows become one.

Each window names a *state window*, under which its contents are kept.  When windows merge, the merged one
takes over the state window of one of them, so that a session that grows row by row never moves its contents.
Flink's ``MergingWindowSet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from keyedstate.windows.declaration.assigners import MergingWindowAssigner

W = TypeVar("W")

#: Is told of a merge: the window that was made, the windows that became it, the state window that it takes
#: over, and those whose contents are to be added to that one.
MergeFunction = Callable[[W, list[W], W, list[W]], None]


class MergingWindowSet(Generic[W]):
    """The windows of one key, and their state windows.

    Parameters
    ----------
    assigner : MergingWindowAssigner
    entries : iterable of (window, window)
        The windows so far, each with its state window.
    """

    def __init__(self, assigner: MergingWindowAssigner[Any], entries: Iterable[tuple[W, W]] = ()) -> None:
        self._assigner = assigner
        self._mapping: dict[W, W] = dict(entries)
        self._initial = dict(self._mapping)

    @property
    def changed(self) -> bool:
        """Whether `entries` are others than those that the set was made with."""
        return self._mapping != self._initial

    @property
    def entries(self) -> list[tuple[W, W]]:
        """Each window and its state window; to be kept where `changed`."""
        return list(self._mapping.items())

    def state_window(self, window: W) -> W | None:
        """Return the namespace of a window's contents; None where the window is not in the set."""
        return self._mapping.get(window)

    def retire(self, window: W) -> None:
        """Take a window out of the set; nothing where it is not in it."""
        self._mapping.pop(window, None)

    def add(self, new: W, merge: MergeFunction[W]) -> W:
        """Add a window and return the one that it has become: itself, or what it was merged into.

        Parameters
        ----------
        new : window
        merge : callable
            Called for each merge of windows that were in the set before.  Where a window only goes into one
            that holds it already, there is none.
        """
        mapping = self._mapping
        result, absorbed = new, False
        for made, parts in self._assigner.merge_windows([*mapping, new] if new not in mapping else mapping):
            before = [window for window in parts if window in mapping]
            if new in parts:
                result, absorbed = made, True
            if not before:
                # The new window alone, which the assigner wants to be another one.
                mapping[made] = made
                continue
            state_windows = [mapping.pop(window) for window in before]
            mapping[made] = state_windows[0]
            if before != [made]:
                merge(made, before, state_windows[0], state_windows[1:])
        if not absorbed:
            mapping.setdefault(new, new)
        return result
