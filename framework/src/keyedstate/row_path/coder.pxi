# The bytes of rows, tuples and lists of scalars for `keyedstate.types.contract.compiled_bytes`.
# Part of `compiled.pyx`.
#
# A row in an ordered store is bytes, and a function of Python for each kind of row takes ten times as long.
# What is rare is left to the caller: a value of another class, text with surrogates, bytes that are wrong.
# No code of Python runs between the first byte and the last, so one buffer is enough.

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport uint16_t, uint64_t

cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    uint32_t PyUnicode_READ(int kind, void* data, Py_ssize_t index)
    object PyUnicode_FromKindAndData(int kind, const void* data, Py_ssize_t size)

cdef enum:
    INT8, INT16, INT32, INT64, FLOAT64, BOOLEAN, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, PARTS

_CODES = {
    "int8": INT8,
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "float64": FLOAT64,
    "boolean": BOOLEAN,
    "string": STRING,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}

#: Bytes that the buffer keeps between two values.
cdef Py_ssize_t _KEPT = 1 << 20

cdef struct _Buffer:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t room

cdef _Buffer _out = _Buffer(NULL, 0, 0)

cdef struct _Source:
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t end


cdef bint _make_room(Py_ssize_t more) noexcept:
    """Make room for so many bytes; return whether there is memory for them."""
    cdef Py_ssize_t room = _out.size + more
    if room <= _out.room:
        return True
    # Twice as much, so that a row of many fields is not moved for each; of large texts not.
    room += min(room, _KEPT)
    cdef void* data = PyMem_Realloc(_out.data, room)
    if data is NULL:
        return False
    _out.data, _out.room = <uint8_t*>data, room
    return True


cdef inline void _begin() noexcept:
    _out.size = 0


cdef inline void _end() noexcept:
    """Give back what a large value needed."""
    if _out.room > _KEPT:
        PyMem_Free(_out.data)
        _out.data, _out.room = NULL, 0


cdef inline void _put(uint64_t number, int size) noexcept:
    """Append a number, for which there is room, in big-endian order."""
    cdef int shift
    for shift in range(8 * (size - 1), -1, -8):
        _out.data[_out.size] = <uint8_t>(number >> shift)
        _out.size += 1


cdef inline void _put_groups(uint32_t number) noexcept:
    """Append a number, for which there is room, in groups of seven bits, the lowest first."""
    while number >= 0x80:
        _out.data[_out.size] = <uint8_t>(number | 0x80)
        _out.size += 1
        number >>= 7
    _out.data[_out.size] = <uint8_t>number
    _out.size += 1


cdef bint _put_text(object text) except -1:
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(text), index
    cdef int kind = PyUnicode_KIND(text)
    cdef void* data = PyUnicode_DATA(text)
    cdef uint32_t unit
    cdef bint is_ascii = PyUnicode_IS_ASCII(text)
    if length > 0x3FFFFFFF or not _make_room(5 + (length if is_ascii else 3 * length)):
        return False
    _put_groups(<uint32_t>length + 1)
    if is_ascii:
        memcpy(_out.data + _out.size, data, length)
        _out.size += length
        return True
    for index in range(length):
        unit = PyUnicode_READ(kind, data, index)
        if unit > 0xFFFF or 0xD800 <= unit < 0xE000:
            return False
        _put_groups(unit)
    return True


cdef bint _put_instant(object value, object zone) except -1:
    cdef int64_t micros, millis
    if not PyDateTime_CheckExact(value) or datetime_tzinfo(value) is not zone:
        return False
    micros = _micros(value)
    millis = _floor_div(micros, 1000)
    if not _make_room(12):
        return False
    _put(<uint64_t>millis, 8)
    _put(<uint64_t>((micros - millis * 1000) * 1000), 4)
    return True


cdef inline bint _has(_Source* source, Py_ssize_t size) noexcept:
    return source.end - source.at >= size


cdef inline uint64_t _take(_Source* source, int size) noexcept:
    cdef uint64_t number = 0
    cdef int _
    for _ in range(size):
        number = number << 8 | source.data[source.at]
        source.at += 1
    return number


cdef bint _take_groups(_Source* source, int groups, uint32_t largest, uint32_t* found) noexcept:
    """Read a number of so many groups of seven bits at most; return whether it could be read."""
    cdef uint64_t number = 0
    cdef int group
    cdef uint8_t byte
    for group in range(groups):
        if source.at >= source.end:
            return False
        byte = source.data[source.at]
        source.at += 1
        number |= <uint64_t>(byte & 0x7F) << (7 * group)
        if byte < 0x80:
            found[0] = <uint32_t>number
            return number <= largest
    return False


