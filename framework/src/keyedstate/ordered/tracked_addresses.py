"""The addresses that each epoch touched, which of them had an entry, and how many entries a table has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from keyedstate.tables import EpochNotes

A = TypeVar("A")

#: The bits of a touched address: it had an entry when the epoch began, and it has one now.
_EXISTED, PRESENT = 1, 2
_GROUP_SHIFT = 2


class TrackedAddresses(EpochNotes[dict[A, int]], Generic[A]):
    """The touched addresses of a table, epoch by epoch, with what is known of each as bits."""

    def __init__(self) -> None:
        super().__init__(dict)
        #: The number of entries, or None where it is not known.
        self.count: int | None = 0

    def codes_since(self, epoch: int) -> dict[A, int]:
        """Return the addresses touched in the epochs above one, in a dict that the caller may change."""
        touched = self.since(epoch)
        if len(touched) == 1:
            return dict(touched[0])
        codes: dict[A, int] = {}
        for known in touched:
            for address, code in known.items():
                codes[address] = code & ~_EXISTED | codes.get(address, code) & _EXISTED
        return codes


class TrackedKeys(TrackedAddresses[Any]):
    """Touched addresses of a table that knows at each change whether the address had an entry.

    A code is the key group, followed by the two bits.
    """

    def note(self, key: Any, key_group: int, existed: bool, present: bool) -> None:
        """Note an address that had an entry or none, and has one now or none."""
        assert self.running is not None
        code = self.running.get(key)
        if code is None:
            code = key_group << _GROUP_SHIFT | existed
        self.running[key] = code | PRESENT if present else code & ~PRESENT

    def note_many(
        self, keys: Sequence[Any], key_groups: Sequence[int], existed: Sequence[bool], present: bool
    ) -> None:
        """Note several addresses that all have an entry now, or all have none."""
        running = self.running
        assert running is not None
        self.count_changed(keys, existed, present)
        if running.keys().isdisjoint(keys):
            bits = PRESENT if present else 0
            codes = [
                group << _GROUP_SHIFT | had | bits for group, had in zip(key_groups, existed, strict=True)
            ]
            running.update(zip(keys, codes, strict=True))
        else:
            for each in zip(keys, key_groups, existed, strict=True):
                self.note(*each, present)

    def count_changed(self, keys: Sequence[Any], existed: Sequence[bool], present: bool) -> None:
        """Correct the number of entries for addresses that all have an entry now, or all have none."""
        if self.count is not None and not (present and all(existed)):
            changed = {key for key, had in zip(keys, existed, strict=True) if had is not present}
            self.count += len(changed) if present else -len(changed)

    def note_written(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        """Note several addresses that had an entry and have one now."""
        running = self.running
        assert running is not None
        if running.keys().isdisjoint(keys):
            codes = [group << _GROUP_SHIFT | _EXISTED | PRESENT for group in key_groups]
            running.update(zip(keys, codes, strict=True))
        else:
            for key, group in zip(keys, key_groups, strict=True):
                self.note(key, group, True, True)

    @staticmethod
    def written_and_removed(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """Return the indices of the codes of written addresses, and of those of removed ones."""
        return (
            np.flatnonzero(codes & PRESENT),
            np.flatnonzero(codes & (PRESENT | _EXISTED) == _EXISTED),
        )

    @staticmethod
    def key_groups(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the key groups of codes."""
        return codes >> _GROUP_SHIFT


class TrackedRows(TrackedAddresses[bytes]):
    """Touched addresses of a table that has to look up whether an address has an entry, with `exist`.

    While epochs are tracked, an address is looked up when it is first touched, and the number of entries is
    known from then on. Without epochs nothing is looked up, and a change makes the number unknown.
    """

    def __init__(self, exist: Callable[[Sequence[bytes]], list[bool]]) -> None:
        super().__init__()
        self._exist = exist

    def note(self, address: bytes, present: bool) -> bool | None:
        """Note, before the change, an address that will have an entry or none.

        Returns whether it has one now; None where that is not known.
        """
        running = self.running
        if running is None:
            self.count = None
            return None
        known = running.get(address)
        if known is None:
            known = self._before(address)
            if known is None:
                known = _EXISTED | PRESENT if self._exist([address])[0] else 0
        running[address] = known | PRESENT if present else known & ~PRESENT
        before = bool(known & PRESENT)
        if self.count is not None and present is not before:
            self.count += 1 if present else -1
        return before

    def note_existing(self, address: bytes) -> None:
        """Note, before the change, an address that has an entry, which need not be looked up."""
        if self.running is not None:
            self.running.setdefault(address, _EXISTED | PRESENT)

    def note_many(self, addresses: Sequence[bytes], present: bool) -> None:
        """Note several addresses, looked up at once."""
        running = self.running
        if running is None:
            if addresses:
                self.count = None
            return
        known = {address: self._before(address) for address in addresses if address not in running}
        unknown = [address for address, bits in known.items() if bits is None]
        if unknown:
            for address, found in zip(unknown, self._exist(unknown), strict=True):
                known[address] = _EXISTED | PRESENT if found else 0
        for address, bits in known.items():
            assert bits is not None, "looked up by now"
            running[address] = bits
        for address in addresses:
            self.note(address, present)

    def note_changed(self, addresses: Sequence[bytes], present: bool) -> None:
        """Note several addresses that had an entry and will have none, or had none and will have one."""
        if self.count is not None:
            self.count += len(addresses) if present else -len(addresses)
        running = self.running
        if running is None:
            return
        before = 0 if present else _EXISTED | PRESENT
        if running.keys().isdisjoint(addresses):
            running.update(dict.fromkeys(addresses, before ^ PRESENT))
        else:
            for address in addresses:
                running[address] = running.get(address, before) ^ PRESENT

    def known(self, address: bytes) -> bool | None:
        """Return whether an address has an entry, or None where that needs a look-up."""
        if self.running is None:
            return None
        bits = self.running.get(address)
        if bits is None:
            bits = self._before(address)
        return None if bits is None else bool(bits & PRESENT)

    def changed_since(self, epoch: int) -> tuple[list[bytes], list[bytes]]:
        """Return the addresses that epochs above one have written, and those that they have removed."""
        known = self.codes_since(epoch)
        written = [address for address, bits in known.items() if bits & PRESENT]
        removed = [address for address, bits in known.items() if bits & (_EXISTED | PRESENT) == _EXISTED]
        return written, removed

    def _before(self, address: bytes) -> int | None:
        """Return what the epochs before the running one tell of an address."""
        for touched in reversed(self._notes.values()):
            if touched is not self.running:
                bits = touched.get(address)
                if bits is not None:
                    return _EXISTED | PRESENT if bits & PRESENT else 0
        return None
