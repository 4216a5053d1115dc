"""Entries in columns: each field of the values is an array, indexed by entry numbers.

An entry is found by the bytes of its key and gets the next number when it is added.  A removed entry keeps
its number and is no longer `live`.  When too many numbers have no entry, the others are renumbered, in slices
(`Renumbering`): only the last one, which exchanges the arrays, is seen by anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from keyedstate.backend import Column, StateMeta
from keyedstate.tables import check_ascending, column_dtype
from keyedstate_heap_cow.before_images import BeforeImages, FrozenArrays
from keyedstate_heap_cow.keybytes import KeyBytes, Keys
from keyedstate_heap_cow.keyindex import KeyIndex
from keyedstate_heap_cow.renumbering import Flags, Numbering, Renumbering, flags_of, longer

N = TypeVar("N")

Slots = npt.NDArray[np.int64]
Nones = npt.NDArray[np.bool_]

#: The liveness of an entry: removed, with a value, with the value None.
GONE, PRESENT, NONE = 0, 1, 2
#: The epoch of entries that are older than the first one.
BEFORE = -(2**62)


class EntryColumns(Generic[N]):
    """The arrays of a table and what changed in them, epoch by epoch.

    A snapshot reads the arrays, and the owner keeps the values that it changes (`BeforeImages`).  A backend
    with two tiers of storage extends it: `evict` and `admit` move entries, which is no change.

    Parameters
    ----------
    meta : StateMeta

    Attributes
    ----------
    numbering : int
        How often a number has got another meaning, or has lost its entry to another tier.
    """

    #: The part of the numbers that may be without an entry, and how many always may.
    most_unused: ClassVar[float] = 0.5
    few_unused: ClassVar[int] = 4096
    #: The numbers that are looked at together: some milliseconds.
    renumbered_together: ClassVar[int] = 16_384

    def __init__(self, meta: StateMeta) -> None:
        self._keys = KeyBytes(meta.key_serializer.arrow_type)
        self._index = KeyIndex()
        #: Namespaces by their numbers; only ever appended to, so that a snapshot may read it.
        self._spaces: list[N] = []
        self._space_numbers: dict[N, int] = {}
        capacity = self._index.capacity
        #: The liveness of each entry: `GONE`, `PRESENT` or `NONE`.
        self._live = np.zeros(capacity, np.uint8)
        #: The fields of the values.  Snapshots read these and `_live`: `_keep_images` precedes every change.
        self._fields = [
            Column(np.zeros(capacity, column_dtype(field.type)), np.zeros(capacity, np.bool_))
            for field in meta.value_serializer.arrow_type
        ]
        self._images = BeforeImages()
        #: The epochs in which an entry was added, and changed last: 1 is `_first_epoch`, and 0 is `BEFORE`.
        self._born = np.zeros(capacity, np.int16)
        self._changed = np.zeros(capacity, np.int16)
        self._first_epoch = 0
        self._count = 0
        #: Numbers without an entry.
        self._gone = 0
        #: Numbers without an entry at which the others are renumbered.
        self._most_gone = self.few_unused
        self.numbering = 0
        self._renumbering: Renumbering[N] | None = None
        #: The entries that have changed since its last slice.
        self._changed_slots: list[Slots] = []
        #: The running epoch; None before the first one, when changes are not tracked.
        self._epoch: int | None = None
        #: By epoch the entries that were written, each once, and those that were removed, with their `_born`.
        self._written: dict[int, list[Slots]] = {}
        self._removed: dict[int, list[tuple[Slots, Slots]]] = {}

    # -- numbers --------------------------------------------------------------------------------------------

    def number(
        self, keys: Keys, spaces: npt.NDArray[np.int32], groups: npt.NDArray[np.int32]
    ) -> tuple[Slots, Slots, Slots]:
        """Find the entries of rows, as `KeyIndex.locate`; a new one gets a number, and nothing else yet."""
        return self._number(keys, spaces, groups)

    def _number(
        self, keys: Keys, spaces: npt.NDArray[np.int32], groups: npt.NDArray[np.int32]
    ) -> tuple[Slots, Slots, Slots]:
        """Find entries in the arrays alone, whatever other tiers there are."""
        known = self._index.count
        found = self._index.locate(*keys, spaces, groups, True)
        self._grow()
        self._gone += self._index.count - known
        return found

    def _space(self, namespace: N) -> int:
        number = self._space_numbers.get(namespace)
        if number is None:
            number = self._space_numbers[namespace] = len(self._spaces)
            self._spaces.append(namespace)
        return number

    def _grow(self) -> None:
        """Make the arrays as long as the index; new elements say that there is no entry."""
        capacity = self._index.capacity
        if capacity > len(self._live):
            self._set_arrays([longer(array, capacity) for array in self._arrays()])

    def _arrays(self) -> list[npt.NDArray[Any]]:
        """Return the arrays with an element for each number, which is 0 where there is no entry."""
        fields = [array for field in self._fields for array in (field.values, field.there)]
        return [self._live, self._born, self._changed, *fields]

    def _set_arrays(self, arrays: list[npt.NDArray[Any]]) -> None:
        """Replace the arrays by others, which no snapshot keeps."""
        self._live, self._born, self._changed, *fields = arrays
        self._fields = list(map(Column, fields[::2], fields[1::2]))
        self._images = BeforeImages()

    def _renumber_unused(self, rows: int = 0) -> None:
        """Continue to renumber, or begin where too many numbers have no entry.

        A call with many rows copies as many entries: that takes a fraction of the time that its rows take.
        """
        running = self._renumbering
        if running is None:
            if not self._has_many_unused():
                return
            running = Renumbering(
                self._index, self._spaces, self._count, self._tracked_removals(), self._arrays()
            )
        # Where a slice fails, what it has copied is dropped, and the next call begins again.
        self._renumbering = None
        changed, self._changed_slots = self._changed_slots, []
        start, end = running.next_slice(max(self.renumbered_together, rows))
        running.copy(self._live[start:end] != GONE, self._arrays(), changed)
        if end < self._index.count:
            self._renumbering = running
        else:
            self._renumber(running)

    def _has_many_unused(self) -> bool:
        """Return whether too many numbers have no entry."""
        return self._gone > max(self._most_gone, self.most_unused * self._index.count)

    def _tracked_removals(self) -> npt.NDArray[np.bool_]:
        """Return of each number whether its entry was removed, which tracked changes have."""
        removed = [slots for removals in self._removed.values() for slots, _ in removals]
        return flags_of(self._index.count, removed)

    def _renumber(self, renumbering: Renumbering[N]) -> None:
        """Finish: drop removed entries, except those of tracked changes or removed meanwhile."""
        needed = (self._live[: self._index.count] != GONE) | self._tracked_removals()
        self._exchange(renumbering.finish(needed, self._arrays()))

    def _exchange(self, made: Numbering[N]) -> None:
        """Exchange the arrays for those with other numbers; where it raises, none is exchanged."""
        numbers = made.numbers
        space_numbers = {space: number for number, space in enumerate(made.spaces)}
        written = {
            epoch: [found[found >= 0] for found in (numbers[slots] for slots in noted)]
            for epoch, noted in self._written.items()
        }
        removed = {
            epoch: [(numbers[slots], born) for slots, born in noted] for epoch, noted in self._removed.items()
        }
        self._index, self._spaces, self._space_numbers = made.index, made.spaces, space_numbers
        self._written, self._removed = written, removed
        self._set_arrays(made.arrays)
        self._gone = self._index.count - self._count
        self._most_gone = 2 * self._gone + self.few_unused
        self.numbering += 1

    # -- values ---------------------------------------------------------------------------------------------

    def _shared(self) -> list[npt.NDArray[Any]]:
        """Return the arrays that snapshots read: `_live`, then of each field values and presence."""
        return [self._live, *(array for field in self._fields for array in (field.values, field.there))]

    def _freeze(self) -> FrozenArrays:
        return self._images.freeze(self._shared(), self._index.count)

    def _keep_images(self, slots: Slots) -> None:
        """Keep what snapshots need of distinct entries before these change."""
        if self._images:
            self._images.keep(slots, self._shared())

    def live(self, slots: Slots) -> npt.NDArray[np.uint8]:
        """Return the liveness of entries: `GONE`, `PRESENT` or `NONE`."""
        return self._live[slots]

    def read(self, slots: Slots) -> list[Column]:
        """Return the fields of entries; those of removed entries are missing."""
        # Removed entries, and those that are None, have no field.
        columns = []
        for field in self._fields:
            present = field.there[slots]
            columns.append(Column(field.values[slots], None if present.all() else present))
        return columns

    def write(self, slots: Slots, columns: Sequence[Column], nones: Nones | None) -> None:
        """Write distinct entries; `nones` says which of them have the value None."""
        self._keep_images(slots)
        self._set(slots, columns, nones)
        if self._epoch is not None:
            fresh = slots[~self._changed_now(slots)]
            if len(fresh):
                self._changed[fresh] = self._stamp
                self._written.setdefault(self._epoch, []).append(fresh)

    def _set(self, slots: Slots, columns: Sequence[Column], nones: Nones | None) -> Slots:
        """Set the values of entries; returns those that are new, and born in the running epoch."""
        self._note_changed(slots)
        for field, column in zip(self._fields, columns, strict=True):
            field.values[slots] = column.values
            field.there[slots] = True if column.present is None else column.present
        new: Slots = slots[self._live[slots] == GONE]
        if len(new):
            self._born[new] = self._stamp
            self._count += len(new)
            self._gone -= len(new)
        self._live[slots] = PRESENT if nones is None else np.where(nones, NONE, PRESENT)
        return new

    def take_out(self, slots: Slots) -> None:
        """Remove those of distinct entries that exist."""
        slots = slots[self._live[slots] != GONE]
        if not len(slots):
            return
        self._keep_images(slots)
        self._clear(slots)
        if self._epoch is not None:
            self._removed.setdefault(self._epoch, []).append((slots, self._epochs(self._born[slots])))
            # If it is added again within the epoch, it counts as written again.
            self._changed[slots] = 0

    def _note_changed(self, slots: Slots) -> None:
        """Note entries that an operation changes, where a renumbering may have copied them before."""
        if self._renumbering is not None:
            self._changed_slots.append(slots)

    def _clear(self, slots: Slots) -> None:
        self._note_changed(slots)
        self._live[slots] = GONE
        for field in self._fields:
            field.there[slots] = False
        self._count -= len(slots)
        self._gone += len(slots)

    # -- moves ----------------------------------------------------------------------------------------------

    def evict(self, slots: Slots) -> None:
        """Drop distinct existing entries from the arrays alone: another tier has them."""
        self._keep_images(slots)
        self._clear(slots)
        self.numbering += 1

    def admit(
        self, slots: Slots, columns: Sequence[Column], nones: Nones | None, born: Slots, changed: Slots
    ) -> None:
        """Add distinct entries of another tier under numbers without an entry.

        Parameters
        ----------
        slots : ndarray of int64
        columns, nones
            As of `write`.
        born, changed : ndarray of int64
            What the entries had in `epochs_of`, but `BEFORE` for changes that are forgotten.
        """
        self._keep_images(slots)
        self._set(slots, columns, nones)
        for stamps, epochs in ((self._born, born), (self._changed, changed)):
            stamps[slots] = np.where(epochs == BEFORE, 0, epochs - (self._first_epoch - 1))
        noted = changed != BEFORE
        if noted.any():
            for epoch in np.unique(changed[noted]).tolist():
                self._written.setdefault(epoch, []).append(slots[changed == epoch])

    def epochs_of(self, slots: Slots) -> tuple[Slots, Slots]:
        """Return the epochs in which entries were added, and changed last; `BEFORE` the first one."""
        return self._epochs(self._born[slots]), self._epochs(self._changed[slots])

    def _epochs(self, stamps: npt.NDArray[Any]) -> Slots:
        """Return the epochs that elements of `_born` or `_changed` mean."""
        return np.where(stamps == 0, BEFORE, stamps + np.int64(self._first_epoch - 1))

    @property
    def _stamp(self) -> int:
        """What `_born` and `_changed` have for the running epoch."""
        return 0 if self._epoch is None else self._epoch - self._first_epoch + 1

    def _changed_now(self, slots: Slots) -> Flags:
        """Return which entries were changed in the running epoch."""
        changed: Flags = self._changed[slots] == self._stamp
        # Without an epoch it is the stamp of all.
        return changed & (self._epoch is not None)

    # -- changes --------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Count every change from now on as one of an epoch (`ChangeTracking.begin_epoch`)."""
        check_ascending(epoch, self._epoch)
        if self._epoch is None:
            self._first_epoch = epoch
        self._epoch = epoch
        if self._stamp > np.iinfo(self._changed.dtype).max:
            self._renumbering = None  # it copies into arrays of the former width
            wider = np.promote_types(self._changed.dtype, np.min_scalar_type(-self._stamp - 1))
            self._born, self._changed = self._born.astype(wider), self._changed.astype(wider)

    def _changed_since(self, epoch: int) -> tuple[Slots, Slots]:
        """Return the entries that were written after an epoch and exist, and those that were removed."""
        found = [slots for at, written in self._written.items() if at > epoch for slots in written]
        written = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        # An entry that was added after the epoch is no removal.
        gone = [
            slots[born <= epoch]
            for at, removals in self._removed.items()
            if at > epoch
            for slots, born in removals
        ]
        removed = np.unique(np.concatenate(gone)) if gone else np.empty(0, np.int64)
        # A number may have been given to another entry since.
        changed = self._epochs(self._changed[written]) > epoch
        return written[changed & (self._live[written] != GONE)], removed[self._live[removed] == GONE]

    def forget_changes(self, epoch: int) -> None:
        """Forget the changes up to an epoch (`ChangeTracking.forget_changes`)."""
        noted: dict[int, Any]
        for noted in (self._written, self._removed):
            for known in [known for known in noted if known <= epoch and known != self._epoch]:
                del noted[known]
