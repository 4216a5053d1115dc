"""Errors about savepoints: what is none, what is unfinished, and what does not fit the query."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.checkpoint import CheckpointError
from keyedstate.errors.kernel import did_you_mean

_SHOWN = 10


class NotASavepointError(CheckpointError):
    """A folder that is no savepoint, or not a finished one.

    Attributes
    ----------
    location : str
    found : tuple of str
        What lies there.
    """

    def __init__(self, location: str, found: Sequence[str], *, unfinished: bool) -> None:
        self.location = location
        self.found = tuple(found)
        if unfinished:
            reason = "its creation, or its deletion, was begun and not finished"
        else:
            reason = f"it holds {_listed(found)}" if found else "nothing is there"
        super().__init__(
            f"{location} is no savepoint: {reason}. Give the folder in which the file _savepoint lies; a "
            "savepoint whose creation did not finish is made again at the same place."
        )


class SavepointTargetError(CheckpointError):
    """A folder into which nothing new may be written, because something is there.

    Attributes
    ----------
    location : str
    found : tuple of str
        What lies there.
    """

    def __init__(self, location: str, found: Sequence[str], what: str = "savepoint") -> None:
        self.location = location
        self.found = tuple(found)
        super().__init__(
            f"no {what} can be written into {location}: {_listed(found)} is there already. Name a new "
            "folder, or delete this one where nobody needs it."
        )


class SavepointTakenOverError(CheckpointError):
    """A folder that another writer of a savepoint took while this one was writing into it."""

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(
            f"the savepoint in {location} was not finished: another one was begun in the same folder since. "
            "Give each savepoint a folder of its own."
        )


class NewOperatorError(CheckpointError):
    """An operator of a query that begins from a savepoint in which it has no state.

    Attributes
    ----------
    location, uid : str
    operators : tuple of str
        Those that the savepoint has.
    """

    def __init__(self, location: str, uid: str, operators: Sequence[str]) -> None:
        self.location = location
        self.uid = uid
        self.operators = tuple(operators)
        super().__init__(
            f"the savepoint {location} has no state of the operator {uid!r}."
            f"{did_you_mean(uid, operators)} It has that of {_listed(operators)}. Give the operator the uid "
            "that it had, or set the option 'restore.allow-new' to true where it is to begin without state."
        )


class UnclaimedStateError(CheckpointError):
    """Operators in a savepoint that the query which began from it does not have.

    Attributes
    ----------
    location : str
    uids : tuple of str
    """

    def __init__(self, location: str, uids: Sequence[str]) -> None:
        self.location = location
        self.uids = tuple(uids)
        super().__init__(
            f"the savepoint {location} holds state that the query which began from it has no operator for: "
            f"{_listed(uids)}. Its checkpoint folder has none of these uids. Start a new query in which an "
            "operator has each of them, or set the option 'restore.allow-unclaimed' to true to go on without "
            "that state."
        )


class RestoreChangedError(CheckpointError):
    """An epoch 0 that runs again, and is told to begin from something else than the first time.

    Attributes
    ----------
    uid : str
    began : str or None
        The savepoint that it began from; None where it began without one.
    given : str
        The savepoint that the option names now.
    """

    def __init__(self, uid: str, began: str | None, given: str) -> None:
        self.uid = uid
        self.began = began
        self.given = given
        before = "without a savepoint" if began is None else f"from the savepoint {began}"
        super().__init__(
            f"the operator {uid!r} of this query began {before}, and the option 'restore.savepoint' says "
            f"{given} now. Set it back, or start a new query: with a new checkpointLocation, and with "
            "another 'checkpoint.dir' or after deleting the operator's folder."
        )


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown
