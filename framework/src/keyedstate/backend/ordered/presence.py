"""Which addresses were touched in which epoch, which of them had an entry, and how many entries there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: What is known of a touched address: that it had an entry when the epoch began, and that it has one now.
_EXISTED, _PRESENT = 1, 2


class Presence:
    """The touched addresses of a table, epoch by epoch.

    While epochs are counted, an address is looked up when it is first touched, and the number of entries is
    known from then on; without epochs nothing is looked up and nothing known.

    Parameters
    ----------
    exist : callable
        Looks up which of several addresses have an entry.
    """

    def __init__(self, exist: Callable[[Sequence[bytes]], list[bool]]) -> None:
        self._exist = exist
        #: By epoch, ascending; the last one is the running one, and `_running` too.
        self._epochs: dict[int, dict[bytes, int]] = {}
        self._running: dict[bytes, int] | None = None
        #: The number of entries, or None where it is not known.
        self.count: int | None = 0

    def begin(self, epoch: int) -> None:
        """Begin an epoch; raises ValueError where epochs do not ascend."""
        last = next(reversed(self._epochs), None)
        if last is not None and epoch <= last:
            raise ValueError(f"epoch {epoch} cannot begin after epoch {last}; epochs ascend")
        self._running = self._epochs[epoch] = {}

    def forget(self, epoch: int) -> None:
        """Drop what is known of epochs up to one, but not of the running one."""
        running = next(reversed(self._epochs), None)
        for number in [number for number in self._epochs if number <= epoch and number != running]:
            del self._epochs[number]

    def note(self, address: bytes, present: bool) -> bool | None:
        """Note, before it is changed, an address that will have an entry or will have none.

        Returns whether it has one now; None where that is not known.
        """
        running = self._running
        if running is None:
            self.count = None
            return None
        known = running.get(address)
        if known is None:
            known = self._before(address)
            if known is None:
                known = _EXISTED | _PRESENT if self._exist([address])[0] else 0
        running[address] = known | _PRESENT if present else known & ~_PRESENT
        before = bool(known & _PRESENT)
        if self.count is not None and present is not before:
            self.count += 1 if present else -1
        return before

    def note_many(self, addresses: Sequence[bytes], present: bool) -> None:
        """Note several addresses, looked up at once."""
        running = self._running
        if running is None:
            if addresses:
                self.count = None
            return
        known = {address: self._before(address) for address in addresses if address not in running}
        unknown = [address for address, bits in known.items() if bits is None]
        if unknown:
            for address, found in zip(unknown, self._exist(unknown), strict=True):
                known[address] = _EXISTED | _PRESENT if found else 0
        for address, bits in known.items():
            assert bits is not None, "looked up by now"
            running[address] = bits
        for address in addresses:
            self.note(address, present)

    def known(self, address: bytes) -> bool | None:
        """Return whether an address has an entry, or None where only a look can tell."""
        if self._running is None:
            return None
        bits = self._running.get(address)
        if bits is None:
            bits = self._before(address)
        return None if bits is None else bool(bits & _PRESENT)

    @property
    def tracks(self) -> bool:
        """Whether epochs are counted."""
        return self._running is not None

    def added(self, entries: int) -> None:
        """Count new entries that are no change of an epoch."""
        if self.count is not None:
            self.count += entries

    def since(self, epoch: int) -> tuple[list[bytes], list[bytes]]:
        """Return the addresses that epochs above one have written and removed."""
        known: dict[bytes, int] = {}
        for number, touched in self._epochs.items():
            if number > epoch:
                for address, bits in touched.items():
                    first = known.get(address, bits)
                    known[address] = first & _EXISTED | bits & _PRESENT
        written = [address for address, bits in known.items() if bits & _PRESENT]
        removed = [address for address, bits in known.items() if bits == _EXISTED]
        return written, removed

    def _before(self, address: bytes) -> int | None:
        """Return what is known of an address from the epochs before the running one."""
        for touched in reversed(self._epochs.values()):
            if touched is not self._running:
                bits = touched.get(address)
                if bits is not None:
                    return _EXISTED | _PRESENT if bits & _PRESENT else 0
        return None
