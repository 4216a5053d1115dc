"""Errors about declaring, registering and using states and timers."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class StateError(KeyedStateError):
    """Base class of errors about one state; ``state`` is its name."""

    state: str


class WorkingFolderError(KeyedStateError):
    """A folder on the local disk that a backend cannot make or write."""

    path: str
    reason: str
    message = (
        "the working folder {path} cannot be used: {reason}. Make room on its disk, or have tasks work on "
        "another one: on Spark's local folders (spark.local.dir), or TMPDIR outside of Spark. The query then "
        "resumes from its last checkpoint."
    )


class InvalidDescriptorError(StateError):
    """A declaration that no state can have."""

    reason: str
    message = "the declaration of the state {state!r} is invalid: {reason}."


class MissingEventTimeError(StateError):
    """A state that expires in event time, in an operator that knows none."""

    message = (
        "the state {state!r} expires in event time, and this operator does not know the event time of its "
        "rows. Name the column, as in keyed(..., event_time=EventTime('ts', delay='10 minutes')), or let "
        "the state expire in processing time."
    )


class InvalidTtlError(KeyedStateError):
    """A time to live that no state can have."""

    reason: str
    message = "the time to live is invalid: {reason}."


class InvalidDurationError(KeyedStateError):
    """A value that is not a length of time."""

    duration: object
    message = (
        "{duration!r} is no duration. Give a whole number with a unit (ms, s, min, h, d, week or their long "
        "names), as in '7 days', a timedelta, or milliseconds as an int."
    )


class StateKindMismatchError(StateError):
    """A state registered under a name that holds another kind of state."""

    registered: str
    requested: str
    restored: bool
    message = (
        "the state {state!r} is declared as {requested} state, but {restored:?the restored checkpoint "
        "holds}{restored:|this function has already registered} {registered} state under that name. Give one "
        "of them another name."
    )


class StateMigrationError(StateError):
    """A state whose key, namespace or value type does not fit the one it was written with."""

    part: str  # ``key``, ``namespace``, ``value``, ``map key``, or ``element`` of an operator list
    written: object
    requested: object
    reason: str
    message = (
        "the {part} type of the state {state!r} is now {requested}, but it was {written}: {reason}. Declare "
        "it as {written} again, or register the new type under another name."
    )


class SerializerOrderError(StateError):
    """A serializer of a state that is registered twice, or asked for before it is known."""

    part: str
    reason: str
    message = (
        "the {part} type of the state {state!r} comes out of order: {reason}. Register a state once in a "
        "run, and take the restored type of restored states only."
    )


class StateConversionError(StateError):
    """Restored values of the right type that cannot be converted for the running program."""

    reason: str
    message = "the values of the state {state!r} cannot be restored: {reason}."


class StateValueError(StateError):
    """A value of the wrong type given to a state."""

    reason: str
    message = "the state {state!r} refuses the value: {reason}."


class UnorderedKeyError(StateError):
    """A range scan over a map whose key type has no order."""

    key_type: str
    message = (
        "the map state {state!r} has keys of the type {key_type}, which has no order, so first(), last() and "
        "between() are not defined. Iterate over items(), or declare map keys that have an order, such as "
        "numbers, strings, times or tuples of them."
    )


class NothingToRemoveError(StateError):
    """An iterator's ``remove`` before its first entry, or a second time for one entry."""

    message = (
        "the iterator over the map state {state!r} has nothing to remove: it removes the entry that it "
        "returned last, once. Take the next entry first."
    )


class MergeError(StateError):
    """Two accumulators that must be merged, and a function that cannot merge them."""

    function: str
    reason: str
    message = (
        "the state {state!r} cannot merge namespaces: {function} {reason}. Define merge() on the function, "
        "or use windows that do not merge."
    )


class StateNotBoundError(StateError, AttributeError):
    """A declared state that is used before it is bound to a running operator."""

    attribute: str
    message = (
        "the state {state!r} has no {attribute!r}: it is a declaration that is not bound to a running "
        "operator. Declare it as a class attribute and use it in open(), process() or on_timer() of a "
        "running function, or register it in open() with ctx.state(...) and use what that returns."
    )


class ReadOnlyBroadcastStateError(StateError):
    """Broadcast state that is changed by anything but a row of the broadcast DataFrame."""

    message = (
        "the broadcast state {state!r} can only be read here: a change on one task would make it differ from "
        "the others. Change it in process_broadcast(), which every task calls with every row of the "
        "broadcast DataFrame."
    )


class NoCurrentKeyError(KeyedStateError):
    """A state that is used while no key is set."""

    message = (
        "there is no current key: states can be read and written in process() only, or after "
        "set_current_key() on the keyed backend."
    )


class NullNamespaceError(KeyedStateError):
    """A namespace, or the serializer of one, that is None."""

    state: str
    message = (
        "the namespace of the state {state!r} and its serializer may not be None. Use VOID_NAMESPACE with "
        "types.VOID where the state has no namespaces."
    )


class UnknownChangesError(KeyedStateError):
    """Changes since an epoch for which they are no longer known."""

    epoch: int  # The epoch that was asked for
    #: The earliest epoch since which changes are known; None where tracking has not begun.
    known_since: int | None

    message = (
        "the changes since epoch {epoch} are unknown: they are {known_since:?known since epoch {known_since} "
        "only}{known_since:|not known at all yet}. Write a full snapshot."
    )


class SnapshotCancelledError(KeyedStateError):
    """A snapshot that was cancelled, by its caller or because its keyed backend was closed."""

    checkpoint_id: int
    message = (
        "the snapshot for checkpoint {checkpoint_id} was cancelled; what it wrote is incomplete and must be "
        "deleted. Take a new snapshot."
    )


# -- time -----------------------------------------------------------------------------------------


class InvalidTimerTimeError(KeyedStateError, ValueError):
    """A time that no timer can have."""

    time: object
    message = (
        "a timer cannot be at {time!r}: give a datetime, or a whole number of milliseconds since 1970 UTC "
        "that fits into 64 bits, such as ctx.timestamp + 60_000."
    )


class InvalidTimerNamespaceError(KeyedStateError, ValueError):
    """A namespace, or a type of namespaces, that is not of the type with which a timer service was made."""

    service: str
    namespace: object
    reason: str
    message = "the timer service {service!r} has no timers in {namespace!r}: {reason}."


class NoEventTimeError(KeyedStateError):
    """A timer in event time, in an operator that knows none: it would never fire."""

    service: str
    message = (
        "an event-time timer of {service!r} would never fire: this operator does not know the event time of "
        "its rows. Name the column, as in keyed(..., event_time=EventTime('ts', delay='10 minutes')), or "
        "register a processing-time timer."
    )