cdef object _take_text(_Source* source):
    cdef uint32_t count = 0, unit = 0
    cdef Py_ssize_t length, index, start
    cdef uint8_t all_bits = 0
    cdef uint16_t* units
    if not _take_groups(source, 5, 0x40000000, &count) or not count:
        return None
    length = <Py_ssize_t>count - 1
    if not _has(source, length):
        return None
    start = source.at
    for index in range(length):
        all_bits |= source.data[start + index]
    if all_bits < 0x80:
        source.at += length
        # Of one character it is the object that all share.
        return PyUnicode_FromKindAndData(1, source.data + start, length)
    # The buffer for writing has room for the units, too.
    _begin()
    if not _make_room(2 * length):
        return None
    units = <uint16_t*>_out.data
    for index in range(length):
        if not _take_groups(source, 3, 0xFFFF, &unit) or 0xD800 <= unit < 0xE000:
            return None
        units[index] = <uint16_t>unit
    return PyUnicode_FromKindAndData(2, units, length)


cdef object _take_instant(_Source* source, object zone):
    cdef int64_t millis, rest, days
    if not _has(source, 12):
        return None
    millis, rest = <int64_t>_take(source, 8), <int32_t>_take(source, 4)
    if rest % 1000 or not 0 <= rest < 1_000_000:
        return None
    days = _floor_div(millis, _DAY_MS)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return None
    return _instant(millis * 1000 + rest // 1000, zone)


cdef class _Coder:
    """Writes and reads tuples of one class, or lists, whose one field is that of each element."""

    cdef object _cls
    cdef Py_ssize_t _width
    #: Of the mask of a row; 0 of a tuple, which has none.
    cdef int _mask_bytes, _padding
    cdef bytes _kinds, _nullable
    #: Of PARTS.
    cdef list _inner

    def __init__(self, cls, int mask_bytes, int padding, list fields):
        self._cls, self._width, self._mask_bytes, self._padding = cls, len(fields), mask_bytes, padding
        kinds, nullable, self._inner = [], [], []
        for kind, may_be_null in fields:
            self._inner.append(_Coder(*kind) if type(kind) is tuple else None)
            kinds.append(PARTS if type(kind) is tuple else _CODES[kind])
            nullable.append(may_be_null)
        self._kinds, self._nullable = bytes(kinds), bytes(nullable)

    cdef inline bint put_part(self, Py_ssize_t index, object value) except -1:
        """Append a field or an element; return whether it could be written."""
        cdef int kind = (<const uint8_t*>PyBytes_AS_STRING(self._kinds))[index]
        if kind == PARTS:
            return (<_Coder>PyList_GET_ITEM(self._inner, index)).put(value)
        return _put_scalar(kind, value)

    cdef inline object take_part(self, Py_ssize_t index, _Source* source):
        """Read a field or an element; return None where it could not be read."""
        cdef int kind = (<const uint8_t*>PyBytes_AS_STRING(self._kinds))[index]
        if kind == PARTS:
            return (<_Coder>PyList_GET_ITEM(self._inner, index)).take(source)
        return _take_scalar(kind, source)

    cdef bint put(self, object value) except -1:
        """Append a value; return whether it could be written."""
        return self.put_list(value) if self._cls is list else self.put_row(value)

    cdef object take(self, _Source* source):
        """Read a value; return None where it could not be read."""
        return self.take_list(source) if self._cls is list else self.take_row(source)

    cdef bint put_list(self, object values) except -1:
        cdef Py_ssize_t index
        if not PyList_CheckExact(values) or PyList_GET_SIZE(values) > 0x7FFFFFFF or not _make_room(4):
            return False
        _put(<uint64_t>PyList_GET_SIZE(values), 4)
        for index in range(PyList_GET_SIZE(values)):
            if not self.put_part(0, <object>PyList_GET_ITEM(values, index)):
                return False
        return True

    cdef object take_list(self, _Source* source):
        cdef uint64_t count, index
        if not _has(source, 4):
            return None
        count = _take(source, 4)
        # Values of no bytes would be made without end.
        if count > <uint64_t>(source.end - source.at):
            return None
        values = []
        for index in range(count):
            value = self.take_part(0, source)
            if value is None:
                return None
            values.append(value)
        return values

    cdef bint put_row(self, object row) except -1:
        cdef Py_ssize_t index
        cdef uint64_t mask = 0
        cdef PyObject* value
        cdef const uint8_t* nullable = <const uint8_t*>PyBytes_AS_STRING(self._nullable)
        if Py_TYPE(row) is not <PyTypeObject*>self._cls or PyTuple_GET_SIZE(row) != self._width:
            return False
        if self._mask_bytes:
            for index in range(self._width):
                mask <<= 1
                if <object>PyTuple_GET_ITEM(row, index) is None:
                    if not nullable[index]:
                        return False
                    mask |= 1
            if not _make_room(self._mask_bytes):
                return False
            _put(mask << self._padding, self._mask_bytes)
        for index in range(self._width):
            value = PyTuple_GET_ITEM(row, index)
            if self._mask_bytes and <object>value is None:
                continue
            if not self.put_part(index, <object>value):
                return False
        return True

    cdef object take_row(self, _Source* source):
        cdef Py_ssize_t index
        cdef uint64_t mask = 0
        cdef const uint8_t* nullable = <const uint8_t*>PyBytes_AS_STRING(self._nullable)
        if self._mask_bytes:
            if not _has(source, self._mask_bytes):
                return None
            mask = _take(source, self._mask_bytes)
            if mask & ((<uint64_t>1 << self._padding) - 1) or mask >> (self._padding + self._width):
                return None
            mask >>= self._padding
        row = keyedstate_new_tuple(self._cls, self._width)
        for index in range(self._width):
            # Without a mask there may be more fields than it has bits.
            if mask and mask >> (self._width - 1 - index) & 1:
                if not nullable[index]:
                    return None
                value = None
            else:
                value = self.take_part(index, source)
                if value is None:
                    return None
            Py_INCREF(<PyObject*>value)
            PyTuple_SET_ITEM(<PyObject*>row, index, <PyObject*>value)
        return row

    def to_bytes(self, value):
        """Return the bytes of a value; None where it has a rare form, or is none of the type."""
        _begin()
        made = PyBytes_FromStringAndSize(<char*>_out.data, _out.size) if self.put(value) else None
        _end()
        return made

    def read(self, data, Py_ssize_t position, Py_ssize_t end):
        """Return the value that begins at a position of bytes, and where it ends; None as `to_bytes`."""
        cdef _Source source
        if not PyBytes_CheckExact(data) or not 0 <= position <= end <= PyBytes_GET_SIZE(data):
            return None
        source.data, source.at, source.end = <const uint8_t*>PyBytes_AS_STRING(data), position, end
        value = self.take(&source)
        _end()
        return None if value is None else (value, source.at)

    def from_bytes(self, data):
        """Return the value of bytes that hold exactly one; None as `to_bytes`."""
        cdef _Source source
        if not PyBytes_CheckExact(data):
            return None
        source.data, source.at, source.end = <const uint8_t*>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data)
        value = self.take(&source)
        _end()
        return value if source.at == source.end else None


