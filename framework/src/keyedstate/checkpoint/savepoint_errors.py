"""Errors about savepoints: what is none, what is unfinished, and what does not fit the query."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.checkpoint.errors import CheckpointError

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


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown
