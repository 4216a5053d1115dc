"""Errors about declaring, registering and using states."""

from __future__ import annotations

from keyedstate.errors.kernel import KeyedStateError


class StateError(KeyedStateError):
    """Base class of errors about one state; ``state`` is its name."""

    state: str


class WorkingFolderError(KeyedStateError):
    """A folder on the local disk that a backend cannot make or write.

    Attributes
    ----------
    path, reason : str
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(
            f"the working folder {path} cannot be used: {reason}. Make room on its disk, or have tasks work "
            "on another one: on Spark's local folders (spark.local.dir), or TMPDIR outside of it. The query "
            "then resumes from its last checkpoint."
        )


class InvalidDescriptorError(StateError):
    """A declaration that no state can have."""

    def __init__(self, state: object, reason: str) -> None:
        self.state = str(state)
        self.reason = reason
        super().__init__(f"the declaration of the state {state!r} is invalid: {reason.rstrip('.')}.")


class MissingEventTimeError(StateError):
    """A state that expires in event time, in an operator that knows none."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(
            f"the state {state!r} expires in event time, and this operator does not know the event time of "
            "its rows. Name the column, as in process(function, schema, time='ts', delay='10 minutes'), or "
            "let the state expire in processing time."
        )


class InvalidTtlError(KeyedStateError):
    """A time to live that no state can have."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the time to live is invalid: {reason}.")


class StateKindMismatchError(StateError):
    """A state registered under a name that holds another kind of state."""

    def __init__(self, state: str, registered: str, requested: str, *, restored: bool) -> None:
        self.state = state
        self.registered = registered
        self.requested = requested
        where = "the restored checkpoint holds" if restored else "this function has already registered"
        super().__init__(
            f"the state {state!r} is declared as {requested} state, but {where} {registered} state under "
            "that name. Give one of them another name."
        )


class StateMigrationError(StateError):
    """A state whose key, namespace or value type does not fit the one it was written with.

    Attributes
    ----------
    part : str
        ``key``, ``namespace``, ``value``, ``map key``, or ``element`` of an operator list.
    """

    def __init__(self, state: str, part: str, written: object, requested: object, reason: str) -> None:
        self.state = state
        self.part = part
        self.written = written
        self.requested = requested
        super().__init__(
            f"the {part} type of the state {state!r} is now {requested}, but it was {written}: {reason}. "
            f"Declare it as {written} again, or register the new type under another name."
        )


class SerializerOrderError(StateError):
    """A serializer of a state that is given twice, or asked for before it is there."""

    def __init__(self, state: str, part: str, reason: str) -> None:
        self.state = state
        self.part = part
        self.reason = reason
        super().__init__(
            f"the {part} type of the state {state!r} comes out of order: {reason}. Register a state once in "
            "a run, and take the restored type of restored states only."
        )


class StateConversionError(StateError):
    """Restored values of the right type that the running program cannot be given."""

    def __init__(self, state: str, reason: str) -> None:
        self.state = state
        self.reason = reason
        super().__init__(f"the values of the state {state!r} cannot be restored: {reason}.")


class StateValueError(StateError):
    """A value of the wrong type given to a state."""

    def __init__(self, state: str, reason: str) -> None:
        self.state = state
        self.reason = reason
        super().__init__(f"the state {state!r} refuses the value: {reason}.")


class UnorderedKeyError(StateError):
    """A range scan over a map whose key type has no order."""

    def __init__(self, state: str, key_type: object) -> None:
        self.state = state
        self.key_type = str(key_type)
        super().__init__(
            f"the map state {state!r} has keys of the type {key_type}, which has no order, so "
            "first(), last() and between() are not defined. Iterate over items(), or declare map keys "
            "that have an order, such as numbers, strings, times or tuples of them."
        )


class NothingToRemoveError(StateError):
    """An iterator's ``remove`` before its first entry, or a second time for one entry."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(
            f"the iterator over the map state {state!r} has nothing to remove: it removes the entry that it "
            "showed last, once. Take the next entry first."
        )


class MergeError(StateError):
    """Two accumulators that have to become one, where the function cannot do that."""

    def __init__(self, state: str, function: str, reason: str) -> None:
        self.state = state
        self.function = function
        self.reason = reason
        super().__init__(
            f"the state {state!r} cannot merge namespaces: {function} {reason}. Define merge() on the "
            "function, or use windows that do not merge."
        )


class StateNotBoundError(StateError, AttributeError):
    """A declared state that is used where nothing has bound it to a running operator."""

    def __init__(self, state: str, attribute: str) -> None:
        self.state = state
        self.attribute = attribute
        super().__init__(
            f"the state {state!r} has no {attribute!r}: it is a declaration, which nothing has bound to a "
            "running operator. Declare it as a class attribute and use it in open(), process() or on_timer() "
            "of a running function, or register it in open() with ctx.state(...) and use what that returns."
        )


class ReadOnlyBroadcastStateError(StateError):
    """Broadcast state that is changed by anything but a row of the broadcast DataFrame."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(
            f"the broadcast state {state!r} can only be read here: a change on one task would make it differ "
            "from the others. Change it in process_broadcast(), which every task calls with every row of the "
            "broadcast DataFrame."
        )


class NoCurrentKeyError(KeyedStateError):
    """A state that is used while no key is set."""

    def __init__(self) -> None:
        super().__init__(
            "there is no current key: states can be read and written in process() only, or after "
            "set_current_key() on the keyed backend."
        )


class NullNamespaceError(KeyedStateError):
    """A namespace, or the serializer of one, that is None."""

    def __init__(self, state: str) -> None:
        self.state = state
        super().__init__(
            f"the namespace of the state {state!r} and its serializer may not be None. "
            "Use VOID_NAMESPACE with types.VOID where the state has no namespaces."
        )


class UnknownChangesError(KeyedStateError):
    """Changes since an epoch before which nothing is known any more.

    Attributes
    ----------
    epoch : int
        The epoch that was asked for.
    known_since : int or None
        The earliest epoch since which changes are known; None where tracking has not begun.
    """

    def __init__(self, epoch: int, known_since: int | None) -> None:
        self.epoch = epoch
        self.known_since = known_since
        known = "not known at all yet" if known_since is None else f"known since epoch {known_since} only"
        super().__init__(
            f"the changes since epoch {epoch} cannot be told: they are {known}. Write a full snapshot."
        )


class SnapshotCancelledError(KeyedStateError):
    """A snapshot that was cancelled, by its caller or because its keyed backend was closed."""

    def __init__(self, checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"the snapshot for checkpoint {checkpoint_id} was cancelled; what it wrote is incomplete and "
            "must be thrown away. Take a new snapshot."
        )
