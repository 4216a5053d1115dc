"""Errors about savepoints, and about reading checkpoints and savepoints."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError, first_of
from keyedstate.errors.checkpoint import CheckpointError


class NotASavepointError(CheckpointError):
    """A folder that is no savepoint, or not a finished one."""

    location: str
    found: Sequence[str]  # The files in it
    unfinished: bool

    def _message(self) -> str:
        reason = f"it holds {first_of(self.found)}" if self.found else "it is empty or does not exist"
        if self.unfinished:
            reason = "its creation or deletion did not finish"
        return (
            f"{self.location} is no savepoint: {reason}. Give the folder with the file _savepoint. If the "
            "creation of a savepoint did not finish, take it again into the same folder."
        )


class TargetExistsError(CheckpointError):
    """A folder into which nothing new may be written, since it has files that would be replaced."""

    location: str
    found: Sequence[str]
    what: str = "savepoint"
    way_out: str = "Name a new folder, or delete this one if you do not need it."
    message = "no {what} can be written into {location}: it has {found:...} already. {way_out}"


class SavepointTakenOverError(CheckpointError):
    """A folder that another writer of a savepoint took while this one was writing into it."""

    location: str
    message = (
        "the savepoint in {location} was not finished: another one was begun in the same folder. Give each "
        "savepoint a folder of its own."
    )


class NewOperatorError(CheckpointError):
    """An operator of a query that starts from a savepoint in which it has no state."""

    location: str
    uid: str
    operators: Sequence[str]  # Those that the savepoint has
    message = (
        "the savepoint {location} has no state of the operator {uid!r}.{uid:~operators} It has that of "
        "{operators:...}. Give the operator the uid that it had, or set the option 'restore.allow-new' to "
        "true to start it without state."
    )


class UnclaimedStateError(CheckpointError):
    """Operators in a savepoint that the query which started from it does not have."""

    location: str
    uids: Sequence[str]
    message = (
        "the savepoint {location} holds state that the query which started from it has no operator for: "
        "{uids:...}. Its checkpoint folder has none of these uids. Start a new query in which an operator "
        "has each of them, or set the option 'restore.allow-unclaimed' to true to continue without that "
        "state."
    )


class RestoreChangedError(CheckpointError):
    """An epoch 0 that runs again and is to start from another savepoint than the first time."""

    uid: str
    began: str | None  # The savepoint that it started from; None if it started without one
    given: str  # The savepoint that the option names now
    message = (
        "the operator {uid!r} of this query started {began:?from the savepoint {began}}{began:|without a "
        "savepoint}, and the option 'restore.savepoint' says {given} now. Set it back, or start a new query: "
        "with a new checkpointLocation, and with another 'checkpoint.dir' or after deleting the operator's "
        "folder."
    )


class NoCommonEpochError(CheckpointError):
    """Operators of a query that have no checkpoints of a common epoch."""

    operators: Sequence[str]  # The folders
    reason: str  # Why the newest candidate cannot be used
    message = (
        "no savepoint can be taken of {operators}: they have no checkpoints of a common epoch that is "
        "committed. {reason} Name with uids the operators that the query still has, and check that the "
        "checkpoint folder and Spark's checkpoint location are those of one query."
    )


class NotForkableError(CheckpointError):
    """A savepoint without Spark's files, from which no query can continue where another one stopped."""

    location: str
    message = (
        "the savepoint {location} cannot be forked: it was made without Spark's checkpoint location, so it "
        "is unknown where its sources were. Start a new query from it with the option 'restore.savepoint', "
        "or make it again with the location."
    )


class SparkLocationError(CheckpointError):
    """A checkpoint location of Spark from which no query can continue."""

    location: str
    reason: str
    way_out: str
    message = "Spark's checkpoint location {location} cannot be used: {reason}. {way_out}"


class SparkStateError(CheckpointError):
    """State of Spark's own operators that cannot become state of keyedstate."""

    location: str  # Spark's checkpoint location
    reason: str
    way_out: str
    message = "the state in Spark's checkpoint location {location} cannot be converted: {reason}. {way_out}"


class QueryNotStoppedError(CheckpointError):
    """A query that was not stopped with a savepoint as asked; nothing else was done."""

    query: str  # Its id, or ``of`` with the folder of an operator
    reason: str
    way_out: str
    message = "the query {query} was not stopped with a savepoint: {reason}.{way_out:? {way_out}}"


# -- reading --------------------------------------------------------------------------------------


class NoSnapshotError(CheckpointError):
    """A location that has neither a checkpoint nor a savepoint."""

    location: str
    found: Sequence[str]  # The files in it
    what: str = ""
    message = (
        "{location} has no stored state; "
        "{found:?it has {found:...}}{found:|it is empty or does not exist}.{what:? Note that {what}.} Give a "
        "savepoint, a checkpoint folder (the option 'checkpoint.dir' of a query), the folder of an operator "
        "in it, or one of its folders chk-<epoch>."
    )


class UnknownOperatorError(CheckpointError):
    """A uid that stored state does not have, or none given where there are several."""

    location: str
    uid: str | None
    known: Sequence[str]

    message = (
        "{location} has {uid:?no state of the operator {uid!r}.{uid:~known} It has}{uid:|the state of "
        "several operators}: {known:...}. Give the uid of one of them."
    )


class UnknownEpochError(CheckpointError):
    """An epoch of which an operator has no checkpoint, or one asked of a single checkpoint."""

    location: str
    epoch: int
    known: Sequence[int]
    message = (
        "{location} has no checkpoint of epoch {epoch}. It has those of the epochs {known:...}: give one of "
        "them, or none for the newest."
    )


class UnknownStateError(CheckpointError):
    """A state name that an operator's stored state does not have."""

    location: str
    state: str
    known: Sequence[str]
    message = (
        "{location} has no state {state!r}.{state:~known} {known:?It has {known:...}: give one of "
        "them.}{known:|It has no states: no epoch wrote one.}"
    )


class UnexportableTypeError(KeyedStateError):
    """A state whose types a file format cannot represent."""

    state: str
    format: str
    reason: str
    message = (
        "the state {state!r} cannot be written as {format}: {reason}. Export it with --as arrow, which has "
        "all types, or with --as jsonl."
    )


class IncomparableStateError(KeyedStateError):
    """Two stored states whose entries cannot be matched."""

    first: str
    second: str
    reason: str
    message = (
        "{first} and {second} cannot be compared: {reason}. Compare two states of one operator, or export "
        "both and compare the files."
    )


class GenericStateRefusedError(CheckpointError):
    """A state with pickled values, which only a reader who trusts their writer should unpickle."""

    location: str
    state: str
    part: str  # Where in the type the pickled part is; empty for the type itself
    message = (
        "the state {state!r} in {location} has pickled values{part:? in {part!r}}, and unpickling a value "
        "runs code that its writer chose. If you trust the writer, set the option allow-generic to true: the "
        "values are then read as the bytes of the pickles, and none is unpickled."
    )
