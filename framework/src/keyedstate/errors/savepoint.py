"""Errors about savepoints: what is none, what is unfinished, and what does not fit the query."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import first_of
from keyedstate.errors.checkpoint import CheckpointError


class NotASavepointError(CheckpointError):
    """A folder that is no savepoint, or not a finished one."""

    location: str
    found: Sequence[str]  # What lies there
    unfinished: bool

    def _message(self) -> str:
        reason = f"it holds {first_of(self.found)}" if self.found else "nothing is there"
        if self.unfinished:
            reason = "its creation, or its deletion, was begun and not finished"
        return (
            f"{self.location} is no savepoint: {reason}. Give the folder in which the file _savepoint lies; "
            "a savepoint whose creation did not finish is made again at the same place."
        )


class SavepointTargetError(CheckpointError):
    """A folder into which nothing new may be written, because something is there."""

    location: str
    found: Sequence[str]  # What lies there
    what: str = "savepoint"
    message = (
        "no {what} can be written into {location}: {found:...} is there already. Name a new folder, or "
        "delete this one where nobody needs it."
    )


class SavepointTakenOverError(CheckpointError):
    """A folder that another writer of a savepoint took while this one was writing into it."""

    location: str
    message = (
        "the savepoint in {location} was not finished: another one was begun in the same folder since. Give "
        "each savepoint a folder of its own."
    )


class NewOperatorError(CheckpointError):
    """An operator of a query that begins from a savepoint in which it has no state."""

    location: str
    uid: str
    operators: Sequence[str]  # Those that the savepoint has
    message = (
        "the savepoint {location} has no state of the operator {uid!r}.{uid:~operators} It has that of "
        "{operators:...}. Give the operator the uid that it had, or set the option 'restore.allow-new' to "
        "true where it is to begin without state."
    )


class UnclaimedStateError(CheckpointError):
    """Operators in a savepoint that the query which began from it does not have."""

    location: str
    uids: Sequence[str]
    message = (
        "the savepoint {location} holds state that the query which began from it has no operator for: "
        "{uids:...}. Its checkpoint folder has none of these uids. Start a new query in which an operator "
        "has each of them, or set the option 'restore.allow-unclaimed' to true to go on without that state."
    )


class RestoreChangedError(CheckpointError):
    """An epoch 0 that runs again, and is told to begin from something else than the first time."""

    uid: str
    began: str | None  # The savepoint that it began from; None where it began without one
    given: str  # The savepoint that the option names now
    message = (
        "the operator {uid!r} of this query began {began:?from the savepoint {began}}{began:|without a "
        "savepoint}, and the option 'restore.savepoint' says {given} now. Set it back, or start a new query: "
        "with a new checkpointLocation, and with another 'checkpoint.dir' or after deleting the operator's "
        "folder."
    )


class NoCommonEpochError(CheckpointError):
    """Operators of a query that have no checkpoints of one and the same epoch."""

    operators: Sequence[str]  # The folders
    reason: str  # Why the newest epoch that came into question does not do
    message = (
        "no savepoint can be taken of {operators}: they have no checkpoints of one epoch that is committed. "
        "{reason} Name by uids the operators that the query still has, and see that the checkpoint folder "
        "and Spark's checkpoint location are those of one query."
    )


class NotForkableError(CheckpointError):
    """A savepoint without Spark's files, from which no query can continue where another one was."""

    location: str
    message = (
        "the savepoint {location} cannot be forked: it was made without Spark's checkpoint location, so it "
        "is unknown where its sources were. Start a new query from it with the option 'restore.savepoint', "
        "or make it again with the location."
    )


class SparkLocationError(CheckpointError):
    """A checkpoint location of Spark from which nothing can go on."""

    location: str
    reason: str
    way_out: str
    message = "Spark's checkpoint location {location} cannot be used: {reason}. {way_out}"


class SparkStateError(SparkLocationError):
    """A query that has stateful operators of Spark's own beside keyed ones."""

    reason: str = (
        "the query has stateful operators of Spark's own (the folder state is there), and a savepoint does "
        "not hold their state"
    )
    way_out: str = (
        "Do what they do (dropDuplicates, aggregations, joins) in keyed functions, or take the savepoint "
        "without Spark's checkpoint location: it holds the keyed state, and a new query may begin there."
    )


class StopRequestError(CheckpointError):
    """A query that was not stopped as asked."""

    location: str  # The operator's folder
    reason: str
    way_out: str
    message = "the query of {location} was not stopped: {reason}.{way_out:? {way_out}}"
