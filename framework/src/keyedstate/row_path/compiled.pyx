# cython: language_level=3, binding=True, boundscheck=False, wraparound=False, auto_pickle=False
"""`keyedstate.row_path.plain` compiled: the same functions with the same results, over Python's C interface.

Where a step sees anything but the usual case it returns what makes its caller take the plain way, which also
says what is wrong. So no error begins here, but for arguments that no caller gives.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject, Py_TYPE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    PyObject* PyCFunction_GET_SELF(object function)
    bint PyCFunction_Check(object function)
    #: Of a list or a tuple.
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject* sequence)
    PyObject** PySequence_Fast_ITEMS(PyObject* sequence)
    void Py_INCREF(PyObject*)
    void Py_XDECREF(PyObject*)
    #: Steal the reference, and leave what was in the new list or tuple alone.
    void PyList_SET_ITEM(PyObject* made, Py_ssize_t index, PyObject* item)
    void PyTuple_SET_ITEM(PyObject* made, Py_ssize_t index, PyObject* item)

cdef extern from *:
    """
    static PyObject* keyedstate_new_tuple(PyObject* cls, Py_ssize_t size) {
        PyObject* made = ((PyTypeObject*)cls)->tp_alloc((PyTypeObject*)cls, size);
    #if PY_VERSION_HEX >= 0x030E0000
        /* The cached hash, of which 0 would be one: as in CPython's own tuple_subtype_new. */
        if (made != NULL) ((PyTupleObject*)made)->ob_hash = -1;
    #endif
        return made;
    }
    #include <structmember.h>
    static Py_ssize_t keyedstate_offset(PyObject* member) {
        return ((PyMemberDescrObject*)member)->d_member->offset;
    }
    """
    object keyedstate_new_tuple(object cls, Py_ssize_t size)
    Py_ssize_t keyedstate_offset(object member)

#: Raised with every change of what the callers need: `keyedstate.row_path` has the same number.
REVISION = 11


# -- hashes of keys ------------------------------------------------------------------------------------------


cdef inline uint32_t _absorb(uint32_t word, uint32_t mixed) noexcept nogil:
    word *= 0xCC9E2D51U
    word = (word << 15) | (word >> 17)
    mixed ^= word * 0x1B873593U
    return ((mixed << 13) | (mixed >> 19)) * 5 + 0xE6546B64U


def fold_bytes(
    uint32_t[::1] hashes,
    const uint8_t[::1] data,
    const int64_t[::1] starts,
    const int64_t[::1] lengths,
    const int64_t[::1] rows,
):
    cdef Py_ssize_t index, length, place, aligned
    cdef const uint8_t* text
    cdef uint32_t mixed
    for index in range(rows.shape[0]):
        length = lengths[rows[index]]
        if not length:
            text = NULL
        else:
            text = &data[starts[rows[index]]]
        mixed = hashes[index]
        aligned = length & ~3
        for place in range(0, aligned, 4):
            mixed = _absorb(
                text[place]
                | <uint32_t>text[place + 1] << 8
                | <uint32_t>text[place + 2] << 16
                | <uint32_t>text[place + 3] << 24,
                mixed,
            )
        for place in range(aligned, length):
            # Java's bytes are signed.
            mixed = _absorb(<uint32_t><int32_t><int8_t>text[place], mixed)
        mixed ^= <uint32_t>length
        mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6BU
        mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35U
        hashes[index] = mixed ^ (mixed >> 16)


# -- results to columns --------------------------------------------------------------------------------------


def columns_of(list rows, Py_ssize_t width):
    cdef Py_ssize_t count = PyList_GET_SIZE(rows), row, column
    cdef PyObject* found
    cdef PyObject** items
    cdef list made = [PyList_New(count) for _ in range(width)]
    for row in range(count):
        found = PyList_GET_ITEM(rows, row)
        if Py_TYPE(<object>found) is not <PyTypeObject*>tuple and Py_TYPE(<object>found) is not <PyTypeObject*>list:
            return None
        if PySequence_Fast_GET_SIZE(found) != width:
            return None
        items = PySequence_Fast_ITEMS(found)
        for column in range(width):
            Py_INCREF(items[column])
            PyList_SET_ITEM(PyList_GET_ITEM(made, column), row, items[column])
    return made


def are_of(values, frozenset types):
    # A column has one type, or one and that of None.
    cdef PyTypeObject* first = NULL
    cdef PyTypeObject* second = NULL
    cdef PyTypeObject* found
    cdef Py_ssize_t index
    if type(values) is not list:
        return types.issuperset(map(type, values))
    for index in range(PyList_GET_SIZE(values)):
        found = Py_TYPE(<object>PyList_GET_ITEM(values, index))
        if found is first or found is second:
            continue
        if <object>found not in types:
            return False
        first, second = found, first
    return True


def packed_longs(given):
    cdef list values = given if type(given) is list else list(given)
    cdef Py_ssize_t count = PyList_GET_SIZE(values), index
    cdef int overflow = 0
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t* numbers = <int64_t*>PyBytes_AS_STRING(made)
    for index in range(count):
        value = <object>PyList_GET_ITEM(values, index)
        if not PyLong_CheckExact(value):
            return None
        numbers[index] = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return None
    return made


def packed_text(given):
    cdef list values = given if type(given) is list else list(given)
    cdef Py_ssize_t count = PyList_GET_SIZE(values), index, size, total = 0
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
    cdef int32_t* ends = <int32_t*>PyBytes_AS_STRING(offsets)
    cdef const char* text
    cdef char* place
    ends[0] = 0
    for index in range(count):
        value = <object>PyList_GET_ITEM(values, index)
        if not PyUnicode_CheckExact(value):
            return None
        try:
            PyUnicode_AsUTF8AndSize(value, &size)
        except UnicodeEncodeError:
            return None
        total += size
        if total > 0x7FFFFFFF:
            return None
        ends[index + 1] = <int32_t>total
    cdef bytes data = PyBytes_FromStringAndSize(NULL, total)
    place = PyBytes_AS_STRING(data)
    for index in range(count):
        text = PyUnicode_AsUTF8AndSize(<object>PyList_GET_ITEM(values, index), &size)
        memcpy(place, text, size)
        place += size
    return offsets, data


def short_texts(list prefixes, list numbers, list texts, bytes end):
    cdef Py_ssize_t count = PyList_GET_SIZE(texts), index, number, size, before, after = len(end)
    cdef const char* text
    cdef const char* tail = PyBytes_AS_STRING(end)
    cdef char* place
    if PyList_GET_SIZE(numbers) != count:
        raise ValueError(f"{len(numbers)} numbers and {count} texts; give one of each")
    cdef list made = []
    for index in range(count):
        value = <object>PyList_GET_ITEM(texts, index)
        if not PyUnicode_CheckExact(value) or not PyUnicode_IS_ASCII(value):
            return None
        text = PyUnicode_AsUTF8AndSize(value, &size)
        if size >= 0x7F:
            return None
        number = <Py_ssize_t><object>PyList_GET_ITEM(numbers, index)
        if number < 0 or number >= PyList_GET_SIZE(prefixes):
            raise IndexError(f"there is no prefix {number}")
        prefix = <bytes?><object>PyList_GET_ITEM(prefixes, number)
        before = len(<bytes>prefix)
        row = PyBytes_FromStringAndSize(NULL, before + 1 + size + after)
        place = PyBytes_AS_STRING(row)
        memcpy(place, PyBytes_AS_STRING(prefix), before)
        place[before] = <char>(size + 1)
        memcpy(place + before + 1, text, size)
        memcpy(place + before + 1 + size, tail, after)
        made.append(row)
    return made


# -- columns to rows -----------------------------------------------------------------------------------------


def repeated(list values, list counts):
    cdef Py_ssize_t keys = PyList_GET_SIZE(values), key, count, place = 0
    cdef PyObject* value
    if PyList_GET_SIZE(counts) != keys:
        raise ValueError(f"{keys} values and {len(counts)} counts; give one of each")
    cdef list made = PyList_New(sum(counts))
    for key in range(keys):
        value = PyList_GET_ITEM(values, key)
        for count in range(<Py_ssize_t><object>PyList_GET_ITEM(counts, key)):
            Py_INCREF(value)
            PyList_SET_ITEM(<PyObject*>made, place, value)
            place += 1
    return made


cdef class _Rows:
    """An iterator over rows of a class of tuples."""

    cdef object _cls
    cdef list _columns
    cdef Py_ssize_t _next, _count, _width

    def __init__(self, cls, list columns):
        cdef list column
        self._cls, self._columns, self._width = cls, columns, len(columns)
        self._next, self._count = 0, len(columns[0]) if columns else 0
        for column in columns:
            if len(column) != self._count:
                raise ValueError("columns of different lengths make no rows")

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t column
        cdef PyObject* item
        if self._next >= self._count:
            raise StopIteration
        row = keyedstate_new_tuple(self._cls, self._width)
        for column in range(self._width):
            item = PyList_GET_ITEM(<object>PyList_GET_ITEM(self._columns, column), self._next)
            Py_INCREF(item)
            PyTuple_SET_ITEM(<PyObject*>row, column, item)
        self._next += 1
        return row


def tuples_of(cls, columns):
    return _Rows(cls, list(columns))


# -- checks of values ----------------------------------------------------------------------------------------


cdef enum:
    CALL, CLASS, INTEGER, TEXT, INSTANT, NULLABLE, TUPLE

_KINDS = {
    "call": CALL,
    "class": CLASS,
    "integer": INTEGER,
    "text": TEXT,
    "instant": INSTANT,
    "nullable": NULLABLE,
    "tuple": TUPLE,
}


cdef class _Check:
    """The check of a type, as `keyedstate.types.TypeSerializer.check_parts` describes it."""

    cdef int _kind
    #: Of CALL a function, of CLASS and TUPLE a class, of INSTANT a zone.
    cdef object _given
    #: Of INSTANT what decides on other zones.
    cdef object _otherwise
    cdef long long _low, _high
    #: Of NULLABLE and TUPLE.
    cdef list _parts

    def __init__(self, str kind, *given):
        self._kind = _KINDS[kind]
        self._parts = []
        if self._kind == INTEGER:
            self._low, self._high = given
        elif self._kind == NULLABLE:
            self._parts = [_Check(*given[0])]
        elif self._kind == INSTANT:
            self._given, self._otherwise = given
        elif self._kind != TEXT:
            self._given = given[0]
            self._parts = [_Check(*part) for part in given[1:]]

    cdef bint fits(self, object value) except -1:
        cdef Py_ssize_t index
        cdef long long number
        cdef int overflow = 0, known
        if self._kind == INTEGER:
            if not PyLong_CheckExact(value):
                return False
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            return not overflow and self._low <= number <= self._high
        if self._kind == CLASS:
            return Py_TYPE(value) is <PyTypeObject*>self._given
        if self._kind == TEXT:
            return PyUnicode_CheckExact(value) and (PyUnicode_IS_ASCII(value) or _can_be_encoded(value))
        if self._kind == INSTANT:
            known = _instant_fits(value, self._given)
            return known > 0 or (known < 0 and self._otherwise(value))
        if self._kind == NULLABLE:
            return value is None or (<_Check>PyList_GET_ITEM(self._parts, 0)).fits(value)
        if self._kind == TUPLE:
            if Py_TYPE(value) is not <PyTypeObject*>self._given:
                return False
            if PyTuple_GET_SIZE(value) != PyList_GET_SIZE(self._parts):
                return False
            for index in range(PyList_GET_SIZE(self._parts)):
                if not (<_Check>PyList_GET_ITEM(self._parts, index)).fits(
                    <object>PyTuple_GET_ITEM(value, index)
                ):
                    return False
            return True
        return self._given(value)

    def is_value(self, value):
        return self.fits(value)


cdef bint _can_be_encoded(str value) except -1:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checker(parts):
    return _Check(*parts).is_value


# -- bytes of rows and tuples --------------------------------------------------------------------------------

include "access.pxi"
include "instants.pxi"
include "coder.pxi"
include "numbers.pxi"
