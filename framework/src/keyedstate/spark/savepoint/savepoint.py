"""Savepoints: created, edited, forked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyedstate.checkpoint.savepoint.canonical import convert_savepoint, savepoint_of_checkpoint
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import Progress, SavepointFolder
from keyedstate.checkpoint.storage.filesystem import Location
from keyedstate.spark.query.creation import take_savepoint
from keyedstate.spark.query.fork import Fork, fork_savepoint

if TYPE_CHECKING:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql.streaming.query import StreamingQuery

    from keyedstate.spark.savepoint.edit import SavepointEdit


class Savepoint(SavepointFolder):
    """The state of all operators of a query, in one folder that refers to no other.

    `create`, `stop` and `new` make one, `open` finds it, `delete` deletes it.  Only `stop`, `new` and `edit`
    need PySpark.  Every method raises `CheckpointError` for a file that is damaged, or cannot be read or
    written, and names it.
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
        """Make a savepoint of the checkpoints of a running or stopped query; needs no Spark.

        Parameters
        ----------
        target : str or path
            The new folder.
        checkpoint_dir : str or path
            The option ``checkpoint.dir`` of the query.
        spark_checkpoint_location : str or path, optional
            The query's ``checkpointLocation``.  With it the savepoint is that of the newest micro-batch that
            Spark has committed and the operators retain, and may be forked.  Without it the savepoint is that
            of the newest epoch of which all operators have a checkpoint, and only a new query may start from
            it.  That of a local run that has read files to their ends may be forked all the same: a query on
            Spark does not read them again.
        uids : sequence of str, optional
            The operators; by default all of the query.
        epoch : int, optional
            Another retained micro-batch.
        progress : callable, optional
            Called with the number of bytes done, and of all.

        Raises
        ------
        NoSnapshotError, StateFolderOwnedError
            If the folder has no operator, or none of the query.
        NoCommonEpochError, UnknownEpochError
            If the operators have no checkpoints of one epoch, or of the given one.
        IncompleteEpochError
            If an epoch ran and no checkpoint can be made of it.
        TargetExistsError
            If the new folder is not empty.
        SparkLocationError
            If the query cannot continue elsewhere.
        """
        made = take_savepoint(target, checkpoint_dir, spark_checkpoint_location, uids, epoch, progress)
        return cls.open(made.root)

    @classmethod
    def stop(
        cls,
        query: StreamingQuery,
        target: Location,
        *,
        drain: bool = False,
        progress: Progress | None = None,
        spark_checkpoint_location: Location | None = None,
    ) -> StoppedQuery:
        """Let the running micro-batch finish, stop the query, and take a savepoint of it.

        The savepoint is that of the last micro-batch that Spark has committed.  A query that resumes from it
        repeats a micro-batch that started at the moment of stopping.

        Parameters
        ----------
        query : StreamingQuery
            Of this session, running or ended.
        target : str or path
            The new savepoint.
        drain : bool, default False
            First process all available input and fire all event-time timers, and mark the savepoint as
            drained, with the final watermark: for the end of a query.  Timers fire in micro-batches, so a
            query with timers needs a heartbeat.
        progress : callable, optional
            As in `create`.
        spark_checkpoint_location : str or path, optional
            The query's ``checkpointLocation``: needed on Spark Connect, which does not tell it, and ignored
            otherwise.

        Raises
        ------
        ClassicSparkRequiredError
            On Spark Connect, without the location; the query keeps running.
        QueryNotStoppedError
            If the query has no keyed operators, or cannot be drained: it has ended, or has event-time timers
            and no heartbeat.  It keeps running.
        TargetExistsError, SparkLocationError
            If no savepoint can be taken or written there; the query keeps running.
        NoCommonEpochError
            If the query was stopped before the end of its first micro-batch.
        CheckpointError
            After the query has stopped; `create` takes the savepoint later.
        """
        from keyedstate.spark.query.stop import stop_with_savepoint

        made, failure = stop_with_savepoint(
            query,
            target,
            drain=drain,
            progress=progress,
            spark_checkpoint_location=spark_checkpoint_location,
        )
        assert made.spark is not None, "it has a location"
        return StoppedQuery(cls.open(made.root), made.spark.epoch, failure)

    @classmethod
    def new(cls) -> SavepointEdit[Savepoint]:
        """Start a savepoint without operators; `SavepointEdit.add` adds them."""
        from keyedstate.spark.savepoint.edit import SavepointEdit

        return SavepointEdit(cls)

    def edit(self) -> SavepointEdit[Savepoint]:
        """Start a new savepoint from this one, which does not change."""
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
            To choose one of several operators, and an epoch other than the newest.

        Raises
        ------
        NoSnapshotError, UnknownOperatorError, UnknownEpochError, TargetExistsError
        """
        stored = OperatorSnapshot.open(checkpoint, uid, epoch)
        made = savepoint_of_checkpoint(stored, target, compression=compression, progress=progress)
        return cls.open(made.root)

    def convert(
        self, target: Location, *, compression: str | None = None, progress: Progress | None = None
    ) -> Savepoint:
        """Write this savepoint again, in the newest format.

        Parameters
        ----------
        target : str or path
            The new folder.
        compression : {"zstd", "lz4", "none"}, optional
            By default that of each file.
        progress : callable, optional
            As in `create`.

        Raises
        ------
        TargetExistsError
            If the new folder is not empty.
        """
        made = convert_savepoint(self.root, target, compression=compression, progress=progress)
        return type(self).open(made.root)

    def fork(
        self,
        spark_checkpoint_location: Location,
        checkpoint_dir: Location,
        *,
        progress: Progress | None = None,
    ) -> Fork:
        """Prepare a query that continues after the micro-batch of a savepoint, from the same offsets.

        Start it with the same program, the new locations and its own sink.  It needs neither the savepoint
        nor the old query.

        Parameters
        ----------
        spark_checkpoint_location : str or path
            The ``checkpointLocation`` of the new query: a folder that is empty or does not exist.
        checkpoint_dir : str or path
            Its option ``checkpoint.dir``; the folder may have operators of other queries.
        progress : callable, optional
            As in `create`.

        Raises
        ------
        NotForkableError
        TargetExistsError
            If a target is not empty; nothing was written.
        CheckpointError
            After the files that were written are deleted.

        Notes
        -----
        A killed fork leaves folders that no query can use: each state folder gets its owner last, and Spark's
        location, after all of them, its id last.  Delete them and fork again.
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
        If the query failed before it was stopped.  The savepoint is valid, but not drained.
    """

    savepoint: Savepoint
    epoch: int
    failure: StreamingQueryException | None
