# Values that an accessor caches, over its slots.


cdef inline PyObject** _slot(object owner, Py_ssize_t offset) noexcept:
    """Return the place of a slot, which CPython's own instructions read in the same way."""
    return <PyObject**>(<char*><PyObject*>owner + offset)


#: `True` and `False` alone are numbers of C here.
cdef object _TRUE = bool(1)
cdef object _FALSE = bool(0)


cdef class _Places:
    """Where the slots of an accessor and of its context are."""

    cdef PyTypeObject* accessor_class
    cdef PyTypeObject* context_class
    cdef Py_ssize_t context, cached_key, cached, cached_turn, dirty, dirty_turns, lookups, prefetched, is_value
    cdef Py_ssize_t table, namespace, caching, default
    #: Of the context.
    cdef Py_ssize_t key, key_group, turn

    def __init__(self, accessor_class, context_class):
        def at(name):
            return keyedstate_offset(getattr(accessor_class, name))

        self.accessor_class, self.context_class = <PyTypeObject*>accessor_class, <PyTypeObject*>context_class
        self.context, self.table, self.namespace = map(at, ("_context", "_table", "_namespace"))
        self.cached_key, self.cached, self.cached_turn = map(at, ("_cached_key", "_cached", "_cached_turn"))
        self.dirty, self.dirty_turns, self.lookups = map(at, ("_dirty", "_dirty_turns", "_lookups"))
        self.prefetched, self.is_value = map(at, ("_prefetched", "_is_value"))
        self.caching, self.default = map(at, ("_caching", "_default"))
        self.key, self.key_group, self.turn = (
            keyedstate_offset(getattr(context_class, name)) for name in ("key", "key_group", "turn")
        )

    cdef inline PyObject* context_of(self, accessor) noexcept:
        """Return the context of an accessor; NULL where this form does not know them."""
        cdef PyObject* context
        if not PyObject_TypeCheck(accessor, self.accessor_class):
            return NULL
        context = _slot(accessor, self.context)[0]
        return context if Py_TYPE(<object>context) is self.context_class else NULL

    cdef inline bint is_cached(self, accessor, PyObject* context) noexcept:
        """Return whether the value of the current key is cached."""
        return _slot(<object>context, self.key)[0] is _slot(accessor, self.cached_key)[0]

    cdef inline bint is_caching(self, accessor) noexcept:
        return _slot(accessor, self.caching)[0] is not <PyObject*>_FALSE

    cdef inline bint is_ahead(self, accessor) noexcept:
        """Return whether the values of all keys of the sequence were read at once."""
        return (
            Py_TYPE(accessor) is self.accessor_class
            and self.is_caching(accessor)
            and Py_TYPE(<object>_slot(accessor, self.prefetched)[0]) is <PyTypeObject*>list
        )

    @cython.boundscheck(True)
    cdef int turn_to(self, accessor, context) except -1:
        """Make the current key the cached one, with the value that was read ahead.

        As `StateAccessor._look_up` does: the change of the key before goes to the values that were read.
        """
        cdef list ahead = <list?><object>_slot(accessor, self.prefetched)[0]
        cdef Py_ssize_t turn = <object>_slot(context, self.turn)[0]
        cdef Py_ssize_t before
        if _slot(accessor, self.dirty)[0] is <PyObject*>_TRUE:
            before = <object>_slot(accessor, self.cached_turn)[0]
            _set_slot(accessor, self.dirty, _FALSE)
            ahead[before] = <object>_slot(accessor, self.cached)[0]
            (<list?><object>_slot(accessor, self.dirty_turns)[0]).append(before)
        _set_slot(accessor, self.cached_key, <object>_slot(context, self.key)[0])
        _set_slot(accessor, self.cached_turn, <object>_slot(context, self.turn)[0])
        _set_slot(accessor, self.cached, ahead[turn])
        return 0


def with_cached_access(context_class):
    def decorated(cls):
        cdef _Places at = _Places(cls, context_class)
        plain_value, plain_update = cls.value, cls.update

        def value(self):
            cdef PyObject* context = at.context_of(self)
            if context is not NULL:
                if at.is_cached(self, context):
                    return <object>_slot(self, at.cached)[0]
                if at.is_ahead(self):
                    at.turn_to(self, <object>context)
                    _set_slot(self, at.lookups, <object>_slot(self, at.lookups)[0] + 1)
                    if _slot(self, at.cached)[0] is <PyObject*>None:
                        _set_slot(self, at.cached, <object>_slot(self, at.default)[0])
                    return <object>_slot(self, at.cached)[0]
                # Without a cache both ways call the table alone, and calling a Python function takes time.
                if not at.is_caching(self) and _slot(self, at.default)[0] is <PyObject*>None:
                    # References of its own: the table may run code of users, which may change the slots.
                    table, namespace = <object>_slot(self, at.table)[0], <object>_slot(self, at.namespace)[0]
                    group = <object>_slot(<object>context, at.key_group)[0]
                    key = <object>_slot(<object>context, at.key)[0]
                    return table.get(group, key, namespace)
            return plain_value(self)

        def update(self, value):
            cdef PyObject* context = at.context_of(self) if value is not None else NULL
            cdef bint is_cached, is_ahead
            if (
                context is not NULL
                and (at.is_cached(self, context) or at.is_ahead(self) or not at.is_caching(self))
                and _fits(<object>_slot(self, at.is_value)[0], value)
            ):
                # Asked again: the check may run code of users.
                is_cached = at.is_cached(self, context)
                is_ahead = not is_cached and at.is_ahead(self)
                if is_cached or is_ahead:
                    if is_ahead:
                        at.turn_to(self, <object>context)
                    _set_slot(self, at.cached, value)
                    _set_slot(self, at.dirty, _TRUE)
                    return
                if not at.is_caching(self):
                    # As in `value`.
                    table, namespace = <object>_slot(self, at.table)[0], <object>_slot(self, at.namespace)[0]
                    group = <object>_slot(<object>context, at.key_group)[0]
                    key = <object>_slot(<object>context, at.key)[0]
                    table.put(group, key, namespace, value)
                    return
            plain_update(self, value)

        for made, plain in ((value, plain_value), (update, plain_update)):
            made.__doc__, made.__qualname__, made.__module__ = plain.__doc__, plain.__qualname__, plain.__module__
        cls.value, cls.update = value, update
        return cls

    return decorated


cdef inline void _set_slot(object owner, Py_ssize_t offset, object value) noexcept:
    cdef PyObject* before = _slot(owner, offset)[0]
    Py_INCREF(<PyObject*>value)
    _slot(owner, offset)[0] = <PyObject*>value
    Py_XDECREF(before)


cdef bint _fits(object is_value, object value) except -1:
    cdef PyObject* owner
    if PyCFunction_Check(is_value):
        owner = PyCFunction_GET_SELF(is_value)
        if owner is not NULL and Py_TYPE(<object>owner) is <PyTypeObject*>_Check:
            return (<_Check>owner).fits(value)
    return is_value(value)
