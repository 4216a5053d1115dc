"""Errors about the epoch of one partition: its function, its rows, its key columns, its writing."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.kernel import KeyedStateError


class FunctionTransportError(KeyedStateError):
    """A process function that cannot travel to the tasks.

    Attributes
    ----------
    function : str
        Its class.
    step : str
        ``pack`` (on the driver) or ``unpack`` (in a task).
    """

    def __init__(self, function: str, step: str, error: BaseException) -> None:
        self.function = function
        self.step = step
        what = f"{type(error).__name__}: {error}"
        if step == "pack":
            message = (
                f"the function {function} cannot be sent to Spark's tasks: {what}. Make in open() what "
                "cannot be pickled (connections, locks, sessions), instead of keeping it on the instance."
            )
        else:
            message = (
                f"the function {function} cannot be loaded in a Spark task: {what}. Install its modules on "
                "the executors, or send them along with --py-files or SparkContext.addPyFile."
            )
        super().__init__(message)


class MisroutedRowsError(KeyedStateError):
    """Rows that did not arrive in the partition that owns their key groups.

    Attributes
    ----------
    uid : str or None
    partition : int
        The partition as Spark counts it in the stage.
    key_group : int
        The first one found that lies elsewhere.
    owner : int
        The partition of the operator that owns it.
    """

    def __init__(self, uid: str | None, partition: int, parallelism: int, key_group: int, owner: int) -> None:
        self.uid = uid
        self.partition = partition
        self.key_group = key_group
        self.owner = owner
        super().__init__(
            f"partition {partition} of the stage got a row of key group {key_group}, which belongs to "
            f"partition {owner} of the {parallelism} of the keyed operator {uid!r}: the rows were "
            "partitioned again, or the result shares a stage with others. A keyed result may not be "
            "coalesced, and in a union it must come first or after keyed results of the same parallelism: "
            "swap the sides, or put .repartition(n) behind the keyed result."
        )


class DuplicateUidError(KeyedStateError):
    """Two keyed operators of one uid in one streaming query."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        super().__init__(
            f"two keyed operators of this query have the uid {uid!r}, and each would take the other's state "
            "for its own. Give each its own uid."
        )


class TooManyFailedBasesError(KeyedStateError):
    """The whole state could not be written beside the work, too many times in a row.

    Attributes
    ----------
    uid : str
    failures : int
        Epochs in a row with such a failure.
    last : str
        The error of the last one.
    """

    def __init__(self, uid: str, failures: int, last: str) -> None:
        self.uid = uid
        self.failures = failures
        self.last = last
        super().__init__(
            f"the whole state of the operator {uid!r} could not be written {failures} times in a row; the "
            f"last time: {last.rstrip('.')}. Nothing was lost: what changed was written. Mend the storage "
            "and start the query again, or raise spark.keyedstate.checkpoint.tolerable-failures."
        )


class KeyColumnsReorderedError(KeyedStateError):
    """State that was written with the same key columns in another order."""

    def __init__(self, uid: str, before: Sequence[str], now: Sequence[str]) -> None:
        self.uid = uid
        self.before = tuple(before)
        self.now = tuple(now)
        super().__init__(
            f"the state of the keyed operator {uid!r} was written with the key columns {', '.join(before)}, "
            f"and now they are {', '.join(now)}: no key would be found again. Name them in the former order."
        )


class KeyColumnsRetypedError(KeyedStateError):
    """State that was written with key columns of other types.

    Attributes
    ----------
    uid : str
    before, now : tuple of (str, str)
        Names and Spark types of the key columns.
    """

    def __init__(self, uid: str, before: Sequence[tuple[str, str]], now: Sequence[tuple[str, str]]) -> None:
        self.uid = uid
        self.before = tuple(tuple(column) for column in before)
        self.now = tuple(tuple(column) for column in now)
        was, given = (
            ", ".join(f"{name!r} of type {kind}" for name, kind in columns) for columns in (before, now)
        )
        super().__init__(
            f"the state of the keyed operator {uid!r} was written with the key column {was} of the "
            f"DataFrame, and now it is {given}: no key would be found again. Cast the column to its former "
            "type before keyed(), or give the operator another uid to start without state."
        )
