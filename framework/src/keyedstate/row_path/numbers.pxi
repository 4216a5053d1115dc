# Numbers of distinct strings, over the buffers of an Arrow array.

from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define keyedstate_prefetch(place) __builtin_prefetch(place)
    #else
    #define keyedstate_prefetch(place) ((void)0)
    #endif
    """
    void keyedstate_prefetch(void* place) nogil


cdef struct _Slot:
    #: The hash of the text.
    uint32_t tag
    #: One more than the number; 0 where the slot is empty.
    uint32_t number


cdef inline uint64_t _mixed(uint64_t word) noexcept nogil:
    word *= <uint64_t>0x9E3779B97F4A7C15
    return word ^ (word >> 32)


cdef inline uint64_t _last_word(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Return the last 8 bytes of a text, or all of a shorter one."""
    cdef uint64_t word = 0
    cdef uint32_t low = 0, high = 0
    if size >= 8:
        memcpy(&word, text + size - 8, 8)
    elif size >= 4:
        memcpy(&low, text, 4)
        memcpy(&high, text + size - 4, 4)
        word = <uint64_t>high << 32 | low
    elif size > 0:
        word = <uint64_t>text[0] << 16 | <uint64_t>text[size >> 1] << 8 | text[size - 1]
    return word


cdef inline uint32_t _hash_of(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef uint64_t mixed = <uint64_t>size * <uint64_t>0xC2B2AE3D27D4EB4F, word
    cdef Py_ssize_t place = 0
    while place + 8 < size:
        memcpy(&word, text + place, 8)
        mixed = _mixed(mixed ^ word)
        place += 8
    return <uint32_t>(_mixed(_mixed(mixed ^ _last_word(text, size))) >> 32)


cdef inline bint _are_equal(const uint8_t* one, const uint8_t* other, Py_ssize_t size) noexcept nogil:
    cdef uint64_t word, other_word
    cdef Py_ssize_t place = 0
    while place + 8 < size:
        memcpy(&word, one + place, 8)
        memcpy(&other_word, other + place, 8)
        if word != other_word:
            return False
        place += 8
    return _last_word(one, size) == _last_word(other, size)


cdef int _grow(_Slot** slots, uint64_t* mask) except -1 nogil:
    """Give a table four times as many slots."""
    cdef uint64_t size = 4 * (mask[0] + 1), index, place
    cdef _Slot* made = <_Slot*>calloc(size, sizeof(_Slot))
    if made is NULL:
        with gil:
            raise MemoryError(f"a table of {size} slots")
    for index in range(mask[0] + 1):
        if slots[0][index].number:
            place = slots[0][index].tag & (size - 1)
            while made[place].number:
                place = (place + 1) & (size - 1)
            made[place] = slots[0][index]
    free(slots[0])
    slots[0], mask[0] = made, size - 1
    return 0


def numbered_texts(
    const int32_t[::1] ends, const uint8_t[::1] data, int64_t[::1] numbers, int64_t[::1] first_rows
):
    # The ends of an Arrow array ascend; of others than the first and the last one that is not checked.
    cdef Py_ssize_t rows = numbers.shape[0], start, end, row, size, count = 0, probes = 0
    cdef uint64_t mask = 1023, place
    cdef uint32_t[32] hashes
    cdef const uint8_t* text
    cdef uint8_t nothing = 0
    cdef const uint8_t* texts = &data[0] if data.shape[0] else &nothing
    cdef _Slot* slots
    cdef uint32_t tag
    cdef int64_t first
    if ends.shape[0] != rows + 1 or first_rows.shape[0] < rows or rows > 0x7FFFFFFF:
        raise ValueError(f"{ends.shape[0]} ends of {rows} texts with {first_rows.shape[0]} first rows")
    if rows and (ends[0] < 0 or ends[rows] > data.shape[0]):
        raise ValueError(f"texts from {ends[0]} to {ends[rows]} of {data.shape[0]} bytes")
    slots = <_Slot*>calloc(mask + 1, sizeof(_Slot))
    if slots is NULL:
        raise MemoryError(f"a table of {mask + 1} slots")
    try:
        with nogil:
            for start in range(0, rows, 32):
                end = min(start + 32, rows)
                if 2 * (count + 32) > <Py_ssize_t>mask:
                    _grow(&slots, &mask)
                # What a block needs is fetched from memory at once.
                for row in range(start, end):
                    hashes[row - start] = _hash_of(texts + ends[row], ends[row + 1] - ends[row])
                    keyedstate_prefetch(&slots[hashes[row - start] & mask])
                for row in range(start, end):
                    tag = hashes[row - start]
                    text, size = texts + ends[row], ends[row + 1] - ends[row]
                    place = tag & mask
                    while slots[place].number:
                        if slots[place].tag == tag:
                            first = first_rows[slots[place].number - 1]
                            if ends[first + 1] - ends[first] == size and _are_equal(
                                texts + ends[first], text, size
                            ):
                                break
                        place = (place + 1) & mask
                        probes += 1
                    if not slots[place].number:
                        first_rows[count] = row
                        count += 1
                        slots[place].tag, slots[place].number = tag, <uint32_t>count
                    numbers[row] = <int64_t>slots[place].number - 1
                if probes > 8 * end + 4096:
                    # Ordinary texts never have so many equal hashes: the sender of these has chosen them.
                    count = -1
                    break
    finally:
        free(slots)
    return count
