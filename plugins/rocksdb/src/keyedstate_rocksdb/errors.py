"""Errors of a database, with its folder and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from keyedstate.errors import KeyedStateError

_OPEN_FILES = (
    "Raise the limit on open files of the executors (ulimit -Hn; LimitNOFILE of a service), spread the "
    "partitions over more hosts, or set rocksdb.max-open-files."
)


class RocksError(KeyedStateError):
    """An error of RocksDB.

    Attributes
    ----------
    path : str
        The folder of the database.
    reason : str
        RocksDB's message.
    """

    way_out = "Look at the file LOG in the folder, and at the disk it is on."

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        way_out = _OPEN_FILES if "Too many open files" in reason else self.way_out
        super().__init__(f"{self.what(path)}: {reason}. {way_out}")

    @staticmethod
    def what(path: str) -> str:
        """Return what has happened."""
        return f"the RocksDB database {path} cannot be opened"


class LockedDatabaseError(RocksError):
    """A database that a living process has open."""

    way_out = (
        "Another process uses this folder; give each one a folder of its own, or end the process that has it."
    )


class CorruptDatabaseError(RocksError):
    """A database whose files are missing, damaged or not its own."""

    way_out = "Its files are not those that were written together; restore from another checkpoint."


class RefusedOptionsError(RocksError):
    """Options that RocksDB refuses."""

    way_out = "Change the options that begin with 'rocksdb.'; `keyedstate plugins show rocksdb` has them."


class UnwritableDatabaseError(RocksError):
    """A database that refuses writes, mostly because its disk is full."""

    way_out = (
        "Make room on the disk that the folder is on, or have tasks work on another one; the query resumes "
        "from its last checkpoint then."
    )

    @staticmethod
    def what(path: str) -> str:
        return f"the RocksDB database {path} cannot be written"


class UnreadableDatabaseError(RocksError):
    """A database whose disk gives an error."""

    way_out = (
        "Look at the disk that the folder is on, or have tasks work on another one; the query then resumes "
        "from its last checkpoint."
    )

    @staticmethod
    def what(path: str) -> str:
        return f"the RocksDB database {path} cannot be read"


class UnknownChoiceError(KeyedStateError):
    """An option with a value that is none of its choices.

    Attributes
    ----------
    option, value : str
    choices : tuple of str
    """

    def __init__(self, option: str, value: str, choices: Iterable[str]) -> None:
        self.option = option
        self.value = value
        self.choices = tuple(choices)
        super().__init__(f"{option} is {value!r}. Set it to one of {', '.join(self.choices)}.")


class OptionsFactoryError(KeyedStateError):
    """A function for RocksDB's options that cannot be used.

    Attributes
    ----------
    factory, reason : str
    """

    def __init__(self, factory: str, reason: str) -> None:
        self.factory = factory
        self.reason = reason
        super().__init__(
            f"rocksdb.options-factory is {factory!r}, and {reason}. Give module:function, of a module that "
            "is installed wherever tasks run."
        )


class SmallBudgetError(KeyedStateError):
    """A memory budget that is too small to be useful.

    Attributes
    ----------
    budget, least : int
        Bytes.
    """

    def __init__(self, budget: int, least: int) -> None:
        self.budget = budget
        self.least = least
        super().__init__(
            f"RocksDB has {budget} bytes of memory in this process, and it needs {least} at the least. Raise "
            "memory.managed-size or its weight in memory.weights, or the fixed budget where one is set; "
            "rocksdb.memory-budget=0 gives each state a cache and buffers of its own."
        )


@contextmanager
def opened(path: Path) -> Iterator[None]:
    """Turn errors of RocksDB while a database is opened into errors with a way out.

    Raises
    ------
    LockedDatabaseError, CorruptDatabaseError, RefusedOptionsError, RocksError
    """
    try:
        yield
    except KeyedStateError:
        raise
    except Exception as error:  # rocksdict raises no other class
        reason = _reason(error)
        for sign, problem in _PROBLEMS:
            if sign in reason:
                raise problem(str(path), reason) from None
        raise RocksError(str(path), reason) from None


@contextmanager
def writing(path: Path, state: str | None = None) -> Iterator[None]:
    """Turn errors of RocksDB while it writes, a state if one is given, into errors with a way out.

    Raises
    ------
    UnwritableDatabaseError
    """
    try:
        yield
    except (KeyedStateError, TypeError):
        raise
    except Exception as error:  # rocksdict raises no other class
        raise UnwritableDatabaseError(str(path), _reason(error, state)) from error


@contextmanager
def reading(path: Path, state: str) -> Iterator[None]:
    """Turn errors of RocksDB while it reads a state into errors with a way out.

    Raises
    ------
    UnreadableDatabaseError
    """
    try:
        yield
    except NOT_OF_ROCKSDB:
        raise
    except Exception as error:  # rocksdict raises no other class
        raise unreadable(path, state, error) from error


def unreadable(path: Path, state: str, error: Exception) -> UnreadableDatabaseError:
    """Return an error of RocksDB while it reads a state as one with a way out."""
    return UnreadableDatabaseError(str(path), _reason(error, state))


def _reason(error: Exception, state: str | None = None) -> str:
    reason = " ".join(str(error).split()).rstrip(".")
    return reason if state is None else f"state {state!r}: {reason}"


#: What a look-up raises without RocksDB: a closed database or a key that is no bytes.
NOT_OF_ROCKSDB = (KeyedStateError, AttributeError, TypeError, ValueError)


_PROBLEMS = (
    ("lock hold", LockedDatabaseError),
    ("While lock file", LockedDatabaseError),
    ("Corruption", CorruptDatabaseError),
    ("No such file", CorruptDatabaseError),
    ("Comparator", CorruptDatabaseError),
    ("comparator", CorruptDatabaseError),
    ("Invalid argument", RefusedOptionsError),
    ("Not implemented", RefusedOptionsError),
)
