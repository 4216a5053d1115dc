"""Errors about looking for stored state: each lists what is there instead."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.checkpoint import CheckpointError
from keyedstate.errors.kernel import did_you_mean

#: Names that an error lists.
_SHOWN = 10


class NoStoredStateError(CheckpointError):
    """An address at which there is neither a checkpoint nor a savepoint.

    Attributes
    ----------
    location : str
    found : tuple of str
        What lies there.
    """

    def __init__(self, location: str, found: Sequence[str], what: str = "") -> None:
        self.location = location
        self.found = tuple(found)
        there = f"there are {_listed(found)}" if found else "nothing is there"
        note = f" Note that {what}." if what else ""
        super().__init__(
            f"{location} holds no stored state; {there}.{note} Give a savepoint, a checkpoint folder (the "
            "option 'checkpoint.dir' of a query), the folder of an operator in it, or one of its folders "
            "chk-<epoch>."
        )


class UnknownOperatorError(CheckpointError):
    """A uid that stored state does not have, or none given where there are several.

    Attributes
    ----------
    location : str
    uid : str or None
    known : tuple of str
    """

    def __init__(self, location: str, uid: str | None, known: Sequence[str]) -> None:
        self.location = location
        self.uid = uid
        self.known = tuple(known)
        if uid is None:
            problem = f"{location} holds the state of {len(known)} operators"
        else:
            problem = f"{location} holds no state of the operator {uid!r}.{did_you_mean(uid, known)} It has"
        super().__init__(f"{problem}: {_listed(known)}. Give the uid of one of them.")


class UnknownEpochError(CheckpointError):
    """An epoch of which an operator has no checkpoint, or one asked of something that is a single one.

    Attributes
    ----------
    location : str
    epoch : int
    known : tuple of int
    """

    def __init__(self, location: str, epoch: int, known: Sequence[int]) -> None:
        self.location = location
        self.epoch = epoch
        self.known = tuple(known)
        super().__init__(
            f"{location} has no checkpoint of epoch {epoch}. It has those of the epochs "
            f"{_listed([str(number) for number in known])}: give one of them, or none for the newest."
        )


class UnknownStateError(CheckpointError):
    """A state name that an operator's stored state does not have.

    Attributes
    ----------
    location, state : str
    known : tuple of str
    """

    def __init__(self, location: str, state: str, known: Sequence[str]) -> None:
        self.location = location
        self.state = state
        self.known = tuple(known)
        there = f"It has {_listed(known)}: give one of them." if known else "It has none: no epoch made any."
        super().__init__(f"{location} has no state {state!r}.{did_you_mean(state, known)} {there}")


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown
