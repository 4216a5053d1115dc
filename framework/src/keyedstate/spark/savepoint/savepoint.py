"""Savepoints, as a job and its operators use them: one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyedstate.checkpoint import OperatorSnapshot, SavepointFolder
from keyedstate.checkpoint.savepoint.conversion import convert_savepoint, savepoint_of_checkpoint
from keyedstate.checkpoint.savepoint.savepoint import Progress
from keyedstate.checkpoint.storage.filesystem import Location
from keyedstate.spark.query.creation import take_savepoint
from keyedstate.spark.query.fork import Fork, fork_savepoint

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.query import StreamingQuery

    from keyedstate.spark.savepoint.edit import SavepointEdit


class Savepoint(SavepointFolder):
    """The whole state of a query's operators, in one folder that stands for itself.

    `create`, `stop` and `new` make one, `open` finds it again, `delete` deletes it.  Only `stop`, `new` and
    `edit` need PySpark.
    """

    @classmethod
    def create(
        cls,
        target: Location,
        checkpoint_dir: Location,
        spark_checkpoint_location: Location | None = None,
        *,
        uids: Sequence[str] | None = None,
        epoch: int | None = None,
        progress: Progress | None = None,
    ) -> Savepoint:
        """Make a savepoint of the checkpoints of a query, whether it runs or not; no Spark is needed.

        Parameters
        ----------
        target : str or path
            The new folder.
        checkpoint_dir : str or path
            The option ``checkpoint.dir`` of the query.
        spark_checkpoint_location : str or path, optional
            The query's ``checkpointLocation``.  With it the savepoint is that of the newest micro-batch that
            Spark has committed and the operators retain, and may be forked; without it that of their newest
            checkpoints of one epoch, and only a new query may start from it.
        uids : sequence of str, optional
            The operators; by default all that belong to the query.
        epoch : int, optional
            The micro-batch, where it is to be another one that is still retained.
        progress : callable, optional
            Told how many of how many bytes are done.

        Raises
        ------
        NoSnapshotError, StateFolderOwnedError
            Where the folder has no operator, or none of the query.
        NoCommonEpochError, UnknownEpochError
            Where the operators have no checkpoints of one epoch, or of the given one.
        IncompleteEpochError
            Where an epoch ran and no checkpoint can be made of it.
        TargetExistsError
            Where something is at the place already.
        SparkLocationError
            Where the query cannot continue elsewhere.
        CheckpointError
            Where a file, which is named, is damaged or cannot be read or written.
        """
        made = take_savepoint(target, checkpoint_dir, spark_checkpoint_location, uids, epoch, progress)
        return cls.open(made.root)

    @classmethod
    def stop(
        cls, query: StreamingQuery, target: Location, *, drain: bool = False, progress: Progress | None = None
    ) -> StoppedQuery:
        """Let the running micro-batch finish, stop the query, and take a savepoint of it.

        Nothing is lost and nothing doubled: the savepoint is that of the last micro-batch that Spark has
        committed.  Where the next one has begun in the instant of stopping, it is given up, and the query
        that resumes from the savepoint repeats it.

        Parameters
        ----------
        query : StreamingQuery
            Of this session, running or ended.
        target : str or path
            The new savepoint.
        drain : bool, default False
            Use up all input that exists first, fire all event-time timers, and mark the savepoint as drained,
            with the final watermark: for a query that comes to its end.  Timers fire in micro-batches; where
            there are some, the query needs a heartbeat, which makes micro-batches without input.
        progress : callable, optional
            Told how many of how many bytes are done.

        Raises
        ------
        QueryNotStoppedError
            Where the query has no keyed operators, or is to be drained and has ended, or has event-time
            timers and no heartbeat; it keeps running.
        TargetExistsError, SparkLocationError
            Where no savepoint of it can be taken or written there; it keeps running.
        NoCommonEpochError
            Where it was stopped before its first micro-batch was done.
        CheckpointError
            Where a file, which is named, is damaged or cannot be read or written.  The query is stopped then,
            and `create` takes the savepoint later.
        """
        from keyedstate.spark.query.stop import stop_with_savepoint

        made, failure = stop_with_savepoint(query, target, drain=drain, progress=progress)
        assert made.spark is not None, "it has a location"
        return StoppedQuery(cls.open(made.root), made.spark.epoch, failure)

    @classmethod
    def new(cls) -> SavepointEdit[Savepoint]:
        """Begin a savepoint without any operator: `SavepointEdit.add` gives it some."""
        from keyedstate.spark.savepoint.edit import SavepointEdit

        return SavepointEdit(cls)

    def edit(self) -> SavepointEdit[Savepoint]:
        """Begin a new savepoint from this one, which stays as it is."""
        from keyedstate.spark.savepoint.edit import SavepointEdit

        return SavepointEdit(type(self), self)

    @classmethod
    def of_checkpoint(
        cls,
        checkpoint: Location,
        target: Location,
        *,
        uid: str | None = None,
        epoch: int | None = None,
        compression: str | None = None,
        progress: Progress | None = None,
    ) -> Savepoint:
        """Write one checkpoint of one operator as a savepoint; it cannot be forked.

        Parameters
        ----------
        checkpoint : str or path
            The option ``checkpoint.dir`` of a query, an operator's folder in it, or one of its checkpoints.
        target, compression, progress
            As in `convert`.
        uid, epoch : optional
            Of several operators this one, and not its newest checkpoint.

        Raises
        ------
        NoSnapshotError, UnknownOperatorError, UnknownEpochError
            Where there is no such checkpoint; others as in `convert`.
        """
        stored = OperatorSnapshot.open(checkpoint, uid, epoch)
        made = savepoint_of_checkpoint(stored, target, compression=compression, progress=progress)
        return cls.open(made.root)

    def convert(
        self, target: Location, *, compression: str | None = None, progress: Progress | None = None
    ) -> Savepoint:
        """Write everything that is in this savepoint once more, in the newest format.

        Parameters
        ----------
        target : str or path
            The new folder.
        compression : {"zstd", "lz4", "none"}, optional
            By default each file keeps what it has.
        progress : callable, optional

        Raises
        ------
        TargetExistsError
            Where something is at the place already.
        CheckpointError
            Where a file, which is named, is damaged or cannot be read or written.
        """
        return type(self).open(
            convert_savepoint(self.root, target, compression=compression, progress=progress).root
        )

    def fork(
        self,
        spark_checkpoint_location: Location,
        checkpoint_dir: Location,
        *,
        progress: Progress | None = None,
    ) -> Fork:
        """Prepare a query that continues from a savepoint exactly where its own query was.

        Start it with the same program, the new locations and a sink of its own.  It continues with the next
        micro-batch, from the same offsets; neither the query that the savepoint is of nor the savepoint is
        touched or needed any more.

        Parameters
        ----------
        spark_checkpoint_location : str or path
            The ``checkpointLocation`` of the new query: a folder that is empty or does not exist.
        checkpoint_dir : str or path
            Its option ``checkpoint.dir``; the folder may hold other operators, of other queries.
        progress : callable, optional

        Raises
        ------
        NotForkableError
        TargetExistsError
            Where a target is not empty; nothing was written.
        CheckpointError
            Where a file, which is named, is damaged or cannot be read or written; what was written is
            deleted.

        Notes
        -----
        Killed on its way it leaves folders that no query can use: each state folder gets its owner last, and
        Spark's location, written after them all, its id last.  Delete them and fork again.
        """
        return fork_savepoint(self, spark_checkpoint_location, checkpoint_dir, progress)


@dataclass(frozen=True)
class StoppedQuery:
    """A query that was stopped, and its savepoint.

    Attributes
    ----------
    savepoint : Savepoint
        Of the last micro-batch that Spark has committed.
    epoch : int
        That micro-batch.
    failure : StreamingQueryException or None
        Why the query had failed before it could be stopped.  The savepoint is as good as any; a drained one
        was not possible then.
    """

    savepoint: Savepoint
    epoch: int
    failure: StreamingQueryException | None