cdef bint _put_scalar(int kind, object value) except -1:
    cdef long long number
    cdef int overflow = 0, size
    cdef double real
    cdef uint64_t bits
    if kind <= INT64:
        if not PyLong_CheckExact(value):
            return False
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        size = 1 << (kind - INT8)
        if overflow or (size < 8 and not -(1LL << (8 * size - 1)) <= number < 1LL << (8 * size - 1)):
            return False
        if not _make_room(8):
            return False
        _put(<uint64_t>number, size)
        return True
    if kind == STRING:
        return PyUnicode_CheckExact(value) and _put_text(value)
    if kind == FLOAT64:
        if not PyFloat_CheckExact(value):
            return False
        real = PyFloat_AS_DOUBLE(value)
        if real != real:
            return False
        memcpy(&bits, &real, 8)
        if not _make_room(8):
            return False
        _put(bits, 8)
        return True
    if kind == BOOLEAN:
        if value is not True and value is not False:
            return False
        if not _make_room(1):
            return False
        _put(value is True, 1)
        return True
    if kind == DATE:
        if not PyDate_CheckExact(value):
            return False
        number = _days(PyDateTime_GET_YEAR(value), PyDateTime_GET_MONTH(value), PyDateTime_GET_DAY(value))
        if not _make_room(8):
            return False
        _put(<uint64_t>(number * _DAY_MS), 8)
        return True
    return _put_instant(value, _UTC if kind == TIMESTAMP else None)


cdef object _take_scalar(int kind, _Source* source):
    cdef int64_t number
    cdef uint64_t bits
    cdef double real
    cdef int size, year, month, day
    if kind <= INT64:
        size = 1 << (kind - INT8)
        if not _has(source, size):
            return None
        # The highest bit is the sign.
        number = <int64_t>(_take(source, size) << (64 - 8 * size)) >> (64 - 8 * size)
        return number
    if kind == STRING:
        return _take_text(source)
    if kind == FLOAT64:
        if not _has(source, 8):
            return None
        bits = _take(source, 8)
        memcpy(&real, &bits, 8)
        return real
    if kind == BOOLEAN:
        if not _has(source, 1):
            return None
        bits = _take(source, 1)
        return None if bits > 1 else _TRUE if bits else _FALSE
    if kind == DATE:
        if not _has(source, 8):
            return None
        number = <int64_t>_take(source, 8)
        if number % _DAY_MS or not _FIRST_DAY <= number // _DAY_MS <= _LAST_DAY:
            return None
        _civil(number // _DAY_MS, &year, &month, &day)
        return date_new(year, month, day)
    return _take_instant(source, _UTC if kind == TIMESTAMP else None)


cdef bint _knows(parts):
    """Return whether there is code for all fields, and a mask is one machine word."""
    _, mask_bytes, _, fields = parts
    if mask_bytes > 8:
        return False
    for kind, _ in fields:
        if not (_knows(kind) if type(kind) is tuple else kind in _CODES):
            return False
    return True


def coder(parts):
    return _Coder(*parts) if _knows(parts) else None
