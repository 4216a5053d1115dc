"""Arrays as they were at one time, for a reader in another thread, while their owner changes elements.

Before the owner changes an element for the first time, it gives the old value to the readers: a before-image,
as databases keep them.  The keys of a batch are spread over all entries, so copies of whole chunks would soon
be copies of everything.  Images cost the owner as much as the change itself, whatever the number of entries.

There is no lock.  The owner publishes an image before the change.  The reader reads the elements first, and
takes the published images after that.  An element that it read during or after a change has an image by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Slots = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Elements that `FrozenArrays.where` looks at together.
_PIECE = 65_536


class _Images(NamedTuple):
    """The old values of distinct elements, one array for each of the arrays."""

    slots: Slots
    values: list[Array]


class FrozenArrays:
    """Arrays of equal lengths as they were when they were frozen; for one reading thread.

    Parameters
    ----------
    arrays : sequence of ndarray
    count : int
        Their elements that can be read.
    """

    def __init__(self, arrays: Sequence[Array], count: int) -> None:
        self._arrays = tuple(arrays)
        self._count = count
        #: Images that the owner has published and the reader has not taken.
        self._published: deque[_Images] = deque()
        #: Which elements have an image, and the images at their places: memory is used where it is written.
        self._has_image: Flags | None = None
        self._images: list[Array] = []

    def publish(self, images: _Images) -> None:
        """Add images of elements that are about to change; for the owner's thread."""
        self._published.append(images)

    def read(self, slots: Slots, which: Sequence[int]) -> list[Array]:
        """Return elements of those arrays that are chosen by their indices."""
        found = [self._arrays[index][slots] for index in which]
        self._take_published()
        if self._has_image is not None:
            changed = np.flatnonzero(self._has_image[slots])
            for elements, index in zip(found, which, strict=True):
                elements[changed] = self._images[index][slots[changed]]
        return found

    def where(self, condition: Callable[..., Flags], which: Sequence[int]) -> Slots:
        """Return where a condition is true, which takes pieces of the chosen arrays."""
        found = [np.empty(0, np.int64)]
        for start in range(0, self._count, _PIECE):
            slots = np.arange(start, min(start + _PIECE, self._count))
            found.append(slots[condition(*self.read(slots, which))])
        return np.concatenate(found)

    def release(self) -> None:
        """Free the arrays; nothing can be read then."""
        self._arrays, self._count = (), 0
        self._published, self._has_image, self._images = deque(), None, []

    def _take_published(self) -> None:
        if self._has_image is None and self._published:
            self._images = [np.empty(self._count, array.dtype) for array in self._arrays]
            self._has_image = np.zeros(self._count, np.bool_)
        while self._published:
            slots, values = self._published.popleft()
            # After a later freeze, the owner also gives images of newer elements, and further ones of others.
            first = slots < self._count
            first[first] = ~self._has_image[slots[first]]  # type: ignore[index]
            slots = slots[first]
            for images, elements in zip(self._images, values, strict=True):
                images[slots] = elements[first]
            self._has_image[slots] = True  # type: ignore[index]


class BeforeImages:
    """The readers of the arrays of one owner; for its thread, unless a method says otherwise."""

    def __init__(self) -> None:
        #: Those that have not been released; any thread removes its own.
        self._readers: set[FrozenArrays] = set()
        #: Which elements have an image since the last freeze; later elements need none.
        self._has_image: Flags | None = None
        self._count = 0

    def __bool__(self) -> bool:
        """Return whether anyone reads the arrays."""
        return bool(self._readers)

    def freeze(self, arrays: Sequence[Array], count: int) -> FrozenArrays:
        """Return arrays as they are now, up to a number of elements; it takes no time that depends on it."""
        frozen = FrozenArrays(arrays, count)
        self._readers.add(frozen)
        self._has_image, self._count = None, count
        return frozen

    def release(self, frozen: FrozenArrays) -> None:
        """Stop to keep images for a reader; in any thread."""
        self._readers.discard(frozen)
        frozen.release()

    def keep(self, slots: Slots, arrays: Sequence[Array]) -> None:
        """Give the readers the images of those distinct elements that have none, before they change."""
        readers = tuple(self._readers)
        if not readers:
            return
        if self._has_image is None:
            self._has_image = np.zeros(self._count, np.bool_)
        if len(slots) and slots.max() >= self._count:
            slots = slots[slots < self._count]
        known = self._has_image.take(slots)
        if known.any():
            slots = slots[~known]
        if len(slots):
            # Faster than by an index.
            images = _Images(slots, [array.take(slots) for array in arrays])
            for reader in readers:
                reader.publish(images)
            self._has_image[slots] = True
