# Instants and days as numbers, and columns of instants.  Part of `compiled.pyx`.

from cpython.datetime cimport (
    PyDate_CheckExact,
    PyDateTime_CheckExact,
    PyDateTime_DATE_GET_HOUR,
    PyDateTime_DATE_GET_MICROSECOND,
    PyDateTime_DATE_GET_MINUTE,
    PyDateTime_DATE_GET_SECOND,
    PyDateTime_GET_DAY,
    PyDateTime_GET_MONTH,
    PyDateTime_GET_YEAR,
    date_new,
    datetime_new,
    datetime_tzinfo,
    import_datetime,
)

import datetime as _datetime

import_datetime()

cdef object _UTC = _datetime.timezone.utc
cdef int64_t _DAY_MS = 86_400_000
cdef int64_t _DAY_US = 86_400_000_000
#: 0001-01-01 and 9999-12-31, in days since 1970-01-01.
cdef int64_t _FIRST_DAY = -719_162
cdef int64_t _LAST_DAY = 2_932_896


cdef inline int64_t _days(int year, int month, int day) noexcept:
    """Return the days since 1970-01-01; a year begins in March, so that a leap day is its last."""
    cdef int64_t years = year - (month <= 2)
    cdef int64_t era = years // 400 if years >= 0 else (years - 399) // 400
    cdef int64_t of_era = years - era * 400
    cdef int64_t of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


cdef inline void _civil(int64_t days, int* year, int* month, int* day) noexcept:
    cdef int64_t shifted = days + 719_468, era, of_era, years, of_year, months
    era = (shifted if shifted >= 0 else shifted - 146_096) // 146_097
    of_era = shifted - era * 146_097
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    months = (5 * of_year + 2) // 153
    day[0] = <int>(of_year - (153 * months + 2) // 5 + 1)
    month[0] = <int>(months + 3 if months < 10 else months - 9)
    year[0] = <int>(years + era * 400 + (month[0] <= 2))


cdef inline int64_t _floor_div(int64_t number, int64_t by) noexcept:
    return number // by - (number % by < 0)


cdef inline int64_t _micros(object value) noexcept:
    """Return the microseconds since 1970 of the wall clock of a datetime."""
    cdef int64_t days, seconds
    days = _days(PyDateTime_GET_YEAR(value), PyDateTime_GET_MONTH(value), PyDateTime_GET_DAY(value))
    seconds = PyDateTime_DATE_GET_HOUR(value) * 3600 + PyDateTime_DATE_GET_MINUTE(value) * 60
    seconds += PyDateTime_DATE_GET_SECOND(value)
    return days * _DAY_US + seconds * 1_000_000 + PyDateTime_DATE_GET_MICROSECOND(value)


cdef object _instant(int64_t micros, object zone):
    """Return an instant between the years 1 and 9999."""
    cdef int64_t days = _floor_div(micros, _DAY_US)
    cdef int year, month, day, seconds
    _civil(days, &year, &month, &day)
    micros -= days * _DAY_US
    seconds = <int>(micros // 1_000_000)
    micros %= 1_000_000
    return datetime_new(year, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60, <int>micros, zone)


cdef inline int _instant_fits(object value, object zone) noexcept:
    """Return whether a value is an instant of a zone; -1 for one of another zone."""
    if not PyDateTime_CheckExact(value):
        return 0
    return 1 if datetime_tzinfo(value) is zone else -1


def packed_instants(given, bint in_utc):
    cdef list values = given if type(given) is list else list(given)
    cdef Py_ssize_t count = PyList_GET_SIZE(values), index
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t* numbers = <int64_t*>PyBytes_AS_STRING(made)
    zone = _UTC if in_utc else None
    for index in range(count):
        value = <object>PyList_GET_ITEM(values, index)
        if not PyDateTime_CheckExact(value) or datetime_tzinfo(value) is not zone:
            return None
        numbers[index] = _micros(value)
    return made


def instants_of(const int64_t[::1] micros, bint in_utc):
    cdef Py_ssize_t index
    zone = _UTC if in_utc else None
    return [_instant(micros[index], zone) for index in range(micros.shape[0])]
