"""Errors about looking for stored state: each lists what is there instead."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError, did_you_mean, first_of
from keyedstate.errors.checkpoint import CheckpointError


class NoSnapshotError(CheckpointError):
    """An address at which there is neither a checkpoint nor a savepoint."""

    location: str
    found: Sequence[str]  # What lies there
    what: str = ""
    message = (
        "{location} holds no stored state; {found:?there are {found:...}}{found:|nothing is there}.{what:? "
        "Note that {what}.} Give a savepoint, a checkpoint folder (the option 'checkpoint.dir' of a query), "
        "the folder of an operator in it, or one of its folders chk-<epoch>."
    )


class UnknownOperatorError(CheckpointError):
    """A uid that stored state does not have, or none given where there are several."""

    location: str
    uid: str | None
    known: Sequence[str]

    def _message(self) -> str:
        if self.uid is None:
            problem = f"{self.location} holds the state of {len(self.known)} operators"
        else:
            hint = did_you_mean(self.uid, self.known)
            problem = f"{self.location} holds no state of the operator {self.uid!r}.{hint} It has"
        return f"{problem}: {first_of(self.known)}. Give the uid of one of them."


class UnknownEpochError(CheckpointError):
    """An epoch of which an operator has no checkpoint, or one asked of something that is a single one."""

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
        "them.}{known:|It has none: no epoch made any.}"
    )


class UnexportableTypeError(KeyedStateError):
    """A state whose types a file format has no place for."""

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
    part: str  # Where in the type the pickled part lies; empty for the whole
    message = (
        "the state {state!r} in {location} has pickled values{part:? in {part!r}}, and whoever unpickles a "
        "value runs what its writer has put into it. Where you trust the writer, set the option "
        "allow-generic to true: the values are then read as the bytes of the pickles, and none is unpickled."
    )
