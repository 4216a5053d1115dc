"""Errors about the epoch of one partition: its function, its rows, its key columns, its writing."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError


class FunctionTransportError(KeyedStateError):
    """A process function that cannot travel to the tasks."""

    function: str  # Its class
    step: str  # ``pack`` (on the driver) or ``unpack`` (in a task)
    error: str

    def _message(self) -> str:
        if self.step == "pack":
            return (
                f"the function {self.function} cannot be sent to Spark's tasks: {self.error}. Make in open() "
                "what cannot be pickled (connections, locks, sessions), instead of keeping it on the "
                "instance."
            )
        return (
            f"the function {self.function} cannot be loaded in a Spark task: {self.error}. Install its "
            "modules on the executors, or send them along with --py-files or SparkContext.addPyFile."
        )


class MisroutedRowsError(KeyedStateError):
    """Rows that did not arrive in the partition that owns their key groups."""

    uid: str | None
    partition: int  # The partition as Spark counts it in the stage
    parallelism: int
    key_group: int  # The first one found that lies elsewhere
    owner: int  # The partition of the operator that owns it
    message = (
        "partition {partition} of the stage got a row of key group {key_group}, which belongs to partition "
        "{owner} of the {parallelism} of the keyed operator {uid!r}: the rows were partitioned again, or the "
        "result shares a stage with others. A keyed result may not be coalesced, and in a union it must come "
        "first or after keyed results of the same parallelism: swap the sides, or put .repartition(n) behind "
        "the keyed result."
    )


class DuplicateUidError(KeyedStateError):
    """Two keyed operators of one uid in one streaming query."""

    uid: str
    message = (
        "two keyed operators of this query have the uid {uid!r}, and each would take the other's state for "
        "its own. Give each its own uid."
    )


class TooManyFailedSnapshotsError(KeyedStateError):
    """Too many full snapshots in a row failed in the background."""

    uid: str
    failures: int  # Epochs in a row with such a failure
    last: str  # The error of the last one
    message = (
        "a full snapshot of the operator {uid!r} could not be written {failures} times in a row; the last "
        "time: {last}. Nothing was lost: what changed was written. Mend the storage and start the query "
        "again, or raise spark.keyedstate.checkpoint.tolerable-failures."
    )


class KeyColumnsReorderedError(KeyedStateError):
    """State that was written with the same key columns in another order."""

    uid: str
    before: Sequence[str]
    now: Sequence[str]
    message = (
        "the state of the keyed operator {uid!r} was written with the key columns {before}, and now they are "
        "{now}: no key would be found again. Name them in the former order."
    )


class KeyColumnsRetypedError(KeyedStateError):
    """State that was written with key columns of other types."""

    uid: str
    before: Sequence[tuple[str, str]]  # Names and Spark types of the key columns
    now: Sequence[tuple[str, str]]

    def _message(self) -> str:
        before, now = (
            ", ".join(f"{name!r} of type {kind}" for name, kind in columns)
            for columns in (self.before, self.now)
        )
        return (
            f"the state of the keyed operator {self.uid!r} was written with the key column {before} of the "
            f"DataFrame, and now it is {now}: no key would be found again. Cast the column to its former "
            "type before keyed(), or give the operator another uid to start without state."
        )
