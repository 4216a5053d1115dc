# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The index of a table in columns: the bytes of keys, the numbers of their entries, and rows grouped by them.

An entry is a number from 0, given in the order in which entries come; it keeps it until it is released.  What
an entry is found by is the bytes of its key and the number of its namespace.  The arrays are replaced where
they grow, never moved, so whoever holds one of them may read entries that are not released in another thread.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

import secrets

import numpy as np

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define keyedstate_prefetch(address) __builtin_prefetch(address)
    #else
    #define keyedstate_prefetch(address) ((void)(address))
    #endif
    """
    void keyedstate_prefetch(const void* address) noexcept nogil

#: Raised with every change that the tables need: `compiled_form` has the same number.
REVISION = 5

cdef uint64_t _WORD = 0x9E3779B97F4A7C15
cdef uint64_t _LENGTH = 0xC2B2AE3D27D4EB4F
cdef uint64_t _SPACE = 0x165667B19E3779F9
#: The part of a cell that is an entry's number plus one; the rest is a part of the hash.
cdef uint64_t _NUMBER = 0xFFFFFFFF
cdef enum:
    #: Rows whose waits for memory fall together.
    BLOCK = 64
    #: The length of the key of a released number; its namespace is then the room for the next key's bytes.
    FREE = -2

cdef struct Entry:
    #: Where the key begins, in 48 bits.
    uint32_t low
    uint16_t high
    uint16_t group
    int32_t length
    int32_t space

#: The same for NumPy.
ENTRY = np.dtype(
    [
        ("low", np.uint32),
        ("high", np.uint16),
        ("group", np.uint16),
        ("length", np.int32),
        ("space", np.int32),
    ]
)


def starts_of(entries):
    """Return where the keys of entries, an array of `ENTRY`, begin."""
    return entries["low"] | (entries["high"].astype(np.int64) << 32)


cdef inline int64_t _start(const Entry* entry) noexcept nogil:
    return <int64_t>entry.low | (<int64_t>entry.high << 32)


cdef inline uint64_t _hash(
    const uint8_t* key, Py_ssize_t length, int32_t space, uint64_t seed
) noexcept nogil:
    """Mix eight bytes at a time; what is left of a longer key is read again with the bytes before it."""
    cdef uint64_t mixed = seed ^ (<uint64_t>(length + 1) * _LENGTH) ^ (<uint64_t>(space + 1) * _SPACE)
    cdef uint64_t word
    cdef Py_ssize_t place = 0
    while place + 8 <= length:
        memcpy(&word, key + place, 8)
        mixed = (mixed ^ word) * _WORD
        mixed ^= mixed >> 32
        place += 8
    if place < length:
        word = 0
        if length >= 8:
            memcpy(&word, key + length - 8, 8)
        else:
            while place < length:
                word = (word << 8) | key[place]
                place += 1
        mixed = (mixed ^ word) * _WORD
        mixed ^= mixed >> 32
    mixed *= _LENGTH
    return mixed ^ (mixed >> 29)


cdef inline bint _same(const uint8_t* one, const uint8_t* other, Py_ssize_t length) noexcept nogil:
    cdef uint64_t word, other_word
    cdef Py_ssize_t place = 0
    while place + 8 <= length:
        memcpy(&word, one + place, 8)
        memcpy(&other_word, other + place, 8)
        if word != other_word:
            return False
        place += 8
    while place < length:
        if one[place] != other[place]:
            return False
        place += 1
    return True


cdef inline uint64_t _spread(uint64_t number) noexcept nogil:
    """Return where among those that were seen an entry is looked for, by its number plus one."""
    return (number * _WORD) >> 32


cdef class KeyIndex:
    """Numbers of entries by the bytes of their keys and by their namespaces.

    Attributes
    ----------
    count : int
        Entries that have a number.
    capacity : int
        The length of `entries`.
    entries : ndarray of ENTRY
        Of each entry where its key begins in `bytes` (`starts_of`), its length (-1 for the null key), the
        number of its namespace, and its key group.
    bytes : ndarray of uint8
        The keys' bytes.
    used : int
        How many of them are.
    free : int
        Numbers that were released and not given again.
    lost : int
        Used bytes that no key has.
    """

    cdef readonly Py_ssize_t count, capacity, used, free, lost
    cdef readonly object bytes, entries
    #: What the pointers below point into.
    cdef object _cell_array, _free_array
    cdef int64_t* _free
    cdef uint8_t* _bytes
    cdef Py_ssize_t _room
    #: Entries that the cells are for.
    cdef Py_ssize_t _most
    cdef Entry* _entries
    cdef uint64_t* _cells
    cdef uint64_t _mask, _seed

    @property
    def nbytes(self):
        """The size of everything."""
        arrays = self._cell_array, self._free_array, self.entries, self.bytes
        return sum([array.nbytes for array in arrays])

    def __init__(self, Py_ssize_t capacity=64, Py_ssize_t size=1024):
        self.capacity = self.count = self.used = self._room = self.free = self.lost = 0
        self._free_array = np.empty(0, np.int64)
        self._seed = secrets.randbits(64)
        self.bytes = np.empty(0, np.uint8)
        self.entries = np.empty(0, ENTRY)
        self._make_room(max(capacity, 64), max(size, 1024))
        self._make_cells(max(capacity, 64))

    cdef int _make_room(self, Py_ssize_t capacity, Py_ssize_t size) except -1:
        """Grow to so many entries and bytes."""
        cdef uint8_t[::1] raw
        # Room counts only after there is memory for all of it.
        if size > self._room:
            size = max(size, 2 * self._room)
            longer = _longer(self.bytes, self.used, size)
            raw = longer
            self.bytes, self._bytes, self._room = longer, &raw[0], size
        if capacity <= self.capacity:
            return 0
        capacity = max(capacity, 2 * self.capacity)
        longer = _longer(self.entries, self.count, capacity)
        raw = longer.view(np.uint8)
        self.entries, self._entries = longer, <Entry*>&raw[0]
        self.capacity = capacity
        return 0

    cdef int _make_cells(self, Py_ssize_t count) except -1:
        """Make cells of which so many entries occupy three quarters at most."""
        cdef uint64_t[::1] cells
        cdef uint64_t hashes[BLOCK]
        cdef Py_ssize_t base, block, number
        cdef Entry* entry
        needed = 128
        while 3 * needed < 4 * count:
            needed *= 2
        cell_array = np.zeros(needed, np.uint64)
        cells = cell_array
        self._cell_array, self._cells = cell_array, &cells[0]
        self._mask, self._most = needed - 1, 3 * needed // 4
        # As in `locate`, so that the processor fetches several cells at the same time.
        for base in range(0, self.count, BLOCK):
            block = min(<Py_ssize_t>BLOCK, self.count - base)
            for number in range(block):
                entry = self._entries + base + number
                hashes[number] = self._hash_of(self._bytes + _start(entry), entry.length, entry.space)
                keyedstate_prefetch(&self._cells[hashes[number] & self._mask])
            for number in range(block):
                if self._entries[base + number].length != FREE:
                    self._enter(base + number, hashes[number])
        return 0

    cdef inline uint64_t _hash_of(self, const uint8_t* key, Py_ssize_t length, int32_t space) noexcept nogil:
        if length < 0:
            return ~_hash(key, 0, space, self._seed)
        return _hash(key, length, space, self._seed)

    cdef inline void _enter(self, Py_ssize_t slot, uint64_t mixed) noexcept nogil:
        cdef uint64_t place = mixed & self._mask
        while self._cells[place]:
            place = (place + 1) & self._mask
        self._cells[place] = (mixed & ~_NUMBER) | <uint64_t>(slot + 1)

    def locate(
        self,
        const uint8_t[::1] data,
        const int64_t[::1] starts,
        const int32_t[::1] lengths,
        const int32_t[::1] spaces,
        const int32_t[::1] groups,
        bint add,
    ):
        """Find the entries of rows, each once, in the order of their first rows.

        Parameters
        ----------
        data : ndarray of uint8
            At least one byte.
        starts, lengths : ndarray of int64, int32
            Where the key of each row lies in it; a length of -1 is the null key.
        spaces : ndarray of int32
            The namespace of each row, or a single one for all.
        groups : ndarray of int32
            The key group of each row.
        add : bool
            Give numbers to entries that have none; otherwise -1 stands for each of them.

        Returns
        -------
        codes : ndarray of int64
            For each row the place of its entry in `slots`; rows without an entry have a place each.
        slots : ndarray of int64
            The numbers of the entries.
        first_rows : ndarray of int64
        """
        cdef Py_ssize_t rows = starts.shape[0], row, base, block, number, found = 0
        cdef Py_ssize_t slot, length, size
        made_codes = np.empty(rows, np.int64)
        made_slots = np.empty(rows, np.int64)
        made_rows = np.empty(rows, np.int64)
        cdef int64_t[::1] codes = made_codes, slots = made_slots, first_rows = made_rows
        cdef bint one_space = spaces.shape[0] == 1
        cdef int32_t space
        cdef uint64_t hashes[BLOCK]
        cdef uint64_t mixed, place, cell
        cdef const uint8_t* key
        cdef const uint8_t* keys = &data[0]
        cdef Entry* entry
        # The entries of this call by their numbers plus one, each with its code; at most half full.
        size = 128
        while size < 2 * rows:
            size *= 2
        cdef uint64_t[::1] seen = np.zeros(size, np.uint64)
        cdef uint64_t seen_mask = size - 1
        base = 0
        while base < rows:
            block = min(<Py_ssize_t>BLOCK, rows - base)
            for number in range(block):
                row = base + number
                mixed = self._hash_of(keys + starts[row], lengths[row], spaces[0 if one_space else row])
                hashes[number] = mixed
                keyedstate_prefetch(&self._cells[mixed & self._mask])
            for number in range(block):
                cell = self._cells[hashes[number] & self._mask]
                if cell:
                    keyedstate_prefetch(&self._entries[(cell & _NUMBER) - 1])
            for number in range(block):
                cell = self._cells[hashes[number] & self._mask]
                if cell:
                    keyedstate_prefetch(self._bytes + _start(self._entries + (cell & _NUMBER) - 1))
                    keyedstate_prefetch(&seen[_spread(cell & _NUMBER) & seen_mask])
            for number in range(block):
                row = base + number
                length = lengths[row]
                space = spaces[0 if one_space else row]
                key = keys + starts[row]
                mixed = hashes[number]
                place = mixed & self._mask
                slot = -1
                while True:
                    cell = self._cells[place]
                    if cell == 0:
                        break
                    if not ((cell ^ mixed) & ~_NUMBER):
                        slot = <Py_ssize_t>(cell & _NUMBER) - 1
                        entry = self._entries + slot
                        if (
                            entry.length == length
                            and entry.space == space
                            and _same(self._bytes + _start(entry), key, length)
                        ):
                            break
                        slot = -1
                    place = (place + 1) & self._mask
                if slot < 0:
                    if add:
                        slot = self._add(key, length, space, groups[row], mixed)
                    else:
                        codes[row] = found
                        slots[found] = -1
                        first_rows[found] = row
                        found += 1
                        continue
                place = _spread(slot + 1) & seen_mask
                while seen[place] and (seen[place] >> 32) != <uint64_t>(slot + 1):
                    place = (place + 1) & seen_mask
                if seen[place]:
                    codes[row] = <int64_t>(seen[place] & _NUMBER)
                    continue
                seen[place] = (<uint64_t>(slot + 1) << 32) | <uint64_t>found
                codes[row] = found
                slots[found] = slot
                first_rows[found] = row
                found += 1
            base += block
        return made_codes, made_slots[:found], made_rows[:found]

    cdef Py_ssize_t _add(
        self, const uint8_t* key, Py_ssize_t length, int32_t space, int32_t group, uint64_t mixed
    ) except -1:
        """Give a released number, or the next one, to an entry that is not there."""
        cdef Entry* entry
        cdef Py_ssize_t slot, size = max(length, 0)
        cdef int32_t room
        if self.free:
            slot = self._free[self.free - 1]
            room = self._entries[slot].space
            if size > room and self.used + size > self._room:
                self._make_room(self.capacity, self.used + size)
            self.free -= 1
            self.lost += room if size > room else room - size
        else:
            if self.count == self.capacity or self.used + size > self._room:
                self._make_room(self.count + 1, self.used + size)
            if self.count == self._most:
                self._make_cells(2 * self.count)
            slot = self.count
            self.count += 1
            room = -1
        entry = self._entries + slot
        if size > room:
            entry.low = <uint32_t>self.used
            entry.high = <uint16_t>(self.used >> 32)
            self.used += size
        entry.length = <int32_t>length
        entry.space = space
        entry.group = <uint16_t>group
        memcpy(self._bytes + _start(entry), key, size)
        self._enter(slot, mixed)
        return slot

    def release(self, const int64_t[::1] slots):
        """Take distinct entries out, whose numbers nobody reads any more: the next new entries get them."""
        cdef Py_ssize_t base, block, number, slot
        cdef uint64_t hashes[BLOCK]
        cdef Entry* entry
        cdef int64_t[::1] free
        for number in range(slots.shape[0]):
            if not 0 <= slots[number] < self.count or self._entries[slots[number]].length == FREE:
                raise IndexError(f"there is no entry with the number {slots[number]}")
        if self.free + slots.shape[0] > len(self._free_array):
            self._free_array = _longer(self._free_array, self.free, 2 * (self.free + slots.shape[0]))
            free = self._free_array
            self._free = &free[0]
        for base in range(0, slots.shape[0], BLOCK):
            block = min(<Py_ssize_t>BLOCK, slots.shape[0] - base)
            for number in range(block):
                entry = self._entries + slots[base + number]
                hashes[number] = self._hash_of(self._bytes + _start(entry), entry.length, entry.space)
                keyedstate_prefetch(&self._cells[hashes[number] & self._mask])
            for number in range(block):
                slot = slots[base + number]
                entry = self._entries + slot
                if entry.length == FREE:
                    raise IndexError(f"the number {slot} is released twice")
                self._take_out(slot, hashes[number])
                entry.space = max(entry.length, 0)
                entry.length = FREE
                self._free[self.free] = slot
                self.free += 1

    cdef void _take_out(self, Py_ssize_t slot, uint64_t mixed) noexcept nogil:
        """Empty the cell of an entry, and move those behind it that would not be found any more."""
        cdef uint64_t hole = mixed & self._mask, place, home
        cdef Entry* entry
        while (self._cells[hole] & _NUMBER) != <uint64_t>(slot + 1):
            if self._cells[hole] == 0:
                return
            hole = (hole + 1) & self._mask
        place = (hole + 1) & self._mask
        while self._cells[place]:
            entry = self._entries + ((self._cells[place] & _NUMBER) - 1)
            home = self._hash_of(self._bytes + _start(entry), entry.length, entry.space) & self._mask
            if ((place - home) & self._mask) >= ((place - hole) & self._mask):
                self._cells[hole] = self._cells[place]
                hole = place
            place = (place + 1) & self._mask
        self._cells[hole] = 0

    def copy_from(self, KeyIndex other, const int64_t[::1] kept, const int32_t[::1] spaces):
        """Add entries of another index, which this one lacks, in namespaces given for each."""
        cdef Py_ssize_t base, block, number
        cdef Entry* entry
        cdef uint64_t hashes[BLOCK]
        for base in range(0, kept.shape[0], BLOCK):
            block = min(<Py_ssize_t>BLOCK, kept.shape[0] - base)
            for number in range(block):
                entry = other._entries + kept[base + number]
                hashes[number] = self._hash_of(
                    other._bytes + _start(entry), entry.length, spaces[base + number]
                )
                keyedstate_prefetch(&self._cells[hashes[number] & self._mask])
            for number in range(block):
                entry = other._entries + kept[base + number]
                self._add(
                    other._bytes + _start(entry),
                    entry.length,
                    spaces[base + number],
                    entry.group,
                    hashes[number],
                )


def copy_bytes(
    const uint8_t[::1] source,
    const int64_t[::1] starts,
    uint8_t[::1] target,
    const int64_t[::1] places,
    const int32_t[::1] lengths,
):
    """Copy many pieces of bytes, each from its start to its place; negative lengths are nothing.

    Raises
    ------
    IndexError
        Where a piece lies outside of either; nothing behind it is copied then.
    """
    cdef Py_ssize_t piece, size = source.shape[0], room = target.shape[0]
    cdef Py_ssize_t length
    for piece in range(starts.shape[0]):
        length = lengths[piece]
        if length <= 0:
            continue
        if starts[piece] < 0 or places[piece] < 0 or starts[piece] + length > size:
            raise IndexError("a piece lies outside of the bytes")
        if places[piece] + length > room:
            raise IndexError("a piece lies outside of the target")
        memcpy(&target[places[piece]], &source[starts[piece]], length)


cdef _longer(array, Py_ssize_t used, Py_ssize_t length):
    longer = np.empty(length, array.dtype)
    longer[:used] = array[:used]
    return longer
